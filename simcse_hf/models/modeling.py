"""Contrastive models: a stock encoder with SimCSE's head, an objective and an optional masked-LM loss."""

import copy
import re
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertModel, BertPreTrainedModel, PreTrainedConfig, RobertaModel
from transformers.models.roberta.modeling_roberta import RobertaPreTrainedModel

from ..objectives import EncodedBatch, Objective
from ..objectives.base import Encoder, total_and_parts
from ..objectives.masked_lm import IGNORED, StockMaskedLMHead
from ..objectives.promptbert import embed_templates
from ..ops.distributed import mean_over_processes
from ..ops.dropout import use_fast_dropout
from ..ops.flash import avoid_cudnn_attention
from ..ops.unpadded import encode_padded, encode_unpadded, install_unpadded_attention, supports_unpadded
from .checkpoint import OWN_LAYERS, ContrastiveCheckpoint
from .head import NGRAM_POOLER, DenseLayer, NGramHead, SentenceHead, TemplateHead
from .objective import AUXILIARY_MODULES
from .output import ContrastiveOutput
from .poolers import TEMPLATE_POOLER, at_mask, check_has_tokens, masked_mean, needs_hidden_states, pool
from .settings import SECTION, ContrastiveSettings
from .views import check_lengths, check_shapes, embed_views

#: Settings that do not concern the objective: it is kept when they change.
_NOT_THE_OBJECTIVES = {"max_seq_length", "fixed_mask", "max_length", "prompts", "default_prompt_name", "normalize"}

#: By `model_type`, parameters that a pass over plain text does not use: Longformer's projections of global attention,
#: LUKE's entities, images, and ESM's contacts of amino acids.
_WITHOUT_GRADIENT = {
    "esm": r"^contact_head\.",
    "longformer": r"\.(query|key|value)_global\.",
    "luke": r"^entity_embeddings\.|\.(w2e|e2w|e2e)_query\.",
    "visual_bert": r"^embeddings\.visual_",
}


