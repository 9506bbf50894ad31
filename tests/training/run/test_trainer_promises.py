"""What users of transformers expect of a Trainer: its options work with a dev set, or are refused with a sentence."""

import math
import sys
from contextlib import suppress
from dataclasses import fields
from operator import itemgetter

import pytest
import torch
from conftest import NEEDS_PEFT
from trainer_helpers import EVALUATES, arguments, model_of, pairs, refuses, texts
from transformers import EarlyStoppingCallback
from transformers.integrations import neftune
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import BestRun, HPSearchBackend

from simcse_hf import SimCSETrainer
from simcse_hf.models.settings import LOSS_OPTIONS, SETTING_NAMES
from simcse_hf.training.watch import RunLog

# --- options of transformers ---


@pytest.mark.parametrize(
    "changes, metric",
    [
        ({"train_sampling_strategy": "group_by_length"}, (None, None)),
        ({"save_strategy": "best"}, ("stsb_spearman", True)),
        ({"callbacks": [EarlyStoppingCallback(3)]}, ("stsb_spearman", True)),
    ],
    ids=["length", "best", "early stopping"],
)
def test_an_option_or_a_callback_of_transformers_works_with_a_dev_set_alone(trained, changes, metric):
    """One that needs a metric takes the headline."""
    trainer = trained(dev_set=pairs(), **EVALUATES | changes)
    assert (trainer.args.metric_for_best_model, trainer.args.greater_is_better) == metric
    assert trainer.results.dev_metric == "stsb_spearman"
    evaluated = [entry["step"] for entry in trainer.state.log_history if "eval_stsb_spearman" in entry]
    assert evaluated == [0, 2, 4]


def test_neftune_draws_the_noise_that_transformers_draws_for_the_texts_of_a_padded_batch(make, monkeypatch):
    """A text has 6 words, [CLS] and [SEP]; the width is 32."""
    drawn = []
    plain_hook = neftune.neftune_post_forward_hook

    def hook(module, input, output):
        rows, length, width = output.shape
        drawn.append((rows, module.neftune_noise_alpha / math.sqrt(length * width)))
        return plain_hook(module, input, output)

    monkeypatch.setattr(neftune, "neftune_post_forward_hook", hook)
    make(neftune_noise_alpha=5.0, max_steps=1).train()
    assert drawn[-1] == (16, pytest.approx(5 / math.sqrt(8 * 32)))


# --- a search of hyperparameters ---


class Backend:
    """Run trials as transformers' backends do: each drops the model of the one before."""

    def ensure_available(self):
        pass

    def run(self, trainer, n_trials, direction, **kwargs):
        trials = []
        values = kwargs.get("values", {"learning_rate": (1e-4, 1e-2, 1e-3)})
        tried = [(name, value) for name, several in values.items() for value in several]
        for name, rate in tried[:n_trials]:
            trainer.objective = None
            trainer.model = None
            trainer.train(trial={name: rate})
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


def searching_trainer(make, **changes):
    """A trainer, each of whose trials has a new model."""
    trainer = make(model_init=new_model, dev_set=pairs(), **changes)
    # It asks wandb for a name.
    trainer._get_output_dir = lambda trial: trainer.args.output_dir
    return trainer


def search(trainer, trials, **options):
    return trainer.hyperparameter_search(hp_space=lambda trial: trial, backend="wandb", n_trials=trials, **options)


@pytest.mark.parametrize("evaluates", [{}, EVALUATES], ids=["at the end", "during trials"])
def test_a_search_maximises_the_headline_of_the_dev_set(make, evaluates):
    """The model of each trial has the settings of the run."""
    trainer = searching_trainer(make, **evaluates)
    best = search(trainer, trials=3)
    scores = [score for score, _ in best.run_summary]
    assert (best.run_id, best.objective) == ("maximize", max(scores))
    assert len(set(scores)) == 3 and all(-100 <= score <= 100 for score in scores)
    settings = trainer.model.settings
    assert (settings.pooler_type, settings.max_seq_length) == ("avg", 32)


def test_a_search_minimises_a_metric_for_which_less_is_better_and_never_returns_the_worst_trial(make):
    trainer = searching_trainer(make)
    objective = itemgetter("eval_stsb_alignment")
    assert search(trainer, trials=1, compute_objective=objective, direction="minimize").run_id == "minimize"
    with refuses("compute_objective direction maximize"):
        search(trainer, trials=1, compute_objective=objective)
    with refuses("direction 'minimize' stsb_spearman"):
        search(searching_trainer(make), trials=1, direction="minimize")
    with refuses("direction 'minimize' stsb_spearman"):
        searching_trainer(make).hyperparameter_search(dict, None, 1, "minimize", "wandb")


