"""What a run records of itself and says at its end: its settings, its scores, what changed, and how it was made."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypedDict

import accelerate
import datasets
import numpy as np
import torch
import transformers
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from .._version import __version__
from ..evaluation.bootstrap import Scores, optimism_of_choice
from ..evaluation.metrics import find_metric, with_scale
from ..models.modeling import ContrastiveModel
from ..models.settings import Values, dropout_rates
from ..publishing.secrets import command_line
from ..runtime.errors import changes, refuse_changes
from ..runtime.files import read_arrays, read_json_object, write_arrays, write_atomically, write_json
from ..runtime.outputs import Result
from .arguments import SimCSETrainingArguments
from .checkpoints import DEV_SCORES, RESULTS
from .dev_sets import PLAIN_POOLERS, Change, DevSetCallback, change_between, start_metric
from .rows import Rows

logger = logging.get_logger(__name__)

#: The settings of a run in each of its checkpoints, and what was changed at which step.
SETTINGS = "run_settings.json"
# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = tuple(
    "output_dir run_name project report_to logging_ log_ save_ hub_ push_to_hub trackio disable_tqdm do_ local_rank "
    "accelerator_config resume_from_checkpoint dataloader_num_workers dataloader_pin_memory use_cpu include_".split()
)
# Further prefixes of arguments that may change when a run is resumed: evaluation, speed, checks, and names of files
# that have digests among the settings.
_FREE = tuple(
    "eval_ per_device_eval_ load_best_ prediction_loss_only batch_eval_ jit_ enable_jit_ fp16_f bf16_f torch_compile "
    "dataloader_pr dataloader_pe ddp_ debug skip_memory allow_ stop_on_ gradient_checkpointing "
    "activation_checkpointing restore_callback train_file remove_unused deepspeed teacher guide "
    "ignore_data_skip metric_for_best greater_is".split()
)


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
        if is_better(dev.metric, dev.value(dev.best), dev.value(dev.start)):
            advice = f"step {dev.best.step} was better: save it with load_best_model_at_end"
        return (
            f"Training has made the model worse: {dev.metric} was {dev.value(dev.start):.2f} at step {dev.start.step}"
            f"{pooler} and is {dev.value(dev.saved):.2f} with the saved weights of step {dev.saved.step}{change}; "
            f"{advice}. Keep the model that the run began with, or train again with a lower learning_rate, or with "
            "texts that are closer to the dev set."
        )


def is_better(metric: str, value: float, other: float) -> bool:
    """Return whether a value of a metric is better than another one."""
    return value > other if find_metric(metric).higher_is_better else value < other


# What decides a run --------------------------------------------------------------------------------------------------


def run_settings(
    args: TrainingArguments, model: ContrastiveModel, rows: Rows, dev_sets: Sequence[DevSetCallback]
) -> Values:
    """Return what decides the result of a run, in types that JSON can hold; digests stand for texts.

    Args:
        args (`TrainingArguments`): The arguments of the run.
        model (`ContrastiveModel`): The model.
        rows (`Rows`): The training rows.
        dev_sets (`Sequence[DevSetCallback]`): The dev sets.

    Returns:
        `Values`: Values by the name of the setting.
    """
    arguments = hyperparameter_values(args)
    if args.max_steps > 0:
        arguments.pop("num_train_epochs")  # which transformers then ignores
    values = {name: value for name, value in arguments.items() if not name.startswith(_FREE)}
    for name, value in asdict(model.settings).items():
        values[f"model's {name}"] = value
    values |= dropout_rates(model.config)
    values["dtype"] = str(next(model.parameters()).dtype)
    values["processes"] = args.world_size
    values["mixed precision"] = args.mixed_precision
    values |= rows.digests()
    for dev_set in dev_sets:
        content = repr((dev_set.texts, dev_set.gold)).encode()
        values[f"{dev_set.what} set {dev_set.headline}"] = blake2b(content).hexdigest()
    return json.loads(json.dumps(values, default=str))


def hyperparameter_values(args: TrainingArguments) -> Values:
    """Return the arguments that decide what a run learns, in types that JSON can hold."""
    values = {}
    for name, value in args.to_dict().items():
        if not name.startswith(_NOT_HYPERPARAMETERS):
            values[name] = value if isinstance(value, (str, int, float, list, dict)) else None
    return values


def changed_arguments(args: TrainingArguments) -> Values:
    """Return the hyper-parameters that differ from their default, in types that JSON can hold."""
    changed = {}
    values = hyperparameter_values(args)
    for argument in fields(args):
        value = values.get(argument.name)
        default = argument.default
        if argument.default_factory is not MISSING:
            default = argument.default_factory()
        if value is not None and value != default and (value or default):
            changed[argument.name] = value
    return changed


def compare_settings(checkpoint: str, now: Values, allow_changes: bool) -> list[Changed]:
    """Compare the settings of a run with those of the checkpoint that it resumes from.

    Args:
        checkpoint (`str`): The checkpoint.
        now (`Values`): See [`run_settings`].
        allow_changes (`bool`): Record a difference instead of refusing it.

    Returns:
        `list[Changed]`: The changes so far.

    Raises:
        ValueError: If a setting differs.
    """
    record = read_json_object(Path(checkpoint, SETTINGS), "settings", "changes")
    before = dict(record["settings"])
    before.pop("starting weights", None)  # of version 0.4, whose other arguments count if they were set
    before = {name: value for name, value in before.items() if value or name in now}
    if not allow_changes:
        advice = "Repeat them, or take the changes on purpose with --allow_changes (allow_changes=True)."
        refuse_changes(before, now, checkpoint, advice)
    found = changes(before, now)
    if not found:
        return record["changes"]
    logger.warning(f"{checkpoint} is continued with other settings: {found}")
    step = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json"))).global_step
    return [*record["changes"], {"step": step, "settings": found}]


# What a run has scored -----------------------------------------------------------------------------------------------


def make_results(
    run: RunDescription,
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    weights: str | None = None,
) -> Results:
    """Make the results of a run after training, and write them into `output_dir` in the first process.

    Args:
        run (`RunDescription`): How the run was made.
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.
        weights (`str`, *optional*): The digest of its encoder.

    Returns:
        [`Results`]: The results.
    """
    folder = Path(str(args.output_dir))
    versions = {"simcse_hf": __version__, "python": platform.python_version()}
    for module in (torch, transformers, datasets, accelerate):
        versions[module.__name__] = module.__version__
    results = Results(
        dev=read_history(args, state, dev_sets, run["changes"]),
        model=str(folder.resolve()),
        run=run,
        train_seconds=last_logged(state, "train_runtime"),
        command=command_line(),
        versions=versions,
        weights=weights,
    )
    if state.is_world_process_zero:
        runs = [(folder, results)]
        tasks = {}
        for dev_set in dev_sets:
            if dev_set.what == "general":
                tasks = dict(zip(dev_set.headlines, dev_set.sources.values(), strict=True))
        results = replace(results, change=dev_change(runs), general=general_changes(runs, tasks))
        with write_atomically(folder / "trainer_state.json") as temporary:
            state.save_to_json(str(temporary))
        write_json(folder / RESULTS, results.to_dict())
    return results


def last_logged(state: TrainerState, name: str) -> float | None:
    """Return the last value of a metric in the log of a run, `None` without one."""
    for entry in reversed(state.log_history):
        if name in entry:
            return entry[name]
    return None


def read_history(
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    changes: Sequence[Changed],
) -> DevHistory | None:
    """Read what the evaluations of a run scored from its log, which a resumed run continues.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state, with the log.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.
        changes (`Sequence[Changed]`): What was changed on purpose when the run was resumed.

    Returns:
        `DevHistory`, *optional*: The history; `None` if nothing was evaluated.
    """
    if not dev_sets:
        return None
    sources: dict[str, str] = {}
    for callback in dev_sets:
        sources |= callback.sources
    metric = _main_metric(args, dev_sets[0].headline, sources)
    evaluations = _evaluations(state, metric, changes)
    if not evaluations:
        return None
    initial = evaluations[0]
    later = evaluations[1:] or evaluations
    final = later[-1]
    saved = final
    kept = evaluations
    if args.load_best_model_at_end:
        # The weights that are saved at the end are those of the best checkpoint; the others were not saved.
        best_checkpoint = Path(state.best_model_checkpoint or "").name
        for scored in later:
            if f"checkpoint-{scored.step}" == best_checkpoint:
                saved = scored
        kept = [initial, saved, final]
    choose = max if find_metric(metric).higher_is_better else min
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    return DevHistory(
        # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
        dev_set=sources[max((name for name in sources if metric.startswith(f"{name}_")), key=len)],
        metric=metric,
        start=_start(initial, metric),
        initial=initial,
        best=choose(kept, key=lambda scored: scored.metrics[metric]),
        final=final,
        saved=saved,
        chosen_among=[scored.step for scored in later] if args.load_best_model_at_end and selecting == metric else [],
    )


def _main_metric(args: SimCSETrainingArguments, headline: str, sources: Mapping[str, str]) -> str:
    """Return the metric that selects the best model, if it is one of a dev set, and otherwise the headline."""
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    is_own = selecting.startswith(tuple(f"{name}_" for name in sources))
    if is_own and args.greater_is_better == find_metric(selecting).higher_is_better:
        return selecting
    return headline


def _evaluations(state: TrainerState, metric: str, changes: Sequence[Changed]) -> list[Scored]:
    """Return the evaluations that logged a metric, the last one of each step.

    Scores on a dev set that was changed on purpose cannot be compared with those before.
    """
    begin = 0
    for change in changes:
        if any(setting.startswith("dev set ") for setting in change["settings"]):
            begin = change["step"]
    by_step = {}
    for entry in state.log_history:
        step = int(entry["step"])
        if f"eval_{metric}" in entry and step >= begin:
            metrics = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            by_step[step] = Scored(step, metrics)
    return list(by_step.values())


def _start(initial: Scored, metric: str) -> Start:
    """Return the start as one would use it: with the run's pooler, or with a plain one that scores better."""
    start = Start(initial.step, {metric: initial.metrics[metric]}, metric)
    for pooler in PLAIN_POOLERS:
        name = start_metric(pooler, metric)
        value = initial.metrics.get(name)
        if value is not None and is_better(metric, value, start.metrics[metric]):
            start = Start(initial.step, {metric: value}, name, pooler)
    return start


