"""Tasks from users' files as dev sets of training."""

import json

import pytest
import torch
from conftest import WORDS, tiny_config
from datasets import Dataset

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.evaluation.user_tasks import read_task
from simcse_hf.training.dev_sets import TasksEvalCallback, make_dev_sets, warn_of_overlap
from simcse_hf.training.run_record import write_results

VOCABULARY = [word for word in WORDS.split() if word.isalpha()]


def random_texts(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(VOCABULARY), (3 * n, 5), generator=generator).tolist()
    return list(dict.fromkeys(" ".join(VOCABULARY[i] for i in row) for row in rows))[:n]


@pytest.fixture
def files(tmp_path):
    """A labelled file, another one, and a file of pairs."""
    texts = random_texts(60)
    for name, some in (("dev", texts[:30]), ("more", texts[30:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *(f"{t},{i % 2}" for i, t in enumerate(some))]))
    pairs = [f"{a},{b},{i % 2}" for i, (a, b) in enumerate(zip(texts[:20], texts[20:40], strict=True))]
    (tmp_path / "pairs.csv").write_text("\n".join(["sentence1,sentence2,label", *pairs]))
    return tmp_path


@pytest.fixture
def model():
    return AutoModelForCL.from_config(tiny_config(initializer_range=0.2))


def make(model, tokenizer, tmp_path, dev_tasks, **changes):
    arguments = {
        "output_dir": str(tmp_path / "run"), "max_steps": 4, "per_device_train_batch_size": 8, "use_cpu": True,
        "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "report_to": "none", "learning_rate": 1e-2,
    } | changes  # fmt: skip
    return SimCSETrainer(
        model,
        SimCSETrainingArguments(**arguments),
        train_dataset=[{"text": text} for text in random_texts(32, seed=5)],
        processing_class=tokenizer,
        dev_tasks=dev_tasks,
    )


def test_a_dev_task_has_the_scores_of_evaluate(files, model, tokenizer, save_checkpoint):
    task = read_task("classification", files / "dev.csv")
    metrics = TasksEvalCallback({"classification": task}).evaluate(model, tokenizer)
    encoder = SimCSE(save_checkpoint(model))
    expected = task.evaluate(encoder.encode).metrics
    assert metrics == {f"classification_{name}": pytest.approx(value) for name, value in expected.items()}


def test_dev_tasks_are_logged_and_select_the_best_model(files, model, tokenizer, tmp_path, capsys):
    tasks = [f"classification={files / 'dev.csv'}", f"classification={files / 'more.csv'}"]
    tasks.append(read_task("pairs", files / "pairs.csv"))
    metric = "eval_classification_more_knn_accuracy"
    trainer = make(model, tokenizer, tmp_path, tasks, load_best_model_at_end=True, metric_for_best_model=metric)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if metric in entry]
    assert [entry["step"] for entry in logged] == [2, 4]
    names = {name for name in logged[0] if name.endswith(("accuracy", "precision"))}
    assert names == {
        *(f"eval_classification{more}_{knn}accuracy" for more in ("", "_more") for knn in ("", "knn_")),
        "eval_pairs_average_precision",
    }
    best = max(logged, key=lambda entry: entry[metric])
    assert trainer.state.best_metric == best[metric] and trainer.state.best_global_step == best["step"]
    results = write_results(trainer)
    assert results["dev_metric"] == metric.removeprefix("eval_") and results["dev_set"].endswith("more.csv")
    assert results[results["dev_metric"]]["best"] == best[metric]
    assert f"{results['dev_metric']} x 100" in capsys.readouterr().out
    assert json.loads((tmp_path / "run/results.json").read_text())["dev_metric"] == results["dev_metric"]
    card = tmp_path / "run" / "README.md"
    trainer.save_model()
    trainer.create_model_card()
    assert "classification_more_knn_accuracy" in card.read_text()


def test_the_first_task_selects_the_best_model_if_there_are_no_scored_pairs(files, model, tokenizer, tmp_path):
    words = [f"clustering={files / 'dev.csv'}", f"pairs={files / 'pairs.csv'}"]
    trainer = make(model, tokenizer, tmp_path, words, load_best_model_at_end=True)
    assert trainer.args.metric_for_best_model == "clustering_v_measure" and trainer.args.greater_is_better
    scored = ScoredPairs("stsb", ["a cat", "the dog"], ["the cat", "a dog"], [1.0, 2.0])
    first = make_dev_sets(scored, words)[0]
    assert first.headline == "stsb_spearman"


def test_broken_embeddings_and_wrong_words_are_refused(files, model, tokenizer):
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN|not finite"):
        TasksEvalCallback({"x": read_task("clustering", files / "dev.csv")}).evaluate(model, tokenizer)
    with pytest.raises(ValueError, match="a dev task must be KIND=FILE.*got 'dev.csv'"):
        make_dev_sets(None, ["dev.csv"])
    with pytest.raises(ValueError, match="'ranking' is no kind of task"):
        make_dev_sets(None, [f"ranking={files / 'dev.csv'}"])
    with pytest.raises(ValueError, match="must be a list of tasks"):
        make_dev_sets(None, "pairs=dev.csv")
    with pytest.raises(ValueError, match="another pairs task is named pairs"):
        make_dev_sets(None, 3 * [f"pairs={files / 'pairs.csv'}"])


def test_dev_texts_among_the_training_texts_are_reported(files, caplog):
    dev_sets = make_dev_sets(None, [f"clustering={files / 'dev.csv'}"])
    shared = dev_sets[0].texts[:3]
    rows = Dataset.from_dict({"sent0": ["a new text", *shared[:2]], "sent1": [shared[2], "another", "a third"]})
    warn_of_overlap(rows, dev_sets)
    assert "3 of 30 dev texts" in caplog.text and repr(min(shared)) in caplog.text
    caplog.clear()
    warn_of_overlap(Dataset.from_dict({"sent0": ["a new text"]}), dev_sets)
    warn_of_overlap(Dataset.from_dict({"input_ids": [[[1, 2]]]}), dev_sets)
    assert not caplog.text
