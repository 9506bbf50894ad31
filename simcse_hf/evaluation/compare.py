"""Compare evaluations side by side, with confidence intervals for their differences."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from ..names import KEYWORDS, EvaluationOptions
from ..runtime.distributed import world
from ..runtime.encoders import Encoder, TextEncoder
from ..runtime.errors import DataError, SettingError, as_list
from ..runtime.files import StrPath, as_written, read_json
from ..runtime.identity import Identity
from ..runtime.outputs import Result, check_output_file
from .bm25 import BM25
from .bootstrap import check_interval
from .protocol import PAPER_PROTOCOL, Protocol
from .report import (
    NOT_TASKS,
    Evaluation,
    average_members,
    format_rows,
    write_results,
)
from .scoring import check_keywords, load_encoder, name_of, read_tasks, score_model
from .tasks import Task
from .tasks.base import headline
from .verdict import Sample, Scored, Seed, make_samples, mean_sample
from .verdict import differences as differences_of


class Difference(TypedDict):
    """The score of a model minus that of the baseline, times 100, and the ends of its interval.

    Args:
        difference (`float`): The difference.
        low (`float`, *optional*): The lower end; `None` without stored scores.
        high (`float`, *optional*): The upper end.
    """

    difference: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison(Result):
    """Models side by side, and the difference of each from the first. All scores are times 100.

    Args:
        baseline (`str`): The first model.
        mode (`str`): See [`Protocol`].
        aggregation (`str`): See [`Protocol`].
        metric (`str`): See [`Protocol`].
        confidence (`float`): Confidence level of the intervals.
        resamples (`int`): Number of resamples.
        tasks (`list[str]`): The tasks of all models.
        labels (`dict[str, str]`): The headers of tasks from a user's own files, with their metric.
        scores (`dict[str, dict]`): The score of each model in each task, `None` if it has none.
        averages (`dict[str, dict]`): `average` and `average_transfer` of each model, over the `tasks` for which all
            models have a score.
        differences (`dict[str, dict]`): Of each model but the first, the [`Difference`] in each task and average.
        identities (`dict[str, Identity]`): What each model was.
        costs (`dict[str, dict]`): The speed and the size of each model, see [`Evaluation`].
        choice (`str`, *optional*): The fastest model that was not shown to be worse than the best, which is the
            baseline then; see [`compare_evaluations`].
        seeds (`dict[str, list[int]]`): Of each model that was trained with several seeds, the seeds, over whose models
            its scores are means.
    """

    baseline: str
    mode: str
    aggregation: str
    metric: str
    confidence: float
    resamples: int
    tasks: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    scores: dict[str, dict[str, float | None]] = field(default_factory=dict)
    averages: dict[str, dict] = field(default_factory=dict)
    differences: dict[str, dict[str, Difference]] = field(default_factory=dict)
    identities: Mapping[str, Identity] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    choice: str | None = None
    seeds: Mapping[str, list[int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: StrPath) -> "Comparison":
        """Read a file that `compare` wrote.

        Args:
            path (`str` or `os.PathLike`): The file.

        Returns:
            [`Comparison`]: The comparison; early files have no identities.

        Raises:
            ValueError: If the file is none. The message names it.
        """
        advice = "Name a file that `simcse-hf compare --output` wrote."
        document = read_json(path, "baseline", "scores", "differences", advice=advice)
        with as_written(path, advice):
            identities = {name: Identity.from_dict(each) for name, each in document.get("identities", {}).items()}
            return cls.from_dict(document, identities=identities)

    def __str__(self) -> str:
        labels = {"average": "Avg.", "average_transfer": "Avg. transfer", "mean": "Mean", **self.labels}
        columns = [*self.tasks, *self.averages]
        if self.choice is not None:
            columns += ["texts/s", "MB"]
        rows = []
        for name, scores in self.scores.items():
            row = [name, *(scores[task] for task in self.tasks)]
            row += [average[name] for average in self.averages.values()]
            if self.choice is not None:
                row += [f"{value:,.1f}" for value in self.costs[name].values()]
            rows.append(row)
        table = format_rows(rows, "", *(labels.get(key, key) for key in columns))
        for key, average in self.averages.items():
            table += f"\n{labels[key]} over {', '.join(average['tasks'])}"
        is_sts = {*self.tasks} - {*self.labels}
        protocol = f"mode {self.mode}, {self.metric}, aggregation {self.aggregation}, " if is_sts else ""
        blocks = [f"{protocol}scores x 100", table]
        for name, differences in self.differences.items():
            rows = []
            for task, result in differences.items():
                interval = None
                if result["low"] is not None:
                    interval = f"[{result['low']:+.2f}, {result['high']:+.2f}]"
                rows.append([labels.get(task, task), f"{result['difference']:+.2f}", interval])
            blocks.append(format_rows(rows, f"{name} - {self.baseline}", "", f"{100 * self.confidence:g}% interval"))
        for name, seeds in self.seeds.items():
            blocks.append(f"{name}: mean over the models of the seeds {', '.join(map(str, seeds))}")
        if self.choice is not None:
            blocks.append(
                f"Take {self.choice}, the fastest of those that were not shown to be worse than the best "
                f"({self.baseline}). The intervals hold together for all pairs of the {len(self.scores)} models."
            )
        return "\n\n".join(blocks)


def compare(
    results: Sequence[str | Encoder],
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    output: StrPath | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **options: Unpack[EvaluationOptions],
) -> Comparison:
    """Compare models or result files with the first one, with confidence intervals.

    Args:
        results (`Sequence[str | Encoder]`): At least two, the baseline first: result files (.json) of
            `simcse-hf evaluate`, folders or hub names of models (of a folder of `train --seeds`, the models of all
            seeds), bm25 for keyword search; in Python also loaded models.
        resamples (`int`, *optional*, defaults to `1000`): Bootstrap resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Level of the intervals.
        output (`str` or `os.PathLike`, *optional*): JSON file of the comparison.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show a bar while texts are encoded.
        **options (`EvaluationOptions`): What models are scored on, how, and how they are loaded.

    Returns:
        [`Comparison`]: The comparison. With several processes, only the first one scores the models and returns it.

    Raises:
        ValueError: If options do not fit together, files were made in another mode, or as [`compare_evaluations`].
        FileNotFoundError: If a file does not exist.

    Examples:
        >>> from simcse_hf import compare, evaluate
        >>> first = evaluate("outputs/my-model", pairs=["sts-dev.csv"], output="avg.json")
        >>> other = evaluate("outputs/my-model", pairs=["sts-dev.csv"], pooler_type="max", output="max.json")
        >>> comparison = compare(["avg.json", "max.json"])
        >>> comparison.baseline, comparison.tasks
        ('avg.json', ['sts-dev'])
        >>> list(comparison.differences["max.json"]["sts-dev"])  # the interval is from low to high
        ['difference', 'low', 'high']
    """
    score = partial(score_model, show_progress_bar=show_progress_bar)
    return compare_models(results, score, options, resamples, confidence, output, overwrite)


def compare_models(
    models: Sequence[str | Encoder],
    score: Callable[[TextEncoder | BM25, Mapping[str, Task], Protocol], Evaluation],
    options: EvaluationOptions,
    resamples: int,
    confidence: float,
    output: StrPath | None,
    overwrite: bool,
    choose: bool = False,
) -> Comparison:
    """Score models, and compare them with each other and with result files.

    Args:
        models (`Sequence[str | Encoder]`): Result files (.json), and models.
        score (`Callable`): Scores a model on tasks, by a protocol; result files must have been made in its mode.
        options (`EvaluationOptions`): What models are scored on, how, and how they are loaded.
        resamples (`int`): Number of resamples.
        confidence (`float`): Confidence level of the intervals.
        output (`str` or `os.PathLike`, *optional*): JSON file of the comparison.
        overwrite (`bool`): Replace `output` if it exists.
        choose (`bool`, *optional*, defaults to `False`): See [`compare_evaluations`].

    Returns:
        [`Comparison`]: The comparison, which is empty in all processes but the first.

    Raises:
        SettingError: If there are fewer than two, models without data, data without models, or as
            [`compare_evaluations`].
    """
    check_output_file(output, overwrite, (".json",))
    check_interval(confidence, resamples)
    models = as_list(models)
    data, protocol, loading = read_tasks(**options)
    named = {name_of(model): model for model in models}
    evaluations = {name: Evaluation.read(name) for name in named if name.endswith(".json")}
    to_score = [name for name in named if name not in evaluations]
    if len(named) < max(2, len(models)):
        raise SettingError("give at least two different models or result files")
    if to_score and not data:
        raise SettingError(f"{to_score[0]} is a model (no .json file): give data_dir, pairs or task to evaluate it")
    if data and not to_score:
        raise SettingError("result files have their tasks: leave out tasks, data_dir, pairs and task")
    for name, evaluation in evaluations.items():
        measured = evaluation.protocol.mode
        if measured != protocol.mode:
            raise SettingError(f"{name} was evaluated with mode {measured!r}, not {protocol.mode!r}: give the same.")
    if KEYWORDS in named:
        check_keywords(data)
    runs: dict[str, dict[Seed, Evaluation]] = {}
    for name, model in named.items():
        if name in evaluations:
            runs[name] = {None: evaluations[name]}
            continue
        runs[name] = {}
        for seed, of_seed in models_of_seeds(model).items():
            runs[name][seed] = score(load_encoder(of_seed, loading), data, protocol)
    if world()[0] > 0:
        return Comparison("", protocol.mode, protocol.aggregation, protocol.metric, confidence, resamples)
    comparison = compare_evaluations(runs, protocol, resamples, confidence, choose)
    if output is not None:
        write_results(output, comparison.to_dict(), {})
    return comparison


def models_of_seeds(model: StrPath | Encoder) -> dict[Seed, Any]:
    """Return the models of a folder that `train --seeds` wrote, by their seeds, or the model itself."""
    if isinstance(model, (str, os.PathLike)):
        found: dict[Seed, Any] = {}
        for path in sorted(Path(model).expanduser().glob("seed-*")):
            seed = path.name.removeprefix("seed-")
            if seed.isdecimal() and (path / "config.json").is_file():
                found[int(seed)] = str(path)
        if len(found) > 1:
            return found
    return {None: model}


def compare_evaluations(
    runs: Mapping[str, Mapping[Seed, Evaluation]],
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    confidence: float = 0.95,
    choose: bool = False,
) -> Comparison:
    """Compare systems with the first of them, for each task and on average.

    The intervals are paired percentile bootstraps (Efron and Tibshirani 1993, chapter 13): both systems are scored on
    the same resampled pairs or test examples, so that what they have in common cancels. Examples that share a text are
    drawn together (see [`groups_to_draw`]). An interval says what another draw of test pairs could have shown and, for
    systems with several seeds, what other seeds of the training could have shown.

    Args:
        runs (`dict[str, dict[int | None, Evaluation]]`): The evaluations of each system by the seeds of its training,
            whose mean is its score, the baseline first. A single one has the key `None`.
        protocol (`Protocol`, *optional*): Mode, aggregation and metric of the comparison.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Confidence level of the intervals.
        choose (`bool`, *optional*, defaults to `False`): Compare with the best system in place of the first, by its
            mean over the tasks, and name the one to take: the fastest whose interval does not lie below 0. As the
            best one is looked up in the same scores, the intervals hold together for all pairs of systems (see
            [`differences`]).

    Returns:
        [`Comparison`]: The comparison.

    Raises:
        DataError: If a setting is out of range, no task is common to all, or the evaluations were not made on the
            same examples, or, to choose, do not tell the speed or the scores of single examples.
    """
    # 1. The scores, and the tasks for which all systems have one
    check_interval(confidence, resamples)
    firsts = {name: next(iter(each.values())) for name, each in runs.items()}
    results = {name: each.results for name, each in firsts.items()}
    tasks = [task for task in dict.fromkeys(chain(*results.values())) if task not in NOT_TASKS]
    scores: dict[str, dict] = {}
    for name, each in runs.items():
        scores[name] = {}
        for task in tasks:
            of_runs = [headline(run.results.get(task, {"missing": ""}), protocol) for run in each.values()]
            known = [score for score in of_runs if score is not None]
            scores[name][task] = float(np.mean(known)) if len(known) == len(of_runs) else None
    common = [task for task in tasks if all(each[task] is not None for each in scores.values())]
    if not common:
        raise DataError(f"{' and '.join(runs)} have no task in common. Evaluate them on the same tasks.")
    for task in common:
        scored = {each[task].get("texts") for each in results.values()} - {None}  # early files do not know them
        if len(scored) > 1:
            raise DataError(
                f"{task}: {' and '.join(runs)} were evaluated on other texts. Results on different rows are not "
                "compared: evaluate them on the same file."
            )
    for name, evaluation in firsts.items() if choose else ():
        if not evaluation.cost or not all(map(evaluation.scores.get, common)):
            raise DataError(
                f"{name} was evaluated without its speed or the scores of single examples: evaluate it again"
            )
    names = list(runs)
    if choose:
        best = max(scores, key=lambda name: np.mean([scores[name][task] for task in common]))
        names = list(dict.fromkeys([best, *names]))
    baseline, *others = names

    # 2. The averages
    labels = {}
    for task, each in results[baseline].items():
        if task in common and "kind" in each:  # of a user's own files
            labels[task] = f"{task} {each['metrics'][0]}"
    averaged = {"mean": common} if choose else average_members({task: results[baseline][task] for task in common})
    averages: dict[str, dict] = {}
    for key, members in averaged.items():
        averages[key] = {}
        for name, each in scores.items():
            averages[key][name] = float(np.mean([each[task] for task in members]))
        averages[key]["tasks"] = members

    # 3. The differences, on the same resamples
    samples = {task: _samples(runs, task, protocol, resamples) for task in common}
    differences: dict[str, dict[str, Difference]] = {name: {} for name in others}
    for key, members in ({task: [task] for task in common} | averaged).items():
        of_systems = {}
        if all(samples[task] for task in members):
            of_systems = {name: mean_sample([samples[task][name] for task in members]) for name in names}
        pairs = [(name, baseline) for name in others]
        judged = {}
        if of_systems and choose:
            judged = differences_of(of_systems, [*pairs, *combinations(others, 2)], confidence)
        elif of_systems:
            for pair in pairs:  # each by itself
                judged |= differences_of(of_systems, [pair], confidence)
        for name, pair in zip(others, pairs, strict=True):
            change = float(np.mean([scores[name][task] - scores[baseline][task] for task in members]))
            low = judged[pair].low if judged else None
            high = judged[pair].high if judged else None
            differences[name][key] = {"difference": change, "low": low, "high": high}

    # 4. The fastest of the best system, which has no difference, and those not shown to be worse
    costs = {name: firsts[name].cost for name in names}
    speeds = {}
    for name in names if choose else ():
        high = differences[name]["mean"]["high"] if name in others else 0.0
        if high is None or high >= 0:
            speeds[name] = costs[name]["texts_per_second"]
    return Comparison(
        baseline=baseline,
        mode=protocol.mode,
        aggregation=protocol.aggregation,
        metric=protocol.metric,
        confidence=confidence,
        resamples=resamples,
        tasks=tasks,
        labels=labels,
        scores=scores,
        averages=averages,
        differences=differences,
        identities={name: firsts[name].identity for name in names},
        seeds={name: [seed for seed in each if seed is not None] for name, each in runs.items() if len(each) > 1},
        costs=costs,
        choice=max(speeds, key=speeds.__getitem__) if choose else None,
    )


def describe_change(change: Mapping[str, Any], against: str = "") -> str:
    """Write what a training has changed with its interval, and say whether it is significant.

    Args:
        change (`Mapping[str, Any]`): Its `difference`, the ends `low` and `high` of the interval, and their
            `confidence`.
        against (`str`, *optional*): What the difference is to.

    Returns:
        `str`: For example `"+2.93 [+1.80, +4.02] against bert-base-uncased: significant at 95%"`.
    """
    described = f"{change['difference']:+.2f} [{change['low']:+.2f}, {change['high']:+.2f}]"
    if against:
        described += f" against {against}"
    verdict = "significant" if change["low"] > 0 or change["high"] < 0 else "not significant"
    return f"{described}: {verdict} at {100 * change['confidence']:g}%"


def _samples(
    runs: Mapping[str, Mapping[Seed, Evaluation]], task: str, protocol: Protocol, resamples: int
) -> dict[str, Sample]:
    """Return the scores of each system with those on the resamples; nothing if some were not stored."""
    scores: dict[str, dict[Seed, Scored]] = {}
    for name, by_seed in runs.items():
        scores[name] = {}
        for seed, each in by_seed.items():
            stored = each.scores.get(task, {})
            if not stored or (protocol.mode == "dev" and "dev_accuracy" in each.results[task]):
                return {}  # the scores of a transfer task are no dev scores
            figure = headline(each.results[task], protocol)
            assert figure is not None  # as all systems have the task
            scores[name][seed] = Scored(figure, stored)
    return make_samples(scores, task, protocol, resamples)
