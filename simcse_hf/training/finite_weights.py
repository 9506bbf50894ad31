"""End a run before weights that are not finite are evaluated or saved."""

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..ops.distributed import sum_over_processes

#: Advice at the end of errors about numbers that are not finite.
ADVICE = (
    "Lower the learning rate, raise the temperature, use bf16 in place of fp16, or look for broken weights in the "
    "starting checkpoint."
)


class FiniteWeights(TrainerCallback):
    """End a run before weights that are not finite are evaluated or saved.

    Put it last, after the callbacks that request evaluations and checkpoints.
    """

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any) -> None:
        """Check the weights if they are about to be used, and those of the last step.

        Raises:
            FloatingPointError: In all processes, if a weight of any of them is not finite.
        """
        if not (control.should_evaluate or control.should_save or state.global_step >= state.max_steps):
            return
        broken = _name_of_broken_weight(event["model"])
        count = sum_over_processes(torch.tensor(int(broken is not None), device=args.device))
        if count.item():
            raise FloatingPointError(
                f"the weights are not finite after step {state.global_step} ({broken or 'in another process'}). "
                f"They are not saved, and checkpoints saved earlier are untouched in {args.output_dir}. {ADVICE}"
            )

    on_epoch_end = on_step_end


@torch.no_grad()
def _name_of_broken_weight(model: nn.Module) -> str | None:
    finite = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # FSDP2 distributes tensors
            finite[name] = torch.isfinite(shard).all()
    if not finite or torch.stack([*finite.values()]).all():  # one transfer from the device
        return None
    return next(name for name, value in finite.items() if not value)
