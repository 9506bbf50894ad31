"""Compare evaluations side by side, with confidence intervals for their differences."""

from collections.abc import Mapping
from zlib import crc32

import numpy as np
from numpy import ndarray

from .bootstrap import Parts, independent_draws, interval, resampled_scores
from .protocol import PAPER_PROTOCOL, Protocol
from .report import NOT_TASKS, average_members, format_rows, is_transfer, is_user_task


def compare_evaluations(
    named: Mapping,
    protocol: Protocol = PAPER_PROTOCOL,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> dict:
    """Compare evaluations with the first of them, for each task and on average.

    The intervals are paired percentile bootstraps (Efron and Tibshirani 1993, chapter 13): both systems are scored on
    the same resampled pairs or test examples, so that what they have in common cancels. Examples that share a text are
    drawn together (see [`groups_to_draw`]). An interval says what another draw of test pairs could have shown, and not
    what other seeds of the training could have shown.

    Args:
        named (`dict[str, Evaluation]`): The evaluations of at least two systems by name, the baseline first.
        protocol (`Protocol`, *optional*): Mode, aggregation and metric of the comparison.
        resamples (`int`, *optional*, defaults to `1000`): Number of resamples.
        confidence (`float`, *optional*, defaults to `0.95`): Confidence level of the intervals.

    Returns:
        `dict[str, Any]`: `tasks`; `labels` (the headers of tasks from a user's own files, with their metric);
        `scores[name][task]`; `averages[key][name]` over the tasks `averages[key]["tasks"]` for which all evaluations
        have a score; and `differences[name][task]` with `difference` (name minus baseline), `low` and `high` (`None`
        without stored scores). All scores are times 100.

    Raises:
        ValueError: If there are fewer than two evaluations, a setting is out of range, no task is common to all, or
            the evaluations were not made on the same examples.
    """
    if len(named) < 2:
        raise ValueError("a comparison needs at least two different models or result files.")
    # 1. The scores, and the tasks for which all systems have one
    tasks: list = []
    for each in named.values():
        tasks += [task for task in each.results if task not in (*NOT_TASKS, *tasks)]
    scores: dict = {}
    for name, each in named.items():
        scores[name] = {task: protocol.headline(each.results.get(task, {"missing": ""})) for task in tasks}
    common = [task for task in tasks if all(each[task] is not None for each in scores.values())]
    if not common:
        raise ValueError(f"{' and '.join(named)} have no task in common. Evaluate them on the same tasks.")
    baseline, *others = named

    # 2. The averages
    labels = {}
    for task in common:
        result = named[baseline].results[task]
        if is_user_task(result):
            labels[task] = f"{task} {result['metrics'][0]}"
    members = {task: [task] for task in common}
    averages: dict = {}
    for key, averaged in average_members([task for task in common if task not in labels]).items():
        members[key] = averaged
        averages[key] = {name: float(np.mean([each[task] for task in averaged])) for name, each in scores.items()}
        averages[key]["tasks"] = averaged

    # 3. The differences, on the same resamples
    samples: dict = {task: _samples(named, task, protocol, resamples) for task in common}
    differences: dict = {name: {} for name in others}
    for key, averaged in members.items():
        drawn = None
        if all(samples[task] is not None for task in averaged):
            drawn = np.mean([samples[task] for task in averaged], axis=0)
            fewest = min(independent_draws(named[baseline].scores[task]) for task in averaged)
        for row, name in enumerate(others, start=1):
            low = high = None
            if drawn is not None:
                low, high = interval(drawn[row] - drawn[0], confidence, fewest)
            changes = [scores[name][task] - scores[baseline][task] for task in averaged]
            differences[name][key] = {"difference": float(np.mean(changes)), "low": low, "high": high}
    return {
        "baseline": baseline,
        "mode": protocol.mode,
        "aggregation": protocol.aggregation,
        "metric": protocol.metric,
        "confidence": confidence,
        "resamples": resamples,
        "tasks": tasks,
        "labels": labels,
        "scores": scores,
        "averages": averages,
        "differences": differences,
    }


def format_comparison(comparison: dict) -> str:
    """Format a comparison as text: the scores of all systems, then the differences of each to the baseline."""
    tasks = comparison["tasks"]
    averages = comparison["averages"]
    labels = {"average": "Avg.", "average_transfer": "Avg. transfer", **comparison["labels"]}
    rows = []
    for name, scores in comparison["scores"].items():
        means = [average[name] for average in averages.values()]
        rows.append([name, *(scores[task] for task in tasks), *means])
    table = format_rows(rows, "", *(labels.get(key, key) for key in (*tasks, *averages)))
    for key, average in averages.items():
        table += f"\n{labels[key]} over {', '.join(average['tasks'])}"
    blocks = [
        f"mode {comparison['mode']}, {comparison['metric']}, aggregation {comparison['aggregation']}, x 100",
        table,
    ]
    for name, differences in comparison["differences"].items():
        rows = []
        for task, result in differences.items():
            interval = None
            if result["low"] is not None:
                interval = f"[{result['low']:+.2f}, {result['high']:+.2f}]"
            rows.append([labels.get(task, task), f"{result['difference']:+.2f}", interval])
        level = f"{100 * comparison['confidence']:g}% interval"
        blocks.append(format_rows(rows, f"{name} - {comparison['baseline']}", "", level))
    return "\n\n".join(blocks)


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
    described = f"{difference:+.2f}"
    if low is not None:
        described += f" [{low:+.2f}, {high:+.2f}]"
    if against:
        described += f" against {against}"
    if low is None or high is None:
        return f"{described}: whether it is significant is unknown, because scores are missing"
    verdict = "significant" if low > 0 or high < 0 else "not significant"
    return f"{described}: {verdict} at {100 * confidence:g}%"


def _samples(
    named: Mapping,
    task: str,
    protocol: Protocol,
    resamples: int,
) -> ndarray | None:
    """Return the resampled scores of each system, or `None` if some were not stored."""
    stored = {name: each.scores.get(task) for name, each in named.items()}
    if None in stored.values() or (protocol.mode == "dev" and is_transfer(task)):
        return None  # dev answers are not stored
    (first_name, first), *_ = stored.items()
    parts = list(first)
    if parts in (["test"], ["dev"]) and parts != [protocol.split]:
        raise ValueError(
            f"{task}: mode {protocol.mode} compares the split {protocol.split}, but the stored scores are of "
            f"{parts[0]}. Evaluate again with this mode."
        )
    for name, each in stored.items():
        if _examples(each) != _examples(first):
            raise ValueError(
                f"{task}: {name} and {first_name} were not evaluated on the same examples. Evaluate both with the "
                "same data and mode."
            )
    random = np.random.default_rng([0, crc32(task.encode())])  # independent of the resamples of other tasks
    return resampled_scores(list(stored.values()), protocol, resamples, random)


def _examples(parts: Parts) -> list:
    """Return what tells the examples that were scored from any others, in their order."""
    examples = []
    for name, part in parts.items():
        gold = part["gold"]
        examples.append((name, gold.tolist(), part.get("unit", gold).tolist()))
    return examples
