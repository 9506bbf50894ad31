"""Exports in int8: loaded with a backend they give nearly the same embeddings, and a bad one is never written."""

import json
import re

import pytest
import torch
from conftest import tiny_config
from evaluation_helpers import write_stsb
from transformers import BertModel

from simcse_hf import SimCSE
from simcse_hf.cli.main import main
from simcse_hf.inference.exported import GRAPHS
from simcse_hf.publishing import export, export_checks

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang . " * 20, "a small bird slept in the big red tree"]
FORMATS = {"onnx": "onnx-int8", "openvino": "openvino-int8"}


@pytest.fixture(scope="module", params=FORMATS)
def backend(request):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip(request.param.replace("onnx", "onnxscript"), reason=f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    """Save a model that has a query prompt and a maximum length, and return its folder."""
    stock, folder = (tmp_path_factory.mktemp("model") / name for name in ("stock", "float32"))
    torch.manual_seed(2)
    BertModel(tiny_config()).save_pretrained(stock)
    tokenizer.save_pretrained(stock)
    simcse = SimCSE(stock, pooler_type="avg", max_length=12)
    simcse.prompts["query"] = "a dog "
    simcse.save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


def command(backend, model, texts, output, *options):
    words = ["export", str(model), "--to", FORMATS[backend], "--texts", str(texts), "--output", str(output)]
    return main([*words, "--quiet", "--json", *options])


def test_an_export_gives_nearly_the_same_embeddings_with_its_prompts_and_length(
    backend, model, texts, tmp_path, capsys
):
    assert command(backend, model, texts, tmp_path / "out", "--allow_slow", "--max_loss", "5") == 0
    measured = json.loads(capsys.readouterr().out)
    plain, exported = SimCSE(model), SimCSE(tmp_path / "out", backend=backend)
    assert (exported.dim, exported.max_length, exported.prompts) == (plain.dim, 12, plain.prompts)
    for encode in ("encode", "encode_query"):
        cosines = (getattr(plain, encode)(TEXTS) * getattr(exported, encode)(TEXTS)).sum(dim=1)
        assert cosines.min() > 0.95
    cosines = (plain.encode(TEXTS) * exported.encode(TEXTS)).sum(dim=1)
    assert measured["mean_cosine"] == pytest.approx(cosines.mean().item(), abs=1e-3)
    assert measured["loss"] == pytest.approx(100 * (1 - measured["mean_cosine"]))
    with pytest.raises(ValueError, match="cannot be saved: copy its folder"):
        exported.save_pretrained(tmp_path / "copy")


def test_batches_and_windows_do_not_change_the_embeddings(model, tmp_path):
    """The export in float32, because the ranges of int8 belong to a batch."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    export.export_onnx(SimCSE(model), tmp_path / "out")
    plain, exported = SimCSE(model), SimCSE(tmp_path / "out", backend="onnx")
    for options in ({"batch_size": 1}, {"token_budget": 30}, {"long_texts": "mean"}):
        torch.testing.assert_close(exported.encode(TEXTS, **options), plain.encode(TEXTS, **options))


@pytest.mark.parametrize(
    "options, message",
    [
        (["--max_loss", "-1", "--allow_slow"], "int8 loses more than --max_loss -1: mean cosine to float32"),
        (["--max_loss", "100"], "int8 does not pay on this processor: .*1.2 times is the least"),
    ],
)
def test_an_export_that_loses_too_much_or_is_slow_is_not_written(
    options, message, model, texts, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    monkeypatch.setattr(export_checks, "_seconds", lambda model, texts: 1.0)
    assert command("onnx", model, texts, tmp_path / "out", *options) == 2
    assert not (tmp_path / "out").exists()
    assert re.search(message, capsys.readouterr().err)


def test_weights_get_7_bits_where_sums_of_products_overflow(model, tmp_path):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    largest = {}
    for instructions in ("vnni", "avx2"):
        path = export.export_onnx_int8(SimCSE(model), tmp_path / instructions, instructions)
        arrays = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
        largest[instructions] = max(abs(a.astype(int)).max() for a in arrays if a.dtype == "int8" and a.ndim == 2)
    assert largest["avx2"] <= 64 < largest["vnni"] <= 127


def test_what_a_graph_cannot_do_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="has no model.onnx. Write one with `simcse-hf export"):
        SimCSE(model, backend="onnx")
    with pytest.raises(ValueError, match="backend must be one of torch, onnx, openvino, got 'tensorrt'"):
        SimCSE(model, backend="tensorrt")
    for setting in ({"pooler_type": "max"}, {"dtype": torch.bfloat16}, {"device": "cuda"}, {"head": "dense"}):
        with pytest.raises(ValueError, match=f"leave out {next(iter(setting))}, or export the model again"):
            SimCSE(model, backend="onnx", **setting)
    assert set(GRAPHS) == set(FORMATS)


def test_int8_needs_something_to_measure_with(model, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["export", str(model), "--to", "onnx-int8", "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        main(["export", str(model), "--to", "onnx", "--max_loss", "1", "--output", str(tmp_path / "out")])
    messages = capsys.readouterr().err
    assert "give --texts FILE, --data_dir FOLDER or both" in messages
    assert "--max_loss: only for --to onnx-int8" in messages


def test_data_dir_compares_the_sts_sets_that_it_has(model, tmp_path, capsys):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    write_stsb(tmp_path)
    words = ["export", str(model), "--to", "onnx-int8", "--data_dir", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main([*words, "--allow_slow", "--max_loss", "100", "--quiet", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["sts_tasks"] and measured["loss"] == measured["sts_before"] - measured["sts_after"]
