"""Adapters of peft, such as LoRA: add them to the encoder, merge them, and save and load them.

The adapter belongs to the stock encoder inside the contrastive model. So the files that are written are those that
peft, `AutoModel` and sentence-transformers read.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..runtime.errors import ModelError, SettingError, require_extra
from ..runtime.files import StrPath, digest, read_json, write_json
from ..runtime.loading import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    HubArguments,
    adapter_base,
    find_file,
    full_name,
)
from .parts import ContrastiveBase
from .pooling import StateDict
from .settings import SECTION, Values

#: The weights that a run with an adapter trains, in its checkpoints: a resumed run needs them unmerged.
TRAINED_WEIGHTS = "_trained.safetensors"
_SAVE_WHOLE = "Save the model and its tokenizer with save_pretrained and start from there, or save the merged model."


def add_lora(model: ContrastiveBase, arguments: Values) -> None:
    """Freeze the encoder and add a LoRA adapter to it (Hu et al. 2022, arXiv:2106.09685). The head is trained fully.

    Args:
        model (`ContrastiveModel`): The model, which is changed.
        arguments (`dict[str, Any]`): The arguments of peft's `LoraConfig`. By default all linear layers of the
            encoder get an adapter, but not its pooler.

    Raises:
        ImportError: If peft is not installed.
        SettingError: If an argument is unknown, the encoder has no such layers, or transformers does not take adapters
            from this version of peft.
    """
    peft = require_extra("peft", "lora", "lora_r")
    arguments = {"target_modules": "all-linear", **arguments}
    if model.has_own_pooler:
        arguments.setdefault("exclude_modules", r"pooler(\..*)?")
    try:
        model.base_model.add_adapter(peft.LoraConfig(**arguments))
    except (TypeError, ValueError) as error:
        raise SettingError(f"lora: {error}") from error
    model.contrastive_head.requires_grad_(True)
    model.freeze_unused_parameters()


def _wrappers(model: nn.Module) -> dict[str, Any]:
    """Return the layers that peft has put in the place of others, by their names."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not is_inside:
            found[name] = module
    return found


@torch.no_grad()
def merged_weights(model: ContrastiveBase, weights: StateDict) -> StateDict:
    """Return weights under their stock names, with the adapters merged. The model stays as it is.

    Adding an update to a weight and taking it off again would not give back the same bits, so copies are merged.

    Args:
        model (`ContrastiveModel`): A model with an adapter.
        weights (`dict[str, torch.Tensor]`): Its weights by name.

    Returns:
        `dict[str, torch.Tensor]`: The merged weights.
    """
    merged = dict(weights)
    for name, layer in _wrappers(model).items():
        prefix = f"{name}."
        inside = {}
        for full in weights:
            if full.startswith(prefix):
                inside[full.removeprefix(prefix)] = merged.pop(full)
        twin = copy.deepcopy(layer)
        twin.load_state_dict(inside)
        if hasattr(twin, "unload_and_optionally_merge_module"):
            stock = twin.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        else:
            twin.merge()
            stock = twin.get_base_layer()
        merged |= {prefix + own_name: tensor for own_name, tensor in stock.state_dict().items()}
    return merged


def weights_of_base(base: StrPath) -> dict[str, str]:
    """Return a digest of each file of weights in the folder of an adapter's model; none for a model of the hub."""
    return {path.name: digest(path) for path in sorted(Path(base).glob("*.safetensors"))}


def load_adapter(model: ContrastiveBase, source: StrPath, hub: HubArguments) -> None:
    """Load an adapter and merge it into the encoder.

    Args:
        model (`ContrastiveModel`): The model that the adapter belongs to. It is changed in place.
        source (`str` or `os.PathLike`): The folder of the adapter, or its name on the hub.
        hub (`HubArguments`): The arguments that locate its files.

    Raises:
        ModelError: If the adapter lacks weights, does not fit the encoder, or was trained on other weights than those
            that are in the folder of its model now.
    """
    peft = require_extra("peft", "lora", f"{source} is an adapter, which")
    encoder = model.base_model
    config = peft.PeftConfig.from_pretrained(str(source), **hub)
    # The adapter may be that of a model with a head, such as BertForMaskedLM.
    prefix = f"base_model.model.{encoder.base_model_prefix}."
    loaded = peft.load_peft_weights(str(source), device="cpu", **hub)
    weights = {name.replace(prefix, "base_model.model.", 1): x for name, x in loaded.items()}
    try:
        adapted = peft.PeftModel(encoder, config)
        peft.set_peft_model_state_dict(adapted, dict(weights))  # some versions change it
        expected = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        differing = sorted(expected.keys() ^ weights.keys())
        wrong = ", ".join(differing[:3])
    except (RuntimeError, KeyError, ValueError) as error:
        wrong = " ".join(str(error).split())
    if wrong:
        raise ModelError(
            f"{source}: the adapter does not fit the model in base_model_name_or_path in {ADAPTER_CONFIG} ({wrong}): "
            "name there the model that it was trained on."
        )
    base = adapter_base(source, **hub) or ""
    settings = find_file(source, ADAPTER_SETTINGS, **hub)
    trained_on = read_json(settings).get("base") if settings else None
    if trained_on and Path(base).is_dir() and trained_on != weights_of_base(base):
        raise ModelError(
            f"{source}: the adapter was trained on other weights than those in {base} now: restore these, or train "
            "the adapter again."
        )
    adapted.merge_and_unload()
    vars(encoder).pop("peft_config", None)  # which some versions leave


