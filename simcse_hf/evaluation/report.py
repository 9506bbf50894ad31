"""The result of an evaluation: its averages, its table, and its files."""

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..runtime.files import StrPath, as_written, read_arrays, read_json, read_template, write_arrays, write_json
from ..runtime.identity import Identity
from ..runtime.outputs import Result
from .bootstrap import Scores
from .classifier import CLASSIFIER_CONFIGS, L2_GRID
from .metrics import CORRELATIONS
from .protocol import PAPER_PROTOCOL, Protocol
from .tasks import class_of
from .tasks.base import headline
from .tasks.senteval import TRANSFER_EXAMPLES
from .threshold import Threshold, describe_threshold

PACKAGES = ("torch", "transformers", "datasets", "numpy", "scipy", "scikit-learn")

#: Entries of a model's identity that stand on the first level of the JSON document as well.
_OF_MODEL = ("revision", "pooler", "max_length", "long_texts", "postprocessing", "similarity")
NOT_TASKS = ("average", "average_transfer", "geometry", "mteb", "mteb_averages")


def average_members(results: Mapping[str, dict]) -> dict[str, list[str]]:
    """Return the tasks of each average.

    Correlations and accuracies are averaged separately.

    Args:
        results (`Mapping[str, dict]`): The results of the tasks.

    Returns:
        `dict[str, list[str]]`: `average` over the STS tasks and, if there are transfer tasks too, `average_transfer`;
        with transfer tasks only, `average` is over them.
    """
    members: dict[str, list[str]] = {"average": [], "average_transfer": []}
    for task, result in results.items():
        average = task not in NOT_TASKS and class_of(task, result).average
        if average:
            members[average].append(task)
    if not members["average"]:
        members = {"average": members["average_transfer"]}
    return {key: averaged for key, averaged in members.items() if averaged}


def add_averages(results: dict, protocol: Protocol) -> None:
    """Add the averages of [`average_members`] to results.

    A task without a score is listed in `missing` and does not enter the average.
    """
    for key, members in average_members(results).items():
        scores = {task: headline(results[task], protocol) for task in members}
        known = {task: score for task, score in scores.items() if score is not None}
        results[key] = {
            "value": float(np.mean(list(known.values()))) if known else None,
            "tasks": list(known),
            "missing": [task for task in members if task not in known],
        }


def average_rows(results: dict) -> list[list]:
    """Return the averages of a benchmark of mteb as rows of a table: what it is over, the score, the data sets."""
    rows = []
    for name, average in results.get("mteb_averages", {}).items():
        over = "all data sets" if name == "average" else name
        rows.append([f"{average['benchmark']}: {over}", average["value"], f"{average['tasks']} of {average['of']}"])
    return rows


