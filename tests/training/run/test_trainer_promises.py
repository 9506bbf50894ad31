"""What users of transformers expect of a Trainer: its options work with a dev set, or are refused with a sentence."""

import math
from dataclasses import asdict

import pytest
from trainer_helpers import EVALUATES, make, model_of, pairs, texts
from transformers.integrations import neftune
from transformers.trainer_utils import BestRun, HPSearchBackend

from simcse_hf.training.recipe import Recipe

# --- options of transformers ---

BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
ON_PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau"}
SAVES_BEST = {"save_strategy": "best"}


@pytest.mark.parametrize("changes", [BY_LENGTH, ON_PLATEAU, SAVES_BEST], ids=str)
def test_an_option_of_transformers_works_with_a_dev_set_alone(tmp_path, tokenizer, changes):
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), **EVALUATES | changes)
    trainer.train()
    evaluated = [entry["step"] for entry in trainer.state.log_history if "eval_stsb_spearman" in entry]
    assert evaluated == [0, 2, 4]


@pytest.mark.parametrize(
    ("changes", "metric"),
    [(BY_LENGTH, None), (ON_PLATEAU, "stsb_spearman"), (SAVES_BEST, "stsb_spearman")],
    ids=str,
)
def test_an_option_that_needs_a_metric_takes_the_headline_of_the_dev_set(tmp_path, tokenizer, changes, metric):
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), **EVALUATES | changes)
    assert trainer.args.metric_for_best_model == metric


# --- noise in the embeddings ---


@pytest.fixture
def drawn_noise(tmp_path, tokenizer, monkeypatch):
    """The rows that got noise in the last pass of a run, and the size of their noise."""
    drawn = []
    plain_hook = neftune.neftune_post_forward_hook

    def hook(module, input, output):
        rows, length, width = output.shape
        size = module.neftune_noise_alpha / math.sqrt(length * width)
        drawn.append((rows, size))
        return plain_hook(module, input, output)

    monkeypatch.setattr(neftune, "neftune_post_forward_hook", hook)
    make(tmp_path, tokenizer, neftune_noise_alpha=5.0, max_steps=1).train()
    return drawn[-1]


def test_neftune_draws_noise_for_each_text_of_a_batch(drawn_noise):
    rows, _ = drawn_noise
    assert rows == 16


def test_neftune_draws_the_noise_that_transformers_draws_for_a_padded_batch(
    drawn_noise,
):
    """A text has 6 words, [CLS] and [SEP]; the width is 32."""
    _, size = drawn_noise
    assert size == pytest.approx(5 / math.sqrt(8 * 32))


# --- a search of hyperparameters ---


class Backend:
    """Run trials as transformers' backends do: each drops the model of the one before."""

    def ensure_available(self):
        pass

    def run(self, trainer, n_trials, direction, **kwargs):
        trials = []
        for rate in (1e-4, 1e-2, 1e-3)[:n_trials]:
            trainer.objective = None
            trainer.model = None
            trainer.train(trial={"learning_rate": rate})
            if trainer.objective is None:
                trainer.objective = trainer.compute_objective(trainer.evaluate())
            trials.append((trainer.objective, rate))
        choose = max if direction == "maximize" else min
        score, rate = choose(trials)
        return BestRun(direction, score, {"learning_rate": rate}, trials)


def new_model(trial):
    return model_of(pooler_type="avg")


@pytest.fixture(scope="module", autouse=True)
def _backend():
    """Let the backend above stand in for that of wandb."""
    backends = "transformers.trainer.ALL_HYPERPARAMETER_SEARCH_BACKENDS"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, {HPSearchBackend.WANDB: Backend})
        # It asks whether the backend is installed.
        patch.setattr("transformers.integrations.hp_params", dict)
        yield


def searching_trainer(folder, tokenizer, **changes):
    """A trainer, each of whose trials has a new model."""
    trainer = make(folder, tokenizer, model_init=new_model, dev_set=pairs(), **changes)
    # It asks wandb for a name.
    trainer._get_output_dir = lambda trial: trainer.args.output_dir
    return trainer


def search(trainer, trials, **options):
    return trainer.hyperparameter_search(hp_space=lambda trial: trial, backend="wandb", n_trials=trials, **options)


#: When the trials of a search are evaluated.
TIMES = {"at the end": {}, "during trials": EVALUATES}


@pytest.fixture(scope="module", params=TIMES)
def searched(request, tokenizer, tmp_path_factory):
    """A trainer after a search of three trials, and the best trial."""
    folder = tmp_path_factory.mktemp("search")
    trainer = searching_trainer(folder, tokenizer, **TIMES[request.param])
    return trainer, search(trainer, trials=3)


@pytest.fixture(scope="module")
def scores(searched):
    """Those of the trials."""
    _, best = searched
    return [score for score, _ in best.run_summary]


def test_a_search_maximises_the_headline_of_the_dev_set(searched):
    _, best = searched
    assert best.run_id == "maximize"


