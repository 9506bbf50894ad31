"""The masked-LM auxiliary loss: random masking of token ids, and a stock head run on masked positions only."""

import copy
import os

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

IGNORED = -100


def mask_tokens(input_ids: torch.Tensor, masker: DataCollatorForLanguageModeling) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks a fresh copy of the batch: of the chosen tokens 80% become [MASK], 10% a random id, 10% stay.

    Drawn from torch's global generator, like dropout, so a resumed run sees the masks an uninterrupted one would.

    Args:
        input_ids: of any shape; left as they are.
        masker: transformers' collator, which holds the tokenizer and the probability.

    Returns:
        The masked ids and the targets: the original id where a token was chosen, -100 elsewhere. Special tokens and
        padding are never chosen.
    """
    flat = input_ids.reshape(-1, input_ids.shape[-1]).cpu()  # transformers' masker draws on the CPU
    special = torch.isin(flat, torch.tensor(masker.tokenizer.all_special_ids))
    masked, targets = masker.torch_mask_tokens(flat.clone(), special_tokens_mask=special)
    return masked.view_as(input_ids).to(input_ids.device), targets.view_as(input_ids).to(input_ids.device)


def masked_lm_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The stock `...ForMaskedLM` class of an encoder.

    Raises:
        ValueError: transformers has none for this encoder.
    """
    try:
        return AutoModelForMaskedLM._model_mapping[type(config)]
    except KeyError:
        raise ValueError(
            f"do_mlm needs a masked-LM head, and transformers has none for model_type {config.model_type!r}. "
            "Train without do_mlm."
        ) from None


def load_masked_lm(source: str | os.PathLike) -> PreTrainedModel:
    """A frozen masked-LM in float32, in evaluation mode.

    Raises:
        ValueError: there is none, or its head is not trained and would be random.
    """
    try:
        model, info = AutoModelForMaskedLM.from_pretrained(source, output_loading_info=True, dtype=torch.float32)
    except OSError as error:
        raise ValueError(f"{source} cannot be loaded as a masked-LM: {error}") from error
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ValueError(f"{source} has no trained masked-LM head (it lacks {missing})")
    return model.eval().requires_grad_(False)


class StockMaskedLMHead:
    """The head of the stock masked-LM class, run on hidden states that are already there.

    Every stock class writes its head differently (`cls`, `lm_head`, `head` + `decoder`, `vocab_transform` + ...), so
    its own forward is used, with the encoder inside it replaced by one that returns what it is given. That costs one
    line where copying the heads would cost a file per architecture, and the checkpoint keeps the stock names, so
    `AutoModelForMaskedLM` loads the trained head.

    Not a module: the modules are registered by the model, under their stock names.
    """

    def __init__(self, config: PreTrainedConfig, encoder: nn.Module):
        one_layer = copy.deepcopy(config)
        one_layer.num_hidden_layers = 1  # its encoder is thrown away below
        self._stock = masked_lm_class(config)(one_layer)
        self._stock.config = config
        self.tied_weights_keys = dict(self._stock._tied_weights_keys or {})
        prefix = self._stock.base_model_prefix
        setattr(self._stock, prefix, _GivenHiddenStates(encoder))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The head's modules by their stock names."""
        return {name: module for name, module in self._stock.named_children() if name != self._stock.base_model_prefix}

    def output_embeddings(self) -> nn.Module:
        return self._stock.get_output_embeddings()

    def set_output_embeddings(self, embeddings: nn.Module) -> None:
        self._stock.set_output_embeddings(embeddings)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(n, dim) hidden states -> (n, vocabulary)."""
        return self._stock(hidden[None]).logits[0]


class _GivenHiddenStates(nn.Module):
    """Stands where the encoder was and returns the hidden states it is called with.

    Whatever else a head asks of its encoder (DeBERTa's reads the word embeddings) comes from the real one.
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, it is no submodule

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._encoder[0], name)

    def forward(self, hidden: torch.Tensor = None, *, input_ids: torch.Tensor = None, **_) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=hidden if hidden is not None else input_ids)
