"""Find files in model directories and on the hub."""

import os
from collections.abc import Mapping
from typing import Any

from transformers.utils import cached_file

#: The arguments of `from_pretrained` that say where on the hub, or where in a directory, a file is.
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")


def select_hub_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments of `from_pretrained` that [`find_file`] takes.

    Args:
        kwargs (`Mapping[str, Any]`): Any keyword arguments of `from_pretrained`.

    Returns:
        `dict[str, Any]`: Those named in `HUB_ARGUMENTS`.
    """
    return {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}


def find_file(name_or_path: str | os.PathLike, filename: str, **hub_kwargs: Any) -> str | None:
    """Find an optional file of a model, and download it if the model is on the hub.

    Args:
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        filename (`str`): The file, relative to the model, such as `"modules.json"` or `"1_Pooling/config.json"`.
        hub_kwargs (`Any`): `revision`, `token`, `cache_dir`, `force_download`, `local_files_only` and `subfolder`, as
            in `from_pretrained`. `filename` is relative to `subfolder`.

    Returns:
        `str`, *optional*: The local path of the file, or `None` if the model does not have it.
    """
    if not str(name_or_path):
        return None
    folder, _, name = filename.rpartition("/")
    subfolder = "/".join(part for part in (hub_kwargs.pop("subfolder", None), folder) if part)
    return cached_file(
        str(name_or_path), name, subfolder=subfolder, _raise_exceptions_for_missing_entries=False, **hub_kwargs
    )
