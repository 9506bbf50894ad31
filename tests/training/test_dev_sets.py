"""Dev sets of training: scored pairs and tasks from users' files, and what they select."""

import logging

import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from evaluation_helpers import write_rows
from scipy.stats import spearmanr
from trainer_helpers import (
    EVALUATES,
    KEEPS_BEST,
    logged,
    make,
    model_of,
    pairs,
    scored_by,
    sentences,
)
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE, SimilarityEvalCallback
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.evaluation.user_tasks import read_task
from simcse_hf.training.dev_sets import (
    TasksEvalCallback,
    make_dev_sets,
    warn_of_overlap,
)

PAIRS = ScoredPairs(
    "stsb",
    [
        "the cat sat",
        "a dog ran in the big house",
        "the bird sang",
        "the cat sat",
        "a man slept on a mat",
    ],
    [
        "a cat sat on the mat",
        "a dog ran",
        "the bird sang",
        "a woman ran",
        "the cat sat",
    ],
    [4.5, 4.1, 5.0, 1.0, 0.5],
)


@pytest.fixture
def model():
    return AutoModelForCL.from_config(tiny_config(initializer_range=0.2)).train()


@pytest.fixture
def broken(model):
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    return model


@pytest.fixture
def files(tmp_path):
    """A labelled file, another one, and a file of pairs."""
    texts = list(dict.fromkeys(sentences(70, words=5)))[:60]
    labels = [i % 2 for i in range(30)]
    write_rows(
        tmp_path / "dev.csv", ["text", "label"], zip(texts[:30], labels, strict=True)
    )
    write_rows(
        tmp_path / "more.csv", ["text", "label"], zip(texts[30:], labels, strict=True)
    )
    pairs = zip(texts[:20], texts[20:40], labels[:20], strict=True)
    write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], pairs)
    return tmp_path


# --- scored pairs ---


def test_spearman_alignment_and_uniformity_are_those_of_inference(
    model, tokenizer, save_checkpoint
):
    metrics = SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
    assert model.training
    encode = SimCSE(save_checkpoint(model)).encode
    first, second = encode(PAIRS.sentences1), encode(PAIRS.sentences2)
    score = 100 * spearmanr((first * second).sum(1), PAIRS.scores).statistic
    assert metrics["stsb_spearman"] == pytest.approx(score, abs=1e-9)
    # The first three pairs have scores above 4.
    assert metrics["stsb_alignment"] == pytest.approx(
        (first - second)[:3].pow(2).sum(1).mean().item(), rel=1e-4
    )
    distinct = encode(list(dict.fromkeys(PAIRS.sentences1 + PAIRS.sentences2)))
    uniformity = torch.pdist(distinct).pow(2).mul(-2).exp().mean().log()
    assert metrics["stsb_uniformity"] == pytest.approx(uniformity.item(), rel=1e-4)


def test_a_dev_set_that_serves_a_second_run_is_tokenized_as_that_run_does(
    tmp_path, tokenizer, model
):
    prompts = {"anchor": "the old man : ", "positive": "the old man : "}
    reused, fresh = SimilarityEvalCallback(pairs()), SimilarityEvalCallback(pairs())

    def score(dev_set, **changes):
        return make(
            tmp_path, tokenizer, model=model, callbacks=[dev_set], **changes
        ).evaluate()["eval_stsb_uniformity"]

    without = score(reused)
    assert score(reused, prompts=prompts) == score(fresh, prompts=prompts) != without


# --- tasks ---


def test_a_dev_task_has_the_scores_of_evaluate(
    files, model, tokenizer, save_checkpoint
):
    task = read_task("classification", files / "dev.csv")
    metrics = TasksEvalCallback({"classification": task}).evaluate(model, tokenizer)
    expected = task.evaluate(SimCSE(save_checkpoint(model)).encode).metrics
    assert metrics == {
        f"classification_{name}": pytest.approx(value)
        for name, value in expected.items()
    }


