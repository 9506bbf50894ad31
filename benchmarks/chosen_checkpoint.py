"""How often the interval of a change lies above the true change when the dev set also chose the checkpoint.

The checkpoints of a run are one real encoder whose dimensions are multiplied by random factors, so that their true
scores, on all pairs of STS-B, are known. A run evaluates some of them on a dev set that is drawn from these pairs,
takes the best one, and reports its change from the plain encoder as training does. The interval that does not allow
for the choice stands beside it.
"""

import argparse
from pathlib import Path

import numpy as np
from tqdm import trange

from simcse_hf import SimCSE
from simcse_hf.evaluation.bootstrap import interval, optimism_of_choice, resampled_scores
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman
from simcse_hf.evaluation.tasks.sts import ScoredPairs, read_scored_pairs

from .harness import Report, add_data_option, add_model_option, dev_pairs, markdown, model_or_default

EVALUATIONS = (5, 20)
PAIRS = (300, 1000)
LEVEL = 0.95
#: Checkpoints among which each run draws its own, and the standard deviation of the logarithms of their factors.
CHECKPOINTS, SPREAD = 200, 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_option(parser)
    add_data_option(parser)
    parser.add_argument("--runs", type=int, default=400, help="default: 400")
    parser.add_argument("--resamples", type=int, default=400, help="default: 400")


def all_pairs(data: Path | None) -> ScoredPairs:
    """Read all pairs of STS-B, or those of the generated dev set."""
    if data is None:
        return dev_pairs(None)
    everything = ScoredPairs("STS-B", [], [], [])
    for split in ("train", "dev", "test"):
        pairs = read_scored_pairs(data / f"senteval/downstream/STS/STSBenchmark/sts-{split}.csv")
        everything.sentences1 += pairs.sentences1
        everything.sentences2 += pairs.sentences2
        everything.scores += pairs.scores
    return everything


def run(options: argparse.Namespace, report: Report) -> None:
    random = np.random.default_rng(0)
    pairs = all_pairs(options.data)
    model = SimCSE(model_or_default(options.model), pooler_type="avg", device="cpu")
    first, second = (model.encode(side, convert_to_numpy=True) for side in (pairs.sentences1, pairs.sentences2))
    gold = np.array(pairs.scores)
    factors = np.exp(SPREAD * random.normal(size=(1 + CHECKPOINTS, first.shape[1]))).astype(first.dtype)
    factors[0] = 1
    predicted = np.stack([cosine_similarity_pairs(first * factor, second * factor) for factor in factors])
    truths = np.array([100 * spearman(each, gold) for each in predicted])
    report.save(
        model=Path(model.name_or_path).parent.name,
        pairs=len(gold),
        start=round(truths[0], 2),
        checkpoints={"mean": round(truths[1:].mean(), 2), "standard_deviation": round(truths[1:].std(), 2)},
        runs=options.runs,
        resamples=options.resamples,
    )
    cells = []
    for n in PAIRS:
        for evaluations in EVALUATIONS:
            cells.append(
                {"pairs": n, "evaluations": evaluations}
                | simulate(predicted, truths, gold, n, evaluations, options, random)
            )
            report.save(cells=cells)


def simulate(
    predicted: np.ndarray,
    truths: np.ndarray,
    gold: np.ndarray,
    n: int,
    evaluations: int,
    options: argparse.Namespace,
    random: np.random.Generator,
) -> dict[str, float]:
    """Simulate runs; return the shares of true changes outside the intervals, and what the choice adds."""
    outside = np.zeros((2, 2))
    widths, true, estimated = [], [], []
    for _ in trange(options.runs, desc=f"{n} pairs, {evaluations} evaluations"):
        rows = random.choice(len(gold), n, replace=False)
        drawn = [0, *random.choice(np.arange(1, len(predicted)), evaluations, replace=False)]
        systems = [
            {"dev": {"predicted": predicted[number, rows], "gold": gold[rows], "group": np.arange(n)}}
            for number in drawn
        ]
        scores = [100 * spearman(parts["dev"]["predicted"], gold[rows]) for parts in systems]
        chosen = int(np.argmax(scores[1:]))
        change = truths[drawn[1 + chosen]] - truths[0]
        start, best = resampled_scores([systems[0], systems[1 + chosen]], resamples=options.resamples)
        candidate = systems.pop(1 + chosen)
        optimism = optimism_of_choice(systems[0], candidate, systems[1:])
        for kind, moved in enumerate((0, optimism)):
            low, high = interval(best - start - moved, LEVEL)
            outside[kind] += change < low, change > high
        widths.append(high - low)
        true.append(scores[1 + chosen] - scores[0] - change)
        estimated.append(optimism)
    shares = (100 * outside / options.runs).round(2)
    return {
        "below": shares[1, 0],
        "above": shares[1, 1],
        "below_without": shares[0, 0],
        "above_without": shares[0, 1],
        "width": round(float(np.mean(widths)), 3),
        "optimism": round(float(np.mean(true)), 3),
        "estimated_optimism": round(float(np.mean(estimated)), 3),
    }


def table(results: dict) -> str:
    """Format the percentages of true changes below and above the interval, with and without the allowance."""
    header = [
        "pairs",
        "evaluations",
        "below",
        "above",
        "below without",
        "above without",
        "optimism",
        "estimated",
        "width",
    ]
    keys = ["pairs", "evaluations", "below", "above", "below_without", "above_without", "optimism"]
    keys += ["estimated_optimism", "width"]
    return markdown(header, [[cell[key] for key in keys] for cell in results["cells"]])
