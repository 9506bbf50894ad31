"""Prompts and lengths of columns: what training reads, what is saved, and what both libraries then encode."""

import logging

import pytest
import torch
from datasets import Dataset
from torch.nn.functional import normalize
from trainer_helpers import model_of

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.training import rows as rows_module

PROMPTS = {"anchor": "the old ", "positive": "a red "}
LENGTHS = {"anchor": 5, "positive": 8}
ROWS = [
    {"query": "cat sat", "positive": f"{word} ran on the mat in the tree", "negative": "big man"}
    for word in ("dog", "bird", "woman", "house") * 4
]


SUPCON = {"objective": "supcon", "pooler_type": "avg_no_cls"}
MIXED_GROUP = {"texts": ["cat sat", "dog ran", "old man sang", "mat"], "relations": [2, 0, 1]}


WHOLE = "dog ran on the mat in the tree"  # the positive of the first row
NO_POSITIVE = {"anchor": "the ", "negative": "old "}  # a missing prompt is empty
ALL_THREE = {"anchor": "", "positive": "the ", "negative": "a "}


@pytest.mark.parametrize(
    "row, settings, prompts, lengths, expected",
    [
        (ROWS[0], {}, PROMPTS, LENGTHS, {"the old cat sat": 5, f"a red {WHOLE}": 8, "a red big man": 8}),
        (ROWS[0], {}, NO_POSITIVE, 32, {"the cat sat": 32, WHOLE: 32, "old big man": 32}),
        (MIXED_GROUP, SUPCON, ALL_THREE, 32, {"cat sat": 32, "a dog ran": 32, "the old man sang": 32, "a mat": 32}),
    ],
)
def test_each_column_gets_its_prompt_and_its_length(make, tokenizer, row, settings, prompts, lengths, expected):
    options = {"prompts": prompts, "max_seq_length": lengths}
    trainer = make([row] * 8, model_of(**settings), **options)
    ids = [tokenizer(text, truncation=True, max_length=n)["input_ids"] for text, n in expected.items()]
    assert trainer.train_dataset[0]["input_ids"] == ids
    assert trainer.model.settings.max_seq_length == max(expected.values())


def test_a_stream_reads_the_same_rows(make, monkeypatch):
    options = {"prompts": PROMPTS, "max_seq_length": LENGTHS}
    rows = make(ROWS, **options).train_dataset
    stream = Dataset.from_list(ROWS).to_iterable_dataset()
    monkeypatch.setattr(rows_module, "SHUFFLE_BUFFER", 1)
    streamed = make(stream, **options).train_dataset
    assert next(iter(streamed))["input_ids"] == rows[0]["input_ids"]


def test_the_prompts_are_saved_for_encode_query_and_encode_document_of_both_libraries(trained):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    trainer = trained(ROWS, prompts=PROMPTS, max_steps=2)
    trainer.save_model()
    folder = trainer.args.output_dir
    ours = SimCSE(folder, device="cpu")
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu")
    for role, prompt in (("query", PROMPTS["anchor"]), ("document", PROMPTS["positive"])):
        expected = ours.encode([f"{prompt}cat sat"])
        for model in (ours, theirs):
            found = torch.as_tensor(getattr(model, f"encode_{role}")(["cat sat"]))
            torch.testing.assert_close(normalize(found), expected, atol=1e-5, rtol=0)
    assert torch.equal(ours.encode("cat sat"), ours.encode("cat sat", prompt=""))


def test_a_text_before_all_columns_becomes_the_default_prompt(make):
    settings = make(ROWS, prompts={"anchor": "the ", "positive": "the "}).model.settings
    assert (settings.default_prompt_name, settings.prompts) == ("query", {"query": "the ", "document": "the "})


def test_a_model_with_prompts_keeps_them_and_says_that_training_does_not_use_them(make, tmp_path, tokenizer, caplog):
    caplog.set_level(logging.INFO)
    model = model_of()
    model.update_settings(prompts={"query": "the ", "passage": "a "})
    trainer = make(ROWS, model)
    assert trainer.train_dataset[0]["input_ids"][0] == tokenizer("cat sat")["input_ids"]
    assert "The model has the prompts {'query': 'the ', 'passage': 'a '}, which are kept" in caplog.text
    trainer.save_model(str(tmp_path / "saved"))
    assert AutoModelForCL.from_pretrained(tmp_path / "saved").settings.prompts == {"query": "the ", "passage": "a "}
    prompted = make(ROWS, model, prompts={"anchor": "the ", "positive": "a "}).model.settings
    assert prompted.prompts == {"query": "the ", "passage": "a ", "document": "a "}


def test_prompts_do_not_hide_that_dev_texts_are_training_texts(make, caplog):
    rows = [{"query": "a cat sat", "positive": "a dog ran"}] * 8
    dev_set = {"sentence1": ["a cat sat", "a dog ran"], "sentence2": ["a man", "a mat"], "score": [1, 2]}
    make(rows, prompts=PROMPTS, dev_set=dev_set)
    assert "2 of 4 dev texts" in caplog.text
