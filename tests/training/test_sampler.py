"""Shuffling without a list of all rows: each row once, and the same order everywhere."""

import pytest
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from torch.utils.data import BatchSampler, DataLoader

from simcse_hf.training import rows as module
from simcse_hf.training.rows import PermutedSampler


@pytest.mark.parametrize("num_rows", [1, 2, 129, 70_001])
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
        return prepare_data_loader(DataLoader(range(100), batch_size=8, sampler=sampler), put_on_device=False)

    whole = loader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    resumed = skip_first_batches(loader(), 4)
    resumed.set_epoch(2)
    assert [batch.tolist() for batch in resumed] == epochs[2][4:]
    assert epochs[0] != epochs[1] != epochs[2]
