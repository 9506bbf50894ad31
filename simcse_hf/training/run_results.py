"""What a run records of itself and says at its end: its settings, its scores, what changed, and how it was made."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import accelerate
import datasets
import torch
import transformers
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from .._version import __version__
from ..evaluation.bootstrap import Parts, optimism_of_choice
from ..evaluation.metrics import find_metric, with_scale
from ..models.modeling import ContrastiveModel
from ..models.settings import Values, dropout_rates
from ..publishing.secrets import command_line
from ..runtime.errors import changes, refuse_changes
from ..runtime.files import as_written, read_arrays, read_json, write_atomically, write_json
from ..runtime.outputs import Result
from .arguments import SimCSETrainingArguments
from .checkpoints import DEV_SCORES, RESULTS
from .dev_sets import PLAIN_POOLERS, Change, DevSetCallback, change_between
from .rows import Rows

logger = logging.get_logger(__name__)

#: The settings of a run in each of its checkpoints, and what was changed at which step.
SETTINGS = "run_settings.json"
# Prefixes of arguments that decide where a run writes and what it reports, but not what it learns.
_NOT_HYPERPARAMETERS = tuple(
    "output_dir run_name project report_to logging_ log_ save_ hub_ push_to_hub trackio disable_tqdm do_ local_rank "
    "accelerator_config fsdp resume_from_checkpoint dataloader_num_workers dataloader_pin_memory use_cpu "
    "include_".split()
)
# Further prefixes of arguments that may change when a run is resumed: evaluation, speed, checks, and names of files
# that have digests among the settings.
_FREE = tuple(
    "eval_ per_device_eval_ load_best_ prediction_loss_only batch_eval_ jit_ enable_jit_ fp16_f bf16_f torch_compile "
    "dataloader_pr dataloader_pe ddp_ debug skip_memory allow_ stop_on_ gradient_checkpointing "
    "activation_checkpointing restore_callback train_file remove_unused deepspeed teacher guide "
    "ignore_data_skip metric_for_best greater_is".split()
)


@dataclass(frozen=True, kw_only=True)
class Results(Result):
    """The results of a training run: the content of its `results.json`.

    An evaluation is a table of its `step` and of what it scored, on a scale of 0 to 100.

    Args:
        dev_set (`str`, *optional*): The file of the dev set that decides. Without a dev set, all of these are `None`.
        dev_metric (`str`, *optional*): Its main metric, such as `stsb_spearman`: the one that selects the best model,
            if it is one of a dev set, and otherwise the headline of the first.
        initial (`Values`, *optional*): The evaluation of the start, as the run pools it.
        best (`Values`, *optional*): The best evaluation; it may be the start.
        final (`Values`, *optional*): The last one.
        start (`Values`, *optional*): The start as one would use it: an encoder that names no pooler is used with the
            better of two plain ones, its `pooler`, and not through a head that was drawn a minute ago. Its score has
            the name `metric` in the evaluation.
        saved (`Values`, *optional*): The evaluation of the weights that were saved.
        chosen_among (`list[int]`, *optional*): The steps of the evaluations that chose the saved weights by the main
            metric.
        model (`str`): The folder of the model.
        run (`Values`): How the run was made, see [`~trainer.SimCSETrainer.describe_run`].
        train_seconds (`float`, *optional*): How long training took.
        command (`list[str]`): The command line.
        versions (`dict[str, str]`): Versions of the packages.
        change (`Change`, *optional*): What training has changed on the dev set. Only the first process has it.
        general (`list[Change]`): What training has changed on general tasks. Only the first process has it.
        weights (`str`, *optional*): The digest of the encoder, by which a card knows the model; `None` if it is
            sharded, or saved as an adapter.
        seeds (`Values`, *optional*): With several seeds, the results of all, see [`~seeds.summarise`].

    Examples:
        >>> from simcse_hf.training.run_results import Results
        >>> results = Results.read("outputs/my-model")
        >>> results.dev_metric, results.final["step"]
        ('stsb_spearman', 70)
        >>> results.change.low > 0  # the lower end of the interval: the model has become better
        True
    """

    dev_set: str | None = None
    dev_metric: str | None = None
    initial: Any = None
    best: Any = None
    final: Any = None
    start: Any = None
    saved: Any = None
    chosen_among: list[int] | None = None
    model: str
    run: Values
    train_seconds: float | None = None
    command: list[str] = field(default_factory=list)
    versions: Mapping[str, str] = field(default_factory=dict)
    change: Change | None = None
    general: list[Change] = field(default_factory=list)
    weights: str | None = None
    seeds: Values | None = None

    def to_dict(self) -> Values:
        """Return the content of results.json, in which what `run` holds stands among the rest."""
        content = asdict(self)
        content |= content.pop("run")
        if self.dev_metric is not None:
            content[self.dev_metric] = {when: self.score(when) for when in ("initial", "best", "final")}
        if self.seeds is None:
            del content["seeds"]
        return content

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
        advice = "Delete it and repeat the command."
        run = read_json(Path(folder, RESULTS), advice=advice)
        with as_written(Path(folder, RESULTS), advice):
            run.pop(run["dev_metric"], None)
            own = {each.name: run.pop(each.name, None) for each in fields(cls) if each.name != "run"}
            own["change"] = own["change"] and Change(**own["change"])
            own["general"] = [Change(**change) for change in own["general"] or ()]
            return cls(run=run, **own)

    def score(self, when: str) -> float:
        """Return the main metric of an evaluation, such as `"saved"`."""
        return getattr(self, when)[self.dev_metric]

    @property
    def is_worse(self) -> bool:
        """Whether the saved weights score worse than the start."""
        return self.dev_metric is not None and is_better(self.dev_metric, self.score("start"), self.score("saved"))

    def __str__(self) -> str:
        # The trainer of one run has said its verdict.
        return self.where() if self.seeds is None else f"{self.verdict()}{self.where()}"

    def verdict(self) -> str:
        """Say what the dev set scored at the start, with the saved weights and at the end; empty without one."""
        metric = self.dev_metric
        if metric is None:
            return ""
        if self.seeds is None:
            scale = "Spearman x 100" if metric.endswith("_spearman") else with_scale(metric)
            pooler = ""
            if self.start["pooler"] is not None:
                own = f"{self.score('initial'):.2f} with the pooler of this run"
                pooler = f"   (pooler {self.start['pooler']}; {own})"
            if self.run.get("earlier_steps"):
                pooler += f"   (after {self.run['earlier_steps']} earlier steps)"
            saved = "best" if self.saved["step"] == self.best["step"] and not self.is_worse else "saved"
            lines = [
                f"Dev set {Path(str(self.dev_set)).name}, {scale}",
                f"  before training   {self.score('start'):6.2f}{pooler}",
                f"  {saved:<17} {self.score('saved'):6.2f}   (step {self.saved['step']})",
                f"  last step         {self.score('final'):6.2f}   (step {self.final['step']})",
            ]
        else:
            runs = self.seeds["runs"]
            lines = [f"{with_scale(metric)} on the dev set, mean ± standard deviation over {len(runs)} seeds"]
            for when, label in {"start": "before training", "saved": "saved weights", "final": "last step"}.items():
                spread = f" ± {self.seeds['sd'][when][metric]:.2f}" if len(runs) > 1 else ""
                each = ", ".join(f"{run['seed']}: {run[when][metric]:.2f}" for run in runs)
                lines.append(f"  {label:<17} {self.seeds['mean'][when][metric]:6.2f}{spread}   ({each})")
        if self.change is not None:
            lines.append(f"  change           {self.change}")
        lines += [f"  general task     {change}" for change in self.general]
        if self.seeds is not None:
            lines.append(f"Seed {self.seeds['published']} is the best one on the dev set.")
        return "\n".join(["", *lines, ""])

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
            if self.dev_metric is None:
                reason = f"Without a dev set nothing says which seed is best, so that of seed {seed} is published.\n"
            return f"{reason}The model of seed {seed} is saved in {folder}, with {path.name} over all seeds."
        which = "best" if self.run["arguments"].get("load_best_model_at_end") else "last"
        worse = ", which is worse than the start," if self.is_worse else ""
        return f"The {which} model of the training{worse} is saved in {folder}; its metrics are in {path}."

    def warning(self) -> str:
        """Return what to say if the saved weights score worse than the start."""
        metric = str(self.dev_metric)
        pooler = f" with the pooler {self.start['pooler']}" if self.start["pooler"] else ""
        change = f" ({self.change})" if self.change else ""
        is_sure = "not significant" not in change
        verdict = "Training has made the model worse" if is_sure else "Training may have made the model worse"
        advice = "no evaluation was better than the start"
        if is_better(metric, self.score("best"), self.score("start")):
            advice = f"step {self.best['step']} was better: save it with load_best_model_at_end"
        return (
            f"{verdict}: {metric} was {self.score('start'):.2f} at step {self.start['step']}"
            f"{pooler} and is {self.score('saved'):.2f} with the saved weights of step {self.saved['step']}{change}; "
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


def compare_settings(checkpoint: str, now: Values, allow_changes: bool) -> list[Values]:
    """Compare the settings of a run with those of the checkpoint that it resumes from.

    Args:
        checkpoint (`str`): The checkpoint.
        now (`Values`): See [`run_settings`].
        allow_changes (`bool`): Record a difference instead of refusing it.

    Returns:
        `list[Values]`: The changes so far.

    Raises:
        ValueError: If a setting differs.
    """
    record = read_json(Path(checkpoint, SETTINGS), "settings", "changes")
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
    run: Values,
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    weights: str | None = None,
) -> Results:
    """Make the results of a run after training, and write them into `output_dir` in the first process.

    Args:
        run (`Values`): How the run was made.
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
        model=str(folder.resolve()),
        run=run,
        train_seconds=last_logged(state, "train_runtime"),
        command=command_line(),
        versions=versions,
        weights=weights,
        **dev_history(args, state, dev_sets, run["changes"]),
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


