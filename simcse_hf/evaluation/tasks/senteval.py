"""SentEval's tasks, and scored pairs: their files, and their protocols.

STS tasks correlate cosine similarities with gold scores, in three aggregations. Transfer tasks classify labelled
texts, by nested folds, folds with a test set, or splits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import yaml
from numpy import ndarray
from tqdm.auto import tqdm
from transformers.utils import logging

from ...data.read import load_from_hub
from ...data.scored_pairs import ScoredPairs, collect_pairs, connected_groups, read_scored_pairs
from ...data.table import SUFFIX, Table, read_lines
from ...runtime.errors import DataError
from ...runtime.files import StrPath
from ..bootstrap import Arrays, Parts
from ..classifier import CLASSIFIER_CONFIGS, L2_GRID, LogisticRegressionGrid
from ..embeddings import SentenceEmbeddings
from ..metrics import CORRELATIONS, alignment, isotropy, singular_spectrum, uniformity
from ..protocol import PAPER_PROTOCOL, Protocol
from .base import Task, TaskResult, headline

logger = logging.get_logger(__name__)

_FACTS = yaml.safe_load(Path(__file__).with_name("senteval.yaml").read_text(encoding="utf-8"))


def facts_of(kind: str, fact: str) -> dict:
    """Return a fact of `senteval.yaml` for each task of a kind (`sts` or `transfer`) that has it."""
    return {task: facts[fact] for task, facts in _FACTS[kind].items() if fact in facts}


STS_SUBSETS = {task: tuple(subsets) for task, subsets in facts_of("sts", "subsets").items()}
STS_SPLITS = facts_of("sts", "files")
STS_PAIRS = facts_of("sts", "sizes")
STS_TASKS = tuple(STS_PAIRS)
HUB = "hub"
HUB_DATASETS = facts_of("sts", "hub")
HUB_REVISIONS = facts_of("sts", "revision")

TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # the paper's seven; SST5 must be named
TRANSFER_EXAMPLES = facts_of("transfer", "sizes")
FILES = facts_of("transfer", "files")  # by split or by class
LABELS = facts_of("transfer", "labels")


class TaskNotFound(FileNotFoundError):
    """The data of a task of SentEval does not exist; the message says where it was looked for."""


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
            rows = load_from_hub(HUB_DATASETS[task], hub_splits[split], revision=HUB_REVISIONS[task])
            parts[part] = read_scored_pairs(rows, f"{HUB_DATASETS[task]}, split {rows.split}")
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
        raise DataError(
            f"{scores_path} has {len(scores)} lines but {texts_path} has {len(texts)}. Download both files again."
        )
    rows = []
    for number, (text, score) in enumerate(zip(texts, scores, strict=True), start=1):
        place = f"{texts_path} and {scores_path.name}, line {number}"
        sentences = text.split("\t")
        if len(sentences) != 2:
            raise DataError(f"{place}: {len(sentences)} tab-separated texts instead of 2.")
        rows.append((place, [score, *sentences]))
    return collect_pairs(subset, str(scores_path), rows)


def correlations(part: Arrays, where: str) -> dict:
    """Return the number of pairs and both correlations, times 100, of `predicted` and `gold` scores."""
    try:
        scores = {name: 100 * metric(part["predicted"], part["gold"]) for name, metric in CORRELATIONS.items()}
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    return {"pairs": len(part["gold"]), **scores}


class SentEvalTask(Task):
    """A task whose entry in the JSON document has the form of SentEval's results: its details, and no kind."""

    def document(self, result: TaskResult) -> dict:
        """Return the details of a result; see [`Task.document`]."""
        return result.details


class MissingTask(SentEvalTask):
    """A task of SentEval whose data is not there.

    Args:
        source (`str`): Where it was looked for.
        name (`str`): Name of the task.
        units (`list[str]`): Why it is missing.
    """

    def __post_init__(self) -> None:
        self.roles = {}
        self.links = []

    def score(self, embeddings: object) -> TaskResult:
        """Return no score; see [`Task.score`]."""
        return TaskResult({}, {}, {"missing": self.units[0]})


