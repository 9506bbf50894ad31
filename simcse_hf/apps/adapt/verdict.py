"""Choose an arm on one part of a task, judge it on the other, and say and draw what came out."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ... import paired_interval
from ...evaluation.tasks import Task, TaskResult
from ...runtime.files import as_written, read_json
from ...runtime.outputs import Result
from ..analysis import IntervalRow, draw_intervals

#: The verdict, beside the model, whose card reads it.
ADAPTATION = "adaptation.json"
GAIN = "gain"
NO_GAIN = "no gain"
CONFIDENCE = 0.95
#: Points on dev that do not outweigh a simpler arm. Dev parts of at most 2,000 rows cannot tell smaller differences
#: apart, and without the rule a whitening's gain would be put down to a training run that adds 0.1 by chance.
TIE_MARGIN = 0.25


def choose(scores: Mapping[str, float]) -> str:
    """Return the first arm whose score is within `TIE_MARGIN` of the best one.

    With 80.0 for a whitening, 80.2 for labels and 81.0 for masked-LM and then labels, the last one is chosen; with
    80.1 in its place, the whitening.

    Args:
        scores (`Mapping[str, float]`): The dev score of each arm, the simplest arm first.

    Returns:
        `str`: The name of an arm.
    """
    best = max(scores.values())
    return next(name for name, score in scores.items() if score >= best - TIE_MARGIN)


@dataclass(frozen=True)
class Judgement:
    """Two arms on the held-out part of a task, x 100.

    Args:
        verdict (`str`): `"gain"` if the interval lies above 0, else `"no gain"`.
        task (`str`): Name of the task.
        metric (`str`): Its headline metric.
        units (`int`): Scored rows or queries.
        against (`str`): Name of the arm to compare with.
        before (`float`): Its headline metric, averaged over its seeds.
        after (`float`): Headline metric of the chosen arm, averaged over its seeds.
        difference (`float`): `after - before`.
        interval (`list[float]`): The two ends of the confidence interval of the difference; none of an arm and itself.
    """

    verdict: str
    task: str
    metric: str
    units: int
    against: str
    before: float
    after: float
    difference: float
    interval: list[float]

    def __str__(self) -> str:
        ends = ", ".join(f"{end:+.2f}" for end in self.interval)
        return f"{self.difference:+.2f} [{ends}]" if ends else f"{self.difference:+.2f}"


def judge(
    task: Task,
    name: str,
    against: str,
    before: list[TaskResult],
    after: list[TaskResult],
) -> Judgement:
    """Compare two arms on a part of a task.

    The interval comes from a paired bootstrap over the rows or queries, and says what other seeds of the training
    could have shown as well. So the seeds must not be those by which an arm was chosen.

    Args:
        task (`Task`): The part of the task.
        name (`str`): Its name.
        against (`str`): Name of the first arm.
        before (`list[TaskResult]`): Results of the first arm, one for each seed.
        after (`list[TaskResult]`): Results of the second arm, one for each seed; `before` itself for the same arm.

    Returns:
        `Judgement`: The scores and their difference.
    """
    difference, ends = 0.0, []
    if after is not before:
        found = paired_interval(task, before, after, confidence=CONFIDENCE)
        difference, *ends = [round(float(value), 4) for value in found]
    old = round(fmean(result.metrics[task.metric] for result in before), 4)
    new = round(fmean(result.metrics[task.metric] for result in after), 4)
    verdict = GAIN if ends and ends[0] > 0 else NO_GAIN
    return Judgement(verdict, name, task.metric, len(task), against, old, new, difference, ends)


@dataclass(frozen=True)
class Adaptation(Result):
    """The verdict of an adaptation: the content of `adaptation.json`.

    Args:
        summary (`str`): The verdict in a sentence.
        comparisons (`list[Judgement]`): The verdicts. The first one, against the present model, decides.
        chosen (`dict[str, Any]`): The chosen arm, with its `model`, `stages` and the `seed` of the model that is kept.
        seeds (`list[int]`): The seeds of its runs in the verdict, if it trains.
        arms (`list[dict]`): `name` and `stages` of each arm that was tried, and its score on `dev`.
        model (`str`): The present model.
        versions (`dict[str, str]`): Versions of the packages.
        left_out (`dict[str, str]`): The arms that were not tried, and why.
        corpus (`dict[str, Any]`): The text of the domain.
        arguments (`dict[str, Any]`): What was asked for.
        identity (`dict[str, Any]`, *optional*): The identity of the model that is kept after a gain.
        output (`str`): The output directory, which is not written into the file.
    """

    summary: str
    comparisons: list[Judgement]
    chosen: dict[str, Any]
    seeds: list[int]
    arms: list[dict[str, Any]]
    model: str | None
    versions: dict[str, str]
    left_out: dict[str, str]
    corpus: dict[str, Any]
    arguments: dict[str, Any]
    identity: dict[str, Any] | None = None
    output: str = ""

    @property
    def verdict(self) -> Judgement:
        """The comparison that decides."""
        return self.comparisons[0]

    @property
    def helped(self) -> bool:
        """Whether the chosen model is better, and was kept."""
        return self.verdict.verdict == GAIN

    def to_dict(self) -> dict[str, Any]:
        """Return the content of adaptation.json, which begins with the verdict."""
        content = asdict(self)
        del content["output"]
        return {"summary": self.summary, **asdict(self.verdict), "confidence": CONFIDENCE, **content}

    @classmethod
    def read(cls, folder: Path) -> "Adaptation":
        """Read the verdict of a finished adaptation.

        Args:
            folder (`Path`): Its output directory.

        Returns:
            [`Adaptation`]: The verdict.

        Raises:
            ValueError: If adaptation.json is damaged.
        """
        advice = "Start again with --overwrite."
        content = read_json(folder / ADAPTATION, "comparisons", advice=advice)
        with as_written(folder / ADAPTATION, advice):
            comparisons = [Judgement(**each) for each in content["comparisons"]]
            return cls.from_dict(content, comparisons=comparisons, output=str(folder))

    def __str__(self) -> str:
        lines = [self.summary]
        for each in self.comparisons:
            if each.task != self.verdict.task:
                lines.append(f"  also {each.task} ({each.metric}): {each} over {each.against}")
        kept = "the adapted model" if self.helped else "the present model, unchanged"
        lines.append(f"{self.output}/model holds {kept}; {self.output}/arms.png shows the arms.")
        return "\n".join(lines)


def draw(result: Adaptation, output: Path) -> None:
    """Write `arms.png` if matplotlib is installed: what each arm changes on dev, and the verdicts, with intervals.

    Args:
        result (`Adaptation`): The verdict.
        output (`Path`): The output directory.
    """
    rows: list[IntervalRow] = []
    for arm in result.arms:
        if arm["dev"] is not None and arm["interval"]:
            rows.append((arm["name"], (), arm["difference"], arm["interval"]))
    decides = result.verdict
    for each in result.comparisons:
        if each.task == decides.task and each.interval:
            label = f"held out: {result.chosen['name']} over {each.against}"
            rows.append((label, (), each.difference, each.interval))
    key = "one run of each arm over the present model on dev; held out: new runs on other rows; bars: 95% intervals"
    draw_intervals(output / "arms.png", rows, f"change of {decides.task} ({decides.metric} × 100)\n{key}")
