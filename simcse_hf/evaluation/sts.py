"""STS tasks: read scored sentence pairs, and correlate cosine similarities with gold scores in three aggregations."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy import ndarray
from scipy.cluster.hierarchy import DisjointSet
from transformers.utils import logging

from ..data.columns import find_parts
from ..data.read import dataset_table, load_from_hub, parse_scores
from ..data.table import Table, csv_records, open_table, read_lines
from .bootstrap import Arrays, Parts, join_parts
from .embeddings import SentenceEmbeddings
from .metrics import METRICS, cosine_similarity_pairs

logger = logging.get_logger(__name__)


SENTEVAL = yaml.safe_load(Path(__file__).with_name("senteval.yaml").read_text(encoding="utf-8"))


def senteval(kind: str, fact: str) -> dict:
    """Return a fact of `senteval.yaml` for each task of a kind (`sts` or `transfer`) that has it."""
    return {task: facts[fact] for task, facts in SENTEVAL[kind].items() if fact in facts}


STS_SUBSETS = {task: tuple(subsets) for task, subsets in senteval("sts", "subsets").items()}
STS_SPLITS = senteval("sts", "files")
STS_PAIRS = senteval("sts", "sizes")
STS_TASKS = tuple(STS_PAIRS)
HUB = "hub"
HUB_DATASETS = senteval("sts", "hub")
HUB_REVISIONS = senteval("sts", "revision")
TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
_PARTS = ("score", "sentence1", "sentence2")


class TaskNotFound(Exception):
    """The data of a task does not exist; the message says where it was looked for."""


@dataclass
class ScoredPairs:
    """Sentence pairs with a gold similarity.

    Args:
        name (`str`): Name of the set in tables and results.
        sentences1 (`list[str]`): First sentences.
        sentences2 (`list[str]`): Second sentences.
        scores (`list[float]`): Gold similarities on any scale.
    """

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def texts(self) -> list[str]:
        """The sentences of both sides, which may repeat."""
        return [*self.sentences1, *self.sentences2]

    @property
    def groups(self) -> ndarray:
        """The group of each pair, of shape `(n,)`; pairs that share a sentence are in one group."""
        return connected_groups(list(zip(self.sentences1, self.sentences2, strict=True)))


def connected_groups(memberships: Sequence) -> ndarray:
    """Find the groups of units that share texts, directly or through other units.

    Args:
        memberships (`Sequence[Sequence[str]]`): The texts of each unit. With `[["a", "b"], ["c"], ["b"]]`, the first
            and the last unit form a group.

    Returns:
        `numpy.ndarray`: The group of each unit, of shape `(n,)`.
    """
    units = DisjointSet(range(len(memberships)))
    first_units: dict = {}
    for unit, texts in enumerate(memberships):
        for text in texts:
            units.merge(unit, first_units.setdefault(text, unit))
    numbers: dict = {}
    groups = []
    for unit in units:
        groups.append(numbers.setdefault(units[unit], len(numbers)))
    return np.array(groups, dtype=np.int32)


def read_scored_pairs(source: str | os.PathLike[str], name: str | None = None) -> ScoredPairs:
    """Read the scored sentence pairs of one file, which may be gzipped, or of a data set of the hub.

    A file has one of these layouts:

    - a csv, tsv, jsonl or parquet table with the columns `sentence1`, `sentence2` and `score`, or with the other names
      of [`~data.columns.PART_NAMES`], which cover the SICK files and the STS data sets of the hub;
    - SentEval's `sts-{train,dev,test}.csv`, tab-separated without a header, with the score in column 5 and the texts
      in columns 6 and 7;
    - tab-separated lines of score, sentence 1 and sentence 2 without a header.

    Quotation marks in tab-separated files are part of the text. Runs of white space become one space, as in SentEval,
    which joins its tokens by single spaces. Rows with a blank score are skipped.

    Args:
        source (`str | os.PathLike`): The file. A string that is neither a file nor ends like a table is the name of a
            hub data set: `name` (its test split), `name:split` or `name:config:split`.
        name (`str`, *optional*): Name of the set. Defaults to the stem of the file name, or to the data set's name.

    Returns:
        [`ScoredPairs`]: At least one pair, in the order of the file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a row is malformed, a score is not a finite number, a text is empty, the bytes are not UTF-8,
            the columns are unknown, or there is no scored pair. The message names the file and the line, from 1.
    """
    path = Path(source)
    unpacked = Path(path.name.removesuffix(".gz"))
    if isinstance(source, str) and unpacked.suffix not in TABLE_SUFFIXES and not path.exists():
        return load_hub_pairs(source, "test", name or source.partition(":")[0])
    name = name or unpacked.stem
    if unpacked.suffix.lower() in (".jsonl", ".json", ".parquet"):
        table = open_table(path)
        table.refuse_late_keys = True  # rows with other names for their columns would count as rows without a score
        return _collect(name, str(path), rows_of_parts(table, _PARTS))

    # 1. The cells of each line that is not blank
    lines = read_lines(path)
    if lines and "\t" in lines[0]:
        records = [(number, text.split("\t")) for number, text in enumerate(lines, start=1) if text.strip()]
    else:
        records = list(csv_records(path, ","))
    if not records:
        return _collect(name, str(path), [])

    # 2. The columns by the header, or those of the two layouts without one
    header = records[0][1]
    width = len(header)
    has_sources = False
    columns = find_parts(header, _PARTS)
    if len(columns) == len(_PARTS):
        picks = [header.index(column) for column in columns.values()]
        records = records[1:]
    elif width == 3:
        picks = [0, 1, 2]
    elif width >= 7:  # genre, file, year, id, score, sentence1, sentence2, and sometimes sources
        picks = [4, 5, 6]
        width = 7
        has_sources = True
    else:
        raise ValueError(
            f"{path}, line 1: expected the columns sentence1, sentence2 and score, or without a header the STS-B "
            "layout (score in column 5 and texts in 6 and 7, tab-separated) or score, text, text (tab-separated), got "
            f"{header}."
        )
    rows = []
    for line, cells in records:
        place = f"{path}, line {line}"
        if len(cells) < width or (len(cells) > width and not has_sources):
            least = "at least " if has_sources else ""
            raise ValueError(f"{place}: {len(cells)} columns instead of {least}{width}.")
        rows.append((place, [cells[pick] for pick in picks]))
    return _collect(name, str(path), rows)


def load_hub_pairs(
    dataset: str,
    split: str,
    name: str,
    revision: str | None = None,
) -> ScoredPairs:
    """Load the scored pairs of a split of a hub data set.

    Args:
        dataset (`str`): Name of the data set, see [`~data.read.load_from_hub`], or a local folder with the
            layout of one.
        split (`str`): The split, if `dataset` does not say it.
        name (`str`): Name of the set in tables and results.
        revision (`str`, *optional*): Commit of the data set. Defaults to the newest.

    Returns:
        [`ScoredPairs`]: At least one pair.

    Raises:
        ValueError: If the columns or rows are not scored pairs. The message names data set, split and row.
    """
    rows = load_from_hub(dataset, split, revision=revision)
    table = dataset_table(rows, f"{dataset}, split {rows.split}")
    return _collect(name, table.name, rows_of_parts(table, _PARTS))


def rows_of_parts(table: Table, parts: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    """Yield the place of each row, for messages, and its cells in the columns that [`find_parts`] finds."""
    columns = find_parts(table.columns, parts, table.name)
    for number, cells in table.rows(list(columns.values())):
        yield table.at(number), cells


def _collect(name: str, where: str, rows: Iterable) -> ScoredPairs:
    """Collect and check the rows that have a score: their place, the score and two sentences."""
    pairs = ScoredPairs(name, [], [], [])
    scores = []
    for place, (score, *sentences) in rows:
        if score is None or score != score or not str(score).strip():  # NaN is not itself
            continue
        scores.append((place, score))
        for sentence, column in zip(sentences, (pairs.sentences1, pairs.sentences2), strict=True):
            if not isinstance(sentence, str):
                raise ValueError(f"{place}: a sentence must be a string, got {sentence!r}.")
            if not sentence.strip():
                raise ValueError(f"{place}: a sentence is empty. Remove the row, or leave its score blank.")
            column.append(" ".join(sentence.split()))
    if not scores:
        raise ValueError(f"{where}: no scored sentence pair here. Either there is no row, or every score is blank.")
    pairs.scores = parse_scores(scores, where)
    return pairs


def read_sts_task(
    task: str,
    data_dir: str | Path,
    splits: tuple,
) -> dict:
    """Read the subsets of STS12 to STS16, or the splits of STSBenchmark and SICKRelatedness.

    Args:
        task (`str`): One of `STS_TASKS`.
        data_dir (`str | Path`): One of three sources: SentEval's `downstream` folder; a folder with a folder of
            tables for each task, one per subset (`STS12/MSRpar.tsv`) or split (`STSBenchmark/sts-test.csv`); or the
            word `hub`, which downloads the data sets of [`HUB_DATASETS`].
        splits (`tuple[str, ...]`): The splits to read of a task with splits. The first must exist; the rest are left
            out if they do not.

    Returns:
        `dict[str, ScoredPairs]`: The pairs of each subset or split. A hub data set has no subsets; its pairs are
        under the name of the task.

    Raises:
        TaskNotFound: If the task's folder or the file of the first split does not exist, or there is no such split.
        FileNotFoundError: If the folder exists but a subset is missing.
        ValueError: If the data is malformed. The message names the file and the line.
    """
    if task in STS_SUBSETS and splits == ("dev",):
        raise TaskNotFound("the task has no dev split")
    parts = {}
    tables = {}
    for path in sorted(Path(data_dir, task).glob("*")):
        name = Path(path.name.removesuffix(".gz"))
        if name.suffix in TABLE_SUFFIXES:
            tables[name.stem] = path
    if data_dir == HUB:
        dataset = HUB_DATASETS[task]
        if task != "STSBenchmark" and splits[0] != "test":
            raise TaskNotFound(f"{dataset} has no {splits[0]} split")
        for split in splits:
            if task == "STSBenchmark" or split == "test":
                part = task if task in STS_SUBSETS else split
                hub_split = "validation" if split == "dev" else split
                parts[part] = load_hub_pairs(dataset, hub_split, part, HUB_REVISIONS[task])
    elif task in STS_SUBSETS:
        expected = Path(data_dir, "STS", f"{task}-en-test")
        if expected.is_dir():
            parts = {subset: _read_senteval_subset(expected, subset) for subset in STS_SUBSETS[task]}
        else:
            parts = {subset: read_scored_pairs(path, subset) for subset, path in tables.items()}
    else:
        files = {split: Path(data_dir, file) for split, file in STS_SPLITS[task].items()}
        expected = files[splits[0]]
        if not expected.parent.is_dir():
            files = {stem.split("-")[-1]: path for stem, path in tables.items()}
        present = [split for split in splits if split in files and files[split].is_file()]
        if splits[0] in present:
            parts = {split: read_scored_pairs(files[split], split) for split in present}
    if not parts:
        raise TaskNotFound(f"there is neither {expected} nor a table in {Path(data_dir, task)}")
    sizes = {part: len(pairs) for part, pairs in parts.items()}
    if task in STS_SUBSETS:
        sizes = {task: sum(sizes.values())}
    for part, size in sizes.items():
        warn_of_size(f"{task}: {part} has {size} scored pairs", size, STS_PAIRS[task][part])
    return parts


def warn_of_size(what: str, size: int, known: int) -> None:
    """Warn of a data set with another number of rows than SentEval's."""
    if size != known:
        logger.warning(f"{what}, but SentEval has {known}. The scores cannot be compared with published ones.")


