"""Buckets: their sizes, and batches packed into them."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CLS, PAD, SEP

from simcse_hf.data.buckets import TILE, BucketPlan, PackedCollator, choose_buckets
from simcse_hf.data.collator import ContrastiveCollator


def rows_of(lengths):
    """Make rows of token ids with these numbers of tokens in their sentences."""
    return [{"input_ids": [[CLS, *range(5, 3 + n), SEP] for n in row]} for row in lengths]


def test_the_example_of_the_docstring(tokenizer):
    plan = BucketPlan((16,), rows=2, columns=2, longest=4)
    assert plan.fillers == 4
    batch = PackedCollator(ContrastiveCollator(tokenizer), plan)(rows_of([[3], [2]]))
    assert batch["input_ids"].tolist() == [[CLS, 5, SEP] * 2 + [CLS, SEP] * 2 + [PAD] * 6]
    packing = batch["packing"]
    assert packing["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 1, 0, 1] + [0] * 6]
    assert packing["cu_seqlens"].tolist() == [0, 3, 6, 8, 10, 14, 16, 16, 16]
    assert packing["cu_seqlens"].dtype == torch.int32 and packing["shape"] == (2, 2, 4)


def test_positions_that_count_tokens_begin_behind_the_padding_id(tokenizer):
    """RoBERTa gives a padding token inside a text the position of padding, and does not count it."""
    rows = [{"input_ids": [[CLS, 5, PAD, 6, SEP]]}, {"input_ids": [[CLS, SEP]]}]
    collator = PackedCollator(ContrastiveCollator(tokenizer), BucketPlan((16,), 2, 2, 8), counts_tokens=True)
    positions = collator(rows)["packing"]["position_ids"][0].tolist()
    assert positions == [2, 3, PAD, 4, 5] * 2 + [2, 3] * 2 + [PAD] * 2


@pytest.mark.parametrize("seed", range(5))
def test_every_batch_of_a_bucket_has_the_same_shapes_and_fills_it_exactly(tokenizer, seed):
    generator = np.random.default_rng(seed)
    plan = BucketPlan((48, 128), rows=4, columns=3, longest=10)
    collator = PackedCollator(ContrastiveCollator(tokenizer), plan)
    lengths = generator.integers(2, 11, (4, 3))
    batch = collator(rows_of(lengths.tolist()))
    cu = batch["packing"]["cu_seqlens"].tolist()
    size = batch["input_ids"].shape[1]
    assert size == (48 if lengths.sum() <= 48 else 128) == cu[-1]
    assert len(cu) == plan.sentences + plan.fillers + 1
    assert [b - a for a, b in pairwise(cu)][: plan.sentences] == lengths.flatten().tolist()
    assert all(0 <= b - a <= plan.longest for a, b in pairwise(cu))


@pytest.mark.parametrize(
    "lengths",
    [[[3], [4]], [[9], [9], [9]], [[12], [2], [2]], [[3], [0], [3]]],
    ids=["incomplete", "full", "long", "empty"],
)
def test_batches_that_fit_no_bucket_are_padded(tokenizer, lengths):
    plan = BucketPlan((50,), rows=3, columns=2, longest=10)
    rows = rows_of(lengths)
    if lengths[1][0] == 0:
        rows[1] = {"input_ids": [[]]}
    padding = ContrastiveCollator(tokenizer)
    padded, expected = PackedCollator(padding, plan)(rows), padding(rows)
    assert padded.keys() == expected.keys() and all(torch.equal(padded[name], expected[name]) for name in expected)


def test_the_sizes_fit_the_wikipedia_sentences_of_the_paper():
    """64 rows of two sentences with 21.9 tokens on average, cut to 32, hold about 2,800 tokens."""
    path = Path(__file__).parents[2] / "benchmarks/lengths.json"
    histogram = json.loads(path.read_text())["paper"]["sentence"]
    lengths = np.repeat([min(int(n), 32) for n in histogram], list(histogram.values()))
    sample = 2 * np.random.default_rng(0).choice(lengths, 10_000)
    sizes = choose_buckets(sample, 64, 64 * 2 * 32)
    assert sizes == (2944, 3200)
    totals = np.random.default_rng(1).choice(2 * lengths, (2000, 64)).sum(1)
    plan = BucketPlan(sizes, 64, 2, 32)
    computed = [plan.bucket_of(total) for total in totals]
    assert sum(size is None for size in computed) < 0.01 * len(totals)
    assert sum(size or 0 for size in computed) < 1.07 * totals.sum()


@pytest.mark.parametrize("rows, most", [(2, 4), (64, 500), (512, 96)])
def test_sizes_are_tiles_and_never_larger_than_a_full_batch(rows, most):
    sample = np.random.default_rng(0).integers(2, most + 1, 1000)
    sizes = choose_buckets(sample, rows, rows * most)
    assert list(sizes) == sorted(set(sizes)) and len(sizes) <= 2
    assert all(size % TILE == 0 and size < rows * most + TILE for size in sizes)


def test_equal_texts_need_a_single_bucket():
    assert choose_buckets([20] * 50, 64, 64 * 20) == (1280,)
