"""Load configurations, tokenizers and encoders: no code of a model's author runs, and no weight is made up."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from transformers import PreTrainedModel

from .errors import refuse
from .files import explain_damage, find_file, select_hub_arguments


def load_pretrained(load: Callable[..., Any], source: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
    """Call a function `from_pretrained` of transformers. Code in the model's folder is neither run nor asked about.

    Args:
        load (`Callable`): The function, such as `AutoConfig.from_pretrained`.
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        *args (`Any`): Its further positional arguments.
        **kwargs (`Any`): Its keyword arguments.

    Returns:
        `Any`: What the function returns.

    Raises:
        ValueError: If custom code is asked for or needed, the folder holds only an adapter of peft, or a file of it is
            damaged.
        OSError: If there is no such model, or the hub cannot be reached.
    """
    refuse({f"trust_remote_code=True: {source}: custom code is not supported": kwargs.pop("trust_remote_code", None)})
    try:
        with explain_damage(source):
            return load(source, *args, trust_remote_code=False, **kwargs)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):  # transformers advises to pass it
            raise ValueError(f"{source} needs custom code from its author, which is not supported.") from error
        if find_file(source, "adapter_config.json", **select_hub_arguments(kwargs)) is None:
            raise
        raise ValueError(
            f"{source} is an adapter of peft, not a whole model. Merge it first: load it with peft, call "
            "merge_and_unload(), and save the result together with its tokenizer."
        ) from error


def load_weights(
    load: Callable[..., Any], source: str | os.PathLike, *args: Any, **kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Load a model, and refuse it if weights of its encoder are not in the checkpoint, or the other way round.

    transformers draws missing weights at random and leaves out those without a place, with a table in the log. Here
    only the pooler and what stands beside the encoder may be missing or left out: heads, of which the caller decides.

    Args:
        load (`Callable`): A function `from_pretrained` of a model class.
        source (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        *args (`Any`): Its further positional arguments.
        **kwargs (`Any`): Its keyword arguments. One that changes the number of layers may leave layers out.

    Returns:
        `tuple[PreTrainedModel, dict[str, Any]]`: The model and transformers' loading info.

    Raises:
        ValueError: If weights are missing, have no place or are not finite, or as [`load_pretrained`].
    """
    model, info = load_pretrained(load, source, *args, output_loading_info=True, **kwargs)
    prefix = f"{model.base_model_prefix}."
    encoder = {name for name, _ in model.base_model.named_children()} - {"pooler"}

    def of_encoder(names: Iterable[str]) -> list[str]:
        return sorted(x for x in names if x.removeprefix(prefix).split(".")[0] in encoder and "position_ids" not in x)

    is_cut = kwargs.get("config") is not None or {"num_hidden_layers", "n_layers"} & kwargs.keys()
    wrong = {
        "lacks the weights": of_encoder(x for x in info["missing_keys"] if x.startswith(prefix)),
        "holds weights that its config.json has no place for:": [] if is_cut else of_encoder(info["unexpected_keys"]),
    }
    for problem, names in wrong.items():
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        refuse({f"{source} {problem} {listed}. Download or save the model again.": names})
    check_finite_weights(model.base_model, source)  # a layer beside the encoder may have no values yet
    return model, info


def check_finite_weights(model: PreTrainedModel, source: str | os.PathLike) -> None:
    """Refuse a model that has NaN or infinity among its weights.

    Args:
        model (`PreTrainedModel`): The model.
        source (`str` or `os.PathLike`): Where it was loaded from, for the message.

    Raises:
        ValueError: If it has. The message names the weight.
    """
    for name, x in model.named_parameters():
        if x.is_floating_point() and not x.is_meta and not torch.isfinite(x).all():
            raise ValueError(
                f"{source}: its weight {name} holds NaN or infinity: its training diverged, or the file is damaged. "
                "Train, download or save the model again."
            )
