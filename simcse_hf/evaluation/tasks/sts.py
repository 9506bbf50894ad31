"""STS tasks: read scored sentence pairs, and correlate cosine similarities with gold scores in three aggregations."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from numpy import ndarray
from transformers.utils import logging

from ...data.scored_pairs import ScoredPairs, collect_pairs, load_hub_pairs, read_scored_pairs
from ...data.table import SUFFIX, read_lines
from ...runtime.files import StrPath
from ..bootstrap import Arrays, Parts, join_parts
from ..embeddings import SentenceEmbeddings
from ..metrics import CORRELATIONS, alignment, isotropy, singular_spectrum, uniformity
from ..protocol import PAPER_PROTOCOL, Protocol
from .base import Task, TaskResult

logger = logging.get_logger(__name__)

_FACTS = yaml.safe_load(Path(__file__).with_name("senteval.yaml").read_text(encoding="utf-8"))


def senteval(kind: str, fact: str) -> dict:
    """Return a fact of `senteval.yaml` for each task of a kind (`sts` or `transfer`) that has it."""
    return {task: facts[fact] for task, facts in _FACTS[kind].items() if fact in facts}


STS_SUBSETS = {task: tuple(subsets) for task, subsets in senteval("sts", "subsets").items()}
STS_SPLITS = senteval("sts", "files")
STS_PAIRS = senteval("sts", "sizes")
STS_TASKS = tuple(STS_PAIRS)
HUB = "hub"
HUB_DATASETS = senteval("sts", "hub")
HUB_REVISIONS = senteval("sts", "revision")


class TaskNotFound(Exception):
    """The data of a task does not exist; the message says where it was looked for."""


def read_sts_task(task: str, data_dir: StrPath, splits: tuple) -> dict:
    """Read the subsets of STS12 to STS16, or the splits of STSBenchmark and SICKRelatedness.

    Args:
        task (`str`): One of `STS_TASKS`.
        data_dir (`str` or `os.PathLike`): One of three sources: SentEval's `downstream` folder; a folder with a folder
            of tables for each task, one per subset (`STS12/MSRpar.tsv`) or split (`STSBenchmark/sts-test.csv`); or the
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
        found = SUFFIX.search(path.name)
        if found and found[1] not in ("txt", "json"):  # which may be notes beside the tables
            tables[path.name.removesuffix(found[0])] = path
    if data_dir == HUB:
        hub_splits = _FACTS["sts"][task]["hub_splits"]
        if splits[0] not in hub_splits:
            raise TaskNotFound(f"{HUB_DATASETS[task]} has no {splits[0]} split")
        for split in filter(hub_splits.get, splits):
            part = task if task in STS_SUBSETS else split
            parts[part] = load_hub_pairs(HUB_DATASETS[task], hub_splits[split], part, HUB_REVISIONS[task])
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
    return {part: pairs.joined() for part, pairs in parts.items()}


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
        counted = f"{scores_path} has {len(scores)} lines but {texts_path} has {len(texts)}"
        raise ValueError(f"{counted}. Download both files again.")
    rows = []
    for number, (text, score) in enumerate(zip(texts, scores, strict=True), start=1):
        place = f"{texts_path} and {scores_path.name}, line {number}"
        sentences = text.split("\t")
        if len(sentences) != 2:
            raise ValueError(f"{place}: {len(sentences)} tab-separated texts instead of 2.")
        rows.append((place, [score, *sentences]))
    return collect_pairs(subset, str(scores_path), rows)


def check_scores_differ(gold: Sequence[float] | ndarray, where: str) -> None:
    """Refuse scores that are all the same, with which nothing correlates."""
    if len(set(gold)) == 1:
        problem = f"all {len(gold)} pair(s) have the score {gold[0]:g}, and a correlation compares different scores"
        raise ValueError(f"{where}: {problem}: add pairs with other scores")


def correlations(part: Arrays, where: str) -> dict:
    """Return the number of pairs and both correlations, times 100, of `predicted` and `gold` scores."""
    check_scores_differ(part["gold"], where)
    try:
        scores = {name: 100 * metric(part["predicted"], part["gold"]) for name, metric in CORRELATIONS.items()}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return {"pairs": len(part["gold"]), **scores}


