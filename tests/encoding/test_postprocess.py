"""`simcse-hf postprocess fit`, and what applies the transform: SimCSE, encode, evaluate, index, export."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cli_helpers import encode_main, postprocess_main
from conftest import tiny_config
from encoding_helpers import perturb, random_texts
from evaluation_helpers import random_pairs, write
from trainer_helpers import refuses
from transformers import BertForMaskedLM

from simcse_hf import BertForCL, SimCSE, evaluate
from simcse_hf.encoding.files import read_manifest, read_shards
from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.encoding.graphs import export_graph

SENTENCES = random_texts(150, words=(2, 13))
TEXTS = SENTENCES[:6]
load = partial(SimCSE, device="cpu")
FAST = {"whitening": "", "flow": "--blocks 1 --width 8 --epochs 1 --batch_size 50"}


@pytest.fixture
def sentences(tmp_path):
    return write(tmp_path / "sentences.txt", SENTENCES)


@pytest.fixture
def raw(save_checkpoint):
    """A masked-LM checkpoint, which names no pooler."""
    return save_checkpoint(perturb(BertForMaskedLM(tiny_config())), "raw")


@pytest.fixture
def fit(raw, sentences, tmp_path):
    """`fit(method)` returns a masked-LM checkpoint with a transform fitted to its `avg_first_last` embeddings."""

    def fit(method, options="", model=raw, output=None, pooler="--pooler avg_first_last"):
        output = output or tmp_path / f"with-{method}"
        line = f"fit --method {method} --model {model} --input {sentences} --output {output} --device cpu"
        assert postprocess_main(f"{line} {pooler} {FAST[method]} {options}".split()) == 0
        return output

    return fit


# --- fitting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["whitening", "flow"])
def test_simcse_applies_the_transform_by_default(method, fit, raw):
    directory = fit(method)
    applied, plain = load(directory), load(directory, postprocess=False)
    assert applied.pooler_type == plain.pooler_type == "avg_first_last"
    original = load(raw, pooler_type="avg_first_last")
    assert torch.equal(plain.encode(TEXTS), original.encode(TEXTS))
    vectors = applied.encode(TEXTS, normalize_embeddings=False)
    wanted = applied.postprocessing.transform(original.encode(TEXTS, normalize_embeddings=False))
    torch.testing.assert_close(vectors, wanted, rtol=0, atol=1e-6)
    assert not torch.allclose(F.normalize(vectors, dim=1), plain.encode(TEXTS), atol=0.1)
    record = json.loads((directory / "postprocessing/postprocessing.json").read_text())["fit"]
    assert record["pooler"] == "avg_first_last" and record["file"] == "sentences.txt" and record["sentences"] == 150


@pytest.mark.parametrize("source", [list, iter])
def test_a_transform_of_rows_in_memory_is_that_of_their_file(source, raw, sentences):
    models = [load(raw, pooler_type="avg") for _ in range(2)]
    for model, texts in zip(models, (sentences, source(SENTENCES)), strict=True):
        fit_transform(model, "whitening", texts)
    first, second = (model.encode(TEXTS) for model in models)
    assert torch.equal(first, second)


def test_adds_the_transform_to_the_folder_of_the_model(fit, save_checkpoint):
    directory = save_checkpoint(perturb(BertForCL(tiny_config(), pooler_type="avg")), "own")
    weights = (directory / "model.safetensors").read_bytes()
    plain = load(directory).encode(TEXTS)
    for method in ("whitening", "flow"):  # the next is fitted on the vectors without the one before
        fit(method, "--overwrite", model=directory, output=directory, pooler="")
        model = load(directory)
        assert model.pooler_type == "avg" and model.postprocessing.method == method
        assert torch.equal(load(directory, postprocess=False).encode(TEXTS), plain)
    assert (directory / "model.safetensors").read_bytes() == weights
    with refuses("pooler 'avg', and the transform is for pooler 'avg_first_last'"):
        fit("whitening", "--overwrite", model=directory, output=directory)


# --- where it is applied ------------------------------------------------------------------------------------------


def test_encode_evaluate_and_an_index_apply_the_transform(fit, sentences, tmp_path):
    directory = fit("whitening", "--dim 12")
    rows = random_pairs(30, 0)
    pairs = write(tmp_path / "mine.tsv", [f"{score}\t{a}\t{b}" for a, b, score in rows])
    found = []
    for name, options in (("applied", ""), ("plain", "--no_postprocess")):
        model = load(directory, postprocess=not options)
        line = f"--model {directory} --device cpu --output {tmp_path / name} --input {sentences}"
        assert encode_main(f"{line} {options}".split()) == 0
        vectors = np.concatenate(list(read_shards(tmp_path / name)))
        np.testing.assert_allclose(vectors, model.encode(SENTENCES), rtol=0, atol=1e-5)
        evaluation = evaluate(directory, pairs=[pairs], device="cpu", postprocess=not options)
        found.append(evaluation.results)
        method = None if options else "whitening"
        assert evaluation.identity.postprocessing == method
        assert read_manifest(tmp_path / name)["model"]["postprocessing"] == method
        model.build_index(SENTENCES)
        assert model.search(SENTENCES[3], top_k=1)[0][1] == pytest.approx(1.0, abs=1e-5)
    assert found[0] != found[1]
    with refuses("made with other settings postprocessing"):
        encode_main(f"{line} --resume".split())


# --- bad input ----------------------------------------------------------------------------------------------------


def test_a_transform_is_neither_lost_nor_applied_to_other_embeddings(fit, sentences, tmp_path):
    whitened = fit("whitening")
    write(tmp_path / "full/notes.txt", ["mine"])
    for call, message in (
        (lambda: load(whitened, pooler_type="avg"), "pooler_type 'avg_first_last', not 'avg'"),
        (lambda: fit_transform(load(whitened), "flow", sentences), "postprocess=False"),
        (lambda: fit("whitening", output=tmp_path / "full"), "full is not an empty folder"),
        (lambda: export_graph(load(whitened), tmp_path / "graph", "onnx"), "applies a whitening"),
    ):
        with refuses(message):
            call()
    assert load(whitened, pooler_type="avg", postprocess=False).pooler_type == "avg"
