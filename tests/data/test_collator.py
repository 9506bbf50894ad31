"""A batch has shape (batch, num_sentences, length), is padded on the right, and repeats single sentences."""

import pickle

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from conftest import CLS, PAD, SEP

from simcse_hf import ContrastiveCollator
from simcse_hf.data.collator import PackingCollator
from simcse_hf.kernels.packing import Packing


def sentence(words, word=7):
    return [CLS, *[word] * words, SEP]


# --- single sentences ---


@pytest.mark.parametrize("repeat", [2, 3])
def test_a_single_sentence_is_repeated(repeat, tokenizer):
    rows = [{"input_ids": [sentence(3, word=8)]}, {"input_ids": [sentence(1, word=9)]}]
    ids = ContrastiveCollator(tokenizer, repeat=repeat)(rows)["input_ids"]
    first = sentence(3, word=8)
    second = sentence(1, word=9) + [PAD, PAD]
    assert ids.tolist() == [[first] * repeat, [second] * repeat]


def test_repeating_leaves_the_rows_of_the_data_set_as_they_are(tokenizer):
    rows = [{"input_ids": [sentence(3)]}]
    ContrastiveCollator(tokenizer, repeat=2)(rows)
    assert rows == [{"input_ids": [sentence(3)]}]


# --- rows with different numbers of texts ---

RAGGED = [
    {"input_ids": [sentence(2), sentence(1), sentence(3), []], "relations": [0, 2]},
    {"input_ids": [sentence(1), sentence(4), [], sentence(1)], "relations": [1]},
    {"input_ids": [sentence(1), sentence(2)], "relations": [1]},
]
LENGTHS = [[4, 3, 5, 0], [3, 6, 0, 3], [3, 4, 0, 0]]


@pytest.fixture
def ragged_batch(tokenizer):
    return ContrastiveCollator(tokenizer, add_text_ids=True)(RAGGED)


def test_a_batch_is_as_wide_as_its_widest_row_and_as_long_as_its_longest_text(
    ragged_batch,
):
    assert ragged_batch["input_ids"].shape == (3, 4, 6)
    assert ragged_batch["input_ids"].dtype == torch.long


def test_the_attention_mask_covers_the_tokens_of_each_text(ragged_batch):
    assert ragged_batch["attention_mask"].sum(-1).tolist() == LENGTHS


def test_a_shorter_text_is_padded_on_the_right(ragged_batch):
    shorter, longest = ragged_batch["input_ids"][1, :2].tolist()
    assert shorter == sentence(1) + [PAD, PAD, PAD]
    assert longest == sentence(4)


def test_the_texts_that_a_row_lacks_are_all_padding(ragged_batch):
    assert (ragged_batch["input_ids"][2, 2:] == PAD).all()


def test_the_relations_that_a_row_lacks_are_left_out(ragged_batch):
    assert ragged_batch["relations"].tolist() == [
        [0, 2, -100],
        [1, -100, -100],
        [1, -100, -100],
    ]


def test_a_text_without_tokens_has_the_text_id_0(ragged_batch):
    is_empty = torch.tensor(LENGTHS) == 0
    assert torch.equal(ragged_batch["text_ids"] == 0, is_empty)


def test_equal_texts_have_equal_text_ids_and_others_have_others(ragged_batch):
    ids = ragged_batch["text_ids"]
    of_one_word = {
        ids[0, 1].item(),
        ids[1, 0].item(),
        ids[1, 3].item(),
        ids[2, 0].item(),
    }
    of_two_words = {ids[0, 0].item(), ids[2, 1].item()}
    assert len(of_one_word) == 1
    assert len(of_two_words) == 1
    assert of_one_word != of_two_words


def test_the_vectors_of_a_teacher_are_padded_to_the_widest_row(tokenizer):
    vectors = torch.arange(3.0 * 5).reshape(3, 5, 1).numpy()
    collator = ContrastiveCollator(tokenizer, vectors={"teacher": lambda numbers: vectors[numbers]})
    rows = [row | {"row": number} for number, row in enumerate(RAGGED)]
    assert collator(rows)["teacher"].shape == (3, 4, 1)


# --- further columns ---


