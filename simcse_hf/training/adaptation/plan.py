"""Which training runs a search tries, in which order, and how its time is divided among them."""

from dataclasses import dataclass

from ...objectives import OBJECTIVES

#: The share of the runs that go on to a longer run, as in successive halving (Jamieson and Talwalkar 2016).
KEPT = 3
#: A longer run takes so many times the time of a short one.
LONGER = 3
#: A run of fewer steps says nothing about its method.
MIN_STEPS = 20
#: Part of the remaining time that is planned; the rest absorbs runs that turn out slower than measured.
_PLANNED = 0.9


@dataclass(frozen=True)
class Stage:
    """Training by one method.

    Args:
        method (`str`): `"mlm"`, or the name of an objective.
        learning_rate (`float`): Its learning rate at the first step.
    """

    method: str
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.method} {self.learning_rate:g}"


#: A candidate is one stage, or two that follow each other.
Candidate = tuple[Stage, ...]


def _mlm(rate: float = 5e-5) -> Stage:
    return Stage("mlm", rate)


#: Candidates in the order in which they are tried, because a small budget tries the first ones only: every method
#: once, then methods that follow each other and other learning rates. In 60 steps on two domains, SimCSE and ESimCSE
#: gained most and lost least (docs/adaptation.md). With long training, TSDAE and masked-LM gained more than CT and
#: SimCSE on the four domains of USEB (Wang et al. 2021, arXiv:2104.06979).
_CANDIDATES: tuple[Candidate, ...] = (
    (Stage("simcse", 1e-5),),
    (Stage("tsdae", 3e-5),),
    (Stage("esimcse", 1e-5),),
    (_mlm(),),
    (Stage("contrastive_tension", 1e-5),),
    (Stage("simcse", 3e-5),),
    (_mlm(), Stage("simcse", 1e-5)),
    (Stage("tsdae", 3e-5), Stage("simcse", 1e-5)),
    (Stage("esimcse", 3e-5),),
    (_mlm(2e-4),),
    (_mlm(), Stage("tsdae", 3e-5)),
    (_mlm(), Stage("contrastive_tension", 1e-5)),
    (Stage("tsdae", 1e-4),),
    (_mlm(), Stage("esimcse", 1e-5)),
    (Stage("simcse", 3e-6),),
)


def name_of(candidate: Candidate) -> str:
    """Return the name of a candidate, such as `"mlm 5e-05, simcse 1e-05"`."""
    return ", ".join(map(str, candidate))


def candidates(can_mask: bool) -> list[Candidate]:
    """List the candidates whose methods are there, in the order in which they are tried.

    Args:
        can_mask (`bool`): Whether the tokenizer has a mask token, which masked-LM training needs.

    Returns:
        `list[Candidate]`: The candidates.
    """
    known = {*OBJECTIVES, *(["mlm"] if can_mask else [])}
    return [candidate for candidate in _CANDIDATES if all(stage.method in known for stage in candidate)]


@dataclass(frozen=True)
class Costs:
    """Measured times, in seconds.

    Args:
        step (`dict[str, float]`): Of a training step, by method.
        load (`float`): Of a run apart from its steps, of one stage.
        score (`float`): Of scoring a model on the dev tasks, in all variants.
        judge (`float`): Of the final evaluation and the report, for all seeds.
    """

    step: dict[str, float]
    load: float
    score: float
    judge: float


@dataclass(frozen=True)
class Division:
    """How the time left is divided.

    Args:
        short_runs (`int`): Candidates that get a short run; the first ones of the plan that fit.
        long_runs (`int`): The best of these, which get a run of `LONGER` times the time.
        seconds (`float`): Training time of a short run.
        seeds (`int`): Runs of the best candidate in all, each with another seed.
    """

    short_runs: int
    long_runs: int
    seconds: float
    seeds: int


def divide(seconds_left: float, plan: list[Candidate], seeds: int, costs: Costs) -> Division | None:
    """Choose how many candidates a budget can try, and for how long.

    K short runs of t seconds, K / 3 long runs of 3 t and `seeds - 1` repetitions of the best run share the time left,
    after what loading, scoring and the final evaluation cost. The candidates are the first K that fit into t seconds
    (see [`fitting`]). K is chosen so that they try as many methods as possible, and is then as large as possible. So a
    slower method is not left out for another learning rate of a faster one. If nothing fits, the number of seeds is
    lowered.

    With 1,000 s left, 9 candidates, 3 seeds and no other costs, t = 0.9 * 1000 / (9 + 3 * 3 + 3 * 2) = 37.5 s.

    Args:
        seconds_left (`float`): The time left.
        plan (`list[Candidate]`): The candidates in the order in which they are tried.
        seeds (`int`): Number of seeds that the user asked for.
        costs (`Costs`): What was measured.

    Returns:
        `Division`, *optional*: The division, or `None` if not even one run with one seed fits.
    """
    for used_seeds in range(seeds, 0, -1):
        found = []
        for short in range(1, len(plan) + 1):
            long = -(-short // KEPT) if short > 1 else 0  # a single candidate needs no second round
            runs = short + long + used_seeds - 1
            fixed = costs.judge + runs * (2 * costs.load + costs.score)
            share = short + (LONGER if long else 1) * (long + used_seeds - 1)
            seconds = (_PLANNED * seconds_left - fixed) / share
            tried = fitting(plan, seconds, costs)[:short]
            if len(tried) == short:
                methods = {stage.method for candidate in tried for stage in candidate}
                found.append((len(methods), short, Division(short, long, seconds, used_seeds)))
        if found:
            return max(found, key=lambda choice: choice[:2])[2]
    return None


def fitting(plan: list[Candidate], seconds: float, costs: Costs) -> list[Candidate]:
    """Return the candidates that get at least `MIN_STEPS` steps in each stage; slow ones may need more time."""
    return [c for c in plan if all(steps >= MIN_STEPS for steps in steps_within(c, seconds, costs))]


def steps_within(candidate: Candidate, seconds: float, costs: Costs) -> list[int]:
    """Return the number of steps of each stage in a given training time, which two stages share equally.

    Args:
        candidate (`Candidate`): The candidate.
        seconds (`float`): The training time.
        costs (`Costs`): What was measured.

    Returns:
        `list[int]`: Steps by stage.
    """
    return [int(seconds / len(candidate) / costs.step[stage.method]) for stage in candidate]
