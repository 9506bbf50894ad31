"""The models, arguments, datasets and callbacks that the Trainer accepts, and its errors for all others."""

from pathlib import Path

import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from trainer_helpers import (
    assert_same_weights,
    make,
    model_of,
    pairs,
    sentences,
    texts,
    weights,
)
from transformers import BertForMaskedLM

from simcse_hf import (
    SimCSETrainer,
    SimCSETrainingArguments,
    SimilarityEvalCallback,
    load_text_dataset,
)
from simcse_hf.data.documents import next_sentence_pairs
from simcse_hf.evaluation.sts import ScoredPairs


def ids_of(trainer, row=0):
    return trainer.train_dataset[row]["input_ids"]


# --- training data ---


def test_accepts_lists_of_texts_and_of_rows_and_plain_token_ids(tmp_path, tokenizer):
    assert ids_of(make(tmp_path, tokenizer, ["a cat", "a dog"])) == [
        tokenizer("a cat")["input_ids"]
    ]
    assert (
        len(
            ids_of(
                make(
                    tmp_path,
                    tokenizer,
                    [{"anchor": "a cat", "positive": "the cat"}] * 4,
                )
            )
        )
        == 2
    )
    tokenized = texts(16).map(
        lambda rows: tokenizer(rows["sent0"]), batched=True, remove_columns="sent0"
    )
    trainer = make(tmp_path, tokenizer, tokenized, eval_dataset=tokenized)
    assert ids_of(trainer) == [tokenized[0]["input_ids"]]
    assert trainer.train().global_step == 4


# --- model and arguments ---


def test_a_custom_collator_may_omit_the_attention_mask(tmp_path, tokenizer):
    default = make(tmp_path, tokenizer).data_collator
    runs = []
    for changes in ({}, {"gradcache_chunk_size": 4}):
        for collator in (
            default,
            lambda rows: {"input_ids": default(rows)["input_ids"]},
        ):
            model = model_of(dropout=0.0)
            trainer = make(
                tmp_path,
                tokenizer,
                texts(32, 2),
                model,
                data_collator=collator,
                **changes,
            )
            trainer.train()
            runs.append(weights(model))
        assert_same_weights(runs[-2], runs[-1])


def test_two_encoders_train_without_dropout(tmp_path, tokenizer):
    """The authors of Contrastive Tension switch dropout off: the two views come from two encoders."""
    for settings in ({"objective": "contrastive_tension"}, {"encoders": 2}):
        model = model_of(dropout=0.0, pooler_type="avg", **settings)
        assert make(tmp_path, tokenizer, model=model).train().global_step == 4


# --- evaluation ---


def test_predict_and_evaluate_use_the_dataset_passed_to_them(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), per_device_eval_batch_size=4)
    assert "eval_loss" not in trainer.evaluate()
    rows = texts(8, 2, seed=5)
    metrics = trainer.evaluate(rows)
    assert metrics["eval_loss"] > 0 and "eval_stsb_spearman" in metrics
    assert trainer.evaluate(texts(8, 2, seed=6))["eval_loss"] != metrics["eval_loss"]
    prediction = trainer.predict(rows)
    assert prediction.metrics["test_loss"] == pytest.approx(
        metrics["eval_loss"], rel=1e-6
    )
    assert not any("stsb" in name for name in prediction.metrics)


# --- runs ---


def test_the_models_default_prompt_is_used_in_training_and_evaluation(
    tmp_path, tokenizer
):
    """In both cases the embedding of a text is that of prompt + text."""
    model = model_of()
    model.update_settings(prompts={"query": "the cat "}, default_prompt_name="query")
    trainer = make(tmp_path, tokenizer, ["a dog", "a bird"] * 8, model)
    assert ids_of(trainer) == [tokenizer("the cat a dog")["input_ids"]]
    scored = ScoredPairs("stsb", ["a dog", "a man"], ["a bird", "a mat"], [1.0, 2.0])
    expected = SimilarityEvalCallback(scored).evaluate(model, tokenizer)
    model.update_settings(prompts={}, default_prompt_name=None)
    sentences = (
        ["the cat a dog", "the cat a man"],
        ["the cat a bird", "the cat a mat"],
    )
    assert (
        SimilarityEvalCallback(ScoredPairs("stsb", *sentences, [1.0, 2.0])).evaluate(
            model, tokenizer
        )
        == expected
    )


@pytest.mark.parametrize(
    "rows, batch, advice",
    [
        (
            640,
            512,
            "per_device_train_batch_size=38 with num_train_epochs=3 makes 50 steps",
        ),
        (
            2000,
            512,
            "per_device_train_batch_size=120 with num_train_epochs=3 makes 50 steps",
        ),
        (
            40,
            16,
            "per_device_train_batch_size=16 with num_train_epochs=20 makes 50 steps",
        ),
    ],
)
def test_few_steps_are_reported_with_a_batch_and_epochs_that_make_more(
    rows, batch, advice, tmp_path, tokenizer, caplog
):
    options = {
        "max_steps": -1,
        "num_train_epochs": 3,
        "per_device_train_batch_size": batch,
    }
    trainer = make(tmp_path, tokenizer, texts(rows, 2), **options)
    trainer._check_run()
    assert advice in caplog.text


