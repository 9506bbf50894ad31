"""Saving a transform beside its model: it is loaded unchanged, and damaged files are named."""

import json
import shutil

import pytest
import torch
from test_postprocessing_whitening import skewed

from simcse_hf.postprocessing import Flow, fit_flow, fit_whitening
from simcse_hf.postprocessing.transform import (
    DESCRIPTION,
    FOLDER,
    MODULES,
    WEIGHTS,
    Fit,
    find_transform,
    save_transform,
)

FIT = Fit("avg", 40, "texts.txt", ["text"], 60, {"dim": 4}, None)


def make(method):
    x = skewed(60, 6)
    if method == "whitening":
        return fit_whitening([x], 4)
    return fit_flow(x, blocks=2, width=5, epochs=1, batch_size=30)[0]


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_a_loaded_transform_is_bit_identical(method, tmp_path):
    transform = make(method)
    save_transform(tmp_path, transform, FIT)
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    loaded, fit = find_transform(tmp_path, {})
    assert torch.equal(torch.rand(1), wanted), "loading leaves the random state alone"
    x = skewed(20, 6, seed=1)
    assert torch.equal(loaded.transform(x), transform.transform(x)) and fit == FIT
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert not (tmp_path / MODULES).exists() and sorted(path.name for path in tmp_path.iterdir()) == [FOLDER]


def test_a_second_transform_replaces_the_first(tmp_path):
    modules = [{"idx": i, "name": str(i), "path": f"{i}", "type": f"a.{kind}"} for i, kind in enumerate("TP")]
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (tmp_path / MODULES).write_text(json.dumps(modules))
    for method, kind in (("flow", "simcse_hf.postprocessing.flow.Flow"), ("whitening", ".Dense"), ("flow", ".Flow")):
        save_transform(tmp_path, make(method), FIT)
        assert find_transform(tmp_path, {})[0].method == method
        saved_modules = json.loads((tmp_path / MODULES).read_text())
        assert [module["path"] for module in saved_modules] == ["0", "1", FOLDER, "2_Normalize"]
        assert [module["idx"] for module in saved_modules] == [0, 1, 2, 3] and saved_modules[2]["type"].endswith(kind)
        assert (tmp_path / FOLDER / "config.json").exists() is (method == "whitening")


@pytest.fixture
def saved(tmp_path):
    save_transform(tmp_path, make("flow"), FIT)
    return tmp_path


def test_the_shape_of_a_flow_is_saved(saved):
    flow = find_transform(saved, {})[0]
    assert isinstance(flow, Flow) and flow.options == {"dim": 6, "blocks": 2, "width": 5}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "glow"}, "postprocessing.json: unknown method 'glow'; known are flow, whitening"),
        ({"method": ["flow"]}, "postprocessing.json: unknown method"),
        ({"options": {"dims": 6}}, "postprocessing.json: damaged .*dims"),
        ({"options": {"dim": 7, "blocks": 2, "width": 5}}, "model.safetensors: damaged .*size mismatch"),
        ({"options": {"dim": 4, "blocks": 2**31}}, "postprocessing.json: damaged .*blocks of a flow .* at most 1000"),
        ({"options": {"dim": 2**20}}, "model.safetensors: damaged .*size mismatch"),
        ({"options": {"dim": -1}}, "postprocessing.json: damaged .*at least 2"),
        ({"options": {"dim": "4"}}, "postprocessing.json: damaged .*TypeError"),
        ({"options": None}, "postprocessing.json: damaged"),
        ({"fit": {}}, "postprocessing.json: damaged .*pooler"),
        ({"fit": 3}, "postprocessing.json: damaged"),
    ],
)
def test_the_error_names_an_invalid_description_file_and_no_memory_is_used(changes, message, saved):
    path = saved / FOLDER / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message) as error:
        find_transform(saved, {})
    assert str(saved) in str(error.value)


def test_the_error_names_a_damaged_file(saved):
    folder = saved / FOLDER
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(weights[:100])
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
    assert find_transform(saved, {}) is None


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_weights_that_are_not_finite_are_refused(method, tmp_path):
    transform = make(method)
    next(transform.parameters()).data.view(-1)[0] = torch.nan
    save_transform(tmp_path, transform, FIT)
    with pytest.raises(ValueError, match="model.safetensors: .*holds values that are not finite"):
        find_transform(tmp_path, {})
