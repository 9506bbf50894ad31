"""Run a model in evaluation mode without changing the mode that other threads see."""

from types import MethodType

from torch import nn


def evaluation_view(model: nn.Module) -> nn.Module:
    """Return a view of a model that is in evaluation mode and shares everything else with it.

    `model.eval()` would switch dropout off for a training step that runs in another thread, and `model.train()` there
    would switch it on for a forward pass here. The view has modules of its own with a mode of their own; parameters,
    buffers, hooks and settings are those of the model. A view is cheap (one small object for each module), so make one
    for each use: it does not notice modules that are replaced later.

    Args:
        model (`nn.Module`): The model.

    Returns:
        `nn.Module`: The view; or the model itself if some `forward` was replaced by a function, as torch.compile and
        Accelerate's offloading do, because such a function runs the original modules.
    """
    try:
        return _view(model, {})
    except _ForeignForward:
        return model


class _ForeignForward(Exception):
    """A module whose `forward` is not a method of its own."""


def _view(module: nn.Module, views: dict[int, nn.Module]) -> nn.Module:
    known = views.get(id(module))
    if known is not None:
        return known
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
            name: None if child is None else _view(child, views) for name, child in children.items()
        }
    view.__dict__ = attributes
    return view