def _read_senteval_subset(folder: Path, subset: str) -> ScoredPairs:
    """Read `STS.input.X.txt`, with two tab-separated texts per line, and `STS.gs.X.txt`, with their scores."""
    texts_path = folder / f"STS.input.{subset}.txt"
    scores_path = folder / f"STS.gs.{subset}.txt"
    texts = read_lines(texts_path)
    scores = read_lines(scores_path)
    if len(texts) != len(scores):
        raise ValueError(
            f"{scores_path} has {len(scores)} lines but {texts_path} has {len(texts)}, although each score belongs to "
            "a line of texts. Download both files again."
        )
    rows = []
    for number, (text, score) in enumerate(zip(texts, scores, strict=True), start=1):
        place = f"{texts_path} and {scores_path.name}, line {number}"
        sentences = text.split("\t")
        if len(sentences) != 2:
            raise ValueError(f"{place}: {len(sentences)} tab-separated texts instead of 2.")
        rows.append((place, [score, *sentences]))
    return _collect(subset, str(scores_path), rows)


def predict_pairs(embeddings: SentenceEmbeddings, pairs: ScoredPairs) -> Arrays:
    """Return what is scored and resampled of `pairs`, each of shape `(n,)`.

    These are the similarities by the model's own measure (`predicted`), the `gold` scores, and the `group` of each.
    """
    first = embeddings(pairs.sentences1)
    second = embeddings(pairs.sentences2)
    return {
        "predicted": cosine_similarity_pairs(first, second, embeddings.similarity),
        "gold": np.asarray(pairs.scores),
        "group": pairs.groups,
    }


