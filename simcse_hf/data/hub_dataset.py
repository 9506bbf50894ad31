"""Load a dataset of the hub."""

import re
from typing import Any

from datasets import load_dataset

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(:[\w.-]+)?")


def load_from_hub(source: str, split: str, **options: Any) -> Any:
    """Load a dataset of the hub: `name` or `name:config`. The options are those of `datasets.load_dataset`."""
    name, _, configuration = source.partition(":")
    try:
        return load_dataset(name, configuration or None, split=split, **options)
    except Exception as error:  # its type depends on what is wrong: the network, the name or the data
        raise ValueError(
            f"{source!r} is no file here, and could not be loaded from the hub as a dataset either: "
            f"{type(error).__name__}: {error}"
        ) from error
