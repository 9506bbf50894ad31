"""The files of every release so far load, and give the values that they gave when they were written."""

import json
from pathlib import Path

import pytest
import torch

from simcse_hf import SimCSE
from simcse_hf.postprocessing.files import find_transform

TOLERANCE = {"rtol": 0, "atol": 2e-5}  # processors round differently


@pytest.fixture(
    scope="module", params=sorted(path.parent for path in Path(__file__).parent.glob("*/expected.json")), ids=str
)
def release(request):
    return request.param


@pytest.fixture(scope="module")
def expected(release):
    return json.loads((release / "expected.json").read_text())


@pytest.fixture(scope="module")
def bert(release):
    return SimCSE(release / "bert", device="cpu")


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_checkpoint_gives_the_same_embeddings(release, expected, family):
    model = SimCSE(release / family, device="cpu")
    assert model.pooler_type == "cls" and model.max_length == 40
    torch.testing.assert_close(model.encode(expected["texts"]), torch.tensor(expected[family]), **TOLERANCE)


def test_a_checkpoint_keeps_its_prompts(bert):
    assert bert.prompts == {"query": "the ", "document": ""}


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_a_transform_gives_the_same_embeddings(release, expected, method):
    transform, fit = find_transform(release / method, {})
    embeddings = transform.transform(torch.tensor(expected["bert"]))
    torch.testing.assert_close(embeddings, torch.tensor(expected[method]), rtol=1e-4, atol=1e-4)
    assert (fit.pooler, fit.sentences, transform.method) == ("cls", 50, method)


def test_the_files_are_small_and_name_no_folder_of_a_machine(release):
    files = [path for path in release.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    parts = (Path.home(), Path("/tmp"), ".partial")  # a file is written in a folder with the last of these names
    assert not any(str(part).encode() in path.read_bytes() for path in files for part in parts)
