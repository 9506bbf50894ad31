"""Batches: token id rows of any length become padded tensors of (batch, num_sentences, length)."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase


@dataclass
class ContrastiveCollator:
    """Pads the sentences of a batch together and gives them the axis `num_sentences`.

    A row of one sentence is repeated: its two views are the two dropout masks it meets in the encoder's single pass
    (SimCSE, section 3).

    Args:
        tokenizer: knows how to pad.
        pad_to: pad every batch to this many tokens; None pads to the longest sentence of the batch.
        repeat: copies of the sentence in a row that has one only.
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None
    repeat: int = 2

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Rows `{"input_ids": [ids, ...]}` -> `input_ids` and `attention_mask`, (batch, num_sentences, length) each.

        Raises:
            ValueError: rows of different numbers of sentences; a text longer than `pad_to`.
        """
        sentences = [row["input_ids"] for row in rows]
        numbers = {len(row) for row in sentences}
        if len(numbers) != 1:
            raise ValueError(f"the rows of a batch hold different numbers of sentences: {sorted(numbers)}")
        if numbers == {1}:
            sentences = [list(row) * self.repeat for row in sentences]
        flat = [{"input_ids": ids} for row in sentences for ids in row]
        longest = max(len(row["input_ids"]) for row in flat)
        if self.pad_to is not None and longest > self.pad_to:
            raise ValueError(f"a text has {longest} tokens and pad_to is {self.pad_to}: tokenise to at most that many")
        padded = self.tokenizer.pad(
            flat,
            padding=True if self.pad_to is None else "max_length",
            max_length=self.pad_to,
            return_attention_mask=True,
            return_tensors="pt",
        )
        shape = (len(sentences), len(sentences[0]), -1)
        return {name: padded[name].view(shape) for name in ("input_ids", "attention_mask")}