class ScoredPairsTask(SentEvalTask):
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
        rows: list = []
        for part in parts:
            if name not in STS_SPLITS or not rows:
                rows += [(part, *row) for row in others.pop(part).rows()]
        return cls(source, name, rows, others, protocol)

    @classmethod
    def read(cls, path: Path | Table, label_separator: str | None) -> Task:
        """Read the columns `sentence1`, `sentence2` and `score`, in a layout of [`read_scored_pairs`]."""
        pairs = read_scored_pairs(path if isinstance(path, Table) else str(path))  # also the name of one of the hub
        return cls.of(pairs.name, {"pairs": pairs}, str(path))

    def __post_init__(self) -> None:
        self.metrics = (self.protocol.metric,)  # type: ignore[misc]
        *_, score = self.units[0]
        if all(each == score for *_, each in self.units):
            raise DataError(
                f"{self.source}: all {len(self)} pair(s) have the score {score:g}, and a correlation compares "
                "different scores: add pairs with other scores"
            )
        self.parts: dict[str, ScoredPairs] = {}
        for part, first, second, score in self.units:
            pairs = self.parts.setdefault(part, ScoredPairs(part, [], [], []))
            pairs.sentences1.append(first)
            pairs.sentences2.append(second)
            pairs.scores.append(score)
        self.links = [texts for _, *texts, _ in self.units]
        every = self.parts | (self.shared or {})
        texts = [(*pairs.sentences1, *pairs.sentences2) for pairs in every.values()]
        self.roles = {None: list(chain.from_iterable(texts))}

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Correlate similarities and gold scores; see [`Task.score`]."""
        scores = {}
        for name, pairs in (self.parts | (self.shared or {})).items():
            predicted = embeddings.pairs(pairs.sentences1, pairs.sentences2)
            group = connected_groups(list(zip(pairs.sentences1, pairs.sentences2, strict=True)))
            scores[name] = {"predicted": predicted, "gold": np.asarray(pairs.scores), "group": group}
        if "pairs" in scores:
            document = correlations(scores["pairs"], self.source)
        elif self.name in STS_SPLITS:
            document = {"splits": score_parts(self.name, scores)}
        else:
            document = score_subsets(self.name, scores)
        value = headline(document, self.protocol)
        metrics = {} if value is None else {self.metric: value}
        return TaskResult(metrics, {name: scores[name] for name in self.parts}, document)


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
    joined = {}
    for name in ("predicted", "gold"):
        joined[name] = np.concatenate([part[name] for part in parts.values()])
    whole = correlations(joined, task)
    aggregate: dict = {"all": {}, "mean": {}, "wmean": {}}
    weights = [scores["pairs"] for scores in subsets.values()]
    for metric in CORRELATIONS:
        values = [scores[metric] for scores in subsets.values()]
        is_known = list(subsets) != [task]
        aggregate["all"][metric] = whole[metric]
        aggregate["mean"][metric] = float(np.average(values)) if is_known else None
        aggregate["wmean"][metric] = float(np.average(values, weights=weights)) if is_known else None
    return {"pairs": whole["pairs"], "subsets": subsets, "aggregate": aggregate}


#: Pairs with a score above this share of the highest one count as positive: above 4 of STS-B's 5 (SimCSE, footnote 3).
POSITIVE_SHARE = 0.8


class GeometryTask(ScoredPairsTask):
    """Alignment over STS-B's pairs above 80% of the highest score, the rest over all texts (SimCSE, footnote 3)."""

    kind = "geometry"
    average = ""
    order = 1

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Measure the geometry; see [`Task.score`]."""
        least = POSITIVE_SHARE * max(score for *_, score in self.units)
        positives = [(first, second) for _, first, second, score in self.units if score > least]
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


#: The examples of a split: the texts of each, of which a task on pairs has two, and its class from 0. The tokens of a
#: text are joined by single spaces.
LabelledTexts = list[tuple[list[str], int]]


def read_transfer_task(task: str, data_dir: StrPath) -> dict:
    """Read a transfer task in SentEval's layout.

    MR, CR, SUBJ, MPQA and TREC are read as Latin-1, as SentEval does, and the others as UTF-8.

    Args:
        task (`str`): One of MR, CR, SUBJ, MPQA, SST2, SST5, TREC, MRPC.
        data_dir (`str` or `os.PathLike`): SentEval's `downstream` folder.

    Returns:
        `dict[str, LabelledTexts]`: The task's splits out of `train`, `dev` and `test`. MR, CR, SUBJ and MPQA have only
        `train`, from which the protocol holds out folds.

    Raises:
        TaskNotFound: If the task's folder does not exist, or `data_dir` is the word `hub`.
        FileNotFoundError: If the folder exists but a file is missing.
        DataError: If a split is empty, a row is malformed or a label is unknown. The message names the file and line.
    """
    if data_dir == HUB:
        raise TaskNotFound("transfer tasks are read from SentEval's folders only")
    splits = {}
    for part, file in FILES[task].items():
        path = Path(data_dir, file)
        if not path.parent.is_dir():
            raise TaskNotFound(f"there is no folder {path.parent}")
        if part in TRANSFER_EXAMPLES[task]:
            splits[part] = _read_split(task, path)
        else:  # the file of a class
            examples = splits.setdefault("train", [])
            lines = read_lines(path, encoding="latin-1")
            examples += [([" ".join(line.split())], int(part)) for line in lines]
    for split, examples in splits.items():
        size = len(examples)
        if not size:
            raise DataError(f"{data_dir}: the files of {task} hold no {split} examples. Copy or download them again.")
        warn_of_size(f"{task}: {split} has {size} examples", size, TRANSFER_EXAMPLES[task][split])
    return splits


def _read_split(task: str, path: Path) -> LabelledTexts:
    names = LABELS.get(task, ("0", "1"))
    width = 5 if task == "MRPC" else 2
    separator = "\t" if task in ("MRPC", "SST2") else " "
    examples: LabelledTexts = []
    lines = read_lines(path, encoding="latin-1" if task == "TREC" else "utf-8")
    for number, line in enumerate(lines, start=1):
        if task != "MRPC":
            line = line.strip()
        elif number == 1:
            continue  # the header
        cells = line.split(separator, width - 1)
        where = f"{path}, line {number}"
        if len(cells) != width:
            raise DataError(f"{where}: expected {width} columns separated by {separator!r}.")
        if task == "SST2":
            cells.reverse()  # the others have the label first
        label = cells[0].partition(":")[0]  # TREC has coarse and fine labels
        if label not in names:
            raise DataError(f"{where}: label {label!r} is not one of {', '.join(names)}.")
        texts = cells[3:] or cells[1:]  # MRPC has two ids before the texts
        examples.append(([" ".join(text.split()) for text in texts], names.index(label)))
    return examples


def pair_features(a: ndarray, b: ndarray) -> ndarray:
    """Return SentEval's features [|a - b|, a * b] of pairs of embeddings `(n, dim)`, of shape `(n, 2 dim)`."""
    return np.concatenate([np.abs(a - b), a * b], axis=1)


