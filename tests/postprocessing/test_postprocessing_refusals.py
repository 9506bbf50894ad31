"""What the transforms refuse, and that the message names the argument, the sentence or the file."""

import json
import math
import shutil

import pytest
import torch
from postprocessing_helpers import FIT, skewed, small_flow

from simcse_hf.postprocessing import Flow, Whitening, fit_flow, fit_whitening
from simcse_hf.postprocessing.transform import DESCRIPTION, FOLDER, WEIGHTS, find_transform, save_transform


def changed(value, row, column):
    vectors = skewed(40, 4)
    vectors[row, column] = value
    return vectors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_flow(skewed(30, 4), blocks=0), "blocks must be an integer between 1 and 1000, got 0"),
        (lambda: fit_flow(skewed(30, 4), width=0), "width must be an integer above 0, got 0"),
        (lambda: fit_flow(skewed(30, 4), epochs=0), "epochs.*got 0"),
        (lambda: fit_flow(skewed(30, 4), batch_size=0), "batch_size.*got 0"),
        (lambda: fit_flow(skewed(30, 4), learning_rate=math.nan), "learning_rate.*nan"),
        (lambda: fit_flow(skewed(8, 8)), "8 dimensions needs more than 8 embeddings.* got 8"),
        (lambda: fit_flow(skewed(8, 1)), "dim of a flow must be at least 2"),
        (lambda: fit_flow(changed(5.0, slice(None), 2)), "dimension 3 is the same in all 40"),
        (lambda: fit_flow(changed(math.inf, 6, 0)), "sentence 7 of those to fit on.*not finite"),
        (
            lambda: fit_flow(skewed(40, 4), epochs=1, learning_rate=1e30),
            "diverged in epoch 1: lower the learning rate of 1e",
        ),
        (lambda: Flow(4, 1, 4).transform(torch.zeros(2, 3)), "fitted on embeddings of 4 dimensions got shape"),
        (lambda: Whitening(4, 2).transform(torch.zeros(3, 5)), "fitted on embeddings of 4 dimensions got shape"),
        (lambda: fit_whitening([skewed(50, 4)], 0), "dim must be an integer between 1 and 4, got 0"),
        (lambda: fit_whitening([skewed(50, 4)], 5), "dim must be an integer between 1 and 4, got 5"),
        (lambda: fit_whitening([]), "no embeddings to fit"),
        (lambda: fit_whitening([changed(math.nan, 3, 1)]), "sentence 4 of those to fit on.*not finite"),
        (lambda: fit_whitening([skewed(5, 8)]), "8 dimensions .* these 5 vary in 4: .*at least 9 .*most 4"),
        (lambda: fit_whitening([skewed(4, 8).repeat(100, 1)]), "these 400 vary in 3"),
        (lambda: fit_whitening([skewed(1, 8)]), "these 1 vary in 0"),
    ],
)
def test_a_refusal_names_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.fixture
def saved(tmp_path):
    save_transform(tmp_path, small_flow(), FIT)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "glow"}, "postprocessing.json: unknown method 'glow'; known are flow, whitening"),
        ({"method": ["flow"]}, "postprocessing.json: unknown method"),
        ({"options": {"dims": 6}}, "postprocessing.json: damaged .*dims"),
        ({"options": {"dim": 7, "blocks": 2, "width": 5}}, "model.safetensors: damaged .*size mismatch"),
        (
            {"options": {"dim": 4, "blocks": 2**31}},
            "postprocessing.json: damaged .*blocks must be an integer between 1 and 1000",
        ),
        ({"options": {"dim": 2**20}}, "model.safetensors: damaged .*size mismatch"),
        ({"options": {"dim": "4"}}, "postprocessing.json: damaged .*TypeError"),
        ({"options": None}, "postprocessing.json: damaged"),
        ({"fit": {}}, "postprocessing.json: damaged .*pooler"),
        ({"fit": 3}, "postprocessing.json: damaged"),
    ],
)
def test_an_invalid_description_is_named_and_no_memory_is_used(changes, words, saved):
    path = saved / FOLDER / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=words) as error:
        find_transform(saved, {})
    assert str(saved) in str(error.value)


def test_a_damaged_file_is_named(saved):
    folder = saved / FOLDER
    flow, fit = find_transform(saved, {})
    next(flow.parameters()).data.view(-1)[0] = torch.nan
    save_transform(saved, flow, fit)
    with pytest.raises(ValueError, match="model.safetensors: .*values that are not finite"):
        find_transform(saved, {})
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    with pytest.raises(ValueError, match="model.safetensors: damaged"):
        find_transform(saved, {})
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match="model.safetensors is missing"):
        find_transform(saved, {})
    for text in ('{"fit": {},', "[]"):
        (folder / DESCRIPTION).write_text(text)
        with pytest.raises(ValueError, match="postprocessing.json: not a JSON"):
            find_transform(saved, {})
    shutil.rmtree(folder)
    assert find_transform(saved, {}) == (None, None)
