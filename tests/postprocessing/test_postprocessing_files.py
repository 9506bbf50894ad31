"""Saving a transform beside its model: it is loaded unchanged, and damaged files are named."""

import json

import pytest
import torch
from postprocessing_helpers import FIT, skewed, small_flow

from simcse_hf import SimCSE
from simcse_hf.postprocessing import fit_whitening
from simcse_hf.postprocessing.transform import FOLDER, MODULES, find_transform, save_transform


def make(method):
    return fit_whitening([skewed(60, 6)], 4) if method == "whitening" else small_flow()


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


# --- a transform knows the weights that it was fitted for ---------------------------------------------------------


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_a_transform_is_refused_after_the_weights_have_changed_in_memory(method, transformed, tmp_path):
    model = SimCSE(transformed(method), device="cpu")
    assert model.encode("a cat").shape == (model.dim,)
    with torch.no_grad():
        for tensor in model.model.parameters():
            tensor.data.add_(0.2 * torch.randn_like(tensor))
    for use in (lambda: model.encode("a cat"), lambda: model.save_pretrained(tmp_path / "new")):
        with pytest.raises(ValueError, match="were fitted on the embeddings of other weights: fit them again"):
            use()
    assert not (tmp_path / "new").exists() or not list((tmp_path / "new").iterdir())
    model.postprocessing = model.postprocessing_fit = None
    assert model.encode("a cat").shape == (32,)


def test_a_transform_holds_in_half_precision_and_on_another_device(transformed):
    model = SimCSE(transformed("whitening"), device="cpu")
    expected = model.encode("a cat")
    model.model.to(torch.bfloat16)
    assert model.to("cpu").encode("a cat") @ expected > 0.9