def test_dev_tasks_are_logged_and_select_the_best_model(
    files, model, tokenizer, tmp_path, capsys
):
    tasks = [
        f"classification={files / 'dev.csv'}",
        f"classification={files / 'more.csv'}",
    ]
    tasks.append(read_task("pairs", files / "pairs.csv"))
    metric = "eval_classification_more_knn_accuracy"
    options = KEEPS_BEST | {"learning_rate": 1e-2, "metric_for_best_model": metric}
    trainer = make(tmp_path, tokenizer, model=model, dev_tasks=tasks, **options)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if metric in entry]
    assert [entry["step"] for entry in entries] == [0, 2, 4]
    names = {name for name in entries[0] if name.endswith(("accuracy", "precision"))}
    assert names == {
        *(
            f"eval_classification{more}_{knn}accuracy"
            for more in ("", "_more")
            for knn in ("", "knn_")
        ),
        "eval_pairs_average_precision",
    }
    best = max(
        entries[1:], key=lambda entry: entry[metric]
    )  # the start is no checkpoint
    assert (
        trainer.state.best_metric == best[metric]
        and trainer.state.best_global_step == best["step"]
    )
    dev = trainer.results.dev
    assert dev.metric == metric.removeprefix("eval_") and dev.dev_set.endswith(
        "more.csv"
    )
    assert dev.value(dev.saved) == best[metric]
    assert f"{dev.metric} x 100" in capsys.readouterr().out


def test_the_first_task_selects_the_best_model_if_there_are_no_scored_pairs(
    files, model, tokenizer, tmp_path
):
    words = [f"clustering={files / 'dev.csv'}", f"pairs={files / 'pairs.csv'}"]
    trainer = make(tmp_path, tokenizer, model=model, dev_tasks=words, **KEEPS_BEST)
    assert (
        trainer.args.metric_for_best_model == "clustering_v_measure"
        and trainer.args.greater_is_better
    )
    assert make_dev_sets(PAIRS, words)[0].headline == "stsb_spearman"


def test_embeddings_that_are_not_finite_are_refused(files, broken, tokenizer):
    for dev_set in [
        SimilarityEvalCallback(PAIRS),
        *make_dev_sets(None, [f"clustering={files / 'dev.csv'}"]),
    ]:
        with pytest.raises(ValueError, match="NaN|not finite"):
            dev_set.evaluate(broken, tokenizer)


@pytest.mark.parametrize(
    "tasks, named",
    [
        (["dev.csv"], "dev.csv"),
        (["ranking=dev.csv"], "ranking"),
        ("pairs=dev.csv", "list"),
        (3 * ["pairs=pairs.csv"], "pairs"),
    ],
)
def test_dev_tasks_that_are_none_are_refused(files, monkeypatch, tasks, named):
    monkeypatch.chdir(files)
    with pytest.raises(ValueError, match=named):
        make_dev_sets(None, tasks)


def test_dev_texts_among_the_training_texts_are_reported(files, caplog):
    dev_sets = make_dev_sets(None, [f"clustering={files / 'dev.csv'}"])
    shared = dev_sets[0].texts[:3]
    rows = Dataset.from_dict(
        {
            "sent0": ["a new text", *shared[:2]],
            "sent1": [shared[2], "another", "a third"],
        }
    )
    warn_of_overlap(rows, dev_sets)
    assert "3 of 30 dev texts" in caplog.text and repr(min(shared)) in caplog.text
    caplog.clear()
    warn_of_overlap(Dataset.from_dict({"sent0": ["a new text"]}), dev_sets)
    warn_of_overlap(Dataset.from_dict({"input_ids": [[[1, 2]]]}), dev_sets)
    assert not caplog.text


# --- what a run does with them ---


@pytest.mark.parametrize(
    "changes, best",
    [
        ({"metric_for_best_model": "stsb_spearman"}, max),
        ({"metric_for_best_model": "stsb_alignment"}, min),
        ({"metric_for_best_model": "eval_stsb_uniformity"}, min),
        ({"metric_for_best_model": "stsb_spearman", "greater_is_better": False}, min),
        ({"greater_is_better": False}, min),
    ],
)
def test_the_best_model_is_the_best_in_the_direction_of_its_metric(
    tmp_path, tokenizer, changes, best
):
    options = KEEPS_BEST | {"max_steps": 6, "learning_rate": 1e-2} | changes
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), **options)
    trainer.train()
    values = logged(
        trainer,
        "eval_"
        + changes.get("metric_for_best_model", "stsb_spearman").removeprefix("eval_"),
    )
    _, *values = values  # the start is no checkpoint
    assert len(set(values)) > 1 and trainer.state.best_metric == best(values)


