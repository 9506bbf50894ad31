"""A batch whose texts travel to the device as one tensor of numbers."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.packing import Packing


class PackedBatch(dict[str, Any]):
    """The texts of a batch in one row without padding, made on the host; see [`Packing`].

    `numbers`, of type int32, holds the token ids `(T,)`, their flat indices in the padded batch `(T,)`, the row of
    each sentence `(sentences,)` and the bounds `(sentences + 1,)`. One copy brings them to the device, where
    [`to`] makes what a model takes. What else the batch holds stands beside `numbers`.

    Args:
        texts (`Sequence[Sequence[int]]`): The token ids of each text, all texts of a row in turn.
        shape (`tuple[int, int]`): Rows, and texts of a row.
        pad_token_id (`int`): The id of padding.
        options (`Any`): The options of [`Packing.from_lengths`].
    """

    def __init__(self, texts: Sequence[Sequence[int]], shape: tuple[int, int], pad_token_id: int, **options: Any):
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        packing = Packing.from_lengths(lengths, **options)
        index, rows, bounds = (x.numpy() for x in (packing.token_index, packing.rows, packing.bounds))
        ids = np.full(len(index), pad_token_id)
        present = rows[rows < len(texts)]
        tokens = int(lengths.sum())
        ids[:tokens] = np.fromiter(chain.from_iterable(texts[row] for row in present), np.int64, tokens)
        super().__init__(numbers=torch.from_numpy(np.concatenate([ids, index, rows, bounds]).astype(np.int32)))
        self.texts_shape = shape
        self.pad_token_id = pad_token_id
        self.sizes = [len(ids), len(ids), len(rows), len(bounds)]
        self.padded_shape = packing.shape
        self.about = (packing.longest, packing.has_fillers, lengths)

    def to(self, device: torch.device, non_blocking: bool = False) -> dict[str, Any]:
        """Send the batch to a device, and make what a model takes.

        Args:
            device (`torch.device`): The device.
            non_blocking (`bool`, *optional*, defaults to `False`): Whether the host goes on during the copy.

        Returns:
            `dict[str, Any]`: `input_ids` and `attention_mask` of shape `(batch, num_sentences, length)`, `packing`, a
            [`Packing`] of their texts, and what else the batch holds.
        """
        moved = {}
        for name, x in self.items():
            moved[name] = x.to(device, non_blocking=non_blocking) if isinstance(x, Tensor) else x
        return self.unpack(moved.pop("numbers")) | moved

    def unpack(self, numbers: Tensor) -> dict[str, Any]:
        """Make the first three entries of [`to`] from the numbers."""
        ids, index, rows, bounds = numbers.split(self.sizes)
        packing = Packing(self.padded_shape, index.long(), rows.long(), bounds, *self.about)
        mask = packing.unpack(torch.ones_like(packing.token_index))
        # Padding is 0 in what `unpack` returns.
        ids = packing.unpack(ids.long() - self.pad_token_id) + self.pad_token_id
        return {
            "input_ids": ids.unflatten(0, self.texts_shape),
            "attention_mask": mask.unflatten(0, self.texts_shape),
            "packing": packing,
        }
