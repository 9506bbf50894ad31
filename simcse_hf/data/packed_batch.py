"""Batches that say where their tokens lie in a row without padding."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F

from ..kernels.packing import Packing

#: Tensors by name, the packing of their texts, and what stays on the host.
Batch = dict[str, Any]


@dataclass
class PackingCollator:
    """Add a [`Packing`] to the batches of a collator, where their padding is on the right.

    So the encoder leaves padding out without a look at the mask, for which the host would wait for the device.

    Args:
        collator (`Callable`): The collator, such as [`ContrastiveCollator`].
        pad_token_id (`int`): The id of padding.
        in_order (`bool`, *optional*, defaults to `False`): See [`Packing.from_lengths`].
        multiple (`int`, *optional*, defaults to `1`): See there.
        length (`int`, *optional*): The length of every batch. Defaults to that of the collator.
    """

    collator: Callable[[Sequence[Mapping]], Batch]
    pad_token_id: int
    in_order: bool = False
    multiple: int = 1
    length: int | None = None

    def use_few_shapes(self, texts: int, length: int) -> None:
        """Give batches few shapes, for compiled code and graphs.

        With about 22 tokens a text, rounding up to a multiple of as many tokens as there are texts adds 2.3%.

        Args:
            texts (`int`): Texts of a batch.
            length (`int`): The most tokens of a text.
        """
        self.multiple = min(256, 2 ** int(math.log2(texts)))
        self.length = length

    def __call__(self, rows: Sequence[Mapping]) -> Batch:
        """Collate rows into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): Rows of token ids.

        Returns:
            `dict`: The batch of the collator with its `packing`; without it if the batch has no mask, has token types,
            or has padding on the left.
        """
        batch = self.collator(rows)
        if "attention_mask" not in batch or "token_type_ids" in batch:
            return batch
        mask = batch["attention_mask"]
        is_padded_on_the_right = (mask[..., 1:] <= mask[..., :-1]).all()
        if not is_padded_on_the_right:
            return batch
        lengths = mask.sum(-1).flatten().numpy()
        packing = Packing.from_lengths(lengths, self.length, in_order=self.in_order, multiple=self.multiple)
        missing = (0, packing.shape[1] - mask.shape[-1])
        ids = F.pad(batch["input_ids"], missing, value=self.pad_token_id)
        return {**batch, "input_ids": ids, "attention_mask": F.pad(mask, missing), "packing": packing}
