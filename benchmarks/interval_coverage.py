"""How often the 95% intervals of this package hold the true value, on simulated scores whose true value is known.

Four statistics are simulated for single rows and for rows in groups of the sizes of STS-B's, within which gold scores
and errors are correlated; the differences are those of a trained model to its start. Such a difference is also taken
over several seeds, whose true scores differ with a standard deviation of 0, 1 or 2 points. The intervals are those of
`simcse-hf compare`, of the cards and of `adapt`.
"""

import argparse
from collections import Counter
from typing import Any

import numpy as np
from scipy.special import ndtri
from tqdm import trange

from simcse_hf.evaluation.bootstrap import interval, mean_over_drawn_seeds, resampled_scores

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
#: trained model and its start and of two seeds.
WITHIN = 0.8
OF_TRAINED, OF_UNTRAINED = 0.85, 0.80
OF_START, OF_SEEDS = 0.7, 0.9
ACCURACY, POSITIVES = 0.8, 0.3
SEEDS = (2, 3, 5)
SPREADS = (0, 1, 2)
DRAWS = 5

AP = "difference of average precision"
Systems = list[dict[str, np.ndarray]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repetitions", type=int, default=1000, help="default: 1000")
    parser.add_argument("--resamples", type=int, default=400, help="default: 400")


def normals(groups: np.ndarray, random: np.random.Generator, size: tuple[int, ...] = ()) -> np.ndarray:
    """Draw standard normal variables that two rows of one group share by `WITHIN`."""
    own, shared = random.normal(size=(2, *size, len(groups)))
    return np.sqrt(1 - WITHIN) * own + np.sqrt(WITHIN) * shared[..., groups]


def predictions(groups: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the gold scores, and the errors and predictions of the start (first) and of every seed."""
    gold, common, of_seeds = normals(groups, random, (3,))
    own = normals(groups, random, (1 + max(SEEDS),))
    start = np.sqrt(1 - OF_START) * own[:1]
    trained = np.sqrt(OF_SEEDS - OF_START) * of_seeds + np.sqrt(1 - OF_SEEDS) * own[1:]
    errors = np.sqrt(OF_START) * common + np.concatenate([start, trained])
    correlations = [OF_UNTRAINED] + max(SEEDS) * [OF_TRAINED]
    r = np.array(correlations)[:, None]
    return gold, errors, r * gold + np.sqrt(1 - r**2) * errors


def statistics_of(groups: np.ndarray, random: np.random.Generator) -> dict[str, Systems]:
    """Draw the rows of each statistic; a difference is that of the first system to the second."""
    gold, errors, predicted = predictions(groups, random)
    start, trained = predicted[0], predicted[1]
    pairs = [{"predicted": each, "gold": gold, "group": groups} for each in (trained, start)]
    is_positive = gold > ndtri(1 - POSITIVES)
    is_correct = errors[1] < ndtri(ACCURACY)
    return {
        "Spearman": pairs[:1],
        "difference of Spearman": pairs,
        "accuracy": [{"correct": is_correct, "gold": gold, "group": groups}],
        AP: [{"similarity": each, "gold": is_positive, "group": groups} for each in (trained, start)],
    }


def resampled(systems: Systems, resamples: int, random: np.random.Generator) -> np.ndarray:
    return resampled_scores([{"rows": named} for named in systems], resamples=resamples, random=random)


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
    report.save(seeds=seeds(options, truths["difference of Spearman"], random))


def seeds(options: argparse.Namespace, truth: float, random: np.random.Generator) -> dict[str, Any]:
    """Return the shares for differences of several seeds to their start, by their number and spread."""
    hits: Counter[tuple[int, int]] = Counter()
    groups = np.arange(1500)
    spread_of_rows = []
    for _ in trange(options.repetitions, desc="seeds"):
        gold, _, predicted = predictions(groups, random)
        systems = [{"predicted": each, "gold": gold, "group": groups} for each in predicted]
        start, *trained = resampled(systems, options.resamples, random)
        of_difference = np.std(trained[0] - start)
        of_seed = np.std(trained[0] - trained[1]) / np.sqrt(2)
        spread_of_rows.append([of_difference, of_seed])
        for effects in random.normal(size=(DRAWS, max(SEEDS), 1)):
            for n in SEEDS:
                for spread in SPREADS:
                    scores = np.stack(trained[:n]) + spread * effects[:n]
                    low, high = interval(mean_over_drawn_seeds(scores, random, LEVEL) - start, LEVEL)
                    hits[n, spread] += low <= truth <= high
    total = options.repetitions * DRAWS
    coverage = {}
    for n in SEEDS:
        coverage[str(n)] = {str(spread): round(100 * hits[n, spread] / total, 1) for spread in SPREADS}
    difference, seed = np.mean(spread_of_rows, axis=0).round(2)
    return {"points_by_rows": {"difference": difference, "seed": seed}, "coverage": coverage}


def shown(shares: dict[str, float]) -> str:
    """Show a share, with that of rows drawn one by one in parentheses."""
    if "one by one" not in shares:
        return f"{shares['together']}"
    return f"{shares['together']} ({shares['one by one']})"


def table(results: dict) -> str:
    """Format the shares of intervals that hold the true value."""
    statistics = list(next(iter(results["coverage"].values())))
    rows = [[where, *map(shown, found.values())] for where, found in results["coverage"].items()]
    of_seeds = results["seeds"]["coverage"]
    by_spread = [[n, *found.values()] for n, found in of_seeds.items()]
    spreads = [f"{spread} points" for spread in SPREADS]
    return markdown(["", *statistics], rows) + "\n\n" + markdown(["seeds", *spreads], by_spread)
