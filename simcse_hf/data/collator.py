"""Batches: token ids of rows padded to shape (batch, num_sentences, length), and where they lie without padding."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ..kernels.packing import Packing
from ..objectives.base import ABSENT
from ..runtime.errors import DataError, ModelError
from .token_ids import number_of

#: Tensors by name, the packing of their texts, and what stays on the host.
Batch = dict[str, Any]


def pad(
    sentences: Sequence[Sequence[int]], pad_token_id: int, length: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids on the right to one length.

    So `[[5, 6, 7], [8]]` becomes the ids `[[5, 6, 7], [8, pad, pad]]` and the mask `[[1, 1, 1], [1, 0, 0]]`.

    Args:
        sentences (`Sequence[Sequence[int]]`): The token ids of each sentence.
        pad_token_id (`int`): The id to pad with.
        length (`int`, *optional*): The length to pad to. Defaults to that of the longest sentence.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Token ids and attention mask, both of shape `(num_sentences, length)`.
    """
    # numpy and not torch: torch would start a second team of threads where this runs in a background thread
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    mask = np.arange(lengths.max() if length is None else length) < lengths[:, None]
    ids = np.full(mask.shape, pad_token_id, np.int64)
    ids[mask] = np.fromiter(chain.from_iterable(sentences), np.int64, lengths.sum())
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


@dataclass
class ContrastiveCollator:
    """Pad the sentences of a batch together, with an axis for the sentences of a row.

    The collator repeats a single sentence so that it gets two dropout masks in one pass of the encoder (SimCSE,
    arXiv:2104.08821, section 3).

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which knows the padding token.
        repeat (`int`, *optional*, defaults to `2`): How often a row's only sentence stands in the batch.
        add_text_ids (`bool`, *optional*, defaults to `False`): Whether to number texts so that equal texts have the
            same number.
        columns (`Sequence[str]`, *optional*, defaults to `()`): Columns of numbers that go into the batch as well,
            under their names in the plural: `score` as `scores`.

    Examples:
        >>> from transformers import AutoTokenizer
        >>> from simcse_hf import ContrastiveCollator
        >>> collator = ContrastiveCollator(AutoTokenizer.from_pretrained("outputs/my-model"))
        >>> triplet = {"input_ids": [[2, 10, 11, 3], [2, 12, 11, 3], [2, 13, 3]]}
        >>> collator([triplet, triplet])["input_ids"].shape  # (batch, num_sentences, length)
        torch.Size([2, 3, 4])
        >>> pair = {"input_ids": [[2, 14, 3], [2, 15, 16, 3]]}
        >>> collator([pair])["attention_mask"]
        tensor([[[1, 1, 1, 0],
                 [1, 1, 1, 1]]])
    """

    tokenizer: PreTrainedTokenizerBase
    repeat: int = 2
    add_text_ids: bool = False
    columns: Sequence[str] = ()

    def __call__(self, rows: Sequence[Mapping]) -> dict:
        """Collate rows into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): Rows with `input_ids`, a list of token ids for each sentence. Rows
                may have different numbers of sentences, and an empty list stands for one that is absent. In a row with
                `relations`, the first text is a premise and the others are its hypotheses. `view_seed` is the seed of
                a view that is made on the device. `teacher` and `guide` are the vectors that frozen models give the
                texts, of shape `(columns, dim)`.

        Returns:
            `dict[str, torch.Tensor]`: `input_ids` and `attention_mask` of shape `(batch, num_sentences, length)`, all
            padding for sentences that a row does not have; and, if there are any, `relations` of shape
            `(batch, num_sentences - 1)` with -100 for these, `view_seed` of shape `(batch,)`,
            `text_ids` of shape `(batch, num_sentences)`, the numbers of `columns`, of shape `(batch,)` or, of
            lists, `(batch, most numbers)` with -100 where a row has fewer, and the vectors of frozen models, of
            shape `(batch, num_sentences, dim)`.

        Raises:
            DataError: If a row has no lists of token ids, or a sentence has no token.
            ModelError: If the tokenizer has no padding token.
        """
        pad_token_id = self.tokenizer.pad_token_id
        if pad_token_id is None:
            raise ModelError("the tokenizer has no padding token: set tokenizer.pad_token, such as to its eos_token.")
        # 1. The sentences of each row as lists, also of a dataset in the format of torch or numpy
        sentences = []
        for row in rows:
            found = []
            for ids in row.get("input_ids", ()):
                found.append(ids.tolist() if hasattr(ids, "tolist") else ids)
            if not found or not all(isinstance(ids, (list, tuple)) for ids in found):
                got = repr(row.get("input_ids", f"the keys {list(row)}"))
                raise DataError(
                    "input_ids of a row must be a list of token id lists, one for each sentence, such as [[101, 7592, "
                    f"102]]; got {got:.80}. Tokenize first."
                )
            sentences.append(found)
        if all(len(found) == 1 for found in sentences):
            sentences = [found * self.repeat for found in sentences]
        # 2. All texts of the batch, padded to one shape
        width = max(map(len, sentences))
        texts = []
        for found in sentences:
            texts += found + [[]] * (width - len(found))
        if "relations" not in rows[0] and not all(texts):
            number, place = divmod(list(map(bool, texts)).index(False), width)
            raise DataError(f"sentence {place} of row {number} of the batch has no token: remove it")
        shape = (len(rows), width)
        ids, mask = pad(texts, pad_token_id)
        batch = {
            "input_ids": ids.unflatten(0, shape),
            "attention_mask": mask.unflatten(0, shape),
        }
        # 3. What else the rows hold
        first = rows[0]
        if "relations" in first:
            batch["relations"], _ = pad([row["relations"] for row in rows], ABSENT, width - 1)
        if "view_seed" in first:
            batch["view_seed"] = torch.tensor([row["view_seed"] for row in rows])
        for name in self.columns:
            if name in first:
                cells = [torch.as_tensor(row[name]) for row in rows]
                is_ragged = cells[0].dim() > 0
                batch[f"{name}s"] = pad_sequence(cells, True, ABSENT) if is_ragged else torch.stack(cells)
        for name in ("teacher", "guide"):
            if name in first:
                vectors = torch.from_numpy(np.stack([row[name] for row in rows]))[:, :width]
                batch[name] = vectors.expand(-1, width, -1)  # views have one vector
        if self.add_text_ids:
            text_ids = []
            for row, found in zip(rows, sentences, strict=True):
                text_ids.append(row["text_ids"] if "text_ids" in row else list(map(number_of, found)))
            batch["text_ids"], _ = pad(text_ids, 0, width)
        return batch


