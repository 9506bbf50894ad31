"""The auxiliary masked-LM loss: random masking, and the stock head on the masked positions only."""

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..runtime.errors import ModelError, SettingError
from ..runtime.loading import HubArguments, load_weights

IGNORED = -100


def mask_tokens(input_ids: Tensor, masker: DataCollatorForLanguageModeling) -> tuple[Tensor, Tensor]:
    """Mask a copy of the token ids: 80% of the selected tokens become [MASK], 10% a random token, and 10% stay.

    The draws come from torch's global generator, like those of dropout, so a resumed run sees the same masks as an
    uninterrupted one. Special tokens and padding are never selected.

    Args:
        input_ids (`torch.Tensor`): Token ids of any shape. They are not changed.
        masker (`DataCollatorForLanguageModeling`): Transformers' collator, with the tokenizer and the probability.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: The masked ids, and the targets: the original id of each selected token
            and -100 elsewhere.
    """
    flat = input_ids.reshape(-1, input_ids.shape[-1]).cpu()  # transformers' masker draws on the CPU
    special_ids = torch.tensor(masker.tokenizer.all_special_ids)
    special = torch.isin(flat, special_ids)
    masked, targets = masker.torch_mask_tokens(flat.clone(), special_tokens_mask=special)
    masked = masked.view_as(input_ids).to(input_ids.device)
    targets = targets.view_as(input_ids).to(input_ids.device)
    return masked, targets


def mask_batch(
    inputs: Mapping[str, Tensor],
    masker: Callable[[Tensor], tuple[Tensor, Tensor]],
    columns: Sequence[int] | None,
) -> dict[str, Tensor]:
    """Add what the auxiliary masked-LM loss needs to a batch.

    Args:
        inputs (`Mapping[str, torch.Tensor]`): The batch, whose `input_ids` have the shape
            `(batch, num_sentences, length)`.
        masker (`Callable`): Returns masked ids and targets of token ids, as [`mask_tokens`] does.
        columns (`Sequence[int]`, *optional*): See [`Objective.mlm_columns`].

    Returns:
        `dict[str, torch.Tensor]`: The batch. Without `columns` it has `mlm_input_ids` and `mlm_targets` of all
            columns. With `columns`, their `input_ids` are masked, and `mlm_targets` is -100 in the other columns.
    """
    ids = inputs["input_ids"]
    if columns is None:
        masked, targets = masker(ids)
        return {**inputs, "mlm_input_ids": masked, "mlm_targets": targets}
    masked = ids.clone()
    targets = torch.full_like(ids, IGNORED)
    masked[:, columns], targets[:, columns] = masker(ids[:, columns])
    return {**inputs, "input_ids": masked, "mlm_targets": targets}


def load_masked_lm(source: str | os.PathLike, **hub_arguments: Unpack[HubArguments]) -> PreTrainedModel:
    """Load a masked-LM, frozen, in float32 and in evaluation mode.

    Args:
        source (`str` or `os.PathLike`): A directory or a name on the hub.
        **hub_arguments (`Any`): `revision`, `token`, `cache_dir` and the like, as in `from_pretrained`.

    Returns:
        `PreTrainedModel`: The masked-LM.

    Raises:
        ModelError: If it cannot be loaded, or the checkpoint has no masked-LM head, which would then be random.
    """
    try:
        model, info = load_weights(AutoModelForMaskedLM.from_pretrained, source, dtype=torch.float32, **hub_arguments)
    except OSError as error:
        raise ModelError(f"{source} cannot be loaded as a masked-LM: {error}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ModelError(f"{source} has no trained masked-LM head (it lacks {missing})")
    return model.eval().requires_grad_(False)


class StockMaskedLMHead:
    """The head of the stock masked-LM class, applied to hidden states that are already computed.

    Every stock class implements its head differently (`cls`, `lm_head`, `head` + `decoder`, `vocab_transform` + ...).
    This class therefore calls the stock forward, in which the encoder is replaced by a module that returns its input.
    The checkpoint keeps the stock names, so `AutoModelForMaskedLM` loads the trained head.

    This is not a module: the model registers the head's modules under their stock names.

    Args:
        config (`PreTrainedConfig`): The config of the encoder.
        encoder (`nn.Module`): The encoder, for heads that read its word embeddings.

    Raises:
        ValueError: If transformers has no masked-LM class for this encoder.
    """

    def __init__(self, config: PreTrainedConfig, encoder: nn.Module):
        stock_classes: Any = AutoModelForMaskedLM._model_mapping
        if type(config) not in stock_classes:
            raise SettingError(
                f"do_mlm needs a masked-LM head, and transformers has none for {config.model_type!r}: train without it"
            )
        one_layer = copy.deepcopy(config)
        one_layer.num_hidden_layers = 1  # the encoder of the stock model is replaced below
        #: The stock model around the head.
        self.stock: Any = stock_classes[type(config)](one_layer)
        self.stock.config = config
        setattr(self.stock, self.stock.base_model_prefix, _GivenHiddenStates(encoder))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of the head by their stock names."""
        modules = dict(self.stock.named_children())
        del modules[self.stock.base_model_prefix]
        return modules

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states of shape `(n, dim)` into logits of shape `(n, vocabulary)`."""
        return self.stock(hidden[None]).logits[0]


class _GivenHiddenStates(nn.Module):
    """Replaces the encoder of the stock model, and returns the hidden states that it receives.

    Other attributes come from the real encoder: DeBERTa's head reads its word embeddings.
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, so that it is not registered as a submodule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder[0], name)

    def forward(
        self,
        hidden: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        **_: object,
    ) -> BaseModelOutput:
        if hidden is None:
            hidden = input_ids
        return BaseModelOutput(last_hidden_state=hidden)
