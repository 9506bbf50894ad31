"""The commands `index`, `index-add`, `index-delete`, `search` and `duplicates`: an index of the texts of files."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, cast

from numpy import ndarray
from transformers import AutoConfig

from ..data.table import stream_texts
from ..encoding.files import read_manifest, read_shards
from ..encoding.simcse import SimCSE, load_model
from ..models.settings import SPACE
from ..names import ModelOptions
from ..retrieval.description import describe
from ..retrieval.sentences import Match, SentenceIndex, check_target
from ..runtime.encoders import as_encoder
from ..runtime.errors import DataError, SettingError
from ..runtime.files import StrPath, digest
from ..runtime.identity import Identity, digest_texts
from ..runtime.loading import load_pretrained
from ..runtime.outputs import Result
from ..runtime.similarity import check_scores


@dataclass(frozen=True)
class Indexed(Result):
    """The index that was written.

    Args:
        output (`str`): Its folder.
        sentences (`int`): Number of its sentences.
        backend (`str`): What searches it.
    """

    output: str
    sentences: int
    backend: str

    def __str__(self) -> str:
        return f"{self.sentences} sentences in the index {self.output}"


@dataclass(frozen=True)
class Found(Result):
    """What `search` found for a query.

    Args:
        query (`str`): The query.
        results (`list[Match]`): The sentences that reach the threshold, the most similar one first.
        best_score (`float`, *optional*): The score of the most similar sentence; `None` if no sentence passes the
            filters.
        threshold (`float`, *optional*): The lowest score to show.
    """

    query: str
    results: list[Match]
    best_score: float | None
    threshold: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the query, the results with all that is known of a sentence, and the best score."""
        results = [{**match._asdict(), **vars(match)} for match in self.results]
        return {"query": self.query, "results": results, "best_score": self.best_score}

    def __str__(self) -> str:
        lines = [self.query]
        for match in self.results:
            lines.append(f"  {match.score:.4f}  {printable(match.sentence)}")
        if self.best_score is not None and not self.results:
            lines.append(f"  no sentence reaches {self.threshold:.4g}; the best one has {self.best_score:.4f}")
        return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Duplicate(Result):
    """Two sentences that are nearly the same.

    Args:
        score (`float`): Their similarity.
        row (`int`): The number of the first one, from 0, among the texts of the file.
        other_row (`int`): The number of the second one.
        sentence (`str`): The first one.
        other (`str`): The second one.
    """

    score: float
    row: int
    other_row: int
    sentence: str
    other: str

    def __str__(self) -> str:
        first, second = printable(self.sentence), printable(self.other)
        return f"{self.score:.4f}\n{self.row:>8}  {first}\n{self.other_row:>8}  {second}"


