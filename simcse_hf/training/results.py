"""Write `results.json` after a run: its dev metrics, its settings and the versions it ran with."""

import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerate
import datasets
import torch
import transformers

from .._version import __version__
from ..evaluation.compare import describe_difference
from ..ops.files import write_atomically
from ..publishing.secrets import hide_secrets
from .callbacks import dev_change
from .output_dir import RESULTS
from .record import describe_run

if TYPE_CHECKING:
    from .trainer import SimCSETrainer


def write_results(trainer: "SimCSETrainer", train_texts: str | None = None) -> dict[str, Any]:
    """Write `results.json` into `output_dir` after training, and print a summary.

    Args:
        trainer (`SimCSETrainer`): After `train()`.
        train_texts (`str`, *optional*): Name of the training texts, for the record.

    Returns:
        `dict[str, Any]`: The contents of `results.json`: the `initial`, `best` and `final` dev metrics, and `saved`,
        those of the saved weights, each with its step; the main metric of the first three under its own name
        (`stsb_spearman`, on a scale of 0 to 100; the metric that selects the best model, if it is one of a dev set,
        and otherwise the headline of the first), its name as `dev_metric`, what training changed in it as `change`
        (see [`dev_change`]; in the first process), and how the run was made. Without a dev set, they are `None`.
    """
    args = trainer.args
    summary = next((x for x in reversed(trainer.state.log_history) if "train_runtime" in x), {})
    results = {
        **_dev_results(trainer),
        "model": str(Path(str(args.output_dir)).resolve()),
        **describe_run(trainer),
        "train_seconds": summary.get("train_runtime"),
        "train_texts": train_texts,
        "command": hide_secrets(sys.argv),
        "settings": trainer.model.settings.to_dict(),
        "versions": {
            "simcse_hf": __version__,
            "python": platform.python_version(),
            **{module.__name__: module.__version__ for module in (torch, transformers, datasets, accelerate)},
        },
    }
    if trainer.is_world_process_zero():
        path = Path(str(args.output_dir), RESULTS)
        results["change"] = dev_change([(path.parent, results)])
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        _print_summary(results, bool(args.load_best_model_at_end), path)
    return results


def _dev_results(trainer: "SimCSETrainer") -> dict[str, Any]:
    if not trainer.dev_sets:
        return {"dev_set": None, "dev_metric": None, **dict.fromkeys(("initial", "best", "final", "saved"))}
    sources = {name: source for callback in trainer.dev_sets for name, source in callback.sources.items()}
    name = trainer.dev_sets[0].headline
    selecting = (trainer.args.metric_for_best_model or "").removeprefix("eval_")
    if trainer.args.greater_is_better and any(selecting.startswith(f"{dev_set}_") for dev_set in sources):
        name = selecting
    # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
    dev_set = max((dev_set for dev_set in sources if name.startswith(f"{dev_set}_")), key=len)
    evaluations = [
        {"step": entry["step"], **{k.removeprefix("eval_"): v for k, v in entry.items() if k.startswith("eval_")}}
        for entry in trainer.state.log_history
        if f"eval_{name}" in entry
    ]
    initial, later = evaluations[0], evaluations[1:] or evaluations
    metrics = {"initial": initial, "best": max(later, key=lambda entry: entry[name]), "final": later[-1]}
    return {
        "dev_set": sources[dev_set],
        "dev_metric": name,
        name: {when: entry[name] for when, entry in metrics.items()},
        **metrics,
        "saved": _saved_evaluation(trainer, later),
    }


def _saved_evaluation(trainer: "SimCSETrainer", evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the evaluation of the weights that are saved at the end: the last one, or that of the best checkpoint."""
    step = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
    return next((entry for entry in evaluations if entry["step"] == step), evaluations[-1])


def _print_summary(results: dict[str, Any], best_is_saved: bool, path: Path) -> None:
    name = results["dev_metric"]
    if name is not None:
        print(f"\nDev set {results['dev_set']}, {'Spearman' if name.endswith('_spearman') else name} x 100")
        print(f"  before training   {results[name]['initial']:6.2f}")
        print(f"  best              {results[name]['best']:6.2f}   (step {results['best']['step']})")
        print(f"  last step         {results[name]['final']:6.2f}   (step {results['final']['step']})")
        if change := results["change"]:
            described = describe_difference(change["difference"], change["low"], change["high"], change["confidence"])
            print(f"  change           {described}")
    print(f"The {'best' if best_is_saved else 'last'} model is saved in {path.parent}; its metrics are in {path}.")