@dataclass
class MixtureCollator:
    """Make a batch as the data set of its rows needs it, with the number of that data set for the objective.

    Args:
        collators (`Sequence[Callable]`): The collator of each data set.
        default (`ContrastiveCollator`): The collator of rows that are of no data set, such as those of an evaluation.
    """

    collators: Sequence[Callable[[Sequence[Mapping]], dict]]
    default: ContrastiveCollator

    def __call__(self, rows: Sequence[Mapping]) -> dict:
        """Collate rows of one data set into a batch.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): The rows, from [`MixedRows`].

        Returns:
            `dict[str, torch.Tensor]`: The batch of the data set's collator, and `dataset`, a tuple of its number for
            each row, which stays on the host.
        """
        if "dataset" not in rows[0]:
            return self.default(rows)
        numbers = tuple(row["dataset"] for row in rows)
        batch = self.collators[numbers[0]](rows)
        batch["dataset"] = numbers
        return batch


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


def length_sorted_batches(
    lengths: Sequence[int] | np.ndarray, token_budget: int | None, batch_size: int | None = None
) -> list[list[int]]:
    """Group texts of similar length into batches, the longest first.

    Args:
        lengths (`Sequence[int]` or `np.ndarray`): The number of tokens of each text.
        token_budget (`int`, *optional*): The most tokens of a padded batch. A longer text gets a batch of its own.
        batch_size (`int`, *optional*): The most texts of a batch.

    Returns:
        `list[list[int]]`: The indices of the texts of each batch.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    most_texts = batch_size or len(lengths)
    batches: list[list[int]] = []
    longest = 0  # tokens of the first text of the last batch
    for index in np.argsort(-lengths, kind="stable").tolist():
        size = len(batches[-1]) if batches else most_texts
        if size < most_texts and (token_budget is None or (size + 1) * longest <= token_budget):
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = int(lengths[index])
    return batches
