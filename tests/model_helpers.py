"""What tests of models ask of them: the head, gradients, and edits of the files of a checkpoint."""

import json

import torch
from conftest import read_json


def dense(model):
    """Return the linear layer of the head, whose place depends on the encoder."""
    return next(m for m in model.contrastive_head.modules() if isinstance(m, torch.nn.Linear))


def unused(model):
    """Return the names of the trainable parameters without a gradient."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def freeze_like_peft(model, *modules_to_save):
    """Freeze all weights except `modules_to_save` and a part of the last layer, which stands for an adapter."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.1.attention" in name or any(f".{x}." in name for x in modules_to_save))
    return model


def edit_json(path, **changes):
    """Change entries of a JSON file."""
    path.write_text(json.dumps(read_json(path) | changes))
