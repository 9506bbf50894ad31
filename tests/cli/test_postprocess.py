"""`simcse-hf postprocess fit`, and what applies the transform: SimCSE, encode, evaluate, index, export."""

import json
import random
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cli_helpers import encode_main, postprocess_main
from conftest import WORDS, tiny_config
from encoding_helpers import perturb
from evaluation_helpers import random_pairs, write
from transformers import BertForMaskedLM

import simcse_hf
from simcse_hf import BertForCL, SimCSE
from simcse_hf.apps.export import export_sentence_transformers
from simcse_hf.cli.main import main
from simcse_hf.encoding.files import read_manifest, read_shards
from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.encoding.graphs import export_graph
from simcse_hf.evaluation import evaluate

DIM = 32
DRAW = random.Random(0)
SENTENCES = [" ".join(DRAW.choices(WORDS.split()[:20], k=DRAW.randint(2, 12))) for _ in range(150)]
TEXTS = SENTENCES[:6]
load = partial(SimCSE, device="cpu")
FAST = {
    "whitening": [],
    "flow": ["--blocks", "1", "--width", "8", "--epochs", "1", "--batch_size", "50"],
}


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

    def fit(method, *options, model=raw, output=None, pooler="avg_first_last"):
        output = output or tmp_path / f"with-{method}"
        words = [
            "--method",
            method,
            "--model",
            str(model),
            "--input",
            str(sentences),
            "--output",
            str(output),
        ]
        words += [
            "--device",
            "cpu",
            *(["--pooler", pooler] if pooler else []),
            *FAST[method],
            *options,
        ]
        assert postprocess_main(["fit", *words]) == 0
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
    one = F.normalize(vectors[0], dim=0)
    torch.testing.assert_close(applied.encode(TEXTS[0]), one, rtol=0, atol=1e-4)  # whitening magnifies rounding
    assert plain.postprocessing is None and applied.encode([]).shape == (0, DIM)
    record = json.loads((directory / "postprocessing/postprocessing.json").read_text())["fit"]
    assert (record["pooler"], record["file"], record["sentences"]) == (
        "avg_first_last",
        "sentences.txt",
        150,
    )


def test_adds_the_transform_to_the_folder_of_the_model(fit, save_checkpoint):
    directory = save_checkpoint(perturb(BertForCL(tiny_config(), pooler_type="avg")), "own")
    files = [
        path for path in directory.iterdir() if path.is_file() and path.name not in ("modules.json", "weights.json")
    ]
    before = {path: path.read_bytes() for path in files}
    plain = load(directory).encode(TEXTS)
    for method in (
        "whitening",
        "flow",
        "whitening",
    ):  # the next is fitted on the vectors without the one before
        fit(method, "--overwrite", model=directory, output=directory, pooler=None)
        model = load(directory)
        assert model.pooler_type == "avg" and model.postprocessing.method == method
        assert torch.equal(load(directory, postprocess=False).encode(TEXTS), plain)
    assert before == {path: path.read_bytes() for path in files}
    with pytest.raises(
        ValueError,
        match="is a model with pooler 'avg', and the transform is for pooler 'avg_first_last'",
    ):
        fit(
            "whitening",
            "--overwrite",
            model=directory,
            output=directory,
            pooler="avg_first_last",
        )


def test_the_function_returns_what_it_fitted_and_takes_a_loaded_model(raw, sentences, tmp_path):
    model = load(raw, pooler_type="avg")
    result = simcse_hf.fit_postprocessing(model, sentences, tmp_path / "new", "whitening", dim=8)
    assert (result.method, result.pooler_type, result.output_dim, result.sentences) == (
        "whitening",
        "avg",
        8,
        150,
    )
    assert torch.equal(load(tmp_path / "new").encode(TEXTS), model.encode(TEXTS))
    with pytest.raises(ValueError, match="method whitening has no option blocks"):
        simcse_hf.fit_postprocessing(raw, sentences, tmp_path / "other", "whitening", blocks=2)
    with pytest.raises(ValueError, match="new is not an empty folder"):
        simcse_hf.fit_postprocessing(raw, sentences, tmp_path / "new", "whitening", pooler_type="avg")


# --- where it is applied ------------------------------------------------------------------------------------------


