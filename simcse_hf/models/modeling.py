"""Contrastive models: a stock encoder with SimCSE's head, objective and optional masked-LM loss."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, BertModel, BertPreTrainedModel, PreTrainedConfig, RobertaModel
from transformers.models.roberta.modeling_roberta import RobertaPreTrainedModel
from transformers.utils import ModelOutput

from ..objectives import EncodedBatch, Objective, make_objective
from ..objectives.base import total_and_parts
from ..objectives.masked_lm import IGNORED, StockMaskedLMHead
from ..objectives.matryoshka import make_matryoshka
from ..ops.distributed import mean_over_processes
from ..ops.dropout import use_fast_dropout
from ..ops.unpadded import encode_unpadded, supports_unpadded
from .checkpoint import AUXILIARY_MODULES, ContrastiveCheckpoint, load_auxiliary_state
from .configuration import SECTION, ContrastiveSettings
from .head import SentenceHead
from .poolers import TEMPLATE_POOLER, at_mask, needs_hidden_states, pool

_NOT_THE_OBJECTIVES = {"max_seq_length", "fixed_mask"}  # settings that an objective may outlive


@dataclass
class ContrastiveOutput(ModelOutput):
    """What a contrastive model returns.

    Args:
        loss: contrastive loss + mlm_weight * masked-LM loss; None for a single sentence a row.
        sentence_embeddings: (batch, num_sentences, dim), or (batch, dim) for inputs of two axes. Not normalised.
        contrastive_loss: the objective's share of the loss.
        mlm_loss: the masked-LM loss before its weight; None without masked inputs.
        parts: the named parts of `contrastive_loss`, for objectives that have several.
    """

    loss: torch.FloatTensor | None = None
    sentence_embeddings: torch.FloatTensor | None = None
    contrastive_loss: torch.FloatTensor | None = None
    mlm_loss: torch.FloatTensor | None = None
    parts: dict[str, torch.FloatTensor] | None = None


class ContrastiveModel(ContrastiveCheckpoint):
    """The contrastive head, mixed into an encoder family's `...PreTrainedModel` (see `BertForCL`).

    The encoder keeps its stock name and layout, and where it has a pooler of its own (dense + tanh over [CLS]), that
    pooler *is* SimCSE's head. So `AutoModel.from_pretrained` loads what `save_pretrained` writes, with nothing missing
    and nothing unexpected, and its `pooler_output` is the trained head's.

    Settings ([`ContrastiveSettings`]) are keyword arguments of the constructor and of `from_pretrained`:

        model = BertForCL.from_pretrained("bert-base-uncased", pooler_type="cls", temperature=0.05)

    So is `unpadded`, which is no setting, as it changes no vector, and is not saved: whether padding is left out of
    the computation, for the encoders where it can be (see [`supports_unpadded`]). It may be set at any time.
    """

    base_class: type | None = None  # the stock encoder; None: whatever AutoModel has for the config
    # In files of their own, see head.py and checkpoint.py.
    _keys_to_ignore_on_load_missing = [r"^sentence_head\.", *(rf"^{name}\." for name in AUXILIARY_MODULES)]
    accepts_loss_kwargs = False  # the loss is a mean over the batch: the Trainer divides it for accumulation

    def __init__(self, config: PreTrainedConfig, *, unpadded: bool = True, **settings):
        config = copy.deepcopy(config)  # the section is this model's own
        super().__init__(config)
        self._saved_section = getattr(config, SECTION, None)
        self.settings = ContrastiveSettings.from_config(config, **settings)
        self.objective: Objective | None = None  # made when training begins: it may be larger than the encoder
        self.second_encoder: ContrastiveModel | None = None
        setattr(config, SECTION, self.settings.to_dict())
        base_class = self.base_class or AutoModel._model_mapping[type(config)]
        setattr(self, self.base_model_prefix, base_class(config))
        self.has_own_pooler = getattr(self.base_model, "pooler", None) is not None
        if not self.has_own_pooler:
            self.sentence_head = SentenceHead(config)
        if self.settings.do_mlm:
            self._stock_mlm_head = StockMaskedLMHead(config, self.base_model)
            self._tied_weights_keys = self._stock_mlm_head.tied_weights_keys
            self._register_mlm_head()
        self.post_init()
        self._freeze_unused_head()
        self.unpadded = unpadded
        use_fast_dropout(self.base_model)

    def update_settings(self, **settings) -> None:
        """Changes settings, in the model and in the config that is saved with it.

        Raises:
            ValueError: an unknown setting, a value that is not valid, or one that decides what the model is made of.
        """
        fixed = {"pooler_type", "do_mlm"} & settings.keys()
        if fixed:
            raise ValueError(f"{', '.join(sorted(fixed))} can only be chosen when the model is made")
        before = self.settings.to_dict()
        self.settings = ContrastiveSettings.from_config(self.config, **settings)
        after = self.settings.to_dict()
        setattr(self.config, SECTION, after)
        if any(before[name] != after[name] for name in before.keys() - _NOT_THE_OBJECTIVES):
            self.objective = self.second_encoder = None

    def prepare_objective(self) -> None:
        """Makes what training needs beside the encoder: the objective, and the second encoder where there are two.

        The Trainer calls it before it makes the optimizer; without a Trainer, the first loss does. Where the model was
        loaded from a directory that a run with the same objective left, the objective goes on as it was there.

        Raises:
            ValueError: an unknown objective, options it does not have, or values that are not valid.
        """
        settings = self.settings.to_dict()
        name, options, dim = self.settings.objective, self.settings.objective_options, self.config.hidden_size
        if self.settings.matryoshka_dims:
            self.objective = make_matryoshka(name, dim, self.settings.matryoshka_dims, settings, options)
        else:
            self.objective = make_objective(name, dim, settings, options)
        self.objective.attach(self)
        if max(self.settings.encoders, self.objective.encoders) == 2:
            if self.objective.num_views == 1:
                raise ValueError(f"objective {name!r} reads one text a row: set encoders to 1")
            self.second_encoder = self.copy_encoder()
        self.objective.to(self.device).train(self.training)
        saved = self._saved_section or {}
        if all(saved.get(name) == settings[name] for name in ("objective", "objective_options", "matryoshka_dims")):
            load_auxiliary_state(self, self.name_or_path)

    def copy_encoder(self) -> "ContrastiveModel":
        """An independent model with the same encoder, head and pooler, without objective and masked-LM head."""
        twin = type(self)(self.config, do_mlm=False, encoders=1, unpadded=self.unpadded)
        own = twin.state_dict().keys()
        twin.load_state_dict({name: tensor for name, tensor in self.state_dict().items() if name in own})
        return twin.to(self.device, self.dtype).train(self.training)

    @property
    def contrastive_head(self) -> nn.Module:
        """The dense + tanh head: the encoder's own pooler, or ours where it has none."""
        return self.base_model.pooler if self.has_own_pooler else self.sentence_head

    @property
    def runs_unpadded(self) -> bool:
        """Whether padding is left out: `unpadded` is set, the encoder allows it, and nothing traces the model."""
        return self.unpadded and supports_unpadded(self.base_model) and not torch.compiler.is_compiling()

    def get_output_embeddings(self) -> nn.Module | None:
        return self._stock_mlm_head.output_embeddings() if self.settings.do_mlm else None

    def set_output_embeddings(self, embeddings: nn.Module) -> None:
        self._stock_mlm_head.set_output_embeddings(embeddings)
        self._register_mlm_head()

    def _register_mlm_head(self) -> None:
        for name, module in self._stock_mlm_head.modules.items():
            setattr(self, name, module)

    def _freeze_unused_head(self) -> None:
        # It stays in the checkpoint, where AutoModel looks for it, but no loss reaches it, and
        # DistributedDataParallel stops at a trainable parameter without gradient.
        if self.settings.pooler_type != "cls":
            self.contrastive_head.requires_grad_(False)

    @torch.no_grad()
    def reset_head(self) -> None:
        """Draws the head anew: weights from N(0, initializer_range), 0.02 for BERT and RoBERTa, biases 0."""
        for module in self.contrastive_head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=getattr(self.config, "initializer_range", 0.02))
                nn.init.zeros_(module.bias)

    # --- text to vectors -------------------------------------------------------------------------------------------

    def embed(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(n, length) token ids -> (n, dim) sentence vectors, by the pooler of this mode (training or evaluation)."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        return self._embed_with_states(input_ids, attention_mask, token_type_ids, states=False)[0]

    def _embed_with_states(self, input_ids, attention_mask, token_type_ids, states=True):
        """(n, dim) sentence vectors and the encoder's output, whose last layer is whole if `states`."""
        pooler_type = self.settings.pooler_type if self.training else self.settings.inference_pooler
        outputs = self._encode(
            input_ids,
            attention_mask,
            token_type_ids,
            all_layers=needs_hidden_states(pooler_type),
            first_only=not states and pooler_type in ("cls", "cls_before_pooler"),
            pooled=pooler_type == "cls" and self.has_own_pooler,
        )
        if pooler_type == "cls" and self.has_own_pooler:
            return outputs.pooler_output, outputs
        if pooler_type == TEMPLATE_POOLER:
            return at_mask(outputs.last_hidden_state, input_ids, self.settings.mask_token_id), outputs
        hidden_states = outputs.hidden_states if needs_hidden_states(pooler_type) else None
        vectors = pool(pooler_type, outputs.last_hidden_state, attention_mask, hidden_states)
        return self.sentence_head(vectors) if pooler_type == "cls" else vectors, outputs

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        mlm_input_ids: torch.Tensor | None = None,
        mlm_targets: torch.Tensor | None = None,
        relations: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
        return_loss: bool = True,
        use_objective: bool = True,
    ) -> ContrastiveOutput:
        """One encoder pass over all sentences of the batch, and the loss.

        Args:
            input_ids: (batch, num_sentences, length): anchor, positive, then hard negatives. Unsupervised training
                repeats the sentence: 2 columns, each row of the pass with a dropout mask of its own. (batch, length)
                gives vectors and no loss.
            attention_mask: like `input_ids`, 1 for a token and 0 for padding.
            token_type_ids: like `input_ids`.
            mlm_input_ids: like `input_ids`, masked for the auxiliary loss.
            mlm_targets: like `input_ids`, the original ids where masked and -100 elsewhere.
            relations: (batch, num_sentences - 1), how each sentence after the first relates to it: 0 entailment,
                1 neutral, 2 contradiction, -100 where a row has fewer sentences.
            text_ids: (batch, num_sentences), equal for equal texts, for objectives that leave out duplicates.
            return_loss: False gives the vectors alone. (By this argument the Trainer knows there is an `eval_loss`.)
            use_objective: False leaves the objective out and gives the vectors of training, with the masked-LM loss.

        Raises:
            ValueError: inputs of another number of axes; masked inputs for a model without `do_mlm`; `fixed_mask` with
                views of different text.
        """
        if mlm_input_ids is not None and (mlm_targets is None or input_ids.dim() != 3):
            raise ValueError("mlm_input_ids come with mlm_targets, both (batch, num_sentences, length) like input_ids")
        if input_ids.dim() == 2:
            return ContrastiveOutput(sentence_embeddings=self.embed(input_ids, attention_mask, token_type_ids))
        if input_ids.dim() != 3:
            raise ValueError(
                "input_ids must be (batch, num_sentences, length) or (batch, length), "
                f"got {input_ids.dim()} axes: {tuple(input_ids.shape)}"
            )
        if self.objective is None and return_loss:
            self.prepare_objective()
        vectors, hidden_states = self._embed_views(input_ids, attention_mask, token_type_ids, relations, return_loss)
        if not return_loss:
            return ContrastiveOutput(sentence_embeddings=vectors)
        contrastive_loss, parts = None, None
        if use_objective and vectors.shape[1] >= self.objective.num_views:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            inputs |= {"relations": relations, "text_ids": text_ids}
            inputs = {name: tensor for name, tensor in inputs.items() if tensor is not None}
            found = self.objective(EncodedBatch(vectors, inputs, self, hidden_states))
            contrastive_loss, parts = total_and_parts(found)
        loss, mlm_loss = contrastive_loss, None
        if mlm_input_ids is not None:
            mlm_loss = self._masked_lm_loss(mlm_input_ids, attention_mask, token_type_ids, mlm_targets)
            weighted = self.settings.mlm_weight * mlm_loss
            loss = weighted if loss is None else loss + weighted
        return ContrastiveOutput(
            loss=loss,
            sentence_embeddings=vectors,
            contrastive_loss=contrastive_loss,
            mlm_loss=mlm_loss,
            parts=parts,
        )

    def _encode(self, input_ids, attention_mask, token_type_ids, *, all_layers=False, first_only=False, pooled=False):
        if self.runs_unpadded:
            choice = {"all_layers": all_layers, "first_only": first_only, "pooled": pooled}
            return encode_unpadded(self.base_model, input_ids, attention_mask, token_type_ids, **choice)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:  # DistilBERT and others have no such argument
            inputs["token_type_ids"] = token_type_ids
        return self.base_model(**inputs, output_hidden_states=all_layers)

    def _embed_views(
        self, input_ids, attention_mask, token_type_ids, relations, return_loss
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(batch, num_sentences, dim) vectors and, for objectives that read them, the last layer's hidden states."""
        batch, num_sentences, length = input_ids.shape
        if self.settings.fixed_mask:
            # Equal text under an equal mask gives equal vectors: one pass over the anchors is the exact computation.
            if not (input_ids == input_ids[:, :1]).all():
                raise ValueError("fixed_mask is for views of one sentence: the columns of a row hold different text")
            anchors = self.embed(*(x if x is None else x[:, 0] for x in (input_ids, attention_mask, token_type_ids)))
            return anchors.unsqueeze(1).expand(-1, num_sentences, -1), None
        inputs = (input_ids, attention_mask, token_type_ids)
        if return_loss and self.objective.needs_hidden_states:
            vectors, outputs = self._embed_with_states(*(x if x is None else x.flatten(0, 1) for x in inputs))
            states = outputs.last_hidden_state.view(batch, num_sentences, length, -1)
            return vectors.view(batch, num_sentences, -1), states
        passes = [(self, slice(None))]
        if self.second_encoder is not None and return_loss:
            passes = [(self, slice(0, 1)), (self.second_encoder, slice(1, None))]
        found = []
        for encoder, columns in passes:
            flat = [x if x is None else x[:, columns].flatten(0, 1) for x in inputs]
            vectors = encoder.embed(*flat) if relations is None else encoder._embed_present(*flat)
            found.append(vectors.view(batch, -1, vectors.shape[-1]))
        return torch.cat(found, dim=1), None

    def _embed_present(self, input_ids, attention_mask, token_type_ids) -> torch.Tensor:
        """Vectors of the rows that hold a token, and zeros for the others."""
        present = attention_mask.any(1)
        found = self.embed(*(x if x is None else x[present] for x in (input_ids, attention_mask, token_type_ids)))
        return found.new_zeros(len(present), found.shape[-1]).index_put((present,), found)

    # --- losses ----------------------------------------------------------------------------------------------------

    def _masked_lm_loss(self, masked_ids, attention_mask, token_type_ids, targets) -> torch.Tensor:
        if not self.settings.do_mlm:
            raise ValueError("mlm_input_ids were given to a model without masked-LM head: load it with do_mlm=True")
        flat = (x if x is None else x.flatten(0, -2) for x in (masked_ids, attention_mask, token_type_ids))
        hidden = self._encode(*flat).last_hidden_state
        chosen = targets.view(hidden.shape[:2]) != IGNORED
        logits = self._stock_mlm_head.logits(hidden[chosen])
        total = F.cross_entropy(logits.float(), targets[targets != IGNORED], reduction="sum")
        return mean_over_processes(total, chosen.sum(), self.training)


class BertForCL(ContrastiveModel, BertPreTrainedModel):
    """BERT with the contrastive head; `bert.pooler` is the head."""

    base_class = BertModel


class RobertaForCL(ContrastiveModel, RobertaPreTrainedModel):
    """RoBERTa with the contrastive head; `roberta.pooler` is the head."""

    base_class = RobertaModel