def test_a_search_finds_the_best_trial(searched, scores):
    _, best = searched
    assert best.objective == max(scores)


def test_each_trial_of_a_search_has_its_own_score(scores):
    assert len(set(scores)) == 3


def test_the_scores_of_a_search_are_correlations_times_100(scores):
    for score in scores:
        assert -100 <= score <= 100


@pytest.mark.parametrize(("name", "value"), [("pooler_type", "avg"), ("max_seq_length", 32)])
def test_the_model_of_a_trial_has_the_settings_of_the_run(searched, name, value):
    trainer, _ = searched
    assert getattr(trainer.model.settings, name) == value


def alignment(metrics):
    return metrics["eval_stsb_alignment"]


def test_a_search_minimises_a_metric_for_which_less_is_better(tmp_path, tokenizer):
    trainer = searching_trainer(tmp_path, tokenizer)
    best = search(trainer, trials=1, compute_objective=alignment)
    assert best.run_id == "minimize"


# --- settings of a checkpoint ---

SAVED = {
    "objective": "esimcse",
    "objective_options": {"queue_size": 8},
    "temperature": 0.2,
    "max_seq_length": 24,
}


@pytest.mark.parametrize(
    "saved, words, expected",
    [
        pytest.param(
            SAVED,
            "",
            {
                "objective": "esimcse",
                "temperature": 0.2,
                "queue_size": 8,
                "max_seq_length": 24,
            },
            id="all settings",
        ),
        pytest.param(
            SAVED,
            "--temp 0.1 --max_seq_length 16",
            {"objective": "esimcse", "temperature": 0.1, "max_seq_length": 16},
            id="but what is given",
        ),
        pytest.param(
            SAVED,
            "--objective simcse",
            {"objective": "simcse", "temperature": 0.05, "max_seq_length": 32},
            id="nothing of another objective",
        ),
        pytest.param(
            {"pooler_type": "avg"},
            "",
            {"pooler_type": "avg", "mlp_only_train": False},
            id="its pooler",
        ),
        pytest.param(
            {"mlp_only_train": False},
            "",
            {"pooler_type": "cls", "mlp_only_train": False},
            id="its head",
        ),
        pytest.param({"max_seq_length": 20}, "", {"max_seq_length": 20}, id="its length"),
        pytest.param(
            {"max_seq_length": 20},
            "--max_seq_length 12",
            {"max_seq_length": 12},
            id="but a given length",
        ),
    ],
)
def test_a_checkpoint_that_is_trained_further_keeps_its_settings(tmp_path, save_checkpoint, saved, words, expected):
    start = save_checkpoint(model_of(**saved))
    (tmp_path / "x.txt").write_text("a cat\na dog\n")
    files = f"--train_file {tmp_path}/x.txt --output_dir {tmp_path}/out"
    line = f"--model_name_or_path {start} {files} --use_cpu {words}"
    settings = Recipe.read("unsup", line.split()).trainer().model.settings
    found = asdict(settings) | settings.objective_options
    assert {name: found[name] for name in expected} == expected


# --- settings without an effect ---


@pytest.mark.parametrize(
    "settings, changes, said",
    [
        ({"mlm_weight": 0.5}, {}, "mlm_weight and mlm_probability have no effect without do_mlm"),
        ({}, {"mlm_probability": 0.4}, "mlm_weight and mlm_probability have no effect without do_mlm"),
        ({}, {"view_both": True}, "view_both has no effect with view identity"),
        (
            {"hard_negative_weight": 1.0},
            {},
            "hard_negative_weight has no effect on rows without hard negatives",
        ),
    ],
)
def test_a_setting_that_changes_nothing_is_said(tmp_path, tokenizer, caplog, settings, changes, said):
    make(tmp_path, tokenizer, model=model_of(**settings), **changes).check_run()
    assert said in caplog.text


def test_nothing_is_said_of_settings_that_have_an_effect(tmp_path, tokenizer, caplog):
    make(tmp_path, tokenizer).check_run()
    assert "no effect" not in caplog.text


# --- several evaluation sets ---


@pytest.fixture(scope="module")
def metrics(tokenizer, tmp_path_factory):
    """The metrics of a dev set and of two evaluation sets, one of whose names ends like the other."""
    sets = {"news": texts(8, 2, seed=5), "old_news": texts(8, 2, seed=6)}
    folder = tmp_path_factory.mktemp("sets")
    return make(folder, tokenizer, eval_dataset=sets, dev_set=pairs()).evaluate()


def test_a_dev_set_is_scored_once_beside_several_evaluation_sets(metrics):
    spearman = [name for name in metrics if "spearman" in name]
    assert spearman == ["eval_stsb_spearman"]


def test_each_evaluation_set_has_its_own_loss(metrics):
    assert metrics["eval_news_loss"] != metrics["eval_old_news_loss"]