def test_encode_evaluate_and_an_index_apply_the_transform(fit, sentences, tmp_path):
    directory = fit("whitening", "--dim", "12")
    common = ["--model", str(directory), "--device", "cpu", "--output"]
    rows = random_pairs(30, 0)
    pairs = write(tmp_path / "mine.tsv", [f"{score}\t{a}\t{b}" for a, b, score in rows])
    results = []
    for name, options in (("applied", []), ("plain", ["--no_postprocess"])):
        model = load(directory, postprocess=not options)
        assert encode_main([*common, str(tmp_path / name), "--input", str(sentences), *options]) == 0
        vectors = np.concatenate(list(read_shards(tmp_path / name)))
        np.testing.assert_allclose(vectors, model.encode(SENTENCES), rtol=0, atol=1e-5)
        output = tmp_path / f"{name}.json"
        evaluate(
            directory,
            pairs=[pairs],
            output=output,
            device="cpu",
            postprocess=not options,
        )
        results.append(json.loads(output.read_text()))
        method = None if options else "whitening"
        assert results[-1]["postprocessing"] == read_manifest(tmp_path / name)["model"]["postprocessing"] == method
        model.build_index(SENTENCES)
        assert model.search(SENTENCES[3], top_k=1)[0][1] == pytest.approx(1.0, abs=1e-5)
    assert results[0]["results"] != results[1]["results"]
    with pytest.raises(ValueError, match="made with other settings .*postprocessing"):
        encode_main(
            [
                *common,
                str(tmp_path / "applied"),
                "--input",
                str(sentences),
                "--no_postprocess",
                "--resume",
            ]
        )


# --- bad input ----------------------------------------------------------------------------------------------------


def test_a_transform_is_neither_lost_nor_applied_to_other_embeddings(fit, sentences, tmp_path):
    whitened, flow = fit("whitening"), fit("flow")
    write(tmp_path / "full/notes.txt", ["mine"])
    for call, message in (
        (
            lambda: load(whitened, pooler_type="avg"),
            "pooler_type 'avg_first_last', not 'avg'",
        ),
        (
            lambda: fit_transform(load(whitened), "flow", sentences),
            "postprocess=False",
        ),
        (
            lambda: fit("whitening", output=tmp_path / "full"),
            "full is not an empty folder",
        ),
        (
            lambda: fit("flow", pooler=None, output=tmp_path / "headless"),
            "no trained head",
        ),
        (
            lambda: export_graph(load(whitened), tmp_path / "graph", "onnx"),
            "applies a whitening, but the graph",
        ),
        (
            lambda: export_sentence_transformers(load(flow), tmp_path / "st"),
            "applies a flow",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert load(whitened, pooler_type="avg", postprocess=False).pooler_type == "avg"
    (whitened / "postprocessing/model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="postprocessing/model.safetensors: damaged"):
        load(whitened)


def test_too_few_sentences_are_an_error(raw, tmp_path, capsys):
    few = write(tmp_path / "few.txt", SENTENCES[:20])
    for method, message in (
        ("whitening", "needs embeddings that vary in as many"),
        ("flow", "needs more than"),
    ):
        words = f"--method {method} --model {raw} --input {few} --output {tmp_path / method} --pooler avg --device cpu"
        assert main(["postprocess", "fit", *words.split()]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert "few.txt" in error and message in error and not (tmp_path / method).exists()


def test_a_transform_beside_other_weights_of_the_same_width_is_refused(fit, save_checkpoint):
    folder = fit("whitening")
    assert np.isfinite(load(folder, dtype=torch.bfloat16).encode(TEXTS).numpy()).all()
    torch.manual_seed(5)
    other = save_checkpoint(perturb(BertForMaskedLM(tiny_config())), "other")
    shutil.copytree(folder / "postprocessing", other / "postprocessing")
    with pytest.raises(
        ValueError,
        match=r"other/postprocessing were fitted on the embeddings of other weights",
    ):
        load(other)
    assert load(other, postprocess=False).postprocessing is None


def test_a_transform_fitted_without_a_limit_serves_a_model_that_cuts_texts(fit):
    folder = fit("whitening")
    path = folder / "postprocessing/postprocessing.json"
    description = json.loads(path.read_text())
    description["fit"]["max_length"] = None
    path.write_text(json.dumps(description))
    assert load(folder, max_length=5).postprocessing is not None
