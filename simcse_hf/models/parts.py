"""The parts of a contrastive model, and those of them that no checkpoint holds, which are drawn at random."""

import copy
import re
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..kernels.cpu import FastDropout
from ..kernels.unpadded import install_unpadded_attention
from ..objectives import Objective
from ..objectives.masked_lm import StockMaskedLMHead
from ..runtime.errors import ModelError, SettingError, check_values
from . import pooling
from .settings import (
    SECTION,
    SETTING_NAMES,
    ContrastiveSettings,
    Values,
    chosen,
    dropout_rates,
    resolve_settings,
)

# The state of what is trained beside the encoder and is not part of the embedding: the objective and a second encoder.
AUXILIARY_MODULES = ("objective", "second_encoder")
#: Modules with files of their own: layers of the embedding that the stock encoder lacks, and what training adds.
SEPARATE_MODULES = ("sentence_head", "dense_layers", *pooling.POOLER_FOLDERS, *AUXILIARY_MODULES)

#: Modules of the stock classes for pretraining, which predict words, sentence pairs or replaced tokens.
PRETRAINING_HEADS = (
    "cls lm_head head decoder predictions sop_classifier pred_layer lm_predictions mask_predictions vocab_transform "
    "vocab_layer_norm vocab_projector generator_predictions generator_lm_head discriminator_predictions"
).split()
#: Settings that do not concern the objective: it is kept when they change.
_NOT_THE_OBJECTIVES = {
    "max_seq_length",
    "fixed_mask",
    "mlm_weight",
    "max_length",
    "prompts",
    "default_prompt_name",
    "normalize",
    "similarity_fn_name",
}

#: By `model_type`, parameters that a pass over plain text does not use: Longformer's projections of global attention
#: and LUKE's entities.
_WITHOUT_GRADIENT = {
    "longformer": r"\.(query|key|value)_global\.",
    "luke": r"^entity_embeddings\.|\.(w2e|e2w|e2e)_query\.",
}


