"""Find and load the files of a model: no code of its author runs, no weight is made up, and damage has a name."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import torch
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME, cached_file, logging

from .errors import ModelError, no_model
from .files import StrPath, read_json

#: The files of an adapter of peft, and what a contrastive model adds to the config of the adapter's model.
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_SETTINGS = "simcse.json"
#: The file by which sentence-transformers knows the modules of a model.
MODULES = "modules.json"
#: Weights of fewer bytes are read and written in less than a second.
_QUICK = 100_000_000


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

    Raises:
        ModelError: If there can be no model of this name, or the hub refuses it.
    """
    if not name_or_path:
        return None
    try:
        return cached_file(str(name_or_path), filename, _raise_exceptions_for_missing_entries=False, **hub_kwargs)
    except OSError as error:
        raise ModelError(no_model(name_or_path, error)) from error


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
        ModelError: If the model is a folder and a library cannot read it. Other errors pass through.
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
        raise ModelError(
            f"{name_or_path}: cannot be loaded, because a file is missing or damaged ({reason}). Download or save the "
            "model again."
        ) from error


def adapter_base(source: StrPath, **kwargs: object) -> str | None:
    """Return the model that an adapter of peft belongs to.

    Args:
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        **kwargs (`object`): Arguments of `from_pretrained`. Only those that locate files are used.

    Returns:
        `str`, *optional*: The directory or hub name of the model; `None` if `source` is a whole model.
    """
    path = find_file(source, ADAPTER_CONFIG, **select_hub_arguments(kwargs))
    if path is None:
        return None
    return read_json(path, "base_model_name_or_path")["base_model_name_or_path"]


