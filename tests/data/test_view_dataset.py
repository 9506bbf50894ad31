"""Rows depend on the seed, the epoch and their index only, in any worker and process."""

from itertools import groupby

import pytest
from conftest import CLS, SEP, WORDS
from datasets import Dataset
from torch.utils.data import DataLoader

from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.view_dataset import ViewDataset
from simcse_hf.data.views import make_view

ROWS = 13
MAX_LENGTH = 12


def texts_of_words():
    """Texts of four to eleven words."""
    words = WORDS.split()[:18]
    texts = []
    for i in range(ROWS):
        start = i % 7
        texts.append(" ".join(words[start : start + 4 + i % 8]))
    return Dataset.from_dict({"sent0": texts})


TEXTS = texts_of_words()


def loader_of(dataset, workers=0, batch_size=4, **options):
    return DataLoader(dataset, batch_size=batch_size, num_workers=workers, collate_fn=list, **options)


def read(loader):
    return [row for batch in loader for row in batch]


def rows_of(dataset, **options):
    return read(loader_of(dataset, **options))


@pytest.fixture
def make(tokenizer):
    """Makes a data set of views, or of spans of documents."""

    def make(view, seed=7, **options):
        if view == "spans":
            documents = [[text] * 12 for text in TEXTS["sent0"]]
            return SpanDataset(documents, tokenizer, MAX_LENGTH, seed)
        rate = 0.9 if view == "shuffle" else None
        return ViewDataset(TEXTS, tokenizer, make_view(view, rate), MAX_LENGTH, seed, **options)

    return make


# --- workers, batches and order ---


@pytest.fixture
def dataset(make, view, both):
    return make(view, both=both)


@pytest.fixture
def one_by_one(dataset):
    """The rows, each read by its index."""
    return [dataset[i] for i in range(ROWS)]


EVERY_VIEW = pytest.mark.parametrize(
    ("view", "both"),
    [
        ("crop", False),
        ("crop", True),
        ("shuffle", False),
        ("shuffle", True),
        ("repeat_words", False),
        ("repeat_words", True),
        ("mlm", False),
        ("mlm", True),
        ("spans", None),
    ],
)


VIEWS_AND_SPANS = pytest.mark.parametrize(("view", "both"), [("crop", False), ("spans", None)])


@EVERY_VIEW
@pytest.mark.parametrize("batch_size", [1, 4])
def test_rows_do_not_depend_on_the_size_of_a_batch(batch_size, dataset, one_by_one):
    assert rows_of(dataset, batch_size=batch_size) == one_by_one


@EVERY_VIEW
def test_rows_do_not_depend_on_the_workers(dataset, one_by_one):
    assert rows_of(dataset, workers=2) == one_by_one


@EVERY_VIEW
def test_rows_do_not_depend_on_the_order_in_which_they_are_read(dataset, one_by_one):
    backwards = [dataset[i] for i in reversed(range(ROWS))]
    assert backwards == one_by_one[::-1]


@VIEWS_AND_SPANS
def test_the_last_row_has_the_index_minus_one(dataset, one_by_one):
    assert dataset[-1] == one_by_one[-1]


@VIEWS_AND_SPANS
def test_a_data_set_has_as_many_rows_as_there_are_texts(dataset):
    assert len(dataset) == ROWS


@VIEWS_AND_SPANS
def test_a_data_set_has_a_column_of_token_ids(dataset):
    assert dataset.column_names == ["input_ids"]


def test_persistent_workers_see_the_next_epoch(make):
    dataset = make("shuffle")
    loader = loader_of(dataset, workers=2, persistent_workers=True)
    for epoch in (0, 1, 5, 1):
        dataset.set_epoch(epoch)
        assert read(loader) == rows_of(dataset)


# --- the text and its view ---

VIEWS_WITH_RATES = pytest.mark.parametrize("view, rate", [("crop", 0.3), ("shuffle", 0.9), ("repeat_words", 0.9)])


@pytest.fixture
def viewed(view, rate, tokenizer):
    return ViewDataset(TEXTS, tokenizer, make_view(view, rate), MAX_LENGTH, seed=7)


@pytest.fixture
def anchors(tokenizer):
    """The token ids of the texts."""
    texts = list(TEXTS["sent0"])
    return tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]


def ids_of(dataset):
    """The token ids of a text and of its view, row by row."""
    return [row["input_ids"] for row in rows_of(dataset)]


