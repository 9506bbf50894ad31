"""The same rows in any container give the same texts and token ids, whatever the door through which they come."""

import json
import math
from itertools import islice

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from conftest import save_encoder
from datasets import Dataset, IterableDataset
from evaluation_helpers import write
from trainer_helpers import make as make_in
from trainer_helpers import model_of, refuses, sentences
from transformers import BatchEncoding

from simcse_hf import SimCSE, SimilarityEvalCallback
from simcse_hf.data.scored_pairs import ScoredPairs

MISSING = object()
FIRST, SECOND, THIRD = (sentences(8, seed, words=3) for seed in (1, 2, 3))
#: The columns of each kind of rows, in which a text, a label or a score is missing, by the objective.
KINDS = {
    "simcse": {
        "Query": FIRST,
        "positive": [*SECOND[:3], MISSING, *SECOND[4:]],
        "negative": [THIRD[0], MISSING, *THIRD[2:]],
    },
    "class_labels": {"text": FIRST, "label": [1, 2, 1, 2, 1, MISSING, 2, 1]},
    "cosent": {"sentence1": FIRST, "sentence2": SECOND, "score": [4.0, 1.5, MISSING, 0.0, 2.0, 3.5, 5.0, 1.0]},
    "supcon": {"premise": FIRST[:1] * 8, "hypothesis": SECOND, "label": [0, 1, 2, 0, MISSING, 1, 2, 0]},
}


def model_for(kind):
    """A model with the objective of a kind of rows."""
    return model_of(objective=kind, pooler_type="avg_no_cls" if kind == "supcon" else "avg")


def tokens_of(rows):
    return [row["input_ids"] for row in rows]


def filled(columns, missing=None):
    """The columns with a value in place of what is missing."""
    found = {}
    for name, cells in columns.items():
        found[name] = [missing if cell is MISSING else cell for cell in cells]
    return found


def rows_of(columns, missing=None):
    """The rows as dictionaries, with a value in place of what is missing."""
    columns = filled(columns, missing)
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def as_file(folder, columns):
    """Write the rows as JSON Lines, in which a missing cell is null, and return the path."""
    return str(write(folder / "rows.jsonl", [json.dumps(row) for row in rows_of(columns)]))


# --- containers with a missing cell in the form of each ---


def without_missing_keys(columns):
    rows = rows_of(columns, MISSING)
    return [{key: cell for key, cell in row.items() if cell is not MISSING} for row in rows]


def as_array(cells):
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def arrays_of(columns):
    cells = filled(columns, np.float64("nan"))
    return {name: as_array(column) for name, column in cells.items()}


def series_of(columns):
    return {name: pd.Series(column) for name, column in filled(columns).items()}


def frame_of(columns):
    return pd.DataFrame(filled(columns))


def dataset_of(columns):
    return Dataset.from_dict(filled(columns))


def transformed(columns):
    """A data set of numbers of rows, whose transform gives the rows."""
    rows = dataset_of(columns)
    numbers = Dataset.from_dict({"number": range(len(rows))})
    return numbers.with_transform(lambda batch: rows[batch["number"]])


def stream_of(columns):
    return IterableDataset.from_generator(lambda: iter(without_missing_keys(columns)))


