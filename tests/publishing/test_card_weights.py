"""A card shows a result only if it was made with the weights of the model, whatever files and folders are called."""

import shutil

import pytest
import torch
from card_helpers import card_and_log, evaluation, written
from cli_helpers import save_model
from conftest import NEEDS_PEFT, tiny_config
from encoding_helpers import random_texts
from test_card_seeds import THRESHOLD
from trainer_helpers import make, refuses
from transformers import PreTrainedModel

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.evaluation.threshold import save_threshold
from simcse_hf.models.checkpoint import RECORD
from simcse_hf.publishing.card import EVAL_RESULTS, write_card

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


def save_other_weights(folder):
    """Save other weights into a folder."""
    config = tiny_config(initializer_range=0.3)
    AutoModelForCL.from_config(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def other_weights(tokenizer, tmp_path_factory):
    """Other weights in a folder whose last name is that of `directory`, which is only read."""
    folder = tmp_path_factory.mktemp("other") / "my-model"
    save_other_weights(folder)
    tokenizer.save_pretrained(folder)
    return folder


def identity_of(folder, **options):
    return SimCSE(folder, device="cpu", **options).identity().to_dict()


def adapted(folder):
    """The verdict of an adaptation to the model in a folder."""
    corpus = {"path": "corpus.txt", "texts": 9}
    verdict = {"comparisons": [JUDGED], "confidence": 0.95, "seeds": [], "arms": [ARM]}
    return {"chosen": ARM, "corpus": corpus, "identity": identity_of(folder), **verdict}


def compared(folder, baseline="before", before=None):
    """The comparison of the model in a folder with another one."""
    return {
        "baseline": baseline,
        "mode": "test",
        "aggregation": "all",
        "metric": "spearman",
        "confidence": 0.95,
        "resamples": 10,
        "tasks": ["STSBenchmark"],
        "labels": {},
        "scores": {baseline: {"STSBenchmark": 50.0}, "after": {"STSBenchmark": 77.77}},
        "averages": {},
        "differences": {"after": {"STSBenchmark": {"difference": 27.77, "low": 20.0, "high": 30.0}}},
        "identities": {baseline: before or {"weights": "0" * 32}, "after": identity_of(folder)},
    }


#: For each kind of file: how its content is made from the folder that was measured, and a part of the card about it.
FILES = {
    "evaluation.json": (evaluation, "| 50.12 |"),
    "comparison.json": (compared, "### Comparison with other models"),
    "adaptation.json": (adapted, "### Adaptation"),
}


# --- results of the model and of others ---


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_shown_for_the_weights_it_was_made_with_and_for_no_others(
    name, directory, untrained, other_weights
):
    document_of, shown = FILES[name]
    own = document_of(untrained)
    written(directory / name, own)
    card = card_and_log(directory)
    assert shown in card.text and not card.log

    written(directory / name, document_of(other_weights))
    card = card_and_log(directory)
    assert shown not in card.text
    assert not (directory / EVAL_RESULTS).exists()
    assert f"{name} holds no results of the model in {directory}" in card.log
    assert "other weights" in card.log and "evaluate this model again" in card.log

    without_identity = {key: value for key, value in own.items() if not key.startswith("identit")}
    written(directory / name, without_identity)
    assert shown not in card_and_log(directory).text

    written(directory / name, own)
    save_other_weights(directory)
    card = card_and_log(directory)
    assert shown not in card.text and "other weights" in card.log


def test_a_named_file_of_another_model_or_pooler_is_refused(directory, other_weights, tmp_path):
    for document, words in (
        (evaluation(other_weights), f"named.json holds no results {other_weights}: other weights"),
        (evaluation(directory, identity=identity_of(directory, pooler_type="avg")), "pooler 'avg' there, 'cls' here"),
    ):
        with refuses(words):
            write_card(directory, [written(tmp_path / "named.json", document)])


def test_a_model_may_be_measured_in_half_precision_and_with_shorter_texts(directory):
    identity = identity_of(directory, dtype=torch.bfloat16, max_length=8)
    document = evaluation(directory, identity=identity)
    written(directory / "evaluation.json", document)
    assert "50.12" in write_card(directory).read_text()
    document["identity"]["weights"] = "0" * 32
    written(directory / "evaluation.json", document)
    assert "50.12" not in write_card(directory).read_text()


# --- a baseline that has changed ---


@pytest.mark.parametrize("kind", ["a result file", "a folder"])
def test_a_comparison_with_a_baseline_is_shown_until_that_changes(kind, directory, new_directory, tmp_path):
    baseline = new_directory()
    save_other_weights(baseline)
    name = written(tmp_path / "base.json", evaluation(baseline)) if kind == "a result file" else baseline
    document = compared(directory, str(name), identity_of(baseline))
    path = written(directory / "comparison.json", document)
    card = card_and_log(directory)
    assert "### Comparison with other models" in card.text and not card.log

    save_other_weights(baseline)
    if kind == "a result file":
        written(name, evaluation(baseline))
    card = card_and_log(directory)
    assert "### Comparison" not in card.text
    assert f"comparison.json compares with other weights than those of {name} now: compare again" in card.log
    with refuses("compares with other weights"):
        write_card(directory, comparisons=[path])


# --- the run of a model ---


def train(folder, tokenizer, **options):
    """The folder of a model that was trained there for two steps, with the record of the run."""
    model = AutoModelForCL.from_pretrained(save_model(folder / "start", tokenizer))
    trainer = make(folder, tokenizer, {"sent0": random_texts(12)}, model, max_steps=2, **options)
    trainer.train()
    trainer.save_model()
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    return train(tmp_path_factory.mktemp("trained"), tokenizer)


def test_the_run_of_the_weights_before_is_not_that_of_the_weights_now(trained, other_weights, tmp_path):
    card = card_and_log(trained)
    assert "Training took 2 steps" in card.text and not card.log
    directory = shutil.copytree(trained, tmp_path / "run")
    SimCSE(other_weights, device="cpu").save_pretrained(directory)
    card = card_and_log(directory)
    assert "Training took" not in card.text
    assert "results.json is about the training of other weights than those in" in card.log


@NEEDS_PEFT
def test_the_run_of_an_adapter_is_that_of_the_merged_model(tmp_path, tokenizer):
    card = card_and_log(train(tmp_path, tokenizer, lora_r=2))
    assert "Training took 2 steps" in card.text and not card.log


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_card_loads_no_weights_but_those_without_digests(is_missing, trained, tmp_path, monkeypatch, caplog):
    directory = shutil.copytree(trained, tmp_path / "run")
    save_threshold(SimCSE(directory, device="cpu"), THRESHOLD)
    for name, (document_of, _) in FILES.items():
        written(directory / name, document_of(directory))
    if is_missing:  # as in a folder of version 0.9
        (directory / RECORD).unlink()
    loaded = []
    load = PreTrainedModel.from_pretrained.__func__

    def counted(cls, *args, **options):
        loaded.append(args)
        return load(cls, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(counted))
    text = write_card(directory).read_text()
    for words in ("a cosine of at least 0.5000", "Adaptation", "### Comparison", "50.12"):
        assert words in text
    assert len(loaded) == is_missing
    assert ("the weights are loaded to compare them" in caplog.text) == is_missing


def test_a_threshold_is_shown_for_the_weights_it_was_chosen_with(directory):
    save_threshold(SimCSE(directory, device="cpu"), THRESHOLD)
    card = card_and_log(directory)
    assert "a cosine of at least 0.5000" in card.text and not card.log
    config = (directory / "config.json").read_text()
    save_other_weights(directory)
    (directory / "config.json").write_text(config)
    card = card_and_log(directory)
    assert "a cosine of at least" not in card.text and "The card does not show a threshold" in card.log
