"""Rows with fewer hard negatives than others are compared with those that they have."""

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_config
from data_helpers import content_of, write
from datasets import Dataset

from simcse_hf import BertForCL, ContrastiveCollator, load_text_dataset
from simcse_hf.data.stream import load_text_stream
from simcse_hf.data.tokenize import tokenize_dataset

ROWS = [
    {"query": "the cat", "pos": "a cat", "neg": ["dog", "the mat", "a man"]},
    {"query": "the dog", "pos": "a dog", "neg": []},
    {"query": "the house", "pos": "a house", "neg": ["the tree"]},
    {"query": "the man", "pos": "a man", "neg": ["cat", "a mat"]},
]
RELATIONS = [[0, 2, 2, 2], [0, -100, -100, -100], [0, 2, -100, -100], [0, 2, 2, -100]]


@pytest.fixture(params=[load_text_dataset, load_text_stream], ids=["loaded", "streamed"])
def batch(request, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = request.param(write(tmp_path / "rows.jsonl", content_of("jsonl", ROWS)))
    tokens = tokenize_dataset(Dataset.from_list(list(rows)), tokenizer, 16)
    return ContrastiveCollator(tokenizer)(list(tokens))


def test_every_anchor_is_compared_with_all_positives_and_the_negatives_that_there_are(batch):
    model = BertForCL(tiny_config(), pooler_type="avg", temperature=0.05).eval()
    assert batch["relations"].tolist() == RELATIONS
    vectors = F.normalize(model(**batch).sentence_embeddings.double(), dim=-1)
    negatives = vectors[:, 2:][batch["relations"][:, 1:] == 2]
    similarities = vectors[:, 0] @ torch.cat([vectors[:, 1], negatives]).T
    expected = F.cross_entropy(similarities / 0.05, torch.arange(4))
    assert similarities.shape == (4, 10)
    assert model(**batch).loss.item() == pytest.approx(expected.item(), rel=1e-5)
