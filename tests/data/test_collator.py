"""A batch has shape (batch, num_sentences, length), is padded on the right, and repeats single sentences."""

import copy
import pickle

import numpy as np
import pytest
import torch
from conftest import CLS, PAD, SEP, tiny_config
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

from simcse_hf import BertForCL, ContrastiveCollator, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.packed_batch import PackedBatch, PackingCollator
from simcse_hf.ops.packing import Packing


def sentence(words, word=7):
    return [CLS, *[word] * words, SEP]


@pytest.mark.parametrize("repeat", [2, 3])
def test_a_single_sentence_is_repeated(repeat, tokenizer):
    rows = [{"input_ids": [sentence(3, 8)]}, {"input_ids": [sentence(1, 9)]}]
    ids = ContrastiveCollator(tokenizer, repeat=repeat)(rows)["input_ids"]
    assert ids.shape == (2, repeat, 5)
    assert (ids == ids[:, :1]).all() and ids[0, 0].tolist() == sentence(3, 8)
    assert rows == [{"input_ids": [sentence(3, 8)]}, {"input_ids": [sentence(1, 9)]}], "the dataset's rows stay"


def test_rows_may_have_fewer_texts_than_others_and_those_are_all_padding(tokenizer):
    rows = [
        {"input_ids": [sentence(2), sentence(1), sentence(3), []], "relations": [0, 2], "row": 0},
        {"input_ids": [sentence(1), sentence(4), [], sentence(1)], "relations": [1], "row": 1},
        {"input_ids": [sentence(1), sentence(2)], "relations": [1], "row": 2},
    ]
    vectors = torch.arange(3.0 * 5).reshape(3, 5, 1).numpy()
    options = {"add_text_ids": True, "vectors": {"teacher": lambda numbers: vectors[numbers]}}
    batch = ContrastiveCollator(tokenizer, **options)(rows)
    assert batch["input_ids"].shape == (3, 4, 6) and batch["teacher"].shape == (3, 4, 1)
    assert batch["relations"].tolist() == [[0, 2, -100], [1, -100, -100], [1, -100, -100]]
    assert batch["attention_mask"].sum(-1).tolist() == [[4, 3, 5, 0], [3, 6, 0, 3], [3, 4, 0, 0]]
    assert (batch["input_ids"][2, 2:] == PAD).all() and batch["input_ids"].dtype == torch.long
    assert batch["input_ids"][1, :2].tolist() == [sentence(1) + [PAD] * 3, sentence(4)]
    ids = batch["text_ids"]
    assert ((ids == 0) == (batch["attention_mask"].sum(-1) == 0)).all()
    assert ids[0, 1] == ids[1, 0] == ids[1, 3] == ids[2, 0] and ids[0, 0] == ids[2, 1] != ids[0, 1]


def shifted(rows):
    return {"input_ids": torch.tensor([row["input_ids"][0] for row in rows])}


FOREIGN = [
    (DataCollatorWithPadding, "data_collator DataCollatorWithPadding"),
    (DataCollatorForLanguageModeling, "data_collator DataCollatorForLanguageModeling"),
    (lambda _: shifted, r"data_collator shifted: its batch has input_ids of shape \(8, 4\)"),
    (lambda tokenizer: ContrastiveCollator(tokenizer, repeat=1), r"ContrastiveCollator: .* shape \(8, 1, 4\)"),
    (lambda _: lambda rows: {"ids": 3}, "its batch has no input_ids"),
]


@pytest.mark.parametrize(("make", "message"), FOREIGN)
def test_a_collator_from_which_a_model_cannot_learn_is_named_with_what_is_missing(tmp_path, tokenizer, make, message):
    args = SimCSETrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    rows = Dataset.from_dict({"sent0": ["a cat", "a dog"] * 4})
    model = BertForCL(tiny_config())
    trainer = SimCSETrainer(model, args, train_dataset=rows, processing_class=tokenizer, data_collator=make(tokenizer))
    with pytest.raises(ValueError, match=f"{message}.*at least 2 sentences"):
        trainer.train()