def format_rows(rows: Iterable, *header: str) -> str:
    """Align rows below a header: the first column to the left if it holds words, and all others to the right.

    Args:
        rows (`Iterable[Sequence]`): The cells of each row. A float has two decimals, and `None` is `n/a`.
        *header (`str`): The cells of the first row.

    Returns:
        `str`: The lines.
    """
    table: list = [header]
    rows = list(rows)
    align = str.ljust if any(isinstance(row[0], str) for row in rows) else str.rjust
    for row in rows:
        cells = ["n/a" if cell is None else cell for cell in row]
        table.append([f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *others in table:
        cells = [align(first, widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the scores depend on."""
    # An editable installation keeps the metadata of the version that was installed first.
    own = {"python": platform.python_version(), "simcse-hf": __version__}
    return own | {package: metadata.version(package) for package in PACKAGES}


@dataclass(frozen=True)
class Evaluation(Result):
    """The scores of a model, and what a paired comparison with another model needs.

    Args:
        results (`dict[str, dict]`): The result of each task, as `docs/evaluation.md` lists it, and `average`. Scores
            are times 100.
        scores (`dict`): For each task and each subset or split, the arrays `gold`, `group` (see [`groups_to_draw`])
            and `predicted` or, for a transfer task, `correct`, all of shape `(n,)`; or those of a [`TaskResult`] for a
            task from a user's own files. The order of the examples is the same for every model.
        protocol (`Protocol`, *optional*): How the tasks were scored.
        identity (`Identity`, *optional*): The model. An encoder of another library has no digests of weights and
            tokenizer.
        threshold (`Threshold`, *optional*): The cosine from which two texts count as similar.
        threshold_file (`str`, *optional*): The config.json that it was saved in.
        dataset_revisions (`dict[str, str]`, *optional*): The commit of each data set of the hub.
        versions (`dict[str, str]`, *optional*): The versions of Python and of the packages that scores depend on.
        date (`str`, *optional*): When the scores were computed.
        cost (`dict[str, float]`, *optional*): What the model costs: `texts_per_second`, the distinct texts that it
            encoded (keyword search: counted and ranked) in a second; and `megabytes`, the size of its weights in
            memory or of its exported graph, 0 without any. Early files have none.
    """

    results: dict
    scores: Scores
    protocol: Protocol = PAPER_PROTOCOL
    identity: Identity = field(default_factory=Identity)
    threshold: Threshold | None = None
    dataset_revisions: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    threshold_file: str | None = None

    @classmethod
    def read(cls, path: StrPath) -> "Evaluation":
        """Read a file that [`evaluate`] wrote.

        Args:
            path (`str` or `os.PathLike`): The JSON file.

        Returns:
            [`Evaluation`]: The evaluation, whose scores are empty if their file is missing.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is none of an evaluation, or is damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        advice = "Name a result file of `simcse-hf evaluate`; remove a damaged one, and evaluate again."
        document = read_json(path, "results", advice=advice)
        scores = {}
        # Only the name counts: a document never leads to a file in another folder.
        scores_path = path.with_name(Path(str(document.get("scores", path))).name)
        if "scores" in document and scores_path.is_file():
            scores = read_arrays(scores_path, "evaluate the model again.")
        with as_written(path, advice):
            saved = document.get("protocol", {})
            protocol = Protocol(**{name: saved[name] for name in vars(PAPER_PROTOCOL) if name in saved})
            identity = Identity.from_dict(document.get("identity", {}))
            return cls.from_dict(document, protocol=protocol, identity=identity, scores=scores)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        classifier = {
            "model": "logistic regression",
            **vars(CLASSIFIER_CONFIGS[self.protocol.mode]),
            "l2": list(L2_GRID),
        }
        document = {
            "model": self.identity.name_or_path,
            **{name: getattr(self.identity, name) for name in _OF_MODEL},
            "identity": self.identity.to_dict(),
            "protocol": {
                **vars(self.protocol),
                "text": "tokens joined by single spaces",
                "scale": 100,
                "classifier": classifier,
            },
            "versions": self.versions,
            "date": self.date,
            "cost": self.cost,
            "dataset_revisions": self.dataset_revisions,
            "results": self.results,
        }
        if self.threshold is not None:
            document["threshold"] = self.threshold
        return document

    def __str__(self) -> str:
        return self.details(verbose=False)

    def details(self, verbose: bool = True) -> str:
        """Return a table and average for each kind of task, and why any task has no score.

        Args:
            verbose (`bool`, *optional*, defaults to `True`): Show every subset and split, and both metrics.

        Returns:
            `str`: The lines.
        """
        results = self.results
        correlations = []
        for task, result in results.items():
            if verbose and task not in NOT_TASKS and ("pairs" in result or "splits" in result):
                parts = result.get("subsets") or result.get("splits") or {"": result}
                for part, numbers in (parts | result.get("aggregate", {})).items():
                    pairs = numbers.get("pairs", result.get("pairs"))
                    correlations.append(
                        [f"{task} {part}".rstrip(), pairs, *(numbers[metric] for metric in CORRELATIONS)]
                    )
        averages = []
        for key in ("average", "average_transfer"):
            if key not in results:
                continue
            average = results[key]
            members = [task for task in results if task in {*average["tasks"], *average["missing"]}]
            row = [*(headline(results[task], self.protocol) for task in members), average["value"]]
            averages.append((average, [*members, "Avg."], row))
        text = read_template(Path(__file__).with_name("table.txt")).render(
            align=format_rows,
            averages=averages,
            protocol=self.protocol,
            results=results,
            transfer=TRANSFER_EXAMPLES,
            verbose=verbose,
            correlations=correlations,
            mteb_averages=average_rows(results),
            threshold=self.threshold and describe_threshold(self.threshold),
            threshold_file=self.threshold_file,
        )
        return re.sub("\n{3,}", "\n\n", text).strip("\n")  # blocks that say nothing leave blank lines


def write_results(path: StrPath, document: dict, scores: Scores) -> None:
    """Write the JSON document, and beside it the predicted and gold scores that `simcse-hf compare` resamples.

    Args:
        path (`str | Path`): The JSON file. The scores are written beside it, to the same name with `.scores.npz`.
        document (`dict`): The document. The name of the file of scores is added to it as `scores`.
        scores (`dict`): The scores of an [`Evaluation`].
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    if scores:
        scores_path = path.with_suffix(".scores.npz")
        write_arrays(scores_path, scores)
        document = document | {"scores": scores_path.name}
    write_json(path, document)
