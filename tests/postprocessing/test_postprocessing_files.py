"""Saving a transform beside its model: it is loaded unchanged, and it knows the weights that it was fitted for."""

import json

import pytest
import torch
from postprocessing_helpers import FIT, skewed, small_flow

from simcse_hf import SimCSE
from simcse_hf.postprocessing import fit_whitening
from simcse_hf.postprocessing.transform import (
    FOLDER,
    MODULES,
    find_transform,
    save_transform,
)

METHODS = pytest.mark.parametrize("method", ["whitening", "flow"])


def make(method):
    return fit_whitening([skewed(60, 6)], 4) if method == "whitening" else small_flow()


# --- saved and loaded ---


@pytest.fixture
def transform(method, tmp_path):
    """A transform that is saved in `tmp_path`."""
    transform = make(method)
    save_transform(tmp_path, transform, FIT)
    return transform


@METHODS
def test_a_loaded_transform_is_bit_identical(transform, tmp_path):
    loaded, _ = find_transform(tmp_path, {})
    vectors = skewed(20, 6, seed=1)
    assert torch.equal(loaded.transform(vectors), transform.transform(vectors))


@METHODS
def test_a_loaded_transform_knows_what_it_was_fitted_on(transform, tmp_path):
    _, fit = find_transform(tmp_path, {})
    assert fit == FIT


@METHODS
def test_a_loaded_transform_is_not_trained(transform, tmp_path):
    loaded, _ = find_transform(tmp_path, {})
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


@METHODS
def test_loading_leaves_the_random_state_alone(transform, tmp_path):
    state = torch.get_rng_state()
    find_transform(tmp_path, {})
    assert torch.equal(torch.get_rng_state(), state)


@METHODS
def test_a_transform_is_saved_in_a_folder_of_its_own(transform, tmp_path):
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


# --- beside the modules of sentence-transformers ---


@pytest.fixture
def modules_json(tmp_path):
    """The modules of a transformer, a pooling and a normalization."""
    modules = [
        {"idx": 0, "name": "0", "path": "0", "type": "a.T"},
        {"idx": 1, "name": "1", "path": "1", "type": "a.P"},
        {
            "idx": 2,
            "name": "2",
            "path": "2_Normalize",
            "type": "sentence_transformers.models.Normalize",
        },
    ]
    path = tmp_path / MODULES
    path.write_text(json.dumps(modules))
    return path


#: Transforms that are saved one after the other.
ONE_AFTER_THE_OTHER = pytest.mark.parametrize(
    "methods",
    [("flow",), ("flow", "whitening"), ("flow", "whitening", "flow")],
    ids=lambda methods: ", ".join(methods),
)


@pytest.fixture
def last_method(methods, modules_json, tmp_path):
    for method in methods:
        save_transform(tmp_path, make(method), FIT)
    return methods[-1]


@ONE_AFTER_THE_OTHER
def test_a_second_transform_replaces_the_first(last_method, tmp_path):
    assert find_transform(tmp_path, {})[0].method == last_method


@ONE_AFTER_THE_OTHER
def test_a_transform_has_one_place_before_the_normalization(last_method, modules_json):
    modules = json.loads(modules_json.read_text())
    assert [module["path"] for module in modules] == ["0", "1", FOLDER, "2_Normalize"]
    assert [module["idx"] for module in modules] == [0, 1, 2, 3]


@ONE_AFTER_THE_OTHER
def test_a_whitening_is_a_dense_layer_there_and_a_flow_is_our_own_module(last_method, modules_json):
    types = {"flow": "simcse_hf.postprocessing.flow.Flow", "whitening": ".Dense"}
    transform = json.loads(modules_json.read_text())[2]
    assert transform["type"].endswith(types[last_method])


@ONE_AFTER_THE_OTHER
def test_the_config_of_a_dense_layer_stands_beside_a_whitening_only(last_method, tmp_path):
    assert (tmp_path / FOLDER / "config.json").exists() is (last_method == "whitening")


# --- a transform knows the weights that it was fitted for ---


@pytest.fixture
def model(method, transformed):
    """A model with a transform, which has encoded a text."""
    model = SimCSE(transformed(method), device="cpu")
    model.encode("a cat")
    return model


@pytest.fixture
def changed_model(model):
    """The model, whose weights have changed in memory since."""
    with torch.no_grad():
        for tensor in model.model.parameters():
            tensor.data.add_(0.2 * torch.randn_like(tensor))
    return model


OF_OTHER_WEIGHTS = "were fitted on the embeddings of other weights: fit them again"


@METHODS
def test_encoding_is_refused_after_the_weights_have_changed_in_memory(changed_model):
    with pytest.raises(ValueError, match=OF_OTHER_WEIGHTS):
        changed_model.encode("a cat")


@METHODS
def test_saving_is_refused_after_the_weights_have_changed_in_memory(changed_model, tmp_path):
    with pytest.raises(ValueError, match=OF_OTHER_WEIGHTS):
        changed_model.save_pretrained(tmp_path / "new")
    assert not list(tmp_path.glob("new/*")), "nothing is written"


@METHODS
def test_a_changed_model_encodes_without_the_transform(changed_model):
    changed_model.postprocessing = None
    changed_model.postprocessing_fit = None
    assert changed_model.encode("a cat").shape == (32,)


@METHODS
def test_an_embedding_has_the_dimensions_of_the_transform(model, method):
    dim = {"whitening": 6, "flow": 32}[method]
    assert model.dim == dim
    assert model.encode("a cat").shape == (dim,)


@pytest.mark.parametrize("method", ["whitening"])
def test_a_transform_holds_in_half_precision_and_on_another_device(model):
    expected = model.encode("a cat")
    model.model.to(torch.bfloat16)
    assert model.to("cpu").encode("a cat") @ expected > 0.9
