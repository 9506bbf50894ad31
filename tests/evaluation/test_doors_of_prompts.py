"""Whatever encodes queries and documents puts the same prompts before them. Any other text gets the default prompt."""

import pytest
import torch
from conftest import tiny_config
from datasets import Dataset, config
from evaluation_helpers import write, write_beir, write_rows

from simcse_hf import BertForCL, ScoredPairs, SimCSE, encode, evaluate, index, mine, read_task, search
from simcse_hf.encoding.batching import BatchEncoder
from simcse_hf.encoding.vectors import RowVectors
from simcse_hf.retrieval.description import PROBE
from simcse_hf.training.dev_sets import DevSetCallback, SimilarityEvalCallback

PROMPTS = {"query": "the old ", "document": "a red ", "other": "man : "}
QUERIES = {"q0": "the cat sat", "q1": "a dog ran"}
DOCUMENTS = {"d0": "a bird sang", "d1": "the woman ran", "d2": "a house"}


@pytest.fixture(params=[None, "other"])
def model(request, save_checkpoint, tmp_path, monkeypatch):
    """A model with prompts for queries and documents, without and with a default prompt."""
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    encoder = BertForCL(tiny_config(initializer_range=0.3), pooler_type="avg_no_cls")
    encoder.update_settings(prompts=PROMPTS, default_prompt_name=request.param)
    return SimCSE(save_checkpoint(encoder), device="cpu")


@pytest.fixture
def encoded(monkeypatch):
    """The prompts that were put before texts, with the texts."""
    found = set()
    tokenize = BatchEncoder.tokenize

    def recorded(self, texts, prefix="", *args):
        found.update((prefix, text) for text in texts if text != PROBE)
        return tokenize(self, texts, prefix, *args)

    monkeypatch.setattr(BatchEncoder, "tokenize", recorded)
    return found


def beir(folder):
    return write_beir(folder / "faq", DOCUMENTS, QUERIES, {"q0": {"d0": 1}, "q1": {"d1": 1}})


def triplets(folder):
    rows = zip(QUERIES.values(), DOCUMENTS.values(), [DOCUMENTS["d2"]] * 2, strict=False)
    return write_rows(folder / "rows.csv", ["query", "positive", "negative"], rows)


*OTHERS, LAST = DOCUMENTS.values()
COLUMNS = Dataset.from_dict({"sent0": list(QUERIES.values()), "sent1": OTHERS, "sent2": [LAST] * 2})


def search_by_command(model, folder):
    texts = write(folder / "texts.txt", DOCUMENTS.values())
    index(texts, folder / "index", model=model)
    list(search(QUERIES.values(), folder / "index", model=model))


def dev_tasks(model, folder):
    DevSetCallback({"retrieval": read_task("retrieval", beir(folder))}).evaluate(model.model, model.tokenizer)


DOORS = {
    "encode_query and encode_document": lambda model, folder: (
        model.encode_query(list(QUERIES.values())),
        model.encode_document(list(DOCUMENTS.values())),
    ),
    "index and search": search_by_command,
    "mine": lambda model, folder: mine(model, triplets(folder), folder / "mined.csv", columns=None),
    "evaluate retrieval": lambda model, folder: evaluate(model, task=[f"retrieval={beir(folder)}"]),
    "dev tasks": dev_tasks,
    "encode --columns": lambda model, folder: encode(
        model, triplets(folder), folder / "out", columns=["query", "positive", "negative"], shard_size=2
    ),
    "teacher or guide": lambda model, folder: RowVectors([model.name_or_path], COLUMNS, torch.device("cpu")),
}


@pytest.mark.parametrize("door", DOORS)
def test_queries_and_documents_get_their_prompts(door, model, encoded, tmp_path):
    DOORS[door](model, tmp_path)
    assert encoded == {
        *((PROMPTS["query"], text) for text in QUERIES.values()),
        *((PROMPTS["document"], text) for text in DOCUMENTS.values()),
    }


def scored_pairs(folder):
    rows = [("a bird sang", "the woman ran", 1), ("a house", "the cat sat", 3), ("a dog ran", "a bird sang", 2)]
    return write_rows(folder / "scored.csv", ["sentence1", "sentence2", "score"], rows)


def dev_pairs(model, folder):
    pairs = ScoredPairs("stsb", ["a bird sang", "a house"] * 2, ["the woman ran", "a dog ran"] * 2, [1, 5, 2, 4])
    SimilarityEvalCallback(pairs).evaluate(model.model, model.tokenizer)


OTHER_DOORS = {
    "encode": lambda model, folder: encode(model, write(folder / "t.txt", ["a cat", "a dog"]), folder / "out"),
    "similarity": lambda model, folder: model.similarity("a cat", "a dog"),
    "scored pairs": lambda model, folder: evaluate(model, pairs=[scored_pairs(folder)]),
    "dev set": dev_pairs,
}


@pytest.mark.parametrize("door", OTHER_DOORS)
def test_texts_that_are_neither_get_the_default_prompt(door, model, encoded, tmp_path):
    OTHER_DOORS[door](model, tmp_path)
    assert {prompt for prompt, _ in encoded} == {PROMPTS["other"] if model.default_prompt_name else ""}


def test_a_prompt_that_is_given_or_a_default_prompt_alone_stands_before_all_columns(model, encoded, tmp_path):
    encode(model, COLUMNS, tmp_path / "out", prompt="the dog : ")
    assert {prompt for prompt, _ in encoded} == {"the dog : "}
    encoded.clear()
    model.prompts = {"query": "", "document": "", "other": "man : "}
    model.default_prompt_name = "other"
    encode(model, COLUMNS, tmp_path / "other")
    assert {prompt for prompt, _ in encoded} == {"man : "}
