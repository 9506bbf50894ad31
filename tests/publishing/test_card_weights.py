"""A card shows a result only if it was made with the weights of the model, whatever files and folders are called."""

import json

import pytest
from card_helpers import evaluation, written
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.publishing import write_card
from simcse_hf.publishing.card import EVAL_RESULTS

ARM = {"name": "labels", "model": "org/start", "stages": [], "seed": None}
JUDGED = {
    "task": "pairs", "metric": "accuracy", "against": "start", "before": 50.0, "after": 77.77, "difference": 27.77,
    "interval": [20.0, 30.0],
}  # fmt: skip


@pytest.fixture
def other(save_checkpoint):
    """Other weights in a folder whose last name is that of `directory`."""
    return save_checkpoint(AutoModelForCL.from_config(tiny_config(initializer_range=0.3)), "other/my-model")


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
        "baseline": "before", "mode": "test", "aggregation": "all", "metric": "spearman", "confidence": 0.95,
        "resamples": 10, "tasks": ["STSBenchmark"], "labels": {}, "scores": scores, "averages": {},
        "differences": {"after": difference},
        "identities": {"before": {"weights": "0" * 32}, "after": identity_of(folder)},
    }  # fmt: skip


#: For each kind of file: how its content is made from the folder that was measured, and a part of the card about it.
FILES = {
    "evaluation.json": (evaluation, "| 50.12 |"),
    "comparison.json": (compared, "### Comparison with other models"),
    "adaptation.json": (adapted, "### Adaptation"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_result_is_shown_for_the_weights_it_was_made_with_and_for_no_others(name, directory, other, caplog):
    make, words = FILES[name]
    file = written(directory / name, make(directory))
    assert words in write_card(directory).read_text() and not caplog.text
    written(file, make(other))
    assert words not in write_card(directory).read_text() and not (directory / EVAL_RESULTS).exists()
    assert f"{name} holds no results of the model in {directory}" in caplog.text
    assert "other weights" in caplog.text and "evaluate this model again" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_a_result_of_the_weights_before_is_not_shown(name, directory, caplog):
    make, words = FILES[name]
    written(directory / name, make(directory))
    AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).save_pretrained(directory)
    assert words not in write_card(directory).read_text() and "other weights" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_a_result_of_version_0_1_records_no_weights_and_is_not_shown(name, directory, caplog):
    make, words = FILES[name]
    document = make(directory)
    written(directory / name, {key: document[key] for key in document if key not in ("identity", "identities")})
    assert words not in write_card(directory).read_text()
    assert "it records no weights, as in version 0.1): evaluate this model again" in caplog.text


def test_a_result_of_the_model_without_its_whitening_is_not_shown(transformed, caplog):
    directory = transformed("whitening")
    plain = evaluation(directory, identity=identity_of(directory, postprocess=False))
    written(directory / "evaluation.json", plain)
    assert "50.12" not in write_card(directory).read_text()
    assert "postprocessing None there, 'whitening' here" in caplog.text


def test_a_named_file_of_another_model_or_pooler_is_refused(directory, other, tmp_path):
    file = written(tmp_path / "named.json", evaluation(other))
    with pytest.raises(ValueError, match=rf"named.json holds no results .*{other}: other weights.*evaluate this"):
        write_card(directory, [file])
    written(file, evaluation(directory, identity=identity_of(directory, pooler_type="avg")))
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
