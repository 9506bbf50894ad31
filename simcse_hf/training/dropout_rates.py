"""Measure which share of the values dropout drops in a training step of a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..models.modeling import ContrastiveModel

#: The share of the requested rate by which the realised rate may differ, beyond the error of the measurement. Dropout
#: on a CPU rounds to 1/65536, on a GPU to 1/256; a kernel that rounds 0.1 to 1/16 differs by more.
TOLERANCE = 0.1
_DEVIATIONS = 6.0
#: How the places of rates of attention begin.
ATTENTION = "attention implementation"


@dataclass
class DropoutRate:
    """The realised rate of the dropout layers that share a requested rate.

    Args:
        place (`str`): What drops: the class of the modules, or the attention implementation.
        requested (`float`): The rate that the model asks for.
        dropped (`int`): Number of values that were dropped.
        count (`int`): Number of values that could have been dropped.
    """

    place: str
    requested: float
    dropped: int
    count: int

    @property
    def realised(self) -> float:
        """The share of the values that were dropped."""
        return self.dropped / self.count

    @property
    def is_as_requested(self) -> bool:
        """Whether the difference is within the tolerance and the error of a measurement of so many values."""
        error = _DEVIATIONS * math.sqrt(self.requested * (1 - self.requested) / self.count)
        return abs(self.realised - self.requested) <= max(TOLERANCE * self.requested, error)


@contextmanager
def measure_dropout(model: ContrastiveModel, attention_mask: torch.Tensor) -> Iterator[list[DropoutRate]]:
    """Measure the rates of dropout in the forward passes of the context, whose embeddings have no meaning.

    Modules of class `nn.Dropout` are measured by the zeros in their output. The attention function of the encoder is
    called with scores of 0 and an identity matrix as values, so its output are the attention weights:

        softmax(0) I = [[1/2, 1/2], [1/2, 1/2]], and with dropout of rate 1/4 perhaps [[2/3, 2/3], [0, 2/3]]

    Eager attention is not measured, because each architecture implements its own.

    Args:
        model (`ContrastiveModel`): A model in training mode.
        attention_mask (`torch.Tensor`): The mask of the batch that the context encodes, of shape `(texts, length)`.

    Yields:
        `list[DropoutRate]`: It is filled at the end of the context.
    """
    counts: dict[tuple[str, float], list[torch.Tensor]] = defaultdict(list)  # (dropped, could have been dropped)

    def count_module(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, rate = inputs[0], module.p
        if module.training and isinstance(rate, float) and 0 < rate < 1:
            count = x.count_nonzero()
            counts[f"module {type(module).__name__}", rate].append(
                torch.stack([count - output.count_nonzero(), count])
            )

    hooks = [
        module.register_forward_hook(count_module) for module in model.modules() if isinstance(module, nn.Dropout)
    ]
    name = model.config._attn_implementation
    known = name in ALL_ATTENTION_FUNCTIONS
    rates: list[DropoutRate] = []
    if known:
        function = ALL_ATTENTION_FUNCTIONS[name]
        # This mapping belongs to the instance; the function itself stays registered for all instances.
        ALL_ATTENTION_FUNCTIONS[name] = _counting(function, name, attention_mask.bool(), counts)
    try:
        yield rates
    finally:
        if known:
            del ALL_ATTENTION_FUNCTIONS[name]
        for hook in hooks:
            hook.remove()
    for (place, rate), parts in counts.items():
        dropped, count = torch.stack(parts).sum(0).tolist()
        if count:
            rates.append(DropoutRate(place, rate, dropped, count))


def _counting(
    function: Callable[..., Any], name: str, mask: torch.Tensor, counts: dict[tuple[str, float], list[torch.Tensor]]
) -> Callable[..., Any]:
    """Wrap an attention function so that it attends to an identity matrix with equal weights."""
    length = mask.shape[1]
    visible = mask[:, None, :] & mask[:, :, None]  # (texts, queries, keys)

    def attend(
        module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        rate, packing, window = (kwargs.get(option) for option in ("dropout", "packing", "sliding_window"))
        # The last layer may compute first tokens only, and then makes its own values.
        if not rate or kwargs.get("all_tokens") is not None or value.shape[-1] != query.shape[-1]:
            return function(module, query, key, value, *args, **kwargs)
        columns = min(length, value.shape[-1])
        identity = torch.eye(length, value.shape[-1], dtype=value.dtype, device=value.device)
        could_see = visible
        if window is not None:
            position = torch.arange(length, device=mask.device)
            could_see = could_see & ((position[:, None] - position).abs() < window)
        if packing is not None:  # (1, heads, T, size)
            identity = identity[packing.position_ids[0]]
            could_see = could_see.flatten(0, 1)[packing.token_index][None]
        equal = torch.zeros_like(query), torch.zeros_like(key), identity.expand_as(value).contiguous()
        output = function(module, *equal, *args, **kwargs)
        weights = output[0][..., :columns]  # (texts, queries, heads, keys)
        could_drop = could_see[:, :, None, :columns].expand_as(weights)
        count = could_drop.sum()
        kept = (weights.bool() & could_drop).sum()
        counts[f"{ATTENTION} {name}", rate].append(torch.stack([count - kept, count]))
        return output

    return attend
