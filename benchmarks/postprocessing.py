"""What whitening and flow do to the STS figures of an encoder that was never trained for similarity.

The vectors are `avg_first_last`'s, encoded once. Each transform is fitted on unlabelled sentences: "nli", a sample of
premises and hypotheses, or "target", a sample of the sentences of all STS sets below, as in table C.1 of the paper
(there one transform for each set). The flow is fitted with three seeds; the whitening has none.

    python benchmarks/postprocessing.py --shared ../shared --output benchmarks/results/postprocessing.json
"""

import argparse
import platform
import random
import statistics
import time
from pathlib import Path

import torch
from common import write_results

from simcse_hf.data.files import open_table
from simcse_hf.evaluation.geometry import uniformity
from simcse_hf.evaluation.run import evaluate_sts
from simcse_hf.evaluation.sts_data import read_sts_task
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.postprocessing import VectorTransform, fit_flow, fit_whitening

POOLER = "avg_first_last"
TASKS = ("STS12", "STS13", "STS14", "STS15", "STSBenchmark", "SICKRelatedness")
SEEDS = (42, 43, 44)
SPLITS = ("test", "dev", "train")


class Transformed:
    """`encode` that looks encoded texts up and transforms their vectors, as `SimCSE.encode` does."""

    def __init__(self, rows: dict[str, int], vectors: torch.Tensor):
        self.rows, self.vectors = rows, vectors

    def encode(self, texts: list[str]) -> torch.Tensor:
        """(n, dim) vectors."""
        return self.vectors[[self.rows[text] for text in texts]]


def nli_sentences(path: Path) -> list[str]:
    """The distinct premises and hypotheses, in their order."""
    cells = (cell for _, row in open_table(path).rows(["premise", "hypothesis"]) for cell in row)
    return list(dict.fromkeys(cells))


def figures(results: dict) -> dict[str, float]:
    """Spearman's correlations x 100 out of an evaluation, `all` where there are subsets."""
    found = {"STSBenchmark dev": results["STSBenchmark"]["splits"]["dev"]["spearman"]}
    for task in TASKS:
        result = results[task]
        part = result["aggregate"]["all"] if "aggregate" in result else result["splits"]["test"]
        found[task] = part["spearman"]
    return found | {"average": results["average"]["value"]}


def main() -> None:
    """Parses the command line, fits, evaluates, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shared", required=True, help="folder with models/wiki-mlm-4x256, data/nli, data/senteval")
    parser.add_argument("--sentences", type=int, default=20_000, help="to fit on; default: 20000")
    parser.add_argument("--output", help="JSON file to write")
    arguments = parser.parse_args()

    shared = Path(arguments.shared)
    data_dir = shared / "data/senteval/downstream"
    model = SimCSE(shared / "models/wiki-mlm-4x256", pooler_type=POOLER, device="cpu")
    sets = [pairs for task in TASKS for pairs in read_sts_task(task, data_dir, SPLITS).values()]
    target = list(dict.fromkeys(text for pairs in sets for text in pairs.sentences1 + pairs.sentences2))
    target_vectors = model.encode(target, normalize=False, show_progress=True)
    rows = {text: row for row, text in enumerate(target)}
    nli = random.Random(0).sample(nli_sentences(shared / "data/nli/nli_pairs.csv.gz"), arguments.sentences)
    sample = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[: arguments.sentences]
    texts = {"nli": model.encode(nli, normalize=False, show_progress=True), "target": target_vectors[sample]}

    # Uniformity is of the distinct sentences of STS-B dev, on the unit sphere.
    dev = read_sts_task("STSBenchmark", data_dir, ("dev",))["dev"]
    dev_rows = sorted({rows[text] for text in dev.sentences1 + dev.sentences2})

    def measured(transform: VectorTransform | None) -> dict[str, float]:
        vectors = target_vectors if transform is None else transform.transform(target_vectors)
        results = evaluate_sts(Transformed(rows, vectors), data_dir, TASKS)
        return figures(results) | {"uniformity": uniformity(vectors[dev_rows])}

    report = {
        "model": "wiki-mlm-4x256",
        "pooler": POOLER,
        "sentences": {name: len(vectors) for name, vectors in texts.items()},
        "distinct_sts_sentences": len(target),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "none": measured(None),
    }
    for name, vectors in texts.items():
        start = time.perf_counter()
        whitening = fit_whitening([vectors])
        seconds = time.perf_counter() - start
        report[f"whitening {name}"] = measured(whitening) | {"seconds": seconds}
        runs = []
        for seed in SEEDS:
            start = time.perf_counter()
            flow, history = fit_flow(vectors, seed=seed, show_progress=True)
            seconds = time.perf_counter() - start
            run = {"seed": seed, "seconds": seconds, "log_likelihood_per_dim": history}
            runs.append(measured(flow) | run)
        names = report["none"].keys()
        mean = {key: statistics.mean(run[key] for run in runs) for key in names}
        deviation = {key: statistics.stdev(run[key] for run in runs) for key in names}
        report[f"flow {name}"] = {"mean": mean, "standard_deviation": deviation, "runs": runs}

    for name, found in report.items():
        if isinstance(found, dict) and name != "sentences":
            values = found.get("mean", found)
            print(f"{name:<18}" + " ".join(f"{key} {values[key]:.2f}" for key in report["none"]))
    if arguments.output:
        write_results(Path(arguments.output), report)


if __name__ == "__main__":
    main()