def test_the_last_step_is_evaluated_and_logs_eval_loss_and_dev_spearman(
    tmp_path, tokenizer
):
    options = {
        "max_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "per_device_eval_batch_size": 4,
    }
    rows = Dataset.from_dict({"sent0": sentences(8), "sent1": sentences(8, 1)})
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), eval_dataset=rows, **options)
    trainer.train()
    entries = [
        entry for entry in trainer.state.log_history if "eval_stsb_spearman" in entry
    ]
    assert [entry["step"] for entry in entries] == [0, 4, 5]
    assert all("eval_loss" in entry for entry in entries)


def test_a_dev_set_added_later_is_evaluated_and_two_need_different_names(
    tmp_path, tokenizer
):
    trainer = make(tmp_path, tokenizer)
    trainer.add_callback(SimilarityEvalCallback(pairs(), name="later"))
    assert "eval_later_spearman" in trainer.evaluate()
    with pytest.raises(ValueError, match="later"):
        trainer.add_callback(SimilarityEvalCallback(pairs(), name="later"))
    with pytest.raises(ValueError, match="stsb"):
        make(
            tmp_path,
            tokenizer,
            callbacks=[
                SimilarityEvalCallback(pairs()),
                SimilarityEvalCallback(pairs()),
            ],
        )


def test_a_dev_set_that_is_never_evaluated_is_reported(tmp_path, tokenizer, caplog):
    for changes in ({}, EVALUATES):
        caplog.clear()
        make(tmp_path, tokenizer, dev_set=pairs(), max_steps=2, **changes).train()
        assert ("nothing is evaluated during training" in caplog.text) == (not changes)


# --- before and after ---


def test_a_run_is_compared_with_its_start_as_one_would_use_it(
    tmp_path, tokenizer, save_checkpoint, caplog, capsys
):
    """An encoder that names no pooler has the better of mean and [CLS], and not a head that was drawn for the run."""
    start = save_checkpoint(
        BertForMaskedLM(tiny_config(initializer_range=0.2)), "start"
    )
    model = AutoModelForCL.from_pretrained(start, pooler_type="cls")
    with model.pooled_by("avg"):
        dev_set = scored_by(model, tokenizer)
    trainer = make(tmp_path, tokenizer, model=model, dev_set=dev_set, **KEEPS_BEST)
    with caplog.at_level(logging.INFO, "simcse_hf"):
        trainer.train()
    trainer.save_model()
    results = trainer.results.to_dict()
    assert results["start"]["pooler"] == "avg" and results["start"][
        "stsb_spearman"
    ] == pytest.approx(100)
    own = results["initial"]["stsb_spearman"]
    assert own == logged(trainer, "eval_stsb_spearman")[0] < 100
    change = results["change"]
    assert (
        change["difference"] == pytest.approx(results["saved"]["stsb_spearman"] - 100)
        and change["high"] < 0
    )
    assert "the pooler avg" in caplog.text and "--pooler_type avg" in caplog.text
    assert (
        "made the model worse: stsb_spearman was 100.00 at step 0 with the pooler avg"
        in caplog.text
    )
    printed = capsys.readouterr().out
    assert f"100.00   (pooler avg; {own:.2f} with the pooler of this run)" in printed
    assert "which is worse than the start, is saved" in trainer.results.where()
    trainer.create_model_card()
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        "before training, pooler `avg`" in card
        and "before training with the pooler `avg`" in card
    )


def test_a_start_that_names_its_pooler_is_used_with_it(
    tmp_path, tokenizer, save_checkpoint
):
    model = AutoModelForCL.from_pretrained(
        save_checkpoint(model_of(pooler_type="cls"), "start")
    )
    with model.pooled_by("avg"):
        dev_set = scored_by(model, tokenizer)
    trainer = make(tmp_path, tokenizer, model=model, dev_set=dev_set, **EVALUATES)
    trainer.train()
    results = trainer.results.to_dict()
    assert results["start"] == {
        "step": 0,
        "pooler": None,
        "metric": "stsb_spearman",
    } | {"stsb_spearman": results["initial"]["stsb_spearman"]}