@pytest.mark.parametrize(
    "batch, options, steps",
    [
        (16, {}, "3 step(s) in an epoch and 9"),
        (1, {}, None),
        (16, {"max_steps": 2}, None),
    ],
)
def test_a_run_of_few_steps_is_told_their_number(
    tmp_path, tokenizer, caplog, batch, options, steps
):
    options = {
        "max_steps": -1,
        "per_device_train_batch_size": batch,
        "num_train_epochs": 3,
    } | options
    make(tmp_path, tokenizer, texts(40, 3), **options)._check_run()
    assert steps in caplog.text if steps else "in an epoch" not in caplog.text


def test_the_seed_determines_the_weights_of_a_fresh_head(tmp_path, save_checkpoint):
    start = str(save_checkpoint(BertForMaskedLM(tiny_config())))
    heads = []
    for seed, noise in ((1, 0), (1, 5), (2, 0)):
        torch.manual_seed(noise)
        args = SimCSETrainingArguments(
            str(tmp_path), seed=seed, use_cpu=True, report_to="none"
        )
        heads.append(
            SimCSETrainer(
                start, args, texts(8)
            ).model.contrastive_head.dense.weight.clone()
        )
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


# --- files ---

LABELS = ("entailment", "neutral", "contradiction")
DOCUMENTS = "\n\n".join("\n".join(sentences(6, seed)) for seed in range(16))
#: The rows of each file, by its name.
FILES = {
    "sentences.txt": [[text] for text in sentences(32)],
    "pairs.csv": [
        ["anchor", "positive"],
        *zip(sentences(32), sentences(32, 1), strict=True),
    ],
    "nli.csv": [
        ["premise", "hypothesis", "label"],
        *[
            [sentences(8)[place // 3], text, LABELS[place % 3]]
            for place, text in enumerate(sentences(24, 1))
        ],
    ],
    "scored.csv": [
        ["sentence1", "sentence2", "score"],
        *zip(
            sentences(16),
            sentences(16, 1),
            [place % 6 for place in range(16)],
            strict=True,
        ),
    ],
    "classes.csv": [
        ["text", "label"],
        *[[text, f"class {place % 4}"] for place, text in enumerate(sentences(16))],
    ],
    "documents.txt": [[DOCUMENTS]],
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with `FILES`."""
    monkeypatch.chdir(tmp_path)
    for name, rows in FILES.items():
        (tmp_path / name).write_text(
            "\n".join(",".join(map(str, row)) for row in rows) + "\n"
        )


#: (objective, file, view, texts in a row, their content)
NAMED = [
    ("simcse", "sentences.txt", None, 1, "sentences"),
    ("simcse", "pairs.csv", None, 2, "pairs"),
    ("simcse", "sentences.txt", "crop", 2, "sentences"),
    ("simcse", "documents.txt", "next_sentence", 2, "documents"),
    ("simcse", "documents.txt", "next_three_sentences", 2, "documents"),
    ("supcon", "nli.csv", None, 2, "nli"),
    ("cosent", "scored.csv", None, 2, "scored pairs"),
    ("class_labels", "classes.csv", None, 1, "sentences"),
    ("declutr", "documents.txt", None, 3, "spans"),
]


@pytest.mark.parametrize(("objective", "file", "view", "width", "content"), NAMED)
def test_rows_of_every_kind_are_read_from_a_file(
    files, tmp_path, tokenizer, objective, file, view, width, content
):
    model = model_of(objective=objective, pooler_type="avg_no_cls")
    trainer = make(tmp_path, tokenizer, file, model, view=view, max_seq_length=12)
    described = trainer.rows.describe(trainer.model.objective.num_views)
    assert (described["num_sentences"], described["rows"]) == (width, content)
    assert trainer.train().global_step == 4


def test_several_data_sets_are_read_from_the_names_of_files(files, tmp_path, tokenizer):
    tables = {
        "scored": {"objective": "cosent"},
        "nli": {"objective": "softmax"},
        "spans": {"objective": "declutr"},
    }
    data = {
        "pairs": "pairs.csv",
        "scored": Path("scored.csv"),
        "nli": "nli.csv",
        "spans": "documents.txt",
    }
    model = model_of(pooler_type="avg_no_cls")
    trainer = make(
        tmp_path,
        tokenizer,
        data,
        model,
        datasets=tables,
        max_seq_length=12,
        per_device_train_batch_size=4,
    )
    assert trainer.rows.describe(2)["datasets"] == {
        "pairs": 32,
        "scored": 16,
        "nli": 24,
        "spans": 16,
    }
    assert trainer.train().global_step == 4


def test_a_view_of_documents_draws_the_pairs_of_the_file(files, tmp_path, tokenizer):
    by_name = make(tmp_path, tokenizer, "documents.txt", view="next_sentence")
    pairs = next_sentence_pairs("documents.txt")
    assert by_name.rows.texts[0][:] == pairs[:]
    assert (
        by_name.train_dataset[:]
        == make(tmp_path, tokenizer, pairs, view="next_sentence").train_dataset[:]
    )


def test_evaluation_rows_are_read_from_the_name_of_a_file(files, tmp_path, tokenizer):
    trainer = make(
        tmp_path, tokenizer, "sentences.txt", view="crop", eval_dataset="pairs.csv"
    )
    assert (
        trainer.evaluate()["eval_loss"]
        == trainer.evaluate(load_text_dataset("pairs.csv"))["eval_loss"]
    )


def test_labelled_pairs_in_memory_are_grouped_by_premise(files, tmp_path, tokenizer):
    model = model_of(objective="supcon", pooler_type="avg_no_cls")
    loaded = make(tmp_path, tokenizer, Dataset.from_csv("nli.csv"), model)
    assert (
        loaded.train_dataset[:]
        == make(tmp_path, tokenizer, "nli.csv", model).train_dataset[:]
    )
