"""A batch whose texts travel to the device as one tensor of numbers, without padding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.packing import Packing

#: Tensors by name, and what stays on the host.
Batch = dict[str, Any]


class PackedBatch(Batch):
    """A batch with its texts in one row without padding; see [`Packing`].

    `numbers`, of type int32, holds the token ids `(T,)`, their flat indices in the padded batch `(T,)`, the row of
    each sentence `(sentences,)` and the bounds `(sentences + 1,)`. One copy brings them to the device, where [`to`]
    makes what a model takes. What else the batch holds stands beside `numbers`.

    Args:
        batch (`dict`): A batch with `input_ids` and `attention_mask` of shape
            `(batch, num_sentences, length)`, all padding on the right.
        pad_token_id (`int`): The id of padding.
        in_order (`bool`, *optional*, defaults to `False`): See [`Packing.from_lengths`].
        multiple (`int`, *optional*, defaults to `1`): See there.
        length (`int`, *optional*): See there.
    """

    def __init__(
        self, batch: Batch, pad_token_id: int, in_order: bool = False, multiple: int = 1, length: int | None = None
    ):
        others = dict(batch)
        ids = others.pop("input_ids")
        mask = others.pop("attention_mask").bool()
        lengths = mask.sum(-1).flatten().numpy()
        packing = Packing.from_lengths(lengths, length, in_order=in_order, multiple=multiple)
        # The packed row may be of a batch that is longer than this one.
        longer = F.pad(ids, (0, packing.shape[1] - ids.shape[-1]), value=pad_token_id)
        packed_ids = packing.pack(longer.flatten(0, 1))
        parts = [packed_ids, packing.token_index, packing.rows, packing.bounds]
        super().__init__(others, numbers=torch.cat([part.int() for part in parts]))
        self.sizes = [len(part) for part in parts]
        self.rows_and_columns = ids.shape[:2]
        self.shape = packing.shape
        self.pad_token_id = pad_token_id
        self.about = (packing.longest, packing.has_fillers, lengths)

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        """Send the batch to a device, and make what a model takes.

        Args:
            device (`torch.device`): The device.
            non_blocking (`bool`, *optional*, defaults to `False`): Whether the host goes on during the copy.

        Returns:
            `dict`: `input_ids` and `attention_mask` of shape `(batch, num_sentences, length)`, the `packing`
            of their texts, and what else the batch holds.
        """
        moved = {}
        for name, x in self.items():
            moved[name] = x.to(device, non_blocking=non_blocking) if isinstance(x, Tensor) else x
        return self.unpack(moved.pop("numbers")) | moved

    def unpack(self, numbers: Tensor) -> Batch:
        """Make the first three entries of [`to`] from the numbers, on their device."""
        ids, index, rows, bounds = numbers.split(self.sizes)
        packing = Packing(self.shape, index.long(), rows.long(), bounds, *self.about)
        padded = packing.unpack(ids.long()).masked_fill(~packing.mask, self.pad_token_id)
        return {
            "input_ids": padded.unflatten(0, self.rows_and_columns),
            "attention_mask": packing.mask.long().unflatten(0, self.rows_and_columns),
            "packing": packing,
        }


@dataclass
class PackingCollator:
    """Pack the batches of a collator, where their padding is on the right.

    Args:
        collator (`Callable`): The collator, such as [`ContrastiveCollator`].
        pad_token_id (`int`): The id of padding.
        in_order (`bool`, *optional*, defaults to `False`): See [`Packing.from_lengths`].
        multiple (`int`, *optional*, defaults to `1`): See there.
        length (`int`, *optional*): See there.
    """

    collator: Callable[[Sequence[Mapping]], Batch]
    pad_token_id: int
    in_order: bool = False
    multiple: int = 1
    length: int | None = None

    def __call__(self, rows: Sequence[Mapping]) -> Batch:
        """Collate rows into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): Rows of token ids.

        Returns:
            `dict`: A [`PackedBatch`]; the batch of the collator if it has no mask, has token types, or has
            padding on the left.
        """
        batch = self.collator(rows)
        if "attention_mask" not in batch or "token_type_ids" in batch:
            return batch
        mask = batch["attention_mask"]
        is_padded_on_the_right = (mask[..., 1:] <= mask[..., :-1]).all()
        if not is_padded_on_the_right:
            return batch
        return PackedBatch(batch, self.pad_token_id, self.in_order, self.multiple, self.length)
