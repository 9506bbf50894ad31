"""Shuffling without a list of all rows: each row once, and the same order everywhere."""

import numpy as np
import pytest
from accelerate.data_loader import (
    BatchSamplerShard,
    prepare_data_loader,
    skip_first_batches,
)
from torch.utils.data import BatchSampler, DataLoader

from simcse_hf.data import samplers as module
from simcse_hf.data.samplers import (
    ClassSampler,
    NoDuplicatesSampler,
    PermutedSampler,
)


@pytest.mark.parametrize("num_rows", [1, 2, 129, 70_001])
def test_each_row_is_drawn_once(num_rows):
    assert sorted(PermutedSampler(num_rows, seed=3)) == list(range(num_rows))


# --- what holds for every sampler ---


def numbers_of_texts(num_rows, columns=3):
    """Numbers of texts, a third of which stand in several rows, and 0 for hard negatives that are absent."""
    generator = np.random.default_rng(0)
    numbers = generator.integers(1, 3 * num_rows, (num_rows, columns))
    is_present = generator.integers(0, 2, (num_rows, columns - 2))
    numbers[:, 2:] *= is_present
    return numbers


def make_sampler(kind, num_rows, seed=1):
    if kind == "permuted":
        return PermutedSampler(num_rows, seed)
    if kind == "classes":
        return ClassSampler(np.arange(num_rows) % 10, seed)
    return NoDuplicatesSampler(numbers_of_texts(num_rows), 8, seed)


EVERY_KIND = pytest.mark.parametrize("kind", ["permuted", "classes", "no duplicates"])


def three_epochs(sampler):
    return [list(sampler) for _ in range(3)]


@EVERY_KIND
def test_each_epoch_has_another_order(kind):
    first, second, third = three_epochs(make_sampler(kind, 1000))
    assert first != second
    assert second != third


@EVERY_KIND
def test_another_seed_gives_another_order(kind):
    assert list(make_sampler(kind, 1000, seed=4)) != list(make_sampler(kind, 1000))


@EVERY_KIND
def test_the_order_of_an_epoch_does_not_depend_on_the_epochs_before(kind):
    sampler = make_sampler(kind, 1000)
    sampler.set_epoch(2)
    assert list(sampler) == three_epochs(make_sampler(kind, 1000))[2]


@EVERY_KIND
def test_the_order_does_not_depend_on_the_blocks_in_which_it_is_computed(kind, monkeypatch):
    expected = list(make_sampler(kind, 1000))
    monkeypatch.setattr(module, "_LISTED_AT_ONCE", 7)
    assert list(make_sampler(kind, 1000)) == expected


def batches_of_eight(kind, num_rows):
    return BatchSampler(make_sampler(kind, num_rows), 8, drop_last=False)


@EVERY_KIND
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_share_the_order_of_one(processes, kind):
    num_rows = 8 * processes * 5
    whole = list(batches_of_eight(kind, num_rows))
    for rank in range(processes):
        own = BatchSamplerShard(batches_of_eight(kind, num_rows), processes, rank)
        assert list(own) == whole[rank::processes]


def make_loader(kind):
    loader = DataLoader(range(100), batch_size=8, sampler=make_sampler(kind, 100))
    return prepare_data_loader(loader, put_on_device=False)


def batches_of(loader):
    return [batch.tolist() for batch in loader]


@EVERY_KIND
def test_each_epoch_of_a_loader_has_another_order(kind):
    loader = make_loader(kind)
    first, second, third = (batches_of(loader) for _ in range(3))
    assert first != second
    assert second != third


@EVERY_KIND
def test_a_resumed_epoch_continues_the_order_of_the_uninterrupted_one(kind):
    uninterrupted = make_loader(kind)
    epochs = [batches_of(uninterrupted) for _ in range(3)]
    resumed = skip_first_batches(make_loader(kind), 4)
    resumed.set_epoch(2)
    assert batches_of(resumed) == epochs[2][4:]


# --- classes ---

SINGLE = 4  # the class of a single row
LABELS = np.array([3] * 7 + [9] * 4 + [SINGLE] + [0] * 5 + [7] * 6)
SHUFFLED_LABELS = LABELS[np.random.default_rng(0).permutation(23)]


