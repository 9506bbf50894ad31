"""Saving a transform beside its model: it is loaded unchanged, and it knows the weights that it was fitted for."""

import json

import pytest
import torch
from encoding_helpers import perturb
from postprocessing_helpers import FIT, skewed, small_flow

from simcse_hf import SimCSE
from simcse_hf.postprocessing import fit_whitening
from simcse_hf.postprocessing.transform import FOLDER, MODULES, find_transform, save_transform


def make(method):
    return fit_whitening([skewed(60, 6)], 4) if method == "whitening" else small_flow()


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_a_transform_is_loaded_as_it_was_saved(method, tmp_path):
    transform = make(method)
    save_transform(tmp_path, transform, FIT)
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]
    state = torch.get_rng_state()
    loaded, fit = find_transform(tmp_path, {})
    assert torch.equal(torch.get_rng_state(), state)
    vectors = skewed(20, 6, seed=1)
    assert torch.equal(loaded.transform(vectors), transform.transform(vectors)) and fit == FIT
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


# --- beside the modules of sentence-transformers ---


@pytest.mark.parametrize("methods", [("flow",), ("flow", "whitening"), ("flow", "whitening", "flow")])
def test_a_transform_has_one_place_before_the_normalization(methods, tmp_path):
    """The last one counts: a whitening is a dense layer there, and a flow is our own module."""
    types = ["a.T", "a.P", "sentence_transformers.models.Normalize"]
    modules = [{"idx": n, "name": str(n), "path": str(n), "type": each} for n, each in enumerate(types)]
    (tmp_path / MODULES).write_text(json.dumps(modules))
    for method in methods:
        save_transform(tmp_path, make(method), FIT)
    assert find_transform(tmp_path, {})[0].method == method
    modules = json.loads((tmp_path / MODULES).read_text())
    assert [module["path"] for module in modules] == ["0", "1", FOLDER, "2"]
    assert [module["idx"] for module in modules] == [0, 1, 2, 3]
    expected = {"flow": "simcse_hf.postprocessing.flow.Flow", "whitening": ".Dense"}[method]
    assert modules[2]["type"].endswith(expected)
    assert (tmp_path / FOLDER / "config.json").exists() is (method == "whitening")


# --- a transform knows the weights that it was fitted for ---


@pytest.mark.parametrize("method, dim", [("whitening", 6), ("flow", 32)])
def test_a_transform_is_refused_after_the_weights_have_changed_in_memory(method, dim, transformed, tmp_path):
    model = SimCSE(transformed(method), device="cpu")
    assert model.dim == dim and model.encode("a cat").shape == (dim,)
    perturb(model.model, 0.2)
    for use in (lambda: model.encode("a cat"), lambda: model.save_pretrained(tmp_path / "new")):
        with pytest.raises(ValueError, match="were fitted on the embeddings of other weights: fit them again"):
            use()
    assert not list(tmp_path.glob("new/*")), "nothing is written"
    model.postprocessing = model.postprocessing_fit = None
    assert model.encode("a cat").shape == (32,)


def test_a_transform_holds_in_half_precision_and_on_another_device(transformed):
    model = SimCSE(transformed("whitening"), device="cpu")
    expected = model.encode("a cat")
    model.model.to(torch.bfloat16)
    assert model.to("cpu").encode("a cat") @ expected > 0.9
