"""Find the files of a model in a folder or on the hub, and name the one that is damaged."""

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict, Unpack, cast

import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash

from .files import StrPath


class HubArguments(TypedDict, total=False):
    """The arguments of `from_pretrained` that say where on the hub, or where in a directory, a file is."""

    cache_dir: StrPath | None
    force_download: bool
    local_files_only: bool
    token: str | bool | None
    revision: str | None
    subfolder: str


def select_hub_arguments(kwargs: Mapping[str, object]) -> HubArguments:
    """Select the arguments of [`find_file`] among those of a function `from_pretrained`."""
    selected = {name: kwargs[name] for name in HubArguments.__annotations__ if name in kwargs}
    return cast(HubArguments, selected)


def find_file(name_or_path: StrPath | None, filename: str, **hub_kwargs: Unpack[HubArguments]) -> str | None:
    """Find an optional file of a model, and download it if the model is on the hub.

    Args:
        name_or_path (`str | os.PathLike`): A local directory or the name of a model on the hub.
        filename (`str`): The file, relative to the model, such as `"modules.json"` or `"1_Pooling/config.json"`.
        hub_kwargs (`HubArguments`): As in `from_pretrained`. `filename` is relative to `subfolder`.

    Returns:
        `str`, *optional*: The local path of the file, or `None` if the model does not have it.
    """
    if not name_or_path:
        return None
    return cached_file(str(name_or_path), filename, _raise_exceptions_for_missing_entries=False, **hub_kwargs)


def hub_commit(name_or_path: StrPath, **hub_kwargs: Unpack[HubArguments]) -> str | None:
    """Return the commit of a model on the hub, whose files are loaded already.

    Args:
        name_or_path (`str | os.PathLike`): A local directory or the name of a model on the hub.
        hub_kwargs (`HubArguments`): As in [`find_file`].

    Returns:
        `str`, *optional*: The commit, or `None` if the model is not from the hub.
    """
    hub_kwargs["force_download"] = False
    path = find_file(name_or_path, "config.json", **hub_kwargs)
    path = path or find_file(name_or_path, "adapter_config.json", **hub_kwargs)
    return extract_commit_hash(path, None)


def full_name(name_or_path: str | None) -> str | None:
    """Return the absolute path of a model's folder, which holds in every working directory, or another name as is."""
    if name_or_path and os.path.exists(name_or_path):
        return os.path.realpath(name_or_path)
    return name_or_path or None


@contextmanager
def explain_damage(name_or_path: StrPath) -> Iterator[None]:
    """Name the folder of a model in an error that another library raises while it reads a damaged file of it.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the model.

    Raises:
        ValueError: If the model is a folder and a library cannot read it. Other errors pass through.
    """
    try:
        yield
    except Exception as error:  # its type depends on the library, and on what is wrong
        raiser = traceback.extract_tb(error.__traceback__)[-1].filename  # compiled code has no frame of its own
        is_ours = raiser.startswith(str(Path(__file__).parents[1]))
        if is_ours and isinstance(error, (ValueError, TypeError, OSError)):
            raise
        if isinstance(error, (MemoryError, ImportError, torch.OutOfMemoryError)):
            raise
        # transformers raises an OSError where the hub gives no file, here of a model that the folder names.
        from_hub = isinstance(error.__cause__, (HfHubHTTPError, LocalEntryNotFoundError))
        if from_hub or not Path(name_or_path).is_dir():
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{name_or_path}: cannot be loaded, because a file is missing or damaged ({reason}). Download or save the "
            "model again."
        ) from error
