"""Contrastive models, BERT's, RoBERTa's and others: a stock encoder with SimCSE's head, an objective and its loss."""

import functools
import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import HfApi
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModel,
    BertModel,
    BertPreTrainedModel,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaModel,
    RobertaPreTrainedModel,
)
from transformers.utils import ModelOutput, logging

from ..kernels.packing import Packing
from ..kernels.unpadded import ATTENTION_NAME, avoid_cudnn_attention, run_encoder
from ..objectives import ByDataset, EncodedBatch, Objective, build_objective, described_objective
from ..objectives.base import ROW_INPUTS, TEXT_INPUTS, add_up, as_full_precision
from ..objectives.masked_lm import IGNORED
from ..objectives.promptbert import embed_templates
from ..runtime.distributed import mean_over_processes
from ..runtime.errors import DataError, ModelError, SettingError, check_values
from ..runtime.files import StrPath, digest, write_text
from ..runtime.loading import (
    check_finite_weights,
    explain_damage,
    find_file,
    load_base,
    load_weights,
    select_hub_arguments,
    without_bar,
)
from ..runtime.upload import commit_folder, name_in_card
from . import adapters, checkpoint, pooling
from .checkpoint import Checkpoint, WeightDigests, digest_encoder
from .parts import ContrastiveBase
from .settings import LOSS_OPTIONS, SETTING_NAMES, ContrastiveSettings, chosen

logger = logging.get_logger(__name__)

#: Arguments of `save_pretrained` that concern the upload.
_HUB_ARGUMENTS = ("push_to_hub", "repo_id", "commit_message", "private", "create_pr", "token", "tags")

#: Texts as the arguments of [`ContrastiveModel.embed`] by name, or rows of texts with one more axis.
_Texts = dict[str, Any]


@dataclass
class ContrastiveOutput(ModelOutput):
    """The output of a contrastive model.

    Args:
        loss (`torch.Tensor`, *optional*): The contrastive loss + `mlm_weight` * the masked-LM loss, where the batch
            has them.
        sentence_embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`, or `(batch, dim)` for
            inputs of two dimensions, not normalized.
        contrastive_loss (`torch.Tensor`, *optional*): The objective's part of the loss. `None` if a row holds a single
            sentence.
        mlm_loss (`torch.Tensor`, *optional*): The masked-LM loss before it is weighted. `None` without masked inputs.
        parts (`dict[str, torch.Tensor]`, *optional*): The named parts of `contrastive_loss`, if there are several.

    Examples:
        >>> from transformers import AutoTokenizer
        >>> from simcse_hf import AutoModelForCL, ContrastiveCollator
        >>> model = AutoModelForCL.from_pretrained("outputs/my-model")
        >>> collator = ContrastiveCollator(AutoTokenizer.from_pretrained("outputs/my-model"))
        >>> output = model(**collator([{"input_ids": [[2, 10, 11, 3]]}, {"input_ids": [[2, 12, 3]]}]))
        >>> output.sentence_embeddings.shape  # 2 rows; each single sentence is there twice, as its own positive
        torch.Size([2, 2, 64])
        >>> output.loss.shape, output.mlm_loss
        (torch.Size([]), None)
    """

    loss: Tensor | None = None
    sentence_embeddings: Tensor | None = None
    contrastive_loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    parts: dict[str, Tensor] | None = None


def preserve_random_state(device: torch.device) -> AbstractContextManager:
    """Save the random state of the CPU and of a device, and restore it on exit."""
    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices, device_type=device.type)


