"""The folder of a run: protected from other runs, with checkpoints that are whole or absent, and resumed."""

import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import HfApi
from huggingface_hub.utils import tqdm as hub_tqdm
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler
from tqdm import tqdm
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import ExportableState, ProgressCallback
from transformers.trainer_jit_checkpoint import JITCheckpointCallback
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import EvalLoopOutput, HubStrategy
from transformers.utils import PushInProgress, logging

from ..data.samplers import RepeatableSampler
from ..models.checkpoint import replace_model, save_tokenizer
from ..models.modeling import preserve_random_state
from ..runtime.distributed import lock_together, on_first_process, same_noise, wait_for_all
from ..runtime.errors import ModelError, SettingError, SimCSEError
from ..runtime.files import MANIFEST, STAGING, StrPath, folder_problem, remove, replace_files, write_manifest
from ..runtime.upload import CommitOptions, commit_checkpoint, commit_folder, public_files
from .decide import with_values
from .watch import FiniteWeights, RunBar, RunPrinter

logger = logging.get_logger(__name__)

#: The results of a run, the folder with the scores of each of its evaluations, and what several seeds have in common.
RESULTS = "results.json"
DEV_SCORES = "_dev_scores"
SEEDS = "_seeds.json"
#: A checkpoint to resume from; `True` is the newest whole one.
CheckpointName = StrPath | bool

_WHEN_FULL = (
    ", so {} was not written. Checkpoints saved earlier are untouched: free some space and continue with "
    "--resume_from_checkpoint true"
)

# One of several processes on a CPU has the device "cpu:0", to which transformers before 5.18 loads the optimizer's
# state, and torch knows no such place.
torch.serialization.register_package(
    9, lambda storage: None, lambda storage, place: storage if place.startswith("cpu:") else None
)


def checkpoints(directory: StrPath) -> list[Path]:
    """List the checkpoints of a run by step, the newest first; folders with other names are left out."""
    by_step = {}
    for path in Path(directory).glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            by_step[int(step)] = path
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def newest_whole_checkpoint(directory: StrPath) -> str | None:
    """Return the newest whole checkpoint of a run, and log the damaged ones that are passed over.

    Args:
        directory (`str` or `os.PathLike`): The `output_dir` of the run.

    Returns:
        `str`, *optional*: The path of the checkpoint; `None` if there is no checkpoint at all.

    Raises:
        ModelError: If there are checkpoints and all of them are damaged.
    """
    problems = []
    for checkpoint in checkpoints(directory):
        problem = folder_problem(checkpoint)
        if problem is None:
            return str(checkpoint)
        problems.append(f"{checkpoint.name}: {problem}")
        logger.warning(f"{checkpoint} is passed over because {problem}.")
    if problems:
        raise ModelError(
            f"{directory} holds no whole checkpoint to resume from ({'; '.join(problems)}). Restore one of them from "
            "a backup, or start again with --overwrite_output_dir."
        )
    return None


def check_foreign(directory: Path) -> None:
    """Refuse an `output_dir` with a model or checkpoints that no run of this package wrote, before it is touched.

    Args:
        directory (`Path`): The directory.

    Raises:
        SettingError: If there are such files, which a run would replace or delete.
    """
    marks = [directory / RESULTS, directory / SEEDS, *directory.glob(f"checkpoint-*/{MANIFEST}")]
    if any(path.exists() for path in marks):
        return
    for name in ("config.json", "adapter_config.json", "modules.json", "checkpoint-*/config.json"):
        for path in directory.glob(name):
            raise SettingError(
                f"{directory} holds a model that no run of simcse-hf wrote ({path.name}), and nothing may replace it: "
                "choose another --output_dir"
            )


