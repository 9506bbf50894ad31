"""Dev sets of training: scored pairs and tasks from users' files, and what they select."""

import logging
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from card_helpers import log_of_package
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
from simcse_hf.evaluation.tasks import read_task
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.training.dev_sets import (
    DevSetCallback,
    make_dev_sets,
    warn_of_overlap,
)

#: Of the five pairs, the first three have scores above 4.
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


def new_model():
    torch.manual_seed(0)
    return AutoModelForCL.from_config(tiny_config(initializer_range=0.2)).train()


@pytest.fixture
def model():
    return new_model()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder of a labelled file, another one, and a file of pairs."""
    folder = tmp_path_factory.mktemp("files")
    texts = list(dict.fromkeys(sentences(70, words=5)))[:60]
    labels = [number % 2 for number in range(30)]
    columns = ["text", "label"]
    first = zip(texts[:30], labels, strict=True)
    second = zip(texts[30:], labels, strict=True)
    write_rows(folder / "dev.csv", columns, first)
    write_rows(folder / "more.csv", columns, second)
    columns = ["sentence1", "sentence2", "label"]
    pairs = zip(texts[:20], texts[20:40], labels[:20], strict=True)
    write_rows(folder / "pairs.csv", columns, pairs)
    return folder


# --- scored pairs ---


@pytest.fixture(scope="module")
def of_pairs(tokenizer, tmp_path_factory):
    """A model, the metrics of the scored pairs, and the model as it is loaded for inference."""
    model = new_model()
    metrics = SimilarityEvalCallback(PAIRS).evaluate(model, tokenizer)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SimpleNamespace(model=model, metrics=metrics, simcse=SimCSE(folder))


@pytest.fixture(scope="module")
def embeddings(of_pairs):
    """The embeddings of the first and of the second sentences."""
    encode = of_pairs.simcse.encode
    return encode(PAIRS.sentences1), encode(PAIRS.sentences2)


def test_spearman_is_that_of_inference(of_pairs, embeddings):
    first, second = embeddings
    correlation = spearmanr((first * second).sum(1), PAIRS.scores).statistic
    found = of_pairs.metrics["stsb_spearman"]
    assert found == pytest.approx(100 * correlation, abs=1e-9)


def test_alignment_is_that_of_inference_for_pairs_with_scores_above_4(of_pairs, embeddings):
    first, second = embeddings
    distances = (first - second)[:3].pow(2).sum(1)
    found = of_pairs.metrics["stsb_alignment"]
    assert found == pytest.approx(distances.mean().item(), rel=1e-4)


def test_uniformity_is_that_of_inference_for_distinct_texts(of_pairs):
    distinct = list(dict.fromkeys(PAIRS.sentences1 + PAIRS.sentences2))
    distances = torch.pdist(of_pairs.simcse.encode(distinct)).pow(2)
    expected = distances.mul(-2).exp().mean().log().item()
    assert of_pairs.metrics["stsb_uniformity"] == pytest.approx(expected, rel=1e-4)


def test_a_model_is_in_training_mode_again_after_an_evaluation(of_pairs):
    assert of_pairs.model.training


@pytest.fixture
def uniformity(tmp_path, tokenizer, model):
    """`uniformity(dev_set, **changes)` is that of the dev set in a run."""

    def evaluate(dev_set, **changes):
        trainer = make(tmp_path, tokenizer, model=model, callbacks=[dev_set], **changes)
        return trainer.evaluate()["eval_stsb_uniformity"]

    return evaluate


PROMPTS = {"anchor": "the old man : ", "positive": "the old man : "}


def test_prompts_change_the_scores_of_a_dev_set(uniformity):
    dev_set = SimilarityEvalCallback(pairs())
    assert uniformity(dev_set) != uniformity(dev_set, prompts=PROMPTS)


def test_a_dev_set_that_serves_a_second_run_is_tokenized_as_that_run_does(uniformity):
    reused = SimilarityEvalCallback(pairs())
    uniformity(reused)
    fresh = SimilarityEvalCallback(pairs())
    assert uniformity(reused, prompts=PROMPTS) == uniformity(fresh, prompts=PROMPTS)


# --- tasks ---


def test_a_dev_task_has_the_scores_of_evaluate(files, of_pairs, tokenizer):
    task = read_task("classification", files / "dev.csv")
    tasks = DevSetCallback({"classification": task})
    found = tasks.evaluate(of_pairs.model, tokenizer)
    expected = task.evaluate(of_pairs.simcse.encode).metrics
    assert found == {f"classification_{name}": pytest.approx(value) for name, value in expected.items()}


METRIC = "eval_classification_more_knn_accuracy"


@pytest.fixture(scope="module")
def of_tasks(files, tokenizer, tmp_path_factory):
    """A finished run with three dev tasks and a metric of the second one, and what it printed."""
    tasks = [
        f"classification={files / 'dev.csv'}",
        f"classification={files / 'more.csv'}",
        read_task("pairs", files / "pairs.csv"),
    ]
    options = KEEPS_BEST | {"learning_rate": 1e-2, "metric_for_best_model": METRIC}
    folder = tmp_path_factory.mktemp("tasks")
    trainer = make(folder, tokenizer, model=new_model(), dev_tasks=tasks, **options)
    with redirect_stdout(StringIO()) as printed:
        trainer.train()
    return SimpleNamespace(trainer=trainer, printed=printed.getvalue())


@pytest.fixture(scope="module")
def evaluations(of_tasks):
    """The logged evaluations."""
    return [entry for entry in of_tasks.trainer.state.log_history if METRIC in entry]


@pytest.fixture(scope="module")
def best(evaluations):
    """The best evaluation; the start is no checkpoint."""
    return max(evaluations[1:], key=lambda entry: entry[METRIC])


def test_dev_tasks_are_evaluated_at_the_start_and_with_every_checkpoint(evaluations):
    assert [entry["step"] for entry in evaluations] == [0, 2, 4]


def test_all_metrics_of_dev_tasks_are_logged(evaluations):
    found = {name for name in evaluations[0] if name.endswith(("accuracy", "precision"))}
    assert found == {
        "eval_classification_accuracy",
        "eval_classification_knn_accuracy",
        "eval_classification_more_accuracy",
        "eval_classification_more_knn_accuracy",
        "eval_pairs_average_precision",
    }


def test_a_metric_of_a_dev_task_selects_the_best_model(of_tasks, best):
    state = of_tasks.trainer.state
    assert state.best_metric == best[METRIC]
    assert state.best_global_step == best["step"]


def test_the_results_name_the_metric_that_selected_the_best_model(of_tasks):
    assert of_tasks.trainer.results.dev_metric == METRIC.removeprefix("eval_")


def test_the_results_name_the_file_of_the_metric(of_tasks):
    assert of_tasks.trainer.results.dev_set.endswith("more.csv")


def test_the_saved_score_is_that_of_the_best_model(of_tasks, best):
    assert of_tasks.trainer.results.score("saved") == best[METRIC]


def test_the_scores_of_a_dev_task_are_printed(of_tasks):
    assert f"{METRIC.removeprefix('eval_')} x 100" in of_tasks.printed


@pytest.fixture(scope="module")
def words_of_tasks(files):
    return [f"clustering={files / 'dev.csv'}", f"pairs={files / 'pairs.csv'}"]


@pytest.fixture
def without_pairs(words_of_tasks, model, tokenizer, tmp_path):
    """The arguments of a run with dev tasks alone."""
    options = {"model": model, "dev_tasks": words_of_tasks}
    return make(tmp_path, tokenizer, **options, **KEEPS_BEST).args


def test_the_first_task_selects_the_best_model_if_there_are_no_scored_pairs(
    without_pairs,
):
    assert without_pairs.metric_for_best_model == "clustering_v_measure"


def test_the_highest_score_of_a_task_is_the_best(without_pairs):
    assert without_pairs.greater_is_better


def test_scored_pairs_select_the_best_model_before_tasks(words_of_tasks):
    assert make_dev_sets(PAIRS, words_of_tasks)[0].headline == "stsb_spearman"


# --- what is refused and reported ---


@pytest.fixture
def broken(model):
    """A model whose embeddings are not numbers."""
    with torch.no_grad():
        model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    return model


@pytest.mark.parametrize("kind", ["scored pairs", "a task"])
def test_embeddings_that_are_not_finite_are_refused(kind, files, broken, tokenizer):
    dev_set = SimilarityEvalCallback(PAIRS)
    if kind == "a task":
        [dev_set] = make_dev_sets(None, [f"clustering={files / 'dev.csv'}"])
    with pytest.raises(ValueError, match="NaN|not finite"):
        dev_set.evaluate(broken, tokenizer)


@pytest.mark.parametrize(
    "tasks, named",
    [
        (["dev.csv"], "dev.csv"),
        (["ranking=dev.csv"], "ranking"),
        (3 * ["pairs=pairs.csv"], "pairs"),
    ],
)
def test_dev_tasks_that_are_none_are_refused(files, monkeypatch, tasks, named):
    monkeypatch.chdir(files)
    with pytest.raises(ValueError, match=named):
        make_dev_sets(None, tasks)


@pytest.fixture
def clustering(files):
    return make_dev_sets(None, [f"clustering={files / 'dev.csv'}"])


@pytest.fixture
def shared_texts(clustering):
    """Three dev texts."""
    return clustering[0].texts[:3]


def warning_of(rows, dev_sets, caplog):
    warn_of_overlap(Dataset.from_dict(rows), dev_sets)
    return caplog.text


def rows_with(texts):
    first, second, third = texts
    return {
        "sent0": ["a new text", first, second],
        "sent1": [third, "another", "a third"],
    }


def test_dev_texts_among_the_training_texts_are_counted(clustering, shared_texts, caplog):
    warning = warning_of(rows_with(shared_texts), clustering, caplog)
    assert "3 of 30 dev texts" in warning


def test_a_dev_text_among_the_training_texts_is_named(clustering, shared_texts, caplog):
    warning = warning_of(rows_with(shared_texts), clustering, caplog)
    assert repr(min(shared_texts)) in warning


@pytest.mark.parametrize(
    "rows",
    [{"sent0": ["a new text"]}, {"input_ids": [[[1, 2]]]}],
    ids=["other texts", "token ids"],
)
def test_nothing_is_reported_where_no_dev_text_is_known_to_be_trained_on(clustering, rows, caplog):
    assert not warning_of(rows, clustering, caplog)


# --- what a run does with them ---


@pytest.mark.parametrize(
    "metric, changes, best",
    [
        ("stsb_spearman", {"metric_for_best_model": "stsb_spearman"}, max),
        ("stsb_alignment", {"metric_for_best_model": "stsb_alignment"}, min),
        ("stsb_uniformity", {"metric_for_best_model": "eval_stsb_uniformity"}, min),
        (
            "stsb_spearman",
            {"metric_for_best_model": "stsb_spearman", "greater_is_better": False},
            min,
        ),
        ("stsb_spearman", {"greater_is_better": False}, min),
    ],
)
def test_the_best_model_is_the_best_in_the_direction_of_its_metric(tmp_path, tokenizer, metric, changes, best):
    options = KEEPS_BEST | {"learning_rate": 1e-2} | changes
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), **options)
    trainer.train()
    _, first, second = logged(trainer, f"eval_{metric}")  # the start is no checkpoint
    assert first != second
    assert trainer.state.best_metric == best(first, second)


@pytest.fixture(scope="module")
def evaluated_every_4_steps(tokenizer, tmp_path_factory):
    """The evaluations of a run of 5 steps with an evaluation set."""
    options = {
        "max_steps": 5,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "per_device_eval_batch_size": 4,
    }
    rows = Dataset.from_dict({"sent0": sentences(8), "sent1": sentences(8, 1)})
    folder = tmp_path_factory.mktemp("run")
    trainer = make(folder, tokenizer, dev_set=pairs(), eval_dataset=rows, **options)
    trainer.train()
    log = trainer.state.log_history
    return [entry for entry in log if "eval_stsb_spearman" in entry]


def test_the_start_and_the_last_step_are_evaluated(evaluated_every_4_steps):
    assert [entry["step"] for entry in evaluated_every_4_steps] == [0, 4, 5]


def test_each_evaluation_logs_the_loss_of_the_evaluation_set(evaluated_every_4_steps):
    for entry in evaluated_every_4_steps:
        assert "eval_loss" in entry


@pytest.fixture
def with_a_later_dev_set(tmp_path, tokenizer):
    """A trainer to which a dev set was added."""
    trainer = make(tmp_path, tokenizer)
    trainer.add_callback(SimilarityEvalCallback(pairs(), name="later"))
    return trainer


def test_a_dev_set_that_is_added_later_is_evaluated(with_a_later_dev_set):
    assert "eval_later_spearman" in with_a_later_dev_set.evaluate()


def test_a_dev_set_that_is_added_later_needs_a_name_of_its_own(with_a_later_dev_set):
    same_name = SimilarityEvalCallback(pairs(), name="later")
    with pytest.raises(ValueError, match="later"):
        with_a_later_dev_set.add_callback(same_name)


def test_two_dev_sets_need_different_names(tmp_path, tokenizer):
    callbacks = [SimilarityEvalCallback(pairs()), SimilarityEvalCallback(pairs())]
    with pytest.raises(ValueError, match="stsb"):
        make(tmp_path, tokenizer, callbacks=callbacks)


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [({}, True), (EVALUATES, False)],
    ids=["never evaluated", "evaluated"],
)
def test_a_dev_set_that_is_never_evaluated_is_reported(tmp_path, tokenizer, caplog, changes, is_reported):
    make(tmp_path, tokenizer, dev_set=pairs(), max_steps=2, **changes).train()
    assert ("nothing is evaluated during training" in caplog.text) is is_reported


# --- before and after ---


def scored_by_the_mean(model, tokenizer):
    settings = model.settings
    model.settings = replace(settings, pooler_type="avg", mlp_only_train=False)
    dev_set = scored_by(model, tokenizer)
    model.settings = settings
    return dev_set


class Compared:
    """A run from an encoder that names no pooler, on whose dev set the start with the pooler avg is perfect."""

    def __init__(self, folder, tokenizer):
        torch.manual_seed(0)
        start = folder / "start"
        encoder = BertForMaskedLM(tiny_config(initializer_range=0.2))
        encoder.save_pretrained(start)
        tokenizer.save_pretrained(start)
        model = AutoModelForCL.from_pretrained(start, pooler_type="cls")
        dev_set = scored_by_the_mean(model, tokenizer)
        self.trainer = make(folder, tokenizer, model=model, dev_set=dev_set, **KEEPS_BEST)
        with (
            log_of_package(logging.INFO) as log,
            redirect_stdout(StringIO()) as printed,
        ):
            self.trainer.train()
        self.log = log.getvalue()
        self.printed = printed.getvalue()
        self.trainer.save_model()
        self.results = self.trainer.results.to_dict()
        self.trainer.create_model_card()
        self.card = (folder / "run" / "README.md").read_text()


@pytest.fixture(scope="module")
def compared(tokenizer, tmp_path_factory):
    return Compared(tmp_path_factory.mktemp("compared"), tokenizer)


@pytest.fixture(scope="module")
def own_score(compared):
    """The dev score of the start as the run pools it, with a head that was drawn for the run."""
    return compared.results["initial"]["stsb_spearman"]


def test_an_encoder_that_names_no_pooler_starts_with_the_better_of_mean_and_cls(
    compared,
):
    assert compared.results["start"]["pooler"] == "avg"


def test_a_run_is_compared_with_its_start_as_one_would_use_it(compared):
    assert compared.results["start"]["stsb_spearman"] == pytest.approx(100)


def test_the_start_as_the_run_pools_it_is_evaluated_as_well(compared, own_score):
    assert own_score == logged(compared.trainer, "eval_stsb_spearman")[0] < 100


def test_the_change_is_that_from_the_start_as_one_would_use_it(compared):
    expected = compared.results["saved"]["stsb_spearman"] - 100
    assert compared.results["change"]["difference"] == pytest.approx(expected)


def test_a_run_that_made_the_model_worse_has_an_interval_below_0(compared):
    assert compared.results["change"]["high"] < 0


@pytest.mark.parametrize(
    "words",
    [
        "the pooler avg",
        "--pooler_type avg",
        "made the model worse: stsb_spearman was 100.00 at step 0 with the pooler avg",
    ],
)
def test_the_log_says_how_the_start_is_better_used(compared, words):
    assert words in compared.log


def test_the_printed_results_have_both_scores_of_the_start(compared, own_score):
    words = f"100.00   (pooler avg; {own_score:.2f} with the pooler of this run)"
    assert words in compared.printed


def test_the_results_say_that_a_worse_model_is_saved(compared):
    where = compared.trainer.results.where()
    assert "which is worse than the start, is saved" in where


@pytest.mark.parametrize(
    "words",
    ["before training, pooler `avg`", "before training with the pooler `avg`"],
)
def test_the_card_names_the_pooler_of_the_start(compared, words):
    assert words in compared.card


def test_a_start_that_names_its_pooler_is_used_with_it(tmp_path, tokenizer, save_checkpoint):
    start = save_checkpoint(model_of(pooler_type="cls"), "start")
    model = AutoModelForCL.from_pretrained(start)
    dev_set = scored_by_the_mean(model, tokenizer)
    trainer = make(tmp_path, tokenizer, model=model, dev_set=dev_set, **EVALUATES)
    trainer.train()
    results = trainer.results.to_dict()
    assert results["start"] == {
        "step": 0,
        "pooler": None,
        "metric": "stsb_spearman",
        "stsb_spearman": results["initial"]["stsb_spearman"],
    }
