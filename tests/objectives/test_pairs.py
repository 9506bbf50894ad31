"""Sums of all pairs of objectives, with rows of even and of uneven width.

A pair trains, with the losses that its objectives have alone.
"""

import functools
import itertools

import pytest
import torch
from conftest import random_batch
from objective_helpers import batch_of_templates, masked_lm_folder, model_of
from trainer_helpers import TEMPLATES

from simcse_hf.data.token_ids import template_settings
from simcse_hf.objectives import OBJECTIVES
from simcse_hf.objectives.base import named_losses

ROWS = 8
OPTIONS = {
    "barlow_twins": {"projector_dim": 8},
    "vicreg": {"projector_dim": 8},
    "contrastive_tension": {"negatives_per_positive": 3},
    "esimcse": {"queue_size": 12},
    "angle": {"positive_score": 3.0},
}
#: Objectives that read single sentences, and those of them that also read uneven numbers of hard negatives.
OF_SENTENCES = {"simcse", "esimcse", "promptbert", "diffcse", "distill"}
OF_SENTENCES |= {"barlow_twins", "vicreg", "contrastive_tension", "is_bert"}
OF_UNEVEN = {"simcse", "esimcse", "promptbert", "diffcse", "distill"}


def settings_of(names, source, has_templates=False):
    """What a model of some objectives is made with."""
    folder, tokenizer = source
    options = {}
    for name in names:
        options |= OPTIONS.get(name, {}) | ({"generator": folder} if name == "diffcse" else {})
    if has_templates or "promptbert" in names:
        return options, {
            "pooler_type": "mask",
            "templates": TEMPLATES,
            **template_settings(TEMPLATES, tokenizer),
        }
    return options, {"pooler_type": "avg"}


def batch_of(name, width, source, has_templates):
    """A batch of the rows that an objective reads, with everything that some objective reads beside them."""
    kind, columns = OBJECTIVES[name].rows, 2
    is_uneven = width == "uneven" and (name in OF_UNEVEN or kind in ("nli", "classes"))
    if kind == "nli" or is_uneven:
        columns = 3
    batch = random_batch(ROWS, columns)
    if has_templates:
        words = "cat / a big dog ran / bird / old man / red house / woman sang / tree / a mat".split(" / ")
        batch = batch_of_templates(
            source[1],
            {f"sent{i}": words[i:] + words[:i] for i in range(columns)},
            TEMPLATES,
        )
    if columns == 3:
        batch["relations"] = torch.tensor([[0, 2]] * ROWS)
        if is_uneven:  # only the last two rows have a hard negative
            batch["relations"][: ROWS - 2, 1] = -100
            batch["attention_mask"][: ROWS - 2, 2] = 0
            batch["input_ids"][: ROWS - 2, 2] = 1
    elif kind == "texts" and not has_templates:  # two views of a sentence
        batch = {key: x[:, :1].repeat(1, 2, 1) for key, x in batch.items()}
    batch["text_ids"] = torch.arange(ROWS * columns).view(ROWS, columns)
    batch["scores"] = torch.tensor([0.0, 4.0, 2.0, 5.0] * 2)
    if kind == "classes" and columns == 2:
        batch["labels"] = torch.tensor([0, 1, 0, 1] * 2)
    generator = torch.Generator().manual_seed(1)
    batch["teacher"] = torch.randn(ROWS, columns, 4, generator=generator).double()
    return batch


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    return masked_lm_folder(tmp_path_factory.mktemp("generator"), tokenizer), tokenizer


@functools.cache
def alone(name, width, source, has_templates):
    """The named losses of an objective alone on its batch, and its state before."""
    options, settings = settings_of((name,), source, has_templates)
    model = model_of(name, options, **settings)
    state = {key: x.clone() for key, x in model.objective.state_dict().items()}
    output = in_training(model, batch_of(name, width, source, has_templates))
    return {key: x.detach() for key, x in named_losses(output.parts or output.loss).items()}, state


def in_training(model, batch):
    """What a model returns in a step, with the masks that DiffCSE draws from a seed."""
    torch.manual_seed(0)
    return model(**batch)


def step(model, batch, optimizer):
    """Take a step; every weight that is to be trained has a part in it."""
    output = in_training(model, batch)
    assert torch.isfinite(output.loss)
    optimizer.zero_grad()
    output.loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
    optimizer.step()
    return output


def optimizer_of(model):
    return torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=1e-3,
    )


def sum_of(pair, width, source):
    """The model of a sum and its batch."""
    options, settings = settings_of(pair, source)
    model = model_of("+".join(pair), options, **settings)
    reader = next((name for name in pair if name in OF_UNEVEN), pair[0])
    return model, batch_of(reader, width, source, "promptbert" in pair)


#: Pairs of which both parts read the rows; their width is even or uneven.
CASES = [(("angle", "cosent"), "even"), (("softmax", "supcon"), "even"), (("softmax", "supcon"), "uneven")]
CASES += [(pair, "even") for pair in itertools.combinations(sorted(OF_SENTENCES), 2)]
CASES += [(pair, "uneven") for pair in itertools.combinations(sorted(OF_UNEVEN), 2)]


def with_states_of_parts(model, pair, width, source, parts):
    """Give the objectives of a model the weights that they have alone, and return their losses alone."""
    losses = {}
    for name, part in zip(pair, parts, strict=True):
        losses[name], state = alone(name, width, source, "promptbert" in pair)
        part.load_state_dict(state)
    return losses


@pytest.mark.parametrize("pair, width", CASES, ids=str)
def test_a_sum_has_the_losses_of_its_parts_and_trains(pair, width, source):
    model, batch = sum_of(pair, width, source)
    expected = with_states_of_parts(model, pair, width, source, model.objective.objectives)
    optimizer = optimizer_of(model)
    output = step(model, batch, optimizer)
    parts = {f"{name}_{what}": x for name, losses in expected.items() for what, x in losses.items()}
    torch.testing.assert_close(output.parts, parts)
    step(model, batch, optimizer)
