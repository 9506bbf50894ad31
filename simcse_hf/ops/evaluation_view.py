"""Run a model in evaluation mode without changing the mode that other threads see."""

from operator import is_
from types import MethodType
from typing import Any

from torch import nn


def evaluation_view(model: nn.Module) -> nn.Module:
    """Return a view of a model that is in evaluation mode and shares everything else with it.

    `model.eval()` would switch dropout off for a training step that runs in another thread, and `model.train()` there
    would switch it on for a forward pass here. The view has modules of its own with a mode of their own; parameters,
    buffers, hooks and settings are those of the model. It does not notice attributes and modules of the model that are
    replaced later, so ask for a view whenever you use one: the model keeps it, and a new one is made only if something
    was replaced.

    Args:
        model (`nn.Module`): The model.

    Returns:
        `nn.Module`: The view; or the model itself if some `forward` was replaced by a function, as torch.compile and
        Accelerate's offloading do, because such a function runs the original modules.
    """
    kept = vars(model).setdefault("_kept_evaluation_view", _KeptView())
    try:
        return kept.of(model)
    except _ForeignForward:
        return model


class _ForeignForward(Exception):
    """A module whose `forward` is not a method of its own."""


#: A module with its attributes and its children at some time.
_Seen = tuple[nn.Module, list[Any], list[Any]]


class _KeptView:
    """The view of a model, and what its modules held when the view was made. It is not copied with the model."""

    def __init__(self) -> None:
        self._kept: tuple[nn.Module, list[_Seen]] | None = None

    def of(self, model: nn.Module) -> nn.Module:
        """Return the kept view of the model, or make a new one if a module or attribute was replaced."""
        kept = self._kept
        if kept is None or not all(map(_is_current, kept[1])):
            seen: list[_Seen] = []
            kept = self._kept = (_view(model, {}, seen), seen)
        return kept[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> "_KeptView":
        return _KeptView()

    def __reduce__(self) -> tuple[type["_KeptView"], tuple[()]]:
        return _KeptView, ()


def _is_current(seen: _Seen) -> bool:
    """Return whether a module still holds the same objects."""
    module, attributes, children = seen
    now = module.__dict__
    modules = now["_modules"]
    return (
        len(now) == len(attributes)
        and all(map(is_, now.values(), attributes))
        and len(modules) == len(children)
        and all(map(is_, modules.values(), children))
    )


def _view(module: nn.Module, views: dict[int, nn.Module], seen: list[_Seen]) -> nn.Module:
    known = views.get(id(module))
    if known is not None:
        return known
    seen.append((module, list(vars(module).values()), list(module._modules.values())))
    attributes = vars(module).copy()
    view = views[id(module)] = object.__new__(module.__class__)
    forward = attributes.get("forward")
    if forward is not None:  # Accelerate stores a forward under autocast on the module
        if not isinstance(forward, MethodType) or forward.__self__ is not module:
            raise _ForeignForward
        attributes["forward"] = MethodType(forward.__func__, view)
    attributes["training"] = False
    children = attributes["_modules"]
    if children:
        attributes["_modules"] = {
            name: None if child is None else _view(child, views, seen) for name, child in children.items()
        }
    view.__dict__ = attributes
    return view