@pytest.fixture(scope="module")
def twelve_orders():
    """Twelve epochs of 23 rows, of which 20 are drawn: two of each class in every six."""
    sampler = ClassSampler(SHUFFLED_LABELS, seed=2)
    assert len(sampler) == 20
    return [list(sampler) for _ in range(12)]


def test_an_epoch_of_classes_draws_no_row_twice(twelve_orders):
    for order in twelve_orders:
        assert len(order) == len(set(order)) == 20


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


def test_rows_of_one_class_each_have_the_same_order_as_a_list():
    assert list(ClassSampler(SHUFFLED_LABELS, 3)) == list(ClassSampler([[label] for label in SHUFFLED_LABELS], 3))


def test_a_batch_holds_two_rows_of_each_of_its_classes(twelve_orders):
    for order in twelve_orders:
        for start in range(0, len(order), 6):
            batch = SHUFFLED_LABELS[order[start : start + 6]]
            _, rows_of_class = np.unique(batch, return_counts=True)
            assert rows_of_class.min() >= 2


def test_every_epoch_of_classes_has_another_order(twelve_orders):
    assert len({tuple(order) for order in twelve_orders}) == 12


def test_odd_classes_leave_out_another_row_each_time(twelve_orders):
    drawn = set().union(*twelve_orders)
    assert drawn == set(np.flatnonzero(SHUFFLED_LABELS != SINGLE))


# --- no duplicates ---

SIZES = pytest.mark.parametrize("num_rows, columns, batch_size", [(200, 2, 8), (200, 3, 16), (1000, 3, 64)])


@SIZES
def test_no_text_stands_in_two_rows_of_a_batch(num_rows, columns, batch_size):
    texts = numbers_of_texts(num_rows, columns)
    order = np.array(list(NoDuplicatesSampler(texts, batch_size, seed=1)))
    for batch in order.reshape(-1, batch_size):
        seen = set()
        for row in texts[batch].tolist():
            present = set(row) - {0}
            assert not present & seen
            seen |= present


@SIZES
def test_without_duplicates_no_row_is_drawn_twice(num_rows, columns, batch_size):
    order = list(NoDuplicatesSampler(numbers_of_texts(num_rows, columns), batch_size, seed=1))
    assert len(set(order)) == len(order)


@SIZES
def test_without_duplicates_few_rows_are_left_out(num_rows, columns, batch_size):
    sampler = NoDuplicatesSampler(numbers_of_texts(num_rows, columns), batch_size, seed=1)
    assert len(list(sampler)) == len(sampler) > num_rows - 3 * batch_size


#: Of 32 rows, twelve have the same anchor.
ANCHORS = np.array([*[1] * 12, *range(2, 22)])


@pytest.fixture(scope="module")
def sampler_of_a_frequent_anchor():
    return NoDuplicatesSampler(np.stack([ANCHORS, 100 + np.arange(32)], axis=1), 4, seed=0)


@pytest.fixture(scope="module")
def eight_epochs(sampler_of_a_frequent_anchor):
    return [np.array(list(sampler_of_a_frequent_anchor)) for _ in range(8)]


def test_rows_that_fit_into_no_batch_are_left_out(eight_epochs):
    for epoch in eight_epochs:
        assert 20 < len(epoch) < 32


def test_all_epochs_have_as_many_batches(sampler_of_a_frequent_anchor, eight_epochs):
    assert {len(epoch) for epoch in eight_epochs} == {len(sampler_of_a_frequent_anchor)}


def test_a_frequent_anchor_stands_in_a_batch_once(eight_epochs):
    for epoch in eight_epochs:
        is_frequent = ANCHORS[epoch].reshape(-1, 4) == 1
        assert is_frequent.sum(1).max() <= 1


def test_each_row_is_drawn_in_some_epoch(eight_epochs):
    assert set(np.concatenate(eight_epochs)) == set(range(32))


#: In 20 rows, three texts repeat.
THREE_REPEATED = np.stack([np.arange(1, 21), np.arange(20) % 3 + 100], axis=1)


def test_batches_as_large_as_the_number_of_different_texts_are_filled():
    assert len(NoDuplicatesSampler(THREE_REPEATED, 3, seed=0)) == 18


def test_rows_whose_texts_repeat_too_often_to_fill_a_batch_are_refused():
    words = "only 0 of 20 rows fit into batches of 4 .*lower per_device_train_batch_size"
    with pytest.raises(ValueError, match=words):
        NoDuplicatesSampler(THREE_REPEATED, 4, seed=0)
