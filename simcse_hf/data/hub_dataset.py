"""Load a dataset of the hub by its name."""

import re
from typing import Any

from datasets import get_dataset_config_names, load_dataset

_WORD = r":[\w.+-]+(?:\[[^\]]*\])?"
_NAME = re.compile(rf"\w[\w.-]*(?:/\w[\w.-]*)?(?:{_WORD}){{0,2}}")
_COLON = re.compile(r":(?![^\[]*\])")  # the colon of `train[:10%]` belongs to the split


def is_hub_name(source: str) -> bool:
    """Say whether a text may be the name of a dataset of the hub, see [`load_from_hub`]."""
    return _NAME.fullmatch(source) is not None


def load_from_hub(source: str, split: str, **options: Any) -> Any:
    """Load a split of a dataset of the hub.

    Args:
        source (`str`): `name`, `name:split` or `name:config:split`. `name:word` is a configuration if the dataset has
            one of this name.
        split (`str`): The split, if `source` does not say it.
        options (`Any`): Further arguments of `datasets.load_dataset`.

    Returns:
        `datasets.Dataset` or `datasets.IterableDataset`: The rows.

    Raises:
        ValueError: If the dataset cannot be loaded.
    """
    name, *words = _COLON.split(source)
    try:
        configuration = words.pop(0) if len(words) == 2 else None
        if words and configuration is None and words[0] in get_dataset_config_names(name):
            configuration = words.pop()
        if words:
            split = words[0]
        return load_dataset(name, configuration, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error
