"""A card shows a result only if it was made with the weights of the model, whatever files and folders are called."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from card_helpers import card_and_log, evaluation, written
from conftest import NEEDS_PEFT, tiny_config
from datasets import Dataset
from encoding_helpers import random_texts
from transformers import PreTrainedModel

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
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


def compared(folder):
    """The comparison of the model in a folder with another one."""
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
EVERY_FILE = pytest.mark.parametrize("name", FILES, scope="module")


# --- results of the model and of others ---


@pytest.fixture(scope="module")
def shown(name):
    """What a card says where it shows the result."""
    _, words = FILES[name]
    return words


@pytest.fixture(scope="module")
def own_results(name, untrained):
    """The results of the model."""
    make, _ = FILES[name]
    return make(untrained)


@pytest.fixture(scope="module")
def beside(name, new_directory):
    """`beside(results)` is the directory of a model with these results."""

    def write(results):
        directory = new_directory()
        written(directory / name, results)
        return directory

    return write


@pytest.fixture(scope="module")
def of_own_results(beside, own_results):
    """The card beside results of the model, and what was logged."""
    return card_and_log(beside(own_results))


@EVERY_FILE
def test_a_result_is_shown_for_the_weights_it_was_made_with(of_own_results, shown):
    assert shown in of_own_results.text


@EVERY_FILE
def test_a_result_of_the_model_is_shown_without_a_warning(of_own_results):
    assert not of_own_results.log


@pytest.fixture(scope="module")
def with_others_results(name, beside, other_weights):
    """The directory of a model with results of other weights."""
    make, _ = FILES[name]
    return beside(make(other_weights))


@pytest.fixture(scope="module")
def of_others_results(with_others_results):
    """The card of that model, and what was logged."""
    return card_and_log(with_others_results)


@EVERY_FILE
def test_a_result_of_other_weights_is_not_shown(of_others_results, shown):
    assert shown not in of_others_results.text


@EVERY_FILE
def test_a_result_of_other_weights_is_no_benchmark_result(of_others_results, with_others_results):
    assert not (with_others_results / EVAL_RESULTS).exists()


@EVERY_FILE
def test_the_warning_says_why_a_result_is_not_shown_and_what_to_do(name, of_others_results, with_others_results):
    words = f"{name} holds no results of the model in {with_others_results}"
    assert words in of_others_results.log
    assert "other weights" in of_others_results.log
    assert "evaluate this model again" in of_others_results.log


@EVERY_FILE
def test_a_result_of_the_weights_before_is_not_shown(beside, own_results, shown):
    directory = beside(own_results)
    save_other_weights(directory)
    card = card_and_log(directory)
    assert shown not in card.text
    assert "other weights" in card.log


@pytest.fixture(scope="module")
def of_results_without_identity(beside, own_results):
    """The card beside results that record no weights, and what was logged."""
    results = dict(own_results)
    results.pop("identity", None)
    results.pop("identities", None)
    return card_and_log(beside(results))


@EVERY_FILE
def test_a_result_that_records_no_weights_is_not_shown(of_results_without_identity, shown):
    assert shown not in of_results_without_identity.text


@pytest.fixture
def measured_without_whitening(transformed):
    """The folder of a model with a whitening, which was evaluated without it."""
    directory = transformed("whitening")
    identity = identity_of(directory, postprocess=False)
    plain = evaluation(directory, identity=identity)
    written(directory / "evaluation.json", plain)
    return directory


def test_a_result_of_the_model_without_its_whitening_is_not_shown(measured_without_whitening, caplog):
    assert "50.12" not in write_card(measured_without_whitening).read_text()
    assert "postprocessing None there, 'whitening' here" in caplog.text


def test_a_named_file_of_another_model_is_refused(directory, other_weights, tmp_path):
    file = written(tmp_path / "named.json", evaluation(other_weights))
    words = rf"named.json holds no results .*{other_weights}: other weights.*evaluate this"
    with pytest.raises(ValueError, match=words):
        write_card(directory, [file])


def test_a_named_file_of_another_pooler_is_refused(directory, tmp_path):
    identity = identity_of(directory, pooler_type="avg")
    document = evaluation(directory, identity=identity)
    file = written(tmp_path / "named.json", document)
    with pytest.raises(ValueError, match="pooler 'avg' there, 'cls' here"):
        write_card(directory, [file])


@pytest.fixture
def in_half_precision(directory):
    """An evaluation in half precision and with shorter texts."""
    identity = identity_of(directory, dtype=torch.bfloat16, max_length=8)
    assert identity["dtype"] == "bfloat16"
    return evaluation(directory, identity=identity)


def test_a_model_may_be_measured_in_half_precision_and_with_shorter_texts(directory, in_half_precision):
    written(directory / "evaluation.json", in_half_precision)
    assert "50.12" in write_card(directory).read_text()


def test_a_result_of_other_weights_in_half_precision_is_not_shown(directory, in_half_precision):
    in_half_precision["identity"]["weights"] = "0" * 32
    written(directory / "evaluation.json", in_half_precision)
    assert "50.12" not in write_card(directory).read_text()


# --- the run of a model ---


def train(folder, tokenizer, **options):
    """The folder of a model that was trained there for two steps, with the record of the run."""
    start = folder / "start"
    AutoModelForCL.from_config(tiny_config(), pooler_type="avg").save_pretrained(start)
    tokenizer.save_pretrained(start)
    args = SimCSETrainingArguments(
        output_dir=str(folder / "run"),
        use_cpu=True,
        disable_tqdm=True,
        max_steps=2,
        save_strategy="no",
        per_device_train_batch_size=4,
        report_to="none",
        **options,
    )
    model = AutoModelForCL.from_pretrained(start)
    rows = Dataset.from_dict({"sent0": random_texts(12)})
    trainer = SimCSETrainer(model, args, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    return train(tmp_path_factory.mktemp("trained"), tokenizer)


def test_the_run_of_the_weights_is_shown_without_a_warning(trained):
    card = card_and_log(trained)
    assert "Training took 2 steps" in card.text
    assert not card.log


def test_the_run_of_the_weights_before_is_not_that_of_the_weights_now(trained, other_weights, tmp_path):
    directory = shutil.copytree(trained, tmp_path / "run")
    SimCSE(other_weights, device="cpu").save_pretrained(directory)
    card = card_and_log(directory)
    assert "Training took" not in card.text
    words = "results.json is about the training of other weights than those in"
    assert words in card.log


@NEEDS_PEFT
def test_the_run_of_an_adapter_is_that_of_the_merged_model(tmp_path, tokenizer, caplog):
    folder = train(tmp_path, tokenizer, lora_r=2)
    assert "Training took 2 steps" in write_card(folder).read_text()
    assert not caplog.text


# --- a baseline that has changed ---


@pytest.fixture
def baseline(kind, new_directory, tmp_path):
    """The folder and the name of a model to compare with: the folder itself, or a file of results."""
    folder = new_directory()
    save_other_weights(folder)
    name = folder
    if kind == "a result file":
        name = written(tmp_path / "base.json", evaluation(folder))
    return SimpleNamespace(folder=folder, name=name)


@pytest.fixture
def comparison(directory, baseline):
    """The file of a comparison with the baseline."""
    document = compared(directory)
    document["identities"] = {
        "before": identity_of(baseline.folder),
        "after": identity_of(directory),
    }
    named = json.dumps(document).replace('"before"', json.dumps(str(baseline.name)))
    path = directory / "comparison.json"
    path.write_text(named)
    return path


@pytest.fixture
def changed_baseline(baseline, comparison, kind):
    """The baseline, whose weights have changed since."""
    save_other_weights(baseline.folder)
    if kind == "a result file":
        written(baseline.name, evaluation(baseline.folder))
    return baseline


EVERY_KIND_OF_BASELINE = pytest.mark.parametrize("kind", ["a result file", "a folder"])


@EVERY_KIND_OF_BASELINE
def test_a_comparison_with_a_baseline_is_shown_without_a_warning(directory, comparison, caplog):
    assert "### Comparison with other models" in write_card(directory).read_text()
    assert not caplog.text


@EVERY_KIND_OF_BASELINE
def test_a_comparison_with_a_baseline_that_has_changed_is_not_shown(directory, changed_baseline, caplog):
    assert "### Comparison" not in write_card(directory).read_text()
    there = f"other weights than those of {changed_baseline.name} now: compare again"
    assert f"comparison.json compares with {there}" in caplog.text


@EVERY_KIND_OF_BASELINE
def test_a_named_comparison_with_a_baseline_that_has_changed_is_refused(directory, changed_baseline, comparison):
    with pytest.raises(ValueError, match="compares with other weights"):
        write_card(directory, comparisons=[comparison])


# --- loads of weights ---


@pytest.fixture
def loads(monkeypatch):
    """Counts how often weights are loaded."""
    loaded = []
    load = PreTrainedModel.from_pretrained.__func__

    def counted(cls, *args, **options):
        loaded.append(args)
        return load(cls, *args, **options)

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(counted))
    return loaded


@pytest.fixture
def with_everything(trained, tmp_path):
    """The folder of a trained model with results of every kind and a threshold."""
    directory = shutil.copytree(trained, tmp_path / "run")
    save_threshold(SimCSE(directory, device="cpu"), THRESHOLD)
    for name, (make, _) in FILES.items():
        written(directory / name, make(directory))
    return directory


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_card_loads_no_weights_but_those_without_digests(is_missing, with_everything, loads, caplog):
    if is_missing:  # as in a folder of version 0.9
        (with_everything / RECORD).unlink()
    text = write_card(with_everything).read_text()
    for words in ("a cosine of at least 0.5000", "Adaptation", "### Comparison", "50.12"):
        assert words in text
    assert len(loads) == is_missing
    assert ("the weights are loaded to compare them" in caplog.text) == is_missing


# --- a threshold ---

THRESHOLD = {
    "cosine": 0.5,
    "goal": "f1",
    "source": "pairs.csv",
    "chosen_on": 80,
    "measured_on": 80,
    "confidence": 0.95,
    "precision": [90.0, 80.0, 95.0],
    "recall": [90.0, 80.0, 95.0],
}


@pytest.fixture
def with_threshold(directory):
    """The folder of a model with a threshold."""
    save_threshold(SimCSE(directory, device="cpu"), THRESHOLD)
    return directory


def test_a_threshold_of_the_model_is_shown_without_a_warning(with_threshold, caplog):
    assert "a cosine of at least 0.5000" in write_card(with_threshold).read_text()
    assert not caplog.text


def test_a_threshold_of_other_weights_is_not_shown(with_threshold, caplog):
    config = (with_threshold / "config.json").read_text()
    save_other_weights(with_threshold)
    (with_threshold / "config.json").write_text(config)
    assert "a cosine of at least" not in write_card(with_threshold).read_text()
    assert "The card does not show a threshold" in caplog.text
