"""The models, arguments, datasets and callbacks that the Trainer accepts, and its errors for all others."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import tiny_config
from trainer_helpers import (
    assert_same_weights,
    make,
    model_of,
    pairs,
    refuses,
    sentences,
    texts,
    weights,
)
from transformers import BertForMaskedLM

from simcse_hf import (
    SimCSETrainer,
    SimCSETrainingArguments,
    SimilarityEvalCallback,
)
from simcse_hf.data.documents import next_sentence_pairs
from simcse_hf.evaluation.tasks.senteval import ScoredPairs


def ids_of(trainer, row=0):
    return trainer.train_dataset[row]["input_ids"]


# --- model and arguments ---


def test_a_custom_collator_may_omit_the_attention_mask(tmp_path, tokenizer):
    default = make(tmp_path, tokenizer).data_collator
    found = []
    for collator in (default, lambda rows: {"input_ids": default(rows)["input_ids"]}):
        model = model_of(dropout=0.0)
        options = {"data_collator": collator, "gradcache_chunk_size": 4}
        make(tmp_path, tokenizer, texts(32, 2), model, **options).train()
        found.append(weights(model))
    assert_same_weights(*found)


@pytest.mark.parametrize("settings", [{"objective": "contrastive_tension"}, {"encoders": 2}], ids=str)
def test_two_encoders_train_without_dropout(tmp_path, tokenizer, settings):
    """The authors of Contrastive Tension switch dropout off: the two views come from two encoders."""
    model = model_of(dropout=0.0, pooler_type="avg", **settings)
    assert make(tmp_path, tokenizer, model=model).train().global_step == 4


# --- evaluation ---


def test_rows_that_are_passed_are_evaluated_beside_the_dev_set_and_predicted_without_it(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), per_device_eval_batch_size=4)
    rows = texts(8, 2, seed=5)
    evaluated = trainer.evaluate(rows)
    predicted = trainer.predict(rows).metrics
    assert "eval_stsb_spearman" in evaluated
    assert not [name for name in predicted if "stsb" in name]
    assert predicted["test_loss"] == pytest.approx(evaluated["eval_loss"], rel=1e-6)
    assert trainer.evaluate(texts(8, 2, seed=6))["eval_loss"] != evaluated["eval_loss"]
    assert "eval_loss" not in trainer.evaluate()


# --- the default prompt of a model ---


def test_the_models_default_prompt_is_used_in_training_and_evaluation(tmp_path, tokenizer):
    """The embedding of a text is that of prompt + text."""
    model = model_of()
    model.update_settings(prompts={"query": "the cat "}, default_prompt_name="query")
    trainer = make(tmp_path, tokenizer, ["a dog", "a bird"] * 8, model)
    assert ids_of(trainer) == [tokenizer("the cat a dog")["input_ids"]]
    scores = []
    for prompt in ("", "the cat "):
        first, second = [f"{prompt}a dog", f"{prompt}a man"], [f"{prompt}a bird", f"{prompt}a mat"]
        dev_set = SimilarityEvalCallback(ScoredPairs("stsb", first, second, [1.0, 2.0]))
        scores.append(dev_set.evaluate(model, tokenizer))
        model.update_settings(prompts={}, default_prompt_name=None)
    assert scores[0] == scores[1]


# --- runs of few steps ---


@pytest.mark.parametrize(
    ("batch", "changes", "is_told"),
    [(16, {}, True), (1, {}, False), (16, {"max_steps": 2}, False)],
    ids=["few steps", "many steps", "steps that were asked for"],
)
def test_a_run_of_few_steps_is_told_their_number(batch, changes, is_told, tmp_path, tokenizer, caplog):
    options = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": batch} | changes
    make(tmp_path, tokenizer, texts(40, 3), **options).check_run()
    assert ("40 rows in batches of 16 make 9 step(s)" in caplog.text) is is_told


# --- a fresh head ---


def test_the_seed_determines_the_weights_of_a_fresh_head(tmp_path, save_checkpoint):
    start = str(save_checkpoint(BertForMaskedLM(tiny_config())))
    drawn = []
    for seed, noise in ((1, 0), (1, 5), (2, 0)):
        torch.manual_seed(noise)
        args = SimCSETrainingArguments(str(tmp_path), seed=seed, use_cpu=True, report_to="none")
        drawn.append(SimCSETrainer(start, args, texts(8)).model.contrastive_head.dense.weight)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


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
    "nli.csv": [["premise", "hypothesis", "label"]],
    "scored.csv": [["sentence1", "sentence2", "score"]],
    "classes.csv": [["text", "label"]],
    "documents.txt": [[DOCUMENTS]],
}
for place, text in enumerate(sentences(24, 1)):
    premise = sentences(8)[place // 3]
    FILES["nli.csv"].append([premise, text, LABELS[place % 3]])
for place, text in enumerate(sentences(16)):
    other = sentences(16, 1)[place]
    FILES["scored.csv"].append([text, other, place % 6])
    FILES["classes.csv"].append([text, f"class {place % 4}"])


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with `FILES`."""
    monkeypatch.chdir(tmp_path)
    for name, rows in FILES.items():
        lines = [",".join(map(str, row)) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")


#: (objective, file, view, texts in a row, their content)
NAMED = [
    ("simcse", "sentences.txt", "crop", 2, "sentences"),
    ("simcse", "documents.txt", "next_sentence", 2, "documents"),
    ("class_labels", "classes.csv", None, 1, "sentences"),
]


@pytest.mark.parametrize(("objective", "file", "view", "width", "content"), NAMED)
def test_rows_of_every_kind_are_read_from_a_file_and_train(
    files, tmp_path, tokenizer, objective, file, view, width, content
):
    model = model_of(objective=objective, pooler_type="avg_no_cls")
    trainer = make(tmp_path, tokenizer, file, model, view=view, max_seq_length=12)
    described = trainer.rows.describe(model.objective.num_views)
    assert (described["num_sentences"], described["rows"]) == (width, content)
    assert trainer.train().global_step == 4


def test_several_data_sets_are_read_from_the_names_of_files_and_train(files, tmp_path, tokenizer):
    data = {"pairs": "pairs.csv", "scored": Path("scored.csv"), "nli": "nli.csv", "spans": "documents.txt"}
    tables = {
        "scored": {"objective": "cosent"},
        "nli": {"objective": "softmax"},
        "spans": {"objective": "declutr"},
    }
    options = {"max_seq_length": 12, "per_device_train_batch_size": 4}
    model = model_of(pooler_type="avg_no_cls")
    trainer = make(tmp_path, tokenizer, data, model, datasets=tables, **options)
    assert trainer.rows.describe(2)["datasets"] == {"pairs": 32, "scored": 16, "nli": 24, "spans": 16}
    assert trainer.train().global_step == 4


def test_classes_of_several_files_are_refused(files, tmp_path, tokenizer):
    shutil.copy("classes.csv", "more.csv")
    with refuses("classes.csv more.csv"):
        make(tmp_path, tokenizer, ["classes.csv", "more.csv"], model_of(objective="class_labels"))


def test_a_view_of_documents_draws_the_pairs_of_the_file_as_of_pairs_in_memory(files, tmp_path, tokenizer):
    in_memory = next_sentence_pairs("documents.txt")
    of_file = make(tmp_path, tokenizer, "documents.txt", view="next_sentence")
    assert of_file.rows.texts[0][:] == in_memory[:]
    trainer = make(tmp_path, tokenizer, in_memory, view="next_sentence")
    assert trainer.train_dataset[:] == of_file.train_dataset[:]
