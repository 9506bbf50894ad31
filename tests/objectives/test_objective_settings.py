"""The settings of objectives: the defaults are those of the papers, and each reaches the place where it counts."""

import pytest
import torch

from simcse_hf.objectives import OBJECTIVES
from simcse_hf.objectives.dimension_contrastive import BarlowTwins
from simcse_hf.objectives.promptbert import PromptBERT

EDGES = {"template_edges": [[2, 3], [3, 2]]}


def settings_of(objective, names):
    """The values of settings of an objective, which may be those of the InfoNCE inside it."""
    owner = objective.info_nce if hasattr(objective, "info_nce") else objective
    return {name: getattr(objective if hasattr(objective, name) else owner, name) for name in names}


@pytest.mark.parametrize(
    "name, settings, defaults",
    [
        (
            "angle",
            {},
            {"cosine_weight": 1.0, "in_batch_weight": 1.0, "angle_weight": 1.0, "temperature": 0.05}
            | {"angle_temperature": 1.0, "positive_score": 1.0},
        ),
        ("cosent", {}, {"temperature": 0.05}),
        ("esimcse", {}, {"temperature": 0.05, "similarity": "cosine", "hard_negative_weight": 0.0, "momentum": 0.995}),
        ("promptbert", EDGES, {"temperature": 0.05, "similarity": "cosine", "hard_negative_weight": 0.0}),
        ("simcse", {}, {"temperature": 0.05, "similarity": "cosine", "hard_negative_weight": 0.0}),
    ],
)
def test_the_defaults_are_those_of_the_paper(name, settings, defaults):
    objective = OBJECTIVES[name](8, **settings)
    assert settings_of(objective, defaults) == defaults


@pytest.mark.parametrize("name, settings", [("simcse", {}), ("esimcse", {}), ("promptbert", EDGES)])
def test_the_settings_of_infonce_reach_every_objective_that_is_one(name, settings):
    options = {"temperature": 0.1, "similarity": "dot", "hard_negative_weight": 0.5}
    objective = OBJECTIVES[name](8, **options, **settings)
    assert settings_of(objective, options) == options


def test_the_projector_of_barlow_twins_has_width_8192():
    with torch.device("meta"):
        objective = BarlowTwins(8)
    assert {tuple(weight.shape) for weight in objective.projector.parameters()} >= {(8192, 8), (8192, 8192)}
    assert objective.off_diagonal_weight == 0.0051


def test_the_head_of_promptbert_starts_as_berts_layers_do_and_only_where_embeddings_are_not_denoised():
    torch.manual_seed(0)
    dense = PromptBERT(64, **EDGES).head[0]
    assert dense.weight.std().item() == pytest.approx(0.02, rel=0.1) and not dense.bias.any()
    assert PromptBERT(64, **EDGES, head=False).head is None
    assert PromptBERT(64, **EDGES, denoising="transform").head is None
