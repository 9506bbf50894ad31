"""Datasets whose rows are drawn anew in every epoch: pairs of a text and a random view of it, and several of them."""

import random
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..runtime.errors import DataError, SettingError
from ..runtime.identity import digest_rows
from .token_ids import special_tokens, to_token_ids
from .views import TextView, TokenView


class SeededDataset(torch.utils.data.Dataset):
    """A dataset whose randomness comes from the seed, the epoch and the index of a row only.

    So a row is the same in any worker and any process, whatever was read before it, and after a resume. The epoch is
    in shared memory, so that persistent workers see it change.

    Accelerate's data loader calls `set_epoch`, but with several processes and its seedable sampler the call stops at
    the sampler. Whoever trains must call it at the start of each epoch, before iterating over the loader.

    Args:
        seed (`int`): The seed.

    Attributes:
        column_names (`list[str]`): The columns, as a tokenized `datasets.Dataset` has them.
        says (`str`, *optional*): What a row holds, by its name in `data.contents`; `None` where the number of its
            texts tells.
        max_length (`int`, *optional*): The largest number of tokens of a row's text. `None` for that of the run.
    """

    column_names = ["input_ids"]
    says: str | None = None
    max_length: int | None = None

    def __init__(self, seed: int):
        self.seed = seed
        self._epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Switch to the rows of an epoch, in all workers."""
        self._epoch[0] = epoch

    def random_of(self, index: int) -> random.Random:
        """Return the source of randomness of a row."""
        return random.Random(f"{self.seed} {int(self._epoch)} {index}")  # `Random` hashes a string with SHA-512

    def digest(self) -> str | None:
        """Return a digest of the data that rows are drawn from, `None` if it is unknown."""
        return None

    def __getitem__(self, index: int) -> dict:
        return self.__getitems__([range(len(self))[index]])[0]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: list[int]) -> list[dict]:
        """Return the rows of a batch, which torch's data loader requests in one call."""


@dataclass(eq=False)
class ViewDataset(SeededDataset):
    """Pairs of a text and a view of it (SimCSE, Table 1), or of two views.

    A row holds `input_ids`, the token ids of both with special tokens, and `view_seed` if a view is made of it on the
    device.

    Args:
        texts (`datasets.Dataset`): A dataset with the column `sent0` only.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which adds its special tokens before and after a text.
        view (`TextView | TokenView`): The view of the text or of its token ids, see [`~data.views.make_view`]. Texts
            are truncated to `max_seq_length` before a view of token ids. A view that adds tokens (`repeat_words`) may
            go beyond it, up to the attribute `max_length`, but never beyond the tokenizer's `model_max_length`.
        max_seq_length (`int`): The most tokens of a text, including special tokens.
        seed (`int`, *optional*, defaults to `0`): The seed.
        both (`bool`, *optional*, defaults to `False`): Whether both sentences are views, independent of each other.
            Otherwise the first is the text itself.

    Raises:
        ValueError: If the dataset is empty or has other columns than `sent0`.
    """

    says = "sentences"
    max_length = 0
    texts: Dataset
    tokenizer: PreTrainedTokenizerBase
    view: TextView | TokenView
    max_seq_length: int
    seed: int = 0
    both: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.seed)
        names = self.texts.column_names
        if names != ["sent0"]:
            raise SettingError(
                f"views are made from single sentences in the column sent0; the data set has {', '.join(names)}. "
                "Select one column of sentences, or use view identity."
            )
        if len(self.texts) == 0:
            raise DataError("the dataset to make views of is empty.")
        self._special = special_tokens(self.tokenizer)
        self._text_view = self.view if isinstance(self.view, TextView) else TextView()
        self._token_view = self.view if isinstance(self.view, TokenView) else TokenView()
        num_special = self._special.num_tokens
        longest = self._token_view.max_length(self.max_seq_length - num_special) + num_special
        #: The largest number of tokens of a row's text, special tokens included.
        self.max_length = max(self.max_seq_length, min(longest, self.tokenizer.model_max_length))

    def digest(self) -> str:
        """Return a digest of the texts."""
        return digest_rows(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitems__(self, indices: list[int]) -> list[dict]:
        return self.rows_of(self.texts[list(indices)]["sent0"], list(map(self.random_of, indices)))

    def rows_of(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> list[dict]:
        """Make rows of any texts.

        Args:
            texts (`Sequence[str]`): The texts.
            rngs (`Sequence[random.Random]`): The source of randomness of each row.

        Returns:
            `list[dict]`: The rows.
        """
        special = self._special
        sentences = []
        for text, rng in zip(texts, rngs, strict=True):
            first = self._text_view(text, rng) if self.both else text
            sentences += [first, self._text_view(text, rng)]
        tokenized = to_token_ids(self.tokenizer, sentences, truncation=True, max_length=self.max_seq_length)
        room = self.max_length - special.num_tokens
        rows: list[dict] = []
        for rng, *pair in zip(rngs, tokenized[::2], tokenized[1::2], strict=True):
            for branch in range(0 if self.both else 1, 2):
                words = pair[branch][len(special.before) : len(pair[branch]) - len(special.after)]
                pair[branch] = special.put_around(self._token_view(words, rng)[:room])
            row: dict = {"input_ids": pair}
            if self.view.needs_masked_lm:
                row["view_seed"] = rng.getrandbits(63)
            rows.append(row)
        return rows


class MixedRows(SeededDataset):
    """The rows of several data sets, one after the other, each with the number of its data set in `dataset`.

    Args:
        parts (`Sequence[Dataset | SeededDataset]`): The rows of each data set.
        first (`int`, *optional*, defaults to `0`): The number of the first data set.
    """

    def __init__(self, parts: Sequence[Dataset | SeededDataset], first: int = 0):
        super().__init__(seed=0)
        self.parts = parts
        self.first = first
        #: The row number of the first row of each data set, and at the end the number of all rows.
        self.starts = [0, *accumulate(map(len, self.parts))]

    def set_epoch(self, epoch: int) -> None:
        """Switch every data set whose rows are drawn anew to the rows of an epoch."""
        for part in self.parts:
            if isinstance(part, SeededDataset):
                part.set_epoch(epoch)

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitems__(self, indices: list[int]) -> list[dict]:
        rows = []
        # The rows of a batch are of one data set, so they are read in one call.
        for number, of_part in groupby(indices, lambda index: bisect_right(self.starts, index) - 1):
            found = self.parts[number].__getitems__([index - self.starts[number] for index in of_part])
            rows += [{**row, "dataset": self.first + number} for row in found]
        return rows
