"""The view `mlm`: tokens replaced by what a masked language model puts in their place."""

import os
import random

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ...objectives.masked_lm import load_masked_lm
from .base import check_rate, share

_ROWS_A_PASS = 64  # logits of a pass are (rows, length, vocabulary)


class MaskedLMView(nn.Module):
    """Replaces a share of the tokens by samples from a masked language model, for a whole batch on its device.

    SimCSE, arXiv:2104.08821, Table 1, "MLM k%: use BERT-base to replace k% of words". Here tokens stand for words: all
    that are chosen in a text are masked together, and each is sampled from the model's distribution (temperature 1),
    from which special tokens and the token it replaces are left out. The model is in evaluation mode and gets no
    gradient. Chances are drawn row by row from the row's own seed, so that they do not depend on the batch around it.

    Args:
        model: a masked-LM, or a directory or hub name of one; its vocabulary is that of the model in training.
        tokenizer: of both.
        rate: the share of a text's tokens that is replaced, on average over texts (see `share`).

    Raises:
        ValueError: a rate outside [0, 1); no masked-LM with a trained head; a tokenizer without mask token, or with
            more tokens than the model knows.
    """

    def __init__(self, model: str | os.PathLike | nn.Module, tokenizer: PreTrainedTokenizerBase, rate: float = 0.15):
        super().__init__()
        self.rate = check_rate(rate)
        if tokenizer.mask_token_id is None:
            raise ValueError(f"view mlm needs a tokenizer with a mask token; {tokenizer.name_or_path} has none")
        name = model.name_or_path if isinstance(model, nn.Module) else model
        if not isinstance(model, nn.Module):
            model = _load(model)
        if len(tokenizer) > model.config.vocab_size:
            raise ValueError(
                f"view mlm: {name} knows {model.config.vocab_size} tokens, and the tokenizer of the model in training "
                f"has {len(tokenizer)}: choose a masked-LM with the same vocabulary"
            )
        self.model = model.eval().requires_grad_(False)
        self.mask_token_id = tokenizer.mask_token_id
        self.vocabulary = len(tokenizer)
        self.register_buffer("special", torch.tensor(sorted(tokenizer.all_special_ids)), persistent=False)

    def train(self, mode: bool = True) -> "MaskedLMView":
        return super().train(False)

    @torch.no_grad()
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, view_seed: torch.Tensor) -> torch.Tensor:
        """Token ids with some replaced; special tokens and padding are as they were.

        Args:
            input_ids: (n, length).
            attention_mask: (n, length).
            view_seed: (n,), integers; equal seeds and texts give equal rows.

        Returns:
            (n, length), a tensor of its own, on the device of `input_ids`.
        """
        replaceable = (attention_mask.bool() & ~torch.isin(input_ids, self.special.to(input_ids.device))).tolist()
        chosen = torch.zeros(input_ids.shape, dtype=torch.bool)
        chances = []
        for row, (seed, places) in enumerate(zip(view_seed.tolist(), replaceable, strict=True)):
            rng = random.Random(seed)
            places = [place for place, free in enumerate(places) if free]
            drawn = sorted(rng.sample(places, share(self.rate, len(places), rng)))
            chosen[row, drawn] = True
            chances += [rng.random() for _ in drawn]
        chosen, chances = (
            chosen.to(input_ids.device),
            torch.tensor(chances, dtype=torch.float64, device=input_ids.device),
        )
        replaced = input_ids.clone()
        for start in range(0, len(input_ids), _ROWS_A_PASS):
            rows = slice(start, start + _ROWS_A_PASS)
            first = int(chosen[:start].sum())
            here = chances[first : first + int(chosen[rows].sum())]
            if len(here):
                masked = input_ids[rows].masked_fill(chosen[rows], self.mask_token_id)
                logits = self.model(input_ids=masked, attention_mask=attention_mask[rows]).logits[chosen[rows]]
                replaced[rows][chosen[rows]] = self._sample(logits, input_ids[rows][chosen[rows]], here)
        return replaced

    def _sample(self, logits: torch.Tensor, originals: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """(n, vocabulary) logits -> (n,) tokens: where the cumulative distribution passes the chances."""
        logits = logits[:, : self.vocabulary].float()
        logits[:, self.special.to(logits.device)] = float("-inf")
        logits.scatter_(1, originals[:, None], float("-inf"))
        cumulative = logits.softmax(1).double().cumsum(1)
        found = torch.searchsorted(cumulative, (chances * cumulative[:, -1])[:, None], right=True)
        return found[:, 0]


def _load(source: str | os.PathLike) -> nn.Module:
    try:
        return load_masked_lm(source)
    except ValueError as error:
        raise ValueError(f"view mlm: {error}. Name a masked-LM by --view_model.") from error
