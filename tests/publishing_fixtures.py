"""Fixtures of tests that save, encode with, search with and push models, and a stand-in for the hub."""

from functools import partial
from shutil import copytree

import huggingface_hub
import pytest
import torch
import transformers.utils.hub
from conftest import save_with_tokenizer, tiny_config
from encoding_helpers import perturb, random_texts
from evaluation_helpers import write
from hub_server import HubServer
from huggingface_hub import constants

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.encoding.fitting import fit_transform


@pytest.fixture(scope="session")
def untrained(tmp_path_factory):
    """The folder of a BERT model, which is only read."""
    torch.manual_seed(0)
    model = AutoModelForCL.from_config(tiny_config())
    return save_with_tokenizer(model, tmp_path_factory.mktemp("untrained") / "my-model")


@pytest.fixture(scope="session")
def new_directory(untrained, tmp_path_factory):
    """`new_directory()` is another folder `my-model` with the BERT model."""

    def copy():
        return copytree(untrained, tmp_path_factory.mktemp("copy") / untrained.name)

    return copy


@pytest.fixture
def directory(new_directory):
    return new_directory()


@pytest.fixture
def checkpoint(save_checkpoint):
    """The folder of a model with the pooler avg."""
    return save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"))


@pytest.fixture
def model(checkpoint):
    """The model in `checkpoint`."""
    return SimCSE(checkpoint, device="cpu")


def save_random(folder, tokenizer, family="bert", **settings):
    """Save a model whose weights are all random in a folder of the name of its family, and return this folder."""
    config = tiny_config(family, num_hidden_layers=3)
    model = AutoModelForCL.from_config(config, **settings)
    perturb(model).save_pretrained(folder / family)
    tokenizer.save_pretrained(folder / family)
    return folder / family


@pytest.fixture
def saved(tmp_path, tokenizer):
    """`saved(family, **settings)` saves a model whose weights are all random."""
    return partial(save_random, tmp_path, tokenizer)


TRANSFORMS = {"whitening": {"dim": 6}, "flow": {"blocks": 1, "width": 4, "epochs": 1}}


def save_transformed(folder, tokenizer, method, family="bert", **settings):
    """Save a model with a whitening to 6 dimensions or a flow, and return its directory in the folder."""
    texts = write(folder / "unlabelled.txt", random_texts(60, words=(6, 7)))
    config = tiny_config(family, initializer_range=0.3)
    directory = folder / "my-model"
    AutoModelForCL.from_config(config, **settings).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    loaded = SimCSE(directory, device="cpu")
    fit_transform(loaded, method, texts, **TRANSFORMS[method])
    loaded.save_pretrained(directory)
    return directory


@pytest.fixture
def transformed(tmp_path, tokenizer):
    """`transformed(method, **settings)` makes a model with a whitening to 6 dimensions or a flow, in a directory."""
    return partial(save_transformed, tmp_path, tokenizer)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local stand-in for the hub that the clients of this process talk to, with its token."""
    with HubServer() as server:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server
        assert not server.errors
