"""Give a resumed run its own settings of the optimizer, where they were changed on purpose."""

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

#: What the saved state of an optimizer would override.
_SETTINGS = ("lr", "weight_decay", "betas", "eps", "momentum")


class ChangedSettings(TrainerCallback):
    """Put the settings of this run in the place of those that a checkpoint's optimizer and schedule have.

    With `allow_changes`, the first step of a resumed run then has the learning rate that a run with these settings
    would have at this step.

    Attributes:
        are_changed (`bool`): Whether the run was resumed with other settings than those of its checkpoint.
    """

    are_changed = False

    def __init__(self) -> None:
        self._own: list[dict[str, Any]] = []

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the settings of an optimizer before those of a checkpoint are loaded."""
        self._own = []
        for group in optimizer.param_groups:
            self._own.append({name: group[name] for name in _SETTINGS if name in group})

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        """Set the groups of the optimizer, and the rate that the schedule gives them at this step."""
        if not self.are_changed:
            return
        groups = event["optimizer"].param_groups
        schedule = event["lr_scheduler"]
        for group, own in zip(groups, self._own, strict=True):
            factor = group["lr"] / group["initial_lr"] if group.get("initial_lr") else 1.0
            group.update(own)
            group["initial_lr"] = own["lr"]
            group["lr"] = own["lr"] * factor
        if hasattr(schedule, "base_lrs"):
            schedule.base_lrs = [own["lr"] for own in self._own]
        if isinstance(schedule, LambdaLR):
            for group, rate, factor_at in zip(groups, schedule.base_lrs, schedule.lr_lambdas, strict=True):
                group["lr"] = rate * factor_at(schedule.last_epoch)
        if hasattr(schedule, "_last_lr"):
            schedule._last_lr = [group["lr"] for group in groups]