class ContrastiveModel(ContrastiveBase):
    """The contrastive model, combined with the `...PreTrainedModel` class of an encoder family (see `BertForCL`).

    The encoder keeps its stock name and layout. If it has a pooler of its own (dense + tanh over [CLS]), that pooler
    *is* SimCSE's head. So `AutoModel.from_pretrained` loads what `save_pretrained` writes, with no missing and no
    unexpected weights, and its `pooler_output` is the output of the trained head.

    The settings (`ContrastiveSettings`) are keyword arguments of the constructor and of `from_pretrained`:

        model = BertForCL.from_pretrained("bert-base-uncased", pooler_type="cls", temperature=0.05)

    Args:
        config (`PreTrainedConfig`): The config of the encoder, which is not changed.
        resolved (`ContrastiveSettings`, *optional*): All settings, in place of those of the config; by
            `from_pretrained`.
        unpadded (`bool`, *optional*, defaults to `True`): Leave padding out of the computation, for encoders that
            allow it (see [`runs_unpadded`]). The attribute may be set at any time. It changes the speed and not
            the embeddings, and is not saved.
        fast_dropout (`bool`, *optional*, defaults to `True`): Replace the encoder's `nn.Dropout` modules by
            `FastDropout`, which draws its masks faster on a CPU. With `False` the encoder keeps torch's modules.
        settings (`Any`): Settings that come before those of the config.
    """

    #: The steps of all runs that have trained this object, for their record.
    trained_steps = 0
    accepts_loss_kwargs = False  # the loss is a mean over the batch, so the Trainer divides it for accumulation
    # Settings and file of the objective of the checkpoint that the model was loaded from.
    _saved_objective: tuple[ContrastiveSettings, str] | None = None
    #: Where the model was saved: the card of a push lies beside equal weights.
    folders: tuple[str, ...] = ()

    # --- embeddings -------------------------------------------------------------------------------------------------

    @property
    def active_pooler(self) -> str:
        """The pooler of the current mode, training or evaluation."""
        return self.settings.pooler_type if self.training else self.settings.inference_pooler

    @property
    def runs_unpadded(self) -> bool:
        """Whether padding is left out: `unpadded` is set, and the encoder allows it as it is now.

        BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT, ALBERT and ModernBERT do, with the attention that
        `install_unpadded_attention` gave them. MPNet and DeBERTa do not, because their attention depends on distances
        within the row. Nor does an encoder in training with gradient checkpointing, which calls layers again after the
        pass, or one whose modules lie on several accelerators, because the packing of a batch stays on one.
        """
        if not self.unpadded or self.base_model.config._attn_implementation != ATTENTION_NAME:
            return False
        placed = getattr(self, "hf_device_map", {})  # by Accelerate
        accelerators = {str(device) for device in placed.values()} - {"cpu", "disk"}
        if len(accelerators) > 1:
            return False
        if not self.training:  # inference need not walk the model
            return True
        return not any(getattr(module, "gradient_checkpointing", False) for module in self.base_model.modules())

    @functools.cached_property
    def counted_parameters(self) -> int:
        """The number of parameters without embeddings, which is counted once."""
        return self.num_parameters(exclude_embeddings=True)

    def embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        packing: Packing | None = None,
        outputs: Any = None,
    ) -> Tensor:
        """Embed sentences with the pooler of the current mode, training or evaluation.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
            attention_mask (`torch.Tensor`, *optional*): 1 for a token and 0 for padding. Defaults to ones.
            token_type_ids (`torch.Tensor`, *optional*): Of the same shape.
            packing (`Packing`, *optional*): See [`forward`].
            outputs (`ModelOutput`, *optional*): The outputs of the encoder, if [`encode_tokens`] has computed them.

        Returns:
            `torch.Tensor`: Embeddings of shape `(batch, dim)`.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        # torch.compile cannot trace a call of an alias such as `_Texts`.
        texts = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": token_type_ids, "packing": packing}
        if outputs is None:
            outputs = self.encode_tokens(texts)
        pooler_type = self.active_pooler
        states = outputs.last_hidden_state
        if pooler_type == pooling.TEMPLATE_POOLER:
            embeddings = pooling.at_mask(states, input_ids, self.settings.mask_token_id)
            if self.template_head is not None:
                embeddings = self.template_head(embeddings, self._template_states(texts))
        elif self.ngram_head is not None:
            features = self.ngram_head(states, mask)
            embeddings = pooling.masked_mean(features, mask)
        else:
            embeddings = pooling.POOLERS[pooler_type].pool(states, mask, outputs.hidden_states)
        if pooler_type == "cls":
            encoder: Any = self.base_model
            if not self.has_own_pooler:
                embeddings = self.sentence_head(embeddings)
            elif isinstance(encoder.pooler, nn.Linear):  # ALBERT and BigBird keep their tanh beside it
                activation = getattr(encoder, "pooler_activation", None) or encoder.activation
                embeddings = activation(encoder.pooler(embeddings))
            else:
                embeddings = encoder.pooler(embeddings[:, None])
        for layer in self.dense_layers:
            embeddings = layer(embeddings)
        return embeddings

    def encode_tokens(self, texts: _Texts, whole_last_layer: bool = False, pools: bool = True) -> Any:
        """Encode tokens, computing only the states that the pooler of the current mode reads.

        Args:
            texts (`dict`): The first four arguments of [`embed`] by name.
            whole_last_layer (`bool`, *optional*, defaults to `False`): Compute the whole last layer in any case.
            pools (`bool`, *optional*, defaults to `True`): `False` for the last layer alone, whatever the pooler.

        Returns:
            `ModelOutput`: The outputs of the encoder.

        Raises:
            DataError: If a text has no token, and there is a pooler. The collator has checked a batch with packing.
        """
        packing = texts.get("packing")
        if torch.compiler.is_compiling():
            kernels: AbstractContextManager = nullcontext()  # the Trainer switches kernels around compiled code
            unpadded = packing is not None
        else:
            kernels = avoid_cudnn_attention(texts["input_ids"].device)
            unpadded = self.runs_unpadded
            if pools and packing is None:
                has_tokens = texts["attention_mask"].any(1)
                if not has_tokens.all():
                    raise DataError(
                        f"sentence {has_tokens.int().argmin()} of the batch has no token in attention_mask: remove it"
                    )
            if packing is None and getattr(self.config, "sliding_window", None):
                # The window of a packed row would not count the holes in a mask.
                starts = F.pad(texts["attention_mask"].bool().int(), (1, 0)).diff() > 0
                unpadded = unpadded and bool((starts.sum(1) <= 1).all())
        pooler = pooling.POOLERS[self.active_pooler] if pools else pooling.Pooler()
        with kernels:
            return run_encoder(
                self.base_model,
                **texts,
                unpadded=unpadded,
                reads_left_to_right=self.reads_left_to_right,
                all_layers=pooler.second_layer is not None,
                first_only=pooler.reads_first_token and not whole_last_layer,
            )

    def _template_states(self, texts: _Texts) -> Tensor:
        """Return the state at the mask token of each text's template without the text, of shape `(batch, dim)`."""

        def embed(**alone: Tensor) -> Tensor:
            outputs = self.encode_tokens(alone)
            return pooling.at_mask(outputs.last_hidden_state, alone["input_ids"], self.settings.mask_token_id)

        tokens = {name: x for name, x in texts.items() if name in TEXT_INPUTS and x is not None}
        first = texts["input_ids"].new_zeros(len(texts["input_ids"]))
        return embed_templates(embed, tokens, first, self.settings.template_edges)

    def embed_rows(
        self, texts: _Texts, packing: Packing | None, has_gaps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Embed the sentences of each row as training does: which columns, with which encoder, in which passes.

        Args:
            texts (`dict`): `input_ids` and `attention_mask` of shape `(batch, num_sentences, length)`, and optional
                `token_type_ids`.
            packing (`Packing`, *optional*): Where the tokens of all texts lie.
            has_gaps (`bool`, *optional*, defaults to `False`): Whether there may be texts without tokens, which get
                embeddings of zeros.

        Returns:
            `tuple[torch.Tensor, torch.Tensor | None]`: Embeddings of shape `(batch, num_sentences, dim)` of the
            columns that the objective reads and, if it reads them, the last layer's hidden states of shape
            `(batch, num_sentences, length, dim)`. Without an objective, all columns are embedded.

        Raises:
            DataError: If `fixed_mask` is set, and a row holds different texts.
            SettingError: If it is set, and the objective needs more than one embedding of each text.
        """
        objective = self.objective
        first = 1 if objective is not None and objective.reconstructs else 0
        shape = texts["input_ids"].shape
        ids = texts["input_ids"][:, first:]
        needs_states = objective is not None and objective.needs_hidden_states
        # Each pass encodes some columns with one encoder.
        passes: list[tuple[ContrastiveModel, slice]] = [(self, slice(first, None))]
        if self.second_encoder is not None:
            passes = [(self, slice(0, 1)), (cast(Self, self.second_encoder), slice(1, None))]
        if self.settings.fixed_mask:
            if self.second_encoder is not None or needs_states:
                reads = "hidden states" if needs_states else "a second encoder"
                name = self.settings.objective
                raise SettingError(
                    f"fixed_mask gives each text one embedding, and objective {name!r} needs {reads}: train without it"
                )
            if not (ids == ids[:, :1]).all():
                raise DataError("fixed_mask is for views of one sentence, but a row holds different texts. Unset it.")
            # Equal texts under the same dropout mask have equal embeddings, so one pass over the anchors is exact.
            passes = [(self, slice(0, 1))]
        columns_of_passes = []
        states = []
        for encoder, columns in passes:
            flat = {name: x[:, columns].flatten(0, 1) for name, x in texts.items()}
            flat["packing"] = packing
            if packing is not None and columns != slice(0, None):
                numbers = np.arange(shape[0] * shape[1]).reshape(shape[:2])
                flat["packing"] = packing.select(numbers[:, columns].ravel())
            if has_gaps:
                # Attention needs a token, so the first one of the padding of an absent text takes part.
                mask = flat["attention_mask"]
                absent = ~mask.any(1, keepdim=True)
                filler = F.pad(absent, (0, mask.shape[1] - 1))
                flat["attention_mask"] = mask.masked_fill(filler, 1)
                if self.settings.templates:  # whose pooler reads a mask token
                    flat["input_ids"] = flat["input_ids"].masked_fill(filler, self.settings.mask_token_id)
            outputs = None
            if needs_states:
                outputs = encoder.encode_tokens(flat, whole_last_layer=True)
                states.append(outputs.last_hidden_state.unflatten(0, (len(ids), -1)))
            embeddings = encoder.embed(**flat, outputs=outputs)
            if has_gaps:
                embeddings = embeddings.masked_fill(absent, 0.0)
            columns_of_passes.append(embeddings.unflatten(0, (len(ids), -1)))
        embeddings = torch.cat(columns_of_passes, dim=1)
        return embeddings.expand(-1, ids.shape[1], -1), torch.cat(states, dim=1) if needs_states else None

    @torch.no_grad()
    def views_are_equal(self, input_ids: Tensor, attention_mask: Tensor, only_attention_dropout: bool = False) -> bool:
        """Say whether the two views of each row have the same embedding in a training step, as without dropout.

        The model and the random state stay as they were.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, 2, length)`.
            attention_mask (`torch.Tensor`): Of the same shape.
            only_attention_dropout (`bool`, *optional*, defaults to `False`): Switch off all other dropout.

        Returns:
            `bool`: Whether the embeddings are equal in all bits.
        """
        training = self.training
        hooks = []
        for module in self.modules():
            if only_attention_dropout and isinstance(module, nn.Dropout):
                # Attention weights have an axis of heads, and so four axes; states have fewer.
                keep = module.register_forward_hook(lambda _, inputs, out: out if out.dim() == 4 else inputs[0])
                hooks.append(keep)
        try:
            with preserve_random_state(self.device):
                self.train()
                ids = input_ids.flatten(0, 1).to(self.device)
                mask = attention_mask.flatten(0, 1).to(self.device)
                flat = self.embed(ids, mask)
        finally:
            self.train(training)
            for hook in hooks:
                hook.remove()
        views = flat.unflatten(0, input_ids.shape[:2])
        return torch.equal(views[:, 0], views[:, 1])

    # --- the loss ---------------------------------------------------------------------------------------------------

    def prepare_objective(self) -> Objective:
        """Create what training needs beside the encoder: the objective, and the second encoder if there are two.

        The Trainer calls this before it creates the optimizer. Without a Trainer, the first loss does. If the model
        was loaded from a checkpoint with the same objective, the objective continues from its saved state.

        Returns:
            [`Objective`]: The objective, which is created once.

        Raises:
            ModelError: If the objective is unknown, or has no such options, or their values are not valid.
        """
        if self.objective is not None:
            return self.objective
        # 1. Build the objective, or that of each data set, for embeddings of the size that they shall have.
        losses = self.settings.losses().values()
        enters_space = any(described_objective(*loss).enters_space for loss in losses)
        size = self.teacher_dim
        if enters_space and size is not None and size != self.embedding_dim:
            self.add_projection(size)
        settings = self.settings
        tables = settings.dataset_objectives
        build = functools.partial(build_objective, dim=self.embedding_dim)
        main: Any = None
        if not tables or {} in tables.values():
            main = build(settings.objective, options=settings.objective_options)
        objectives = {}
        for dataset, own in tables.items():
            objectives[dataset] = build(own["objective"], options=own["objective_options"]) if own else main
        objective: Objective = ByDataset(self.embedding_dim, objectives, main) if tables else main
        # 2. Refuse to train an encoder under a random head that is frozen, as peft leaves it. An adapter file does not
        # hold the head. After reloading, another random head would follow the encoder.
        head_learns = any(parameter.requires_grad for parameter in self.contrastive_head.parameters())
        encoder_learns = any(parameter.requires_grad for parameter in self.base_model.parameters())
        is_used = settings.inference_pooler == "cls" and self.head_source != "kept"
        if is_used and encoder_learns and not head_learns:
            head = "pooler" if self.has_own_pooler else "sentence_head"
            raise ModelError(
                "The dense + tanh head was drawn at random and is frozen, so training cannot change it, and the "
                f"adapter files of peft do not hold it. Add modules_to_save=[{head!r}] to the peft config, or "
                "unfreeze the head, or load the model with another pooler_type, such as 'avg'."
            )
        # 3. Let the objective change the encoder, and continue from its saved state.
        objective.attach(self)
        if objective.encoders == 2:
            self.second_encoder = self.copy_encoder()
            for name, parameter in self.second_encoder.named_parameters():
                parameter.requires_grad = self.get_parameter(name).requires_grad  # frozen by the caller
        self.objective = objective.to(self.device).train(self.training)
        if self._saved_objective is not None:
            saved, path = self._saved_objective
            checkpoint.load_objective_state(self, path, saved)
        return objective

    def digest_encoder(self) -> str:
        """Return a digest of the encoder, with an adapter merged, by which the record of a run knows its model."""
        weights = self.state_dict()
        if self.has_adapter():
            weights = adapters.merged_weights(self, weights)
        return digest_encoder(self, weights)

    def copy_encoder(self) -> Self:
        """Return an independent copy of the encoder, its head and its pooler, without objective and masked-LM head."""
        if self.has_adapter():
            name = self.settings.objective
            raise SettingError(f"objective {name!r} has a second encoder, without the adapter: train without lora_r")
        twin = type(self)(self.config, do_mlm=False, unpadded=self.unpadded, fast_dropout=self.fast_dropout)
        weights = self.state_dict()
        twin.load_state_dict({name: weights[name] for name in twin.state_dict()})
        cast(nn.Module, twin).to(self.device, self.dtype)
        return twin.train(self.training)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mlm_input_ids: Tensor | None = None,
        mlm_targets: Tensor | None = None,
        packing: Packing | None = None,
        return_loss: bool = True,
        **others: Any,
    ) -> ContrastiveOutput:
        """Encode all sentences of the batch in one pass and compute the loss.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, num_sentences, length)`: anchor, positive, then
                hard negatives. With the shape `(batch, length)`, the output has the embeddings of [`embed`] alone.
            attention_mask (`torch.Tensor`, *optional*): 1 for a token and 0 for padding, of the same shape. Defaults
                to ones.
            token_type_ids (`torch.Tensor`, *optional*): Of the same shape.
            mlm_input_ids (`torch.Tensor`, *optional*): Token ids masked for the auxiliary loss, of the same shape,
                for a second encoder pass. Without them, `input_ids` themselves are masked (see
                [`Objective.mlm_columns`]).
            mlm_targets (`torch.Tensor`, *optional*): The original ids where masked and -100 elsewhere, of the same
                shape.
            packing (`Packing`, *optional*): Where the tokens of the texts lie in a row without padding, as the
                Trainer's collator makes it. `attention_mask` must agree with it. By default it is made from the mask.
            return_loss (`bool`, *optional*, defaults to `True`): `False` leaves the objective out and returns the
                embeddings of training, and the masked-LM loss of `mlm_targets`. (This argument tells the Trainer that
                there is an `eval_loss`.)
            others (`Any`): Tensors that the objective reads beside the texts, named in `ROW_INPUTS` and described in
                [`EncodedBatch`]; and `output_attentions`, `return_dict` and the like, which peft passes with values
                that ask for nothing.

        Returns:
            [`ContrastiveOutput`]: The embeddings and the loss.

        Raises:
            SettingError: If an argument is not supported, the inputs do not fit together, masked inputs are given to a
                model without `do_mlm`, or `fixed_mask` is set and the views of a row are not the same text.
        """
        # 1. Refuse inputs that do not fit together.
        row_inputs = {name: others.pop(name) for name in ROW_INPUTS if others.get(name) is not None}
        asked = [name for name, x in others.items() if x is not None and x is not False and name != "return_dict"]
        if asked:
            raise SettingError(
                f"{', '.join(asked)}: not supported, as embeddings are returned. Call model.base_model."
            )
        shape = tuple(input_ids.shape)
        if len(shape) not in (2, 3):
            raise SettingError(f"input_ids must be (batch, num_sentences, length) or (batch, length), got {shape}")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # 2. Single texts. A sharded model gathers its weights in `forward`, so `embed` would not do.
        if input_ids.dim() == 2:
            embeddings = self.embed(input_ids, attention_mask, token_type_ids, packing)
            return ContrastiveOutput(sentence_embeddings=embeddings)
        # 3. The embeddings of rows, which the objective decides.
        if return_loss:
            self.prepare_objective()
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            batch["token_type_ids"] = token_type_ids
        embeddings, hidden_states = self.embed_rows(batch, packing, has_gaps="relations" in row_inputs)
        # 4. The losses.
        loss = contrastive_loss = mlm_loss = parts = None
        if return_loss and self.objective is not None and input_ids.shape[1] >= self.objective.num_views:
            encoded = EncodedBatch(embeddings, batch | row_inputs, self, hidden_states, packing)
            contrastive_loss, parts = add_up(self.objective(encoded))
            loss = contrastive_loss
        if mlm_targets is not None:
            if mlm_input_ids is not None:
                masked: _Texts = {name: x.flatten(0, 1) for name, x in (batch | {"input_ids": mlm_input_ids}).items()}
                masked["packing"] = packing
                hidden_states = self.encode_tokens(masked, pools=False).last_hidden_state
            if not self.settings.do_mlm:
                raise SettingError(
                    "mlm_targets were given to a model without masked-LM head. Load it with do_mlm=True."
                )
            if hidden_states is None:
                name = self.settings.objective
                raise SettingError(
                    f"objective {name!r} keeps no hidden states for mlm_targets. Give mlm_input_ids, too."
                )
            is_masked = mlm_targets != IGNORED
            masked_states = hidden_states.view(*mlm_targets.shape, -1)[is_masked]
            logits = self._stock_mlm_head.logits(masked_states)
            total = F.cross_entropy(as_full_precision(logits), mlm_targets[is_masked], reduction="sum")
            mlm_loss = mean_over_processes(total, is_masked.sum(), self.training)
            weighted = self.settings.mlm_weight * mlm_loss
            loss = weighted if loss is None else loss + weighted
        return ContrastiveOutput(loss, embeddings, contrastive_loss, mlm_loss, parts)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def save_pretrained(  # type: ignore[override]  # kwargs are the other arguments of transformers
        self, save_directory: StrPath, *, state_dict: pooling.StateDict | None = None, **kwargs: Any
    ) -> None:
        """Save the model as transformers does, with the files of sentence-transformers beside the weights.

        If the encoder has no pooler of its own, our head is among those files and not in the weights. An adapter of
        peft is merged into the weights that are saved, or saved in their place if `save_adapter` is set. A whitening
        or flow in the directory (`simcse-hf postprocess fit`) is removed, because it was fitted on the embeddings of
        the weights that are replaced.

        Args:
            save_directory (`str` or `os.PathLike`): The directory. It is created if necessary.
            state_dict (`dict[str, torch.Tensor]`, *optional*): The weights to save. Defaults to the model's own.
            kwargs (`Any`): The other arguments of transformers' `save_pretrained`.

        Raises:
            SettingError: If the adapter alone is to be saved as a `variant`, which peft does not have.
        """
        if self.save_adapter and kwargs.get("variant") is not None:
            raise SettingError("an adapter has no variant: leave variant out, or save_adapter for the merged weights")
        upload = {name: kwargs.pop(name) for name in _HUB_ARGUMENTS if name in kwargs}
        writes = kwargs.get("is_main_process", True)
        with checkpoint.replace_model(save_directory, self.save_adapter, writes) as folder:
            self.write_files(folder, state_dict, **kwargs)
        self.folders += (str(save_directory),)
        if upload.pop("push_to_hub", False):
            self.push_to_hub(**{"repo_id": Path(save_directory).name, **upload})

    def _upload_modified_files(  # type: ignore[override]  # options are the other arguments of transformers
        self,
        working_dir: StrPath,
        repo_id: str,
        files_timestamps: dict[str, float],
        commit_message: str | None = None,
        token: bool | str | None = None,
        **options: Any,
    ) -> Any:
        """Upload the model for `push_to_hub` with its card, and remove what an earlier one has left there."""

        def state(folder: Path) -> list[str]:
            return [
                digest(file) for name in ("config.json", "*model*.safetensors") for file in sorted(folder.glob(name))
            ]

        for name in (self.name_or_path, *self.folders):
            folder = Path(name or "")
            card = folder / "README.md"
            if card.is_file() and state(folder) == state(Path(working_dir)):
                write_text(Path(working_dir, card.name), name_in_card(card.read_text(encoding="utf-8"), repo_id))
        api = HfApi(token=token, library_name="simcse_hf")
        return commit_folder(api, working_dir, repo_id, commit_message=commit_message or "Upload model", **options)

    def write_files(self, folder: StrPath, state_dict: pooling.StateDict | None = None, **kwargs: Any) -> None:
        """Write all files of the model into a folder without an earlier one; see [`save_pretrained`].

        Args:
            folder (`str` or `os.PathLike`): The folder.
            state_dict (`dict[str, torch.Tensor]`, *optional*): The weights to save. Defaults to the model's own.
            kwargs (`Any`): The other arguments of transformers' `save_pretrained`.
        """
        if state_dict is None:
            state_dict = self.state_dict()
        weights = dict(state_dict)
        if self.has_adapter():
            weights = adapters.merged_weights(self, weights)
        # Under the names of this model: those of an old checkpoint (LayerNorm.gamma) could not be loaded back into it.
        kwargs.setdefault("save_original_format", False)
        if not self.save_adapter:
            separate = checkpoint.SEPARATE_MODULES
            main = {name: x for name, x in weights.items() if name.split(".")[0] not in separate}
            with without_bar(self.get_memory_footprint()):
                super().save_pretrained(folder, state_dict=main, **kwargs)
        if not kwargs.get("is_main_process", True):
            return
        checkpoint.save_own_files(self, folder, weights)
        if self.save_adapter:
            adapters.save_adapter(self, folder, weights)
            return
        WeightDigests.of(self, weights).write(Path(folder))
        # transformers has written the name of our class, which converters and inference servers do not know. Our class
        # is found by the section `simcse`.
        self.config.architectures = [self.base_class.__name__]
        self.config.save_pretrained(folder)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # kwargs are the other arguments of transformers
        cls, name_or_path: StrPath | Checkpoint, *, head: str = "auto", **kwargs: Any
    ) -> Self:
        """Load a model as transformers does, with the contrastive settings as further keyword arguments.

        Weights are loaded in float32 unless `dtype` is given.

        Args:
            name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub: a checkpoint of
                this package, a folder of sentence-transformers, a published SimCSE model (an encoder with its pooler
                and nothing else), the training output of the reference implementation (`mlp.*`), or a masked-LM
                checkpoint. Or what [`Checkpoint.find`] has found in one.
            head (`str`, *optional*, defaults to `"auto"`): `"keep"` the checkpoint's dense + tanh head, draw a
                `"fresh"` one, or `"auto"`: keep it if it was trained as a head of embeddings. The choice is logged and
                stands in `model.head_source`. A checkpoint may hold the head twice, in the encoder's own pooler and in
                `2_Dense`, from which sentence-transformers reads it. If the two differ, `"pooler"` or `"dense"` says
                which one to keep.
            kwargs (`Any`): Settings (`ContrastiveSettings`), config values such as `hidden_dropout_prob=0.2`, and
                the other arguments of transformers' `from_pretrained`.

        Returns:
            [`ContrastiveModel`]: The model in evaluation mode. With `output_loading_info=True`, a tuple of the model
            and the loading info.

        Raises:
            ValueError: If `head` is unknown, the checkpoint does not have that head, it has two different heads and
                `head` does not choose, or a setting is not valid.
        """
        found = name_or_path
        if not isinstance(found, Checkpoint):
            found = Checkpoint.find(found, config_class=cls.config_class or AutoConfig, **kwargs)
        check_values(checkpoint.HEAD_CHOICES, head=head)
        kwargs = found.arguments | kwargs
        given = chosen({name: kwargs.pop(name) for name in (*SETTING_NAMES, *LOSS_OPTIONS) if name in kwargs})
        names = found.weight_names  # refused in plain words if there are none
        if found.saved is None and checkpoint.REFERENCE_HEAD in names:
            renamed = {r"^mlp\.": f"{cls.base_model_prefix}.pooler."}
            if cls.base_model_prefix == "bert":  # the reference calls BERT's masked-LM head like RoBERTa's
                renamed[r"^lm_head\."] = "cls.predictions."
            kwargs["key_mapping"] = renamed | (kwargs.get("key_mapping") or {})
        kwargs.setdefault("dtype", kwargs.pop("torch_dtype", torch.float32))
        wants_info = kwargs.pop("output_loading_info", False)
        # The settings are one argument: transformers moves an argument that is also a key of config.json into the
        # config, and some configs have a `pooler_type` of their own.
        kwargs["resolved"] = found.resolve(given)
        load = functools.partial(load_weights, super().from_pretrained)
        if found.base is None:
            model, info = load(found.name, **kwargs)
        else:
            model, info = load_base(load, found.name, found.base, **kwargs)
            with preserve_random_state(model.device):  # peft draws an adapter before it is loaded
                adapters.load_adapter(model, found.name, select_hub_arguments(kwargs))
            model.config.name_or_path = model.name_or_path = str(found.name)
        model.commit = found.commit
        model.given_settings = given
        checkpoint.load_own_layers(model, found, head, info)
        check_finite_weights(model, found.name)
        model.freeze_unused_parameters()  # loading has replaced the parameters
        if found.saved is not None:
            path = find_file(found.source, checkpoint.OBJECTIVE_FILE, **found.hub)
            if path is not None:
                model._saved_objective = (found.saved, path)
        if wants_info:
            return cast(Any, (model, info))
        return model


class BertForCL(ContrastiveModel, BertPreTrainedModel):
    """BERT as a contrastive model. Its head is `bert.pooler`.

    Examples:
        >>> from transformers import AutoTokenizer
        >>> from simcse_hf import BertForCL
        >>> model = BertForCL.from_pretrained("outputs/my-model")
        >>> tokenizer = AutoTokenizer.from_pretrained("outputs/my-model")
        >>> batch = tokenizer(["The chef cooked the soup.", "The cook made soup."], padding=True, return_tensors="pt")
        >>> model(**batch).sentence_embeddings.shape
        torch.Size([2, 64])
    """

    base_class = BertModel


class RobertaForCL(ContrastiveModel, RobertaPreTrainedModel):
    """RoBERTa as a contrastive model. Its head is `roberta.pooler`.

    Examples:
        >>> from transformers import RobertaConfig
        >>> from simcse_hf import RobertaForCL
        >>> config = RobertaConfig(vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> RobertaForCL(config, pooler_type="avg").embedding_dim  # with random weights
        8
    """

    base_class = RobertaModel


@functools.cache
def contrastive_class(config_class: type[PreTrainedConfig]) -> type[ContrastiveModel]:
    """Return the contrastive class of an encoder, and create it if it is neither `BertForCL` nor `RobertaForCL`.

    Args:
        config_class (`type[PreTrainedConfig]`): The config class of the encoder, such as `ModernBertConfig`.

    Returns:
        `type[ContrastiveModel]`: The class, such as `ModernBertForCL`.

    Raises:
        ModelError: If `AutoModel` has no encoder for the config, or the model does not encode texts.
    """
    for named in (BertForCL, RobertaForCL):
        if config_class is named.config_class:
            return named
    try:
        base_class: Any = AutoModel._model_mapping[config_class]
        arguments = inspect.signature(base_class.forward).parameters.keys()
    except (KeyError, AttributeError):  # Funnel has a tuple of two models
        name = config_class.__name__
        raise ModelError(f"AutoModel has no encoder, or several, for {name}. Load a text encoder like BERT.") from None
    is_decoder = config_class in MODEL_FOR_CAUSAL_LM_MAPPING and config_class not in MODEL_FOR_MASKED_LM_MAPPING
    needed = {"input_ids", "attention_mask"}
    if is_decoder:
        needed.add("position_ids")
    if config_class in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING or not needed <= arguments:
        name = base_class.__name__
        raise ModelError(f"{name} is not a text encoder or decoder. Load one, such as BERT or Llama.")
    for family in base_class.__mro__[1:]:
        # Not an encoder that the class extends, which has a `forward`: every weight would be there twice.
        is_family = issubclass(family, PreTrainedModel) and family.forward is PreTrainedModel.forward
        if is_family and family.base_model_prefix:
            break
    name = base_class.__name__.removesuffix("Model") + "ForCL"
    attributes = {"base_class": base_class, "config_class": config_class, "reads_left_to_right": is_decoder}
    return type(name, (ContrastiveModel, family), attributes)


class AutoModelForCL:
    """Choose the contrastive class by the checkpoint's `model_type`, never by its name.

    Examples:
        >>> from simcse_hf import AutoModelForCL
        >>> model = AutoModelForCL.from_pretrained("outputs/my-model", objective="simcse+barlow_twins:0.1")
        >>> type(model).__name__
        'BertForCL'
        >>> model.settings.pooler_type, model.settings.objective
        ('avg', 'simcse+barlow_twins:0.1')
    """

    @classmethod
    def from_pretrained(cls, name_or_path: StrPath | Checkpoint, **kwargs: Any) -> ContrastiveModel:
        """Load a contrastive model of the class that fits the checkpoint.

            checkpoint = Checkpoint.find("bert-base-uncased")
            model = AutoModelForCL.from_pretrained(checkpoint, pooler_type="avg")

        Args:
            name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub, or what
                [`Checkpoint.find`] has found there.
            kwargs (`Any`): The arguments of [`ContrastiveModel.from_pretrained`].

        Returns:
            [`ContrastiveModel`]: The model, in evaluation mode.
        """
        found = name_or_path if isinstance(name_or_path, Checkpoint) else Checkpoint.find(name_or_path, **kwargs)
        model_class = contrastive_class(type(found.config))  # type: ignore[arg-type]  # hashable
        with explain_damage(found.name):
            return model_class.from_pretrained(found, **kwargs)

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
