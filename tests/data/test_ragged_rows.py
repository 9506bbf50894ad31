"""Rows with fewer hard negatives than others are trained on with those that they have."""

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from data_helpers import content_of, write

from simcse_hf import (
    BertForCL,
    ContrastiveCollator,
    SimCSETrainer,
    SimCSETrainingArguments,
    load_text_dataset,
)
from simcse_hf.data.stream import load_text_stream
from simcse_hf.data.tokenize import tokenize_dataset

ROWS = [
    ("the cat", "a cat", ["dog", "the mat", "a man"]),
    ("the dog", "a dog", []),
    ("the house", "a house", ["the tree"]),
    ("the man", "a man", ["cat", "a mat"]),
]


@pytest.fixture
def path(tmp_path):
    rows = [{"query": a, "pos": b, "neg": negatives} for a, b, negatives in ROWS]
    return write(tmp_path / "rows.jsonl", content_of("jsonl", rows))


@pytest.fixture
def batch(path, tmp_path, tokenizer):
    rows = tokenize_dataset(load_text_dataset(path, cache_dir=tmp_path), tokenizer, 16)
    return ContrastiveCollator(tokenizer)(list(rows))


@pytest.mark.parametrize("streaming", [False, True])
def test_ragged_rows_of_files_and_streams_train(path, tmp_path, tokenizer, streaming):
    rows = load_text_stream(path) if streaming else load_text_dataset(path, cache_dir=tmp_path)
    args = SimCSETrainingArguments(
        str(tmp_path / "run"),
        max_steps=2,
        per_device_train_batch_size=2,
        logging_steps=1,
        use_cpu=True,
    )
    trainer = SimCSETrainer(BertForCL(tiny_config()), args, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2 and all(0 < loss < 100 for loss in losses)


def test_distillation_compares_the_texts_that_there_are(batch):
    batch["teacher"] = torch.randn(4, 5, 8)
    model = BertForCL(tiny_config(), pooler_type="avg", objective="distill").eval()
    present = batch["attention_mask"].any(-1)
    students = F.normalize(model(**batch).sentence_embeddings[present].double(), dim=-1)
    teachers = F.normalize(batch["teacher"][present].double(), dim=-1)
    expected = (students @ students.T - teachers @ teachers.T).square().mean()
    assert len(students) == 14 and model(**batch).loss.item() == pytest.approx(expected.item(), rel=1e-5)