def _in_order(examples: LabelledTexts) -> LabelledTexts:
    """Sort examples as SentEval does before it makes its folds: by the number of tokens of each text, and by class."""

    def tokens_and_class(example: tuple) -> tuple:
        texts, label = example
        return [len(text.split()) for text in texts], label

    return sorted(examples, key=tokens_and_class)


@dataclass(eq=False)
class TransferTask(SentEvalTask):
    """Classify texts by their embeddings, by SentEval's protocol.

    Folds of the training examples, or the dev split of SST2 and SST5, choose the l2 weight. Tasks without a test split
    (MR, CR, SUBJ, MPQA) have outer folds that give the test accuracy, and inner ones that choose.

    Args:
        source (`str`): SentEval's folder.
        name (`str`): Name of the task.
        units (`list[tuple[list[str], int]]`): The examples of the test split, otherwise those of the training split.
        shared (`dict[str, LabelledTexts]`): All splits, of which `units` replace those that are tested.
        protocol (`Protocol`, *optional*): Its seed is that of folds, starts and orders. Its mode is `"test"` (10
            folds, Adam, batch 64, tenacity 5, epoch size 4), or `"dev"` or `"fasttest"` (5 folds, RMSprop, batch 128,
            tenacity 3, epoch size 2), which are the reference's settings of SentEval.
        device (`str`, *optional*): Where to train the classifiers. Defaults to a GPU if there is one.
    """

    device: str | None = field(default=None, repr=False)

    kind = "transfer"
    unit = "example"
    average = "average_transfer"
    order = 3

    @classmethod
    def of(
        cls,
        name: str,
        splits: Mapping[str, LabelledTexts],
        source: str,
        protocol: Protocol = PAPER_PROTOCOL,
        device: str | None = None,
    ) -> Self:
        """Make a task of its splits, as [`read_transfer_task`] returns them."""
        return cls(source, name, splits.get("test", splits["train"]), splits, protocol, device)

    def __post_init__(self) -> None:
        self.metrics = ("dev_accuracy" if self.protocol.mode == "dev" else "accuracy",)  # type: ignore[misc]
        tested = "test" if "test" in self.shared else "train"
        self.splits: dict[str, LabelledTexts] = {**self.shared, tested: self.units}
        self.links = [texts for texts, _ in self.units]
        columns = [zip(*(texts for texts, _ in examples), strict=True) for examples in self.splits.values()]
        self.roles = {None: list(chain.from_iterable(chain.from_iterable(columns)))}

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Fit the classifiers and compute their accuracy; see [`Task.score`].

        Returns:
            [`TaskResult`]: In the document `accuracy`, `dev_accuracy` and, for MRPC, `f1`, times 100, and the number
            of `examples` in each split; the arrays `correct`, `gold` and `group` of the test examples.
        """
        from sklearn.metrics import f1_score  # takes a second to import
        from sklearn.model_selection import StratifiedKFold

        # 1. The features and the class of each example
        data = {}
        for split, examples in self.splits.items():
            texts, classes = zip(*_in_order(examples), strict=True)
            features = [embeddings(column) for column in zip(*texts, strict=True)]
            x = pair_features(*features) if len(features) == 2 else features[0]
            data[split] = x, np.array(classes)
        x, y = data["train"]
        tested_x, gold = data.get("test", data["train"])

        # 2. The parts that are fitted and tested
        protocol = self.protocol
        config = CLASSIFIER_CONFIGS[protocol.mode]
        divide = StratifiedKFold(config.folds, shuffle=True, random_state=protocol.seed).split
        everything = slice(None)
        parts: Iterable = [(everything, everything)] if "test" in data else divide(y, y)

        # 3. The classifier with the l2 weight of the best accuracy on the dev split, or on folds of the examples
        number = 1 + max(int(classes.max()) for _, classes in data.values())
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        make_grid = partial(LogisticRegressionGrid, number, config, seed=protocol.seed, device=device)
        correct = np.empty(len(gold), dtype=bool)
        accuracies = []
        dev_accuracies = []
        for train, held in parts:
            own_x = x[train]
            own_y = y[train]
            if "dev" in data:  # a second fit would be the same, because seed and data are the same
                grid = make_grid()
                on_dev = np.round(100 * grid.fit(own_x, own_y, data["dev"]), 2)  # rounded as in SentEval
                chosen = int(on_dev.argmax())
            else:
                held_out = []
                folds = list(divide(own_y, own_y))
                for inner, rest in tqdm(folds, desc=self.name, leave=False):
                    grid = make_grid()
                    held_out.append(grid.fit(own_x[inner], own_y[inner], (own_x[rest], own_y[rest])))
                on_dev = np.round(100 * np.mean(held_out, axis=0), 2)
                grid = make_grid(l2=(L2_GRID[on_dev.argmax()],))
                grid.fit(own_x, own_y)
                chosen = 0
            correct[held] = grid.correct(tested_x[held], gold[held])[:, chosen]
            accuracies.append(100 * correct[held].mean())
            dev_accuracies.append(on_dev.max())

        # 4. The result
        document: dict[str, Any] = {
            "accuracy": float(np.mean(accuracies)),
            "dev_accuracy": float(np.mean(dev_accuracies)),
            "examples": {split: len(examples) for split, examples in self.splits.items()},
        }
        if self.name == "MRPC":
            predicted = np.where(correct, gold, 1 - gold)
            document["f1"] = 100 * float(f1_score(gold, predicted))
        group = connected_groups([texts for texts, _ in _in_order(self.units)])
        answers = {"correct": correct, "gold": gold, "group": group}
        return TaskResult({self.metric: document[self.metric]}, {self.name: answers}, document)
