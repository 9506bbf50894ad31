"""What a card says about seeds, and about the difference between the model and a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluation.compare import compare_evaluations, describe_difference, is_significant
from ..evaluation.report import NOT_TASKS, format_number, is_user_task, read_results
from ..evaluation.run import Evaluation, Protocol
from .card_results import SHORT_NAMES, Table, read_evaluation, without_outdated
from .card_training import public_name

_PROTOCOL = ("mode", "aggregation", "metric", "regressor")
_MODEL = "this model"


@dataclass
class Measured:
    """An evaluation of the published model.

    Args:
        path (`Path`): The result file.
        document (`dict`): Its content.
        evaluation (`Evaluation`): Its results and scores.
        seeds (`list[Evaluation]`): The same evaluation of the model of every seed; empty if one of them is missing.
    """

    path: Path
    document: dict[str, Any]
    evaluation: Evaluation
    seeds: list[Evaluation]

    @property
    def systems(self) -> list[Evaluation]:
        """The evaluations that the card compares with a baseline: those of all seeds, or else of the model."""
        return self.seeds or [self.evaluation]


def read_measured(path: Path, directory: Path, repo_id: str | None, run: dict[str, Any], **expected: Any) -> Measured:
    """Read an evaluation of a model, and those of its other seeds under the same file name in their folders.

    Args:
        path (`Path`): The result file.
        directory (`Path`): The directory of the model.
        repo_id (`str`, *optional*): The model's name on the hub.
        run (`dict`): The content of `results.json`; empty without a record.
        expected (`Any`): `pooler` and `transform`, as for [`read_evaluation`].

    Returns:
        [`Measured`]: The evaluation.

    Raises:
        ValueError: If a file is not a result file, or was measured with another model, pooler or transform.
    """
    document, evaluation = read_evaluation(path, directory, repo_id, **expected)
    folders = [directory / f"seed-{seed}" for seed in seeds_of(run)] if len(seeds_of(run)) > 1 else []
    files = [found for folder in folders for found in without_outdated([folder / path.name], folder)]
    seeds = []
    if files and len(files) == len(folders) and expected["transform"] is None:
        seeds = [read_evaluation(file, file.parent, None, **expected) for file in files]
        for file, (other, _) in zip(files, seeds, strict=True):
            _check_protocol(file, other, path, document)
    return Measured(path, document, evaluation, [each for _, each in seeds])


def seeds_of(run: dict[str, Any]) -> list[int]:
    """Return the seeds of a training run; empty without a record."""
    if "seeds" in run:
        return [each["seed"] for each in run["seeds"]["runs"]]
    return [run["seed"]] if "seed" in run else []


def seed_note(run: dict[str, Any], of_all_seeds: bool = False) -> str:
    """Say in a sentence from how many seeds a figure of a trained model comes.

    Args:
        run (`dict`): The content of `results.json`; empty without a record.
        of_all_seeds (`bool`, *optional*, defaults to `False`): Whether all seeds were measured, and not only the
            published one.

    Returns:
        `str`: The sentence.
    """
    seeds = seeds_of(run)
    if not seeds:
        return "There is no record of the training, so it is unknown from how many seeds these figures come."
    if len(seeds) == 1:
        return f"All figures come from one seed ({seeds[0]})."
    listed, published = ", ".join(map(str, seeds)), run["seeds"]["published"]
    if of_all_seeds:
        return f"Mean ± standard deviation over {len(seeds)} seeds ({listed}); the published seed is {published}."
    chosen = "the best on the dev set" if run["seeds"]["chosen_by"] else "the first"
    return f"All figures come from one seed ({published}), {chosen} of {len(seeds)}."


def comparison_tables(
    measured: Sequence[Measured], baselines: Sequence[Path], run: dict[str, Any], name: str
) -> list[Table]:
    """Compare each evaluation with each baseline that has a task in common with it.

    Args:
        measured (`Sequence[Measured]`): The evaluations of the model.
        baselines (`Sequence[Path]`): Result files of `simcse-hf evaluate` for other models, such as the model that
            training started from.
        run (`dict`): The content of `results.json`; empty without a record.
        name (`str`): The name of the model.

    Returns:
        `list[Table]`: The tables.

    Raises:
        ValueError: If a file is not a result file, was measured with another protocol or on other examples, or has no
            task in common with the evaluations.
    """
    tables = []
    for path in baselines:
        document, scores = read_results(path)
        baseline = Evaluation(document["results"], scores)
        compared = [each for each in measured if _common_tasks(each.evaluation, baseline)]
        if not compared:
            raise ValueError(
                f"{path} has no task in common with the evaluations of {name}, so it cannot be the baseline. Evaluate "
                "both on the same tasks."
            )
        for each in compared:
            _check_protocol(path, document, each.path, each.document)
            tables.append(_comparison_table(each, baseline, _baseline_name(document, run), run))
    return tables


def _common_tasks(one: Evaluation, two: Evaluation) -> list[str]:
    names = [task for task in one.results if task in two.results and task not in NOT_TASKS]
    return [task for task in names if "missing" not in one.results[task] | two.results[task]]


def _baseline_name(document: dict[str, Any], run: dict[str, Any]) -> str:
    name = public_name(document.get("model")) or "the baseline"
    return f"{name} before training" if name == public_name(run.get("base_model")) else name


def _check_protocol(path: Path, document: dict[str, Any], other: Path, reference: dict[str, Any]) -> None:
    ours, theirs = reference["protocol"], document["protocol"]
    different = [key for key in _PROTOCOL if ours.get(key) != theirs.get(key)]
    if different:
        listed = ", ".join(f"{key} {theirs.get(key)} and {ours.get(key)}" for key in different)
        raise ValueError(f"{path} and {other} were measured with different protocols ({listed}). Evaluate both alike.")


def _comparison_table(measured: Measured, baseline: Evaluation, name: str, run: dict[str, Any]) -> Table:
    document = measured.document
    protocol = Protocol(**{key: document["protocol"][key] for key in ("mode", "aggregation", "metric")})
    found = compare_evaluations({name: [baseline], _MODEL: measured.systems}, protocol)
    rows, sentences = [], []
    for key, result in found["differences"][_MODEL].items():
        figures = found["averages"].get(key)
        before, after = (
            (figures if figures is not None else {n: found["figures"][n][key] for n in (name, _MODEL)})[n]
            for n in (name, _MODEL)
        )
        label = found["labels"].get(key, SHORT_NAMES.get(key, key))
        if figures is not None:
            label = f"Avg. of {len(figures['tasks'])}"
        interval = (result["low"], result["high"])
        if None in interval:
            cells = [f"{result['difference']:+.2f}", "unknown"]
        else:
            cells = [
                f"{result['difference']:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]",
                "yes" if is_significant(*interval) else "no",
            ]
        rows.append([label, format_number(before), format_number(after), *cells])
        if figures is not None or is_user_task(measured.evaluation.results[key]):
            described = describe_difference(result["difference"], *interval, found["confidence"], name)
            sentences.append(f"{label}: {described}.")
    number = len(measured.systems)
    drawn = f"the test examples and the {number} seeds" if number > 1 else "the test examples"
    note = seed_note(run, of_all_seeds=number > 1)
    if number == 1 and seeds_of(run):
        note += " The interval does not say what another seed would have given."
    how = (
        f"Brackets: {found['confidence']:.0%} interval of a paired bootstrap over {drawn} "
        f"({found['resamples']:,} resamples). {note}"
    )
    header = ["task", name, "this model", "difference", f"significant at {found['confidence']:.0%}"]
    return Table(f"Difference from {name}", f"{' '.join(sentences)} {how}".strip(), header, rows)
