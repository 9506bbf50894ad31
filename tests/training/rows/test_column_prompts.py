"""Prompts and lengths of columns: what training reads, what is saved, and what both libraries then encode."""

import logging

import numpy as np
import pytest
from datasets import Dataset
from trainer_helpers import make as make_trainer
from trainer_helpers import model_of

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.encoding.batching import BatchEncoder
from simcse_hf.training import rows as rows_module

PROMPTS = {"anchor": "the old ", "positive": "a red "}
ROWS = [
    {
        "query": "cat sat",
        "positive": f"{word} ran on the mat in the tree",
        "negative": "big man",
    }
    for word in ("dog", "bird", "woman", "house") * 4
]


def make(tmp_path, tokenizer, rows=ROWS, model=None, **changes):
    return make_trainer(
        tmp_path,
        tokenizer,
        Dataset.from_list(rows),
        model,
        **{"max_steps": 2, **changes},
    )


SUPCON = {"objective": "supcon", "pooler_type": "avg_no_cls"}
MIXED_GROUP = {
    "texts": ["cat sat", "dog ran", "old man sang", "mat"],
    "relations": [2, 0, 1],
}


WHOLE = "dog ran on the mat in the tree"  # the positive of the first row
NO_POSITIVE = {"anchor": "the ", "negative": "old "}  # a missing prompt is empty
ALL_THREE = {"anchor": "", "positive": "the ", "negative": "a "}


@pytest.mark.parametrize(
    "row, settings, prompts, lengths, expected",
    [
        (
            ROWS[0],
            {},
            PROMPTS,
            {"anchor": 5, "positive": 8},
            {"the old cat sat": 5, f"a red {WHOLE}": 8, "a red big man": 8},
        ),
        (ROWS[0], {}, NO_POSITIVE, 32, {"the cat sat": 32, WHOLE: 32, "old big man": 32}),
        (MIXED_GROUP, SUPCON, ALL_THREE, 32, {"cat sat": 32, "a dog ran": 32, "the old man sang": 32, "a mat": 32}),
    ],
)
def test_each_column_gets_its_prompt_and_its_length(tmp_path, tokenizer, row, settings, prompts, lengths, expected):
    trainer = make(
        tmp_path,
        tokenizer,
        [row] * 8,
        model_of(**settings),
        prompts=prompts,
        max_seq_length=lengths,
    )
    ids = [tokenizer(text, truncation=True, max_length=n)["input_ids"] for text, n in expected.items()]
    assert trainer.train_dataset[0]["input_ids"] == ids
    assert trainer.model.settings.max_seq_length == max(expected.values())


def test_a_stream_reads_the_same_rows(tmp_path, tokenizer, monkeypatch):
    options = {"prompts": PROMPTS, "max_seq_length": {"anchor": 5, "positive": 8}}
    rows = make(tmp_path / "a", tokenizer, **options).train_dataset
    stream = Dataset.from_list(ROWS).to_iterable_dataset()
    monkeypatch.setattr(rows_module, "SHUFFLE_BUFFER", 1)
    streamed = make_trainer(tmp_path / "b", tokenizer, stream, **options).train_dataset
    assert next(iter(streamed))["input_ids"] == rows[0]["input_ids"]


def test_the_prompts_are_saved_for_encode_query_and_encode_document_of_both_libraries(tmp_path, tokenizer):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    trainer = make(tmp_path, tokenizer, prompts=PROMPTS)
    trainer.train()
    trainer.save_model()
    folder = trainer.args.output_dir
    ours, theirs = (
        SimCSE(folder, device="cpu"),
        sentence_transformers.SentenceTransformer(folder, device="cpu"),
    )
    for role, prompt in (
        ("query", PROMPTS["anchor"]),
        ("document", PROMPTS["positive"]),
    ):
        expected = ours.encode([f"{prompt}cat sat"]).numpy()
        for model in (ours, theirs):
            got = np.asarray(getattr(model, f"encode_{role}")(["cat sat"]))
            np.testing.assert_allclose(
                got / np.linalg.norm(got),
                expected / np.linalg.norm(expected),
                atol=1e-5,
            )
    np.testing.assert_allclose(ours.encode(["cat sat"]), ours.encode(["cat sat"], prompt=""))


def test_a_text_before_all_columns_becomes_the_default_prompt(tmp_path, tokenizer):
    settings = make(tmp_path, tokenizer, prompts={"anchor": "the ", "positive": "the "}).model.settings
    assert settings.default_prompt_name == "query" and settings.prompts == {
        "query": "the ",
        "document": "the ",
    }


def test_a_model_with_prompts_keeps_them_and_says_that_training_does_not_use_them(
    tmp_path, tokenizer, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("simcse_hf"), "propagate", True)
    caplog.set_level(logging.INFO)
    model = model_of()
    model.update_settings(prompts={"query": "the ", "passage": "a "})
    trainer = make(tmp_path, tokenizer, model=model)
    assert trainer.train_dataset[0]["input_ids"][0] == tokenizer("cat sat")["input_ids"]
    assert "The model has the prompts {'query': 'the ', 'passage': 'a '}, which are kept" in caplog.text
    trainer.save_model(str(tmp_path / "saved"))
    assert AutoModelForCL.from_pretrained(tmp_path / "saved").settings.prompts == {
        "query": "the ",
        "passage": "a ",
    }
    model.update_settings(prompts={"query": "the ", "passage": "a "})
    prompted = make(tmp_path, tokenizer, model=model, prompts={"anchor": "the ", "positive": "a "}).model.settings
    assert prompted.prompts == {"query": "the ", "passage": "a ", "document": "a "}


@pytest.fixture
def reranking(tmp_path):
    task = tmp_path / "reranking.jsonl"
    task.write_text(
        '{"query": "cat", "positive": ["a cat sat"], "negative": ["a dog ran"]}\n'
        '{"query": "dog", "positive": ["a dog ran"], "negative": ["a cat sat"]}\n'
    )
    return [f"reranking={task}"]


def test_prompts_reach_the_dev_tasks_that_tell_queries_from_documents(tmp_path, tokenizer, reranking, monkeypatch):
    trainer = make(tmp_path, tokenizer, prompts=PROMPTS, dev_tasks=reranking)
    encoded = set()
    tokenize = BatchEncoder.tokenize

    def recorded(self, texts, prefix):
        encoded.update(prefix + text for text in texts)
        return tokenize(self, texts, prefix)

    monkeypatch.setattr(BatchEncoder, "tokenize", recorded)
    trainer.evaluate()
    assert encoded == {
        "the old cat",
        "the old dog",
        "a red a cat sat",
        "a red a dog ran",
    }


def test_prompts_do_not_hide_that_dev_texts_are_training_texts(tmp_path, tokenizer, reranking, caplog):
    make(
        tmp_path,
        tokenizer,
        [{"query": "a cat sat", "positive": "dog"}] * 8,
        prompts=PROMPTS,
        dev_tasks=reranking,
    )
    assert "2 of 4 dev texts" in caplog.text
