"""A card shows a result only if it was made with the weights of the model, whatever files and folders are called."""

import json

import pytest
from card_helpers import evaluation, written
from conftest import NEEDS_PEFT, tiny_config
from datasets import Dataset
from inference_helpers import random_texts

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.evaluation.threshold import save_threshold
from simcse_hf.publishing import write_card
from simcse_hf.publishing.card import EVAL_RESULTS

ARM = {"name": "labels", "model": "org/start", "stages": [], "seed": None}
JUDGED = {
    "task": "pairs",
    "metric": "accuracy",
    "against": "start",
    "before": 50.0,
    "after": 77.77,
    "difference": 27.77,
    "interval": [20.0, 30.0],
}


@pytest.fixture
def other(save_checkpoint):
    """Other weights in a folder whose last name is that of `directory`."""
    return save_checkpoint(
        AutoModelForCL.from_config(tiny_config(initializer_range=0.3)), "other/my-model"
    )


def identity_of(folder, **options):
    return SimCSE(folder, device="cpu", **options).identity().to_dict()


def adapted(folder):
    corpus = {"path": "corpus.txt", "texts": 9}
    verdict = {"comparisons": [JUDGED], "confidence": 0.95, "seeds": [], "arms": [ARM]}
    return {"chosen": ARM, "corpus": corpus, "identity": identity_of(folder), **verdict}


def compared(folder):
    scores = {"before": {"STSBenchmark": 50.0}, "after": {"STSBenchmark": 77.77}}
    difference = {"STSBenchmark": {"difference": 27.77, "low": 20.0, "high": 30.0}}
    return {
        "baseline": "before",
        "mode": "test",
        "aggregation": "all",
        "metric": "spearman",
        "confidence": 0.95,
        "resamples": 10,
        "tasks": ["STSBenchmark"],
        "labels": {},
        "scores": scores,
        "averages": {},
        "differences": {"after": difference},
        "identities": {"before": {"weights": "0" * 32}, "after": identity_of(folder)},
    }


