"""A Trainer whose runs survive: checkpoints are whole or absent, hold no broken weights, and are saved at a signal."""

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from transformers import Trainer
from transformers.utils import logging

from ..ops.distributed import on_first_process, sum_over_processes, world
from ..ops.flash import avoid_cudnn_attention
from .checkpoints import (
    STAGING,
    check_checkpoint,
    delete_old_checkpoints,
    newest_whole_checkpoint,
    publish_checkpoint,
)
from .signals import StopOnSignal

logger = logging.get_logger(__name__)

ADVICE = (
    "Lower the learning rate, raise the temperature, use bf16 in place of fp16, or look for broken weights in the "
    "starting checkpoint."
)
#: A checkpoint to resume from; `True` is the newest whole one.
CheckpointName = str | os.PathLike[str] | bool
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class ReliableTrainer(Trainer):
    """transformers' Trainer with checkpoints that are either whole or absent.

    A checkpoint is written in a folder of its own, gets a manifest of its files, and only then its name; older
    checkpoints are deleted after that. Weights that are not finite are never saved and end the run with an error.
    Resuming verifies the manifest. SIGTERM and SIGINT save a checkpoint before they end the run ([`StopOnSignal`]).
    """

    _counted: tuple[Any, int] | None = None  # a model and the number of its parameters

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._is_staging = False
        self._stop_on_signal = StopOnSignal()
        self.add_callback(self._stop_on_signal)  # the last, so that it sees what the other callbacks request

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate the operations of a step, as transformers does, but count the parameters of a model only once.

        Args:
            inputs (`dict`): A batch.

        Returns:
            `int`: Six operations for each token and parameter, embeddings left out.
        """
        if self._counted is None or self._counted[0] is not self.model:
            self._counted = self.model, cast(Any, self.model).num_parameters(exclude_embeddings=True)
        return 6 * inputs["input_ids"].numel() * self._counted[1]

    def train(self, resume_from_checkpoint: CheckpointName | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers does.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*): A checkpoint, or `True` for the newest
                whole checkpoint in `output_dir`.
            args (`Any`): As in transformers.
            kwargs (`Any`): As in transformers.

        Returns:
            `TrainOutput`: As in transformers.

        Raises:
            ValueError: If there is no whole checkpoint to resume from.
            FloatingPointError: If a weight is not finite.
            SystemExit: After SIGTERM, with status 143.
            KeyboardInterrupt: After SIGINT.
        """
        checkpoint = None
        if resume_from_checkpoint:
            checkpoint = resolve_checkpoint(resume_from_checkpoint, str(self.args.output_dir))
        with self._stop_on_signal.catch(self.args), avoid_cudnn_attention(self.args.device):
            return super().train(checkpoint, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:  # A finished run was resumed: transformers takes a step.
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_evaluate or self.control.should_save:
            self._check_weights()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._check_weights()
        if self._stop_on_signal.is_stopping:
            self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
            self._finish_current_push()
            self._stop_on_signal.end_stopped_run(self.state, str(self.args.output_dir))
        return super()._finalize_training(*args, **kwargs)

    def _check_weights(self) -> None:
        """Raise an error in all processes if a weight of any of them is not finite."""
        broken = _name_of_broken_weight(cast(nn.Module, self.model))
        count = sum_over_processes(torch.tensor(int(broken is not None), device=self.args.device))
        if count.item():
            raise FloatingPointError(
                f"the weights are not finite after step {self.state.global_step} ({broken or 'in another process'}). "
                f"They are not saved, and checkpoints saved earlier are untouched in {self.args.output_dir}. {ADVICE}"
            )

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # The model's own files hold some weights, and tied weights are saved once.
        patterns = getattr(self.model, "_keys_to_ignore_on_load_missing", None) or ()
        own_files = [re.compile(pattern) for pattern in patterns]
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [
            name
            for name in load_result.missing_keys
            if name not in tied and not any(pattern.match(name) for pattern in own_files)
        ]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    # --- saving ------------------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        directory = super()._get_output_dir(trial)
        return os.path.join(directory, STAGING) if self._is_staging else directory

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        directory = Path(self._get_output_dir(trial))
        checkpoint = directory / f"checkpoint-{self.state.global_step}"
        staged = directory / STAGING / checkpoint.name
        if self.args.should_save:
            shutil.rmtree(directory / STAGING, ignore_errors=True)  # a killed run left it
        _barrier()
        self._is_staging = True
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            shutil.rmtree(directory / STAGING, ignore_errors=True)
            _explain_full_disk(error, checkpoint)
            raise
        finally:
            self._is_staging = False
        _barrier()
        best = directory / f"checkpoint-{self.state.best_global_step}"
        if best == checkpoint or best.is_dir():  # transformers looked for it in the staging folder
            self.state.best_model_checkpoint = str(best)
        if self.args.should_save:
            self.state.save_to_json(str(staged / "trainer_state.json"))
            try:
                publish_checkpoint(staged, checkpoint)
            except OSError as error:
                _explain_full_disk(error, checkpoint)
                raise
            keep = {checkpoint} | ({Path(str(self.state.best_model_checkpoint))} if best.is_dir() else set())
            delete_old_checkpoints(directory, self.args.save_total_limit, keep)
        _barrier()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._is_staging:  # transformers would push the folder before it has its name
            super()._push_from_checkpoint(checkpoint_folder)


def _barrier() -> None:
    if world()[1] > 1:
        dist.barrier()


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
    return on_first_process(lambda: _checked(resume, output_dir))


def _checked(resume: CheckpointName, output_dir: str) -> str:
    checkpoint: str | None
    if str(resume).lower() != "true":
        check_checkpoint(os.fspath(resume))  # type: ignore[arg-type]
        checkpoint = str(resume)
    else:
        checkpoint = newest_whole_checkpoint(output_dir)
    if checkpoint is None:
        raise ValueError(f"{output_dir} holds no checkpoint to resume from; leave out --resume_from_checkpoint")
    if not any(Path(checkpoint).glob("rng_state*")):
        logger.warning(
            f"{checkpoint} holds the model only, because the run had save_only_model set: the optimizer, the schedule "
            "and the random state start anew, so the result differs from that of an uninterrupted run."
        )
    return checkpoint


@torch.no_grad()
def _name_of_broken_weight(model: nn.Module) -> str | None:
    tensors: list[tuple[str, torch.Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    finite = {name: torch.isfinite(_local(tensor)).all() for name, tensor in tensors if tensor.is_floating_point()}
    if not finite or torch.stack([*finite.values()]).all():  # one transfer from the device
        return None
    return next(name for name, value in finite.items() if not value)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a tensor that FSDP2 distributes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _explain_full_disk(error: Exception, checkpoint: Path) -> None:
    """Raise an error in one line if a checkpoint could not be written because the disk is full.

    The libraries report this in different ways: by the errno, by its text (safetensors), or as a zip file whose size
    is not the expected one (torch).

    Raises:
        OSError: With the errno of a full disk.
    """
    text = f"{error} {error.__context__}"
    is_full = getattr(error, "errno", None) in _DISK_IS_FULL or os.strerror(errno.ENOSPC) in text
    if is_full or "inline_container" in text or "iostream error" in text:
        raise OSError(
            errno.ENOSPC,
            "the checkpoint could not be written, because the disk is full. Checkpoints saved earlier are untouched: "
            "free some space and continue with --resume_from_checkpoint true",
            str(checkpoint),
        ) from error
