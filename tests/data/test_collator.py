"""A batch has shape (batch, num_sentences, length), is padded on the right, and repeats single sentences."""

import pytest
import torch
from conftest import CLS, PAD, SEP, tiny_config
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, DataCollatorWithPadding

from simcse_hf import BertForCL, ContrastiveCollator, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.collator import HostArray


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
    options = {"add_text_ids": True, "add_lengths": True, "vectors": {"teacher": lambda numbers: vectors[numbers]}}
    batch = ContrastiveCollator(tokenizer, **options)(rows)
    assert batch["input_ids"].shape == (3, 4, 6) and batch["teacher"].shape == (3, 4, 1)
    assert batch["relations"].tolist() == [[0, 2, -100], [1, -100, -100], [1, -100, -100]]
    assert batch["attention_mask"].sum(-1).tolist() == [[4, 3, 5, 0], [3, 6, 0, 3], [3, 4, 0, 0]]
    assert batch["lengths"].tolist() == batch["attention_mask"].sum(-1).tolist()
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
