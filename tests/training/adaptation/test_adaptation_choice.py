"""The choice among measured models: the simplest of those that dev cannot tell apart."""

import random
from itertools import pairwise

from simcse_hf.training.adaptation.trial import TIE_MARGIN, Trial, contenders

SIMCSE, MLM = {"method": "simcse", "learning_rate": 1e-5}, {"method": "mlm", "learning_rate": 5e-5}


def trial(variants, *stages, steps=(), round_name=None, failure=""):
    """A made-up trial with dev figures by variant."""
    best = max(variants, key=variants.get, default="")
    dev = {"pairs": variants[best]} if variants else {}
    round_name = round_name or ("short" if stages else "untrained")
    return Trial(
        "x", round_name, best, dev, 1.0, dict(variants), list(steps), list(stages), 42 if stages else None, failure
    )


def chosen(*trials):
    return contenders(trials)[0]


START_TRIAL = trial({"avg": 70.0}, round_name="start")


def test_a_whitening_is_chosen_before_a_training_run_that_adds_a_tenth_of_a_point():
    whitened = trial({"avg": 70.0, "avg, whitening": 74.0})
    trained = trial({"avg": 70.2, "avg, whitening": 74.1}, SIMCSE, steps=[100])
    result = chosen(START_TRIAL, whitened, trained)
    assert (result.stages, result.variant, result.dev) == ([], "avg, whitening", {"pairs": 74.0})


def test_a_training_run_is_chosen_if_it_gains_more_than_the_margin():
    whitened = trial({"avg": 70.0, "avg, whitening": 74.0})
    trained = trial({"avg": 70.2, "avg, whitening": 74.0 + 2 * TIE_MARGIN}, SIMCSE, steps=[100])
    assert chosen(START_TRIAL, whitened, trained).stages == [SIMCSE]


def test_the_start_model_stays_if_another_pooler_or_a_whitening_adds_less_than_the_margin():
    others = trial({"avg": 70.0, "avg, whitening": 70.2}), trial({"avg_first_last": 70.1})
    assert chosen(START_TRIAL, *others).round == "start"


def test_a_trained_model_goes_without_a_whitening_that_adds_less_than_the_margin():
    trained = trial({"avg": 75.0, "avg, whitening": 75.2}, SIMCSE, steps=[100])
    result = chosen(START_TRIAL, trained)
    assert (result.variant, result.headline) == ("avg", 75.0)


def test_fewer_stages_and_then_fewer_steps_are_chosen_among_trained_models():
    two = trial({"avg": 75.2}, MLM, SIMCSE, steps=[10, 10])
    long = trial({"avg": 75.1}, SIMCSE, steps=[300], round_name="long")
    short = trial({"avg": 75.0}, SIMCSE, steps=[100])
    assert chosen(START_TRIAL, two, long, short).steps == [100]
    assert chosen(START_TRIAL, two, long).steps == [300]


def test_failed_runs_and_further_seeds_are_not_chosen():
    failed = trial({}, SIMCSE, failure="it diverged")
    seed = trial({"avg": 99.0}, SIMCSE, steps=[100], round_name="seed")
    assert chosen(START_TRIAL, failed, seed).round == "start"


def test_a_model_that_is_chosen_in_the_end_was_a_contender_since_it_was_measured():
    rng = random.Random(0)
    for _ in range(200):
        trials = [START_TRIAL]
        for _ in range(8):
            stages = rng.choice([(), (SIMCSE,), (MLM, SIMCSE)])
            figures = {name: round(70 + rng.random(), 2) for name in ("avg", "avg, whitening")}
            trials.append(trial(figures, *stages, steps=[rng.randrange(1, 300) for _ in stages]))
        options = [set(map(_identity, contenders(trials[: count + 1]))) for count in range(len(trials))]
        for newest, (earlier, later) in zip(trials[1:], pairwise(options), strict=True):
            assert later <= earlier | set(map(_identity, newest.each_variant()))
        best = max(figure for measured in trials for figure in measured.variants.values())
        assert best - TIE_MARGIN <= contenders(trials)[0].headline <= best


def _identity(option):
    return option.variant, option.headline, tuple(option.steps)