def save_adapter(model: ContrastiveBase, directory: StrPath, merged: StateDict) -> None:
    """Save the adapter and the head of a model as peft does, and the settings of the model beside them.

    Args:
        model (`ContrastiveModel`): A model with an adapter.
        directory (`str` or `os.PathLike`): An existing directory.
        merged (`dict[str, torch.Tensor]`): The weights with the adapter merged.

    Raises:
        ModelError: If the model has no adapter, or one outside of the encoder.
    """
    from peft import get_peft_model_state_dict

    encoder = model.base_model
    prefix = f"{model.base_model_prefix}."
    outside = [name for name in _wrappers(model) if not name.startswith(prefix)]
    if outside:
        raise ModelError(
            f"save_adapter saves only what is in the encoder, but the adapter also changes {', '.join(outside)}: "
            "leave save_adapter out, and the merged model is saved"
        )
    name = encoder.active_adapters()[0]
    config: Any = copy.copy(encoder.peft_config[name])
    config.inference_mode = True
    config.task_type = "FEATURE_EXTRACTION"
    base = full_name(model.name_or_path)
    config.base_model_name_or_path = base
    config.revision = model.commit
    weights = get_peft_model_state_dict(encoder, adapter_name=name, save_embedding_layers=False)
    if model.has_own_pooler and model.settings.pooler_type == "cls":
        modules = config.modules_to_save or ()
        config.modules_to_save = sorted({*modules, "pooler"})
        for key, x in merged.items():
            if key.startswith(f"{prefix}pooler."):
                weights[key.removeprefix(prefix)] = x
    directory = Path(directory)
    tensors = {f"base_model.model.{key}": x.detach().contiguous() for key, x in weights.items()}
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config.save_pretrained(str(directory))
    settings = {SECTION: model.settings.to_section(), "base": weights_of_base(base or "")}
    write_json(directory / ADAPTER_SETTINGS, settings)


def check_adapter(model: ContrastiveBase) -> None:
    """Refuse a model whose adapter could be trained, but not be saved as the run asks for, or not be loaded again.

    Args:
        model (`ContrastiveModel`): The model with an adapter or `save_adapter` set, before it is trained.

    Raises:
        SettingError: If it has no adapter.
        ModelError: If its adapter cannot be saved, or what is saved would be another model.
    """
    if not model.has_adapter():
        raise SettingError("save_adapter is set, but the model has no adapter: set lora_r, or leave save_adapter out")
    base = model.name_or_path
    if model.save_adapter and (not base or adapter_base(base) is not None):
        raise ModelError(
            f"save_adapter: {base or 'the model'} is not a whole model that the adapter could be added to again. "
            f"{_SAVE_WHOLE}"
        )
    try:
        merged = merged_weights(model, model.state_dict())
        if not model.save_adapter:
            return
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            saved = type(model).from_pretrained(folder, dtype=model.dtype).state_dict()
    except Exception as error:  # its type depends on the kind of adapter
        name = model.base_model.active_adapters()[0]
        kind = model.base_model.peft_config[name].peft_type.value
        way = "merged, so use another kind"
        if model.save_adapter:
            way = "by itself, so leave save_adapter out"
        raise ModelError(f"peft's adapter {kind} cannot be saved {way}: {error}") from error
    changed = []
    for name, x in saved.items():
        now = merged[name].to(x.device)
        # Merged elsewhere, a weight may differ by rounding.
        tolerance = 8 * torch.finfo(x.dtype).eps * x.abs().max()
        is_same = now.shape == x.shape and (now - x).abs().max() <= tolerance
        is_encoders = name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name
        if is_encoders and not is_same:
            changed.append(name)
    if changed:
        listed = ", ".join(changed[:3])
        raise ModelError(f"save_adapter: weights of the model differ from those in {base} ({listed}). {_SAVE_WHOLE}")


def save_trained_weights(model: ContrastiveBase, directory: StrPath) -> None:
    """Save the weights that a run with an adapter trains, unmerged, so that it can be resumed exactly."""
    trained = [name for name, x in model.named_parameters() if x.requires_grad]  # tied weights once
    tensors = {}
    for name, x in model.state_dict(keep_vars=True).items():
        if name in trained or not isinstance(x, nn.Parameter):  # or a buffer
            tensors[name] = x.detach().contiguous()
    save_file(tensors, Path(directory, TRAINED_WEIGHTS))


def load_trained_weights(model: ContrastiveBase, directory: StrPath) -> None:
    """Load the weights of [`save_trained_weights`].

    Args:
        model (`ContrastiveModel`): The model, with the frozen weights that it began with. It is changed in place.
        directory (`str` or `os.PathLike`): A checkpoint. It has trained weights, or the model has an adapter.

    Raises:
        ModelError: If only one of the model and the checkpoint has an adapter, or they have different ones.
    """
    path = Path(directory, TRAINED_WEIGHTS)
    tensors = load_file(path) if path.exists() else {}
    if not tensors or not tensors.keys() <= model.state_dict().keys():
        raise ModelError(f"{directory} has another adapter than this run: repeat the arguments of its run (--lora_r)")
    model.load_state_dict(tensors, strict=False)