def printable(text: str) -> str:
    """Return a text without the escape sequences that would reach the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def index(
    input: StrPath,
    output: StrPath,
    *,
    model: StrPath | SimCSE,
    column: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    vectors: StrPath | None = None,
    backend: str = "exact",
    parameters: str | None = None,
    truncate_dim: int | None = None,
    keep: Sequence[str] = (),
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> Indexed:
    """Build a search index over the texts of a file.

    Args:
        input (`str` or `os.PathLike`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped; in
            Python also a data frame.
        output (`str` or `os.PathLike`): Folder for the index.
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        column (`str`, *optional*): Column of texts, if the file has several.
        prompt (`str`, *optional*): Put this before each text, such as 'query: '.
        prompt_name (`str`, *optional*): Put this prompt of the model before each text. The default is the model's
            prompt for this use, if it has one.
        vectors (`str` or `os.PathLike`, *optional*): Folder that `simcse-hf encode` wrote for this `input` and model.
        backend (`str`, *optional*, defaults to `"exact"`): What searches: exact, or one of faiss, which may miss some
            neighbours: hnsw (a graph), ivf (an inverted file) or a description for its index_factory such as
            IVF4096,SQ8.
        parameters (`str`, *optional*): Parameters of a faiss index, such as efSearch=256 or nprobe=20.
        truncate_dim (`int`, *optional*): Keep this many leading dimensions of an embedding, and then normalize it.
        keep (`Sequence[str]`, *optional*): Columns of `input` that a search returns and filters by.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Indexed`: What was written. A prompt that was given is now the model's prompt for documents.

    Raises:
        SettingError: If `output` holds anything, the input is unreadable, or the vectors are not those of `input` and
            the model.

    Examples:
        >>> from simcse_hf import index
        >>> print(index("sentences.txt", "my-index", model="outputs/my-model"))
        200 sentences in the index my-index
    """
    if check_target(output) and not overwrite:
        raise SettingError(f"output {output} holds an index: add to it with index-add, or replace it with overwrite")
    column, shards = open_vectors(vectors, input, column)
    encoder = load_model(model, **loading)
    encoder.prompts["document"] = encoder.resolve_prompt(prompt, prompt_name, "document")
    built = SentenceIndex.build(
        encoder,
        input,
        backend=backend,
        parameters=parameters,
        keep=keep,
        truncate_dim=truncate_dim,
        column=column,
        vectors=shards,
        show_progress_bar=show_progress_bar,
    )
    return save_index(built, output)


def index_add(
    input: StrPath,
    index: StrPath,
    *,
    model: StrPath | SimCSE | None = None,
    column: str | None = None,
    vectors: StrPath | None = None,
    replace: str | None = None,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> Indexed:
    """Add the texts of a file to a search index.

    Args:
        input (`str` or `os.PathLike`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped; in
            Python also a data frame.
        index (`str` or `os.PathLike`): Folder that `simcse-hf index` wrote.
        model (`str`, `os.PathLike` or `SimCSE`, *optional*): Folder of a model, or its name on the Hugging Face hub.
            The default is the model that the index names.
        column (`str`, *optional*): Column of texts, if the file has several.
        vectors (`str` or `os.PathLike`, *optional*): Folder that `simcse-hf encode` wrote for this `input` and model.
        replace (`str`, *optional*): Name of a kept column, such as an id: delete the texts of the index that have the
            same value there as an added one.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Indexed`: What was written.

    Raises:
        ValueError: If there is no index, the input is unreadable, the model is not that of the index, or the vectors
            are not those of `input` and the model.

    Examples:
        >>> from simcse_hf import index, index_add
        >>> print(index("sentences.txt", "my-index", model="outputs/my-model"))
        200 sentences in the index my-index
        >>> print(index_add("sentences.txt", "my-index"))
        400 sentences in the index my-index
    """
    column, shards = open_vectors(vectors, input, column)
    opened = open_index(Path(index), model, **loading)
    opened.add(input, replace=replace, column=column, vectors=shards, show_progress_bar=show_progress_bar)
    return save_index(opened, index)


def index_delete(
    index: StrPath,
    *,
    rows: Sequence[int] = (),
    filters: Mapping[str, str] | None = None,
    model: StrPath | SimCSE | None = None,
    **loading: Unpack[ModelOptions],
) -> Indexed:
    """Delete texts from a search index. The numbers of all others stay.

    Args:
        index (`str` or `os.PathLike`): Folder that `simcse-hf index` wrote.
        rows (`Sequence[int]`, *optional*): Delete the texts with these numbers.
        filters (`Mapping[str, str]`, *optional*): Delete the texts whose kept column holds this value; given several
            times, all must hold.
        model (`str`, `os.PathLike` or `SimCSE`, *optional*): Folder of a model, or its name on the Hugging Face hub.
            The default is the model that the index names.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Indexed`: What was written.

    Raises:
        SettingError: If there is no index, or no such text in it.

    Examples:
        >>> from simcse_hf import index, index_delete
        >>> written = index("sentences.txt", "my-index", model="outputs/my-model")
        >>> print(index_delete("my-index", rows=[0, 1]))
        198 sentences in the index my-index
    """
    if not rows and not filters:
        raise SettingError("rows and filters are missing: say which texts to delete")
    opened = open_index(Path(index), model, **loading)
    opened.delete(rows, filters=filters)
    return save_index(opened, index)


def save_index(index: SentenceIndex, folder: StrPath) -> Indexed:
    """Save an index, and say what was written."""
    index.save(folder)
    return Indexed(str(folder), len(index), index.backend)


def open_vectors(
    folder: StrPath | None, input: StrPath, column: str | None
) -> tuple[str | None, Iterator[ndarray] | None]:
    """Open the embeddings that `encode` wrote for a file.

    Args:
        folder (`str` or `os.PathLike`, *optional*): The folder of the embeddings, if there is one.
        input (`str` or `os.PathLike`): The file of texts.
        column (`str`, *optional*): The column of texts, if it is given.

    Returns:
        `tuple[str | None, Iterator[np.ndarray] | None]`: The column, and embeddings of shape `(n, dim)` by shard.

    Raises:
        DataError: If they are no embeddings of these texts.
    """
    if folder is None:
        return column, None
    manifest = read_manifest(folder)
    made_with = manifest["settings"]
    source = manifest["input"]
    if isinstance(input, (str, os.PathLike)):
        content = digest(Path(input).expanduser())
    else:
        _, content = digest_texts(text for _, text in stream_texts(input, made_with["column"]))
    problem = None
    if "columns" in made_with:
        problem = f"several columns ({', '.join(made_with['columns'])})"
    elif content != source.get("blake2b"):
        problem = f"another file ({source['file']}) than input {input}"
    elif column not in (None, made_with["column"]):
        problem = f"column {made_with['column']!r}, not {column!r}"
    if problem is not None:
        raise DataError(f"{folder} holds the vectors of {problem}. Encode the input as it is now into a new folder.")
    return made_with["column"], read_shards(folder)


def search(
    queries: Iterable[str],
    index: StrPath | SentenceIndex,
    *,
    parameters: str | None = None,
    top_k: int = 5,
    threshold: float | Literal["saved"] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    model: StrPath | SimCSE | None = None,
    filters: Mapping[str, str] | None = None,
    neighbors: Sequence[int] = (),
    **loading: Unpack[ModelOptions],
) -> Iterable[Found]:
    """Find the sentences of an index that are most similar to each query.

    Args:
        queries (`Iterable[str]`): Texts to search for.
        index (`str`, `os.PathLike` or `SentenceIndex`): Folder that `simcse-hf index` wrote.
        parameters (`str`, *optional*): Parameters of a faiss index, such as efSearch=256 or nprobe=20.
        top_k (`int`, *optional*, defaults to `5`): Number of sentences to find.
        threshold (`float` or `str`, *optional*): Lowest score to show; saved is the threshold that `simcse-hf evaluate
            --save_threshold` saved.
        prompt (`str`, *optional*): Put this before each text, such as 'query: '.
        prompt_name (`str`, *optional*): Put this prompt of the model before each text. The default is the model's
            prompt for this use, if it has one.
        model (`str`, `os.PathLike` or `SimCSE`, *optional*): Folder of a model, or its name on the Hugging Face hub.
            The default is the model that the index names.
        filters (`Mapping[str, str]`, *optional*): Look only among sentences whose kept column holds this value; given
            several times, all must hold.
        neighbors (`Sequence[int]`, *optional*): In place of queries, search for what is most similar to the sentences
            of the index with these numbers.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `Iterable[Found]`: What was found for each query: a list, and of an iterator of queries an iterator, which
            gives it as soon as it is found.

    Raises:
        SettingError: If the index cannot be opened with this model, or an argument is as [`SentenceIndex.search`]
            says.

    Examples:
        >>> from simcse_hf import index
        >>> from simcse_hf import search
        >>> written = index("sentences.txt", "my-index", model="outputs/my-model")
        >>> for found in search(["In fall the old mariner found the steed at the port."], "my-index", top_k=3):
        ...     print(found.results[0].row, found.results[0].sentence)
        0 In fall the old mariner found the steed at the port.
    """
    if neighbors and ((isinstance(queries, Sequence) and queries) or prompt or prompt_name):
        raise SettingError("neighbors takes the place of queries and their prompt: leave out neighbors, or the others")
    opened = open_index(index, model, parameters=parameters, **loading)
    before = opened.model.resolve_prompt(prompt, prompt_name, "query")
    least = lowest_score(opened.model, threshold, before, opened)

    def find(query: str | int) -> Found:
        if isinstance(query, int):
            best = opened.neighbors(query, top_k=top_k, filters=filters)
            query = opened[query]
        else:
            embedding = opened.model.encode(query, prompt=before, truncate_dim=opened.truncate_dim)
            best = opened.search(embedding, top_k=top_k, filters=filters)
        matches = [match for match in best if least is None or match.score >= least]
        return Found(query, matches, best[0].score if best else None, least)

    asked: Iterable[str | int] = [queries] if isinstance(queries, str) else queries
    found = map(find, neighbors or asked)
    return found if isinstance(queries, Iterator) else list(found)


def duplicates(
    input: StrPath,
    model: StrPath | SimCSE,
    threshold: float | Literal["saved"],
    *,
    column: str | None = None,
    vectors: StrPath | None = None,
    show_progress_bar: bool = True,
    **loading: Unpack[ModelOptions],
) -> list[Duplicate]:
    r"""Find the pairs of texts in a file that are nearly the same.

    Args:
        input (`str` or `os.PathLike`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped; in
            Python also a data frame.
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        threshold (`float` or `str`): Lowest score to show; saved is the threshold that `simcse-hf evaluate
            --save_threshold` saved.
        column (`str`, *optional*): Column of texts, if the file has several.
        vectors (`str` or `os.PathLike`, *optional*): Folder that `simcse-hf encode` wrote for this `input` and model.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a progress bar.
        **loading (`ModelOptions`): How the model is loaded.

    Returns:
        `list[Duplicate]`: The pairs in the order of the file.

    Raises:
        ValueError: If the input is unreadable, the threshold is no possible similarity, or the vectors are not those
            of `input` and the model.

    Examples:
        >>> from pathlib import Path
        >>> from simcse_hf import duplicates
        >>> texts = ["The chef sold the soup in winter.", "In spring a sailor found the horse."]
        >>> texts.append("The chef sold soup in winter!")
        >>> characters = Path("texts.txt").write_text("\n".join(texts))
        >>> for pair in duplicates("texts.txt", "outputs/my-model", threshold=0.95):
        ...     print(pair.row, pair.other_row)
        0 2
    """
    encoder = load_model(model, **loading)
    least = lowest_score(encoder, threshold)
    column, shards = open_vectors(vectors, input, column)
    built = SentenceIndex.build(encoder, input, column=column, vectors=shards, show_progress_bar=show_progress_bar)
    exact: Any = built.vectors
    return [Duplicate(score, row, other, built[row], built[other]) for score, row, other in exact.pairs(least)]


def open_index(
    folder: StrPath | SentenceIndex,
    model: StrPath | SimCSE | None = None,
    *,
    parameters: str | None = None,
    **loading: Unpack[ModelOptions],
) -> SentenceIndex:
    """Open an index with the model that it names, or with another name or object of it.

    Args:
        folder (`str`, `os.PathLike` or `SentenceIndex`): Folder of the index, or the index, which is as it is.
        model (`str`, `os.PathLike` or `SimCSE`, *optional*): The model of the index.
        parameters (`str`, *optional*): Parameters of a faiss index that replace the saved ones.
        **loading (`ModelOptions`): How the model is loaded. The default is how it was when the index was built.

    Returns:
        `SentenceIndex`: The index.

    Raises:
        SettingError: If there is no index, or one that is loaded is to have another model.
    """
    if isinstance(folder, SentenceIndex):
        if model or parameters or loading:
            raise SettingError("index is loaded, with its model: leave out model, parameters and how it is loaded")
        return folder
    made_with = describe(folder).model
    if isinstance(model, SimCSE):
        return SentenceIndex.load(folder, load_model(model, **loading), parameters=parameters)
    settings = {
        "pooler_type": made_with.pooler,
        "max_length": made_with.max_length,
        "long_texts": made_with.long_texts,
    }
    revision = None
    if model is not None:
        taught = getattr(load_pretrained(AutoConfig.from_pretrained, model), SPACE, None)
        if taught and not made_with.changes(Identity.from_dict(taught["teacher"])):
            settings = {}  # a student pools and cuts in a way of its own
    else:
        model = str(made_with.name_or_path)
        revision = made_with.revision
        settings["model_backend"] = made_with.backend
        if revision and model.count("/") > 1:  # a folder of a repository
            owner, name, settings["subfolder"] = model.split("/", 2)
            model = f"{owner}/{name}"
    given = {name: value for name, value in loading.items() if value is not None}
    options = cast(ModelOptions, settings | given)
    encoder = load_model(model, revision=revision, **options)
    encoder.prompts["document"] = made_with.prompts["document"]
    return SentenceIndex.load(folder, encoder, parameters=parameters)


def lowest_score(
    model: SimCSE,
    threshold: float | Literal["saved"] | None,
    query_prompt: str = "",
    index: SentenceIndex | None = None,
) -> float | None:
    """Return the lowest score to show.

    Args:
        model (`SimCSE`): The model.
        threshold (`float` or `str`, *optional*): A score, or `"saved"` for the threshold saved with the model.
        query_prompt (`str`, *optional*, defaults to `""`): The prompt of the queries.
        index (`SentenceIndex`, *optional*): The index that is searched.

    Returns:
        `float`, *optional*: The score; `None` to show all.

    Raises:
        SettingError: If the saved threshold is asked for and there is none, or it was chosen for other scores.
    """
    if threshold != "saved":
        check_scores(model.similarity_fn_name, threshold=threshold)
        return threshold
    differences = {
        "the prompt 'query'": query_prompt,
        f"{index and index.truncate_dim} dimensions only": index and index.truncate_dim,
        "the vectors of the model's teacher": index and index.description.is_of_teacher(as_encoder(model)),
        "the prompt 'document'": model.prompts["document"],
    }
    for name, holds in differences.items():
        if holds:
            raise SettingError(
                f"threshold saved was chosen for pairs of texts, but these are compared with {name}, which gives "
                "other cosines. Give a number."
            )
    return model.threshold
