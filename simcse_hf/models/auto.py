"""The contrastive model classes: BERT's, RoBERTa's, and those of any encoder or decoder that `AutoModel` can load."""

import functools
import inspect
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    BertPreTrainedModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
from transformers.models.roberta.modeling_roberta import RobertaPreTrainedModel

from ..ops.files import StrPath, explain_damage, select_hub_arguments
from ..ops.loading import load_pretrained
from ..ops.unpadded import reads_left_to_right
from .modeling import ContrastiveModel


class BertForCL(ContrastiveModel, BertPreTrainedModel):
    """BERT as a contrastive model. Its head is `bert.pooler`."""

    base_class = BertModel


class RobertaForCL(ContrastiveModel, RobertaPreTrainedModel):
    """RoBERTa as a contrastive model. Its head is `roberta.pooler`."""

    base_class = RobertaModel


_NAMED_CLASSES: dict[type, type[ContrastiveModel]] = {BertConfig: BertForCL, RobertaConfig: RobertaForCL}


@functools.cache
def contrastive_class(config_class: type[PreTrainedConfig]) -> type[ContrastiveModel]:
    """Return the contrastive class of an encoder, and create it if it is neither `BertForCL` nor `RobertaForCL`.

    Args:
        config_class (`type[PreTrainedConfig]`): The config class of the encoder, such as `ModernBertConfig`.

    Returns:
        `type[ContrastiveModel]`: The class, such as `ModernBertForCL`.

    Raises:
        ValueError: If `AutoModel` has no encoder for the config, or the model does not encode texts.
    """
    if config_class in _NAMED_CLASSES:
        return _NAMED_CLASSES[config_class]
    try:
        base_class: Any = AutoModel._model_mapping[config_class]
        arguments = inspect.signature(base_class.forward).parameters.keys()
    except (KeyError, AttributeError):  # Funnel has a tuple of two models
        raise ValueError(
            f"transformers' AutoModel has no encoder, or several, for {config_class.__name__}. Load a text encoder "
            "such as BERT."
        ) from None
    needed = {"input_ids", "attention_mask"}
    if reads_left_to_right(config_class):
        needed.add("position_ids")
    if config_class in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING or not needed <= arguments:
        raise ValueError(
            f"{base_class.__name__} is not a text encoder or decoder. Load an encoder such as BERT, or a decoder such "
            "as Llama."
        )
    for family in base_class.__mro__[1:]:
        # Not an encoder that the class extends, which has a `forward`: every weight would be there twice.
        is_family = issubclass(family, PreTrainedModel) and family.forward is PreTrainedModel.forward
        if is_family and family.base_model_prefix:
            break
    name = base_class.__name__.removesuffix("Model") + "ForCL"
    content = {"base_class": base_class, "config_class": config_class, "__reduce__": _reduce}
    return type(name, (ContrastiveModel, family), content)


def _reduce(model: ContrastiveModel) -> tuple[Any, ...]:
    # A pickle names the class by its config class, because no module holds a class that is made when it is needed.
    return _empty, (type(model).config_class,), model.__dict__


def _empty(config_class: Any) -> ContrastiveModel:
    cls = contrastive_class(config_class)
    return cls.__new__(cls)


class AutoModelForCL:
    """Choose the contrastive class by the checkpoint's `model_type`, never by its name."""

    @classmethod
    def from_pretrained(cls, name_or_path: StrPath, **kwargs: Any) -> ContrastiveModel:
        """Load a contrastive model of the class that fits the checkpoint.

        Args:
            name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
            kwargs (`Any`): The arguments of [`ContrastiveModel.from_pretrained`].

        Returns:
            [`ContrastiveModel`]: The model, in evaluation mode.
        """
        config = kwargs.get("config")
        if not isinstance(config, PreTrainedConfig):
            code = {"trust_remote_code": kwargs.get("trust_remote_code")}
            hub = select_hub_arguments(kwargs)
            config = load_pretrained(AutoConfig.from_pretrained, config or name_or_path, **code, **hub)
        with explain_damage(name_or_path):
            return contrastive_class(type(config)).from_pretrained(name_or_path, **kwargs)  # type: ignore[arg-type]  # hashable

    @classmethod
    def from_config(cls, config: PreTrainedConfig, **settings: Any) -> ContrastiveModel:
        """Create a model with random weights.

        Args:
            config (`PreTrainedConfig`): The config of the encoder.
            settings (`Any`): The fields of [`ContrastiveSettings`], `unpadded` and `fast_dropout`.

        Returns:
            [`ContrastiveModel`]: The model, in training mode.
        """
        return contrastive_class(type(config))(config, **settings)  # type: ignore[arg-type]  # hashable
