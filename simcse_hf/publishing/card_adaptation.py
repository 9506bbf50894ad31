"""What the card of a model says that `simcse-hf adapt` has adapted: how it was trained and what it gained."""

from pathlib import Path
from typing import Any

from ..ops.files import read_json_object
from .card_results import Table, without_outdated

ADAPTATION = "adaptation.json"


def read_adaptation(directory: Path) -> dict[str, Any]:
    """Read the record of the adaptation in a model's directory.

    Args:
        directory (`Path`): The directory of the model.

    Returns:
        `dict[str, Any]`: The record; empty if there is none or it is older than the weights.

    Raises:
        ValueError: If the file is not valid JSON.
    """
    paths = [path for path in [directory / ADAPTATION] if path.is_file()]
    for path in without_outdated(paths, directory):
        return read_json_object(path, advice="Remove it, or adapt the model again.")
    return {}


def adaptation_seeds(adaptation: dict[str, Any]) -> dict[str, Any]:
    """Return the seeds of an adaptation under the names that `results.json` has for those of a training run."""
    if not adaptation or not adaptation["chosen"]["stages"]:
        return {}
    seeds, published = adaptation["seeds"], adaptation["chosen"]["seed"]
    runs = [{"seed": seed} for seed in seeds]
    return {"seeds": {"runs": runs, "published": published, "chosen_by": "dev"}} if len(seeds) > 1 else runs[0]


def adaptation_tables(adaptation: dict[str, Any]) -> list[Table]:
    """Build the table of the held-out figures.

    Args:
        adaptation (`dict[str, Any]`): What [`read_adaptation`] returned.

    Returns:
        `list[Table]`: One table, or none without a record.
    """
    if not adaptation:
        return []
    seeds = len(adaptation["seeds"])
    protocol = (
        f"Before and after the adaptation, on a part of each task that the search did not see "
        f"({f'after: the mean of {seeds} seeds; ' if seeds > 1 else ''}brackets: "
        f"{adaptation['confidence']:.0%} interval of a paired bootstrap). The model was chosen by the first task."
    )
    if adaptation["weak_evidence"]:
        protocol += (
            " **Weak evidence:** the tasks were drawn from the training corpus itself and say little about other uses."
        )
    rows = []
    for task in adaptation["tasks"]:
        name = f"{task['task']}: {task['description']}" if task["description"] else task["task"]
        low, high = task["interval"]
        difference = f"{task['difference']:+.2f} [{low:+.2f}, {high:+.2f}]"
        rows.append([name, task["metric"], f"{task['before']:.2f}", f"{task['after']:.2f}", difference])
    return [Table("Adaptation", protocol, ["task", "metric", "before", "after", "difference"], rows)]


def adaptation_text(adaptation: dict[str, Any]) -> str:
    """Say how the model was made, for the section on training.

    Args:
        adaptation (`dict[str, Any]`): What [`read_adaptation`] returned.

    Returns:
        `str`: A paragraph; empty without a record.
    """
    if not adaptation:
        return ""
    chosen, corpus = adaptation["chosen"], adaptation["corpus"]
    tried = len({trial["name"] for trial in adaptation["plan"]}) - 1  # without the start model
    text = (
        f"`simcse-hf adapt` adapted `{adaptation['model']}` to {corpus['texts']:,} unlabelled texts of "
        f"`{corpus['path']}`, in a search over {tried} candidates with a budget of "
        f"{adaptation['budget_seconds'] / 60:g} minutes. "
    )
    if not chosen["stages"]:
        return (
            text + f"The encoder was not trained: what changed is the pooler or post-processing ({chosen['variant']})."
        )
    stages = [
        f"{steps} steps of `{stage['method']}` at learning rate {stage['learning_rate']:g}"
        for stage, steps in zip(chosen["stages"], chosen["steps"], strict=True)
    ]
    text += f"The chosen training is {', then '.join(stages)}"
    if len(adaptation["seeds"]) > 1:
        text += f"; of {len(adaptation['seeds'])} seeds, this model is seed {chosen['seed']}, the best one on dev"
    return text + "."