def dev_history(
    args: SimCSETrainingArguments,
    state: TrainerState,
    dev_sets: Sequence[DevSetCallback],
    changes: Sequence[Values],
) -> Values:
    """Read what the evaluations of a run scored from its log, which a resumed run continues.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run.
        state (`TrainerState`): Its state, with the log.
        dev_sets (`Sequence[DevSetCallback]`): Its dev sets.
        changes (`Sequence[Values]`): What was changed on purpose when the run was resumed.

    Returns:
        `Values`: What [`Results`] says of the dev set; nothing if none was evaluated.
    """
    # 1. The main metric selects the best model, if it is one of a dev set; otherwise it is the first headline.
    if not dev_sets:
        return {}
    sources: dict[str, str] = {}
    for dev_set in dev_sets:
        sources |= dev_set.sources
    selecting = (args.metric_for_best_model or "").removeprefix("eval_")
    metric = dev_sets[0].headline
    if selecting.startswith(tuple(f"{name}_" for name in sources)):
        metric = selecting

    # 2. The evaluations that logged it, the last one of each step. Scores on a dev set that was changed on purpose
    # cannot be compared with those before.
    begin = 0
    for change in changes:
        if any(setting.startswith("dev set ") for setting in change["settings"]):
            begin = change["step"]
    by_step: dict[int, Values] = {}
    for entry in state.log_history:
        step = int(entry["step"])
        if f"eval_{metric}" in entry and step >= begin:
            metrics = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
            by_step[step] = {"step": step, **metrics}
    if not by_step:
        return {}
    initial, *later = by_step.values()
    later = later or [initial]

    # 3. The start as one would use it: with the run's pooler, or with a plain one that scores better.
    start = {"step": initial["step"], "pooler": None, "metric": metric, metric: initial[metric]}
    for pooler in PLAIN_POOLERS:
        name = f"start_{pooler}_{metric}"
        if name in initial and is_better(metric, initial[name], start[metric]):
            start |= {"pooler": pooler, "metric": name, metric: initial[name]}

    # 4. The weights that are saved at the end are those of the best checkpoint; the others were not saved.
    saved = final = later[-1]
    kept = [initial, *later]
    if args.load_best_model_at_end:
        best_checkpoint = Path(state.best_model_checkpoint or "").name
        for scored in later:
            if f"checkpoint-{scored['step']}" == best_checkpoint:
                saved = scored
        kept = [initial, saved, final]
    choose = max if find_metric(metric).higher_is_better else min
    chooses = args.load_best_model_at_end and selecting == metric
    return {
        # "pairs_more_average_precision" is a metric of the dev set "pairs_more" and not of "pairs".
        "dev_set": sources[max((name for name in sources if metric.startswith(f"{name}_")), key=len)],
        "dev_metric": metric,
        "initial": initial,
        "best": choose(kept, key=lambda scored: scored[metric]),
        "final": final,
        "start": start,
        "saved": saved,
        "chosen_among": [scored["step"] for scored in later] if chooses else [],
    }


