"""Compare evaluations side by side, with confidence intervals for their differences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from ..ops.errors import refuse
from .bootstrap import check_resampling, interval, mean_over_drawn_seeds, resampled_scores
from .report import NOT_TASKS, average_members, format_number, format_rows, headline, is_transfer, is_user_task
from .scoring import PAPER_PROTOCOL, Evaluation, Protocol


def compare_evaluations(
    named: Mapping[str, Evaluation | Sequence[Evaluation]],
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare evaluations with the first of them, for each task and on average.

    The intervals are paired percentile bootstraps (Efron and Tibshirani 1993, chapter 13): both systems are scored on
    the same resampled pairs or test examples, so that what they have in common cancels. Examples that share a text are
    drawn together (see [`groups_to_draw`]). An interval says what another draw of test pairs could have shown. It says
    what other seeds of the training could have shown only for a system whose evaluations with several seeds are given:
    the scores are then means over the seeds (see [`mean_over_drawn_seeds`]).

    Args:
        named (`dict[str, Evaluation]`): At least two systems by name, the baseline first. A list holds the evaluations
            of one system with several seeds.
        protocol (`Protocol`, *optional*): Mode, aggregation and metric of the comparison.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Confidence level of the intervals.
        seed (`int`, *optional*, defaults to `0`): Seed of the resamples.

    Returns:
        `dict[str, Any]`: `tasks`; `labels` (the headers of tasks from a user's own files, with their metric);
        `scores[name][task]`; `averages[key][name]` over the tasks `averages[key]["tasks"]` for which all evaluations
        have a score; `seeds[name]`, the number of evaluations; and `differences[name][task]` with `difference` (name
        minus baseline), `low` and `high` (`None` without stored scores). All scores are times 100.

    Raises:
        ValueError: If there are fewer than two evaluations, a setting is out of range, no task is common to all, or
            the evaluations were not made on the same examples.
    """
    if len(named) < 2:
        raise ValueError("a comparison needs at least two different models or result files.")
    check_resampling(resamples, confidence)
    systems = {name: [each] if isinstance(each, Evaluation) else list(each) for name, each in named.items()}
    everything = [each for seeds in systems.values() for each in seeds]
    tasks = list(dict.fromkeys(task for each in everything for task in each.results if task not in NOT_TASKS))
    scores: dict[str, dict[str, Any]] = {
        name: {task: _score(seeds, task, protocol) for task in tasks} for name, seeds in systems.items()
    }
    common = [task for task in tasks if all(scores[name][task] is not None for name in named)]
    if not common:
        raise ValueError(f"{' and '.join(named)} have no task in common. Evaluate them on the same tasks.")
    users = _user_labels(everything, common)
    samples: dict[str, Any] = {task: _samples(systems, task, protocol, resamples, seed) for task in common}
    ends = np.cumsum([len(seeds) for seeds in systems.values()])
    groups = {task: [task] for task in common}
    averages: dict[str, dict[str, Any]] = {}
    for key, members in average_members([task for task in common if task not in users]).items():
        groups[key] = members
        averages[key] = {name: _mean(scores[name][task] for task in members) for name in named}
        averages[key]["tasks"] = members
    baseline, *others = systems
    differences: dict[str, dict[str, Any]] = {name: {} for name in others}
    for key, members in groups.items():
        drawn = None
        if all(samples[task] is not None for task in members):
            by_system = np.split(np.mean([samples[task] for task in members], axis=0), ends[:-1])
            random = np.random.default_rng([seed, 1])
            drawn = [mean_over_drawn_seeds(seeds, random, confidence) for seeds in by_system]
        for row, name in enumerate(others, start=1):
            difference = _mean(scores[name][task] - scores[baseline][task] for task in members)
            low, high = (None, None) if drawn is None else interval(drawn[row] - drawn[0], confidence)
            differences[name][key] = {"difference": difference, "low": low, "high": high}
    return {
        "baseline": baseline,
        "mode": protocol.mode,
        "aggregation": protocol.aggregation,
        "metric": protocol.metric,
        "confidence": confidence,
        "resamples": resamples,
        "tasks": tasks,
        "labels": users,
        "seeds": {name: len(seeds) for name, seeds in systems.items()},
        "scores": scores,
        "averages": averages,
        "differences": differences,
    }


