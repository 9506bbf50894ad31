"""Rows depend on the seed, the epoch and their index only, in any worker and process."""

import pytest
from conftest import CLS, SEP, WORDS
from datasets import Dataset
from torch.utils.data import DataLoader

from simcse_hf.data.documents import SpanDataset
from simcse_hf.data.view_dataset import ViewDataset
from simcse_hf.data.views import make_view

ROWS = 13


@pytest.fixture
def texts():
    words = WORDS.split()[:18]
    return Dataset.from_dict(
        {"sent0": [" ".join(words[i % 7 : i % 7 + 4 + i % 8]) for i in range(ROWS)]}
    )


def rows_of(dataset, workers=0, batch_size=4, **options):
    loader = DataLoader(
        dataset, batch_size=batch_size, num_workers=workers, collate_fn=list, **options
    )
    return [row for batch in loader for row in batch]


@pytest.fixture
def make(texts, tokenizer):
    """Makes a data set of views, or of spans of documents."""

    def make(view, seed=7, **options):
        if view == "spans":
            return SpanDataset(
                ([text] * 12 for text in texts["sent0"]), tokenizer, 12, seed
            )
        rate = 0.9 if view == "shuffle" else None
        return ViewDataset(texts, tokenizer, make_view(view, rate), 12, seed, **options)

    return make


VIEWS = [
    (view, {"both": both})
    for view in ("crop", "shuffle", "repeat_words", "mlm")
    for both in (False, True)
]


@pytest.mark.parametrize(("view", "options"), [*VIEWS, ("spans", {})])
def test_rows_do_not_depend_on_workers_batches_or_order(view, options, make):
    dataset = make(view, **options)
    one_by_one = [dataset[i] for i in range(ROWS)]
    assert (
        rows_of(dataset)
        == rows_of(dataset, workers=2)
        == rows_of(dataset, batch_size=1)
        == one_by_one
    )
    assert [dataset[i] for i in reversed(range(ROWS))] == one_by_one[::-1]
    assert dataset[-1] == one_by_one[-1]
    assert len(dataset) == ROWS and dataset.column_names == ["input_ids"]


@pytest.mark.parametrize(
    "view, rate", [("crop", 0.3), ("shuffle", 0.9), ("repeat_words", 0.9)]
)
def test_the_first_sentence_is_the_text_and_the_second_its_view(
    view, rate, texts, tokenizer
):
    dataset = ViewDataset(texts, tokenizer, make_view(view, rate), 12, seed=7)
    anchors = tokenizer(list(texts["sent0"]), truncation=True, max_length=12)[
        "input_ids"
    ]
    rows = rows_of(dataset)
    assert [row["input_ids"][0] for row in rows] == anchors
    assert all(set(row) == {"input_ids"} for row in rows)
    assert any(
        row["input_ids"][1] != anchor for row, anchor in zip(rows, anchors, strict=True)
    )
    for row in rows:
        for ids in row["input_ids"]:
            assert (
                3 <= len(ids) <= dataset.max_length and ids[0] == CLS and ids[-1] == SEP
            )
            assert not {CLS, SEP} & set(ids[1:-1])


def test_repeat_words_cuts_the_text_first_and_then_repeats_beyond_max_seq_length(
    tokenizer,
):
    texts = Dataset.from_dict(
        {"sent0": ["the cat sat on the mat in the house of a man ."] * 50}
    )
    dataset = ViewDataset(texts, tokenizer, make_view("repeat_words", 0.32), 8)
    assert dataset.max_length == 8 + 2
    anchor = tokenizer(texts[0]["sent0"], truncation=True, max_length=8)["input_ids"]
    lengths = set()
    for row in rows_of(dataset):
        first, second = row["input_ids"]
        assert first == anchor
        assert [
            ids for i, ids in enumerate(second) if i == 0 or ids != second[i - 1]
        ] == anchor  # nothing is lost
        lengths.add(len(second))
    assert lengths == {8, 9, 10}
    tokenizer_limit = ViewDataset(texts, tokenizer, make_view("repeat_words", 0.9), 38)
    assert tokenizer_limit.max_length == tokenizer.model_max_length == 40


@pytest.mark.parametrize("view", ["shuffle", "mlm", "spans"])
def test_rows_depend_on_seed_epoch_and_index(view, make):
    def rows(seed, epoch):
        dataset = make(view, seed)
        dataset.set_epoch(epoch)
        return rows_of(dataset)

    assert (
        rows(1, 0) != rows(2, 0)
        and rows(1, 0) != rows(1, 1)
        and rows(1, 1) == rows(1, 1)
    )
    if view == "mlm":
        seeds = [
            row["view_seed"]
            for seed in (1, 2)
            for epoch in (0, 1)
            for row in rows(seed, epoch)
        ]
        assert len(set(seeds)) == 4 * ROWS and all(0 <= seed < 2**63 for seed in seeds)


def test_persistent_workers_see_the_next_epoch(make):
    dataset = make("shuffle")
    loader = DataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=list, persistent_workers=True
    )
    for epoch in (0, 1, 5, 1):
        dataset.set_epoch(epoch)
        rows = [row for batch in loader for row in batch]
        assert rows == rows_of(dataset)
