"""Streams of training text: the rows of a loaded data set, cleaned and not cached."""

import pytest
from data_helpers import write
from datasets import Dataset, IterableDataset

from simcse_hf import load_text_dataset
from simcse_hf.data.stream import load_text_stream


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.txt", "one\n\n  \ntwo\nthree\n"),
        ("a.csv", "sent0,sent1,hard_neg\na,b,c\nd,,f\ng,h,i\n"),
        (
            "a.jsonl",
            '{"anchor": "a", "positive": ["p", "q"], "negative": ["n"]}\n'
            '{"anchor": "b", "positive": ["r"], "negative": ["m"]}\n',
        ),
    ],
)
def test_a_stream_has_the_rows_of_the_loaded_file(tmp_path, name, text):
    path = write(tmp_path / f"{name}.gz", text)
    assert list(load_text_stream(path)) == list(load_text_dataset(path, cache_dir=tmp_path / "cache"))


def test_a_cell_of_a_stream_that_is_no_text_is_named():
    rows = [{"query": "a", "pos": ["b"]}, {"query": 5, "pos": ["f"]}]
    with pytest.raises(ValueError, match="row 2, column 'query': expected a text, got 5"):
        list(load_text_stream(IterableDataset.from_generator(lambda: iter(rows))))


def test_rows_that_a_stream_drops_are_logged_while_it_is_read(caplog):
    rows = [{"query": "a", "pos": "b"}, {"query": "", "pos": "b"}, {"query": "c", "pos": " "}] * 700
    stream = load_text_stream(IterableDataset.from_generator(lambda: iter(rows)), name="org/name")
    for _ in range(2):  # a second pass drops the same rows, which is no news
        assert len(list(stream)) == 700
    assert [record.message for record in caplog.records if "dropped" in record.message] == [
        "org/name, so far: 666 of 1000 rows dropped for an empty cell: row 2, 3, 5, 6, 8, ....",
        "org/name, so far: 1333 of 2000 rows dropped for an empty cell: row 2, 3, 5, 6, 8, ....",
    ]


def test_a_dataset_of_the_hub_is_streamed_and_not_cached(monkeypatch):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return Dataset.from_dict({"query": ["a", "c"], "positive": ["b", "d"], "id": [1, 2]}).to_iterable_dataset()

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    pairs = [{"sent0": "a", "sent1": "b"}, {"sent0": "c", "sent1": "d"}]
    assert list(load_text_stream("org/name:config:train")) == pairs
    assert calls == [(("org/name", "config"), {"split": "train", "streaming": True})]
