"""What a card says about a whitening or flow, and what happens to one when other weights are saved."""

import json
import os
import re

import pytest
import torch
import torch.nn.functional as F
from conftest import VOCABULARY, tiny_config
from huggingface_hub import ModelCard

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.postprocessing.transform import FOLDER, MODULES
from simcse_hf.publishing import write_card

EXAMPLES = ["A cat sits on the mat.", "A feline rests on a rug."]
LIBRARIES = ("simcse_hf", "sentence_transformers", "transformers")


@pytest.fixture
def sentences(tmp_path):
    generator = torch.Generator().manual_seed(3)
    lines = [" ".join(VOCABULARY[5 + i] for i in torch.randint(20, (6,), generator=generator)) for _ in range(60)]
    (tmp_path / "unlabelled.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "unlabelled.txt"


@pytest.fixture
def transformed(save_checkpoint, sentences, tmp_path):
    """`transformed(method, **settings)` makes a model with a whitening to 6 dimensions or a flow, in a directory."""

    def make(method, family="bert", pooler=None, **settings):
        model = AutoModelForCL.from_config(tiny_config(family, initializer_range=0.3), **settings)
        directory = save_checkpoint(model, "my-model")
        options = {"dim": 6} if method == "whitening" else {"blocks": 1, "width": 4, "epochs": 1}
        loaded = SimCSE(directory, pooler_type=pooler, device="cpu")
        loaded.fit_postprocessing(method, sentences, **options)
        loaded.save_pretrained(directory if pooler is None else tmp_path / "other")
        return directory if pooler is None else tmp_path / "other"

    return make


def blocks(card):
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def used(code, library):
    return re.search(rf"^from {library} import", code, re.M) is not None


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls"), ("bert", "avg_first_last"), ("distilbert", "cls")])
def test_the_code_examples_give_whitened_embeddings(family, pooler, transformed, capsys):
    directory = transformed("whitening", family, pooler_type=pooler)
    card = write_card(directory, repo_id=str(directory)).read_text()
    ours = SimCSE(directory, device="cpu").encode(EXAMPLES)
    assert ours.shape == (2, 6)
    assert len(blocks(card)) == 3
    for code, library in zip(blocks(card), LIBRARIES, strict=True):
        assert used(code, library)
        if library == "sentence_transformers":
            pytest.importorskip(library, reason="sentence_transformers is not installed")
        names = {}
        exec(code, names)
        vectors = F.normalize(torch.as_tensor(names["embeddings"]).double(), dim=-1)
        torch.testing.assert_close(vectors, ours.double(), rtol=0, atol=1e-4)


def test_the_card_describes_a_whitening(transformed):
    path = write_card(transformed("whitening"))
    card = path.read_text()
    assert (
        "Sentence embeddings with 6 dimensions from a `bert` encoder, followed by a [whitening](https://arxiv.org/abs/"
        in card
    )
    assert "| dimensions | 6 |" in card
    description = (
        "whitening from 32 to 6 dimensions, fitted without labels on 60 sentences of `unlabelled.txt` (`text`)"
    )
    assert f"| post-processing | {description} |" in card
    assert "trained" not in card[card.index("## Limits") :], "it is not known how the model was trained"
    assert "`pooler_output` of `transformers` is the input of the whitening." in card
    assert "is the embedding." not in card and "@article{su-etal-2021-whitening," in card
    data = ModelCard.load(path).data
    assert data.library_name == "sentence-transformers" and "sentence-transformers" in data.tags


def test_a_card_of_a_flow_names_only_this_package(transformed):
    directory = transformed("flow")
    assert "simcse_hf.postprocessing.flow.Flow" in (directory / MODULES).read_text()
    path = write_card(directory, repo_id=str(directory))
    card, data = path.read_text(), ModelCard.load(path).data
    assert data.library_name == "transformers" and "sentence-transformers" not in data.tags
    assert len(blocks(card)) == 1 and used(blocks(card)[0], "simcse_hf") and "With `transformers`" not in card
    assert "SentenceTransformer(" not in card and "AutoModel" not in card
    assert "sentence-transformers cannot load this model" in card and "flow from 32 to 32 dimensions" in card
    assert "{li-etal-2020-sentence," in card
    names = {}
    exec(blocks(card)[0], names)
    assert torch.equal(names["embeddings"], SimCSE(directory).encode(EXAMPLES))


def test_matryoshka_dimensions_are_not_offered_after_a_transform(transformed):
    card = write_card(transformed("whitening", matryoshka_dims=[16, 8])).read_text()
    assert "truncate_dim" not in card and "shorter embeddings" not in card
    assert "the leading 16 or 8 dimensions, which were trained to be used alone, can be used alone only before" in card


def test_the_card_says_that_dev_scores_are_without_the_transform(transformed):
    directory = transformed("whitening")
    dev = {"step": 1, "stsb_spearman": 50.0}
    run = {"settings": {}, "steps": 1, "train_loss": 0.5, "initial": dev, "best": dev, "final": dev}
    (directory / "results.json").write_text(json.dumps(run))
    assert "All scores are without the whitening, which was fitted later." in write_card(directory).read_text()


def evaluation(directory, **changes):
    protocol = {"mode": "test", "aggregation": "all", "metric": "spearman", "seed": 1111}
    results = {"STSBenchmark": {"splits": {"test": {"spearman": 71.5, "pearson": 70.0}}}}
    results["average"] = {"value": 71.5, "tasks": ["STSBenchmark"], "missing": []}
    document = {"model": str(directory), "pooler": "cls", "max_length": 40, "protocol": protocol, "results": results}
    (directory / "evaluation.json").write_text(json.dumps(document | changes))


@pytest.mark.parametrize(
    ("method", "measured", "message"),
    [
        ("whitening", None, "whitening"),
        ("whitening", "flow", "flow, but .* has whitening"),
        (None, "whitening", "evaluation.json was measured with transform whitening"),
    ],
)
def test_results_measured_with_another_transform_are_refused(method, measured, message, transformed, save_checkpoint):
    directory = transformed(method) if method else save_checkpoint(AutoModelForCL.from_config(tiny_config()))
    evaluation(directory, postprocessing=measured)
    with pytest.raises(ValueError, match=message):
        write_card(directory)
    evaluation(directory, postprocessing=method)
    assert "71.50" in write_card(directory).read_text()


def test_results_older_than_the_transform_are_ignored(transformed, caplog):
    directory = transformed("whitening")
    evaluation(directory, postprocessing="whitening")
    weights = directory / FOLDER / "model.safetensors"
    later = weights.stat().st_mtime + 100
    os.utime(weights, (later, later))
    assert "71.50" not in write_card(directory).read_text() and "older than the model's weights" in caplog.text


# --- other weights in the same place ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_saving_other_weights_removes_the_transform(method, transformed, tokenizer, caplog):
    directory = transformed(method)
    other = AutoModelForCL.from_config(tiny_config(initializer_range=0.3)).eval()
    other.save_pretrained(directory)
    assert not (directory / FOLDER).exists() and FOLDER not in (directory / MODULES).read_text()
    assert f"{directory / FOLDER} is removed" in caplog.text and "postprocess fit" in caplog.text
    model = SimCSE(directory, device="cpu")
    assert model.postprocessing is None and model.encode(EXAMPLES).shape == (2, 32)