class ContrastiveModel(ContrastiveCheckpoint):
    """The contrastive model, mixed into the `...PreTrainedModel` class of an encoder family (see `BertForCL`).

    The encoder keeps its stock name and layout. If it has a pooler of its own (dense + tanh over [CLS]), that pooler
    *is* SimCSE's head. So `AutoModel.from_pretrained` loads what `save_pretrained` writes, with no missing and no
    unexpected weights, and its `pooler_output` is the output of the trained head.

    The settings ([`ContrastiveSettings`]) are keyword arguments of the constructor and of `from_pretrained`:

        model = BertForCL.from_pretrained("bert-base-uncased", pooler_type="cls", temperature=0.05)

    Two more keyword arguments are not saved, because they change the speed and not the embeddings:

    - `unpadded` (`bool`, defaults to `True`): Leave padding out of the computation, for encoders that allow it (see
      [`supports_unpadded`]). The attribute may be set at any time.
    - `fast_dropout` (`bool`, defaults to `True`): Replace the encoder's `nn.Dropout` modules by `FastDropout`, which
      draws its masks faster on a CPU. With `False` the encoder keeps torch's modules.
    """

    base_class: type[nn.Module]  # the stock encoder
    # These are in files of their own, see head.py and objective.py.
    _keys_to_ignore_on_load_missing = [rf"^{name}\." for name in (*OWN_LAYERS, *AUXILIARY_MODULES)]
    accepts_loss_kwargs = False  # the loss is a mean over the batch, so the Trainer divides it for accumulation

    def __init__(
        self,
        config: PreTrainedConfig,
        *,
        unpadded: bool = True,
        fast_dropout: bool = True,
        _settings: dict[str, Any] | None = None,  # by from_pretrained
        **settings: Any,
    ) -> None:
        config = copy.deepcopy(config)  # this model writes its own settings into it
        super().__init__(config)
        self.has_section = getattr(config, SECTION, None) is not None
        self._saved = ContrastiveSettings.from_config(config).to_dict() if self.has_section else {}
        self.settings = ContrastiveSettings.from_config(config, **(_settings or {}), **settings)
        self.head_source = "fresh"
        self._objective_file: str | None = None  # of the checkpoint that the model was loaded from
        self.objective: Objective | None = None  # created when training begins, as it may be larger than the encoder
        self.second_encoder = None
        setattr(config, SECTION, self.settings.to_section())
        setattr(self, self.base_model_prefix, self.base_class(config))
        # MobileBERT's pooler may be a module without layers, which returns the plain [CLS] output.
        pooler = getattr(self.base_model, "pooler", None)
        self.has_own_pooler = pooler is not None and any(isinstance(x, nn.Linear) for x in pooler.modules())
        if not self.has_own_pooler:
            self.sentence_head = SentenceHead(config)
        self.ngram_head = NGramHead(config) if self.settings.pooler_type == NGRAM_POOLER else None
        denoising = self.settings.denoising
        self.template_head = None if denoising == "none" else TemplateHead(config, denoising)
        self.dense_layers = nn.ModuleList(DenseLayer(**layer) for layer in self.settings.dense_layers)
        if self.settings.do_mlm:
            self._stock_mlm_head = StockMaskedLMHead(config, self.base_model)
            self._tied_weights_keys = self._stock_mlm_head.tied_weights_keys
            self._register_mlm_head()
        self.post_init()
        self._freeze_unused_parameters()
        self.unpadded, self.fast_dropout = unpadded, fast_dropout
        install_unpadded_attention(self.base_model)
        if fast_dropout:
            use_fast_dropout(self.base_model)

    def update_settings(self, **settings: Any) -> None:
        """Change settings of the model and of the config that is saved with it.

        Args:
            settings (`Any`): The new values of fields of [`ContrastiveSettings`].

        Raises:
            ValueError: If a setting is unknown, a value is not valid, or the setting decides on the model's layers.
        """
        fixed = {"pooler_type", "denoising", "do_mlm", "dense_layers"} & settings.keys()
        if fixed:
            raise ValueError(
                f"{', '.join(sorted(fixed))} can only be chosen when the model is created. Pass it to from_pretrained."
            )
        before = self.settings.to_dict()
        self.settings = ContrastiveSettings.from_config(self.config, **{"do_mlm": self.settings.do_mlm, **settings})
        after = self.settings.to_dict()
        setattr(self.config, SECTION, self.settings.to_section())
        if any(before[name] != after[name] for name in before.keys() - _NOT_THE_OBJECTIVES):
            self.objective = self.second_encoder = None

    @property
    def embedding_dim(self) -> int:
        """The size of an embedding: the encoder's hidden size, or the output of the last dense layer."""
        last = cast(DenseLayer, self.dense_layers[-1]) if self.dense_layers else None
        return self.config.hidden_size if last is None else last.linear.out_features

    @property
    def contrastive_head(self) -> nn.Module:
        """The dense + tanh head: the encoder's own pooler, or ours if it has none."""
        return cast(nn.Module, self.base_model.pooler) if self.has_own_pooler else self.sentence_head

    @property
    def runs_unpadded(self) -> bool:
        """Whether padding is left out: `unpadded` is set, the encoder allows it, and the model is not compiled."""
        if not self.unpadded or torch.compiler.is_compiling():
            return False
        return supports_unpadded(self.base_model, getattr(self, "hf_device_map", None))

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output layer of the masked-LM head, which is tied to the word embeddings."""
        return self._stock_mlm_head.output_embeddings() if self.settings.do_mlm else None

    def set_output_embeddings(self, embeddings: nn.Module) -> None:
        """Replace the output layer of the masked-LM head."""
        self._stock_mlm_head.set_output_embeddings(embeddings)
        self._register_mlm_head()

    def _register_mlm_head(self) -> None:
        for name, module in self._stock_mlm_head.modules.items():
            setattr(self, name, module)

    def _freeze_unused_parameters(self) -> None:
        # No loss reaches them, and DistributedDataParallel stops at a trainable parameter without gradient. They stay
        # in the checkpoint, where AutoModel looks for them.
        if self.settings.pooler_type != "cls":
            self.contrastive_head.requires_grad_(False)
        pattern = _WITHOUT_GRADIENT.get(self.config.model_type)
        for name, parameter in self.base_model.named_parameters():
            if pattern and re.search(pattern, name):
                parameter.requires_grad_(False)

    def embed(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        lengths: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Embed sentences with the pooler of the current mode, training or evaluation.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
            attention_mask (`torch.Tensor`, *optional*): 1 for a token and 0 for padding. Defaults to ones.
            token_type_ids (`torch.Tensor`, *optional*): Of the same shape.
            lengths (`np.ndarray`, *optional*): See [`forward`]; of shape `(batch,)`.

        Returns:
            `torch.Tensor`: Embeddings of shape `(batch, dim)`.
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        outputs = self.encode_tokens(input_ids, attention_mask, token_type_ids, lengths, self.active_pooler)
        return self.pool(outputs, input_ids, attention_mask, token_type_ids)

    def encode_tokens(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        lengths: np.ndarray | None = None,
        pooler_type: str | None = None,
        whole_last_layer: bool = False,
    ) -> Any:
        """Run the encoder for what the pooler reads: without one, the whole last layer."""
        if pooler_type is not None:
            check_has_tokens(attention_mask, lengths)
        needs = {
            "all_layers": pooler_type is not None and needs_hidden_states(pooler_type),
            "first_only": pooler_type in ("cls", "cls_before_pooler") and not whole_last_layer,
            "pooled": pooler_type == "cls" and self.has_own_pooler,
        }
        encode = encode_unpadded if self.runs_unpadded else encode_padded
        # Compiled code cannot switch kernels; the Trainer does so around it.
        with nullcontext() if torch.compiler.is_compiling() else avoid_cudnn_attention(input_ids.device):
            return encode(self.base_model, input_ids, attention_mask, token_type_ids, lengths, **needs)

    @property
    def active_pooler(self) -> str:
        """The pooler of the current mode, training or evaluation."""
        return self.settings.pooler_type if self.training else self.settings.inference_pooler

    def pool(
        self,
        outputs: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Turn the outputs of [`encode_tokens`] into embeddings of shape `(batch, dim)`."""
        pooler_type = self.active_pooler
        if pooler_type == "cls" and self.has_own_pooler:
            embeddings = outputs.pooler_output
        elif pooler_type == TEMPLATE_POOLER:
            embeddings = at_mask(outputs.last_hidden_state, input_ids, self.settings.mask_token_id)
            if self.template_head is not None:
                alone = self._template_states(input_ids, attention_mask, token_type_ids)
                embeddings = self.template_head(embeddings, alone)
        elif self.ngram_head is not None:
            embeddings = masked_mean(self.ngram_head(outputs.last_hidden_state, attention_mask), attention_mask)
        else:
            hidden_states = outputs.hidden_states if needs_hidden_states(pooler_type) else None
            embeddings = pool(pooler_type, outputs.last_hidden_state, attention_mask, hidden_states)
            embeddings = self.sentence_head(embeddings) if pooler_type == "cls" else embeddings
        for layer in self.dense_layers:
            embeddings = layer(embeddings)
        return embeddings

    def _template_states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the state at the mask token of each text's template without the text, of shape `(batch, dim)`."""

        def embed(ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None) -> torch.Tensor:
            outputs = self.encode_tokens(ids, mask, types, pooler_type=TEMPLATE_POOLER)
            return at_mask(outputs.last_hidden_state, ids, self.settings.mask_token_id)

        only = torch.zeros(len(input_ids), dtype=torch.long, device=input_ids.device)
        edges = self.settings.template_edges
        return embed_templates(embed, (input_ids, attention_mask, token_type_ids), only, edges)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        mlm_input_ids: torch.Tensor | None = None,
        mlm_targets: torch.Tensor | None = None,
        relations: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
        scores: torch.Tensor | None = None,
        lengths: np.ndarray | None = None,
        return_loss: bool = True,
        use_objective: bool = True,
        inputs_embeds: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ContrastiveOutput:
        """Encode all sentences of the batch in one pass and compute the loss.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, num_sentences, length)`: anchor, positive, then
                hard negatives. With the shape `(batch, length)`, the output has embeddings and no loss.
            attention_mask (`torch.Tensor`, *optional*): 1 for a token and 0 for padding, of the same shape. Defaults
                to ones.
            token_type_ids (`torch.Tensor`, *optional*): Of the same shape.
            mlm_input_ids (`torch.Tensor`, *optional*): Token ids masked for the auxiliary loss, of the same shape.
            mlm_targets (`torch.Tensor`, *optional*): The original ids where masked and -100 elsewhere, of the same
                shape. Without `mlm_input_ids`, the `input_ids` themselves are masked (see [`Objective.mlm_columns`]).
            relations (`torch.Tensor`, *optional*): How each sentence after the first relates to it: 0 entailment,
                1 neutral, 2 contradiction, -100 if the row has fewer sentences. Of shape `(batch, num_sentences - 1)`.
            text_ids (`torch.Tensor`, *optional*): Equal numbers for equal texts, for objectives that mask duplicates.
                Of shape `(batch, num_sentences)`.
            scores (`torch.Tensor`, *optional*): The score of each pair, of shape `(batch,)`.
            lengths (`np.ndarray`, *optional*): The number of tokens of each text, of the shape of `input_ids` without
                its last axis, where all padding is on the right. The host then knows the shape of the batch and need
                not wait for an accelerator. `attention_mask` must agree with it.
            return_loss (`bool`, *optional*, defaults to `True`): `False` returns the embeddings only. (This argument
                tells the Trainer that there is an `eval_loss`.)
            use_objective (`bool`, *optional*, defaults to `True`): `False` leaves the objective out and returns the
                embeddings of training, with the masked-LM loss.
            inputs_embeds (`torch.Tensor`, *optional*): Not supported. peft passes it and the following, as `None`.
            output_attentions (`bool`, *optional*): Not supported.
            output_hidden_states (`bool`, *optional*): Not supported.
            return_dict (`bool`, *optional*): `False` is not supported.

        Returns:
            [`ContrastiveOutput`]: The embeddings and the loss.

        Raises:
            ValueError: If an argument is not supported, the inputs have the wrong number of dimensions, masked inputs
                are given to a model without `do_mlm`, or `fixed_mask` is set and the views of a row are not the same
                text.
        """
        if inputs_embeds is not None or output_attentions or output_hidden_states or return_dict is False:
            raise ValueError(
                "inputs_embeds, output_attentions, output_hidden_states and return_dict=False are not supported, as a "
                "contrastive model turns input_ids into embeddings. Call model.base_model for these."
            )
        check_shapes(input_ids, mlm_input_ids, mlm_targets)
        lengths = check_lengths(lengths, input_ids)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        if input_ids.dim() == 2:
            return ContrastiveOutput(None, self.embed(input_ids, attention_mask, token_type_ids, lengths))
        if self.objective is None and return_loss:
            self.prepare_objective()
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"relations": relations, "text_ids": text_ids, "scores": scores}
        batch = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        objective = self.objective if return_loss else None
        embeddings, hidden_states = embed_views(self, batch, objective, lengths)
        if objective is None:
            return ContrastiveOutput(sentence_embeddings=embeddings)
        loss = contrastive_loss = mlm_loss = parts = None
        if use_objective and input_ids.shape[1] >= objective.num_views:
            encoded = EncodedBatch(embeddings, batch, cast(Encoder, self), hidden_states, lengths)
            contrastive_loss, parts = total_and_parts(objective(encoded))
            loss = contrastive_loss
        if mlm_targets is not None:
            if mlm_input_ids is not None:
                types = None if token_type_ids is None else token_type_ids.flatten(0, 1)
                counts = None if lengths is None else lengths.reshape(-1)
                flat = mlm_input_ids.flatten(0, 1), attention_mask.flatten(0, 1)
                hidden_states = self.encode_tokens(*flat, types, counts).last_hidden_state
            mlm_loss = self._masked_lm_loss(hidden_states, mlm_targets)
            weighted = self.settings.mlm_weight * mlm_loss
            loss = weighted if loss is None else loss + weighted
        return ContrastiveOutput(loss, embeddings, contrastive_loss, mlm_loss, parts)

    def _masked_lm_loss(self, hidden_states: torch.Tensor | None, targets: torch.Tensor) -> torch.Tensor:
        if not self.settings.do_mlm:
            raise ValueError("mlm_targets were given to a model without masked-LM head. Load it with do_mlm=True.")
        if hidden_states is None:
            name = self.settings.objective
            raise ValueError(f"objective {name!r} keeps no hidden states for mlm_targets. Give mlm_input_ids, too.")
        is_masked = targets != IGNORED
        logits = self._stock_mlm_head.logits(hidden_states.view(*targets.shape, -1)[is_masked])
        total = F.cross_entropy(logits.float(), targets[targets != IGNORED], reduction="sum")
        return mean_over_processes(total, is_masked.sum(), self.training)


class BertForCL(ContrastiveModel, BertPreTrainedModel):
    """BERT as a contrastive model. Its head is `bert.pooler`."""

    base_class = BertModel


class RobertaForCL(ContrastiveModel, RobertaPreTrainedModel):
    """RoBERTa as a contrastive model. Its head is `roberta.pooler`."""

    base_class = RobertaModel