def load_base(load: Callable[..., Any], source: StrPath, base: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function that loads the model of an adapter.

    Args:
        load (`Callable`): The function.
        source (`str` or `os.PathLike`): The adapter, for the message.
        base (`str`): Its model, the first argument of the function.
        *args (`Any`): Further positional arguments.
        **kwargs (`Any`): Arguments of `from_pretrained`. Those that locate the adapter in its repository are left out.

    Returns:
        `Any`: What the function returns.

    Raises:
        ModelError: If there is no such model.
    """
    path = find_file(source, ADAPTER_CONFIG, **select_hub_arguments(kwargs))
    for name in ("revision", "subfolder"):
        kwargs.pop(name, None)
    revision = path and read_json(path).get("revision")
    if revision:  # the commit that the adapter was trained on
        kwargs["revision"] = revision
    try:
        return load(base, *args, **kwargs)
    except (OSError, ModelError) as error:
        raise ModelError(f"{source} is an adapter of peft for {base}, which could not be loaded: {error}") from error


@contextmanager
def without_bar(size: int) -> Iterator[None]:
    """Show no bar for weights that are read or written in less than a second.

    Args:
        size (`int`): The size of the weights in bytes.
    """
    hides = size < _QUICK and logging.is_progress_bar_enabled()
    if hides:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hides:
            logging.enable_progress_bar()


def load_pretrained(load: Callable[..., Any], source: StrPath, *args: Any, **kwargs: Any) -> Any:
    """Call a function `from_pretrained` of transformers. Code in the model's folder is neither run nor asked about.

    The config of an adapter of peft, and a tokenizer that its folder lacks, are those of the adapter's model.

    Args:
        load (`Callable`): The function, such as `AutoConfig.from_pretrained`.
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        *args (`Any`): Its further positional arguments.
        **kwargs (`Any`): Its keyword arguments.

    Returns:
        `Any`: What the function returns.

    Raises:
        ModelError: If custom code is asked for or needed, a file is damaged, there is no such model, or the hub cannot
            be reached.
        OSError: As `ModelError`, if it has not been explained.
        ValueError: As `load` says.
    """
    if kwargs.pop("trust_remote_code", None):
        raise ModelError(f"trust_remote_code=True: {source}: custom code is not supported")
    try:
        weights = Path(source).glob("*.safetensors")
        size = sum(path.stat().st_size for path in weights)
        with explain_damage(source), without_bar(size or _QUICK):
            loaded = load(source, *args, trust_remote_code=False, **kwargs)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):  # transformers advises to pass it
            raise ModelError(f"{source} needs custom code from its author, which is not supported.") from error
        base = adapter_base(source, **kwargs)
        if base is None:
            hub = select_hub_arguments(kwargs)
            has_config = find_file(source, CONFIG_NAME, **hub) is not None
            modules = find_file(source, MODULES, **hub)
            if modules and not has_config:
                kinds = [row["type"].rpartition(".")[2] for row in read_json(modules, kind=list)]
                problem = f"a sentence-transformers model of {' + '.join(kinds)}, with no encoder beside {MODULES}"
                raise ModelError(f"{source} is {problem}: load it with sentence_transformers") from error
            if not has_config and Path(source).is_dir():
                problem = f"this folder holds no model ({CONFIG_NAME} is missing): name the folder of one"
                raise ModelError(f"{source}: {problem}") from error
            if isinstance(error, OSError):
                raise ModelError(no_model(source, error)) from error
            raise
        loaded = load_base(partial(load_pretrained, load), source, base, *args, **kwargs)
        path = find_file(source, ADAPTER_SETTINGS, **select_hub_arguments(kwargs))
        if path and isinstance(loaded, PreTrainedConfig):
            settings = read_json(path)
            settings.pop("base", None)
            loaded.update(settings)
    if isinstance(loaded, PreTrainedTokenizerBase):
        # Decoders are trained without padding. Masks are made from lengths, so the end of a text is not padding.
        if loaded.pad_token is None and loaded.eos_token is not None:
            loaded.pad_token = loaded.eos_token
    return loaded


def load_weights(load: Callable[..., Any], source: StrPath, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Load a model, and refuse it if weights of its encoder are not in the checkpoint, or the other way round.

    transformers draws missing weights at random and leaves out those without a place, with a table in the log. Here
    only the pooler and what stands beside the encoder may be missing or left out: heads, of which the caller decides.

    Args:
        load (`Callable`): A function `from_pretrained` of a model class.
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        *args (`Any`): Its further positional arguments.
        **kwargs (`Any`): Its keyword arguments. One that changes the number of layers may leave layers out.

    Returns:
        `tuple[PreTrainedModel, dict]`: The model and transformers' loading info.

    Raises:
        ModelError: If the source is an adapter of peft, if weights are missing, have no place or are not finite, or as
            [`load_pretrained`].
    """
    if adapter_base(source, **kwargs) is not None:
        raise ModelError(
            f"{source} is an adapter of peft, not a whole model. Merge it first: load it with "
            "AutoModelForCL.from_pretrained, and save the result together with its tokenizer."
        )
    model, info = load_pretrained(load, source, *args, output_loading_info=True, **kwargs)
    prefix = f"{model.base_model_prefix}."
    encoder = {name for name, _ in model.base_model.named_children()} - {"pooler"}
    problems = {"lacks the weights": [name for name in info["missing_keys"] if name.startswith(prefix)]}
    sets_layers = {"num_hidden_layers", "n_layers"} & kwargs.keys()
    may_be_cut = sets_layers or kwargs.get("config") is not None
    if not may_be_cut:
        problems["holds weights that its config.json has no place for:"] = info["unexpected_keys"]
    for problem, names in problems.items():
        wrong = []
        for name in sorted(names):
            module = name.removeprefix(prefix).split(".")[0]
            if module in encoder and "position_ids" not in name:
                wrong.append(name)
        if wrong:
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            raise ModelError(f"{source} {problem} {', '.join(wrong[:3])}{more}. Download or save the model again.")
    check_finite_weights(model.base_model, source)  # a layer beside the encoder may have no values yet
    return model, info


def check_finite_weights(model: PreTrainedModel, source: StrPath) -> None:
    """Refuse a model that has NaN or infinity among its weights.

    Args:
        model (`PreTrainedModel`): The model.
        source (`str` or `os.PathLike`): Where it was loaded from, for the message.

    Raises:
        ModelError: If it has. The message names the weight.
    """
    for name, x in model.named_parameters():
        has_values = x.is_floating_point() and not x.is_meta
        if has_values and not torch.isfinite(x).all():
            raise ModelError(
                f"{source}: its weight {name} holds NaN or infinity: its training diverged, or the file is damaged. "
                "Train, download or save the model again."
            )
