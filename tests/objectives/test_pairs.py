"""Sums of all pairs of objectives that read the same rows: a part has its share of its loss alone, and all trains."""

import functools
import itertools

import pytest
import torch
from conftest import random_batch
from model_helpers import unused
from objective_helpers import TEMPLATES, batch_of_templates, beside, masked_lm_folder, model_of
from trainer_helpers import weights

from simcse_hf.data.token_ids import template_settings
from simcse_hf.objectives.base import ABSENT, named_losses

ROWS = 8
OPTIONS = {
    "barlow_twins": {"projector_dim": 8},
    "vicreg": {"projector_dim": 8},
    "contrastive_tension": {"negatives_per_positive": 3},
    "esimcse": {"queue_size": 12},
    "angle": {"positive_score": 1.0},
}
#: Objectives that read hard negatives, which some rows lack in an uneven batch, and those that read pairs alone.
OF_TRIPLETS = ["diffcse", "distill", "esimcse", "promptbert", "simcse"]
OF_PAIRS = [*OF_TRIPLETS, "barlow_twins", "contrastive_tension", "is_bert", "vicreg"]
CASES = [(pair, "pairs") for pair in [("angle", "cosent"), *itertools.combinations(OF_PAIRS, 2)]]
CASES += [(pair, "uneven") for pair in [("softmax", "supcon"), *itertools.combinations(OF_TRIPLETS, 2)]]
CASES += [(("softmax", "supcon"), "triplets")]


def model_with(names, source, has_templates):
    """A model with an objective, or with the sum of half of one and another."""
    folder, tokenizer = source
    options = {}
    for name in names:
        options |= OPTIONS.get(name, {}) | ({"generator": folder} if name == "diffcse" else {})
    settings = {"pooler_type": "avg"}
    if has_templates:
        settings = {"pooler_type": "mask", "templates": TEMPLATES, **template_settings(TEMPLATES, tokenizer)}
    return model_of(":0.5+".join(names), options, **settings)


def batch_of(rows, source, has_templates):
    """A batch with everything that some objective reads."""
    columns = 2 if rows == "pairs" else 3
    if has_templates:
        words = "cat / a big dog ran / bird / old man / red house / woman sang / tree / a mat".split(" / ")
        batch = batch_of_templates(source[1], {f"sent{i}": words[i:] + words[:i] for i in range(columns)}, TEMPLATES)
    else:
        batch = random_batch(ROWS, columns)
    if columns == 3:
        batch["relations"] = torch.tensor([[0, 2]] * ROWS)
    if rows == "uneven":  # only the last two rows have a hard negative
        batch["relations"][:-2, 1] = ABSENT
        batch["attention_mask"][:-2, 2] = 0
        batch["input_ids"][:-2, 2] = 1
    return batch | beside(ROWS, columns)


@pytest.fixture(scope="module")
def source(tmp_path_factory, tokenizer):
    return masked_lm_folder(tmp_path_factory.mktemp("generator"), tokenizer), tokenizer


def in_training(model, batch):
    """What a model returns in a step, with the masks that DiffCSE draws from a seed."""
    torch.manual_seed(0)
    return model(**batch)


@functools.cache
def alone(name, rows, source, has_templates):
    """The named losses of an objective alone, and its state before."""
    model = model_with([name], source, has_templates)
    state = weights(model.objective)
    output = in_training(model, batch_of(rows, source, has_templates))
    return {key: x.detach() for key, x in named_losses(output.parts or output.loss).items()}, state


@pytest.mark.parametrize("pair, rows", CASES, ids=str)
def test_a_sum_has_the_weighted_losses_of_its_parts_and_trains(pair, rows, source):
    has_templates = "promptbert" in pair
    model = model_with(pair, source, has_templates)
    batch = batch_of(rows, source, has_templates)
    expected = {}
    for name, weight, part in zip(pair, (0.5, 1), model.objective.objectives, strict=True):
        losses, state = alone(name, rows, source, has_templates)
        part.load_state_dict(state)
        expected |= {f"{name}_{what}": weight * loss for what, loss in losses.items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    output = in_training(model, batch)
    torch.testing.assert_close(output.parts, expected)
    for _ in range(2):
        optimizer.zero_grad()
        output.loss.backward()
        assert not unused(model)
        optimizer.step()
        output = in_training(model, batch)
        assert torch.isfinite(output.loss)
