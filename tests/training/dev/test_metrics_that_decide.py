"""The metric of a run: schedules follow it the right way round, and one that nothing computes is refused."""

import pytest
from trainer_helpers import EVALUATES, KEEPS_BEST, Rates, pairs, refuses, texts
from transformers import SchedulerType

from simcse_hf import SimilarityEvalCallback

#: Those that this version of transformers has.
SCHEDULES = sorted({"reduce_lr_on_plateau", "greedy"} & {schedule.value for schedule in SchedulerType})
#: Metrics for which less is better.
FALLING = [{"metric_for_best_model": name} for name in ("stsb_alignment", "eval_stsb_uniformity")]


class Scores(SimilarityEvalCallback):
    """A dev set whose scores change by a step at each evaluation, whatever the embeddings."""

    def __init__(self, step):
        super().__init__(pairs())
        self.now = 50.0
        self.step = step

    def score(self, embeddings):
        self.now += self.step
        return dict.fromkeys(super().score(embeddings), self.now)


def rates(make, step, schedule, **options):
    """The rates of a run of eight steps, each of which is evaluated."""
    noted = Rates()
    options |= {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 8}
    options |= {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": {"patience": 1, "factor": 0.5}}
    make(callbacks=[Scores(step), noted], **options).train()
    return [rate for rate, *_ in noted.used]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("options", [{}, *FALLING], ids=["headline", "alignment", "uniformity"])
def test_a_rate_falls_if_scores_get_worse_and_only_then(make, schedule, options):
    better = -1 if options else 1
    improving = rates(make, better, schedule, **options)
    assert min(improving) == improving[0] == 1e-3
    assert (max(improving) > 1e-3) == (schedule == "greedy")  # which also raises it
    falling = rates(make, -better, schedule, **options)
    assert falling[-1] < 0.6 * falling[0] and max(falling) == 1e-3


def test_a_schedule_of_the_loss_falls_if_the_loss_rises(make):
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_dataset": texts(8, 2)}
    trainer = make(**EVALUATES, **options)
    assert trainer.args.lr_scheduler_kwargs["mode"] == "min"


# --- a metric that nothing computes ---

#: One of their names ends like the other.
SETS = {"news": texts(8, 2, seed=5), "old_news": texts(8, 2, seed=6)}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"eval_dataset": SETS}, "'loss' 'news_loss' 'old_news_loss'"),
        ({"dev_set": pairs(), "eval_dataset": SETS, "metric_for_best_model": "loss"}, "'news_loss' 'stsb_spearman'"),
    ],
    ids=["several sets", "both"],
)
@pytest.mark.parametrize("needs", [KEEPS_BEST, EVALUATES | {"save_strategy": "best"}], ids=["loads", "saves"])
def test_a_metric_that_nothing_computes_is_refused_at_the_start(make, options, words, needs):
    trainer = make(**needs, **options, eval_on_start=True)
    with refuses(words):
        trainer.train()
    assert trainer.state.global_step == 0


def test_the_metrics_that_a_refusal_names_are_those_of_each_evaluation(make):
    """Another pooler is only scored at the start, where there is an epoch, too."""
    trainer = make(dev_set=pairs(), **KEEPS_BEST | {"metric_for_best_model": "speerman"})
    with pytest.raises(ValueError, match="take one of 'stsb_spearman', .*'stsb_effective_rank'$"):
        trainer.train()


@pytest.mark.parametrize("metric", ["eval_news_loss", "stsb_effective_rank", None])
def test_each_metric_of_an_evaluation_may_choose_the_best_model(trained, metric):
    """The dev set is scored once beside the sets, which have losses of their own."""
    options = {"dev_set": pairs(), "eval_dataset": SETS, "metric_for_best_model": metric}
    trainer = trained(max_steps=2, **KEEPS_BEST, **options)
    assert trainer.state.best_metric is not None
    metrics = trainer.evaluate()
    assert [name for name in metrics if "spearman" in name] == ["eval_stsb_spearman"]
    assert metrics["eval_news_loss"] != metrics["eval_old_news_loss"]
