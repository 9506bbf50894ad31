"""No file that a user may have downloaded runs code: nothing is unpickled, and no name in a file is imported."""

import gzip
import json
import os
import pickle
import re
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import read_json
from model_helpers import edit_json
from trainer_helpers import model_of

import simcse_hf
from simcse_hf import SentenceIndex, SimCSE
from simcse_hf.data.read import load_text_dataset
from simcse_hf.encoding.files import encode, read_shards
from simcse_hf.encoding.simcse import load_model
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.publishing.card_subject import read_run
from simcse_hf.training.arguments import ModelArguments
from simcse_hf.training.parser import WordParser

PACKAGE = Path(simcse_hf.__file__).parent
MARK = "CODE_OF_A_FILE_WAS_RUN"


class Payload:
    """An object whose unpickling makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return (os.mkdir, (self.folder,))


@pytest.fixture
def payload(tmp_path):
    """A harmful object; the test fails if anything has unpickled it."""
    folder = tmp_path / MARK
    with pytest.raises(FileExistsError):  # it does harm where it is unpickled
        pickle.loads(pickle.dumps([Payload(folder), Payload(folder)]))
    folder.rmdir()
    yield Payload(folder)
    assert not list(tmp_path.rglob(MARK)), "a file has run code"


@pytest.fixture
def folder(save_checkpoint):
    layer = {"in_features": 32, "out_features": 8}
    return save_checkpoint(model_of("mpnet", pooler_type="cls", dense_layers=[layer]))


# --- the source --------------------------------------------------------------------------------------------------


def test_no_call_of_the_package_may_unpickle_or_import_what_a_file_names():
    """Ruff finds `pickle`, `exec` and loaders of YAML that make objects (its rules S in pyproject.toml)."""
    for path in PACKAGE.rglob("*.py"):
        unsafe = r"torch\.load\(|allow_pickle=True|trust_remote_code=True[,)]|import joblib"
        assert not re.search(unsafe, path.read_text()), path


# --- models ------------------------------------------------------------------------------------------------------


def load(folder):
    """Load a model and use it; a damaged one is one message."""
    try:
        load_model(folder, device="cpu").encode("the cat")
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "name", "config.json modules.json tokenizer.json tokenizer_config.json 2_Dense/model.safetensors".split()
)
def test_a_pickle_in_the_place_of_a_models_file_is_one_message(name, folder, payload):
    (folder / name).write_bytes(pickle.dumps(payload))
    assert load(folder)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder_of_weights", [".", "2_Dense"])
def test_pickled_weights_are_not_run(zipped, folder_of_weights, folder, payload):
    (folder / folder_of_weights / "model.safetensors").unlink()
    weights = {"weights": payload, "linear.weight": payload}
    path = folder / folder_of_weights / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    assert load(folder)


def test_files_that_only_a_training_reads_are_not_opened(folder, payload):
    for name in "training_args.bin optimizer.pt scheduler.pt rng_state.pth scaler.pt model.pkl".split():
        (folder / name).write_bytes(pickle.dumps(payload))
    assert load(folder) is None


@pytest.mark.parametrize(
    "name, classes",
    [
        ("config.json", {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.Tokenizer", None]}),
    ],
)
def test_code_beside_a_model_is_not_imported(name, classes, folder, payload):
    (folder / "evil.py").write_text(f"import os\nos.mkdir({payload.folder!r})\nConfig = Model = Tokenizer = None\n")
    edit_json(folder / name, auto_map=classes)
    load(folder)


@pytest.mark.parametrize("kind", ["os.mkdir", "evil.Module", "torch.nn.modules.linear.evil", "builtins.exec"])
def test_modules_and_activations_are_not_imported_by_name(kind, folder, payload, monkeypatch):
    (folder / "evil.py").write_text(f"import os\nos.mkdir({payload.folder!r})\n")
    monkeypatch.syspath_prepend(folder)
    modules = read_json(folder / "modules.json")
    (folder / "modules.json").write_text(json.dumps([*modules, {"idx": 9, "name": "9", "path": "9", "type": kind}]))
    load(folder)
    (folder / "modules.json").write_text(json.dumps(modules))
    for config in folder.glob("*/*/config.json"):
        edit_json(config, activation_function=kind)
        load(folder)
    content = read_json(folder / "config.json")
    content["simcse"]["pooling"]["dense_layers"][0]["activation_function"] = kind
    (folder / "config.json").write_text(json.dumps(content))
    assert "activation_function" in load(folder)


# --- everything else that is read --------------------------------------------------------------------------------


def test_an_index_and_shards_run_nothing(folder, payload, tmp_path):
    model = SimCSE(folder, device="cpu")
    (tmp_path / "t.txt").write_text("the cat\na dog\n")
    SentenceIndex.build(model, ["the cat", "a dog"]).save(tmp_path / "index")
    encode(model, tmp_path / "t.txt", tmp_path / "shards")
    pickled_array = BytesIO()
    np.save(pickled_array, np.array([payload], dtype=object), allow_pickle=True)
    description = tmp_path / "index" / "index.json"
    described = description.read_bytes()
    for path in [*tmp_path.glob("index/**/*.*"), *tmp_path.glob("shards/*.*")]:
        if not path.is_file() or path.name == "_run.lock":
            continue
        kept = path.read_bytes()
        for content in (pickle.dumps(payload), pickled_array.getvalue()):
            path.write_bytes(content)
            if path.name in (digests := json.loads(described)["digests"]):  # the digest was changed with the file
                digests[path.name] = blake2b(content).hexdigest()
                description.write_text(json.dumps(json.loads(described) | {"digests": digests}))
            with pytest.raises(ValueError, match="damaged|cannot be read|not a JSON"):
                SentenceIndex.load(tmp_path / "index", model)
                list(read_shards(tmp_path / "shards"))
        path.write_bytes(kept)
        description.write_bytes(described)
    (tmp_path / "ranges.npy").write_bytes(pickled_array.getvalue())
    with pytest.raises(ValueError, match="not a readable npy file"):
        encode(model, tmp_path / "t.txt", tmp_path / "new", precision="int8", ranges=tmp_path / "ranges.npy")


def test_result_files_run_nothing(payload, tmp_path):
    (tmp_path / "e.json").write_text(json.dumps({"results": {}, "scores": "e.npz"}))
    np.savez(tmp_path / "e.npz", **{"STS12/all/x": np.array([payload], dtype=object)})
    with pytest.raises(ValueError, match=r"e\.npz: damaged"):
        Evaluation.read(tmp_path / "e.json")
    (tmp_path / "e.npz").write_bytes(pickle.dumps(payload))
    with pytest.raises(ValueError, match=r"e\.npz: damaged"):
        Evaluation.read(tmp_path / "e.json")
    (tmp_path / "results.json").write_bytes(pickle.dumps(payload))
    with pytest.raises(ValueError):
        read_run(tmp_path / "results.json")


@pytest.mark.parametrize("name", "t.parquet t.csv t.txt t.json t.jsonl t.txt.gz".split())
def test_data_files_run_nothing(name, payload, tmp_path):
    content = pickle.dumps(payload)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_text_dataset(tmp_path / name, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("tag", ["apply:os.mkdir", "module:os"])
def test_a_recipe_runs_nothing(tag, payload, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"pooler_type: !!python/object/{tag} [{payload.folder}]\n")
    with pytest.raises(ValueError, match=r"recipe\.yaml is not valid YAML"):
        WordParser([ModelArguments]).read(tmp_path / "recipe.yaml")
