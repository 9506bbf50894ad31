"""Streams of training text: the rows of a loaded data set, in bounded memory, resumed at the same row."""

import itertools
import json
import tracemalloc

import pytest
from data_helpers import write
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node

from simcse_hf import load_text_dataset
from simcse_hf.data.stream import StreamedRows, load_text_stream


def lines(path, count, start=0):
    return write(
        path, "".join(f"sentence number {i}\n" for i in range(start, start + count))
    )


def make_rows(rows, rngs):
    return [
        {"input_ids": row["sent0"], "draw": rng.random()}
        for row, rng in zip(rows, rngs, strict=True)
    ]


def streamed(source, **options):
    """Batches of a path or of a stream of texts."""
    texts = source if isinstance(source, IterableDataset) else load_text_stream(source)
    options = {"batch_size": 4, "shuffle_buffer": 10, "seed": 3} | options
    return StreamedRows(texts, make_rows, **options)


def batches(rows, count):
    return list(itertools.islice(rows, count))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "one\n\n  \ntwo\nthree\n"),
        ("a.csv", "sent0,sent1,hard_neg\na,b,c\nd,,f\ng,h,i\n"),
        ("a.tsv", "query\tpositive\na\tb\nc\td\n"),
        (
            "a.jsonl",
            '{"anchor": "a", "positive": ["p", "q"], "negative": ["n"]}\n'
            '{"anchor": "b", "positive": ["r"], "negative": ["m"]}\n',
        ),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_has_the_rows_of_the_loaded_file(tmp_path, name, text, packed):
    path = write(tmp_path / (name + ".gz" * packed), text)
    assert list(load_text_stream(path)) == list(
        load_text_dataset(path, cache_dir=tmp_path / "cache")
    )


def test_a_stream_in_memory_is_cleaned_as_a_data_set_is():
    rows = [
        {"query": "a", "pos": ["b", "c"], "neg": ["x", "y"], "score": 1.0},
        {"query": "d", "pos": [""], "neg": ["x", "y"], "score": 1.0},
        {"query": "e", "pos": ["f"], "neg": ["z", "w"], "score": 0.0},
    ]
    stream = load_text_stream(IterableDataset.from_generator(lambda: iter(rows)))
    expected = [["a", "b", "x", "y"], ["a", "c", "x", "y"], ["e", "f", "z", "w"]]
    assert (
        [list(row.values()) for row in stream]
        == [list(row.values()) for row in load_text_dataset(rows)]
        == expected
    )
    rows[2]["query"] = 5
    with pytest.raises(
        ValueError, match="row 3, column 'query': expected a text, got 5"
    ):
        list(stream)


def test_rows_that_a_stream_drops_are_logged_while_it_is_read(caplog):
    rows = [
        {"query": "a", "pos": "b"},
        {"query": "", "pos": "b"},
        {"query": "c", "pos": " "},
    ] * 700
    stream = load_text_stream(
        IterableDataset.from_generator(lambda: iter(rows)), name="org/name"
    )
    for _ in range(2):  # a second pass drops the same rows, which is no news
        assert len(list(stream)) == 700
    assert [
        record.message for record in caplog.records if "dropped" in record.message
    ] == [
        "org/name, so far: 666 of 1000 rows dropped for an empty cell: row 2, 3, 5, 6, 8, ....",
        "org/name, so far: 1333 of 2000 rows dropped for an empty cell: row 2, 3, 5, 6, 8, ....",
    ]


def test_each_pass_has_every_row_once_in_an_order_of_its_own(tmp_path):
    path = lines(tmp_path / "a.txt", 40)
    rows = [row["input_ids"] for batch in batches(streamed(path), 20) for row in batch]
    text = [f"sentence number {i}" for i in range(40)]
    first, second = rows[:40], rows[40:]
    assert (
        sorted(first) == sorted(second) == sorted(text)
        and first != text
        and first != second
    )
    assert {text.index(row) // 10 for row in first[:10]} == {0}, (
        "a row leaves its window of 10 rows never"
    )
    in_order = [
        row["input_ids"]
        for batch in batches(streamed(path, shuffle_buffer=1), 10)
        for row in batch
    ]
    assert in_order == text


MAPPED = [{"text": f"text {i}", "label": i} for i in range(23)]
#: Texts in a folder; passes end within batches, and windows within passes.
SOURCES = {
    "txt": lambda folder: load_text_stream(lines(folder / "a.txt", 27)),
    "gz": lambda folder: load_text_stream(lines(folder / "a.txt.gz", 27)),
    "files": lambda folder: load_text_stream(
        [lines(folder / "a.txt", 13), lines(folder / "b.txt", 9, start=13)]
    ),
    "mapped": lambda folder: load_text_stream(
        IterableDataset.from_generator(lambda: iter(MAPPED))
    ),
}


