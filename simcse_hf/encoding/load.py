"""Load an encoder of sentences with its tokenizer: decide its pooler, and refuse what would be random or wrong."""

from dataclasses import dataclass
from typing import Unpack

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from ..models.checkpoint import check_tokenizer
from ..models.modeling import AutoModelForCL, ContrastiveModel
from ..models.pooling import NGRAM_POOLER, POOLERS, TEMPLATE_POOLER
from ..models.settings import SECTION, Values, length_limit, settings_of_config
from ..names import POOLER_TYPES
from ..postprocessing.transform import Fit, VectorTransform, find_transform
from ..runtime.errors import check_values
from ..runtime.files import StrPath
from ..runtime.loading import HubArguments, load_pretrained
from .exported import ExportedModel, refuse_settings


@dataclass(frozen=True)
class LoadedEncoder:
    """What a checkpoint holds for inference.

    Args:
        model (`ContrastiveModel` or `ExportedModel`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_length (`int`, *optional*): The number of tokens that it reads, also of those that its transform takes.
        transform (`VectorTransform`, *optional*): The whitening or flow that is saved beside it.
        fit (`Fit`, *optional*): What the transform was fitted on.
    """

    model: ContrastiveModel | ExportedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int | None
    transform: VectorTransform | None
    fit: Fit | None


def load_encoder(
    name_or_path: StrPath,
    *,
    pooler_type: str | None = None,
    dtype: torch.dtype | None = None,
    head: str | None = None,
    postprocess: bool = True,
    backend: str = "torch",
    **hub: Unpack[HubArguments],
) -> LoadedEncoder:
    """Load a model for inference; the arguments are those of [`SimCSE`].

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name.
        pooler_type (`str`, *optional*): The pooler, in place of the checkpoint's own.
        dtype (`torch.dtype`, *optional*): Data type of the weights; the default is float32.
        head (`str`, *optional*): `"pooler"` or `"dense"`.
        postprocess (`bool`, *optional*, defaults to `True`): Whether the transform beside the model is to be applied.
        backend (`str`, *optional*, defaults to `"torch"`): `"torch"`, `"onnx"` or `"openvino"`.
        **hub (`HubArguments`): Where the files are.

    Returns:
        `LoadedEncoder`: The model in evaluation mode, on the CPU.

    Raises:
        ValueError: As [`SimCSE`].
    """
    if pooler_type is not None and backend == "torch":
        plain = [name for name in POOLERS if name not in (TEMPLATE_POOLER, NGRAM_POOLER)]
        check_values(plain, pooler_type=pooler_type)
    config = load_pretrained(AutoConfig.from_pretrained, name_or_path, **hub)
    tokenizer = load_pretrained(AutoTokenizer.from_pretrained, name_or_path, **hub)
    own = settings_of_config(config).inference_pooler if hasattr(config, SECTION) else None
    transform, fit = find_transform(name_or_path, hub)
    if transform and fit:
        if postprocess and pooler_type not in (None, fit.pooler):
            raise ValueError(
                f"{name_or_path} has a {transform.method} for embeddings of pooler_type {fit.pooler!r}, not "
                f"{pooler_type!r}. Leave out pooler_type, or load the model with postprocess=False."
            )
        if pooler_type is None and fit.pooler != own:
            pooler_type = fit.pooler  # without the transform too: no other file may name it
    other_pooler = None if pooler_type == own else pooler_type
    model: ContrastiveModel | ExportedModel
    if backend == "torch":
        loading: Values = {"do_mlm": False, "dtype": dtype or torch.float32}  # that head is for training
        if head is not None:
            loading["head"] = head
        loading |= settings_of_pooler(pooler_type, own)
        model = AutoModelForCL.from_pretrained(name_or_path, **loading, **hub)
    else:
        can_round = backend == "openvino" and dtype == torch.bfloat16
        refuse_settings(
            pooler_type=other_pooler,
            dtype=dtype not in (None, torch.float32) and not can_round,
            head=head,
        )
        model = ExportedModel(name_or_path, backend, config, dtype or torch.float32, **hub)
    check_tokenizer(tokenizer, model, name_or_path)
    if model.settings.inference_pooler == "cls" and model.head_source != "kept":
        raise ValueError(
            f"{name_or_path} has no trained head for pooler_type 'cls': its dense + tanh layer would be random. Train "
            f"the model first, or choose another pooler_type, mostly avg: {', '.join(POOLER_TYPES[1:])}."
        )
    max_length = length_limit(config, model.settings, tokenizer, fit.max_length if fit else None)
    return LoadedEncoder(model.eval(), tokenizer, max_length, transform, fit)


def settings_of_pooler(pooler_type: str | None, own: str | None) -> Values:
    """Return the settings by which a pooler replaces that of a checkpoint, which is `own` if it names one."""
    if pooler_type is None:
        return {}
    settings: Values = {"pooler_type": pooler_type, "mlp_only_train": False, "templates": [], "denoising": "none"}
    if own and pooler_type != own:
        settings["dense_layers"] = []  # trained on embeddings of the other pooler
    return settings
