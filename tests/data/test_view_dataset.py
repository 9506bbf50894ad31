"""Rows depend on the seed, the epoch and their index only, in any worker and process."""

from itertools import groupby

import pytest
from conftest import CLS, SEP
from datasets import Dataset
from encoding_helpers import random_texts
from torch.utils.data import DataLoader

from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.view_dataset import ViewDataset
from simcse_hf.data.views import make_view

ROWS = 13
MAX_LENGTH = 12


#: Texts of four to eleven words.
TEXTS = Dataset.from_dict({"sent0": random_texts(ROWS, words=(4, 12))})


def loader_of(dataset, workers, **options):
    return DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=list, **options)


def read(dataset, workers=0):
    return [row for batch in loader_of(dataset, workers) for row in batch]


@pytest.fixture
def make(tokenizer):
    """Makes a data set of views, or of spans of documents."""

    def make(view, seed=7, epoch=0, both=False):
        if view == "spans":
            documents = [[text] * 12 for text in TEXTS["sent0"]]
            dataset = SpanDataset(documents, tokenizer, MAX_LENGTH, seed)
        else:
            rate = 0.9 if view == "shuffle" else None
            dataset = ViewDataset(TEXTS, tokenizer, make_view(view, rate), MAX_LENGTH, seed, both)
        dataset.set_epoch(epoch)
        return dataset

    return make


@pytest.mark.parametrize(
    "view, both",
    [("crop", False), ("shuffle", True), ("repeat_words", False), ("mlm", True), ("spans", False)],
)
def test_rows_do_not_depend_on_workers_batches_or_order(view, both, make):
    dataset = make(view, both=both)
    rows = [dataset[i] for i in range(ROWS)]
    assert len(dataset) == ROWS and dataset[-1] == rows[-1]
    assert [dataset[i] for i in reversed(range(ROWS))] == rows[::-1]
    assert read(dataset) == read(dataset, workers=2) == rows


def test_persistent_workers_see_the_next_epoch(make):
    dataset = make("shuffle")
    loader = loader_of(dataset, workers=2, persistent_workers=True)
    for epoch in (0, 1, 5, 1):
        dataset.set_epoch(epoch)
        assert [row for batch in loader for row in batch] == read(dataset)


@pytest.mark.parametrize("view, rate", [("crop", 0.3), ("shuffle", 0.9), ("repeat_words", 0.9)])
def test_a_row_holds_the_text_and_its_view_between_special_tokens(view, rate, tokenizer):
    dataset = ViewDataset(TEXTS, tokenizer, make_view(view, rate), MAX_LENGTH, seed=7)
    anchors = tokenizer(list(TEXTS["sent0"]), truncation=True, max_length=MAX_LENGTH)["input_ids"]
    rows = read(dataset)
    texts, views = zip(*[row["input_ids"] for row in rows], strict=True)
    assert list(texts) == anchors != list(views)
    assert all(set(row) == {"input_ids"} for row in rows)
    for first, *words, last in texts + views:
        assert first == CLS and last == SEP
        assert words and not {CLS, SEP} & set(words)
        assert len(words) + 2 <= dataset.max_length


LONG_TEXT = "the cat sat on the mat in the house of a man ."


def repeating(tokenizer, rate, max_length):
    """Fifty times the same long text."""
    texts = Dataset.from_dict({"sent0": [LONG_TEXT] * 50})
    return ViewDataset(texts, tokenizer, make_view("repeat_words", rate), max_length)


def test_words_are_repeated_beyond_max_seq_length_but_not_beyond_the_limit_of_the_tokenizer(tokenizer):
    """The text is cut to eight tokens first, so that no word is lost, and up to two of its six words are repeated."""
    dataset = repeating(tokenizer, 0.32, 8)
    cut = tokenizer(LONG_TEXT, truncation=True, max_length=8)["input_ids"]
    assert dataset.max_length == 10
    lengths = set()
    for row in read(dataset):
        first, second = row["input_ids"]
        assert first == cut == [ids for ids, _ in groupby(second)]
        lengths.add(len(second))
    assert lengths == {8, 9, 10}
    assert repeating(tokenizer, 0.9, 38).max_length == tokenizer.model_max_length == 40


@pytest.mark.parametrize("view", ["shuffle", "mlm", "spans"])
def test_rows_are_drawn_by_the_seed_and_the_epoch(view, make):
    rows, same, other_seed, other_epoch = (
        read(make(view, seed, epoch)) for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert other_seed != rows == same != other_epoch
    if view == "mlm":
        seeds = {row["view_seed"] for row in rows + other_seed + other_epoch}
        assert len(seeds) == 3 * ROWS and all(0 <= seed < 2**63 for seed in seeds)
