"""Describe an adaptation (`simcse-hf adapt`) in the card of its model."""

from pathlib import Path

from ..ops.files import read_json_object
from .card_sources import without_outdated
from .card_tables import Table

ADAPTATION = "adaptation.json"


def read_adaptation(directory: Path) -> dict:
    """Read the record of the adaptation in a model's directory.

    Args:
        directory (`Path`): The directory of the model.

    Returns:
        `dict`: The record; empty if there is none or it is older than the weights.

    Raises:
        ValueError: If the file is not valid JSON.
    """
    for path in without_outdated([directory / ADAPTATION], directory):
        return read_json_object(path, advice="Remove it, or adapt the model again.")
    return {}


def adaptation_table(adaptation: dict) -> Table:
    """Build the table of the held-out scores.

    Args:
        adaptation (`dict`): A record that [`read_adaptation`] returned.

    Returns:
        `Table`: The table.
    """
    protocol = (
        f"`{adaptation['chosen']['name']}` against other arms, on a part of each task that did not choose it (means "
        f"of {len(adaptation['seeds']) or 1} run(s); brackets: {adaptation['confidence']:.0%} interval of both)."
    )
    rows = []
    for each in adaptation["comparisons"]:
        before = f"{each['before']:.2f}"
        after = f"{each['after']:.2f}"
        difference = "{difference:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]".format(**each)
        rows.append([each["task"], each["metric"], each["against"], before, after, difference])
    return Table("Adaptation", protocol, ["task", "metric", "against", "its score", "this arm", "difference"], rows)


def adaptation_text(adaptation: dict) -> str:
    """Say how the model was made, for the section on training.

    Args:
        adaptation (`dict`): What [`read_adaptation`] returned.

    Returns:
        `str`: A paragraph; empty without a record.
    """
    if not adaptation:
        return ""
    chosen = adaptation["chosen"]
    corpus = adaptation["corpus"]
    text = (
        f"`simcse-hf adapt` compared {len(adaptation['arms'])} arms for the domain of `{corpus['path']}` "
        f"({corpus['texts']:,} texts), starting from `{chosen['model']}`, and chose `{chosen['name']}`."
    )
    if not chosen["stages"]:
        return f"{text} The encoder was not trained: what changed is the pooler or post-processing."
    stage = "{steps} steps of `{objective}` on `{file}` at learning rate {learning_rate:g}"
    stages = ", then ".join(stage.format(**each) for each in chosen["stages"])
    return (
        f"{text} Its training is {stages}; this model is the first of the {len(adaptation['seeds'])} run(s) of the "
        f"verdict, seed {chosen['seed']}."
    )
