"""Tests of objectives: any class can be one, and its state lives and dies with training."""

import importlib
import sys

import pytest
import torch
from conftest import random_batch, tiny_config
from encoding_helpers import perturb
from model_helpers import unused
from objective_helpers import assert_opens_in_transformers
from safetensors.torch import load_file
from torch import nn
from trainer_helpers import model_of, refuses, texts

from simcse_hf import AutoModelForCL, BertForCL
from simcse_hf.models.checkpoint import OBJECTIVE_FILE
from simcse_hf.objectives import (
    OBJECTIVES,
    EncodedBatch,
    Objective,
    build_objective,
    import_objective,
    register,
)


class Distance(Objective):
    """Mean squared distance of the views after a linear map."""

    def __init__(self, dim, scale: float = 1.0, temperature: float = 7.0):
        super().__init__(dim)
        self.map = nn.Linear(dim, 4)

    def forward(self, batch):
        return self.map(batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()


@pytest.fixture(autouse=True)
def _known_before():
    """Forget the objectives that a test has registered."""
    before = dict(OBJECTIVES)
    yield
    OBJECTIVES.clear()
    OBJECTIVES.update(before)


@pytest.fixture
def distance():
    register("distance", Distance)


def test_a_users_own_module_is_imported_by_the_name_that_the_user_gives(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text(
        "from simcse_hf.objectives import Objective\n\n\nclass Near(Objective):\n    def forward(self, batch):\n"
        "        return (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with refuses("import it first import_objective"):
        build_objective("my_losses:Near", 4)
    import_objective("my_losses:Near")
    total = build_objective("simcse+my_losses:Near:0.5", 4)
    assert total.name == "simcse+my_losses:Near:0.5"
    assert set(total(EncodedBatch(torch.randn(3, 2, 4)))) == {"simcse_loss", "my_losses:Near_loss"}
    for name in ("my_losses:Far", "no_such_module:Near", "json:JSONDecoder"):
        with refuses(name):
            import_objective(name)


def test_a_module_of_the_current_folder_is_found_where_python_does_not_look_for_it(tmp_path, monkeypatch):
    """As in the process of a console script, whose path begins with the folder of the script."""
    (tmp_path / "near_by.py").write_text("from simcse_hf.objectives import Objective\n\n\nclass Far(Objective): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    import_objective("near_by:Far")
    assert OBJECTIVES["near_by:Far"].__module__ == "near_by"


CELL = """
from simcse_hf.objectives import Objective

class Again(Objective):
    NAME
    def forward(self, batch):
        return FACTOR * batch.embeddings.square().sum()
"""


@pytest.mark.parametrize("name", ["", "again"])
def test_an_objective_that_is_defined_again_is_the_one_that_trains(tmp_path, make, monkeypatch, name):
    """By a cell that runs again, or `importlib.reload`; also with a model that was loaded before."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    called = name or "cell:Again"
    model = None
    monkeypatch.delitem(sys.modules, "cell", raising=False)
    for factor in (1.0, 3.0):
        source = CELL.replace("FACTOR", str(factor)).replace("NAME", f"name = {name!r}" if name else "")
        (tmp_path / "cell.py").write_text(source)
        importlib.reload(importlib.import_module("cell"))
        import_objective("cell:Again")
        model = model or model_of(objective=called)
        objective = make(texts(16), model).model.objective
        assert objective(EncodedBatch(torch.ones(1, 1, 1))) == factor
        assert build_objective(called, 1)(EncodedBatch(torch.ones(1, 1, 1))) == factor


def test_unknown_names_and_options_are_refused_with_the_known_ones(distance):
    with refuses("size scale temperature"):
        build_objective("distance", 8, {"size": 3})
    with refuses("'distance' is already registered"):
        register("distance", Objective)


def test_the_weights_of_an_objective_are_saved_in_a_separate_file_and_another_one_discards_them(
    distance, save_checkpoint
):
    model, batch = BertForCL(tiny_config(), objective="distance").eval(), random_batch(4, 2)
    loss = model(**batch).loss.item()
    directory = save_checkpoint(model)
    assert load_file(directory / OBJECTIVE_FILE).keys() == {"objective.map.weight", "objective.map.bias"}
    assert_opens_in_transformers(directory)
    assert AutoModelForCL.from_pretrained(directory).eval()(**batch).loss.item() == loss
    other = AutoModelForCL.from_pretrained(directory, objective="simcse")
    assert other(**batch).parts is None
    other.save_pretrained(directory)
    assert not (directory / OBJECTIVE_FILE).exists()


def test_the_first_of_two_encoders_encodes_the_anchors_and_the_second_the_rest():
    model, batch = BertForCL(tiny_config(dropout=0.0), encoders=2), random_batch(4, 3)
    same = model(**batch).sentence_embeddings
    perturb(model.second_encoder, 0.01)
    output = model(**batch)
    torch.testing.assert_close(output.sentence_embeddings[:, 0], same[:, 0])
    assert not torch.allclose(output.sentence_embeddings[:, 1:], same[:, 1:], atol=1e-3)
    output.loss.backward()
    assert not unused(model)


def test_with_two_encoders_the_states_of_a_column_are_those_of_its_encoder():
    settings = {"objective": "simcse+is_bert", "pooler_type": "avg", "encoders": 2}
    model, batch = BertForCL(tiny_config(dropout=0.0), **settings), random_batch(4, 3)
    model.prepare_objective()
    perturb(model.second_encoder, 0.01)
    embeddings, states = model.embed_rows(batch, None)
    mask = batch["attention_mask"][..., None]
    torch.testing.assert_close((states * mask).sum(2) / mask.sum(2), embeddings)


def test_an_objective_that_needs_a_missing_model_is_advised_to_disable_gradcache():
    batch = EncodedBatch(torch.ones(2, 2, 3))
    with refuses("batch.model.embed Set supports_gradcache = False"):
        batch.model.embed(torch.ones(2, 4))
