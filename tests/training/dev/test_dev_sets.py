"""Dev sets of training: scored pairs and tasks from users' files, and what they select."""

import logging
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
from card_helpers import log_of_package
from conftest import save_encoder
from datasets import Dataset
from evaluation_helpers import binary_pairs, write_rows
from scipy.stats import spearmanr
from trainer_helpers import EVALUATES, KEEPS_BEST, logged, model_of, pairs, refuses, sentences, texts

from simcse_hf import AutoModelForCL, SimCSE, SimilarityEvalCallback
from simcse_hf.evaluation.tasks import read_task
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.training.dev_sets import DevSetCallback, make_dev_sets, warn_of_overlap

#: Of the five pairs, the first three have scores above 4.
PAIRS = ScoredPairs(
    "stsb",
    ["the cat sat", "a dog ran in the big house", "the bird sang", "the cat sat", "a man slept on a mat"],
    ["a cat sat on the mat", "a dog ran", "the bird sang", "a woman ran", "the cat sat"],
    [4.5, 4.1, 5.0, 1.0, 0.5],
)
PROMPTS = {"anchor": "the old man : ", "positive": "the old man : "}


@pytest.fixture(scope="module")
def files(module_path):
    """The folder of a labelled file, another one, and a file of pairs."""
    texts = list(dict.fromkeys(sentences(70, words=5)))[:60]
    labels = [number % 2 for number in range(30)]
    write_rows(module_path / "dev.csv", ["text", "label"], zip(texts[:30], labels, strict=True))
    write_rows(module_path / "more.csv", ["text", "label"], zip(texts[30:], labels, strict=True))
    write_rows(module_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(20))
    return module_path


# --- scores ---


def test_the_metrics_of_dev_sets_are_those_of_inference(tokenizer, save_checkpoint, files):
    """The model is in training mode again afterwards."""
    model = model_of(max_length=8, prompts={"query": "the dog : "}, default_prompt_name="query").train()
    metrics = SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
    task = read_task("classification", files / "dev.csv")
    of_task = DevSetCallback({"classification": task}).evaluate(model, tokenizer)
    assert model.training
    encode = SimCSE(save_checkpoint(model)).encode
    first, second = encode(PAIRS.sentences1), encode(PAIRS.sentences2)
    correlation = spearmanr((first * second).sum(1), PAIRS.scores).statistic
    assert metrics["stsb_spearman"] == pytest.approx(100 * correlation, abs=1e-9)
    above_4 = (first - second)[:3].pow(2).sum(1).mean().item()
    assert metrics["stsb_alignment"] == pytest.approx(above_4, rel=1e-4)
    distances = torch.pdist(encode(list(dict.fromkeys(PAIRS.sentences1 + PAIRS.sentences2)))).pow(2)
    uniformity = distances.mul(-2).exp().mean().log().item()
    assert metrics["stsb_uniformity"] == pytest.approx(uniformity, rel=1e-4)
    expected = task.evaluate(encode).metrics
    assert of_task == {f"classification_{name}": pytest.approx(value) for name, value in expected.items()}


def test_a_dev_set_that_serves_a_second_run_is_tokenized_with_the_prompts_of_that_run(make):
    def uniformity(dev_set, **changes):
        trainer = make(callbacks=[dev_set], **changes)
        return trainer.evaluate()["eval_stsb_uniformity"]

    reused = SimilarityEvalCallback(pairs())
    plain = uniformity(reused)
    fresh = SimilarityEvalCallback(pairs())
    assert plain != uniformity(reused, prompts=PROMPTS) == uniformity(fresh, prompts=PROMPTS)


# --- tasks ---

METRIC = "eval_classification_more_knn_accuracy"


def test_a_metric_of_a_dev_task_selects_the_best_model(trained, files, capsys):
    """All metrics are logged at the start and with every checkpoint; the results name the metric and its file."""
    tasks = [
        f"classification={files / 'dev.csv'}",
        f"classification={files / 'more.csv'}",
        read_task("pairs", files / "pairs.csv"),
    ]
    options = KEEPS_BEST | {"learning_rate": 1e-2, "metric_for_best_model": METRIC}
    trainer = trained(dev_tasks=tasks, **options)
    evaluations = [entry for entry in trainer.state.log_history if METRIC in entry]
    assert [entry["step"] for entry in evaluations] == [0, 2, 4]
    assert {name for name in evaluations[0] if name.endswith(("accuracy", "precision"))} == {
        "eval_classification_accuracy",
        "eval_classification_knn_accuracy",
        "eval_classification_more_accuracy",
        "eval_classification_more_knn_accuracy",
        "eval_pairs_average_precision",
    }
    best = max(evaluations[1:], key=lambda entry: entry[METRIC])  # the start is no checkpoint
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (best[METRIC], best["step"])
    results = trainer.results
    assert results.dev_metric == METRIC.removeprefix("eval_")
    assert results.dev_set.endswith("more.csv")
    assert results.score("saved") == best[METRIC]
    assert f"{results.dev_metric} x 100" in capsys.readouterr().out


def test_scored_pairs_select_the_best_model_before_tasks_and_the_first_task_without_them(make, files):
    tasks = [f"clustering={files / 'dev.csv'}", f"pairs={files / 'pairs.csv'}"]
    assert make_dev_sets(PAIRS, tasks)[0].headline == "stsb_spearman"
    args = make(dev_tasks=tasks, **KEEPS_BEST).args
    assert (args.metric_for_best_model, args.greater_is_better) == ("clustering_v_measure", True)


