"""A batch has shape (batch, num_sentences, length), is padded on the right, and repeats single sentences."""

import pickle

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from conftest import CLS, PAD, SEP

from simcse_hf import ContrastiveCollator
from simcse_hf.data.collator import PackingCollator


def sentence(words, word=7):
    return [CLS, *[word] * words, SEP]


@pytest.mark.parametrize("repeat", [2, 3])
def test_a_single_sentence_is_repeated_in_the_batch_and_not_in_its_row(repeat, tokenizer):
    rows = [{"input_ids": [sentence(3, word=8)]}, {"input_ids": [sentence(1, word=9)]}]
    ids = ContrastiveCollator(tokenizer, repeat=repeat)(rows)["input_ids"]
    assert ids.tolist() == [[sentence(3, word=8)] * repeat, [sentence(1, word=9) + [PAD, PAD]] * repeat]
    assert rows[0] == {"input_ids": [sentence(3, word=8)]}


# --- rows with different numbers of texts ---

RAGGED = [
    {"input_ids": [sentence(2), sentence(1), sentence(3), []], "relations": [0, 2]},
    {"input_ids": [sentence(1), sentence(4), [], sentence(1)], "relations": [1]},
    {"input_ids": [sentence(1), sentence(2)], "relations": [1]},
]
LENGTHS = [[4, 3, 5, 0], [3, 6, 0, 3], [3, 4, 0, 0]]


def test_rows_of_different_numbers_of_texts_are_padded_to_the_widest_row_and_the_longest_text(tokenizer):
    batch = ContrastiveCollator(tokenizer)([row | {"teacher": np.ones((5, 1))} for row in RAGGED])
    ids = batch["input_ids"]
    assert ids.shape == (3, 4, 6) and ids.dtype == torch.long
    assert ids[1, :2].tolist() == [sentence(1) + [PAD, PAD, PAD], sentence(4)]
    assert (ids[2, 2:] == PAD).all()
    assert batch["attention_mask"].sum(-1).tolist() == LENGTHS
    assert batch["relations"].tolist() == [[0, 2, -100], [1, -100, -100], [1, -100, -100]]
    assert batch["teacher"].shape == (3, 4, 1)


def test_a_batch_holds_the_columns_asked_for_that_the_rows_have(tokenizer):
    rows = [
        {"input_ids": [sentence(3), sentence(1)], "view_seed": 11, "score": 3},
        {"input_ids": [sentence(2), sentence(2)], "view_seed": 12, "score": 0.5},
    ]
    batch = ContrastiveCollator(tokenizer, columns=("score", "label"))(rows)
    assert batch.keys() == {"input_ids", "attention_mask", "view_seed", "scores"}
    assert batch["view_seed"].tolist() == [11, 12]
    assert batch["scores"].tolist() == [3.0, 0.5] and batch["scores"].dtype == torch.float32


# --- packed batches ---


@pytest.fixture
def padded(tokenizer):
    return ContrastiveCollator(tokenizer)(RAGGED)


@pytest.mark.parametrize(
    "options, sentences",
    [({}, 8), ({"in_order": True, "multiple": 8, "length": 9}, 12 + 1), ({"multiple": 64, "length": 9}, 12 + 8)],
)
def test_a_packed_batch_is_the_padded_one_and_travels_through_workers_and_to_a_device(
    options, sentences, padded, tokenizer
):
    """As many fillers as any batch needs make the tokens a multiple; none is empty, or longer than a text may be."""
    packed = PackingCollator(ContrastiveCollator(tokenizer), PAD, **options)(RAGGED)
    length = padded["input_ids"].shape[-1]
    for name, tensor in padded.items():
        assert torch.equal(packed[name][..., :length], tensor)
    assert (packed["input_ids"][..., length:] == PAD).all()
    assert not packed["attention_mask"][..., length:].any()
    packing = packed["packing"]
    assert len(packing.rows) == sentences and len(packing.token_index) % options.get("multiple", 1) == 0
    assert 1 <= packing.bounds.diff().min() and packing.bounds.diff().max() <= 9
    sent = send_to_device(pickle.loads(pickle.dumps(packed)), torch.device("meta"))
    assert sent["packing"].token_index.shape == packed["packing"].token_index.shape
    assert sent["packing"].bounds.device.type == sent["input_ids"].device.type == "meta"


@pytest.mark.parametrize("form", ["without a mask", "with token types", "padded on the left"])
def test_a_batch_of_another_form_is_not_packed(padded, form):
    mask = padded.pop("attention_mask")
    if form == "with token types":
        padded |= {"attention_mask": mask, "token_type_ids": mask}
    elif form == "padded on the left":
        padded["attention_mask"] = mask.flip(-1)
    assert PackingCollator(lambda rows: padded, PAD)(RAGGED) is padded