@NEEDS_PEFT
def test_a_trial_has_the_rank_and_the_seed_that_it_is_given(make):
    found = []

    class Noted(SimCSETrainer):
        def create_optimizer(self, *args, **kwargs):
            adapters = [x for name, x in self.model.named_parameters() if "lora_A" in name]
            found.append((len(adapters[0]), self.args.seed, torch.get_rng_state().sum().item()))
            return super().create_optimizer(*args, **kwargs)

    trainer = searching_trainer(make, trainer_class=Noted, lora_r=4)
    search(trainer, trials=5, values={"lora_r": (8, 4, 16), "seed": (1, 2)})
    assert [rank for rank, *_ in found] == [8, 4, 16, 16, 16]
    assert len({noise for *_, noise in found[2:]}) == 3


@pytest.mark.parametrize(
    "name, value",
    [
        # decided before, each with a value that works elsewhere
        ("view", "delete_words"),
        ("max_seq_length", 16),
        ("data_seed", 1),
        # could not learn
        ("learning_rate", 0),
        ("max_steps", 0),
        ("num_train_epochs", 0),
    ],
)
def test_a_trial_of_what_is_decided_before_it_or_that_could_not_learn_is_refused_by_name(make, name, value):
    with refuses(name):
        search(searching_trainer(make), trials=1, values={name: [value]})


#: Values that a trial may have. Any other number gets one more than its own value, and what is no number gets a text.
OF_TRIALS = {
    "eval_steps": 3,
    "eval_strategy": "steps",
    "gradcache_chunk_size": 4,
    "hub_strategy": "end",
    "include_for_metrics": ["loss"],
    "include_num_input_tokens_seen": "all",
    "logging_strategy": "no",
    "lora": {"r": 4},
    "lora_r": 4,
    "lr_scheduler_kwargs": {"num_cycles": 2},
    "lr_scheduler_type": "cosine",
    "optim": "sgd",
    "save_strategy": "steps",
    "train_sampling_strategy": "sequential",
    "warmup_ratio": 0.1,  # of earlier versions of transformers
    "warmup_steps": 0.1,
    # settings of the model
    "dataset_objectives": {"a": {}},
    "default_prompt_name": "query",
    "denoising": "tanh",
    "dense_layers": [{"in_features": 32, "out_features": 8}],
    "encoders": 2,
    "hard_negative_weight": 0.5,
    "matryoshka_dims": [16],
    "max_length": 16,
    "objective": "vicreg",
    "objective_options": {"temperature": 0.3},
    "pooler_type": "avg",
    "similarity": "dot",
    "similarity_fn_name": "dot",
    "temperature": 0.1,
    "template_edges": [[1, 1]],
    "templates": ["{text} [MASK]"],
    "truncate_dim": 8,
}


def test_every_name_of_a_trial_takes_effect_or_is_refused_by_name(make):
    """The run ends after the set-up of a trial, with what it would train with."""

    class SetUp(SimCSETrainer):
        def check_run(self):
            raise StopIteration

    settings = {*SETTING_NAMES, *LOSS_OPTIONS}

    def model_init(trial):
        return model_of(**{name: trial[name] for name in settings & (trial or {}).keys()})

    trainer = make(model_init=model_init, dev_set=pairs(), trainer_class=SetUp)
    arguments = {field.name for field in fields(trainer.args) if field.init}
    before = dict(vars(trainer.args))
    start = trainer.model.settings
    found = {}
    for name in arguments | settings | {"temp", "learning_rat"}:
        old = before.get(name, getattr(start, name, None))
        value = OF_TRIALS.get(name)
        if value is None:
            value = "words"
        if value == "words" and isinstance(old, bool | int | float):
            value = not old if isinstance(old, bool) else old + 1
        try:
            with suppress(StopIteration):
                search(trainer, trials=1, values={name: [value]})
            model = trainer.model.settings
            own = getattr(trainer.args, name) if name in arguments else getattr(model, name, None)
            took = value in (own, model.objective_options.get(name))
            took |= isinstance(own, dict) and value.items() <= own.items()
            assert trainer.accelerator.gradient_accumulation_steps == 1  # the Trainer itself divides by them
            found[name] = "takes effect" if took else f"is {own!r} in place of {value!r}"
        except ValueError as error:
            found[name] = "refused" if name in str(error) else str(error)
        vars(trainer.args).clear()
        vars(trainer.args).update(before)
    assert {name: what for name, what in found.items() if what not in ("takes effect", "refused")} == {}