def correlations(predicted: ndarray, gold: ndarray, where: str) -> dict:
    """Return the number of pairs and both correlations times 100; a `ValueError` names `where`."""
    try:
        scores = {name: 100 * metric(predicted, gold) for name, metric in METRICS.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"pairs": len(gold), **scores}


def score_parts(task: str, parts: Parts) -> dict:
    """Score the subsets or splits of a task one by one; return `[part][pairs | spearman | pearson]`, times 100."""
    scores = {}
    for name, part in parts.items():
        scores[name] = correlations(part["predicted"], part["gold"], f"{task} {name}")
    return scores


def score_subsets(task: str, parts: Parts) -> dict:
    """Score a task that consists of subsets, as SentEval does.

    `all` correlates the concatenated subsets, `mean` averages the correlations of the subsets, and `wmean` weights
    them by their number of pairs (SimCSE, appendix B).

    Args:
        task (`str`): Name of the task. A single subset of this name means that the subsets are not known; `mean` and
            `wmean` are then `None`.
        parts (`dict[str, dict[str, numpy.ndarray]]`): The `predicted` and the `gold` scores of each subset.

    Returns:
        `dict[str, Any]`: `pairs`, `subsets[subset][pairs | spearman | pearson]` and `aggregate[aggregation][metric]`,
        with correlations times 100.
    """
    subsets = score_parts(task, parts)
    whole = correlations(**join_parts(parts.values()), where=task)
    pairs = whole.pop("pairs")
    mean: dict = dict.fromkeys(METRICS)
    weighted = mean.copy()
    if list(subsets) != [task]:
        weights = [scores["pairs"] for scores in subsets.values()]
        for metric in METRICS:
            values = [scores[metric] for scores in subsets.values()]
            mean[metric] = float(np.mean(values))
            weighted[metric] = float(np.average(values, weights=weights))
    return {"pairs": pairs, "subsets": subsets, "aggregate": {"all": whole, "mean": mean, "wmean": weighted}}
