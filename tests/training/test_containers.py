"""The same rows in any container give the same texts and token ids, whatever the door through which they come."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, IterableDataset
from trainer_helpers import make, model_of, sentences

from simcse_hf import SimCSE, SimilarityEvalCallback, load_text_dataset
from simcse_hf.data.scored_pairs import ScoredPairs
from simcse_hf.search.mining import mine_hard_negatives

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


def filled(columns, missing=None):
    return {name: [missing if cell is MISSING else cell for cell in cells] for name, cells in columns.items()}


def rows_of(columns, missing=None):
    columns = filled(columns, missing)
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def without_missing_keys(columns):
    return [{key: cell for key, cell in row.items() if cell is not MISSING} for row in rows_of(columns, MISSING)]


def as_file(folder, columns):
    """Write the rows as JSON Lines, in which a missing cell is null, and return the path."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(columns)))
    return str(path)


def as_array(cells):
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def transformed(columns):
    rows = Dataset.from_dict(filled(columns))
    return Dataset.from_dict({"number": range(len(rows))}).with_transform(lambda batch: rows[batch["number"]])


def torch_stream(rows):
    return rows.to_iterable_dataset().with_format("torch")


#: Containers with a missing cell in the form of each.
CONTAINERS = {
    "dicts with None": rows_of,
    "dicts with nan": lambda columns: rows_of(columns, math.nan),
    "dicts with pandas.NA": lambda columns: tuple(rows_of(columns, pd.NA)),
    "dicts without the key": without_missing_keys,
    "dicts with blanks": lambda columns: rows_of(columns, ""),
    "a generator": lambda columns: (row for row in rows_of(columns)),
    "columns": filled,
    "columns of arrays": lambda columns: {
        name: as_array(cells) for name, cells in filled(columns, np.float64("nan")).items()
    },
    "columns of series": lambda columns: {name: pd.Series(cells) for name, cells in filled(columns).items()},
    "a frame": lambda columns: pd.DataFrame(filled(columns)),
    "a frame with pandas.NA": lambda columns: pd.DataFrame(filled(columns, pd.NA), index=range(8, 16)),
    "a frame of nullable types": lambda columns: pd.DataFrame(filled(columns)).convert_dtypes(),
    "named tuples": lambda columns: pd.DataFrame(filled(columns)).itertuples(),
    "a table of Arrow": lambda columns: pa.table(filled(columns)),
    "a data set": lambda columns: Dataset.from_dict(filled(columns)),
    "a data set for numpy": lambda columns: Dataset.from_dict(filled(columns)).with_format("numpy"),
    "a data set for pandas": lambda columns: Dataset.from_dict(filled(columns)).with_format("pandas"),
    "a data set with a transform": transformed,
    "a stream": lambda columns: IterableDataset.from_generator(lambda: iter(without_missing_keys(columns))),
    "a stream for torch": lambda columns: torch_stream(Dataset.from_dict(filled(columns))),
}


def settings_of(kind):
    return {"objective": kind, "pooler_type": "avg_no_cls" if kind == "supcon" else "avg"}


