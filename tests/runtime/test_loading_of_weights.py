"""An adapter of peft is loaded with the model that it was trained on."""

import json

from conftest import tiny_config
from transformers import AutoConfig

from simcse_hf.runtime.loading import load_base, load_pretrained


def write_adapter(folder, base, **more):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)} | more))
    return folder


def test_the_model_of_an_adapter_is_loaded_at_the_commit_of_its_training(tmp_path):
    where = {"revision": "main", "subfolder": "", "cache_dir": "cache"}  # of the adapter
    for revision in ("abc", None):
        adapter = write_adapter(tmp_path / str(revision), "org/base", revision=revision)
        name, options = load_base(lambda base, **kwargs: (base, kwargs), adapter, "org/base", **where)
        assert (name, options.pop("cache_dir"), options.get("revision")) == ("org/base", "cache", revision)
        assert "subfolder" not in options


def test_the_config_of_an_adapter_is_that_of_its_model_with_the_settings_of_the_adapter(tmp_path):
    tiny_config().save_pretrained(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", tmp_path / "base")
    settings = {"simcse": {"pooler_type": "avg"}, "base": "a digest of weights"}
    (adapter / "simcse.json").write_text(json.dumps(settings))
    config = load_pretrained(AutoConfig.from_pretrained, adapter).to_dict()
    assert (config["hidden_size"], config["simcse"]) == (32, {"pooler_type": "avg"})
    assert "base" not in config
