"""What a training run returns, and writes into results.json: its dev scores, what they say, and how it was made."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from ..evaluation.compare import describe_difference
from ..evaluation.metrics import higher_is_better, with_scale
from ..models.settings import Values
from ..runtime.files import read_json_object
from ..runtime.outputs import Result

RESULTS = "results.json"


@dataclass(frozen=True)
class Change:
    """What training has changed in the main metric of the dev set, with its interval.

    Args:
        metric (`str`): The metric.
        difference (`float`): Saved weights minus start, the mean over the seeds.
        low (`float`): The lower end of the interval.
        high (`float`): Its upper end.
        confidence (`float`): The level of the interval.
        resamples (`int`): Resamples of the bootstrap.
        optimism (`float`): By how much the choice of the checkpoint on the dev set flatters it.
        seeds (`int`): The number of runs.
        source (`str`): The file of a general task.
    """

    metric: str
    difference: float
    low: float
    high: float
    confidence: float
    resamples: int
    optimism: float = 0.0
    seeds: int = 1
    source: str = ""

    def __str__(self) -> str:
        file = f"   ({Path(self.source).name})" if self.source else ""
        return describe_difference(self.difference, self.low, self.high, self.confidence) + file


@dataclass(frozen=True)
class Scored:
    """What one evaluation of a run scored.

    Args:
        step (`int`): The step after which the model was evaluated.
        metrics (`Mapping[str, float]`): The metrics, those of dev sets under names such as `stsb_spearman`.
    """

    step: int
    metrics: Mapping[str, float]

    def to_dict(self) -> dict[str, float]:
        """Return the step and the metrics in one table."""
        return {"step": self.step, **self.metrics}


@dataclass(frozen=True)
class Start(Scored):
    """What the model scored that the run began with, as one would use it.

    An encoder that names no pooler is used with the better of two plain ones, and not through a head that was drawn a
    minute ago.

    Args:
        metric (`str`): The name under which the evaluation logged it.
        pooler (`str`, *optional*): The plain pooler, if that is not the run's own.
    """

    metric: str = ""
    pooler: str | None = None

    def to_dict(self) -> Values:
        """Return everything in one table."""
        return {"step": self.step, "pooler": self.pooler, "metric": self.metric, **self.metrics}


@dataclass(frozen=True)
class DevHistory:
    """What the evaluations of a run scored on its dev sets.

    Args:
        dev_set (`str`): The file of the dev set that decides.
        metric (`str`): Its main metric, such as `stsb_spearman`: the one that selects the best model, if it is one of
            a dev set, and otherwise the headline of the first.
        start (`Start`): The model that the run began with.
        initial (`Scored`): The same as the run pools it.
        best (`Scored`): The best evaluation; it may be the start.
        final (`Scored`): The last one.
        saved (`Scored`): That of the weights that were saved.
        chosen_among (`Sequence[int]`): The steps of the evaluations that chose the saved weights by the main metric.
    """

    dev_set: str
    metric: str
    start: Start
    initial: Scored
    best: Scored
    final: Scored
    saved: Scored
    chosen_among: Sequence[int] = ()

    def value(self, scored: Scored) -> float:
        """Return the main metric of an evaluation."""
        return scored.metrics[self.metric]

    @property
    def is_worse(self) -> bool:
        """Whether the saved weights score worse than the start."""
        return is_better(self.metric, self.value(self.start), self.value(self.saved))

    @property
    def was_better(self) -> bool:
        """Whether some evaluation scored better than the start."""
        return is_better(self.metric, self.value(self.best), self.value(self.start))

    def to_dict(self) -> Values:
        """Return the part of results.json about the dev set."""
        shown = {"initial": self.initial, "best": self.best, "final": self.final}
        return {
            "dev_set": self.dev_set,
            "dev_metric": self.metric,
            self.metric: {when: self.value(scored) for when, scored in shown.items()},
            **{when: scored.to_dict() for when, scored in shown.items()},
            "start": self.start.to_dict(),
            "saved": self.saved.to_dict(),
            "chosen_among": list(self.chosen_among),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "DevHistory | None":
        """Read what [`to_dict`] wrote; `None` for a run without a dev set."""
        metric = content["dev_metric"]
        if metric is None:
            return None
        scored = {}
        for when in ("initial", "best", "final", "saved"):
            metrics = dict(content[when])
            scored[when] = Scored(int(metrics.pop("step")), metrics)
        start = content["start"]
        return cls(
            dev_set=content["dev_set"],
            metric=metric,
            start=Start(start["step"], {metric: start[metric]}, start["metric"], start["pooler"]),
            chosen_among=content.get("chosen_among", []),
            **scored,
        )


class Changed(TypedDict):
    """What was changed on purpose when a run was resumed: each setting with its earlier and its later value."""

    step: int
    settings: dict[str, list]


class RunDescription(TypedDict):
    """How a model was trained.

    Args:
        base_model (`str`): The model that the run began with.
        train_rows (`int`): The number of rows; `None` for a stream.
        num_sentences (`int`): Texts in a row.
        rows (`str`): What a row holds, see `data.contents`.
        view (`dict`): `name`, `rate` and `both`, for single sentences.
        datasets (`dict[str, int]`): The rows of each of several data sets.
        objective (`dict`): What the objective says about itself: `summary` and `papers`.
        arguments (`Values`): The arguments that differ from their default.
        steps (`int`): Optimizer steps.
        epochs (`float`): Epochs.
        train_loss (`float`): The mean loss; `None` before the end of training.
        processes (`int`): Processes.
        hardware (`str`): The processor or the GPU.
        seed (`int`): The seed.
        dev_texts (`list[str]`): A text of the dev set and others to compare it with.
        changes (`list[Changed]`): What was changed on purpose when the run was resumed.
        train_texts (`str`): The file or the data set of the training texts, if they were named.
        hub_datasets (`list[str]`): The data sets on the hub among them.
        settings (`Values`): The settings of the model.
    """

    base_model: str
    train_rows: int | None
    num_sentences: int | None
    rows: str | None
    view: Values | None
    datasets: dict[str, int] | None
    objective: Values
    arguments: Values
    steps: int
    epochs: float | None
    train_loss: float | None
    processes: int
    hardware: str
    seed: int
    dev_texts: list[str] | None
    changes: list[Changed]
    train_texts: str | None
    hub_datasets: list[str]
    settings: Values


#: What results.json says of the dev set, all `None` without one.
_OF_DEV_SETS = ("dev_set", "dev_metric", "initial", "best", "final", "start", "saved", "chosen_among")


#: What it says beside the description of the run.
_OWN = ("model", "train_seconds", "command", "versions", "seeds", "weights")


@dataclass(frozen=True)
class Results(Result):
    """The results of a training run: the content of its `results.json`.

    Args:
        dev (`DevHistory`, *optional*): The dev scores, on a scale of 0 to 100.
        model (`str`): The folder of the model.
        run (`RunDescription`): How the run was made.
        train_seconds (`float`, *optional*): How long training took.
        change (`Change`, *optional*): What training has changed on the dev set. Only the first process has it.
        command (`list[str]`): The command line.
        versions (`Mapping[str, str]`): Versions of the packages.
        seeds (`Mapping[str, Any]`, *optional*): With several seeds, the results of all, see [`~seeds.summarise`].
        weights (`str`, *optional*): The digest of the encoder, by which a card knows the model; `None` if it is
            sharded, or saved as an adapter.
        general (`Sequence[Change]`): What training has changed on general tasks. Only the first process has it.

    Examples:
        >>> from simcse_hf.training.run_results import Results
        >>> results = Results.read("outputs/my-model")
        >>> results.dev.metric, results.dev.final.step
        ('stsb_spearman', 70)
        >>> results.change.low > 0  # the lower end of the interval: the model has become better
        True
    """

    dev: DevHistory | None
    model: str
    run: RunDescription
    train_seconds: float | None = None
    change: Change | None = None
    command: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, Any] | None = None
    weights: str | None = None
    general: Sequence[Change] = ()

    def to_dict(self) -> Values:
        """Return the content of results.json."""
        content = {
            **(dict.fromkeys(_OF_DEV_SETS) if self.dev is None else self.dev.to_dict()),
            "model": self.model,
            **self.run,
            "train_seconds": self.train_seconds,
            "command": self.command,
            "versions": dict(self.versions),
            "change": self.change and asdict(self.change),
            "general": [asdict(change) for change in self.general],
            "weights": self.weights,
        }
        return content if self.seeds is None else {**content, "seeds": dict(self.seeds)}

    @classmethod
    def read(cls, folder: str | Path) -> "Results":
        """Read the results of a run from its folder.

        Args:
            folder (`str` or `Path`): The `output_dir` of the run.

        Returns:
            [`Results`]: The results.

        Raises:
            ValueError: If results.json is damaged.
        """
        content = read_json_object(Path(folder, RESULTS), advice="Delete it and repeat the command.")
        dev = DevHistory.from_dict(content)
        change = content.pop("change", None)
        general = [Change(**each) for each in content.pop("general", [])]
        own = {name: content.pop(name, None) for name in _OWN}
        of_dev = {*_OF_DEV_SETS, content["dev_metric"]}
        run: Any = {name: value for name, value in content.items() if name not in of_dev}
        return cls(dev=dev, run=run, change=change and Change(**change), general=general, **own)

    def __str__(self) -> str:
        # The trainer of one run has said its verdict.
        return self.where() if self.seeds is None else self.details()

    def details(self) -> str:
        """Say what the dev set scored, and which model is saved where."""
        return f"{self.verdict()}{self.where()}"

    def verdict(self) -> str:
        """Say what the dev set scored at the start, with the saved weights and at the end; empty without one."""
        dev = self.dev
        if dev is None:
            return ""
        if self.seeds is not None:
            return self._verdict_of_seeds(self.seeds)
        scale = "Spearman x 100" if dev.metric.endswith("_spearman") else with_scale(dev.metric)
        start = ""
        if dev.start.pooler is not None:
            own = dev.value(dev.initial)
            start = f"   (pooler {dev.start.pooler}; {own:.2f} with the pooler of this run)"
        saved = "best" if dev.saved.step == dev.best.step and not dev.is_worse else "saved"
        lines = [
            "",
            f"Dev set {Path(dev.dev_set).name}, {scale}",
            f"  before training   {dev.value(dev.start):6.2f}{start}",
            f"  {saved:<17} {dev.value(dev.saved):6.2f}   (step {dev.saved.step})",
            f"  last step         {dev.value(dev.final):6.2f}   (step {dev.final.step})",
        ]
        if self.change is not None:
            lines.append(f"  change           {self.change}")
        lines += [f"  general task     {change}" for change in self.general]
        return "\n".join(lines) + "\n"

    def _verdict_of_seeds(self, seeds: Mapping[str, Any]) -> str:
        """Say what the dev set scored on average over the seeds."""
        metric = seeds["chosen_by"]
        runs = seeds["runs"]
        lines = ["", f"{with_scale(metric)} on the dev set, mean ± standard deviation over {len(runs)} seeds"]
        for when, label in {"start": "before training", "saved": "saved weights", "final": "last step"}.items():
            spread = f" ± {seeds['sd'][when][metric]:.2f}" if len(runs) > 1 else ""
            each = ", ".join(f"{run['seed']}: {run[when][metric]:.2f}" for run in runs)
            lines.append(f"  {label:<17} {seeds['mean'][when][metric]:6.2f}{spread}   ({each})")
        if self.change is not None:
            lines.append(f"  change            {self.change}")
        lines += [f"  general task      {change}" for change in self.general]
        lines.append(f"Seed {seeds['published']} is the best one on the dev set.")
        return "\n".join(lines) + "\n"

    @property
    def folder(self) -> str:
        """The folder of the model, from the current one if it lies there."""
        here = Path.cwd()
        folder = Path(self.model)
        return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)

    def where(self) -> str:
        """Say which model is saved where."""
        folder = self.folder
        path = Path(folder, RESULTS)
        if self.seeds is not None:
            seed = self.seeds["published"]
            reason = ""
            if self.dev is None:
                reason = f"Without a dev set nothing says which seed is best, so that of seed {seed} is published.\n"
            return f"{reason}The model of seed {seed} is saved in {folder}, with {path.name} over all seeds."
        which = "best" if self.run["arguments"].get("load_best_model_at_end") else "last"
        worse = ", which is worse than the start," if self.dev is not None and self.dev.is_worse else ""
        return f"The {which} model of the training{worse} is saved in {folder}; its metrics are in {path}."

    def warning(self) -> str | None:
        """Return what to say if the saved weights score worse than the start; `None` if they do not."""
        dev = self.dev
        if dev is None or not dev.is_worse:
            return None
        pooler = f" with the pooler {dev.start.pooler}" if dev.start.pooler else ""
        change = f" ({self.change})" if self.change else ""
        advice = "no evaluation was better than the start"
        if dev.was_better:
            advice = f"step {dev.best.step} was better: save it with load_best_model_at_end"
        return (
            f"Training has made the model worse: {dev.metric} was {dev.value(dev.start):.2f} at step {dev.start.step}"
            f"{pooler} and is {dev.value(dev.saved):.2f} with the saved weights of step {dev.saved.step}{change}; "
            f"{advice}. Keep the model that the run began with, or train again with a lower learning_rate, or with "
            "texts that are closer to the dev set."
        )


def is_better(metric: str, value: float, other: float) -> bool:
    """Return whether a value of a metric is better than another one."""
    return value > other if higher_is_better(metric) else value < other