class ContrastiveBase(PreTrainedModel):
    """The parts of a [`ContrastiveModel`]: its settings, the stock encoder, and the layers that the encoder lacks.

    Args:
        config (`PreTrainedConfig`): The config of the encoder, which is not changed.
        resolved (`ContrastiveSettings`, *optional*): All settings, in place of those of the config; by
            `from_pretrained`.
        unpadded (`bool`, *optional*, defaults to `True`): See [`ContrastiveModel`].
        fast_dropout (`bool`, *optional*, defaults to `True`): See [`ContrastiveModel`].
        settings (`Any`): Settings that come before those of the config.

    Raises:
        ValueError: If a setting is not valid or does not fit the encoder.
    """

    #: The class of the stock encoder.
    base_class: type[nn.Module]
    base_model: PreTrainedModel
    #: Whether the encoder is a decoder such as Llama, in which a token sees only those before it.
    reads_left_to_right = False
    _keys_to_ignore_on_load_missing = [r"(^|\.)pooler\.", *(rf"^{name}\." for name in SEPARATE_MODULES)]
    #: The head of an encoder that lacks one.
    sentence_head: nn.Sequential
    #: `"kept"` if the dense + tanh head came from the checkpoint, `"fresh"` if it was drawn at random.
    head_source = "fresh"
    #: Whether the checkpoint says how its embeddings are made. If not, a run first scores plain poolers, too.
    names_pooler = True
    #: The objective and its second encoder are made when training begins, as they may be larger than the encoder.
    objective: Objective | None
    second_encoder: PreTrainedModel | None
    #: The `model_max_length` of the tokenizer, if it is known.
    tokenizer_limit: int | None = None
    #: The size of the vectors of the run's teacher.
    teacher_dim: int | None = None
    #: The commit on the hub that it was loaded from.
    commit: str | None = None
    #: Whether `save_pretrained` saves the adapter in place of the merged model.
    save_adapter = False

    def __init__(
        self,
        config: PreTrainedConfig,
        *,
        resolved: ContrastiveSettings | None = None,
        unpadded: bool = True,
        fast_dropout: bool = True,
        **settings: Any,
    ) -> None:
        # 1. The settings, which the model writes into a config of its own.
        config = copy.deepcopy(config)
        check_values("a number between 0 and 1", **dropout_rates(config))  # torch takes NaN
        config.return_dict = True  # whatever config.json says: outputs are read by name
        super().__init__(config)
        if resolved is None or settings:
            resolved = resolve_settings(getattr(config, SECTION, None), **settings)
        if pooling.POOLERS[resolved.pooler_type].reads_first_token and self.reads_left_to_right:
            raise ModelError(
                f"pooler_type {resolved.pooler_type!r} reads the first token, and in a decoder ({config.model_type}) "
                "this token sees no other, so all texts would be alike. Pass pooler_type 'lasttoken' or 'avg'."
            )
        setattr(config, SECTION, resolved.to_section())
        self.settings = resolved
        #: What the caller chose, which counts in the objectives of several data sets, too.
        self.given_settings = chosen(settings)
        self.unpadded = unpadded
        self.fast_dropout = fast_dropout
        self.objective = None
        self.second_encoder = None
        # 2. The stock encoder.
        setattr(self, self.base_model_prefix, self.base_class(config))
        # `from_pretrained` explains these keys itself: transformers' report names all others.
        heads = [rf"^{name}\." for name in PRETRAINING_HEADS if not hasattr(self.base_model, name)]
        self._keys_to_ignore_on_load_unexpected = [*(self._keys_to_ignore_on_load_unexpected or ()), *heads]
        # 3. The layers that it lacks. MobileBERT's pooler may be a module without layers, which returns plain [CLS].
        pooler = getattr(self.base_model, "pooler", None) or nn.Identity()
        self.has_own_pooler = any(isinstance(module, nn.Linear) for module in pooler.modules())
        if not self.has_own_pooler:
            self.sentence_head = pooling.sentence_head(config)
        self.ngram_head = pooling.NGramHead(config) if resolved.pooler_type == pooling.NGRAM_POOLER else None
        self.template_head = None
        if resolved.denoising != "none":
            self.template_head = pooling.TemplateHead(config, resolved.denoising)
        self.dense_layers = nn.ModuleList(pooling.DenseLayer(**layer) for layer in resolved.dense_layers)
        self.embedding_dim: int = config.hidden_size
        if resolved.dense_layers:
            self.embedding_dim = resolved.dense_layers[-1]["out_features"]
        if resolved.do_mlm:
            self._stock_mlm_head = StockMaskedLMHead(config, self.base_model)
            self._tied_weights_keys = dict(self._stock_mlm_head.stock._tied_weights_keys or {})
            self._register_mlm_head()
        self.post_init()
        self.freeze_unused_parameters()
        install_unpadded_attention(self.base_model)
        if fast_dropout:
            for module in list(self.base_model.modules()):
                for name, child in module.named_children():
                    if type(child) is nn.Dropout and not child.inplace:
                        setattr(module, name, FastDropout(child.p).train(child.training))

    def update_settings(self, **settings: Any) -> None:
        """Change settings of the model and of the config that is saved with it.

        Args:
            settings (`Any`): The new values of fields of [`ContrastiveSettings`], and options of the objective.

        Raises:
            SettingError: If a setting is unknown, a value is not valid, or the setting decides on the model's layers.
        """
        fixed = {"pooler_type", "denoising", "do_mlm", "dense_layers"} & settings.keys()
        if fixed:
            listed = ", ".join(sorted(fixed))
            raise SettingError(f"{listed} can only be chosen when the model is created. Pass it to from_pretrained.")
        self.given_settings |= chosen(settings)
        before = self.settings
        given = {"do_mlm": before.do_mlm, **settings}
        self.use_settings(resolve_settings(before.to_section(), **given))

    def use_settings(self, settings: ContrastiveSettings) -> None:
        """Take settings that [`resolve_settings`] has decided, and drop the objective if they concern it.

        Args:
            settings (`ContrastiveSettings`): All settings.
        """
        before = self.settings
        self.settings = settings
        setattr(self.config, SECTION, settings.to_section())
        for name in SETTING_NAMES - _NOT_THE_OBJECTIVES:
            if getattr(before, name) != getattr(settings, name):
                self.objective = None
                self.second_encoder = None

    def add_projection(self, size: int) -> None:
        """Append a linear layer that is drawn orthonormal: to a larger `size` it leaves the cosines as they are.

        Args:
            size (`int`): The new size of embeddings.
        """
        layer: Values = {"in_features": self.embedding_dim, "out_features": size, "bias": True}
        layer["activation_function"] = pooling.LINEAR
        dense = pooling.DenseLayer(**layer)
        nn.init.orthogonal_(dense.linear.weight)
        nn.init.zeros_(dense.linear.bias)
        self.dense_layers.append(dense.to(self.device, self.dtype))
        self.embedding_dim = size
        self.use_settings(replace(self.settings, dense_layers=[*self.settings.dense_layers, layer]))

    @property
    def contrastive_head(self) -> nn.Module:
        """The dense + tanh head: the encoder's own pooler, or ours if it has none."""
        return self.base_model.get_submodule("pooler") if self.has_own_pooler else self.sentence_head

    def has_adapter(self) -> bool:
        """Return whether there is an adapter of peft in the encoder. One of the whole model is moved there."""
        if getattr(self, "peft_config", None):  # by `add_adapter` or `get_peft_model`
            self.base_model.peft_config = self.peft_config
            self.base_model._hf_peft_config_loaded = True
            self._hf_peft_config_loaded = False
            del self.peft_config
        return bool(getattr(self.base_model, "peft_config", None))

    def freeze_unused_parameters(self) -> None:
        """Freeze the parameters that no loss reaches, at which DistributedDataParallel would stop.

        They stay in the checkpoint, where `AutoModel` looks for them.
        """
        if self.settings.pooler_type != "cls":
            self.contrastive_head.requires_grad_(False)
        pattern = _WITHOUT_GRADIENT.get(self.config.model_type)
        if pattern is not None:
            for name, parameter in self.base_model.named_parameters():
                if re.search(pattern, name):
                    parameter.requires_grad_(False)

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output layer of the masked-LM head, which is tied to the word embeddings."""
        if not self.settings.do_mlm:
            return None
        return self._stock_mlm_head.stock.get_output_embeddings()

    def set_output_embeddings(self, embeddings: nn.Module) -> None:
        """Replace the output layer of the masked-LM head."""
        self._stock_mlm_head.stock.set_output_embeddings(embeddings)
        self._register_mlm_head()

    def _register_mlm_head(self) -> None:
        for name, module in self._stock_mlm_head.modules.items():
            setattr(self, name, module)
