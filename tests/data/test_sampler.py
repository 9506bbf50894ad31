"""Shuffling without a list of all rows: each row once, the same order everywhere, bounded memory."""

import tracemalloc
from itertools import islice

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from torch.utils.data import BatchSampler, DataLoader, Dataset

from simcse_hf.data import sampler as module
from simcse_hf.data.sampler import PermutedSampler, permuted


class VirtualRows(Dataset):
    """A dataset of any number of rows; a row is its own number."""

    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __len__(self):
        return self.num_rows

    def __getitem__(self, row):
        return row


@pytest.mark.parametrize("num_rows", [*range(1, 70), 127, 128, 129, 1000, 4097, 70_001])
def test_each_row_is_drawn_once(num_rows):
    assert sorted(PermutedSampler(num_rows, seed=3)) == list(range(num_rows))


def test_the_order_depends_on_the_seed_and_the_epoch_only(monkeypatch):
    first = PermutedSampler(1000, seed=3)
    epochs = [list(first), list(first), list(first)]
    assert epochs[0] != epochs[1] != epochs[2] and list(PermutedSampler(1000, seed=4)) != epochs[0]
    again = PermutedSampler(1000, seed=3)
    again.set_epoch(2)
    assert list(again) == epochs[2]
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert list(PermutedSampler(1000, seed=3)) == epochs[0]


def test_a_slow_reference_in_plain_integers_gives_the_same_order():
    num_rows, key, mask = 1234, (5, 1), 2**64 - 1
    keys = [int(k) for k in np.random.SeedSequence(key).generate_state(8, np.uint64)]

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    def place_to_row(number):
        a, b = 5, 6  # 11 bits
        left, right = number >> b, number % 2**b
        for k in keys:
            left, right = right, left ^ mix(right + k & mask) % 2**a
            a, b = b, a
        number = left << b | right
        return number if number < num_rows else place_to_row(number)

    rows = permuted(np.arange(num_rows, dtype=np.uint64), num_rows, key)
    assert rows.tolist() == [place_to_row(place) for place in range(num_rows)]


def test_orders_look_random():
    """Chi-squared tests with fixed seeds: where a row lands, and which row follows which."""
    num_rows, epochs = 24, 1000
    landed, followed = np.zeros((num_rows, num_rows)), np.zeros((num_rows, num_rows))
    for epoch in range(epochs):
        rows = permuted(np.arange(num_rows, dtype=np.uint64), num_rows, (0, epoch)).astype(int)
        landed[np.arange(num_rows), rows] += 1
        followed[rows[:-1], rows[1:]] += 1
    expected = epochs / num_rows
    assert 0.75 < ((landed - expected) ** 2 / expected).sum() / (num_rows - 1) ** 2 < 1.25
    pairs = followed[~np.eye(num_rows, dtype=bool)]
    expected = epochs * (num_rows - 1) / len(pairs)
    assert 0.75 < ((pairs - expected) ** 2 / expected).sum() / len(pairs) < 1.25
    large = permuted(np.arange(100_000, dtype=np.uint64), 10**9, (0, 0)).astype(np.float64)
    assert abs(large.mean() / 10**9 - 0.5) < 0.005 and abs(np.corrcoef(large[:-1], large[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_share_the_order_of_one(processes):
    num_rows = 8 * processes * 5
    whole = list(BatchSampler(PermutedSampler(num_rows, seed=1), 8, drop_last=False))
    for rank in range(processes):
        batches = BatchSampler(PermutedSampler(num_rows, seed=1), 8, drop_last=False)
        assert list(BatchSamplerShard(batches, processes, rank)) == whole[rank::processes]


def test_a_resumed_epoch_continues_the_order_of_the_uninterrupted_one():
    def loader():
        sampler = PermutedSampler(100, seed=1)
        return prepare_data_loader(DataLoader(VirtualRows(100), batch_size=8, sampler=sampler), put_on_device=False)

    whole = loader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    resumed = skip_first_batches(loader(), 4)
    resumed.set_epoch(2)
    assert [batch.tolist() for batch in resumed] == epochs[2][4:]
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_billion_rows_are_shuffled_in_a_few_megabytes():
    loader = DataLoader(VirtualRows(10**9), batch_size=1000, sampler=PermutedSampler(10**9, seed=1))
    loader = prepare_data_loader(loader, put_on_device=False)
    tracemalloc.start()
    try:
        drawn = [row for batch in islice(loader, 150) for row in batch.tolist()]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(drawn)) == 150_000 and max(drawn) > 0.99e9
    assert peak < 60e6, peak  # RandomSampler: 40 GB
