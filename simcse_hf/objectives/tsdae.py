"""TSDAE: a decoder reconstructs a sentence from the embedding of its damaged copy."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.utils import logging

from ..runtime.distributed import mean_over_processes
from ..runtime.errors import ModelError, SettingError
from .base import EncodedBatch, Objective, TrainedModel, TrainingRows, as_full_precision, no_autocast
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

    name = "tsdae"
    summary = "a sequential denoising auto-encoder (TSDAE): a decoder reconstructs a sentence from its embedding alone"
    papers = ("tsdae",)
    # The paper's best configuration (its section 3), with the training settings of the authors' code.
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
    supports_gradcache = False
    reconstructs = True
    view = ("delete_words", 0.6)

    def attach(self, model: TrainedModel) -> None:
        """Build the decoder around the modules of the encoder.

        Args:
            model (`TrainedModel`): The model to be trained.

        Raises:
            ModelError: If transformers has no decoder for this type of encoder.
            SettingError: If the embeddings have another size than its hidden states.
        """
        size = model.config.hidden_size
        if self.dim != size:
            raise SettingError(
                f"objective 'tsdae' reads embeddings of the hidden size {size}, and these have size {self.dim}: train "
                "without matryoshka_dims and dense_layers"
            )
        # 1. The encoder's own architecture as a decoder, on the encoder's modules wherever it has them.
        encoder: Any = model.base_model
        config = copy.deepcopy(model.config)
        config.update({"is_decoder": True, "add_cross_attention": True, "use_cache": False})
        self.decoder: Any = type(encoder)(config)
        self.decoder.pooler = None
        shared_modules = dict(encoder.named_modules())
        cross_attentions = []
        for name, module in list(self.decoder.named_modules()):
            if name.endswith(".crossattention"):
                cross_attentions.append(module)
                module.self.query.requires_grad_(False)
                module.self.key.requires_grad_(False)
            is_leaf = not list(module.children())
            if is_leaf and name in shared_modules:
                self.decoder.set_submodule(name, shared_modules[name])
        if not cross_attentions:
            raise ModelError(
                "objective 'tsdae': transformers has no decoder with cross-attention for model_type "
                f"{config.model_type!r}: choose BERT, RoBERTa, XLM-R, CamemBERT or ELECTRA, or another objective"
            )
        # 2. The masked-LM head of the checkpoint, if it has one that fits.
        self._head = StockMaskedLMHead(model.config, encoder)
        if model.name_or_path:
            try:
                trained = load_masked_lm(model.name_or_path)
                for name, module in self._head.modules.items():
                    module.load_state_dict(getattr(trained, name).state_dict())
            except (ValueError, RuntimeError) as error:
                logger.info(f"The language-model head of objective 'tsdae' starts at random: {error}")
        self.lm_head = nn.ModuleDict(self._head.modules)
        if model.config.tie_word_embeddings:
            self._head.stock.get_output_embeddings().weight = encoder.get_input_embeddings().weight
        # 3. What is trained, and saved, with the objective and not with the encoder.
        shared = set(encoder.parameters())
        self._own_names = {name for name, parameter in self.named_parameters() if parameter not in shared}
        self.register_state_dict_post_hook(_remove_shared_weights)
        self.to(model.device, encoder.dtype)

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with more than a sentence and its damaged copy, and damaged sentences (`view_both`).

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            SettingError: If the rows do not fit.
        """
        rows.check_width(
            2,
            "objective 'tsdae' reconstructs single sentences: give one column of texts, or two, where the second "
            "holds a damaged copy of the first",
        )
        if getattr(rows.dataset, "both", False):
            raise SettingError("view_both damages the sentences that objective 'tsdae' reconstructs: unset view_both")

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """Compute the mean cross-entropy of the tokens of all processes, as a scalar; see [`Objective.forward`]."""
        ids = batch.inputs["input_ids"][:, 0]
        states = self.decoder(
            # Padding comes last, so no token attends to it and no mask is needed beside the causal one.
            input_ids=ids[:, :-1],
            encoder_hidden_states=batch.embeddings[:, -1:],
            use_cache=False,
        ).last_hidden_state
        predicted = batch.token_index(0, first=1)
        targets = ids[:, 1:].flatten().index_select(0, predicted)
        predicting = states.flatten(0, 1).index_select(0, predicted)
        logits = as_full_precision(self._head.logits(predicting))
        with no_autocast(logits):
            total = F.cross_entropy(logits, targets, reduction="sum")
        return mean_over_processes(total, len(targets), self.training)


def _remove_shared_weights(
    module: TSDAE,
    state_dict: dict[str, torch.Tensor],
    prefix: str,
    _: object,
) -> None:
    """Leave out the encoder's weights, which are in the main file of a checkpoint, and second names of a weight."""
    for name in list(state_dict):
        own_name = name.removeprefix(prefix)
        if name.startswith(prefix) and own_name not in module._own_names:
            del state_dict[name]
