"""Read a retrieval task in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/*.tsv."""

from pathlib import Path

from transformers.utils import logging

from ...data.read import SUFFIX, open_table
from .reading import checked_text, file_of, short_name
from .retrieval import JudgedQuery, RetrievalTask

logger = logging.get_logger(__name__)

QRELS = "qrels"
_QREL_COLUMNS = ["query-id", "corpus-id", "score"]


def read_retrieval(path: Path) -> RetrievalTask:
    """Read a retrieval task from a folder in BEIR's layout.

    Documents have `_id`, `text` and possibly `title`, which is put before the text, and queries have `_id` and `text`.
    Judgements are those of `qrels/test.tsv`, or of the only file in `qrels`. To use another one, name the file itself:
    `folder/qrels/dev.tsv`.

    Args:
        path (`Path`): The folder, or a file in its folder `qrels`.

    Returns:
        `RetrievalTask`: The task.

    Raises:
        ValueError: If a file or column is missing, an id occurs twice, a query has no text, or judgements are missing,
            malformed, or name unknown queries or documents.
    """
    folder, qrels = (path.parent.parent, path) if path.is_file() else (path, _find_qrels(path))
    corpus = _read_texts(_required(folder, "corpus"), with_title=True)
    query_texts = _read_texts(_required(folder, "queries"))
    empty = [id for id, text in corpus.items() if not text]
    if empty:
        logger.warning(f"{folder}: left out {len(empty)} document(s) without text, such as {empty[0]!r}.")
    relevance = _read_qrels(qrels, query_texts, corpus)
    queries = [JudgedQuery(id, query_texts[id], judged) for id, judged in relevance.items()]
    documents = {id: text for id, text in corpus.items() if text}
    return RetrievalTask(str(path), short_name(folder), queries, {"": documents})


def _required(folder: Path, stem: str) -> Path:
    path = file_of(folder, stem) if folder.is_dir() else None
    if path is None:
        raise ValueError(
            f"{folder}: there is no {stem}.jsonl. A retrieval task is a folder in BEIR's layout, with corpus.jsonl, "
            "queries.jsonl and qrels/test.tsv."
        )
    return path


def _find_qrels(folder: Path) -> Path:
    files = sorted(path for path in (folder / QRELS).glob("*") if SUFFIX.search(path.name))
    named = [path for path in files if short_name(path) == "test"]
    if len(named) == 1 or len(files) == 1:
        return (named or files)[0]
    if not files:
        raise ValueError(f"{folder}: there is no {QRELS}/test.tsv with the judgements.")
    raise ValueError(
        f"{folder / QRELS}: there are {', '.join(path.name for path in files)}, and not one test.tsv. Name the file: "
        f"retrieval={files[0]}."
    )


def _read_texts(path: Path, with_title: bool = False) -> dict[str, str]:
    """Read texts by id. A document may be empty; a query may not."""
    table = open_table(path)
    missing = {"_id", "text"} - set(table.columns)
    if missing:
        raise ValueError(f"{path}: no column {min(missing)!r}. The columns are {', '.join(map(repr, table.columns))}.")
    columns = ["_id", "text", *(["title"] if with_title and "title" in table.columns else [])]
    texts: dict[str, str] = {}
    for number, (id, text, *title) in table.rows(columns):
        where = table.at(number)
        if id is None or not str(id):
            raise ValueError(f"{where}: the _id is empty.")
        if str(id) in texts:
            raise ValueError(f"{where}: the _id {str(id)!r} occurs a second time. Ids must be unique.")
        if with_title:
            texts[str(id)] = " ".join(part.strip() for part in (*title, text) if part).strip()
        else:
            texts[str(id)] = checked_text(text, where)
    return texts


def _read_qrels(path: Path, queries: dict[str, str], corpus: dict[str, str]) -> dict[str, dict[str, int]]:
    """Read the relevance of documents by query, in the order of the file."""
    table = open_table(path)
    if missing := [column for column in _QREL_COLUMNS if column not in table.columns]:
        raise ValueError(
            f"{path}, line 1: no column {missing[0]!r}. The header of judgements is query-id, corpus-id, score, "
            "separated by tabs."
        )
    relevance: dict[str, dict[str, int]] = {}
    unknown: dict[str, list[str]] = {"query": [], "document": []}
    for number, (query, document, score) in table.rows(_QREL_COLUMNS):
        where, query, document = table.at(number), str(query), str(document)
        try:
            grade = int(score)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: the score {score!r} is not a whole number.") from None
        for what, id, known in (("query", query, queries), ("document", document, corpus)):
            if id not in known:
                unknown[what].append(f"{id!r} ({where})")
        if document in relevance.setdefault(query, {}):
            raise ValueError(f"{where}: document {document!r} is judged a second time for query {query!r}.")
        relevance[query][document] = grade
    for what, places in unknown.items():
        if places:
            raise ValueError(
                f"{path}: {len(places)} judgement(s) name a {what} that does not exist; the first is {places[0]}. "
                "Remove them, or use the corpus and queries that they were made for."
            )
    if not relevance:
        raise ValueError(f"{path}: there are no judgements in this file.")
    return relevance