@pytest.mark.parametrize("place", [0, 1, 5, 7, 13])
@pytest.mark.parametrize("source", SOURCES)
def test_a_saved_stream_continues_with_the_same_batches(tmp_path, place, source):
    first, stopped, resumed = (streamed(SOURCES[source](tmp_path)) for _ in range(3))
    whole = batches(first, 20)
    assert batches(stopped, place) == whole[:place]
    stopped.save_state(tmp_path)
    resumed.load_state(tmp_path)
    assert batches(resumed, 20 - place) == whole[place:]


def test_processes_share_the_batches_of_one_process_without_overlap(tmp_path):
    path = lines(tmp_path / "a.txt", 30)
    one = batches(streamed(path, batch_size=6), 10)
    shares = [
        batches(streamed(path, batch_size=2, rank=rank, processes=3), 10)
        for rank in range(3)
    ]
    assert [sum(parts, []) for parts in zip(*shares, strict=True)] == one


def split_rows(rank, processes, whole=32):
    rows = Dataset.from_dict(
        {"text": [f"text {i}" for i in range(whole)]}
    ).to_iterable_dataset(num_shards=4)
    return split_dataset_by_node(rows, rank, processes)


def test_a_stream_that_the_caller_has_split_is_not_split_again():
    shares = []
    for rank in range(2):
        stream = streamed(load_text_stream(split_rows(rank, 2)), rank=rank, processes=2)
        shares += [row["input_ids"] for batch in batches(stream, 4) for row in batch]
    assert sorted(shares) == sorted(f"text {i}" for i in range(32))
    alone = streamed(load_text_stream(split_rows(1, 4)))
    assert len({row["input_ids"] for batch in batches(alone, 4) for row in batch}) == 8


def uneven_parts(rank):
    whole = IterableDataset.from_generator(
        lambda sizes: (
            {"text": f"text {size} {i}"} for size in sizes for i in range(size)
        ),
        gen_kwargs={"sizes": [9, 14]},
    )
    stream = load_text_stream(split_dataset_by_node(whole, rank, 2))
    return streamed(stream, rank=rank, processes=2)


def test_each_process_continues_its_own_part_of_a_stream(tmp_path):
    parts = [uneven_parts(rank) for rank in range(2)]
    expected = [batches(part, 5)[3:] for part in map(uneven_parts, range(2))]
    for part in parts:
        batches(part, 3)
        part.save_state(tmp_path)
    for rank in range(2):
        resumed = uneven_parts(rank)
        resumed.load_state(tmp_path)
        assert batches(resumed, 2) == expected[rank]


@pytest.mark.parametrize(("rank", "processes"), [(1, 2), (0, 4)])
def test_a_part_of_a_stream_that_belongs_to_another_process_is_refused(rank, processes):
    with pytest.raises(
        ValueError, match=f"process 0 of 2 got part {rank} of {processes}"
    ):
        streamed(load_text_stream(split_rows(rank, processes)), rank=0, processes=2)


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(rows):
        stream = streamed(
            lines(tmp_path / f"{rows}.txt", rows), shuffle_buffer=100, batch_size=50
        )
        tracemalloc.start()
        for _ in itertools.islice(stream, rows // 50):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(500)  # loads what is loaded once
    small, large = peak(500), peak(3000)
    assert large < 1.3 * small, f"{small} and {large} bytes"


def test_a_state_of_another_order_or_none_is_refused(tmp_path):
    path = lines(tmp_path / "a.txt", 20)
    with pytest.raises(ValueError, match="did not stream its text"):
        streamed(path).load_state(tmp_path)
    streamed(path).save_state(tmp_path)
    with pytest.raises(ValueError, match="another shuffle_buffer"):
        streamed(path, shuffle_buffer=7).load_state(tmp_path)
    assert "sentence" not in (tmp_path / "stream_state.json").read_text(), (
        "a checkpoint keeps no training text"
    )
    assert json.loads((tmp_path / "stream_state.json").read_text())["seed"] == 3


def test_a_dataset_of_the_hub_is_streamed_and_not_cached(monkeypatch):
    calls = []

    def load_dataset(*args, **options):
        calls.append((args, options))
        return Dataset.from_dict(
            {"query": ["a", "c"], "positive": ["b", "d"], "id": [1, 2]}
        ).to_iterable_dataset()

    monkeypatch.setattr("simcse_hf.data.read.load_dataset", load_dataset)
    pairs = [{"sent0": "a", "sent1": "b"}, {"sent0": "c", "sent1": "d"}]
    assert list(load_text_stream("org/name:config:train")) == pairs
    assert calls == [(("org/name", "config"), {"split": "train", "streaming": True})]
