"""A batch has shape (batch, num_sentences, length), is padded on the right, and repeats single sentences."""

import copy

import pytest
import torch
from conftest import CLS, PAD, SEP, tiny_config

from simcse_hf import BertForCL, ContrastiveCollator
from simcse_hf.data.collator import HostArray, pad


def sentence(words, word=7):
    return [CLS, *[word] * words, SEP]


@pytest.mark.parametrize("num_sentences", [2, 3, 4])
def test_sentences_of_a_row_stay_together_in_order(num_sentences, tokenizer):
    rows = [{"input_ids": [sentence(1 + s + r, 5 + 3 * r + s) for s in range(num_sentences)]} for r in range(3)]
    batch = ContrastiveCollator(tokenizer)(rows)
    longest = 2 + num_sentences + 2
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, num_sentences, longest)
    assert batch["input_ids"].dtype == torch.long
    for r, row in enumerate(rows):
        for s, ids in enumerate(row["input_ids"]):
            padding = longest - len(ids)
            assert batch["input_ids"][r, s].tolist() == ids + [PAD] * padding
            assert batch["attention_mask"][r, s].tolist() == [1] * len(ids) + [0] * padding


@pytest.mark.parametrize("repeat", [2, 3])
def test_a_single_sentence_is_repeated(repeat, tokenizer):
    rows = [{"input_ids": [sentence(3, 8)]}, {"input_ids": [sentence(1, 9)]}]
    ids = ContrastiveCollator(tokenizer, repeat=repeat)(rows)["input_ids"]
    assert ids.shape == (2, repeat, 5)
    assert (ids == ids[:, :1]).all() and ids[0, 0].tolist() == sentence(3, 8)
    assert rows == [{"input_ids": [sentence(3, 8)]}, {"input_ids": [sentence(1, 9)]}], "the dataset's rows stay"


def test_pads_to_the_longest_of_the_batch_or_to_a_fixed_length(tokenizer):
    rows = [{"input_ids": [sentence(3), sentence(1)]}]
    assert ContrastiveCollator(tokenizer)(rows)["input_ids"].shape == (1, 2, 5)
    assert ContrastiveCollator(tokenizer, pad_to=5)(rows)["input_ids"].shape == (1, 2, 5)
    fixed = ContrastiveCollator(tokenizer, pad_to=12)(rows)
    assert fixed["input_ids"].shape == fixed["attention_mask"].shape == (1, 2, 12)
    assert fixed["attention_mask"].sum(-1).tolist() == [[5, 3]]


def test_a_model_accepts_the_batch(tokenizer):
    model = BertForCL(tiny_config())
    batch = ContrastiveCollator(tokenizer)([{"input_ids": [sentence(n)]} for n in (1, 5, 3)])
    output = model(**batch)
    assert output.sentence_embeddings.shape == (3, 2, 32) and output.loss > 0
    padded = ContrastiveCollator(tokenizer, pad_to=20)([{"input_ids": [sentence(n)]} for n in (1, 5, 3)])
    model.eval()
    torch.testing.assert_close(
        model(**padded).sentence_embeddings, model(**batch).sentence_embeddings, rtol=0, atol=1e-6
    )


def test_premises_may_have_different_numbers_of_hypotheses(tokenizer):
    rows = [
        {"input_ids": [sentence(2), sentence(1), sentence(3)], "relations": [0, 2]},
        {"input_ids": [sentence(1), sentence(4)], "relations": [1]},
    ]
    batch = ContrastiveCollator(tokenizer)(rows)
    assert batch["input_ids"].shape == (2, 3, 6)
    assert batch["relations"].tolist() == [[0, 2], [1, -100]]
    assert batch["attention_mask"].sum(-1).tolist() == [[4, 3, 5], [3, 6, 0]]
    assert (batch["input_ids"][1, 2] == PAD).all()


def test_equal_texts_have_equal_text_ids_in_every_batch(tokenizer):
    collate = ContrastiveCollator(tokenizer, add_text_ids=True)
    first = collate([{"input_ids": [sentence(1), sentence(2)]}, {"input_ids": [sentence(2), sentence(1, 9)]}])
    second = collate([{"input_ids": [sentence(2), sentence(5)]}])
    (a, b), (c, d) = first["text_ids"].tolist()
    assert b == c == second["text_ids"][0, 0] and len({a, b, d}) == 3


def test_pads_on_the_right():
    ids, mask = pad([[5, 6, 7], [8], []], PAD)
    assert ids.tolist() == [[5, 6, 7], [8, PAD, PAD], [PAD] * 3] and ids.dtype == torch.long
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert pad([[5]], PAD, 3)[0].tolist() == [[5, PAD, PAD]]


def test_numbers_scores_and_lengths_of_the_rows_are_in_the_batch(tokenizer):
    rows = [
        {"input_ids": [sentence(3), sentence(1)], "view_seed": 11, "score": 3},
        {"input_ids": [sentence(2), sentence(2)], "view_seed": 12, "score": 0.5},
    ]
    batch = ContrastiveCollator(tokenizer, columns=("score", "label"), add_lengths=True)(rows)
    assert batch.keys() == {"input_ids", "attention_mask", "view_seed", "scores", "lengths"}
    assert batch["view_seed"].tolist() == [11, 12]
    assert batch["scores"].tolist() == [3.0, 0.5] and batch["scores"].dtype == torch.float32
    assert batch["lengths"].tolist() == [[5, 3], [4, 4]]
    assert isinstance(batch["lengths"], HostArray) and batch["lengths"].to("cuda") is batch["lengths"]


def test_a_text_that_a_row_does_not_have_gets_the_number_0(tokenizer):
    rows = [{"input_ids": [sentence(1)] * 3, "relations": [0, 1]}, {"input_ids": [sentence(1)] * 2, "relations": [1]}]
    numbers = ContrastiveCollator(tokenizer, add_text_ids=True)(rows)["text_ids"]
    assert numbers[1, 2] == 0 and len(numbers[numbers != 0].unique()) == 1


REFUSED = [
    ([{"text": "a cat"}], {}, "a list of token id lists.*got .*the keys.*Tokenise first"),
    ([{"input_ids": [2, 7, 3]}], {}, r"a list of token id lists.*got \[2, 7, 3\]"),
    ([{"input_ids": []}], {}, "a list of token id lists"),
    ([{"input_ids": [sentence(3), sentence(1)]}], {"pad_to": 4}, "a text has 5 tokens, but pad_to is 4"),
]


@pytest.mark.parametrize(("rows", "options", "message"), REFUSED)
def test_the_error_says_what_is_wrong_with_a_row(tokenizer, rows, options, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveCollator(tokenizer, **options)(rows)


def test_a_tokenizer_without_a_padding_token_is_refused(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"^the tokenizer has no padding token: set tokenizer.pad_token"):
        ContrastiveCollator(tokenizer)([{"input_ids": [sentence(3)]}])
