"""What users of transformers expect of a Trainer: its options work with a dev set, or are refused with a sentence."""

import math
from dataclasses import asdict

import pytest
from trainer_helpers import EVALUATES, make, model_of, pairs, texts
from transformers.integrations import neftune
from transformers.trainer_utils import BestRun, HPSearchBackend

from simcse_hf.training.recipe import Recipe


@pytest.mark.parametrize(
    "changes",
    [
        {"train_sampling_strategy": "group_by_length"},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
        {"save_strategy": "best"},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_an_option_of_transformers_works_with_a_dev_set_alone(
    tmp_path, tokenizer, changes
):
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), **EVALUATES | changes)
    trainer.train()
    assert [
        x["step"] for x in trainer.state.log_history if "eval_stsb_spearman" in x
    ] == [0, 2, 4]
    assert (trainer.args.metric_for_best_model == "stsb_spearman") == (
        "train_sampling_strategy" not in changes
    )


def test_neftune_draws_the_noise_that_transformers_draws_for_a_padded_batch(
    tmp_path, tokenizer, monkeypatch
):
    lengths, plain = [], neftune.neftune_post_forward_hook

    def hook(module, input, output):
        lengths.append(
            (
                output.shape[0],
                module.neftune_noise_alpha
                / math.sqrt(output.shape[1] * output.shape[2]),
            )
        )
        return plain(module, input, output)

    monkeypatch.setattr(neftune, "neftune_post_forward_hook", hook)
    make(tmp_path, tokenizer, neftune_noise_alpha=5.0, max_steps=1).train()
    rows, noise = lengths[-1]
    assert rows == 16 and noise == pytest.approx(
        5 / math.sqrt(8 * 32)
    )  # 6 words, [CLS] and [SEP]; width 32


class Backend:
    """Run trials as transformers' backends do: each drops the model of the one before."""

    def ensure_available(self):
        pass

    def run(self, trainer, n_trials, direction, **kwargs):
        values = []
        for rate in (1e-4, 1e-2, 1e-3)[:n_trials]:
            trainer.objective, trainer.model = None, None
            trainer.train(trial={"learning_rate": rate})
            if trainer.objective is None:
                trainer.objective = trainer.compute_objective(trainer.evaluate())
            values.append(
                (
                    trainer.objective,
                    rate,
                    [x for x in trainer.state.log_history if "loss" in x],
                )
            )
        best = (max if direction == "maximize" else min)(values, key=lambda x: x[0])
        return BestRun(direction, best[0], {"learning_rate": best[1]}, values)


@pytest.mark.parametrize(
    "changes", [{}, EVALUATES], ids=["evaluates_at_the_end", "evaluates_during_trials"]
)
def test_a_search_of_three_trials_maximises_the_headline_of_the_dev_set(
    tmp_path, tokenizer, monkeypatch, changes
):
    backends = "transformers.trainer.ALL_HYPERPARAMETER_SEARCH_BACKENDS"
    monkeypatch.setattr(backends, {HPSearchBackend.WANDB: Backend})
    monkeypatch.setattr(
        "transformers.integrations.hp_params", dict
    )  # asks whether the backend is installed
    trainer = make(
        tmp_path,
        tokenizer,
        model_init=lambda trial: model_of(pooler_type="avg"),
        dev_set=pairs(),
        **changes,
    )
    monkeypatch.setattr(
        trainer, "_get_output_dir", lambda trial: trainer.args.output_dir
    )  # asks wandb for a name
    options = {"hp_space": lambda trial: trial, "backend": "wandb", "n_trials": 3}
    run = trainer.hyperparameter_search(**options)
    scores = [value for value, *_ in run.run_summary]
    assert (
        trainer.model.settings.pooler_type == "avg"
        and trainer.model.settings.max_seq_length == 32
    )
    assert (
        run.run_id == "maximize"
        and run.objective == max(scores)
        and len(set(scores)) == 3
    )
    assert all(-100 <= score <= 100 for score in scores)
    own = trainer.hyperparameter_search(
        compute_objective=lambda m: m["eval_stsb_alignment"], **options
    )
    assert own.run_id == "minimize"


SAVED = {
    "objective": "esimcse",
    "objective_options": {"queue_size": 8},
    "temperature": 0.2,
    "max_seq_length": 24,
}


@pytest.mark.parametrize(
    "saved, words, expected",
    [
        (
            SAVED,
            "",
            {
                "objective": "esimcse",
                "temperature": 0.2,
                "queue_size": 8,
                "max_seq_length": 24,
            },
        ),
        (
            SAVED,
            "--temp 0.1 --max_seq_length 16",
            {"objective": "esimcse", "temperature": 0.1, "max_seq_length": 16},
        ),
        (
            SAVED,
            "--objective simcse",
            {"objective": "simcse", "temperature": 0.05, "max_seq_length": 32},
        ),
        ({"pooler_type": "avg"}, "", {"pooler_type": "avg", "mlp_only_train": False}),
        (
            {"mlp_only_train": False},
            "",
            {"pooler_type": "cls", "mlp_only_train": False},
        ),
        ({"max_seq_length": 20}, "", {"max_seq_length": 20}),
        ({"max_seq_length": 20}, "--max_seq_length 12", {"max_seq_length": 12}),
    ],
)
def test_a_checkpoint_that_is_trained_further_keeps_its_settings(
    tmp_path, save_checkpoint, saved, words, expected
):
    start = save_checkpoint(model_of(**saved))
    (tmp_path / "x.txt").write_text("a cat\na dog\n")
    line = f"--model_name_or_path {start} --train_file {tmp_path}/x.txt --output_dir {tmp_path}/out --use_cpu {words}"
    settings = Recipe.read("unsup", line.split()).trainer().model.settings
    found = asdict(settings) | settings.objective_options
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "settings, changes, said",
    [
        (
            {},
            {"learning_rate": 0.0},
            "learning_rate is 0, so the weights do not change",
        ),
        ({}, {"warmup_steps": 9}, "warmup_steps = 9 is longer than the run"),
        (
            {"mlm_weight": 0.5},
            {},
            "mlm_weight and mlm_probability have no effect without do_mlm",
        ),
        (
            {},
            {"mlm_probability": 0.4},
            "mlm_weight and mlm_probability have no effect without do_mlm",
        ),
        ({}, {"view_both": True}, "view_both has no effect with view identity"),
        (
            {"hard_negative_weight": 1.0},
            {},
            "hard_negative_weight has no effect on rows without hard negatives",
        ),
    ],
)
def test_a_setting_that_changes_nothing_is_said(
    tmp_path, tokenizer, caplog, settings, changes, said
):
    for words in ((settings, changes), ({}, {})):
        caplog.clear()
        make(tmp_path, tokenizer, model=model_of(**words[0]), **words[1])._check_run()
        assert (said in caplog.text) == (words == (settings, changes))


def test_each_evaluation_set_has_its_own_metrics_also_if_its_name_ends_like_another(
    tmp_path, tokenizer
):
    sets = {"news": texts(8, 2, seed=5), "old_news": texts(8, 2, seed=6)}
    metrics = make(tmp_path, tokenizer, eval_dataset=sets, dev_set=pairs()).evaluate()
    assert [name for name in metrics if "spearman" in name] == ["eval_stsb_spearman"]
    assert metrics["eval_news_loss"] != metrics["eval_old_news_loss"]
