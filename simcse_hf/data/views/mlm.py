"""The views `mlm` and `crop+mlm`: tokens are replaced by samples from a masked language model."""

import os
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ...objectives.masked_lm import load_masked_lm
from ...runtime.errors import ModelError, check_values
from .words import Crop, TextView, draw_count

_ROWS_PER_PASS = 64  # bounds the memory of the logits, which have shape (rows, length, vocabulary)

_CROP = Crop(0.1)  # "Crop 10% + MLM 15%" in Table 2 of the first version of arXiv:2104.08821


class ReplaceTokens(TextView):
    """The text unchanged; [`MaskedLMView`] replaces tokens of it on the device, at the rate of this view."""

    name = "mlm"
    usual_rate = 0.15
    words = "the sentence with some tokens replaced by a masked language model"
    paper = "simcse"
    needs_masked_lm = True


class CropAndReplaceTokens(Crop):
    """A crop of 10%; [`MaskedLMView`] replaces tokens of it on the device, at the rate of this view."""

    name = "crop+mlm"
    usual_rate = 0.15
    words = "a contiguous part of it with some tokens replaced by a masked language model"
    needs_masked_lm = True

    def kept(self, total: int, rng: random.Random) -> Sequence[int]:
        """Draw the places of the words that stay, of `total` words."""
        return _CROP.kept(total, rng)


class MaskedLMView(nn.Module):
    """Replace a fraction of the tokens by samples from a masked language model, for a whole batch on its device.

    This is "MLM k%: use BERT-base to replace k% of words" in Table 1 of SimCSE (arXiv:2104.08821), with tokens for
    words. All chosen tokens of a text are masked together, and each is sampled from the model's distribution at
    temperature 1, without special tokens and without the token that it replaces. The model is in evaluation mode and
    gets no gradient. Randomness comes from the seed of each row, so a row does not depend on its batch.

    Args:
        model (`str | os.PathLike | nn.Module`): A masked-LM, or its directory or hub name. Its vocabulary must be that
            of the model in training.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of both models.
        rate (`float`, *optional*, defaults to `0.15`): The fraction of a text's tokens that is replaced, on average
            over texts (see [`~data.views.words.draw_count`]).

    Raises:
        ValueError: If the rate is outside [0, 1), the model has no trained masked-LM head or knows fewer tokens than
            the tokenizer has, or the tokenizer has no mask token.
    """

    def __init__(self, model: str | os.PathLike | nn.Module, tokenizer: PreTrainedTokenizerBase, rate: float = 0.15):
        super().__init__()
        check_values("a number of 0 or more and below 1", view_rate=rate)
        self.rate = rate
        if tokenizer.mask_token_id is None:
            raise ModelError(f"view mlm needs a tokenizer with a mask token; {tokenizer.name_or_path} has none.")
        masked_lm: Any = model
        if not isinstance(model, nn.Module):
            try:
                masked_lm = load_masked_lm(model)
            except ValueError as error:
                raise ModelError(f"view mlm starts from a masked-LM: {error}") from error
        num_known = masked_lm.config.vocab_size
        if len(tokenizer) > num_known:
            raise ModelError(
                f"view mlm: {masked_lm.name_or_path} knows {num_known} tokens, and the tokenizer has "
                f"{len(tokenizer)}. Take a masked-LM with the same vocabulary."
            )
        self.model = masked_lm.eval().requires_grad_(False)
        self.mask_token_id = tokenizer.mask_token_id
        self.vocabulary = len(tokenizer)
        self.special = torch.tensor(tokenizer.all_special_ids)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor, view_seed: Tensor) -> Tensor:
        """Replace tokens of a batch; special tokens and padding stay.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(batch, length)`.
            attention_mask (`torch.Tensor`): Attention mask of the same shape.
            view_seed (`torch.Tensor`): Integers of shape `(batch,)`. Equal seeds and texts give equal rows.

        Returns:
            `torch.Tensor`: New token ids of shape `(batch, length)`, on the device of `input_ids`.
        """
        special = self.special.to(input_ids.device)
        replaceable = attention_mask.bool() & ~torch.isin(input_ids, special)
        uniform = torch.full(input_ids.shape, -1.0, dtype=torch.float64)  # negative for tokens that stay
        for row, candidates in enumerate(replaceable.cpu()):
            rng = random.Random(int(view_seed[row]))
            places = candidates.nonzero()[:, 0].tolist()
            for place in sorted(rng.sample(places, draw_count(self.rate, len(places), rng))):
                uniform[row, place] = rng.random()
        tensors = (input_ids, attention_mask, uniform.to(input_ids.device))
        replaced = []
        for ids, mask, draws in zip(*[tensor.split(_ROWS_PER_PASS) for tensor in tensors], strict=True):
            chosen = draws >= 0
            masked = ids.masked_fill(chosen, self.mask_token_id)
            logits = self.model(input_ids=masked, attention_mask=mask).logits[chosen][:, : self.vocabulary].float()
            logits[:, special] = float("-inf")
            logits.scatter_(1, ids[chosen][:, None], float("-inf"))
            # The sample is the first token whose cumulative probability exceeds a uniform number.
            cumulative = logits.softmax(1).double().cumsum(1)
            drawn = draws[chosen][:, None] * cumulative[:, -1:]
            replaced.append(ids.masked_scatter(chosen, torch.searchsorted(cumulative, drawn, right=True)))
        return torch.cat(replaced)
