"""How often the 95% intervals of this package hold the true value, on simulated scores whose true value is known.

Four statistics are simulated for single rows and for rows in groups of the sizes of STS-B's, within which gold scores
and errors are correlated; the differences are those of a trained model to its start. The intervals are those of
`simcse-hf compare`.

Then studies are simulated: ways to train that are equally good, beside a start that is as good, with several seeds
that differ by 0 to 2 points. A study counts if all its intervals hold the true differences, which are 0. In any other
study, one of two equal ways is called better. These intervals are those of a study, of the cards and of `adapt`.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri
from tqdm import trange

from simcse_hf.evaluation.bootstrap import Parts, counted_correlation, interval, resampled_scores
from simcse_hf.evaluation.verdict import Sample, differences

from .harness import Report, markdown

#: How many groups of each size there are.
ROWS = {
    "60 rows": {1: 60},
    "1,500 rows": {1: 1500},
    "groups of STS-B dev": {1: 1368, 2: 39, 3: 3, 5: 1, 9: 1, 31: 1},
    "groups of STS-B test": {1: 1103, 2: 45, 3: 13, 4: 6, 5: 1, 6: 1, 7: 1, 8: 3, 10: 1, 11: 1, 14: 1, 21: 1, 25: 1},
}
LEVEL = 0.95
#: Correlations: of two rows of a group, of prediction and gold score (trained and start), and of the errors of the
#: trained model and its start, of two ways and of two seeds.
WITHIN = 0.8
OF_TRAINED, OF_UNTRAINED = 0.85, 0.80
OF_START, OF_WAYS, OF_SEEDS = 0.7, 0.8, 0.9
ACCURACY, POSITIVES = 0.8, 0.3

#: Ways and seeds of a study; its rows, their metric and the correlation of two ways: those of the second task differ
#: no more than two seeds of one way do.
WAYS = {"1 way and the start": 1, "2 ways": 2, "4 ways and the start": 4, "8 ways and the start": 8}
SEEDS = (2, 3, 5)
TASKS = {
    "60 pairs": (60, "spearman", OF_WAYS),
    "300 pairs": (300, "spearman", OF_WAYS),
    "1,500 answers": (1500, "accuracy", OF_SEEDS),
}
MOST_WAYS, MOST_SEEDS = 8, max(SEEDS)
RESAMPLES = 1000  # as commands take; with fewer, intervals of many pairs are too narrow
#: The standard deviation of the seeds of each way, in points.
SPREADS = {
    "0": [0.0] * 8,
    "0.5": [0.5] * 8,
    "1": [1.0] * 8,
    "2": [2.0] * 8,
    "2 and 0.7": [2, 0.7] * 4,
    "one 2, others 0.5": [2] + [0.5] * 7,
}

AP = "difference of average precision"
Systems = list[dict[str, np.ndarray]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repetitions", type=int, default=1000, help="of single intervals; default: 1000")
    parser.add_argument("--studies", type=int, default=1000, help="of each size; default: 1000")
    parser.add_argument("--resamples", type=int, default=400, help="of single intervals; default: 400")


def normals(groups: np.ndarray, random: np.random.Generator, size: tuple[int, ...] = ()) -> np.ndarray:
    """Draw standard normal variables that two rows of one group share by `WITHIN`."""
    own, shared = random.normal(size=(2, *size, len(groups)))
    return np.sqrt(1 - WITHIN) * own + np.sqrt(WITHIN) * shared[..., groups]


def statistics_of(groups: np.ndarray, random: np.random.Generator) -> dict[str, Systems]:
    """Draw the rows of each statistic; a difference is that of the first system, which is trained, to the second."""
    gold, common = normals(groups, random, (2,))
    errors = np.sqrt(OF_START) * common + np.sqrt(1 - OF_START) * normals(groups, random, (2,))
    r = np.array([OF_TRAINED, OF_UNTRAINED])[:, None]
    predicted = r * gold + np.sqrt(1 - r**2) * errors
    pairs = [{"predicted": each, "gold": gold, "group": groups} for each in predicted]
    is_positive = gold > ndtri(1 - POSITIVES)
    is_correct = errors[0] < ndtri(ACCURACY)
    return {
        "Spearman": pairs[:1],
        "difference of Spearman": pairs,
        "accuracy": [{"correct": is_correct, "gold": gold, "group": groups}],
        AP: [{"similarity": each, "gold": is_positive, "group": groups} for each in predicted],
    }


def resampled(systems: Systems, resamples: int, random: np.random.Generator, fixed_ranks: bool = False) -> np.ndarray:
    tasks = [{"rows": named} for named in systems]
    return resampled_scores(tasks, resamples=resamples, random=random, fixed_ranks=fixed_ranks)


def true_values(random: np.random.Generator) -> dict[str, float]:
    """Return the true value of each statistic: that of average precision from a million rows."""

    def spearman(correlation: float) -> float:
        return 600 / np.pi * np.arcsin(correlation / 2)  # of two normal variables (Pearson 1907)

    def average_precision(system: dict[str, np.ndarray]) -> float:
        is_positive = system["gold"][np.argsort(-system["similarity"])]
        precision = is_positive.cumsum() / np.arange(1, len(is_positive) + 1)
        return 100 * precision[is_positive].mean()

    trained, start = statistics_of(np.arange(1_000_000), random)[AP]
    return {
        "Spearman": spearman(OF_TRAINED),
        "difference of Spearman": spearman(OF_TRAINED) - spearman(OF_UNTRAINED),
        "accuracy": 100 * ACCURACY,
        AP: average_precision(trained) - average_precision(start),
    }


def run(options: argparse.Namespace, report: Report) -> None:
    if options.repetitions:
        run_single(options, report)
    for where in TASKS if options.studies else ():
        report.save(studies=report.results.get("studies", {}) | {where: coverage_of_studies(options, where)})


def run_single(options: argparse.Namespace, report: Report) -> None:
    """Save the shares of intervals of single differences."""
    random = np.random.default_rng(0)
    truths = true_values(random)
    shares: dict[str, Any] = {}
    for where, sizes in ROWS.items():
        groups = np.repeat(np.arange(sum(sizes.values())), np.repeat(list(sizes), list(sizes.values())))
        drawings = {"together": groups}
        if len(sizes) > 1:
            drawings["one by one"] = np.arange(len(groups))
        hits: Counter[tuple[str, str]] = Counter()
        for _ in trange(options.repetitions, desc=where):
            for name, systems in statistics_of(groups, random).items():
                for drawing, drawn_by in drawings.items():
                    changed = [system | {"group": drawn_by} for system in systems]
                    drawn = resampled(changed, options.resamples, random)
                    values = drawn[0] - drawn[1] if len(drawn) > 1 else drawn[0]
                    low, high = interval(values, LEVEL)
                    hits[name, drawing] += low <= truths[name] <= high
        for (name, drawing), count in hits.items():
            share = round(100 * count / options.repetitions, 1)
            shares.setdefault(where, {}).setdefault(name, {})[drawing] = share
        report.save(repetitions=options.repetitions, resamples=options.resamples, coverage=shares)


def coverage_of_studies(options: argparse.Namespace, where: str) -> dict[str, Any]:
    """Return the share of studies whose intervals all hold 0, and half the median width of these intervals.

    Returns:
        `dict`: By the spread of the seeds, the number of ways and that of seeds: the share and half the width.
    """
    random = np.random.default_rng(1)
    hits: Counter[tuple[str, ...]] = Counter()
    widths: dict[tuple[str, ...], list[float]] = {}
    for _ in trange(options.studies, desc=where):
        scored = scores_of_ways(*TASKS[where], random)
        for key, samples in studies(scored, random):
            intervals = [(each.low, each.high) for each in differences(samples, confidence=LEVEL).values()]
            hits[key] += all(low <= 0 <= high for low, high in intervals)
            widths.setdefault(key, []).append(np.median([high - low for low, high in intervals]) / 2)
    found: dict[str, Any] = {"studies": options.studies, "resamples": RESAMPLES}
    for key, count in hits.items():
        cell = found
        for name in key[:-1]:
            cell = cell.setdefault(name, {})
        cell[key[-1]] = [round(100 * count / options.studies, 1), round(float(np.median(widths[key])), 2)]
    return found


def scores_of_ways(
    rows: int, metric: str, correlation: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, Parts]:
    """Draw rows, and score the start and the seeds of all ways on them.

    Returns:
        `tuple[numpy.ndarray, numpy.ndarray, Parts]`: The scores times 100, those of the start first, of shape
        `(systems,)`; those on the resamples, of shape `(systems, resamples)`; and what was resampled.
    """
    gold, common, trained = random.normal(size=(3, rows))
    start = np.sqrt(1 - OF_START) * random.normal(size=(1, rows))
    of_way = np.sqrt(OF_SEEDS - correlation) * random.normal(size=(MOST_WAYS, 1, rows))
    of_seed = np.sqrt(1 - OF_SEEDS) * random.normal(size=(MOST_WAYS, MOST_SEEDS, rows))
    ways = (np.sqrt(correlation - OF_START) * trained + of_way + of_seed).reshape(-1, rows)
    errors = np.sqrt(OF_START) * common + np.concatenate([start, ways])
    systems: Systems
    if metric == "accuracy":
        systems = [{"correct": each < ndtri(ACCURACY)} for each in errors]
        scores = [system["correct"].mean() for system in systems]
    else:
        systems = [{"predicted": OF_TRAINED * gold + np.sqrt(1 - OF_TRAINED**2) * each} for each in errors]
        once = np.ones((1, rows))
        scores = [counted_correlation(system["predicted"], gold, once, metric)[0] for system in systems]
    systems = [system | {"gold": gold, "group": np.arange(rows)} for system in systems]
    drawn = resampled(systems, RESAMPLES, random, fixed_ranks=True)
    return 100 * np.array(scores), drawn, {"rows": systems[0]}


def studies(
    scored: tuple[np.ndarray, np.ndarray, Parts], random: np.random.Generator
) -> Iterator[tuple[tuple[str, ...], dict[str, Sample]]]:
    """Make studies of all sizes and spreads from the same scores, to which the seeds add other effects."""
    scores, drawn, parts = scored
    for spread, of_ways in SPREADS.items():
        effects = random.normal(size=(MOST_SEEDS, MOST_WAYS)) * of_ways
        for name, ways in WAYS.items():
            for seeds in SEEDS:
                samples = {}
                if ways != 2:
                    samples["start"] = Sample({None: scores[0]}, {None: drawn[0]}, tasks=[parts])
                for way in range(ways):
                    figures = {}
                    resampled = {}
                    for seed in range(seeds):
                        system = 1 + way * MOST_SEEDS + seed
                        figures[seed] = scores[system] + effects[seed, way]
                        resampled[seed] = drawn[system] + effects[seed, way]
                    samples[f"way {way}"] = Sample(figures, resampled, tasks=[parts])
                yield (spread, name, str(seeds)), samples


def shown(shares: dict[str, float]) -> str:
    """Show a share, with that of rows drawn one by one in parentheses."""
    if "one by one" not in shares:
        return f"{shares['together']}"
    return f"{shares['together']} ({shares['one by one']})"


def table(results: dict) -> str:
    """Format the shares of intervals that hold the true value."""
    tables = []
    if "coverage" in results:
        statistics = list(next(iter(results["coverage"].values())))
        rows = [[where, *map(shown, found.values())] for where, found in results["coverage"].items()]
        tables.append(markdown(["", *statistics], rows))
    for where, found in results.get("studies", {}).items():
        by_spread = []
        for spread in SPREADS:
            cells = [" / ".join(str(share) for share, _ in by_seeds.values()) for by_seeds in found[spread].values()]
            by_spread.append([spread, *cells])
        tables.append(f"{where}, with {' / '.join(map(str, SEEDS))} seeds:")
        tables.append(markdown(["points", *WAYS], by_spread))
    return "\n\n".join(tables)
