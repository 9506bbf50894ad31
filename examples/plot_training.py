"""Plot loss, dev Spearman, alignment and uniformity over the steps of one or more runs.

    python examples/plot_training.py outputs/unsup outputs/sup --output runs.png

The figures are read from `trainer_state.json` in the output directory of each run. The script needs matplotlib
(pip install "simcse-hf[plot]").
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = {
    "loss": "training loss",
    "eval_stsb_spearman": "dev Spearman × 100",
    "eval_stsb_alignment": "alignment (lower is better)",
    "eval_stsb_uniformity": "uniformity (lower is better)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="output directories of finished runs")
    parser.add_argument("--output", type=Path, default=Path("training.png"))
    parser.add_argument("--title", default=None)
    arguments = parser.parse_args()
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.5), sharex=True, layout="constrained")
    for run in arguments.runs:
        history = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        for axis, (key, label) in zip(axes.flat, PANELS.items(), strict=True):
            points = [(entry["step"], entry[key]) for entry in history if key in entry]
            axis.plot(*zip(*points, strict=True), marker=".", linewidth=1.2, label=run.name)
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("optimizer step")
    axes[0, 0].legend(fontsize="small")
    figure.suptitle(arguments.title)
    figure.savefig(arguments.output, dpi=130)
    print(f"Plotted {len(arguments.runs)} runs into {arguments.output}.")


if __name__ == "__main__":
    main()
