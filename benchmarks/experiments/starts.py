"""The first two rows of README's table "Measured": SimCSE from a masked-LM encoder that was once trained on pairs.

    python -m benchmarks.experiments.starts --shared ../shared

The start is `minilm-remasked-6x384`, with the paper's settings and fewer steps. Scores are Spearman x 100, the average
of six STS test sets. The curves and the controls in docs/results are those of the longer program that it follows.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

from simcse_hf import SimCSE, evaluate, train

from ..harness import STS_TASKS, markdown

#: Method of training, file of texts, and steps.
RUNS = {
    "unsupervised SimCSE": ("unsup", "data/wiki/wiki_sentences.txt.gz", 500),
    "supervised SimCSE": ("sup", "data/nli/nli_triplets.csv.gz", 60),
}


ARGUMENTS = {
    "per_device_train_batch_size": 64,
    "bf16": True,
    "use_cpu": True,
    "save_strategy": "no",
    "report_to": "none",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data and models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, help="in place of 500 and 60")
    options = parser.parse_args()
    start = options.shared / "models/minilm-remasked-6x384"

    def average(model: SimCSE) -> float:
        """Return the average of the STS test sets."""
        data = options.shared / "data/senteval/downstream"
        scores = evaluate(model, data_dir=data, tasks=STS_TASKS, show_progress_bar=False)
        return scores.results["average"]["value"]

    before = average(SimCSE(start, pooler_type="cls_before_pooler", device="cpu"))
    lines = []
    for name, (method, texts, steps) in RUNS.items():
        run = {"model_name_or_path": start, "train_file": options.shared / texts, "max_steps": options.steps or steps}
        scores = []
        for seed in options.seeds:
            with TemporaryDirectory() as folder:
                train(method, output_dir=folder, seed=seed, **run, **ARGUMENTS)
                scores.append(average(SimCSE(folder, device="cpu")))
        spread = f" ± {stdev(scores):.1f}" if len(scores) > 1 else ""
        lines.append([name, f"{before:.1f}", f"{mean(scores):.1f}{spread}", len(scores)])
    print(markdown(["run", "before", "after", "seeds"], lines))


if __name__ == "__main__":
    main()
