"""Shuffling without a list of all rows: each row once, and the same order everywhere."""

import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from torch.utils.data import BatchSampler, DataLoader

from simcse_hf.data import samplers as module
from simcse_hf.data.samplers import ClassSampler, NeighborSampler, NoDuplicatesSampler, PermutedSampler


@pytest.mark.parametrize("num_rows", [1, 2, 129, 70_001])
def test_each_row_is_drawn_once(num_rows):
    assert sorted(PermutedSampler(num_rows, seed=3)) == list(range(num_rows))


def nearest(rows):
    """The numbers of each row and of two others of its four."""
    return np.array([[row, row // 4 * 4 + (row + 1) % 4, row // 4 * 4 + (row + 2) % 4] for row in range(rows)])


def numbers(rows, width=3):
    """Numbers of texts, a third of which stand in several rows, and 0 for hard negatives that are absent."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(1, 3 * rows, (rows, width))
    drawn[:, 2:] *= generator.integers(0, 2, (rows, width - 2))
    return drawn


SAMPLERS = {
    "permuted": PermutedSampler,
    "classes": lambda rows, seed: ClassSampler(np.arange(rows) % 10, seed),
    "no duplicates": lambda rows, seed: NoDuplicatesSampler(numbers(rows), 8, seed),
    "neighbors": lambda rows, seed: NeighborSampler(nearest(rows), 2, seed),
}


@pytest.fixture(params=SAMPLERS)
def sampler(request):
    return lambda rows, seed=1: SAMPLERS[request.param](rows, seed)


def test_the_order_depends_on_the_seed_and_the_epoch_only(monkeypatch, sampler):
    first = sampler(1000)
    epochs = [list(first) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] and list(sampler(1000, seed=4)) != epochs[0]
    again = sampler(1000)
    again.set_epoch(2)
    assert list(again) == epochs[2]
    monkeypatch.setattr(module, "_BLOCK", 7)
    assert list(sampler(1000)) == epochs[0]


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_share_the_order_of_one(processes, sampler):
    num_rows = 8 * processes * 5
    whole = list(BatchSampler(sampler(num_rows), 8, drop_last=False))
    for rank in range(processes):
        batches = BatchSampler(sampler(num_rows), 8, drop_last=False)
        assert list(BatchSamplerShard(batches, processes, rank)) == whole[rank::processes]


def test_a_resumed_epoch_continues_the_order_of_the_uninterrupted_one(sampler):
    def loader():
        return prepare_data_loader(DataLoader(range(100), batch_size=8, sampler=sampler(100)), put_on_device=False)

    whole = loader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    resumed = skip_first_batches(loader(), 4)
    resumed.set_epoch(2)
    assert [batch.tolist() for batch in resumed] == epochs[2][4:]
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_holds_two_rows_of_each_class_and_odd_classes_leave_out_another_row_each_time():
    labels = np.array([3] * 7 + [9] * 4 + [4] + [0] * 5 + [7] * 6)[np.random.default_rng(0).permutation(23)]
    sampler, drawn = ClassSampler(labels, seed=2), []
    for _ in range(12):
        order = list(sampler)
        assert len(order) == len(sampler) == len(set(order)) == 20
        for start in range(0, len(order), 6):
            assert np.unique(labels[order[start : start + 6]], return_counts=True)[1].min() >= 2
        drawn.append(order)
    assert len({tuple(order) for order in drawn}) == 12
    assert {row for order in drawn for row in order} == set(np.flatnonzero(labels != 4))


def test_neighbours_of_a_row_follow_it_and_every_row_is_drawn_once():
    order = list(NeighborSampler(nearest(40), 1, seed=3))
    assert sorted(order) == list(range(40))
    assert all(a // 4 == b // 4 for a, b in zip(order[::2][:8], order[1::2][:8], strict=True))
    assert sum(a // 4 == b // 4 for a, b in zip(order, order[1:], strict=False)) >= 10
    assert list(NeighborSampler(nearest(40), 2, seed=3)) != order != list(NeighborSampler(nearest(40), 1, seed=4))


def test_rows_with_fewer_neighbours_than_asked_for_are_drawn_once():
    circle = np.array([[(row + step) % 20 for step in range(20)] for row in range(20)])
    padded = np.pad(circle, ((0, 0), (0, 11)), mode="edge")  # as `RowVectors.neighbors` once filled them
    assert sorted(NeighborSampler(padded, 15, seed=1)) == list(range(20))


@pytest.mark.parametrize("rows, width, block", [(200, 2, 8), (200, 3, 16), (1000, 3, 64)])
def test_no_text_stands_in_two_rows_of_a_batch_and_no_row_is_drawn_twice(rows, width, block):
    texts = numbers(rows, width)
    sampler = NoDuplicatesSampler(texts, block, seed=1)
    order = np.array(list(sampler))
    assert len(np.unique(order)) == len(order) == len(sampler) > rows - 3 * block
    for batch in order.reshape(-1, block):
        in_rows = [set(row) - {0} for row in texts[batch].tolist()]
        assert len(set().union(*in_rows)) == sum(map(len, in_rows))


def test_rows_that_fit_into_no_batch_are_left_out_and_all_epochs_have_as_many_batches():
    anchors = np.array([*[1] * 12, *range(2, 22)])  # a third of the rows have the same anchor
    texts = np.stack([anchors, 100 + np.arange(32)], axis=1)
    sampler = NoDuplicatesSampler(texts, 4, seed=0)
    epochs = [np.array(list(sampler)) for _ in range(8)]
    assert {len(epoch) for epoch in epochs} == {len(sampler)} and 20 < len(sampler) < 32
    for epoch in epochs:
        assert ((anchors[epoch].reshape(-1, 4) == 1).sum(1) <= 1).all()
    assert set(np.concatenate(epochs)) == set(range(32))


def test_rows_whose_texts_repeat_too_often_to_fill_a_batch_are_refused():
    texts = np.stack([np.arange(1, 21), np.arange(20) % 3 + 100], axis=1)
    assert len(NoDuplicatesSampler(texts, 3, seed=0)) == 18
    with pytest.raises(ValueError, match="of 20 rows, 0 fit into batches of 4 .*lower per_device_train_batch_size"):
        NoDuplicatesSampler(texts, 4, seed=0)