@VIEWS_WITH_RATES
def test_the_first_sentence_of_a_row_is_the_text(viewed, anchors):
    assert [first for first, _ in ids_of(viewed)] == anchors


@VIEWS_WITH_RATES
def test_the_second_sentence_of_some_row_differs_from_the_text(viewed, anchors):
    assert [second for _, second in ids_of(viewed)] != anchors


@VIEWS_WITH_RATES
def test_a_row_holds_token_ids_alone(viewed):
    for row in rows_of(viewed):
        assert set(row) == {"input_ids"}


@VIEWS_WITH_RATES
def test_a_sentence_has_words_and_is_no_longer_than_the_data_set_allows(viewed):
    for row in ids_of(viewed):
        for ids in row:
            assert 3 <= len(ids) <= viewed.max_length


@VIEWS_WITH_RATES
def test_the_special_tokens_stand_at_the_ends_alone(viewed):
    for row in ids_of(viewed):
        for first, *inner, last in row:
            assert (first, last) == (CLS, SEP)
            assert not {CLS, SEP} & set(inner)


# --- repeated words ---

LONG_TEXT = "the cat sat on the mat in the house of a man ."


def repeating(tokenizer, rate, max_length):
    """Fifty times the same long text."""
    texts = Dataset.from_dict({"sent0": [LONG_TEXT] * 50})
    view = make_view("repeat_words", rate)
    return ViewDataset(texts, tokenizer, view, max_length)


@pytest.fixture
def cut_to_eight(tokenizer):
    return repeating(tokenizer, rate=0.32, max_length=8)


@pytest.fixture
def first_eight(tokenizer):
    """The token ids of the text, which is cut."""
    return tokenizer(LONG_TEXT, truncation=True, max_length=8)["input_ids"]


def test_repeated_words_may_go_beyond_max_seq_length(cut_to_eight):
    assert cut_to_eight.max_length == 8 + 2


def test_the_text_is_cut_before_its_words_are_repeated(cut_to_eight, first_eight):
    for first, _ in ids_of(cut_to_eight):
        assert first == first_eight


def test_no_word_is_lost_where_words_are_repeated(cut_to_eight, first_eight):
    for _, second in ids_of(cut_to_eight):
        without_repeats = [ids for ids, _ in groupby(second)]
        assert without_repeats == first_eight


def test_up_to_two_of_six_words_are_repeated(cut_to_eight):
    assert {len(second) for _, second in ids_of(cut_to_eight)} == {8, 9, 10}


def test_repeated_words_do_not_go_beyond_the_limit_of_the_tokenizer(tokenizer):
    dataset = repeating(tokenizer, rate=0.9, max_length=38)
    assert dataset.max_length == tokenizer.model_max_length == 40


# --- seeds and epochs ---


@pytest.fixture
def drawn(view, make):
    """A function that reads the rows of a seed and an epoch."""

    def drawn(seed, epoch):
        dataset = make(view, seed)
        dataset.set_epoch(epoch)
        return rows_of(dataset)

    return drawn


RANDOM_VIEWS = pytest.mark.parametrize("view", ["shuffle", "mlm", "spans"])


@RANDOM_VIEWS
def test_another_seed_gives_other_rows(drawn):
    assert drawn(seed=1, epoch=0) != drawn(seed=2, epoch=0)


@RANDOM_VIEWS
def test_another_epoch_gives_other_rows(drawn):
    assert drawn(seed=1, epoch=0) != drawn(seed=1, epoch=1)


@RANDOM_VIEWS
def test_the_same_seed_and_epoch_give_the_same_rows(drawn):
    assert drawn(seed=1, epoch=1) == drawn(seed=1, epoch=1)


@pytest.fixture
def seeds_of_masks(make):
    """The numbers by which masks are drawn, for two seeds and two epochs."""
    numbers = []
    for seed in (1, 2):
        dataset = make("mlm", seed)
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            numbers += [row["view_seed"] for row in rows_of(dataset)]
    return numbers


def test_every_row_of_every_seed_and_epoch_draws_its_mask_by_another_number(
    seeds_of_masks,
):
    assert len(set(seeds_of_masks)) == 4 * ROWS


def test_the_numbers_by_which_masks_are_drawn_are_those_of_a_generator(seeds_of_masks):
    for number in seeds_of_masks:
        assert 0 <= number < 2**63
