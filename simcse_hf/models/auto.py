"""The contrastive class of any encoder that AutoModel can load."""

import functools
import os

from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from .modeling import BertForCL, ContrastiveModel, RobertaForCL

_WRITTEN_OUT = {cls.config_class: cls for cls in (BertForCL, RobertaForCL)}


@functools.cache
def contrastive_class(config_class: type[PreTrainedConfig]) -> type[ContrastiveModel]:
    """`BertForCL`, `RobertaForCL`, or a class made alike for another encoder (`ModernBertForCL`, ...).

    Raises:
        ValueError: AutoModel has no encoder for the config, or it is no single text encoder.
    """
    if config_class in _WRITTEN_OUT:
        return _WRITTEN_OUT[config_class]
    try:
        base_class = AutoModel._model_mapping[config_class]
    except KeyError:
        raise ValueError(f"transformers' AutoModel has no encoder for {config_class.__name__}") from None
    if config_class in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING or (
        config_class in MODEL_FOR_CAUSAL_LM_MAPPING and config_class not in MODEL_FOR_MASKED_LM_MAPPING
    ):
        raise ValueError(f"{base_class.__name__} is no bidirectional text encoder: start from one, such as BERT")
    family = next(
        (
            parent
            for parent in base_class.__mro__[1:]
            if issubclass(parent, PreTrainedModel) and parent.base_model_prefix
        ),
        None,
    )
    if family is None:
        raise ValueError(f"{base_class.__name__} has no base_model_prefix: it cannot carry a contrastive head")
    name = base_class.__name__.removesuffix("Model") + "ForCL"
    return type(name, (ContrastiveModel, family), {"base_class": base_class, "config_class": config_class})


class AutoModelForCL:
    """Picks the contrastive class by the checkpoint's `model_type`, never by its name."""

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, **kwargs) -> ContrastiveModel:
        """[`ContrastiveModel.from_pretrained`] of the class that fits the checkpoint; same arguments."""
        config = kwargs.get("config")
        if not isinstance(config, PreTrainedConfig):
            hub_names = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
            hub = {name: kwargs[name] for name in hub_names if name in kwargs}
            config = AutoConfig.from_pretrained(config or name_or_path, **hub)
        return contrastive_class(type(config)).from_pretrained(name_or_path, **kwargs)

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **settings) -> ContrastiveModel:
        """A model with random weights."""
        return contrastive_class(type(config))(config, **settings)
