"""Every example of docs/clients.md runs, and its program computes the vectors of `SimCSE`, where it is installed."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from trainer_helpers import model_of

from simcse_hf import SimCSE

PAGE = ROOT / "docs" / "clients.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def model(save_checkpoint):
    prompts = {"query": "the cat : ", "document": "a house : "}
    return SimCSE(save_checkpoint(model_of(pooler_type="cls", prompts=prompts), "my-model"))


@pytest.mark.parametrize(
    "example",
    EXAMPLES,
    ids=[re.findall(r"(?:from|import) (\w+)", text)[0] for text in EXAMPLES],
)
def test_an_example_of_the_page_runs_and_gives_the_same_vectors(example, model, monkeypatch):
    for name in re.findall(r"^(?:from|import) (\w+)", example, re.MULTILINE):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if "to_sentence_transformer" in example:
        pytest.importorskip("sentence_transformers")
    monkeypatch.chdir(Path(model.name_or_path).parent)
    names = {}
    exec(example, names)
    if "texts" in names:
        found = names["vectors"]
        expected = model.encode(names["texts"])
    else:
        found = [names["query_vector"], *names["document_vectors"]]
        expected = [
            model.encode_query("Who plays?"),
            *model.encode_document(["A man plays.", "It rains."]),
        ]
    np.testing.assert_allclose(np.array(found), np.stack(expected), rtol=0, atol=1e-6)
