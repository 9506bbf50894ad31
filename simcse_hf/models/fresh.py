"""Layers that no checkpoint holds: which of a loaded model's weights were drawn at random, and drawing them anew."""

import sys
from collections.abc import Iterable
from hashlib import blake2b

import torch
from torch import nn
from transformers import PreTrainedModel


class FreshLayers:
    """The weights of a model that were drawn at random when it was loaded, in the order in which they were drawn.

    Args:
        model (`PreTrainedModel`): The model, loaded.
        lacking (`Iterable[str]`): Names of the weights that its checkpoint lacks, which transformers has drawn.
        loaded_later (`Iterable[str]`): Names of modules at the top of the model whose weights were then loaded from
            files of their own.
        layers (`Iterable[str]`): Attributes of the model whose layers were drawn afterwards: they are the head,
            or have a method `draw_weights`.
    """

    def __init__(
        self, model: PreTrainedModel, lacking: Iterable[str], loaded_later: Iterable[str], layers: Iterable[str]
    ) -> None:
        self.lacking = frozenset(lacking)
        self.layers = tuple(layers)
        names = {name for name in self.lacking if name.split(".")[0] not in loaded_later}
        self.digests = digests_of(model, names | self._weights_of_layers(model))

    def _weights_of_layers(self, model: nn.Module) -> set[str]:
        weights = {id(x) for layer in self.layers for x in getattr(model, layer).parameters()}
        return {name for name, x in model.named_parameters() if id(x) in weights}

    @torch.no_grad()
    def draw(self, model: PreTrainedModel, seed: int) -> None:
        """Draw those weights anew that are as they were drawn, as if the model had been loaded after `set_seed(seed)`.

        All are drawn on the CPU, whatever the device of the model. The global random state stays as it is.

        Args:
            model (`PreTrainedModel`): The model, which is changed in place.
            seed (`int`): The seed.
        """
        now = digests_of(model, self.digests)
        untouched = {name for name, digest in now.items() if digest == self.digests[name]}
        parameters = dict(model.named_parameters())
        names = self.lacking | self._weights_of_layers(model)
        if not untouched or not names <= parameters.keys():  # peft gives layers other names
            return
        # 1. Draw all of them on the CPU, also those that do not change: the others come after them.
        mark_as_lacking(model, self.lacking)
        before = {name: parameters[name].data for name in names}
        for name in names:
            parameters[name].data = torch.empty_like(before[name], device="cpu")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model.initialize_weights()
            for name in self.lacking:
                if name.endswith("bias"):
                    parameters[name].zero_()
            for layer in self.layers:
                draw_layer(model, layer)
        # 2. Take over those that nobody has changed.
        for name in names:
            drawn = parameters[name].data
            parameters[name].data = before[name]
            if name in untouched:
                parameters[name].copy_(drawn)
        self.digests |= digests_of(model, untouched)


def draw_layer(model: nn.Module, layer: str) -> None:
    """Draw the weights of a layer of our own, or of the dense + tanh head as BERT does.

    Args:
        model (`nn.Module`): The model, which is changed in place.
        layer (`str`): The name of the attribute.
    """
    module = getattr(model, layer)
    if hasattr(module, "draw_weights"):
        module.draw_weights()
        return
    std = getattr(model.config, "initializer_range", 0.02)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std)
            nn.init.zeros_(part.bias)


def lacking_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights that a checkpoint lacked, just after transformers has loaded it."""
    return [name for name, x in model.named_parameters() if not getattr(x, "_is_hf_initialized", False)]


def mark_as_lacking(model: nn.Module, names: Iterable[str]) -> None:
    """Mark weights so that transformers' `initialize_weights` draws them and no others, in the order of loading.

    It goes through the modules and skips those that are marked; in the others it skips marked weights. A module may
    draw the weights of those inside, so none above a weight is marked.
    """
    names = set(names)
    above = {""}
    for name in names:
        parts = name.split(".")
        above.update(".".join(parts[:end]) for end in range(len(parts)))
    for name, module in model.named_modules():
        module._is_hf_initialized = name not in above
    for name, x in model.named_parameters():
        x._is_hf_initialized = name not in names  # type: ignore[attr-defined]


def digests_of(model: nn.Module, names: Iterable[str], most: int = sys.maxsize) -> dict[str, str]:
    """Return digests of weights of a model by their names.

    Args:
        model (`nn.Module`): The model.
        names (`Iterable[str]`): The names. Those that the model does not have, or without values, are left out.
        most (`int`, *optional*): Numbers of a weight that are read at most. All are by default.

    Returns:
        `dict[str, str]`: The digests.
    """
    weights = dict(model.named_parameters())
    digests = {}
    for name in names:
        if name in weights and not weights[name].is_meta:
            numbers = weights[name].detach().flatten()
            read = numbers[:: 1 + numbers.numel() // most].cpu().contiguous()
            digests[name] = blake2b(read.view(torch.uint8).numpy().tobytes()).hexdigest()
    return digests