CONTAINERS = {
    "dicts with None": rows_of,
    "dicts without the key": without_missing_keys,
    "dicts with blanks": lambda columns: rows_of(columns, ""),
    "a generator": lambda columns: (row for row in rows_of(columns)),
    "columns": filled,
    "columns of arrays": arrays_of,
    "columns of series": series_of,
    "a frame": frame_of,
    "a frame with pandas.NA": lambda columns: pd.DataFrame(filled(columns, pd.NA), index=range(8, 16)),
    "a frame of nullable types": lambda columns: frame_of(columns).convert_dtypes(),
    "named tuples": lambda columns: frame_of(columns).itertuples(),
    "a table of Arrow": lambda columns: pa.table(filled(columns)),
    "a data set": dataset_of,
    "a data set for numpy": lambda columns: dataset_of(columns).with_format("numpy"),
    "a data set with a transform": transformed,
}
STREAMS = {
    "a stream": stream_of,
    "a stream for torch": lambda columns: dataset_of(columns).to_iterable_dataset().with_format("torch"),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_STREAM = pytest.mark.parametrize("container", STREAMS)


# --- training and evaluation rows ---


@pytest.fixture(scope="module")
def rows_of_file(tmp_path_factory, tokenizer):
    """`rows_of_file(kind)` gives the training rows that a file of a kind gives, read once for each kind."""
    read = {}

    def rows(kind):
        if kind not in read:
            folder = tmp_path_factory.mktemp(kind)
            path = as_file(folder, KINDS[kind])
            read[kind] = make_in(folder, tokenizer, path, model_for(kind)).train_dataset
            assert len(read[kind]) == 7, "the row with a missing cell is left out"
        return read[kind]

    return rows


@EVERY_KIND
@pytest.mark.parametrize("container", CONTAINERS)
def test_training_rows_are_those_of_the_file(make, container, kind, rows_of_file):
    trainer = make(CONTAINERS[container](KINDS[kind]), model_for(kind))
    assert trainer.train_dataset[:] == rows_of_file(kind)[:]


@EVERY_KIND
@EVERY_STREAM
def test_evaluation_rows_of_a_stream_are_those_of_the_file(make, container, kind, rows_of_file):
    stream = STREAMS[container](KINDS[kind])
    trainer = make(rows_of(KINDS[kind]), model_for(kind), eval_dataset=stream)
    assert trainer.eval_dataset[:] == rows_of_file(kind)[:]


@EVERY_STREAM
def test_a_stream_has_the_rows_of_the_file(make, container, rows_of_file):
    stream = STREAMS[container](KINDS["simcse"])
    trainer = make(stream, per_device_train_batch_size=7)
    rows = list(islice(trainer.train_dataset, 7))
    assert sorted(tokens_of(rows)) == sorted(tokens_of(rows_of_file("simcse")))


@pytest.mark.parametrize("container", CONTAINERS | STREAMS)
def test_a_dev_set_has_the_pairs_with_a_score(container):
    gold = KINDS["cosent"]["score"]
    kept = [row for row in range(8) if gold[row] is not MISSING]
    columns = [[cells[row] for row in kept] for cells in (FIRST, SECOND, gold)]
    dev_set = (CONTAINERS | STREAMS)[container](KINDS["cosent"])
    assert SimilarityEvalCallback(dev_set).pairs == ScoredPairs("dev_set", *columns)


# --- token ids ---

TOKENS = [[2, 6, 7, 3], [2, 8, 3], [2, 9, 10, 11, 12, 3], [2, 5, 6, 3]] * 2
SINGLE = [[ids] for ids in TOKENS]  # a text in each row


def padded(ids, left=False, pad=1):
    padding = [pad] * (8 - len(ids))
    return padding + ids if left else ids + padding


def masks(left=False):
    return [padded([1] * len(ids), left, pad=0) for ids in TOKENS]


def token_columns(left=False):
    return {"input_ids": [padded(ids, left) for ids in TOKENS], "attention_mask": masks(left)}


CONTAINERS_OF_TOKENS = {
    "dicts": rows_of,
    "columns": dict,
    "arrays": lambda columns: {name: np.array(cells) for name, cells in columns.items()},
    "the output of a tokenizer": BatchEncoding,
    "tensors of a tokenizer": lambda columns: BatchEncoding(columns, tensor_type="pt"),
    "a frame": pd.DataFrame,
    "a data set": Dataset.from_dict,
    "a data set for torch": lambda columns: Dataset.from_dict(columns).with_format("torch"),
    "a data set with a transform": transformed,
}


@pytest.mark.parametrize("container", CONTAINERS_OF_TOKENS)
def test_the_mask_of_padded_token_ids_counts(make, container):
    data = CONTAINERS_OF_TOKENS[container](token_columns())
    assert tokens_of(make(data).train_dataset) == SINGLE


def test_the_mask_of_texts_that_are_padded_on_either_side_counts_and_they_keep_their_scores(make):
    right, left = token_columns(), token_columns(left=True)
    columns = {"score": [0.5 * i for i in range(8)]}
    for name in right:
        columns[name] = [[right[name][row], left[name][7 - row]] for row in range(8)]
    rows = make(columns, model_for("cosent")).train_dataset
    assert tokens_of(rows) == [[TOKENS[row], TOKENS[7 - row]] for row in range(8)]
    assert rows["score"][:] == columns["score"]


@pytest.mark.parametrize(
    "columns, message",
    [
        (token_columns() | {"attention_mask": masks()[:5] + [[1, 1]] * 3}, "row 6: attention_mask"),
        (token_columns() | {"attention_mask": [*masks()[:7], [0] * 8]}, "row 8: no token of a text is left"),
        ({"input_ids": [*TOKENS[:3], padded([2, 5], left=True)]}, "row 4: the tokens are padded"),
    ],
)
def test_padding_that_no_mask_explains_is_refused(make, columns, message):
    with refuses(message):
        make(columns)


def test_a_stream_of_token_ids_is_evaluated_and_refused_in_training(make):
    stream = Dataset.from_dict({"input_ids": TOKENS}).to_iterable_dataset()
    trainer = make(eval_dataset=stream)
    assert tokens_of(trainer.eval_dataset) == SINGLE
    with refuses("train_dataset is a stream of token ids"):
        make(stream)


# --- keys and columns ---

PAIR = {"sent0": "a cat", "sent1": "the cat"}
TRIPLET = {"sent0": "a dog", "sent1": "the dog", "hard_neg": "a man"}


def test_a_key_that_the_first_row_lacks_counts_and_one_that_is_too_late_is_refused_with_its_row(make, tokenizer):
    rows = make(iter([*[PAIR] * 19, TRIPLET])).train_dataset
    assert tokens_of(rows)[-1] == tokenizer(list(TRIPLET.values()))["input_ids"]
    rows = [*[PAIR] * 130, TRIPLET]
    for data in (rows, IterableDataset.from_generator(lambda: iter(rows))):
        with refuses("train_dataset, row 131: the key 'hard_neg' does not occur in the first 100"):
            list(make(data, per_device_train_batch_size=200).train_dataset)


def test_several_lists_of_texts_may_be_columns_or_data_sets_until_tables_name_them(make):
    lists = {"en": FIRST, "de": SECOND}
    with refuses("train_dataset: 'en', 'de' may be columns or data sets"):
        make(lists)
    trainer = make(lists, datasets={"en": {"share": 1}, "de": {"share": 1}})
    assert len(trainer.train_dataset) == 16


# --- labels ---


def labelled(labels):
    return [{"text": text, "label": label} for text, label in zip(FIRST, labels, strict=True)]


def test_several_labels_of_a_text_are_read_from_any_list(make):
    rows = labelled(["a", "b", ["a", "c"], "a", ("b", "c"), np.array(["a", "c"]), "a", "b"])
    found = make(rows, model_for("class_labels")).train_dataset["label"]
    assert found[:] == [[0], [1], [0, 2], [0], [1, 2], [0, 2], [0], [1]]


def test_whole_numbers_beside_a_missing_label_are_the_same_classes(make):
    rows = labelled([1, 2.0, "1", 2, np.int64(1), math.nan, np.float32(2), 1.0])
    trainer = make(rows, model_for("class_labels"))
    assert trainer.train_dataset["label"][:] == [0, 1, 0, 1, 0, 1, 0]


# --- texts for a model ---


def column_of(texts):
    return Dataset.from_dict({"text": texts})["text"]


ITERABLES = {
    "a tuple": tuple,
    "a generator": iter,
    "an array": np.array,
    "an array of objects": as_array,
    "a series": pd.Series,
    "a column": column_of,
}


@pytest.fixture(scope="module")
def model(module_path):
    save_encoder(module_path)
    return SimCSE(module_path, pooler_type="avg", device="cpu")


@pytest.mark.parametrize("as_iterable", ITERABLES.values(), ids=ITERABLES)
def test_texts_in_any_iterable_are_encoded_and_compared(model, as_iterable):
    similarities = model.similarity(FIRST, SECOND)
    torch.testing.assert_close(model.encode(as_iterable(FIRST)), model.encode(FIRST))
    torch.testing.assert_close(model.similarity(as_iterable(FIRST), as_iterable(SECOND)), similarities)
    found = model.similarity_pairwise(as_iterable(FIRST), as_iterable(SECOND))
    torch.testing.assert_close(found, similarities.diagonal())


def test_a_single_text_of_numpy_is_encoded_and_searched_as_one_text(model):
    text = np.str_("a cat")
    assert model.encode(text).shape == (32,)
    model.build_index(FIRST)
    first, second, _ = model.search(text, top_k=3)
    assert first.score >= second.score


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA])
def test_a_missing_text_is_refused_by_its_place(model, missing):
    with refuses("sentence 1: expected a text, got None"):
        model.encode(["a cat", missing])
