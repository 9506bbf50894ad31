"""Batches: token id rows of any length become padded tensors of (batch, num_sentences, length)."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

ABSENT = -100  # a relation where a row has fewer sentences


@dataclass
class ContrastiveCollator:
    """Pads the sentences of a batch together and gives them the axis `num_sentences`.

    A row of one sentence is repeated: its two views are the two dropout masks it meets in the encoder's single pass
    (SimCSE, section 3).

    Args:
        tokenizer: knows how to pad.
        pad_to: pad every batch to this many tokens; None pads to the longest sentence of the batch.
        repeat: copies of the sentence in a row that has one only.
        add_text_ids: give every text the number that equal texts share.
    """

    tokenizer: PreTrainedTokenizerBase
    pad_to: int | None = None
    repeat: int = 2
    add_text_ids: bool = False

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Rows -> tensors of (batch, num_sentences, length).

        Args:
            rows: `input_ids`, a list of token id lists; `relations` where the first text of a row is a premise and the
                others, whose number may differ from row to row, are its hypotheses; `view_seed` for views made on the
                device.

        Returns:
            `input_ids` and `attention_mask`, (batch, num_sentences, length), both all padding where a row has fewer
            sentences; `relations` (batch, num_sentences - 1), -100 there; `view_seed` (batch,); `text_ids` (batch,
            num_sentences) if asked for.

        Raises:
            ValueError: rows of different numbers of sentences without `relations`; a text longer than `pad_to`.
        """
        sentences = [row["input_ids"] for row in rows]
        numbers = {len(row) for row in sentences}
        related = "relations" in rows[0]
        if len(numbers) != 1 and not related:
            raise ValueError(f"the rows of a batch hold different numbers of sentences: {sorted(numbers)}")
        if numbers == {1}:
            sentences = [list(row) * self.repeat for row in sentences]
        width, longest = max(map(len, sentences)), max(len(ids) for row in sentences for ids in row)
        if self.pad_to is not None and longest > self.pad_to:
            raise ValueError(f"a text has {longest} tokens and pad_to is {self.pad_to}: tokenise to at most that many")
        lengths = torch.tensor([[len(ids) for ids in row] + [0] * (width - len(row)) for row in sentences])
        mask = torch.arange(self.pad_to or longest) < lengths[:, :, None]
        ids = torch.full(mask.shape, self.tokenizer.pad_token_id)
        ids[mask] = torch.tensor([token for row in sentences for ids_ in row for token in ids_])
        batch = {"input_ids": ids, "attention_mask": mask.long()}
        if related:
            batch["relations"] = torch.tensor(
                [list(row["relations"]) + [ABSENT] * (width - 1 - len(row["relations"])) for row in rows]
            )
        if "view_seed" in rows[0]:
            batch["view_seed"] = torch.tensor([row["view_seed"] for row in rows])
        if self.add_text_ids:
            # A hash of integers, unlike one of strings, is the same in every process.
            batch["text_ids"] = torch.tensor(
                [[hash(tuple(ids_)) for ids_ in row] + [0] * (width - len(row)) for row in sentences]
            )
        return batch
