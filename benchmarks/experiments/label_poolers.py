"""Accuracy on Banking77 by pooler: a head that is kept, a head for training only, and mean pooling.

    python -m benchmarks.experiments.label_poolers --shared ../shared

It is why `class_labels` pools by the mean: Khosla et al. (2020) throw the projection head away after training, and
without a head the classifiers are better.
"""

import argparse
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import pandas
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from simcse_hf import SimCSE, train

from ..harness import markdown

POOLERS = {
    "[CLS], head kept": {"pooler_type": "cls", "mlp_only_train": False},
    "head for training only": {"pooler_type": "cls", "mlp_only_train": True},
    "mean pooling": {"pooler_type": "avg"},
}
ARGUMENTS = {"per_device_train_batch_size": 32, "learning_rate": 5e-4, "use_cpu": True, "save_strategy": "no"}


def accuracies(model: SimCSE, data: Path) -> tuple[float, float]:
    """Score a logistic regression and the nearest centroid, in percent."""
    fit = pandas.read_csv(data / "train.csv").sample(1000, random_state=0)
    test = pandas.read_csv(data / "test.csv").sample(500, random_state=0)
    known, asked = (model.encode(list(rows["text"]), convert_to_numpy=True) for rows in (fit, test))
    centre, scale = known.mean(0), known.std(0)
    regression = LogisticRegression(C=0.1, max_iter=500).fit((known - centre) / scale, fit["category"])
    regressed = regression.score((asked - centre) / scale, test["category"])
    return 100 * regressed, 100 * NearestCentroid().fit(known, fit["category"]).score(asked, test["category"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with data and models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    data, model = options.shared / "data/banking77", options.shared / "models/wiki-mlm-4x256"
    run = {"model_name_or_path": model, "train_file": data / "train.csv", "max_steps": options.steps}
    lines = []
    for name, pooling in POOLERS.items():
        found = []
        for seed in options.seeds:
            with TemporaryDirectory() as folder:
                train("sup", output_dir=folder, seed=seed, **run, **ARGUMENTS, **pooling)
                found.append(accuracies(SimCSE(folder, device="cpu"), data))
        lines.append([name, *(f"{mean(scores):.1f}" for scores in zip(*found, strict=True))])
    print(markdown(["", "logistic regression", "nearest centroid"], lines))


if __name__ == "__main__":
    main()
