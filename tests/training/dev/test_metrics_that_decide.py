"""The metric of a run: schedules follow it the right way round, and one that nothing computes is refused."""

import pytest
from trainer_helpers import (
    EVALUATES,
    KEEPS_BEST,
    make,
    pairs,
    refuses,
    texts,
)
from transformers import SchedulerType, TrainerCallback

from simcse_hf import SimilarityEvalCallback

#: Those that this version of transformers has.
SCHEDULES = sorted({"reduce_lr_on_plateau", "greedy"} & {schedule.value for schedule in SchedulerType})
FALLING = {"metric_for_best_model": "stsb_alignment"}


class Scores(SimilarityEvalCallback):
    """A dev set whose scores change by a step at each evaluation, whatever the embeddings."""

    def __init__(self, step):
        super().__init__(pairs())
        self.now = 50.0
        self.step = step

    def score(self, embeddings):
        self.now += self.step
        return super().score(embeddings) | {
            "stsb_spearman": self.now,
            "stsb_alignment": self.now,
        }


class Rates(TrainerCallback):
    """The learning rate of each step."""

    def __init__(self):
        self.used = []

    def on_step_begin(self, args, state, control, optimizer, **_):
        self.used.append(optimizer.param_groups[0]["lr"])


def rates(tmp_path, tokenizer, step, schedule, **options):
    """The rates of a run of eight steps, each of which is evaluated."""
    noted = Rates()
    options = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "lr_scheduler_type": schedule,
        "max_steps": 8,
    } | options
    options = {"lr_scheduler_kwargs": {"patience": 1, "factor": 0.5}} | options
    make(tmp_path, tokenizer, callbacks=[Scores(step), noted], **options).train()
    return noted.used


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "options",
    [{}, FALLING],
    ids=["headline", "chosen"],
)
def test_a_rate_falls_if_scores_get_worse_and_only_then(tmp_path, tokenizer, schedule, options):
    better = -1 if options else 1
    improving = rates(tmp_path, tokenizer, better, schedule, **options)
    assert min(improving) == improving[0] == 1e-3
    assert (max(improving) > 1e-3) == (schedule == "greedy")  # which also raises it
    falling = rates(tmp_path, tokenizer, -better, schedule, **options)
    assert falling[-1] < 0.6 * falling[0] and max(falling) == 1e-3


def test_a_schedule_of_the_loss_falls_if_the_loss_rises(tmp_path, tokenizer):
    options = {
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "eval_dataset": texts(8, 2),
        **EVALUATES,
    }
    trainer = make(tmp_path, tokenizer, **options)
    assert trainer.args.lr_scheduler_kwargs["mode"] == "min"


# --- a metric that nothing computes ---

SETS = {"news": texts(8, 2, seed=5), "tweets": texts(8, 2, seed=6)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval_dataset": SETS}, "'loss' 'news_loss' 'tweets_loss'"),
        ({"dev_set": pairs(), "eval_dataset": SETS, "metric_for_best_model": "loss"}, "'stsb_spearman' 'news_loss'"),
    ],
    ids=["several sets", "both"],
)
@pytest.mark.parametrize("needs", [KEEPS_BEST, EVALUATES | {"save_strategy": "best"}], ids=["loads", "saves"])
def test_a_metric_that_nothing_computes_is_refused_at_the_start(tmp_path, tokenizer, options, words, needs):
    trainer = make(tmp_path, tokenizer, **needs, **options, eval_on_start=True)
    with refuses(words):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("metric", ["eval_news_loss", "stsb_effective_rank", None])
def test_each_metric_of_an_evaluation_may_choose_the_best_model(tmp_path, tokenizer, metric):
    options = {"dev_set": pairs(), "eval_dataset": SETS, "metric_for_best_model": metric}
    trainer = make(tmp_path, tokenizer, max_steps=2, **KEEPS_BEST, **options)
    trainer.train()
    assert trainer.state.best_metric is not None


def test_a_metric_of_the_caller_may_choose_the_best_model(tmp_path, tokenizer):
    options = {"eval_dataset": texts(8, 2), "metric_for_best_model": "width", "max_steps": 2, **KEEPS_BEST}
    own = {"compute_metrics": lambda found: {"width": found.predictions.shape[-1]}}
    trainer = make(tmp_path, tokenizer, **own, **options)
    trainer.train()
    assert trainer.state.best_metric == 32
