"""The plan of a search: candidates whose methods exist, in runs that fit into the budget."""

import pytest

from simcse_hf.objectives import OBJECTIVES
from simcse_hf.training.adaptation.plan import (
    LONGER,
    MIN_STEPS,
    Costs,
    candidates,
    divide,
    fitting,
    name_of,
    steps_within,
)

METHODS = ("mlm", "tsdae", "simcse", "esimcse", "contrastive_tension")


def costs(step=0.1, load=1.0, score=2.0, judge=10.0):
    return Costs(dict.fromkeys(METHODS, step), load, score, judge)


def total(division, plan, costs):
    """The seconds that a division takes, from its definition."""
    runs = [(candidate, division.seconds) for candidate in plan[: division.short_runs]]
    long = division.seconds * (LONGER if division.long_runs else 1)
    runs += [(plan[0], long)] * (division.long_runs + division.seeds - 1)
    trained = sum(
        sum(n * costs.step[stage.method] for n, stage in zip(steps_within(c, seconds, costs), c, strict=True))
        for c, seconds in runs
    )
    return trained + len(runs) * (2 * costs.load + costs.score) + costs.judge


def test_every_candidate_is_a_known_method_and_its_name_is_unique():
    plan = candidates(can_mask=True)
    assert {stage.method for candidate in plan for stage in candidate} == {*METHODS}
    assert set(METHODS) - {"mlm"} <= set(OBJECTIVES)
    assert len({name_of(candidate) for candidate in plan}) == len(plan)


def test_without_a_mask_token_there_is_no_masked_lm_training():
    plan = candidates(can_mask=False)
    assert plan and all(stage.method != "mlm" for candidate in plan for stage in candidate)


@pytest.mark.parametrize("seconds", [60, 200, 1000, 10_000])
@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize("step", [0.01, 0.5])
def test_a_division_fits_into_the_time_and_gives_every_run_enough_steps(seconds, seeds, step):
    plan, measured = candidates(True), costs(step)
    division = divide(seconds, plan, seeds, measured)
    if division is None:
        # One run of the first candidate, with the shortest training that says anything, does not fit.
        assert MIN_STEPS * step + 2 * 1.0 + 2.0 + 10.0 > 0.9 * seconds
        return
    assert total(division, plan, measured) <= seconds
    assert 1 <= division.seeds <= seeds
    for candidate in fitting(plan, division.seconds, measured)[: division.short_runs]:
        assert min(steps_within(candidate, division.seconds, measured)) >= MIN_STEPS


def test_more_time_never_tries_fewer_candidates():
    sizes = [
        division.short_runs if (division := divide(seconds, candidates(True), 3, costs())) else 0
        for seconds in range(5, 2000, 45)
    ]
    assert sizes == sorted(sizes) and sizes[0] == 0 and sizes[-1] == len(candidates(True))


def test_a_small_budget_lowers_the_number_of_seeds_before_it_gives_up():
    full = next(s for s in range(10, 1000) if (d := divide(s, candidates(True), 3, costs())) and d.seeds == 3)
    division = divide(full - 1, candidates(True), 3, costs())
    assert division is not None and division.seeds == 2 and division.short_runs >= 1


def test_a_slower_method_is_tried_before_another_learning_rate_of_a_fast_one():
    """Like the times that were measured on tweets. Four short runs would try masked-LM and TSDAE only."""
    measured = Costs(
        {"tsdae": 1.0, "mlm": 1.13, "simcse": 1.6, "esimcse": 2.0, "contrastive_tension": 1.7}, 3.0, 20.0, 170.0
    )
    plan = candidates(True)
    division = divide(900, plan, 3, measured)
    tried = fitting(plan, division.seconds, measured)[: division.short_runs]
    assert [stage.method for (stage,) in tried] == ["simcse", "tsdae", "esimcse"]
