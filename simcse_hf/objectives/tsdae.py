"""TSDAE: a decoder reconstructs a sentence from the embedding of its damaged copy."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..ops.distributed import mean_over_processes
from ..ops.unpadded import token_index
from .base import Objective, TrainingRows, as_full_precision, no_autocast
from .checks import check_rows
from .encoder import EncodedBatch, Encoder
from .masked_lm import StockMaskedLMHead, load_masked_lm

logger = logging.get_logger(__name__)


class TSDAE(Objective):
    r"""Sequential denoising auto-encoder (Wang, Reimers and Gurevych 2021, arXiv:2104.06979, Eq. 1 and 2).

    Column 0 of a row is a sentence, column 1 its damaged copy. The view of training deletes 60% of the words. Only the
    copy is encoded. From its embedding s and the tokens before position t, a Transformer decoder predicts token t of
    the sentence, from the first token after [CLS] to [SEP]:

        - 1/T sum over the T tokens of the batch of log P(x_t | x_<t, s)

    The cross-attention of the decoder has s as its only key and value. Everything else in the decoder is the encoder:
    embeddings, self-attention and feed-forward layers are the same modules, so they are trained, and saved, once. New
    are the cross-attention and the language-model head, whose output weights are tied to the word embeddings. The head
    starts from the masked-LM head of the starting checkpoint if that has one. A softmax over a single key is 1, so the
    query and key layers of the cross-attention have no effect and stay frozen.

    The sentences must be padded on the right, as the package's collator does.

    Args:
        dim (`int`): Embedding size, which must be the encoder's hidden size.
    """

    summary = "a sequential denoising auto-encoder (TSDAE): a decoder reconstructs a sentence from its embedding alone"
    papers = ("tsdae",)
    supports_gradcache = False
    reconstructs = True
    view = ("delete_words", 0.6)
    #: The paper's best configuration (its section 3), with the training settings of the authors' code.
    defaults = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "max_seq_length": 512,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-5,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_steps": 100_000,
    }

    def __init__(self, dim: int):
        super().__init__(dim)
        self.decoder: Any = None
        self._own_names: set[str] = set()
        self.register_state_dict_post_hook(_remove_shared_weights)

    def attach(self, model: Encoder) -> None:
        """Build the decoder around the modules of the encoder.

        Args:
            model (`Encoder`): The model to be trained.

        Raises:
            ValueError: If transformers has no decoder for this type of encoder, or the embeddings have another size
                than its hidden states.
        """
        size = model.config.hidden_size
        if self.dim != size:
            raise ValueError(
                f"the decoder of objective 'tsdae' reads embeddings of the encoder's hidden size, {size}, but the "
                f"embeddings have size {self.dim}: train without matryoshka_dims and without dense_layers"
            )
        encoder: Any = model.base_model
        self.decoder = _build_decoder(encoder, model.config)
        self._head = StockMaskedLMHead(model.config, encoder)
        if model.name_or_path:
            _load_trained_head(self._head, model.name_or_path)
        self.lm_head = nn.ModuleDict(self._head.modules)
        if model.config.tie_word_embeddings:
            self._head.output_embeddings().weight = encoder.get_input_embeddings().weight
        shared = set(encoder.parameters())
        self._own_names = set()
        for name, parameter in self.named_parameters():
            if parameter not in shared:
                self._own_names.add(name)
        self.to(model.device, encoder.dtype)

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with more than a sentence and its damaged copy, and damaged sentences (`view_both`).

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the rows do not fit.
        """
        advice = "give one column of texts, or two, where the second holds a damaged copy of the first"
        check_rows(rows, 2, f"objective 'tsdae' reconstructs single sentences: {advice}")
        if getattr(rows.dataset, "both", False):
            raise ValueError(
                "view_both would damage the sentences that objective 'tsdae' reconstructs, and not only its input: "
                "unset view_both"
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the mean cross-entropy of the tokens of all processes, as a scalar; see [`Objective.forward`]."""
        ids = batch.inputs["input_ids"][:, 0]
        mask = batch.inputs["attention_mask"][:, 0].bool()
        states = self.decoder(
            # Padding comes last, so no token attends to it and no mask is needed beside the causal one.
            input_ids=ids[:, :-1],
            encoder_hidden_states=batch.embeddings[:, -1:],
            use_cache=False,
        ).last_hidden_state
        lengths = None if batch.lengths is None else batch.lengths[:, 0] - 1
        predicted = token_index(mask[:, 1:], lengths)
        targets = ids[:, 1:].flatten().index_select(0, predicted)
        predicting = states.flatten(0, 1).index_select(0, predicted)
        logits = as_full_precision(self._head.logits(predicting))
        with no_autocast(logits):
            total = F.cross_entropy(logits, targets, reduction="sum")
        return mean_over_processes(total, len(targets), self.training)


def _build_decoder(encoder: nn.Module, config: PreTrainedConfig) -> nn.Module:
    """Build the encoder's own architecture as a decoder, on the encoder's modules wherever it has them."""
    config = copy.deepcopy(config)
    config.update({"is_decoder": True, "add_cross_attention": True, "use_cache": False})
    decoder: Any = type(encoder)(config)
    cross_attentions = [module for name, module in decoder.named_modules() if name.endswith(".crossattention")]
    if not cross_attentions:
        raise ValueError(
            "objective 'tsdae' needs a decoder of the encoder's architecture, and transformers has none with "
            f"cross-attention for model_type {config.model_type!r}: choose an encoder of the family of BERT, RoBERTa, "
            "XLM-R, CamemBERT or ELECTRA, or another objective"
        )
    decoder.pooler = None
    shared = dict(encoder.named_modules())
    for name, module in list(decoder.named_modules()):
        is_leaf = not list(module.children())
        if is_leaf and name in shared:
            decoder.set_submodule(name, shared[name])
    for attention in cross_attentions:
        attention.self.query.requires_grad_(False)
        attention.self.key.requires_grad_(False)
    return decoder


def _load_trained_head(head: StockMaskedLMHead, source: str) -> None:
    """Copy the masked-LM head of a checkpoint, if it has one that fits."""
    try:
        trained = load_masked_lm(source)
        for name, module in head.modules.items():
            weights = getattr(trained, name).state_dict()
            module.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:
        logger.info(f"The language-model head of objective 'tsdae' starts at random: {error}")


def _remove_shared_weights(module: TSDAE, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    """Leave out the encoder's weights, which are in the main file of a checkpoint, and second names of a weight."""
    for name in list(state_dict):
        own_name = name.removeprefix(prefix)
        if name.startswith(prefix) and own_name not in module._own_names:
            del state_dict[name]