# What training has changed -------------------------------------------------------------------------------------------


def keep_dev_scores(dev_sets: Sequence[DevSetCallback], state: TrainerState, output_dir: str) -> None:
    """Write what an evaluation scored.

    Args:
        dev_sets (`Sequence[DevSetCallback]`): The dev sets, which were evaluated just now.
        state (`TrainerState`): The step.
        output_dir (`str`): The output directory of the run.
    """
    scores: Scores = {}
    for dev_set in dev_sets:
        scores |= dev_set.scores
    if scores:
        path = Path(output_dir, DEV_SCORES, f"step-{state.global_step}.npz")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(path, scores)


def dev_change(runs: Sequence[tuple[Path, Results]], metric: str | None = None) -> Change | None:
    """Compare the saved weights of a run, or of its repetitions with other seeds, with the start.

    The interval is a percentile bootstrap over the examples of the dev set, on which both are scored, and with several
    seeds over the seeds as well. Where the dev set chose the checkpoint, the interval is moved by the optimism of that
    choice (see [`optimism_of_choice`]), so the difference need not lie in its middle.

    Args:
        runs (`Sequence[tuple[Path, Results]]`): For each seed, the output directory and the results.
        metric (`str`, *optional*): The metric, such as that of a general task. The default is that of the dev set.

    Returns:
        `Change`, *optional*: The change, its difference the mean over the seeds; `None` without the scores of both
        evaluations.
    """
    systems = []
    differences = []
    optimism = []
    for folder, results in runs:
        dev = results.dev
        if dev is None:
            return None
        name = metric or dev.metric
        begin = start_metric(dev.start.pooler, name) if dev.start.pooler else name
        start = _read_scores(folder, dev.start.step, begin)
        saved = _read_scores(folder, dev.saved.step, name)
        if start is None or saved is None:
            return None
        others = []
        for step in dev.chosen_among if name == dev.metric else ():
            scores = _read_scores(folder, step, name)
            if scores is not None and step != dev.saved.step:
                others.append(scores)
        systems += [start, saved]
        optimism.append(optimism_of_choice(start, saved, others) if others else 0.0)
        differences.append(dev.saved.metrics[name] - dev.initial.metrics[begin])
    return change_between(name, systems, float(np.mean(differences)), optimism)


def general_changes(runs: Sequence[tuple[Path, Results]], tasks: Mapping[str, str]) -> list[Change]:
    """Compare the saved weights with the start on general tasks, as [`dev_change`] does on the dev set.

    Args:
        runs (`Sequence[tuple[Path, Results]]`): As there.
        tasks (`Mapping[str, str]`): The file of each task by its metric.

    Returns:
        `list[Change]`: The changes on the tasks that both evaluations scored.
    """
    changes = []
    for metric, source in tasks.items():
        change = dev_change(runs, metric)
        if change is not None:
            changes.append(replace(change, source=source))
    return changes


def _read_scores(folder: Path, step: int, metric: str) -> Any:
    path = folder / DEV_SCORES / f"step-{step}.npz"
    return read_arrays(path, "train the model again.").get(metric) if path.is_file() else None
