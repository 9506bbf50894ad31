"""Shuffling without a list of all rows: each row once, and the same order everywhere."""

import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from simcse_hf.data.samplers import ClassSampler, NoDuplicatesSampler, PermutedSampler


@pytest.mark.parametrize("num_rows", [1, 129, 70_001])
def test_each_row_is_drawn_once(num_rows):
    assert sorted(PermutedSampler(num_rows, seed=3)) == list(range(num_rows))


def numbers_of_texts():
    """The text numbers of 100 rows. Rows may share a text, and 0 stands for a missing hard negative."""
    generator = np.random.default_rng(0)
    numbers = generator.integers(1, 300, (100, 3))
    numbers[:, 2] *= generator.integers(0, 2, 100)
    return numbers


SAMPLERS = {
    "permuted": lambda seed: PermutedSampler(100, seed),
    "classes": lambda seed: ClassSampler(np.arange(100) % 10, seed),
    "no duplicates": lambda seed: NoDuplicatesSampler(numbers_of_texts(), 8, seed),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_order_follows_the_seed_and_the_epoch_and_a_resumed_epoch_continues_it(kind):
    def make_loader(seed=1):
        loader = DataLoader(range(100), batch_size=8, sampler=SAMPLERS[kind](seed))
        return prepare_data_loader(loader, put_on_device=False)

    uninterrupted = make_loader()
    first, second, third = ([batch.tolist() for batch in uninterrupted] for _ in range(3))
    assert first != second != third
    assert [batch.tolist() for batch in make_loader(seed=4)] != first
    resumed = skip_first_batches(make_loader(), 4)
    resumed.set_epoch(2)
    assert [batch.tolist() for batch in resumed] == third[4:]


# --- classes ---

SINGLE = 4  # the class of a single row
LABELS = np.array([3] * 7 + [9] * 4 + [SINGLE] + [0] * 5 + [7] * 6)
SHUFFLED_LABELS = LABELS[np.random.default_rng(0).permutation(23)]


def test_a_batch_holds_two_rows_of_each_of_its_classes_and_an_odd_class_leaves_out_another_row_each_time():
    """Of 23 rows, an epoch draws 20, two of each class in every six."""
    sampler = ClassSampler(SHUFFLED_LABELS, seed=2)
    drawn = set()
    for _ in range(12):
        order = list(sampler)
        assert len(order) == len(set(order)) == len(sampler) == 20
        for start in range(0, len(order), 6):
            _, rows_of_class = np.unique(SHUFFLED_LABELS[order[start : start + 6]], return_counts=True)
            assert rows_of_class.min() >= 2
        drawn.update(order)
    assert drawn == set(np.flatnonzero(SHUFFLED_LABELS != SINGLE))
    assert list(ClassSampler([[label] for label in SHUFFLED_LABELS], seed=2)) == list(ClassSampler(SHUFFLED_LABELS, 2))


SEVERAL = [[0], [0, 1], [1, 2], [2], [2, 0], [1], [0, 1, 2], [3, 1], [3]]


def test_each_pair_of_rows_of_several_classes_shares_one():
    sampler = ClassSampler(SEVERAL, seed=0)
    seen = set()
    for _ in range(12):
        order = list(sampler)
        assert len(order) == len(sampler) and len(sampler) % 2 == 0
        for one, other in zip(order[::2], order[1::2], strict=True):
            assert one != other and set(SEVERAL[one]) & set(SEVERAL[other])
        seen.update(order)
    assert seen == set(range(len(SEVERAL))), "no row is left out of all epochs"


# --- no duplicates ---


#: Of 32 rows, twelve have the same anchor.
ANCHORS = np.array([*[1] * 12, *range(2, 22)])


def test_a_frequent_anchor_stands_in_a_batch_once_and_each_row_in_some_epoch():
    sampler = NoDuplicatesSampler(np.stack([ANCHORS, 100 + np.arange(32)], axis=1), 4, seed=0)
    drawn = set()
    for _ in range(8):
        epoch = np.array(list(sampler))
        assert 20 < len(epoch) == len(sampler) < 32
        is_frequent = ANCHORS[epoch].reshape(-1, 4) == 1
        assert is_frequent.sum(1).max() <= 1
        drawn.update(epoch)
    assert drawn == set(range(32))


def test_batches_larger_than_the_number_of_different_texts_are_refused():
    three_repeated = np.stack([np.arange(1, 21), np.arange(20) % 3 + 100], axis=1)
    assert len(NoDuplicatesSampler(three_repeated, 3, seed=0)) == 18
    with pytest.raises(ValueError, match="per_device_train_batch_size"):
        NoDuplicatesSampler(three_repeated, 4, seed=0)
