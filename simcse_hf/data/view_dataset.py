"""Rows made anew every epoch: pairs of a text and a random view of it, tokenised as they are asked for."""

import random
from abc import abstractmethod

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .templates import special_tokens
from .views import TextView, TokenView


class SeededDataset(torch.utils.data.Dataset):
    """Rows of token ids in which all chance comes from (seed, epoch, index).

    So a row is the same in any worker and any process, whatever was read before it, and after a resume. The epoch is
    in shared memory: data loader workers that live on from epoch to epoch see it change.

    accelerate's data loader calls `set_epoch`, but not in every case: with several processes and its seedable sampler
    it stops at the sampler. Whoever trains has to call it at the start of each epoch, before the loader is iterated.

    Args:
        seed: of the run.
    """

    #: As of a `datasets.Dataset` that is tokenised.
    column_names = ["input_ids"]

    def __init__(self, seed: int):
        self.seed = seed
        self._epoch = torch.zeros(1, dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """The rows from now on are those of this epoch, in all workers."""
        self._epoch[0] = epoch

    def random_of(self, index: int) -> random.Random:
        """The source of all that is random in a row."""
        return random.Random(f"{self.seed} {int(self._epoch)} {index}")  # a string is hashed by SHA-512

    def __getitem__(self, index: int) -> dict:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a data set of {len(self)}")
        return self.__getitems__([index % len(self)])[0]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: list[int]) -> list[dict]:
        """The rows of a batch, which torch's data loader asks for in one call."""


class ViewDataset(SeededDataset):
    """Pairs of a text and a view of it (SimCSE, Table 1), or of two views (`both`).

    A row is {"input_ids": [ids of the first, ids of the second]}, with special tokens, cut to `max_seq_length`; and
    `view_seed`, an integer, where a view is to be made of it on the device.

    Args:
        texts: column `sent0`.
        tokenizer: adds its special tokens, before and behind.
        view: of the text or of its token ids (see `make_view`). Ids are cut to `max_seq_length` before the view. A
            view that adds tokens (`repeat_words`) goes beyond it, up to `max_length` of this class, but never beyond
            the tokenizer's `model_max_length`.
        max_seq_length: in tokens, special tokens included.
        seed: of the run.
        both: both branches are views, independent of each other; else the first is the text as it is.
        with_view_seed: rows carry `view_seed`.

    Raises:
        ValueError: texts that are empty, or hold other columns than `sent0`.
    """

    def __init__(
        self,
        texts: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        view: TextView | TokenView,
        max_seq_length: int,
        seed: int = 0,
        both: bool = False,
        with_view_seed: bool = False,
    ):
        super().__init__(seed)
        if texts.column_names != ["sent0"]:
            raise ValueError(
                f"views are made of single sentences, column sent0; the data set has {', '.join(texts.column_names)}"
            )
        if len(texts) == 0:
            raise ValueError("the data set to make views of is empty")
        self.texts = texts
        self.tokenizer = tokenizer
        self.view = view
        self.max_seq_length = max_seq_length
        self.both = both
        self.with_view_seed = with_view_seed
        self._before, self._after = special_tokens(tokenizer)
        self._num_special = len(self._before) + len(self._after)
        #: The largest number of tokens of a row's text, special tokens included.
        self.max_length = max_seq_length
        if isinstance(view, TokenView):
            longest = view.max_length(max_seq_length - self._num_special) + self._num_special
            self.max_length = max(max_seq_length, min(longest, tokenizer.model_max_length))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitems__(self, indices: list[int]) -> list[dict]:
        rngs = [self.random_of(index) for index in indices]
        pairs = [[text, text] for text in self.texts[list(indices)]["sent0"]]
        branches = (0, 1) if self.both else (1,)
        if isinstance(self.view, TextView):
            for pair, rng in zip(pairs, rngs, strict=True):
                for branch in branches:
                    pair[branch] = self.view(pair[branch], rng)
        ids = self._tokenize([text for pair in pairs for text in pair])
        rows = [{"input_ids": [ids[i], ids[i + 1]]} for i in range(0, len(ids), 2)]
        for row, rng in zip(rows, rngs, strict=True):
            if isinstance(self.view, TokenView):
                for branch in branches:
                    row["input_ids"][branch] = self._view_of_ids(row["input_ids"][branch], rng)
            if self.with_view_seed:
                row["view_seed"] = rng.getrandbits(63)
        return rows

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(
            texts, truncation=True, max_length=self.max_seq_length, return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]  # fmt: skip

    def _view_of_ids(self, ids: list[int], rng: random.Random) -> list[int]:
        inside = ids[len(self._before) : len(ids) - len(self._after)]
        return [*self._before, *self.view(inside, rng)[: self.max_length - self._num_special], *self._after]