#: For each kind of file: how its content is made from the folder that was measured, and a part of the card about it.
FILES = {
    "evaluation.json": (evaluation, "| 50.12 |"),
    "comparison.json": (compared, "### Comparison with other models"),
    "adaptation.json": (adapted, "### Adaptation"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_shown_for_the_weights_it_was_made_with_and_for_no_others(
    name, directory, other, caplog
):
    make, words = FILES[name]
    file = written(directory / name, make(directory))
    assert words in write_card(directory).read_text() and not caplog.text
    written(file, make(other))
    assert (
        words not in write_card(directory).read_text()
        and not (directory / EVAL_RESULTS).exists()
    )
    assert f"{name} holds no results of the model in {directory}" in caplog.text
    assert "other weights" in caplog.text and "evaluate this model again" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_a_result_of_the_weights_before_is_not_shown(name, directory, caplog):
    make, words = FILES[name]
    written(directory / name, make(directory))
    AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).save_pretrained(
        directory
    )
    assert (
        words not in write_card(directory).read_text()
        and "other weights" in caplog.text
    )


@pytest.mark.parametrize("name", FILES)
def test_a_result_of_version_0_1_records_no_weights_and_is_not_shown(
    name, directory, caplog
):
    make, words = FILES[name]
    document = make(directory)
    written(
        directory / name,
        {
            key: document[key]
            for key in document
            if key not in ("identity", "identities")
        },
    )
    assert words not in write_card(directory).read_text()
    assert (
        "it records no weights, as in version 0.1): evaluate this model again"
        in caplog.text
    )


def test_a_result_of_the_model_without_its_whitening_is_not_shown(transformed, caplog):
    directory = transformed("whitening")
    plain = evaluation(directory, identity=identity_of(directory, postprocess=False))
    written(directory / "evaluation.json", plain)
    assert "50.12" not in write_card(directory).read_text()
    assert "postprocessing None there, 'whitening' here" in caplog.text


def test_a_named_file_of_another_model_or_pooler_is_refused(directory, other, tmp_path):
    file = written(tmp_path / "named.json", evaluation(other))
    with pytest.raises(
        ValueError,
        match=rf"named.json holds no results .*{other}: other weights.*evaluate this",
    ):
        write_card(directory, [file])
    written(
        file, evaluation(directory, identity=identity_of(directory, pooler_type="avg"))
    )
    with pytest.raises(ValueError, match="pooler 'avg' there, 'cls' here"):
        write_card(directory, [file])


def test_a_model_may_be_measured_in_half_precision_and_with_shorter_texts(directory):
    import torch

    half = identity_of(directory, dtype=torch.bfloat16, max_length=8)
    assert half["dtype"] == "bfloat16"
    written(directory / "evaluation.json", evaluation(directory, identity=half))
    assert "50.12" in write_card(directory).read_text()
    other = json.loads((directory / "evaluation.json").read_text())
    other["identity"]["weights"] = "0" * 32
    written(directory / "evaluation.json", other)
    assert "50.12" not in write_card(directory).read_text()


# --- what the model was made from and with has changed ------------------------------------------------------------


@pytest.fixture
def trained(save_checkpoint, tokenizer, tmp_path):
    """The folder of a model that was trained there, with the record of the run."""
    start = save_checkpoint(
        AutoModelForCL.from_config(tiny_config(), pooler_type="avg"), "start"
    )
    args = SimCSETrainingArguments(
        output_dir=str(tmp_path / "run"),
        use_cpu=True,
        disable_tqdm=True,
        max_steps=2,
        save_strategy="no",
        per_device_train_batch_size=4,
        report_to="none",
    )
    rows = Dataset.from_dict({"sent0": random_texts(12)})
    trainer = SimCSETrainer(
        AutoModelForCL.from_pretrained(start), args, rows, processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model()
    return tmp_path / "run"


def test_the_run_of_the_weights_before_is_not_that_of_the_weights_now(
    trained, other, caplog
):
    assert (
        "Training took 2 steps" in write_card(trained).read_text() and not caplog.text
    )
    SimCSE(other, device="cpu").save_pretrained(trained)
    assert "Training took" not in write_card(trained).read_text()
    assert (
        "results.json is about the training of other weights than those in"
        in caplog.text
    )


@NEEDS_PEFT
def test_the_run_of_an_adapter_is_that_of_the_merged_model(
    save_checkpoint, tokenizer, tmp_path, caplog
):
    start = save_checkpoint(
        AutoModelForCL.from_config(tiny_config(), pooler_type="avg"), "start"
    )
    options = {
        "output_dir": str(tmp_path / "run"),
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    args = SimCSETrainingArguments(**options, max_steps=2, save_strategy="no", lora_r=2)
    rows = Dataset.from_dict({"sent0": random_texts(12)})
    trainer = SimCSETrainer(
        AutoModelForCL.from_pretrained(start), args, rows, processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model()
    assert (
        "Training took 2 steps" in write_card(tmp_path / "run").read_text()
        and not caplog.text
    )


@pytest.mark.parametrize("baseline", ["a result file", "a folder"])
def test_a_comparison_with_a_baseline_that_has_changed_is_not_shown(
    baseline, directory, other, tmp_path, caplog
):
    name = str(other)
    if baseline == "a result file":
        name = str(written(tmp_path / "base.json", evaluation(other)))
    document = compared(directory)
    text = json.dumps(
        document
        | {
            "identities": {
                "before": identity_of(other),
                "after": identity_of(directory),
            }
        }
    )
    (directory / "comparison.json").write_text(
        text.replace('"before"', json.dumps(name))
    )
    assert (
        "### Comparison with other models" in write_card(directory).read_text()
        and not caplog.text
    )
    AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).save_pretrained(
        other
    )
    if baseline == "a result file":
        written(tmp_path / "base.json", evaluation(other))
    assert "### Comparison" not in write_card(directory).read_text()
    assert (
        f"comparison.json compares with other weights than those of {name} now: compare again"
        in caplog.text
    )
    with pytest.raises(ValueError, match="compares with other weights"):
        write_card(directory, comparisons=[directory / "comparison.json"])


def test_a_threshold_of_other_weights_is_not_shown(directory, caplog):
    threshold = {
        "cosine": 0.5,
        "goal": "f1",
        "source": "pairs.csv",
        "chosen_on": 80,
        "measured_on": 80,
        "confidence": 0.95,
        "precision": [90.0, 80.0, 95.0],
        "recall": [90.0, 80.0, 95.0],
    }
    save_threshold(SimCSE(directory, device="cpu"), threshold)
    assert (
        "a cosine of at least 0.5000" in write_card(directory).read_text()
        and not caplog.text
    )
    config = (directory / "config.json").read_text()
    AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).save_pretrained(
        directory
    )
    (directory / "config.json").write_text(config)
    assert "a cosine of at least" not in write_card(directory).read_text()
    assert "The card does not show a threshold" in caplog.text