class ScoredPairsTask(Task):
    """Rank pairs of texts by their similarity as their gold scores rank them.

    The pairs are those of a file; or those of a task of SentEval, whose subsets give one score by the protocol's
    aggregation (STS12 to STS16), or of which the protocol names the split that decides.

    Args:
        source (`str`): The file or folder.
        name (`str`): Short name.
        units (`list[tuple[str, str, str, float]]`): The subset or split of each pair, its texts and its score. The
            pairs of a file are in the part `pairs`.
        shared (`dict[str, ScoredPairs]`, *optional*): Splits that are scored, too, and do not decide.
        protocol (`Protocol`, *optional*): Its metric and aggregation decide.
    """

    kind = "sts"
    unit = "pair"
    average = "average"
    hub_type = "semantic-similarity"
    order = 0

    @classmethod
    def of(cls, name: str, parts: Mapping[str, ScoredPairs], source: str, protocol: Protocol = PAPER_PROTOCOL) -> Self:
        """Make a task of scored pairs by subset or, the one that decides first, by split."""
        others = dict(parts)
        rows = []
        for part in parts:
            if name not in STS_SPLITS or not rows:
                rows += [(part, *row) for row in others.pop(part).rows()]
        return cls(source, name, rows, others, protocol)

    @classmethod
    def read(cls, path: Path, label_separator: str | None) -> Task:
        """Read the columns `sentence1`, `sentence2` and `score`, in a layout of [`read_scored_pairs`]."""
        pairs = read_scored_pairs(str(path))
        return cls.of(pairs.name, {"pairs": pairs}, str(path))

    def __post_init__(self) -> None:
        self.metrics = (self.protocol.metric,)  # type: ignore[misc]
        self.parts: dict[str, ScoredPairs] = {}
        for part, first, second, score in self.units:
            pairs = self.parts.setdefault(part, ScoredPairs(part, [], [], []))
            pairs.sentences1.append(first)
            pairs.sentences2.append(second)
            pairs.scores.append(score)
        self.links = [texts for _, *texts, _ in self.units]
        every = self.parts | (self.shared or {})
        self.roles = {None: list(chain.from_iterable(pairs.texts for pairs in every.values()))}

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Correlate similarities and gold scores; see [`Task.score`]."""
        scores: Parts = {}
        for name, pairs in (self.parts | (self.shared or {})).items():
            predicted = embeddings.pairs(pairs.sentences1, pairs.sentences2)
            scores[name] = {"predicted": predicted, "gold": np.asarray(pairs.scores), "group": pairs.groups}
        if "pairs" in scores:
            document = correlations(scores["pairs"], self.source)
        elif self.name in STS_SPLITS:
            document = {"splits": score_parts(self.name, scores)}
        else:
            document = score_subsets(self.name, scores)
        headline = self.headline(document, self.protocol)
        metrics = {} if headline is None else {self.metric: headline}
        return TaskResult(metrics, {name: scores[name] for name in self.parts}, document)

    def document(self, result: TaskResult) -> dict:
        """Return all correlations of a result; see [`Task.document`]."""
        return result.details

    @classmethod
    def headline(cls, document: Mapping[str, Any], protocol: Protocol) -> float | None:
        """Return the correlation that the protocol asks for, `None` without known subsets; see [`Task.headline`]."""
        if "splits" in document:
            document = document["splits"][protocol.split]
        elif "aggregate" in document:
            document = document["aggregate"][protocol.aggregation]
        return document[protocol.metric]


def score_parts(task: str, parts: Parts) -> dict:
    """Score the subsets or splits of a task one by one; return `[part][pairs | spearman | pearson]`, times 100."""
    return {name: correlations(part, f"{task} {name}") for name, part in parts.items()}


def score_subsets(task: str, parts: Parts) -> dict:
    """Score a task that consists of subsets, as SentEval does.

    `all` correlates the concatenated subsets, `mean` averages the correlations of the subsets, and `wmean` weights
    them by their number of pairs (SimCSE, appendix B).

    Args:
        task (`str`): Name of the task. A single subset of this name means that the subsets are not known; `mean` and
            `wmean` are then `None`.
        parts (`dict[str, dict[str, numpy.ndarray]]`): The `predicted` and the `gold` scores of each subset.

    Returns:
        `dict`: `pairs`, `subsets[subset][pairs | spearman | pearson]` and `aggregate[aggregation][metric]`,
        with correlations times 100.
    """
    subsets = score_parts(task, parts)
    whole = correlations(join_parts(parts.values()), task)
    aggregate: dict = {"all": {}, "mean": {}, "wmean": {}}
    weights = [scores["pairs"] for scores in subsets.values()]
    for metric in CORRELATIONS:
        values = [scores[metric] for scores in subsets.values()]
        is_known = list(subsets) != [task]
        aggregate["all"][metric] = whole[metric]
        aggregate["mean"][metric] = float(np.average(values)) if is_known else None
        aggregate["wmean"][metric] = float(np.average(values, weights=weights)) if is_known else None
    return {"pairs": whole["pairs"], "subsets": subsets, "aggregate": aggregate}


ALIGNMENT_ABOVE = 4.0  # STS-B pairs with a higher gold score count as positive (SimCSE, footnote 3)


class GeometryTask(ScoredPairsTask):
    """Alignment over the pairs of STS-B with a score above 4, the rest over all sentences (SimCSE, footnote 3)."""

    kind = "geometry"
    average = ""
    order = 1

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Measure the geometry; see [`Task.score`]."""
        positives = [(first, second) for _, first, second, score in self.units if score > ALIGNMENT_ABOVE]
        firsts, seconds = (embeddings(texts) for texts in zip(*positives, strict=True))
        sentences = list(dict.fromkeys(chain.from_iterable(self.links)))
        x = embeddings(sentences)
        document = {
            "alignment": alignment(firsts, seconds),
            "uniformity": uniformity(x),
            "isotropy": isotropy(x),
            "singular_spectrum": singular_spectrum(x),
            "positive_pairs": len(positives),
            "sentences": len(sentences),
            "splits": list(self.parts),
        }
        return TaskResult({}, {}, document)
