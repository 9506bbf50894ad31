"""A batch whose texts travel to the device as one tensor of numbers, without padding."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels.packing import Packing

#: Tensors by name, and what stays on the host.
Batch = dict[str, Any]


class PackedBatch(Batch):
    """A batch with its texts in one row without padding; see [`Packing`].

    `numbers`, of type int32, holds the token ids `(T,)`, their flat indices in the padded batch `(T,)`, the row of
    each sentence `(sentences,)` and the bounds `(sentences + 1,)`. One copy brings them to the device, where
    [`unpack`] makes what a model takes. What else the batch holds stands beside `numbers`.

    Args:
        batch (`dict`): A batch with `input_ids` and `attention_mask` of shape
            `(batch, num_sentences, length)`, all padding on the right.
        pad_token_id (`int`): The id of padding.
        in_order (`bool`, *optional*, defaults to `False`): See [`Packing.from_lengths`].
        multiple (`int`, *optional*, defaults to `1`): See there.
        length (`int`, *optional*): See there.
    """

    #: Whether [`to`] leaves the batch packed.
    stays_packed = False

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

    @property
    def form(self) -> Hashable:
        """What two batches have in common if one program can compute both: all shapes, and what is no tensor."""
        others = {name: x.shape if isinstance(x, Tensor) else x for name, x in self.items()}
        return tuple(self.sizes), self.shape, self.rows_and_columns, tuple(others.items())

    def with_tensors(self, tensors: dict[str, Tensor]) -> "PackedBatch":
        """Return a batch of the same form with other tensors."""
        other = copy.copy(self)
        other.update(tensors)
        return other

    def with_tensors_on(self, device: torch.device, non_blocking: bool = False) -> "PackedBatch":
        """Return the batch with its tensors on a device."""
        tensors = {name: x for name, x in self.items() if isinstance(x, Tensor)}
        return self.with_tensors({name: x.to(device, non_blocking=non_blocking) for name, x in tensors.items()})

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        """Send the batch to a device, as a data loader does with every batch.

        Args:
            device (`torch.device`): The device.
            non_blocking (`bool`, *optional*, defaults to `False`): Whether the host goes on during the copy.

        Returns:
            `dict`: What [`unpack`] returns; the batch itself if it `stays_packed`.
        """
        moved = self.with_tensors_on(device, non_blocking)
        return moved if self.stays_packed else moved.unpack()

    def unpack(self) -> Batch:
        """Make what a model takes.

        Returns:
            `dict`: `input_ids` and `attention_mask` of shape `(batch, num_sentences, length)`, the `packing` of their
            texts, and what else the batch holds.
        """
        batch = dict(self)
        ids, index, rows, bounds = batch.pop("numbers").split(self.sizes)
        packing = Packing(self.shape, index.long(), rows.long(), bounds, *self.about)
        padded = packing.unpack(ids.long()).masked_fill(~packing.mask, self.pad_token_id)
        batch["input_ids"] = padded.unflatten(0, self.rows_and_columns)
        batch["attention_mask"] = packing.mask.long().unflatten(0, self.rows_and_columns)
        batch["packing"] = packing
        return batch


@dataclass
class PackingCollator:
    """Pack the batches of a collator, where their padding is on the right.

    Args:
        collator (`Callable`): The collator, such as [`ContrastiveCollator`].
        pad_token_id (`int`): The id of padding.
        in_order (`bool`, *optional*, defaults to `False`): See [`Packing.from_lengths`].
        multiple (`int`, *optional*, defaults to `1`): See there.
        length (`int`, *optional*): See there.
        stays_packed (`bool`, *optional*, defaults to `False`): Whether the batches stay packed on the device.
    """

    collator: Callable[[Sequence[Mapping]], Batch]
    pad_token_id: int
    in_order: bool = False
    multiple: int = 1
    length: int | None = None
    stays_packed: bool = False

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
        packed = PackedBatch(batch, self.pad_token_id, self.in_order, self.multiple, self.length)
        packed.stays_packed = self.stays_packed
        return packed