def test_a_name_that_only_a_later_trial_of_optuna_has_wrong_is_refused_before_that_trial(make, monkeypatch):
    class Trial:
        def __init__(self, name):
            self.params = {"name": name}

        def suggest_float(self, name, low, high):
            return self.params.setdefault(name, high)

    class Optuna(Backend):
        def run(self, trainer, n_trials, direction, **kwargs):
            for name in ("temp", "temps"):
                trainer.train(trial=Trial(name))

    monkeypatch.setattr("transformers.trainer.ALL_HYPERPARAMETER_SEARCH_BACKENDS", {HPSearchBackend.OPTUNA: Optuna})
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)
    trainer = searching_trainer(make, max_steps=1)
    trainer.model_init = lambda trial: model_of(temperature=trial.suggest_float("temp", 0.1, 0.2))
    with refuses("temps model_init"):
        trainer.hyperparameter_search(
            hp_space=lambda trial: {trial.params["name"]: trial.suggest_float(trial.params["name"], 0.1, 0.2)},
            backend="optuna",
        )
    assert trainer.model.settings.objective_options["temperature"] == 0.2
    assert trainer.state.global_step == 1


@pytest.mark.parametrize("silent, printer", [(True, PrinterCallback), (False, ProgressCallback)])
def test_the_lines_of_a_run_are_switched_off_as_those_of_transformers_are(make, silent, printer):
    trainer = make(disable_tqdm=silent)
    shown = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, RunLog)]
    trainer.remove_callback(printer)
    assert len(shown) == 1 and shown[0] not in trainer.callback_handler.callbacks


# --- what a caller gives in the place of ours ---


def test_a_loss_in_the_place_of_ours_is_called_in_every_step_or_refused(make):
    calls = []

    class Own(SimCSETrainer):
        def compute_loss(self, *args, **kwargs):
            calls.append(1)
            return super().compute_loss(*args, **kwargs)

    make(trainer_class=Own).train()
    assert len(calls) == 4
    with refuses("compute_loss gradcache_chunk_size"):
        make(trainer_class=Own, gradcache_chunk_size=4).train()
    with refuses("compute_loss_func gradcache_chunk_size"):
        make(compute_loss_func=lambda *_, **__: 0, gradcache_chunk_size=4).train()


@pytest.mark.parametrize(
    "settings, options",
    [pytest.param({}, {"lora_r": 4}, marks=NEEDS_PEFT), ({"objective": "vicreg"}, {})],
    ids=str,
)
def test_an_optimizer_that_misses_what_is_trained_is_refused(make, settings, options):
    model = model_of(pooler_type="avg", **settings)
    optimizers = (torch.optim.AdamW(model.parameters(), lr=1e-3), None)
    with refuses("optimizer_cls_and_kwargs"):
        make(model=model, optimizers=optimizers, **options).train()


def test_what_is_set_after_the_trainer_was_made_counts_or_is_refused(tmp_path, tokenizer):
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=1)
    trainer = SimCSETrainer(model_of(), args, texts(32), texts(8), processing_class=tokenizer)
    loss = trainer.evaluate(texts(8, seed=5))["eval_loss"]
    trainer.eval_dataset = texts(8, seed=5)
    assert trainer.evaluate()["eval_loss"] == loss
    trainer.args.per_device_train_batch_size = 16
    assert trainer.train().global_step == 2
    args.learning_rate = 1.0
    with refuses("learning_rate trainer.args"):
        trainer.train()
    args.learning_rate = trainer.args.learning_rate
    trainer.train_dataset = trainer.train_dataset.select(range(8))
    with refuses("train_dataset"):
        trainer.train()


def test_a_run_ends_although_nobody_reads_its_verdict_and_no_command_started_it(make, tmp_path, monkeypatch):
    trainer = make(dev_set=pairs(), **EVALUATES)
    with (tmp_path / "closed").open("w") as closed:
        pass
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "argv", [])
    assert trainer.train().global_step == 4
    assert trainer.results.command == []