def tokens_of(rows):
    return [row["input_ids"] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_training_and_evaluation_rows_are_those_of_the_file(tmp_path, tokenizer, container, kind):
    columns = KINDS[kind]
    path = as_file(tmp_path, columns)
    expected = make(tmp_path, tokenizer, path, model_of(**settings_of(kind))).train_dataset
    assert len(expected) == 7
    of_training, of_evaluation = (CONTAINERS[container](columns) for _ in range(2))
    if isinstance(of_training, IterableDataset):  # whose training rows are batches
        of_training = path
    given = make(tmp_path, tokenizer, of_training, model_of(**settings_of(kind)), eval_dataset=of_evaluation)
    assert given.train_dataset[:] == given.eval_dataset[:] == expected[:]


@pytest.mark.parametrize("container", ["a stream", "a stream for torch"])
def test_a_stream_has_the_rows_of_the_file(tmp_path, tokenizer, container):
    columns = KINDS["simcse"]
    named = make(tmp_path, tokenizer, as_file(tmp_path, columns))
    streamed = make(tmp_path, tokenizer, CONTAINERS[container](columns), per_device_train_batch_size=7)
    batch = next(iter(streamed.train_dataset))
    assert sorted(tokens_of(batch)) == sorted(tokens_of(named.train_dataset))


@pytest.mark.parametrize("container", CONTAINERS)
def test_texts_dev_sets_and_mined_rows_are_those_of_the_file(tmp_path, tokenizer, container):
    make_rows = CONTAINERS[container]
    path = as_file(tmp_path, KINDS["simcse"])
    assert load_text_dataset(make_rows(KINDS["simcse"]))[:] == load_text_dataset(path, cache_dir=tmp_path)[:]
    scored = SimilarityEvalCallback(make_rows(KINDS["cosent"])).pairs
    kept = [place for place in range(8) if place != 2]
    scores = [KINDS["cosent"]["score"][place] for place in kept]
    assert scored == ScoredPairs("dev_set", [FIRST[i] for i in kept], [SECOND[i] for i in kept], scores)
    assert make(tmp_path, tokenizer, dev_set=make_rows(KINDS["cosent"])).dev_sets[0].pairs == scored
    model = Bag()
    mined = mine_hard_negatives(make_rows(KINDS["simcse"]), model)[0]
    assert mined[:] == mine_hard_negatives(path, model)[0][:]


class Bag:
    """A model whose embeddings count the letters of a text."""

    def encode_query(self, texts, **options):
        return np.array([[text.count(letter) + 0.1 for letter in "abdghmnorst"] for text in texts], dtype=np.float32)

    encode_document = encode_query


# --- token ids ---

TOKENS = [[2, 6, 7, 3], [2, 8, 3], [2, 9, 10, 11, 12, 3], [2, 5, 6, 3]] * 2


def padded(ids, width=8, left=False, pad=1):
    fill = [pad] * (width - len(ids))
    return fill + ids if left else ids + fill


def masks(left):
    return [padded([1] * len(ids), left=left, pad=0) for ids in TOKENS]


def token_columns(left):
    return {"input_ids": [padded(ids, left=left) for ids in TOKENS], "attention_mask": masks(left)}


#: Containers of padded token ids.
OF_TOKENS = {
    "dicts": rows_of,
    "dicts of arrays": lambda columns: [{k: np.array(v) for k, v in row.items()} for row in rows_of(columns)],
    "dicts of tensors": lambda columns: [{k: torch.tensor(v) for k, v in row.items()} for row in rows_of(columns)],
    "a generator": lambda columns: iter(rows_of(columns)),
    "columns": dict,
    "arrays": lambda columns: {name: np.array(cells) for name, cells in columns.items()},
    "tensors": lambda columns: {name: torch.tensor(cells) for name, cells in columns.items()},
    "a frame": pd.DataFrame,
    "a data set": Dataset.from_dict,
    "a data set for torch": lambda columns: Dataset.from_dict(columns).with_format("torch"),
    "a data set with a transform": transformed,
}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("container", OF_TOKENS)
def test_the_mask_of_padded_token_ids_counts(tmp_path, tokenizer, container, left):
    data = [OF_TOKENS[container](token_columns(left)) for _ in range(2)]
    trainer = make(tmp_path, tokenizer, data[0], eval_dataset=data[1])
    assert tokens_of(trainer.train_dataset) == tokens_of(trainer.eval_dataset) == [[ids] for ids in TOKENS]


def test_the_output_of_a_tokenizer_is_the_rows_of_its_texts(tmp_path, tokenizer):
    named = make(tmp_path, tokenizer, FIRST)
    for options in ({"padding": "max_length", "max_length": 12}, {"padding": True, "return_tensors": "pt"}, {}):
        assert tokens_of(make(tmp_path, tokenizer, tokenizer(FIRST, **options)).train_dataset) == tokens_of(
            named.train_dataset
        )


def test_rows_of_several_padded_texts_keep_their_labels(tmp_path, tokenizer):
    right, left = token_columns(left=False), token_columns(left=True)
    columns = {name: [list(pair) for pair in zip(right[name], left[name][::-1], strict=True)] for name in right}
    columns["score"] = [0.5 * i for i in range(8)]
    rows = make(tmp_path, tokenizer, columns, model_of(**settings_of("cosent"))).train_dataset
    assert tokens_of(rows) == [list(pair) for pair in zip(TOKENS, TOKENS[::-1], strict=True)]
    assert rows["score"][:] == columns["score"]


def test_a_run_on_padded_token_ids_is_that_on_their_texts(tmp_path, tokenizer):
    losses = []
    for data in ({"input_ids": TOKENS}, token_columns(False), token_columns(True)):
        trainer = make(tmp_path, tokenizer, data, model_of(dropout=0.1, pooler_type="avg"), eval_dataset=data)
        losses.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"]))
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize(
    "columns, message",
    [
        (token_columns(False) | {"attention_mask": masks(False)[:5] + [[1, 1]] * 3}, "row 6: attention_mask"),
        (
            token_columns(False) | {"attention_mask": [*masks(False)[:7], [0] * 8]},
            "row 8: no token of a text is left",
        ),
        ({"input_ids": token_columns(False)["input_ids"]}, "row 1: the tokens are padded"),
        ({"input_ids": [*TOKENS[:3], padded([2, 5], left=True)]}, "row 4: the tokens are padded"),
    ],
)
def test_padding_that_no_mask_explains_is_refused_with_its_row(tmp_path, tokenizer, columns, message):
    for options in ({"data": columns}, {"eval_dataset": Dataset.from_dict(columns)}):
        with pytest.raises(ValueError, match=message):
            make(tmp_path, tokenizer, **options)


# --- keys and columns ---

LATE = [{"sent0": "a cat", "sent1": "the cat"}] * 19 + [{"sent0": "a dog", "sent1": "the dog", "hard_neg": "a man"}]


@pytest.mark.parametrize("data", [LATE, iter(LATE)], ids=["list", "generator"])
def test_a_key_that_the_first_row_lacks_counts(tmp_path, tokenizer, data):
    rows = make(tmp_path, tokenizer, data).train_dataset
    assert tokens_of(rows)[-1] == tokenizer(["a dog", "the dog", "a man"])["input_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_that_is_too_late_to_be_a_column_is_refused_with_its_row(tmp_path, tokenizer, stream):
    rows = LATE[:1] * 130 + LATE[-1:]
    data = IterableDataset.from_generator(lambda: iter(rows)) if stream else rows
    with pytest.raises(ValueError, match="train_dataset, row 131: the key 'hard_neg' does not occur in the first 100"):
        for _ in make(tmp_path, tokenizer, data, per_device_train_batch_size=200).train_dataset:
            pass


def test_a_stream_whose_first_row_lacks_a_key_has_all_columns(tmp_path, tokenizer):
    stream = IterableDataset.from_generator(lambda: iter(LATE))
    batch = next(iter(make(tmp_path, tokenizer, stream, per_device_train_batch_size=20).train_dataset))
    assert sum(len(row["input_ids"][2]) > 0 for row in batch) == 1


def test_columns_of_unequal_length_are_refused_with_the_row(tmp_path, tokenizer):
    for data in ({"sent0": FIRST, "sent1": SECOND[:5]}, {"text": FIRST[:5], "label": range(8)}):
        with pytest.raises(ValueError, match=r"train_dataset: row 6 has a cell in column '\w+' and none in '\w+'"):
            make(tmp_path, tokenizer, data)


def test_several_lists_of_texts_that_may_be_columns_or_data_sets_are_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="train_dataset: 'en', 'de' may be columns or data sets"):
        make(tmp_path, tokenizer, {"en": FIRST, "de": SECOND})
    tables = {"en": {"share": 1}, "de": {"share": 1}}
    mixed = make(tmp_path, tokenizer, {"en": FIRST, "de": SECOND}, datasets=tables)
    assert len(mixed.train_dataset) == 16


def test_a_stream_of_token_ids_is_refused(tmp_path, tokenizer):
    stream = Dataset.from_dict({"input_ids": TOKENS}).to_iterable_dataset()
    with pytest.raises(ValueError, match="train_dataset is a stream of token ids: stream texts, or pass token ids as"):
        make(tmp_path, tokenizer, stream)
    evaluated = make(tmp_path, tokenizer, eval_dataset=stream).eval_dataset
    assert tokens_of(evaluated) == [[ids] for ids in TOKENS]


# --- labels ---


@pytest.mark.parametrize("several", [["sport", "news"], ("news",), {"sport": 1}, np.array([0, 1])])
def test_several_labels_of_a_text_are_refused_with_their_row(tmp_path, tokenizer, several):
    rows = [{"text": text, "label": label} for text, label in zip(FIRST, ["a", "b", several] * 3, strict=False)]
    with pytest.raises(ValueError, match=r"train_dataset, row 3: the label is .*, and a text has one label"):
        make(tmp_path, tokenizer, rows, model_of(**settings_of("class_labels")))


def test_whole_numbers_beside_a_missing_label_are_the_same_classes(tmp_path, tokenizer):
    labels = [1, 2.0, "1", 2, np.int64(1), math.nan, np.float32(2), 1.0]
    rows = [{"text": text, "label": label} for text, label in zip(FIRST, labels, strict=True)]
    trainer = make(tmp_path, tokenizer, rows, model_of(**settings_of("class_labels")))
    assert trainer.train_dataset["label"][:] == [0, 1, 0, 1, 0, 1, 0]


def test_classes_of_several_files_are_refused(tmp_path, tokenizer):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        pd.DataFrame({"text": FIRST, "label": [1, 2] * 4}).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"a\.csv and .*b\.csv: classes are read from one file"):
        make(tmp_path, tokenizer, paths, model_of(**settings_of("class_labels")))


