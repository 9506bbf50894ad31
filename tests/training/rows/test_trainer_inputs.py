"""The models, arguments, datasets and callbacks that the Trainer accepts, and its errors for all others."""

import shutil
from pathlib import Path

import pytest
from evaluation_helpers import write, write_rows
from trainer_helpers import model_of, refuses, rows_for, scored, sentences, texts

from simcse_hf.data.documents import next_sentence_pairs

# --- model and arguments ---


@pytest.mark.parametrize("settings", [{"objective": "contrastive_tension"}, {"encoders": 2}], ids=str)
def test_two_encoders_train_without_dropout(make, settings):
    """The authors of Contrastive Tension switch dropout off: the two views come from two encoders."""
    model = model_of(dropout=0.0, pooler_type="avg", **settings)
    assert make(model=model).train().global_step == 4


# --- the default prompt of a model ---


def test_the_pooler_and_the_default_prompt_of_a_folder_are_used_in_training(make, tokenizer, save_checkpoint):
    start = model_of(pooler_type="avg", prompts={"query": "the cat "}, default_prompt_name="query")
    trainer = make(["a dog", "a bird"] * 8, str(save_checkpoint(start)))
    assert trainer.model.settings.pooler_type == "avg"
    assert trainer.train_dataset[0]["input_ids"] == [tokenizer("the cat a dog")["input_ids"]]


# --- runs of few steps ---


@pytest.mark.parametrize(
    "batch, changes, is_told",
    [(16, {}, True), (1, {}, False), (16, {"max_steps": 2}, False)],
    ids=["few steps", "many steps", "steps that were asked for"],
)
def test_a_run_of_few_steps_is_told_their_number(make, batch, changes, is_told, caplog):
    options = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": batch} | changes
    make(texts(40, 3), **options).check_run()
    assert ("40 rows in batches of 16 make 9 step(s)" in caplog.text) is is_told


# --- files ---


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with a file of each kind of rows."""
    monkeypatch.chdir(tmp_path)
    write(Path("sentences.txt"), sentences(32))
    texts(32, 2).to_csv("pairs.csv")
    scored(16).to_csv("scored.csv")
    rows_for("class_labels").to_csv("classes.csv")
    labels = ["entailment", "neutral", "contradiction"] * 8
    nli = zip(sentences(8) * 3, sentences(24, 1), labels, strict=True)
    write_rows(Path("nli.csv"), ["premise", "hypothesis", "label"], nli)
    write(Path("documents.txt"), ["\n".join([*sentences(6, seed), ""]) for seed in range(16)])


def test_rows_of_every_kind_are_read_from_the_names_of_files_and_train(make, files):
    data = {"pairs": "pairs.csv", "scored": Path("scored.csv"), "nli": "nli.csv", "spans": "documents.txt"}
    data |= {"sentences": "sentences.txt", "classes": "classes.csv"}
    objectives = {"scored": "cosent", "nli": "softmax", "spans": "declutr", "classes": "class_labels"}
    tables = {name: {"objective": objective} for name, objective in objectives.items()}
    options = {"max_seq_length": 12, "per_device_train_batch_size": 4, "max_steps": 6}
    options |= {"datasets": tables, "dataset_shares": "round_robin"}
    trainer = make(data, model_of(pooler_type="avg_no_cls"), **options)
    rows = {"pairs": 32, "scored": 16, "nli": 24, "spans": 16, "sentences": 32, "classes": 16}
    assert trainer.rows.describe(2)["datasets"] == rows
    assert trainer.train().global_step == 6


def test_classes_of_several_files_are_refused(make, files):
    shutil.copy("classes.csv", "more.csv")
    with refuses("classes.csv more.csv"):
        make(["classes.csv", "more.csv"], model_of(objective="class_labels"))


def test_a_view_of_documents_draws_the_pairs_of_the_file_as_of_pairs_in_memory(make, files):
    in_memory = next_sentence_pairs("documents.txt")
    of_file = make("documents.txt", view="next_sentence")
    assert of_file.rows.texts[0][:] == in_memory[:]
    assert of_file.rows.describe(2)["rows"] == "documents"
    trainer = make(in_memory, view="next_sentence")
    assert trainer.train_dataset[:] == of_file.train_dataset[:]
