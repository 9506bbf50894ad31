"""Adapters of peft, such as LoRA: add them to the encoder, merge them, and save and load them.

The adapter belongs to the stock encoder inside the contrastive model. So the files that are written are those that
peft, `AutoModel` and sentence-transformers read.
"""

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..ops.errors import refuse, require_extra
from ..ops.files import write_json
from ..ops.loading import ADAPTER_CONFIG, ADAPTER_SETTINGS, ADAPTER_WEIGHTS, adapter_base
from .settings import SECTION

if TYPE_CHECKING:
    from .modeling import ContrastiveModel

#: The weights that a run with an adapter trains, in its checkpoints: a resumed run needs them unmerged.
TRAINED_WEIGHTS = "_trained.safetensors"


def has_adapter(model: "ContrastiveModel") -> bool:
    """Return whether there is an adapter in the encoder. One that was added to the whole model is moved there."""
    encoder, whole = cast(Any, model.base_model), cast(Any, model)
    if whole is not encoder and getattr(whole, "peft_config", None):  # by `add_adapter` or `get_peft_model`
        encoder.peft_config, encoder._hf_peft_config_loaded = whole.peft_config, True
        whole._hf_peft_config_loaded = False
        del whole.peft_config
    return bool(getattr(encoder, "peft_config", None))


def unwrap(model: Any) -> "ContrastiveModel":
    """Return the contrastive model inside a `PeftModel`, which shares its weights, and any other model as it is.

    Args:
        model (`Any`): A model, or what peft's `get_peft_model` returned.

    Returns:
        `ContrastiveModel`: The model.

    Raises:
        ValueError: If the adapter is a prompt, which is no part of the weights.
    """
    if not hasattr(model, "get_base_model"):
        return model
    is_prompt = any(config.is_prompt_learning for config in model.peft_config.values())
    refuse({"prompts of peft are not part of the model: use LoRA, or another method that changes weights": is_prompt})
    return model.get_base_model()


def add_lora(
    model: "ContrastiveModel", rank: int, alpha: int | None, dropout: float, targets: Sequence[str] | None
) -> None:
    """Freeze the encoder and add a LoRA adapter to it (Hu et al. 2022, arXiv:2106.09685). The head is trained fully.

    Args:
        model (`ContrastiveModel`): The model, which is changed.
        rank (`int`): The rank r of the updates B A of a weight.
        alpha (`int`, *optional*): An update is scaled by `alpha / rank`. Defaults to twice the rank.
        dropout (`float`): Dropout rate of the input of A.
        targets (`Sequence[str]`, *optional*): Names of the layers, such as `query` and `value`. Defaults to all linear
            layers of the encoder.

    Raises:
        ValueError: If the encoder has no such layers.
    """
    peft = require_extra("peft", "lora", "lora_r")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules="all-linear" if targets is None else list(targets),
        exclude_modules=r"pooler(\..*)?" if model.has_own_pooler else None,
    )
    cast(Any, model.base_model).add_adapter(config)
    model.contrastive_head.requires_grad_(True)
    model.freeze_unused_parameters()


def _is_wrapper(module: nn.Module) -> bool:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    return isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper))


def _merged(wrapper: Any) -> nn.Module:
    """Return the stock layer of a layer of peft, with its adapter in the weights. The layer is used up."""
    if hasattr(wrapper, "modules_to_save"):
        return wrapper.modules_to_save[wrapper.active_adapters[0]]
    wrapper.merge()
    return wrapper.get_base_layer()