# What training has changed -------------------------------------------------------------------------------------------


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
        scores = dev_scores(folder, results, metric)
        if scores is None:
            return None
        systems += [scores.start, scores.saved]
        optimism.append(scores.optimism)
        differences.append(scores.difference)
    return change_between(metric or str(runs[0][1].dev_metric), systems, differences, optimism)


@dataclass(frozen=True)
class DevScores:
    """What the start and the saved weights of a run scored in each example of a dev set.

    Args:
        start (`Parts`): Of the start, as one would use it.
        saved (`Parts`): Of the saved weights.
        optimism (`float`): By how much the change is too high because the dev set chose the checkpoint.
        difference (`float`): The change of the metric.
    """

    start: Parts
    saved: Parts
    optimism: float
    difference: float


def dev_scores(folder: Path, results: Results, metric: str | None = None) -> DevScores | None:
    """Read what the start and the saved weights of a run scored in each example of a dev set.

    Args:
        folder (`Path`): The output directory of the run.
        results (`Results`): Its results.
        metric (`str`, *optional*): The metric, such as that of a general task. The default is that of the dev set.

    Returns:
        [`DevScores`], *optional*: The scores; `None` without those of both evaluations.
    """
    if results.dev_metric is None:
        return None
    name = metric or results.dev_metric
    pooler = results.start["pooler"]
    begin = f"start_{pooler}_{name}" if pooler else name
    saved_step = results.saved["step"]
    start = _read_scores(folder, results.start["step"], begin)
    saved = _read_scores(folder, saved_step, name)
    if start is None or saved is None:
        return None
    others = []
    for step in results.chosen_among or () if name == results.dev_metric else ():
        scores = _read_scores(folder, step, name)
        if scores is not None and step != saved_step:
            others.append(scores)
    optimism = optimism_of_choice(start, saved, others) if others else 0.0
    return DevScores(start, saved, optimism, results.saved[name] - results.initial[begin])


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
