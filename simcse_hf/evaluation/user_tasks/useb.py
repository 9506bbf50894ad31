"""Read the data of USEB (Wang et al. 2021, arXiv:2104.06979): AskUbuntu, CQADupStack, SciDocs and Twitter paraphrases.

The layouts are those of the archive `data-eval` that the benchmark's own package reads.
"""

from collections.abc import Iterator
from pathlib import Path

from ...data.read import decoded_lines
from ...ops.files import read_json_object
from ..pairs import ScoredPairs
from .base import UserTask
from .pairs import PairsTask
from .reading import short_name
from .reranking import RankedQuery, RerankingTask
from .retrieval import JudgedQuery, RetrievalTask

_POOL = "text_tokenized.txt"
_SCIDOCS = "data.json"
_CQADUPSTACK = ("corpus.json", "retrieval_split.json")
_TWITTER_URL, _PIT = "Twitter_URL_Corpus_test.txt", "test.data"
_ADVICE = "Name a file or folder of USEB's archive data-eval."
_UNDECIDED = 3  # votes of this number are neither paraphrase nor not


def read_useb_task(kind: str, path: Path) -> UserTask | None:
    """Read a task of USEB, which is recognised by the names of its files.

    - `reranking`: the folder `askubuntu` (or its `dev.txt` or `test.txt`) by question title, where the relevant
      questions are those among the 20 candidates; and the test part of the folder `scidocs` by title, with its four
      subsets as one task. Papers without a title are left out.
    - `retrieval`: the test queries of the folder `cqadupstack`. Each forum is a corpus, without the questions that are
      queries.
    - `pairs`: `Twitter_URL_Corpus_test.txt` and `test.data` (PIT-2015) of the folder `twitterpara`. More than three
      votes make a paraphrase, and pairs with exactly three are left out.

    Args:
        kind (`str`): Kind of task.
        path (`Path`): The file or folder.

    Returns:
        `UserTask`, *optional*: The task, or `None` if these are no files of USEB.

    Raises:
        ValueError: If a file is malformed.
    """
    source, name = str(path), short_name(path)
    if kind == "reranking" and path.is_dir() and (path / _POOL).is_file():
        return RerankingTask(source, name, list(_askubuntu(path / "test.txt")))
    if kind == "reranking" and path.suffix == ".txt" and (path.parent / _POOL).is_file():
        return RerankingTask(source, name, list(_askubuntu(path)))
    if kind == "reranking" and path.is_dir() and (path / _SCIDOCS).is_file():
        return RerankingTask(source, name, list(_scidocs(path / _SCIDOCS)))
    if kind == "retrieval" and path.is_dir() and all((path / file).is_file() for file in _CQADUPSTACK):
        return RetrievalTask(source, name, *_cqadupstack(path))
    if kind == "pairs" and path.name in (_TWITTER_URL, _PIT):
        return PairsTask(source, name, _twitter(path))
    return None


def _askubuntu(path: Path) -> Iterator[RankedQuery]:
    titles = {}
    for where, (id, title, _) in _tab_separated(path.parent / _POOL, 3):
        if id in titles:
            raise ValueError(f"{where}: question {id} occurs a second time.")
        titles[id] = title.strip()
    for where, (query, similar, candidates, _) in _tab_separated(path, 4):
        unknown = [id for id in (query, *candidates.split()) if id not in titles]
        if unknown:
            raise ValueError(f"{where}: question {unknown[0]} is not in {_POOL}.")
        relevant = set(similar.split())
        parts: tuple[list[str], list[str]] = ([], [])
        for id in candidates.split():
            parts[id not in relevant].append(titles[id])
        yield RankedQuery(titles[query], *parts)


def _scidocs(path: Path) -> Iterator[RankedQuery]:
    data = read_json_object(path, "corpus", "test", advice=_ADVICE)
    titles = {id: str(paper.get("title") or "").strip() for id, paper in data["corpus"].items()}
    for subset, judgements in data["test"].items():
        for query, relevance in judgements.items():
            if not titles.get(query):
                continue
            parts: tuple[list[str], list[str]] = ([], [])
            for id, grade in relevance.items():
                if titles.get(id):
                    parts[int(grade) <= 0].append(titles[id])
            yield RankedQuery(titles[query], *parts, subset)


def _cqadupstack(path: Path) -> tuple[list[JudgedQuery], dict[str, dict[str, str]]]:
    corpus = read_json_object(path / _CQADUPSTACK[0], advice=_ADVICE)
    splits = read_json_object(path / _CQADUPSTACK[1], "test", advice=_ADVICE)
    queries, corpora = [], {}
    for forum, judgements in splits["test"].items():
        texts = corpus[forum]
        corpora[forum] = {id: text for id, text in texts.items() if id not in judgements and text.strip()}
        for query, relevant in judgements.items():
            unknown = [id for id in (query, *relevant) if id not in texts]
            if unknown:
                raise ValueError(
                    f"{path / _CQADUPSTACK[1]}, forum {forum}: question {unknown[0]} is not in the corpus."
                )
            queries.append(JudgedQuery(query, texts[query], dict.fromkeys(relevant, 1), forum))
    return queries, corpora


def _twitter(path: Path) -> ScoredPairs:
    """Read lines of two texts and votes such as `(4, 6)`, or of a topic, its name, two texts and a number of votes."""
    pairs = ScoredPairs(path.stem)
    first = 2 if path.name == _PIT else 0
    for where, cells in _tab_separated(path, first + 3):
        votes = cells[first + 2].strip().removeprefix("(").partition(",")[0]
        if not votes.isdecimal():
            raise ValueError(f"{where}: {cells[first + 2]!r} is no number of votes.")
        if int(votes) != _UNDECIDED:
            pairs.sentences1.append(cells[first].strip())
            pairs.sentences2.append(cells[first + 1].strip())
            pairs.scores.append(float(int(votes) > _UNDECIDED))
    return pairs


def _tab_separated(path: Path, cells: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line, of which there are at least `cells`; further ones are dropped."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file.")
    for number, line in decoded_lines(path):
        row = line.rstrip("\r\n").split("\t")
        if len(row) < cells:
            raise ValueError(f"{path}, line {number}: {len(row)} tab-separated cells instead of {cells}.")
        yield f"{path}, line {number}", row[:cells]