def test_one_dev_task_stands_for_a_list_of_it(files):
    word = f"pairs={files / 'pairs.csv'}"
    for one in (word, read_task("pairs", files / "pairs.csv")):
        [dev_set, of_general] = make_dev_sets(None, one, one)
        assert list(dev_set.tasks) == ["pairs"] and list(of_general.tasks) == ["general_pairs"]


# --- what is refused and reported ---


def test_a_dev_task_that_is_given_three_times_is_refused(files):
    with refuses("pairs"):
        make_dev_sets(None, 3 * [f"pairs={files / 'pairs.csv'}"])


def test_dev_texts_among_the_training_texts_are_counted_and_one_is_named(files, caplog):
    dev_sets = make_dev_sets(None, [f"clustering={files / 'dev.csv'}"])
    for rows in ({"sent0": ["a new text"]}, {"input_ids": [[[1, 2]]]}):
        warn_of_overlap(Dataset.from_dict(rows), dev_sets)
    assert not caplog.text
    first, second, third = dev_sets[0].texts[:3]
    rows = {"sent0": ["a new text", first, second], "sent1": [third, "another", "a third"]}
    warn_of_overlap(Dataset.from_dict(rows), dev_sets)
    assert "3 of 30 dev texts" in caplog.text
    assert repr(min(first, second, third)) in caplog.text


# --- what a run does with them ---


def test_the_start_and_the_last_step_are_evaluated_with_the_loss_of_the_evaluation_set(trained):
    options = EVALUATES | {"max_steps": 5, "eval_steps": 4, "per_device_eval_batch_size": 4}
    trainer = trained(dev_set=pairs(), eval_dataset=texts(8, 2), **options)
    log = trainer.state.log_history
    found = [entry["step"] for entry in log if {"eval_stsb_spearman", "eval_loss"} <= entry.keys()]
    assert found == [0, 4, 5]


def test_a_dev_set_that_is_added_later_is_evaluated_and_each_needs_a_name_of_its_own(make):
    trainer = make()
    trainer.add_callback(SimilarityEvalCallback(pairs(), name="later"))
    assert "eval_later_spearman" in trainer.evaluate()
    with refuses("later"):
        trainer.add_callback(SimilarityEvalCallback(pairs(), name="later"))
    with refuses("stsb"):
        make(callbacks=[SimilarityEvalCallback(pairs()), SimilarityEvalCallback(pairs())])


def test_a_dev_set_that_is_never_evaluated_is_reported(make, caplog):
    words = "nothing is evaluated during training"
    make(dev_set=pairs(), max_steps=2, **EVALUATES).train()
    assert words not in caplog.text
    make(dev_set=pairs(), max_steps=2).train()
    assert words in caplog.text


def test_a_full_disk_under_the_scores_of_a_dev_set_is_a_warning_and_training_goes_on(make, caplog, monkeypatch):
    def full(*arrays, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    trainer = make(dev_set=pairs(), max_steps=2, **EVALUATES)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "step-0.npz: the dev scores of this step were not written: No space left" in caplog.text


# --- before and after ---


def scored_by_the_mean(model, tokenizer):
    """A dev set on which the model is perfect with the pooler avg, and with no other one."""
    settings = model.settings
    model.settings = replace(settings, pooler_type="avg", mlp_only_train=False)
    dev_set = SimilarityEvalCallback(pairs(40))
    dev_set.evaluate(model, tokenizer)
    model.settings = settings
    gold = dev_set.scores["stsb_spearman"]["pairs"]["predicted"].tolist()
    return replace(dev_set.pairs, scores=gold)


def test_an_encoder_that_names_no_pooler_is_compared_with_the_better_of_mean_and_cls(make, tokenizer, tmp_path, files):
    """The start scores best with the pooler avg, with which general tasks, verdict and warning compare the run."""
    save_encoder(tmp_path / "start")
    model = AutoModelForCL.from_pretrained(tmp_path / "start", pooler_type="cls")
    dev_set = scored_by_the_mean(model, tokenizer)
    general = [f"pairs={files / 'pairs.csv'}"]
    trainer = make(model=model, dev_set=dev_set, general=general, **KEEPS_BEST)
    with log_of_package(logging.INFO) as log, redirect_stdout(StringIO()) as printed:
        trainer.train()
    results = trainer.results
    assert results.start["pooler"] == "avg"
    assert results.score("start") == pytest.approx(100)
    own = results.score("initial")
    assert own == logged(trainer, "eval_stsb_spearman")[0] < 100
    assert results.change.difference == pytest.approx(results.score("saved") - 100)
    assert results.change.high < 0
    before = results.initial["start_avg_general_pairs_average_precision"]
    assert results.general[0].difference == results.saved["general_pairs_average_precision"] - before
    for words in ("--pooler_type avg", "model worse: stsb_spearman was 100.00 at step 0 with the pooler avg"):
        assert words in log.getvalue()
    assert f"100.00   (pooler avg; {own:.2f} with the pooler of this run)" in printed.getvalue()
    assert "which is worse than the start, is saved" in results.where()
    trainer.save_model()
    trainer.create_model_card()
    assert "before training, pooler `avg`" in (tmp_path / "run" / "README.md").read_text()


def test_a_start_that_names_its_pooler_is_used_with_it(trained, tokenizer, save_checkpoint):
    model = AutoModelForCL.from_pretrained(save_checkpoint(model_of(pooler_type="cls"), "start"))
    dev_set = scored_by_the_mean(model, tokenizer)
    trainer = trained(model=model, dev_set=dev_set, **EVALUATES)
    assert trainer.results.start["pooler"] is None
    assert trainer.results.score("start") == trainer.results.score("initial")
