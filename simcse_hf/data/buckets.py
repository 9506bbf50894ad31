"""Pack batches into rows of a few fixed sizes, so that compiled code meets the same shapes in every step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from .collator import ContrastiveCollator, row_token_ids

#: Buckets are multiples of this many tokens, the height of a tile of a GPU's matrix product.
TILE = 128
#: Rows whose lengths decide on the buckets, and batches that are drawn from them.
SAMPLED_ROWS = 10_000
_SAMPLED_BATCHES = 2_000
#: A batch that fits no bucket is encoded without a graph and costs about as much as this many tokens in one.
_COST_OF_NO_BUCKET = 2.0


@dataclass(frozen=True)
class BucketPlan:
    """The shapes of packed batches.

    Args:
        sizes (`tuple[int, ...]`): Tokens of each bucket, in ascending order.
        rows (`int`): Rows of a batch.
        columns (`int`): Sentences of a row.
        longest (`int`): The most tokens of a sentence.
    """

    sizes: tuple[int, ...]
    rows: int
    columns: int
    longest: int

    @property
    def sentences(self) -> int:
        """Sentences of a batch."""
        return self.rows * self.columns

    @property
    def fillers(self) -> int:
        """Filling sentences of a batch: enough for the most tokens that a batch can leave empty in its bucket.

        With buckets of 2,816 and 3,072 tokens and sentences of up to 32, a batch leaves at most 2,815 tokens empty,
        which 88 fillers of 32 tokens can take.
        """
        gaps = np.diff([0, *self.sizes])
        return int(-(-gaps.max() // self.longest))

    def bucket_of(self, tokens: int) -> int | None:
        """Return the size of the smallest bucket that holds so many tokens, or `None` if none does."""
        return next((size for size in self.sizes if tokens <= size), None)


def choose_buckets(
    tokens_of_rows: Sequence[int] | np.ndarray, rows: int, most_tokens: int, seed: int = 0
) -> tuple[int, ...]:
    """Choose two bucket sizes that waste the least computation.

    The token counts of batches are simulated by drawing rows from the sample. Every pair of multiples of `TILE` is
    then compared by the mean number of tokens computed for a batch. A batch that fits neither size runs without a
    graph, which counts as twice its tokens.

    Args:
        tokens_of_rows (`Sequence[int]` or `np.ndarray`): Tokens of each sampled row, all of its sentences together.
        rows (`int`): Rows of a batch.
        most_tokens (`int`): The most tokens that a batch can have.
        seed (`int`, *optional*, defaults to `0`): Seed of the simulation.

    Returns:
        `tuple[int, ...]`: One or two sizes in ascending order. For 64 rows of two Wikipedia sentences (21.9 tokens on
            average) they are 2,944 and 3,200.
    """
    # A generator of its own, so that the run draws the same dropout masks with and without buckets.
    generator = np.random.default_rng(seed)
    totals = np.sort(generator.choice(np.asarray(tokens_of_rows), (_SAMPLED_BATCHES, rows)).sum(1))
    largest = min(int(totals[-1]), most_tokens)
    sizes = np.arange(-(-int(totals[0]) // TILE), -(-largest // TILE) + 1) * TILE
    fitting = np.searchsorted(totals, sizes, side="right")  # batches that each size can hold
    tokens = np.concatenate([[0], totals.cumsum()])
    without_graph = _COST_OF_NO_BUCKET * (tokens[-1] - tokens[fitting])
    # cost[i, j]: batches up to size i are computed with size i, those up to size j with size j, the others without.
    cost = fitting[:, None] * sizes[:, None] + (fitting - fitting[:, None]) * sizes + without_graph
    cost = np.where(np.triu(np.ones_like(cost, dtype=bool)), cost, np.inf)
    small, large = np.unravel_index(cost.argmin(), cost.shape)
    return tuple(sorted({int(sizes[small]), int(sizes[large])}))


@dataclass
class PackedCollator:
    """Collate batches into packed rows of the plan's sizes, in the data loader's workers.

    Sentences stand one behind the other, and filling sentences of at most `longest` tokens take what is left of the
    bucket. They are short because one long filler would exceed the longest sentence that the attention kernel is told
    about. A batch of two rows of one sentence each, repeated, in a bucket of 16 tokens with `longest` 4:

        input_ids      a b c a b c d e d e . . . . . .      shape (1, 16)
        position_ids   0 1 2 0 1 2 0 1 0 1 0 0 0 0 0 0
        cu_seqlens     0 3 6 8 10 14 16 16                  where each sentence starts, and the end: int32

    The last filler is empty. A batch that does not fit goes through the padding collator: an incomplete one, one with
    more tokens than the largest bucket, with an empty sentence, or with one longer than `longest`.

    Args:
        collator (`ContrastiveCollator`): The padding collator.
        plan (`BucketPlan`): The shapes.
        counts_tokens (`bool`, *optional*, defaults to `False`): Whether position ids count the tokens that are not
            padding, from the id of the padding token + 1, as in RoBERTa. Otherwise they are columns, from 0.
    """

    collator: ContrastiveCollator
    plan: BucketPlan
    counts_tokens: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate rows of one process.

        Args:
            rows (`Sequence[Mapping[str, Any]]`): Rows with `input_ids`, a list of token ids for each sentence.

        Returns:
            `dict`: `input_ids` of shape `(1, bucket)` and `packing`, which holds `position_ids` of the same shape,
                `cu_seqlens` of shape `(sentences + fillers + 1,)` and `shape`, the integers `(rows, columns,
                longest)`; or what the padding collator returns.
        """
        sentences = [row_token_ids(row) for row in rows]
        if {len(row) for row in sentences} == {1}:
            sentences = [row * self.collator.repeat for row in sentences]
        flat = list(chain.from_iterable(sentences))
        lengths = np.fromiter(map(len, flat), np.int64, len(flat))
        plan = self.plan
        fits = len(rows) == plan.rows and len(flat) == plan.sentences
        size = (
            plan.bucket_of(int(lengths.sum()))
            if fits and 0 < lengths.min() and lengths.max() <= plan.longest
            else None
        )
        if size is None:
            return self.collator(rows)
        return self._pack(flat, lengths, size)

    def _pack(self, sentences: Sequence[Sequence[int]], lengths: np.ndarray, size: int) -> dict[str, Any]:
        plan, pad_id = self.plan, self.collator.tokenizer.pad_token_id
        tokens = int(lengths.sum())
        ids, positions = np.full(size, pad_id), np.full(size, pad_id if self.counts_tokens else 0)
        ids[:tokens] = np.fromiter(chain.from_iterable(sentences), np.int64, tokens)
        starts = lengths.cumsum() - lengths
        if self.counts_tokens:
            is_token = ids[:tokens] != pad_id
            counted = is_token.cumsum()
            before = counted[starts] - is_token[starts]
            positions[:tokens] = (counted - before.repeat(lengths)) * is_token + pad_id
        else:
            positions[:tokens] = np.arange(tokens) - starts.repeat(lengths)
        fillers = np.clip(size - tokens - plan.longest * np.arange(plan.fillers), 0, plan.longest)
        cu_seqlens = np.concatenate([[0], lengths, fillers]).cumsum()
        return {
            "input_ids": torch.from_numpy(ids)[None],
            "packing": {
                "position_ids": torch.from_numpy(positions)[None],
                "cu_seqlens": torch.from_numpy(cu_seqlens.astype(np.int32)),
                "shape": (plan.rows, plan.columns, plan.longest),
            },
        }