@pytest.fixture
def scored_batch(tokenizer):
    rows = [
        {"input_ids": [sentence(3), sentence(1)], "view_seed": 11, "score": 3},
        {"input_ids": [sentence(2), sentence(2)], "view_seed": 12, "score": 0.5},
    ]
    return ContrastiveCollator(tokenizer, columns=("score", "label"))(rows)


def test_a_batch_holds_the_columns_asked_for_that_the_rows_have(scored_batch):
    assert scored_batch.keys() == {"input_ids", "attention_mask", "view_seed", "scores"}


def test_the_seeds_of_views_are_in_the_batch(scored_batch):
    assert scored_batch["view_seed"].tolist() == [11, 12]


def test_the_scores_of_the_rows_are_in_the_batch_in_float32(scored_batch):
    assert scored_batch["scores"].tolist() == [3.0, 0.5]
    assert scored_batch["scores"].dtype == torch.float32


# --- packed batches ---


@pytest.fixture(
    params=[
        {},
        {"in_order": True},
        {"in_order": True, "multiple": 8, "length": 9},
        {"multiple": 64, "length": 9},
    ],
    ids=str,
)
def packed(request, tokenizer):
    """The ragged rows, packed, as the loader hands them on."""
    return PackingCollator(ContrastiveCollator(tokenizer), PAD, **request.param)(RAGGED)


@pytest.fixture
def padded(tokenizer):
    return ContrastiveCollator(tokenizer)(RAGGED)


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "relations"])
def test_a_packed_batch_holds_the_texts_of_the_padded_one(packed, padded, name):
    length = padded["input_ids"].shape[-1]
    assert torch.equal(packed[name][..., :length], padded[name])


def test_a_packed_batch_has_padding_beyond_the_longest_text(packed, padded):
    length = padded["input_ids"].shape[-1]
    assert (packed["input_ids"][..., length:] == PAD).all()
    assert not packed["attention_mask"][..., length:].any()


def test_a_packing_travels_with_its_batch_through_workers_and_to_a_device(packed):
    sent = send_to_device(pickle.loads(pickle.dumps(packed)), torch.device("meta"))
    assert sent["packing"].token_index.shape == packed["packing"].token_index.shape
    assert sent["packing"].bounds.device.type == sent["input_ids"].device.type == "meta"


def without_mask(batch):
    batch.pop("attention_mask")


def with_token_types(batch):
    batch["token_type_ids"] = batch["input_ids"]


def padded_on_the_left(batch):
    batch["attention_mask"] = batch["attention_mask"].flip(-1)


@pytest.mark.parametrize("change", [without_mask, with_token_types, padded_on_the_left])
def test_a_batch_of_another_form_is_not_packed(padded, change):
    change(padded)
    assert PackingCollator(lambda rows: padded, PAD)(RAGGED) is padded


# --- fillers, which make all packed batches of one size ---

MULTIPLES = pytest.mark.parametrize("multiple", [8, 64])
TEXT_LENGTHS = pytest.mark.parametrize(
    "lengths",
    [[9, 1, 1], [9, 9, 9], [1, 1, 1], [4, 0, 7], [0, 0, 2]],
    ids=str,
)


def packing_of(lengths, multiple):
    return Packing.from_lengths(np.array(lengths), 9, multiple=multiple)


def fillers(multiple):
    """The number of sentences that bring any batch to a multiple."""
    return -(-(multiple - 1) // 8)


@MULTIPLES
@TEXT_LENGTHS
def test_fillers_bring_the_tokens_to_a_multiple(lengths, multiple):
    tokens = len(packing_of(lengths, multiple).token_index)
    assert tokens % multiple == 0
    assert tokens <= sum(lengths) + len(lengths) + fillers(multiple) + multiple


@MULTIPLES
@TEXT_LENGTHS
def test_fillers_bring_any_lengths_to_the_same_number_of_sentences(lengths, multiple):
    assert len(packing_of(lengths, multiple).rows) == len(lengths) + fillers(multiple)


@MULTIPLES
@TEXT_LENGTHS
def test_no_filler_is_empty_or_longer_than_a_text_may_be(lengths, multiple):
    packing = packing_of(lengths, multiple)
    sizes = packing.bounds.diff()
    assert sizes.sum() == len(packing.token_index)
    assert sizes.min() >= 1
    assert sizes.max() <= 9