# --- texts for a model ---

#: Iterables of texts.
OF_TEXTS = {
    "a tuple": tuple,
    "a generator": iter,
    "an array": np.array,
    "an array of objects": as_array,
    "an array of variable strings": lambda texts: np.array(texts, dtype=np.dtypes.StringDType()),
    "a series": pd.Series,
    "a column": lambda texts: Dataset.from_dict({"text": texts})["text"],
    "keys": lambda texts: dict.fromkeys(texts).keys(),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from conftest import VOCABULARY
    from transformers import BertTokenizer

    folder = tmp_path_factory.mktemp("model")
    model_of(pooler_type="avg").save_pretrained(folder)
    BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(folder)
    return SimCSE(folder, device="cpu")


@pytest.mark.parametrize("container", OF_TEXTS)
def test_texts_in_any_iterable_are_encoded_compared_indexed_and_searched(model, container):
    make_texts = OF_TEXTS[container]
    embeddings = model.encode(FIRST)
    torch.testing.assert_close(model.encode(make_texts(FIRST)), embeddings)
    torch.testing.assert_close(model.encode_query(make_texts(FIRST)), embeddings)
    expected = model.similarity(FIRST, SECOND)
    torch.testing.assert_close(model.similarity(make_texts(FIRST), make_texts(SECOND)), expected)
    torch.testing.assert_close(model.similarity_pairwise(make_texts(FIRST), make_texts(SECOND)), expected.diagonal())
    model.build_index(make_texts(FIRST))
    model.add_to_index(make_texts(SECOND))
    found = model.search(make_texts(SECOND), top_k=1)
    assert [result[0].sentence for result in found] == SECOND
    pairs = [{"anchor": first, "positive": second} for first, second in zip(FIRST, SECOND, strict=True)]
    rows = mine_hard_negatives(pairs, Bag(), corpus=make_texts(THIRD))[0]
    assert rows[:] == mine_hard_negatives(pairs, Bag(), corpus=THIRD)[0][:]


@pytest.mark.parametrize("text", ["a cat", np.str_("a cat")])
def test_a_single_text_is_one_text(model, text):
    assert model.encode(text).shape == (32,)
    model.build_index(FIRST)
    assert model.search(text, top_k=3)[0].score >= model.search(text, top_k=3)[1].score


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT])
def test_a_missing_text_is_refused_by_its_place(model, missing):
    with pytest.raises(ValueError, match="sentence 1: expected a text, got None"):
        model.encode(["a cat", missing])