def check_output_dir(args: TrainingArguments, overwrite: bool, inputs: Iterable[tuple[str, StrPath]]) -> None:
    """Refuse an `output_dir` that holds another run, unless resuming or overwriting was requested.

    The Trainer verifies the checkpoint when training begins.

    Args:
        args (`TrainingArguments`): Names the directory and the checkpoint.
        overwrite (`bool`): Whether [`clear_output_dir`] may delete the checkpoints and results of an earlier run.
        inputs (`Iterable[tuple[str, StrPath]]`): Options that name a file or folder that the run reads, with its path.

    Raises:
        SettingError: If the directory holds another run, or one of the inputs would be deleted.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    earlier = checkpoints(directory)
    deleted = [folder.resolve() for folder in (*earlier, *directory.glob("seed-*"))]
    for name, path in inputs:
        source = Path(path).resolve()
        is_lost = source == directory.resolve() or any(source.is_relative_to(folder) for folder in deleted)
        if overwrite and is_lost:
            raise SettingError(
                f"{name} {path} is a part of the earlier run in {directory}, which --overwrite_output_dir deletes: "
                "choose another --output_dir"
            )
    results = [name for name in (RESULTS, SEEDS) if (directory / name).exists()]
    if not overwrite and (earlier or results):
        raise SettingError(
            f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start again with "
            "--overwrite_output_dir, or choose another --output_dir."
        )


def clear_output_dir(args: TrainingArguments) -> None:
    """Delete the checkpoints and results of an earlier run, unless this one resumes it.

    Args:
        args (`TrainingArguments`): Names the directory, which [`check_output_dir`] has checked.
    """
    if args.resume_from_checkpoint is not None or args.process_index > 0:
        return
    directory = Path(str(args.output_dir))
    for folder in (*checkpoints(directory), directory / STAGING, directory / DEV_SCORES):
        shutil.rmtree(folder, ignore_errors=True)
    for name in (RESULTS, SEEDS):
        (directory / name).unlink(missing_ok=True)


def resolve_checkpoint(resume: CheckpointName, output_dir: str) -> str:
    """Choose the checkpoint to resume from; the first process verifies it for all of them.

    Args:
        resume (`str`, `os.PathLike` or `bool`): A checkpoint, or `True` or `"true"` for the newest whole one.
        output_dir (`str`): Where the checkpoints of the run are.

    Returns:
        `str`: The path of the checkpoint, the same in all processes.

    Raises:
        ValueError: If there is no whole checkpoint, in all processes.
    """

    def find() -> str:
        if str(resume).lower() == "true":
            checkpoint = newest_whole_checkpoint(output_dir)
            if checkpoint is None:
                raise SettingError(
                    f"{output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint"
                )
        else:
            checkpoint = str(resume)
            problem = folder_problem(checkpoint) if Path(checkpoint).is_dir() else "there is no such folder"
            if problem:
                raise ModelError(
                    f"the run cannot be resumed from {checkpoint}: {problem}. Name another checkpoint, or resume from "
                    "the newest whole one with --resume_from_checkpoint true."
                )
        if not any(Path(checkpoint).glob("rng_state*")):
            logger.warning(
                f"{checkpoint} holds the model only, because the run had save_only_model set: the optimizer, the "
                "schedule and the random state start anew, so the result differs from that of an uninterrupted run."
            )
        return checkpoint

    return on_first_process(find)


def delete_old_checkpoints(directory: Path, limit: int | None, keep: Iterable[Path]) -> None:
    """Delete the checkpoints that were written first; at the same time, that of the lower step.

    transformers would also delete a folder such as `checkpoint-old`.

    Args:
        directory (`Path`): The folder of the run.
        limit (`int`, *optional*): How many are left; all of them without a limit above 0.
        keep (`Iterable[Path]`): Those that stay in any case.
    """
    if limit is None or limit < 1:
        return
    found = checkpoints(directory)
    kept = {path.resolve() for path in keep}
    others = [path for path in reversed(found) if path.resolve() not in kept]
    others.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in others[: max(0, len(found) - limit)]:
        remove(path)


def never_end_training(tracker: Any) -> None:
    """Turn the errors of a tracker, such as a server that is away or a full disk, into warnings.

    Args:
        tracker (`TrainerCallback`): The callback, which is changed. It stays in use: the server may come back.
    """
    name = type(tracker).__name__

    def guarded(event: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return event(*args, **kwargs)
            except Exception as error:  # of any kind: each tracker has its own
                logger.warning_once(f"{name} failed ({type(error).__name__}: {error}). Training goes on without it.")

        return call

    for event in dir(tracker):
        if event.startswith("on_") and event not in vars(tracker):  # or it is guarded already
            setattr(tracker, event, guarded(getattr(tracker, event)))


@contextmanager
def explain_refusal(*kinds: type[Exception]) -> Iterator[None]:
    """Turn an error of some kinds, in which transformers or torch refuses arguments, into a `SettingError`."""
    try:
        yield
    except SimCSEError:
        raise
    except kinds as error:
        raise SettingError(f"transformers refuses the arguments: {error}") from error


#: What belongs to a checkpoint, and not to the model in it.
_OF_A_RUN = ("trainer_state.json", "run_settings.json", MANIFEST)
#: Where a strategy pushes a checkpoint; `None` is a folder of its own.
_PLACES: dict[Any, str | None] = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: None}


class WholeCheckpointTrainer(Trainer):
    """transformers' Trainer for models of any kind, whose runs may be killed at any time and are resumed exactly.

    A checkpoint is whole or absent, and resuming compares it with its manifest of digests. A model that is saved takes
    the place of an earlier one as a whole. Weights that are not finite are never saved and end the run with an error.
    SIGTERM and SIGINT save a checkpoint before they end the run, and no second process writes into its folder. A
    resumed run ends with the weights of an uninterrupted one: it draws the same batches and the same noise. A push is
    one commit of what `simcse-hf push` would upload, without anything about the machine.

    A subclass may keep what else it needs in [`add_to_checkpoint`], take it in [`continue_from`], and save its model
    in another form in [`write_model`].

    Args:
        args (`Any`): As in transformers: the model, the arguments, the data.
        kwargs (`Any`): As in transformers, with the tokenizer as `processing_class`.

    Raises:
        ModelError: If an evaluation would leave the weights in half precision.

    Attributes:
        resumed_from (`str`): The checkpoint that the last call of `train` continued from, if there was one.

    Examples:
        >>> from transformers import AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling
        >>> from transformers import TrainingArguments
        >>> from simcse_hf import WholeCheckpointTrainer
        >>> tokenizer = AutoTokenizer.from_pretrained("outputs/my-model")
        >>> model = AutoModelForMaskedLM.from_pretrained("outputs/my-model")
        >>> rows = [tokenizer("The chef cooked the soup.")] * 16
        >>> args = TrainingArguments("outputs/whole", max_steps=2, save_steps=1, report_to="none", disable_tqdm=True)
        >>> masks = DataCollatorForLanguageModeling(tokenizer)
        >>> trainer = WholeCheckpointTrainer(model, args, masks, rows, processing_class=tokenizer)
        >>> trainer.train(resume_from_checkpoint=None).global_step
        2
        >>> trainer.train(resume_from_checkpoint="outputs/whole/checkpoint-1").global_step
        2
    """

    #: Whether a checkpoint is being written.
    is_saving = False
    #: What a run that continues a checkpoint has changed on purpose.
    changes: Sequence[Any] = ()
    resumed_from: str | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        self.saved = SavedCheckpoints()
        self.stop_on_signal = StopOnSignal()
        # The last callbacks see what the others request.
        own = (self.saved, self.stop_on_signal, FiniteWeights())
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), *own]
        with explain_refusal(ImportError, ValueError):
            super().__init__(*args, **kwargs)
            optimized: Any = self.model
            self.get_optimizer_cls_and_kwargs(self.args, optimized)  # or refuse now what would end the run
        if self.args.bf16_full_eval or self.args.fp16_full_eval:
            raise SettingError(
                "bf16_full_eval and fp16_full_eval would leave the weights in half precision after an evaluation: "
                "leave them out"
            )
        jit: Any = self.pop_callback(JITCheckpointCallback)
        if jit is not None:  # its handler would stay after a run; ours saves the checkpoint
            signal.signal(signal.SIGTERM, jit.jit_manager._original_sigterm_handler)
        callbacks: Any = self.callback_handler.callbacks
        if type(callbacks[-1]) is PrinterCallback:
            callbacks[-1] = RunPrinter()
        elif type(callbacks[-1]) is ProgressCallback:  # a notebook has a table of transformers
            callbacks[-1] = RunBar()

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator as transformers does, also for each trial of a search."""
        super().create_accelerator_and_postprocess()
        self.accelerator.gradient_accumulation_steps = 1  # transformers 5.2 divides, and Accelerate would once more

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer as transformers does, or refuse its arguments."""
        with explain_refusal(ValueError):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Create the schedule as transformers does, or refuse its arguments."""
        with explain_refusal(TypeError, ValueError):  # lr_scheduler_kwargs are arguments of a function
            return super().create_scheduler(*args, **kwargs)

    def train(
        self,
        resume_from_checkpoint: CheckpointName | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train as transformers does, with the folder of the run locked and signals caught.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*): A checkpoint, or `True` for the newest
                whole checkpoint in `output_dir`. The default is that of the arguments; `False` begins anew.
            trial (`Any`, *optional*): As in transformers.
            ignore_keys_for_eval (`list[str]`, *optional*): As in transformers.

        Returns:
            `TrainOutput`: As in transformers.

        Raises:
            ValueError: If there is no whole checkpoint to resume from, or another process writes into the folder.
            FloatingPointError: If a weight is not finite.
            SystemExit: After SIGTERM, with status 143.
            KeyboardInterrupt: After SIGINT.
        """
        self.resumed_from = None
        if resume_from_checkpoint is None and trial is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        if resume_from_checkpoint:
            self.resumed_from = os.path.abspath(resolve_checkpoint(resume_from_checkpoint, str(self.args.output_dir)))
            self.continue_from(Path(self.resumed_from))
        self.saved.resumed_from = self.resumed_from
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, tuple(INTEGRATION_TO_CALLBACK.values())):
                never_end_training(callback)
        directory = Path(self._get_output_dir(trial))  # a trial of a search has its own
        asked = self.args
        limit = self.saved.limit = asked.save_total_limit
        with lock_together(directory), self.stop_on_signal.caught(self.args):
            # transformers, which would also delete a folder such as `checkpoint-4.bak`, does not see the limit.
            self.args = with_values(asked, save_total_limit=None)
            try:
                output = super().train(self.resumed_from, trial, ignore_keys_for_eval)
                best = self.state.best_model_checkpoint
                if limit == 1 and best is not None and self.args.should_save:
                    delete_old_checkpoints(directory, limit, [Path(best)])
                return output
            except (SystemExit, KeyboardInterrupt):
                if self.stop_on_signal.stopping:  # The checkpoint is whole: close the trackers, finish the upload.
                    self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
                    self._finish_current_push()
                raise
            finally:
                self.use_saved_weights()
                self.args = asked

    def continue_from(self, checkpoint: Path) -> None:
        """Give the callbacks the states that they have in a checkpoint, such as the patience of early stopping.

        Args:
            checkpoint (`Path`): The folder of a whole checkpoint.
        """
        saved = TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).stateful_callbacks
        states = {name: state if isinstance(state, list) else [state] for name, state in saved.items()}
        # Several callbacks of a class have a list, which an earlier version began with their states at the start.
        for callback in reversed(self.callback_handler.callbacks):
            own = states.get(type(callback).__name__)
            if own and isinstance(callback, ExportableState):
                for name, value in own.pop().get("attributes", {}).items():
                    setattr(callback, name, value)

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """Evaluate as transformers does, without a draw from the noise of training: a loader draws a seed."""
        with preserve_random_state(self.args.device):
            return super().evaluation_loop(dataloader, *args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as transformers does, and refuse a `metric_for_best_model` that no evaluation computes."""
        metrics = super()._evaluate(*args, **kwargs)
        wanted = (self.args.metric_for_best_model or "").removeprefix("eval_")
        known = [name.removeprefix("eval_") for name in metrics if not name.endswith(("runtime", "per_second"))]
        if wanted and wanted not in known:
            # Without what is no score, and what only the evaluation of the start has.
            names = [repr(name) for name in known if name != "epoch" and not name.startswith("start_")]
            raise SettingError(
                f"metric_for_best_model={wanted!r} is no metric of this run: take one of {', '.join(names)}"
            )
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_best = super()._determine_best_metric(metrics, trial)
        wanted = self.args.metric_for_best_model
        if wanted is not None:
            self.saved.scores[self.state.global_step] = metrics[f"eval_{wanted.removeprefix('eval_')}"]
            self.saved.choose_best(self.args, self.state)
        return is_best

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, RandomSampler) and self.accelerator.use_seedable_sampler:
            return sampler  # which Accelerate makes repeatable
        if not isinstance(sampler, (RandomSampler, LengthGroupedSampler)):
            return sampler
        return RepeatableSampler(sampler, self.args.seed if self.args.data_seed is None else self.args.data_seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler:
        # As the rows are, whatever samples those of training. transformers 5.2 drew the batches anew each time.
        return SequentialSampler(eval_dataset)

    def get_train_dataloader(self) -> DataLoader:
        """Make the loader; each process then draws noise of its own, such as its dropout masks."""
        # Accelerate takes the seed of the rows' order from the noise.
        with explain_refusal(ValueError), same_noise(self.args.seed):
            return super().get_train_dataloader()

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, *args: Any) -> Any:
        """Take the batches of a step; none if a finished run was resumed, of which transformers takes one more."""
        is_finished = self.state.global_step >= self.state.max_steps
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and self.resumed_from is not None:
                is_finished |= callback.early_stopping_patience_counter >= callback.early_stopping_patience
        if not is_finished:
            return super().get_batch_samples(epoch_iterator, num_batches, *args)
        self.control.should_training_stop = True
        return [], None

    def use_saved_weights(self) -> None:
        """Let an optimizer with two modes, such as a schedule-free one, give the weights to evaluate and save.

        The next step takes it back to those that it trains.
        """
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()  # type: ignore[union-attr]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as transformers does."""
        self.use_saved_weights()
        super().save_model(*args, **kwargs)

    def _load_best_model(self) -> None:
        self.use_saved_weights()  # now: later, the optimizer would change those that are loaded
        super()._load_best_model()

    def add_to_checkpoint(self, folder: Path) -> None:
        """Write what a subclass needs to resume, beside what transformers needs. Every process calls it.

        Args:
            folder (`Path`): The folder of the checkpoint while it is staged.
        """

    def write_model(self, folder: Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Write the weights and the config of the model, in one process.

        Args:
            folder (`Path`): A folder without an earlier model.
            state_dict (`dict[str, torch.Tensor]`, *optional*): The weights. The default is those of the model.
        """
        model: Any = self.model
        model.save_pretrained(folder, state_dict=state_dict)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Write the model with its tokenizer, in place of an earlier one in the folder."""
        if not self.args.should_save:
            return
        directory = Path(output_dir or str(self.args.output_dir))
        place: AbstractContextManager = nullcontext(directory)
        if not self.is_saving:  # a checkpoint, whose folder is new
            self.model.folders = (*getattr(self.model, "folders", ()), str(directory))  # type: ignore
            place = replace_model(directory, getattr(self.model, "save_adapter", False))
        with place as folder:
            folder.mkdir(parents=True, exist_ok=True)
            self.write_model(folder, state_dict)
            save_tokenizer(self.processing_class, folder, self.model)
            # Whoever gets the model must not get the token with which it is pushed.
            shared = with_values(
                self.args, hub_token=None, save_total_limit=self.args.save_total_limit or self.saved.limit
            )
            torch.save(shared, folder / "training_args.bin")

    def _get_output_dir(self, trial: Any) -> str:
        directory = super()._get_output_dir(trial)
        return os.path.join(directory, STAGING) if self.is_saving else directory

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint as transformers does, but under another name until all of it is there."""
        state, args = self.state, self.args
        directory = Path(self._get_output_dir(trial))
        checkpoint = directory / f"checkpoint-{state.global_step}"
        # The states of the callbacks, of which transformers expects those that were there when the run began.
        exported: Any = [*self.callback_handler.callbacks, self.control]
        exported = [callback for callback in exported if isinstance(callback, ExportableState)]
        states: Any = TrainerState(stateful_callbacks=exported).stateful_callbacks
        state.stateful_callbacks |= dict.fromkeys(states)  # type: ignore[operator]
        advice = _WHEN_FULL.format(checkpoint.name)
        with replace_files(directory, checkpoint.name, writes=args.should_save, advice=advice):
            wait_for_all()
            self.is_saving = True
            try:
                super()._save_checkpoint(model, trial)
                folder = directory / STAGING / checkpoint.name
                state.stateful_callbacks |= states
                self.add_to_checkpoint(folder)
                wait_for_all()
                self.saved.folders[state.global_step] = checkpoint
                self.saved.choose_best(args, state)
                if args.should_save:
                    state.save_to_json(str(folder / "trainer_state.json"))
                    write_manifest(folder)
            finally:
                self.is_saving = False
        # Now that it is whole, older ones may go.
        if args.should_save:
            best = Path(state.best_model_checkpoint or checkpoint)
            delete_old_checkpoints(directory, self.saved.limit, (checkpoint, best))
        wait_for_all()
        if args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load their states; a run with other settings than those of the checkpoint keeps its own rates.

        Its first step then has the learning rate that a run with these settings would have at this step.
        """
        optimizer: Any = self.optimizer
        names = ("initial_lr", "weight_decay", "betas", "eps", "momentum")
        settings = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if not self.changes:
            return
        schedule: Any = self.lr_scheduler
        for number, (group, own) in enumerate(zip(optimizer.param_groups, settings, strict=True)):
            factor = group["lr"] / group["initial_lr"] if group.get("initial_lr") else 1.0
            if isinstance(schedule, LambdaLR):
                factor = schedule.lr_lambdas[number](schedule.last_epoch)
            group.update(own)
            group["lr"] = own["initial_lr"] * factor
        schedule.base_lrs = [own["initial_lr"] for own in settings]
        schedule._last_lr = [group["lr"] for group in optimizer.param_groups]

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a whole checkpoint in the background, as `hub_strategy` says; the output directory becomes its model.

        Nothing is pushed while an earlier push goes on. With `hub_always_push` the checkpoint has waited for its end.
        """
        args = self.args
        if self.is_saving:  # An earlier push may read a checkpoint that this one replaces or deletes.
            if args.hub_always_push or args.hub_strategy in _PLACES:
                self._finish_current_push()
            return
        running: Any = self.push_in_progress
        is_busy = running is not None and not running.is_done()
        if is_busy or args.hub_strategy == HubStrategy.END or not self.is_world_process_zero():
            return
        tqdm.set_lock(hub_tqdm.get_lock())  # one for the bars of this thread and of the push, which share a set
        self.callback_handler.on_push_begin(args, self.state, self.control)
        checkpoint = Path(checkpoint_folder)
        with replace_model(str(args.output_dir), getattr(self.model, "save_adapter", False)) as folder:
            for path in public_files(checkpoint):
                if path not in _OF_A_RUN:
                    (folder / path).parent.mkdir(exist_ok=True)
                    shutil.copy(checkpoint / path, folder / path)
        api = HfApi(token=args.hub_token, library_name="simcse_hf")
        repo_id = str(self.hub_model_id)
        message = f"Training in progress, step {self.state.global_step}"

        def upload() -> None:
            options: CommitOptions = {"commit_message": message, "revision": args.hub_revision}
            try:
                commit_folder(api, str(args.output_dir), repo_id, **options)
                if args.hub_strategy in _PLACES:
                    options["commit_message"] = f"{message}, checkpoint"
                    place = _PLACES[args.hub_strategy] or checkpoint.name
                    commit_checkpoint(api, checkpoint, repo_id, place, **options)
            except Exception as error:  # a run needs no hub
                logger.warning(
                    f"{checkpoint.name} was not pushed to {repo_id} ({type(error).__name__}: {error}). Training goes "
                    "on, and so do later pushes."
                )

        self.push_in_progress = PushInProgress([api.run_as_future(upload)])  # type: ignore

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: object,
    ) -> Any:
        """Upload the model, the tokenizer and a card in one commit.

        Args:
            commit_message (`str`, *optional*): The first line of the commit message.
            blocking (`bool`, *optional*, defaults to `True`): Whether to wait for the end of the upload.
            token (`str`, *optional*): The access token. The default is that of the arguments.
            revision (`str`, *optional*): The branch. The default is that of the arguments.
            private (`bool`, *optional*): Whether a new repository is private.
            **card (`object`): Arguments of `create_model_card`.

        Returns:
            `CommitInfo`: The commit; a `Future` of it without `blocking`.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self._finish_current_push()  # it reads the files that are saved now
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        self.create_model_card(**card)  # type: ignore[arg-type]
        return commit_folder(
            HfApi(token=token or self.args.hub_token, library_name="simcse_hf"),
            str(self.args.output_dir),
            str(self.hub_model_id),
            commit_message=commit_message or "End of training",
            revision=revision or self.args.hub_revision,
            run_as_future=not blocking,
        )


class SavedCheckpoints(TrainerCallback):
    """Know which checkpoints a run has, and which of them is the best: it is kept, and loaded at the end.

    The best evaluation may be one of weights that were not saved, so it is not what transformers notes as the best.

    Attributes:
        resumed_from (`str`, *optional*): The checkpoint that the run continues.
        folders (`dict[int, Path]`): The checkpoints of the run by their step.
        limit (`int`, *optional*): The `save_total_limit` of the run.
        scores (`dict[int, float]`): What `metric_for_best_model` was by the step of the evaluation.
    """

    resumed_from: str | None = None
    limit: int | None = None

    def __init__(self) -> None:
        self.folders: dict[int, Path] = {}
        self.scores: dict[int, float] = {}

    def on_train_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Take the steps of the arguments, and the scores and checkpoints of the run that is continued."""
        # 1. transformers takes the steps of the checkpoint. Shares of all steps are rounded, each on its own.
        state.compute_steps(args, state.max_steps)
        if args.load_best_model_at_end and args.save_strategy == args.eval_strategy == "steps":
            state.save_steps += -state.save_steps % state.eval_steps

        # 2. The metric, and the folder of the run, may be others than before.
        self.folders = {}
        self.scores = {}
        metric = args.metric_for_best_model
        if self.resumed_from is None or metric is None:
            return
        for entry in state.log_history:
            if entry["step"] > 0 and f"eval_{metric.removeprefix('eval_')}" in entry:
                self.scores[entry["step"]] = entry[f"eval_{metric.removeprefix('eval_')}"]
        noted = Path(state.best_model_checkpoint or "")
        for path in (noted, *checkpoints(Path(self.resumed_from).parent)):
            step = path.name.removeprefix("checkpoint-")
            if step.isdecimal() and int(step) <= state.global_step and path.is_dir():
                self.folders[int(step)] = path
        best = self.best_step(args, self.scores)
        if best is not None:
            state.best_metric = self.scores[best]
            state.best_global_step = best
        self.choose_best(args, state)

    def best_step(self, args: TrainingArguments, steps: Iterable[int]) -> int | None:
        """Return the step with the best score, the first of several; `None` if none of the steps has a score."""
        scored = [step for step in sorted(steps) if not math.isnan(self.scores.get(step, math.nan))]
        choose = max if args.greater_is_better else min
        return choose(scored, key=self.scores.__getitem__, default=None)

    def choose_best(self, args: TrainingArguments, state: TrainerState) -> None:
        """Note the best checkpoint in the state of the run, if one of them was evaluated."""
        best = self.best_step(args, self.folders)
        if best is not None:
            state.best_model_checkpoint = str(self.folders[best])


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: A launcher repeats the interrupt that the terminal has already sent to all processes of a job.
_SAME_INTERRUPT_SECONDS = 1.0


class StopOnSignal(TrainerCallback):
    """Save a checkpoint after the current step when SIGTERM or SIGINT arrives, and end the process.

    All processes stop after the same step, whichever of them received the signal: in every step they reduce its
    number, and read the result one step later, so that the host does not wait for the device. A second interrupt from
    the keyboard ends the process at once. (This takes the place of the handler of transformers'
    `enable_jit_checkpoint`, which saves only in a process that received SIGTERM, so that several would wait for each
    other.)

    Signals keep their usual meaning outside the main thread, where they are ignored already (as under `nohup`), and in
    runs with `save_strategy="no"` and without `enable_jit_checkpoint`. Put this callback after those that save
    something of their own.
    """

    _received = 0
    _received_at = 0.0
    #: The number of the signal that stops the run, or 0.
    stopping = 0
    _reduction: tuple[Any, torch.Tensor] | None = None

    @contextmanager
    def caught(self, args: TrainingArguments) -> Iterator[None]:
        """Catch the signals of a run, and forget those of an earlier one.

        Args:
            args (`TrainingArguments`): The arguments of the run.
        """
        self._received = 0
        self.stopping = 0
        self._reduction = None
        handlers: dict[signal.Signals, Any] = {}
        saves = args.save_strategy != "no" or args.enable_jit_checkpoint
        if threading.current_thread() is threading.main_thread() and saves:
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    handlers[number] = signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._received:
            self._received = number
            self._received_at = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._received_at > _SAME_INTERRUPT_SECONDS:
            raise KeyboardInterrupt

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Request a checkpoint if a signal arrived; at the end of an epoch, after what belongs to the epoch's end."""
        if args.world_size == 1:
            self.stopping = self._received
        elif not self.stopping:
            previous = self._reduction
            number = torch.tensor(self._received, device=args.device)
            self._reduction = (dist.all_reduce(number, dist.ReduceOp.MAX, async_op=True), number)
            if previous is not None:
                previous[0].wait()
                self.stopping = int(previous[1].item())
        if self.stopping and not float(state.epoch or 0.0).is_integer():
            control.should_save = True

    def on_epoch_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Request the checkpoint of an epoch's last step."""
        if self.stopping:
            control.should_save = True

    def on_save(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """End the process when the checkpoint is complete.

        Raises:
            SystemExit: With status 143, after SIGTERM.
            KeyboardInterrupt: After SIGINT, for which a program ends with status 130.
        """
        if not self.stopping:
            return
        if state.is_world_process_zero:
            logger.warning(
                f"{signal.Signals(self.stopping).name} stopped the run after step {state.global_step}. "
                f"{args.output_dir}/checkpoint-{state.global_step} is complete: continue with "
                "--resume_from_checkpoint true."
            )
        if self.stopping == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.stopping)
