"""Fixtures of tests/publishing, tests/inference and tests/search: models, and a stand-in for the hub."""

import huggingface_hub
import pytest
import transformers.utils.hub
from conftest import tiny_config
from hub_server import HubServer
from huggingface_hub import constants
from inference_helpers import perturb, random_texts

from simcse_hf import AutoModelForCL, SimCSE


@pytest.fixture
def directory(save_checkpoint):
    return save_checkpoint(AutoModelForCL.from_config(tiny_config()), "my-model")


@pytest.fixture
def checkpoint(save_checkpoint):
    """The folder of a model with the pooler avg."""
    return save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"))


@pytest.fixture
def model(checkpoint):
    """The model in `checkpoint`."""
    return SimCSE(checkpoint, device="cpu")


@pytest.fixture
def saved(save_checkpoint):
    """`saved(family, **settings)` saves a model whose weights are all random."""

    def save(family="bert", **settings):
        model = AutoModelForCL.from_config(
            tiny_config(family, num_hidden_layers=3), **settings
        )
        return save_checkpoint(perturb(model), family)

    return save


@pytest.fixture
def transformed(save_checkpoint, tmp_path):
    """`transformed(method, **settings)` makes a model with a whitening to 6 dimensions or a flow, in a directory."""
    (tmp_path / "unlabelled.txt").write_text(
        "\n".join(random_texts(60, words=(6, 7))) + "\n"
    )

    def make(method, family="bert", **settings):
        model = AutoModelForCL.from_config(
            tiny_config(family, initializer_range=0.3), **settings
        )
        directory = save_checkpoint(model, "my-model")
        options = (
            {"dim": 6}
            if method == "whitening"
            else {"blocks": 1, "width": 4, "epochs": 1}
        )
        loaded = SimCSE(directory, device="cpu")
        loaded.fit_postprocessing(method, tmp_path / "unlabelled.txt", **options)
        loaded.save_pretrained(directory)
        return directory

    return make


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The local stand-in for the hub that the clients of this process talk to, with its token."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(
            constants.ENDPOINT, server.url
        )
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr(
            "huggingface_hub.utils._http.time.sleep", lambda seconds: None
        )
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server
        assert not server.errors
