"""What the transforms refuse, and that the message names the argument, the sentence or the file."""

import math
import shutil

import pytest
import torch
from model_helpers import edit_json
from postprocessing_helpers import FIT, skewed, small_flow
from trainer_helpers import refuses

from simcse_hf.postprocessing import Flow, Whitening, fit_flow, fit_whitening
from simcse_hf.postprocessing.transform import FOLDER, TRANSFORM_FILE, WEIGHTS, find_transform, save_transform


def with_value(value, row, column):
    """Embeddings with another value in a row and a column."""
    vectors = skewed(40, 4)
    vectors[row, column] = value
    return vectors


EVERY_ROW = slice(None)

# --- a flow ---


@pytest.mark.parametrize("option, value", [("blocks", 0), ("batch_size", 0), ("learning_rate", math.nan)])
def test_an_option_of_a_flow_that_is_out_of_range_is_named(option, value):
    with refuses(f"{option} {value}"):
        fit_flow(skewed(30, 4), **{option: value})


@pytest.mark.parametrize(
    "vectors, words",
    [
        (skewed(8, 8), "8 dimensions needs more than 8 embeddings got 8"),
        (skewed(8, 1), "dim of a flow must be at least 2"),
        (with_value(5.0, EVERY_ROW, 2), "dimension 3 is the same in all 40"),
        (with_value(math.inf, 6, 0), "sentence 7 of those to fit on not finite"),
    ],
    ids=["too few", "one dimension", "a constant dimension", "not finite"],
)
def test_embeddings_that_no_flow_can_be_fitted_on_are_refused(vectors, words):
    with refuses(words):
        fit_flow(vectors)


def test_a_flow_that_diverges_says_in_which_epoch_and_what_to_lower():
    with refuses("diverged in epoch 1: lower the learning rate of 1e"):
        fit_flow(skewed(40, 4), epochs=1, learning_rate=1e30)


# --- a whitening ---


def test_a_whitening_to_more_dimensions_than_there_are_is_refused():
    with refuses("dim 5"):
        fit_whitening([skewed(50, 4)], 5)


@pytest.mark.parametrize(
    "parts, words",
    [
        ([], "no embeddings to fit"),
        ([with_value(math.nan, 3, 1)], "sentence 4 of those to fit on not finite"),
        ([skewed(5, 8)], "8 dimensions these 5 vary in 4: at least 9 most 4"),
    ],
)
def test_embeddings_that_no_whitening_can_be_fitted_on_are_refused(parts, words):
    with refuses(words):
        fit_whitening(parts)


@pytest.mark.parametrize("transform", [Flow(4, 1, 4), Whitening(4, 2)], ids=["flow", "whitening"])
def test_embeddings_of_other_dimensions_are_not_transformed(transform):
    with refuses("fitted on embeddings of 4 dimensions got shape"):
        transform.transform(torch.zeros(2, 3))


# --- files ---


@pytest.fixture
def saved(tmp_path):
    """A folder with a flow."""
    save_transform(tmp_path, small_flow(), FIT)
    return tmp_path


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"method": "glow"}, "json: unknown method 'glow'"),
        ({"options": {"dim": 4, "blocks": 2**31}}, "json: damaged blocks"),
        ({"fit": {}}, "json: damaged pooler"),
        ({"options": {"dim": 2**20}}, "model.safetensors: damaged size mismatch"),  # without memory for it
    ],
)
def test_an_invalid_description_is_named(changes, words, saved):
    edit_json(saved / FOLDER / TRANSFORM_FILE, **changes)
    with refuses(f"{saved} {words}"):
        find_transform(saved, {})


def test_a_damaged_or_missing_file_is_named(saved):
    flow, fit = find_transform(saved, {})
    next(flow.parameters()).data.view(-1)[0] = torch.nan
    save_transform(saved, flow, fit)
    with refuses("model.safetensors: values that are not finite"):
        find_transform(saved, {})
    weights = saved / FOLDER / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:100])
    with refuses("model.safetensors: damaged"):
        find_transform(saved, {})
    weights.unlink()
    with refuses("model.safetensors is missing"):
        find_transform(saved, {})
    (saved / FOLDER / TRANSFORM_FILE).write_text("[]")
    with refuses("postprocessing.json: not a JSON"):
        find_transform(saved, {})
    shutil.rmtree(saved / FOLDER)
    assert find_transform(saved, {}) == (None, None)