def test_numbers_and_scores_of_the_rows_are_in_the_batch(tokenizer):
    rows = [
        {"input_ids": [sentence(3), sentence(1)], "view_seed": 11, "score": 3},
        {"input_ids": [sentence(2), sentence(2)], "view_seed": 12, "score": 0.5},
    ]
    batch = ContrastiveCollator(tokenizer, columns=("score", "label"))(rows)
    assert batch.keys() == {"input_ids", "attention_mask", "view_seed", "scores"}
    assert batch["view_seed"].tolist() == [11, 12]
    assert batch["scores"].tolist() == [3.0, 0.5] and batch["scores"].dtype == torch.float32


PACKINGS = [{}, {"in_order": True}, {"in_order": True, "multiple": 8, "length": 9}, {"multiple": 64, "length": 9}]
RAGGED = [
    {"input_ids": [sentence(2), sentence(1), sentence(3), []], "relations": [0, 2]},
    {"input_ids": [sentence(1), sentence(4), [], sentence(1)], "relations": [1]},
    {"input_ids": [sentence(1), sentence(2)], "relations": [1]},
]


def batches(tokenizer, packing):
    """Return the padded batch of ragged rows, and the same batch packed, on the host and as a model takes it."""
    collator = ContrastiveCollator(tokenizer)
    packed = PackingCollator(collator, PAD, **packing)(RAGGED)
    return collator(RAGGED), packed, packed.to(torch.device("cpu"))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_packed_batch_holds_the_texts_of_the_padded_one(tokenizer, packing):
    padded, _, unpacked = batches(tokenizer, packing)
    length = padded["input_ids"].shape[-1]
    for name in ("input_ids", "attention_mask", "relations"):
        assert torch.equal(unpacked[name][..., :length], padded[name])
    assert (unpacked["input_ids"][..., length:] == PAD).all()
    assert not unpacked["attention_mask"][..., length:].any()


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_texts_of_a_packed_batch_are_one_tensor_until_they_are_on_the_device(tokenizer, packing):
    _, packed, _ = batches(tokenizer, packing)
    assert packed.keys() == {"numbers", "relations"}
    assert packed["numbers"].dtype == torch.int32


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_loader_may_copy_pickle_and_pin_a_packed_batch(tokenizer, packing):
    _, packed, unpacked = batches(tokenizer, packing)
    for again in (copy.copy(packed), pickle.loads(pickle.dumps(packed))):
        assert isinstance(again, PackedBatch)
        assert torch.equal(again.to(torch.device("cpu"))["input_ids"], unpacked["input_ids"])


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: batch.pop("attention_mask"),
        lambda batch: batch.update(token_type_ids=batch["input_ids"]),
        lambda batch: batch.update(attention_mask=batch["attention_mask"].flip(-1)),
    ],
)
def test_a_batch_that_cannot_be_packed_stays_as_it_is(tokenizer, change):
    batch = ContrastiveCollator(tokenizer)(RAGGED)
    change(batch)
    assert PackingCollator(lambda rows: batch, PAD)(RAGGED) is batch


@pytest.mark.parametrize("multiple", [8, 64])
@pytest.mark.parametrize("lengths", [[9, 1, 1], [9, 9, 9], [1, 1, 1], [4, 0, 7], [0, 0, 2]])
def test_fillers_bring_any_lengths_to_the_same_number_of_sentences(lengths, multiple):
    packing = Packing.from_lengths(np.array(lengths), 9, multiple=multiple)
    fewest = -(-(multiple - 1) // 8)
    assert len(packing.token_index) % multiple == 0
    assert len(packing.rows) == len(lengths) + fewest
    assert len(packing.token_index) <= sum(lengths) + len(packing.rows) + multiple
    sentences = packing.bounds.diff()
    assert sentences.sum() == len(packing.token_index)
    assert sentences.min() >= 1
    assert sentences.max() <= 9