@torch.no_grad()
def merged_weights(model: "ContrastiveModel", weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights under their stock names, with the adapters merged. The model stays as it is.

    Adding an update to a weight and taking it off again would not give back the same bits, so copies are merged.

    Args:
        model (`ContrastiveModel`): The model.
        weights (`dict[str, torch.Tensor]`): Its weights by name.

    Returns:
        `dict[str, torch.Tensor]`: The weights; those given if the model has no adapter.
    """
    if not has_adapter(model):
        return weights
    merged = dict(weights)
    for name, layer in model.named_modules():
        if _is_wrapper(layer):
            inside = {n: merged.pop(n) for n in weights if n.startswith(f"{name}.")}
            twin = copy.deepcopy(layer)
            twin.load_state_dict({n.removeprefix(f"{name}."): x for n, x in inside.items()})
            merged |= {f"{name}.{n}": x for n, x in _merged(twin).state_dict().items()}
    return merged


def load_adapter(model: "ContrastiveModel", source: str | os.PathLike, hub: dict[str, Any]) -> None:
    """Load an adapter and merge it into the encoder.

    Args:
        model (`ContrastiveModel`): The model that the adapter belongs to. It is changed in place.
        source (`str` or `os.PathLike`): The folder of the adapter, or its name on the hub.
        hub (`dict`): The arguments that locate its files.

    Raises:
        ValueError: If the adapter lacks weights, or does not fit the encoder.
    """
    require_extra("peft", "lora", f"{source} is an adapter, which")
    encoder = cast(Any, model.base_model)
    info = encoder.load_adapter(str(source), adapter_kwargs=hub)
    wrong = sorted(info.missing_keys | info.unexpected_keys | {x[0] for x in info.mismatched_keys})
    problem = (
        f"{source}: the adapter does not fit its model ({', '.join(wrong[:3])}): name the model that it was made for"
    )
    refuse({f"{problem} as base_model_name_or_path in {ADAPTER_CONFIG}.": wrong})
    for name, layer in [(n, x) for n, x in encoder.named_modules() if _is_wrapper(x)]:
        encoder.set_submodule(name, _merged(layer))
    del encoder.peft_config
    encoder._hf_peft_config_loaded = False


def save_adapter(model: "ContrastiveModel", directory: str | os.PathLike, merged: dict[str, torch.Tensor]) -> None:
    """Save the adapter and the head of a model as peft does, and the settings of the model beside them.

    Args:
        model (`ContrastiveModel`): A model with an adapter.
        directory (`str` or `os.PathLike`): The directory. It is created if necessary.
        merged (`dict[str, torch.Tensor]`): The weights with the adapter merged.

    Raises:
        ValueError: If the model has no adapter, or one outside of the encoder.
    """
    from peft import get_peft_model_state_dict

    encoder = cast(Any, model.base_model)
    prefix = f"{model.base_model_prefix}."
    outside = [n for n, x in model.named_modules() if _is_wrapper(x) and not n.startswith(prefix)]
    refuse({f"save_adapter: {', '.join(outside)} lies outside of the encoder. Save the merged model.": outside})
    name = encoder.active_adapters()[0]
    config = copy.copy(encoder.peft_config[name])
    config.inference_mode, config.base_model_name_or_path = True, str(model.name_or_path)
    weights = get_peft_model_state_dict(encoder, adapter_name=name, save_embedding_layers=False)
    if model.has_own_pooler and model.settings.pooler_type == "cls":
        config.modules_to_save = sorted({*(config.modules_to_save or ()), "pooler"})
        weights |= {n.removeprefix(prefix): x for n, x in merged.items() if n.startswith(f"{prefix}pooler.")}
    Path(directory).mkdir(parents=True, exist_ok=True)
    tensors = {f"base_model.model.{n}": x.detach().contiguous() for n, x in weights.items()}
    save_file(tensors, Path(directory, ADAPTER_WEIGHTS), metadata={"format": "pt"})
    config.save_pretrained(str(directory))
    write_json(Path(directory, ADAPTER_SETTINGS), {SECTION: model.settings.to_section()})


def check_save_adapter(model: "ContrastiveModel") -> None:
    """Raise a `ValueError` if the model has no adapter, or its base is an adapter itself."""
    base = model.name_or_path
    refuse(
        {
            "save_adapter is set, but the model has no adapter: set lora_r, or leave save_adapter out": (
                not has_adapter(model)
            ),
            f"save_adapter: {base or 'the model'} is not a whole model that the adapter could be added to again. Save "
            "it with save_pretrained and start from there, or save the merged model.": (
                not base or adapter_base(base) is not None
            ),
        }
    )


def save_trained_weights(model: "ContrastiveModel", directory: str | os.PathLike) -> None:
    """Save the weights that a run with an adapter trains, unmerged, so that it can be resumed exactly."""
    everything = model.state_dict(keep_vars=True)
    trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
    buffers = {name: x for name, x in everything.items() if not isinstance(x, nn.Parameter)}
    tensors = {name: x.detach().contiguous() for name, x in (trained | buffers).items()}
    save_file(tensors, Path(directory, TRAINED_WEIGHTS))


def load_trained_weights(model: "ContrastiveModel", directory: str | os.PathLike) -> bool:
    """Load the weights of [`save_trained_weights`].

    Args:
        model (`ContrastiveModel`): The model, with the frozen weights that it began with. It is changed in place.
        directory (`str` or `os.PathLike`): A checkpoint.

    Returns:
        `bool`: Whether the model has an adapter. Without one, nothing is loaded.

    Raises:
        ValueError: If only one of the model and the checkpoint has an adapter, or they have different ones.
    """
    path = Path(directory, TRAINED_WEIGHTS)
    tensors = load_file(path) if path.exists() else {}
    known = model.state_dict().keys() if has_adapter(model) else ()
    refuse(
        {
            f"{directory} is a checkpoint of a run with another adapter than this one's. Repeat the arguments of that "
            "run, such as --lora_r.": bool(tensors) != bool(known) or tensors.keys() - known
        }
    )
    model.load_state_dict(tensors, strict=False)
    return bool(tensors)