def format_comparison(comparison: dict[str, Any]) -> str:
    """Format a comparison as text: the scores of all systems, then the differences of each to the baseline."""
    averages = comparison["averages"]
    labels = {"average": "Avg.", "average_transfer": "Avg. transfer", **comparison["labels"]}
    rows = [["", *(labels.get(task, task) for task in comparison["tasks"]), *(labels[key] for key in averages)]]
    for name, scores in comparison["scores"].items():
        cells = [scores[task] for task in comparison["tasks"]] + [averages[key][name] for key in averages]
        rows.append([name] + [format_number(cell) for cell in cells])
    blocks = [
        f"mode {comparison['mode']}, {comparison['metric']}, aggregation {comparison['aggregation']}, x 100",
        format_rows(rows),
    ]
    for key in averages:
        blocks[-1] += f"\n{labels[key]} over {', '.join(averages[key]['tasks'])}"
    for name, differences in comparison["differences"].items():
        percent = f"{100 * comparison['confidence']:g}%"
        rows = [[f"{name} - {comparison['baseline']}", "", f"{percent} interval"]]
        for task, result in differences.items():
            interval = "n/a" if result["low"] is None else f"[{result['low']:+.2f}, {result['high']:+.2f}]"
            rows.append([labels.get(task, task), f"{result['difference']:+.2f}", interval])
        blocks.append(format_rows(rows))
    return "\n\n".join(blocks)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _user_labels(evaluations: Iterable[Evaluation], tasks: Sequence[str]) -> dict[str, str]:
    """Return the headers of tasks from a user's own files, with their metric."""
    return {
        task: f"{task} {each.results[task]['metrics'][0]}"
        for each in evaluations
        for task in tasks
        if is_user_task(each.results[task])
    }


def describe_difference(
    difference: float, low: float | None, high: float | None, confidence: float, against: str = ""
) -> str:
    """Write a difference with its interval, and say whether it is significant.

    Args:
        difference (`float`): The difference.
        low (`float`, *optional*): Lower end of the interval; `None` without one.
        high (`float`, *optional*): Upper end of the interval.
        confidence (`float`): Confidence level of the interval.
        against (`str`, *optional*): What the difference is to.

    Returns:
        `str`: For example `"+2.93 [+1.80, +4.02] against bert-base-uncased: significant at 95%"`.
    """
    interval = "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
    described = f"{difference:+.2f}{interval}{f' against {against}' if against else ''}"
    if low is None or high is None:
        return f"{described}: whether it is significant is unknown, because scores are missing"
    verdict = "significant" if low > 0 or high < 0 else "not significant"
    return f"{described}: {verdict} at {100 * confidence:g}%"


def _score(seeds: Sequence[Evaluation], task: str, protocol: Protocol) -> float | None:
    """Return the mean score of a system over its seeds, or `None` if one of them has none."""
    how = (protocol.mode, protocol.aggregation, protocol.metric)
    values = [headline(each.results[task], *how) for each in seeds if task in each.results]
    present = [value for value in values if value is not None]
    return _mean(present) if len(present) == len(seeds) else None


def _samples(
    systems: dict[str, list[Evaluation]], task: str, protocol: Protocol, resamples: int, seed: int
) -> np.ndarray | None:
    """Return the scores of all evaluations on the same resamples, or `None` if one of them has no stored scores."""
    names = [name for name, seeds in systems.items() for _ in seeds]
    scores = [each.scores.get(task) for seeds in systems.values() for each in seeds]
    found = [parts for parts in scores if parts is not None]
    if len(found) < len(scores) or (protocol.mode == "dev" and is_transfer(task)):  # dev answers are not stored
        return None
    split, stored = "dev" if protocol.mode == "dev" else "test", list(found[0])
    problem = f"{task}: mode {protocol.mode} compares the split {split}, but the stored scores are of {stored[0]}"
    refuse({f"{problem}. Evaluate again with this mode.": stored in (["test"], ["dev"]) and stored != [split]})
    for name, parts in zip(names, found, strict=True):
        same = list(parts) == list(found[0]) and all(
            np.array_equal(parts[part].get(key, []), found[0][part].get(key, []))
            for part in parts
            for key in ("gold", "unit")
        )
        if not same:
            raise ValueError(
                f"{task}: {name} and {names[0]} were not evaluated on the same examples. Evaluate both with the same "
                "data and mode."
            )
    random = np.random.default_rng([seed, crc32(task.encode())])  # independent of the resamples of other tasks
    return resampled_scores(found, protocol.aggregation, protocol.metric, resamples, random)
