"""The weights of many linear layers, copied at once into the precision that matrix products use."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

_PROJECTIONS = ("query", "key", "value")


@torch.library.custom_op("simcse_hf::gather_weights", mutates_args=())
def gather_weights(
    weights: Sequence[torch.Tensor], group_sizes: Sequence[int], dtype: torch.dtype
) -> list[torch.Tensor]:
    """Copy weights into another precision, and join those of a group row by row, in a few kernels for all of them.

    Autocast casts each weight by a kernel of its own, and its gradient by another one. An NVIDIA GPU copies a list of
    tensors with one kernel for each 64 tensors or 21 million numbers. With group sizes 3 and 1, the weights q, k, v
    and w become [q; k; v] and w.

    Args:
        weights (`Sequence[torch.Tensor]`): Weights of shape `(rows, ...)`, group by group.
        group_sizes (`Sequence[int]`): The number of weights in each group.
        dtype (`torch.dtype`): The precision of the copies.

    Returns:
        `list[torch.Tensor]`: The copy of each group, of shape `(rows of all its weights, ...)`.
    """
    copies = _empty_copies(weights, group_sizes, dtype)
    rows = [list(map(len, group)) for group in _groups(weights, group_sizes)]
    parts = chain.from_iterable(copy.split(lengths) for copy, lengths in zip(copies, rows, strict=True))
    torch._foreach_copy_(list(parts), list(weights))
    return copies


@torch.library.custom_op("simcse_hf::scatter_gradients", mutates_args=())
def scatter_gradients(
    gradients: Sequence[torch.Tensor], rows: Sequence[int], group_sizes: Sequence[int], dtype: torch.dtype
) -> list[torch.Tensor]:
    """Take the gradients of gathered weights apart and copy them into the precision of the weights.

    Args:
        gradients (`Sequence[torch.Tensor]`): The gradient of each copy that [`gather_weights`] returned.
        rows (`Sequence[int]`): The number of rows of each weight.
        group_sizes (`Sequence[int]`): The number of weights in each group.
        dtype (`torch.dtype`): The precision of the weights.

    Returns:
        `list[torch.Tensor]`: The gradient of each weight.
    """
    groups = zip(gradients, _groups(rows, group_sizes), strict=True)
    parts = list(chain.from_iterable(gradient.split(list(lengths)) for gradient, lengths in groups))
    results = [torch.empty_like(part, dtype=dtype) for part in parts]
    torch._foreach_copy_(results, parts)
    return results


def _groups(items: Sequence[Any], group_sizes: Sequence[int]) -> list[Sequence[Any]]:
    remaining = iter(items)
    return [[next(remaining) for _ in range(size)] for size in group_sizes]


@gather_weights.register_fake
def _empty_copies(
    weights: Sequence[torch.Tensor], group_sizes: Sequence[int], dtype: torch.dtype
) -> list[torch.Tensor]:
    return [
        group[0].new_empty(sum(map(len, group)), *group[0].shape[1:], dtype=dtype)
        for group in _groups(weights, group_sizes)
    ]


@scatter_gradients.register_fake
def _empty_gradients(
    gradients: Sequence[torch.Tensor], rows: Sequence[int], group_sizes: Sequence[int], dtype: torch.dtype
) -> list[torch.Tensor]:
    groups = zip(gradients, _groups(rows, group_sizes), strict=True)
    return [
        gradient.new_empty(count, *gradient.shape[1:], dtype=dtype) for gradient, counts in groups for count in counts
    ]


def _remember(ctx: Any, inputs: tuple, output: list[torch.Tensor]) -> None:
    weights, ctx.group_sizes, _ = inputs
    ctx.rows, ctx.dtype = list(map(len, weights)), weights[0].dtype


def _backward(ctx: Any, gradients: list[torch.Tensor]) -> tuple[list[torch.Tensor], None, None]:
    gradients = [gradient.contiguous() for gradient in gradients]
    return scatter_gradients(gradients, ctx.rows, ctx.group_sizes, ctx.dtype), None, None


gather_weights.register_autograd(_backward, setup_context=_remember)


class GatheredWeights:
    """Copies of the trainable weights and biases of a module's linear layers, made by [`gather_weights`].

    The copies take the place of the weights in `torch.func.functional_call`. Gradients flow through them to the
    weights. Queries, keys and values of BERT's attention are projected by one matrix product: the copy of
    `query.weight` holds the rows of all three, and [`split_projections`] takes its output apart. In the last layer,
    whose queries are first tokens only, the copy of `key.weight` holds keys and values.

    Args:
        module (`torch.nn.Module`): The module. Frozen parameters and other layers stay as they are.
        last_layer (`torch.nn.Module`): The encoder's last layer.
    """

    def __init__(self, module: nn.Module, last_layer: nn.Module):
        joined: dict[nn.Module, list[nn.Linear]] = {}
        in_last_layer = set(last_layer.modules())
        for child in module.modules():
            projections: list[Any] = [getattr(child, name, None) for name in _PROJECTIONS]
            if all(map(_is_trainable_linear, projections)):
                first = 1 if child in in_last_layer else 0
                joined |= {projections[first]: projections[first:]}
                joined |= {projection: [] for projection in projections[first + 1 :]}
        #: By the name that a copy takes the place of, the weights that it holds.
        self.groups: dict[str, list[nn.Parameter]] = {}
        for name, child in module.named_modules():
            if _is_trainable_linear(child):
                layers = joined.get(child, [child])
                for part in ("weight", "bias") if layers else ():
                    weights = [getattr(layer, part) for layer in layers]
                    if weights[0] is not None:
                        self.groups[f"{name}.{part}"] = weights

    def __call__(self, device_type: str) -> dict[str, torch.Tensor]:
        """Copy the weights into autocast's precision, or without autocast into their own.

        Args:
            device_type (`str`): The type of the device that computes, such as `"cuda"`.

        Returns:
            `dict[str, torch.Tensor]`: The copies by the names of the parameters that they take the place of.
        """
        weights = list(chain.from_iterable(self.groups.values()))
        if not weights:
            return {}
        is_autocast = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if is_autocast else weights[0].dtype
        copies = gather_weights(weights, [len(group) for group in self.groups.values()], dtype)
        return dict(zip(self.groups, copies, strict=True))


def _is_trainable_linear(module: Any) -> bool:
    return type(module) is nn.Linear and all(parameter.requires_grad for parameter in module.parameters())


def split_projections(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take apart what one product of [`GatheredWeights`] projected.

    Args:
        query (`torch.Tensor`): Queries of shape `(T, heads, size)`, or queries, keys and values with `3 * heads`.
        key (`torch.Tensor`): Keys of shape `(T, heads, size)`, or keys and values with `2 * heads`.
        value (`torch.Tensor`): Values of shape `(T, heads, size)`, which are not used if another tensor holds them.

    Returns:
        `tuple`: Queries, keys and values with `heads` each.
    """
    heads = value.shape[1]
    if query.shape[1] > heads:
        query, key, value = query.split(heads, 1)
    elif key.shape[1] > heads:
        key, value = key.split(heads, 1)
    return query, key, value
