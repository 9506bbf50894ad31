"""What whitening and flow do to the STS scores of an encoder that was never trained for similarity.

    python -m benchmarks postprocessing --output benchmarks/results/postprocessing.json

The embeddings use the pooler `avg_first_last` and are computed once. Each transform is fitted on unlabelled sentences:
"nli", a sample of premises and hypotheses, or "target", a sample of the sentences of all STS sets together. (Table C.1
of the SimCSE paper fits one transform for each set.) The flow is fitted with three seeds; the whitening has none.
"""

import argparse
import random
import statistics
import time
from functools import partial
from pathlib import Path

import torch

from simcse_hf import SimCSE
from simcse_hf.data.table import open_table
from simcse_hf.evaluation.metrics import cosine_similarity_pairs, spearman, uniformity
from simcse_hf.evaluation.tasks.sts import ScoredPairs
from simcse_hf.postprocessing import VectorTransform, fit_flow, fit_whitening

from .harness import Report, add_data_option, distinct_sentences, machine, markdown, model_or_default, sts_sets

POOLER = "avg_first_last"
SEEDS = (42, 43, 44)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_option(parser)
    parser.add_argument("--model", type=Path, help="encoder; default: wiki-mlm-4x256 beside the data, or MiniLM")
    parser.add_argument("--sentences", type=int, default=20_000, help="sentences to fit on")


def run(options: argparse.Namespace, report: Report) -> None:
    local = options.data and options.data.parent / "models/wiki-mlm-4x256"
    path = options.model or local or model_or_default(None)
    model = SimCSE(path, pooler_type=POOLER, device="cpu")
    sets = sts_sets(options.data)
    target = distinct_sentences(sets)
    embeddings = model.encode(target, normalize_embeddings=None, show_progress_bar=True)
    rows = {text: row for row, text in enumerate(target)}
    sample = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[: options.sentences]
    texts = {"target": embeddings[sample]}
    if options.data is not None:
        sentences = nli_sentences(options.data / "nli/nli_pairs.csv.gz")
        chosen_sentences = random.Random(0).sample(sentences, min(options.sentences, len(sentences)))
        texts = {"nli": model.encode(chosen_sentences, normalize_embeddings=None, show_progress_bar=True)} | texts
    measure = partial(figures, sets, rows, embeddings)
    report.save(
        machine=machine(),
        model=Path(path).name,
        pooler=POOLER,
        sentences={name: len(part) for name, part in texts.items()},
        distinct_sts_sentences=len(target),
        none=measure(None),
    )
    for name, part in texts.items():
        start = time.perf_counter()
        whitening = fit_whitening([part])
        seconds = time.perf_counter() - start
        report.save(**{f"whitening {name}": measure(whitening) | {"seconds": seconds}})
        runs = []
        for seed in SEEDS:
            start = time.perf_counter()
            flow, history = fit_flow(part, seed=seed, show_progress_bar=True)
            seconds = time.perf_counter() - start
            runs.append(measure(flow) | {"seed": seed, "seconds": seconds, "log_likelihood_per_dim": history})
        names = report.results["none"]
        mean = {key: statistics.mean(run[key] for run in runs) for key in names}
        deviation = {key: statistics.stdev(run[key] for run in runs) for key in names}
        report.save(**{f"flow {name}": {"mean": mean, "standard_deviation": deviation, "runs": runs}})


def figures(
    sets: dict[str, dict[str, ScoredPairs]],
    rows: dict[str, int],
    embeddings: torch.Tensor,
    transform: VectorTransform | None,
) -> dict[str, float]:
    """Compute Spearman's correlations x 100 of the transformed embeddings, and the uniformity of all sentences.

    Sets with subsets are aggregated over all pairs (`all`); STS-B and SICK-R count with their test split.
    """
    transformed = embeddings if transform is None else transform.transform(embeddings)
    results = {}
    for task, parts in sets.items():
        predicted, gold = [], []
        for name, pairs in parts.items():
            first, second = (
                transformed[[rows[text] for text in side]] for side in (pairs.sentences1, pairs.sentences2)
            )
            cosines = cosine_similarity_pairs(first, second)
            if name in ("test", "dev", "train"):
                results[f"{task} {name}"] = 100 * spearman(cosines, pairs.scores)
            predicted += list(cosines)
            gold += list(pairs.scores)
        results[task] = results.get(f"{task} test", 100 * spearman(predicted, gold))
    average = statistics.mean(results[task] for task in sets)
    return results | {"average": average, "uniformity": uniformity(transformed)}


def nli_sentences(path: Path) -> list[str]:
    """List the distinct premises and hypotheses in their order."""
    cells = (cell for _, row in open_table(path).rows(["premise", "hypothesis"]) for cell in row)
    return list(dict.fromkeys(cells))


def table(results: dict) -> str:
    names = list(results["none"])
    runs = {name: value for name, value in results.items() if name == "none" or name.startswith(("whitening", "flow"))}
    rows = [[name, *(f"{run.get('mean', run)[key]:.2f}" for key in names)] for name, run in runs.items()]
    return markdown(["", *names], rows)
