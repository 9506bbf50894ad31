"""Exported graphs: every runtime and client gives the embeddings of torch, and int8 is written only if it is good."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
from threading import current_thread
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_config
from evaluation_helpers import binary_pairs, write_rows, write_stsb
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSE, evaluate
from simcse_hf.cli.main import main
from simcse_hf.inference.exported import GRAPHS, INT8_GRAPHS
from simcse_hf.publishing import export, export_int8

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "",
    "the old man sang . " * 200,
    "a small bird slept in the big red tree",
]
EXPORTERS = {"onnx": export.export_onnx, "openvino": export.export_openvino}


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    """Save a model that reads 512 tokens and has a query prompt, and return its folder."""
    stock, folder = (
        tmp_path_factory.mktemp("model") / name for name in ("stock", "float32")
    )
    torch.manual_seed(2)
    BertModel(tiny_config(max_position_embeddings=512)).save_pretrained(stock)
    tokenizer.save_pretrained(stock)
    simcse = SimCSE(stock, pooler_type="avg", max_length=512)
    simcse.prompts["query"] = "a dog "
    simcse.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request, model, tmp_path_factory):
    """Export the model in float32, and return the backend and the folder."""
    for package in (
        "onnxruntime",
        "onnxscript",
        *(["openvino"] if request.param == "openvino" else []),
    ):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("exports") / request.param
    EXPORTERS[request.param](SimCSE(model), folder)
    return request.param, folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"token_budget": 30},
        {"long_texts": "mean", "max_length": 12},
        {"prompt_name": "query"},
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_graph_gives_the_embeddings_of_torch_with_its_prompts_and_length(
    options, threads, graph, model, monkeypatch
):
    backend, folder = graph
    monkeypatch.setattr(
        "torch.get_num_threads", lambda: threads
    )  # as many batches are computed side by side
    plain, exported = SimCSE(model), SimCSE(folder, backend=backend)
    assert (exported.dim, exported.max_length, exported.prompts) == (
        plain.dim,
        512,
        plain.prompts,
    )
    assert len(exported.tokenize(TEXTS)[3]) == 512
    torch.testing.assert_close(
        exported.encode(TEXTS, **options),
        plain.encode(TEXTS, **options),
        rtol=0,
        atol=1e-5,
    )


def test_a_graph_names_no_folder_of_the_machine_that_wrote_it(graph):
    backend, folder = graph
    contents = b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )
    assert not [
        word
        for word in (b"site-packages", b"torch/nn", str(folder.parent).encode())
        if word in contents
    ]


def test_an_evaluation_has_the_size_of_the_graph_or_of_the_weights(
    graph, model, tmp_path
):
    backend, folder = graph
    task = f"pairs={write_rows(tmp_path / 'pairs.csv', ['sentence1', 'sentence2', 'label'], binary_pairs(12))}"
    plain = evaluate(model, task=[task]).cost
    exported = evaluate(folder, task=[task], model_backend=backend).cost
    weights = SimCSE(model).model.parameters()
    assert plain["megabytes"] == pytest.approx(
        sum(4 * each.numel() for each in weights) / 1e6
    )
    assert (
        exported["megabytes"]
        > 0.9 * sum(path.stat().st_size for path in folder.glob(f"{backend}/*")) / 1e6
    )
    assert plain["texts_per_second"] > 0 < exported["texts_per_second"]


def test_ten_thousand_equal_texts_have_one_embedding(graph, model):
    backend, folder = graph
    vectors = SimCSE(folder, backend=backend).encode(["a cat"] * 10_000)
    torch.testing.assert_close(
        vectors, SimCSE(model).encode("a cat").expand(10_000, -1), rtol=0, atol=1e-5
    )


def test_openvino_computes_in_bfloat16_on_request(graph, model):
    backend, folder = graph
    if backend == "onnx":
        with pytest.raises(ValueError, match="leave out dtype"):
            SimCSE(folder, backend=backend, dtype=torch.bfloat16)
    else:
        vectors = SimCSE(folder, backend=backend, dtype=torch.bfloat16).encode(TEXTS)
        assert (vectors * SimCSE(model).encode(TEXTS)).sum(dim=1).min() > 0.999


def test_openvino_is_called_once_before_threads_share_it(graph, monkeypatch):
    backend, folder = graph
    if backend == "onnx":
        pytest.skip("its sessions need no first call")
    openvino = pytest.importorskip("openvino")
    make = openvino.CompiledModel.create_infer_request
    callers = []
    monkeypatch.setattr(
        openvino.CompiledModel,
        "create_infer_request",
        lambda self: (callers.append(current_thread()), make(self))[1],
    )
    SimCSE(folder, backend=backend)
    assert callers == [current_thread()]


FREE_IN_ORDER = """
import gc, signal, sys
from simcse_hf import SimCSE
signal.signal(signal.SIGUSR1, lambda *_: None)
first, second = (SimCSE(sys.argv[1], backend=sys.argv[2]) for _ in range(2))
del first; gc.collect()
del second; gc.collect()
signal.raise_signal(signal.SIGUSR1)
print("alive")
"""


def test_a_process_outlives_a_signal_after_it_freed_two_graphs(graph):
    backend, folder = graph
    if backend == "onnx":
        pytest.skip("its sessions set no stack for signal handlers")
    program = [sys.executable, "-c", FREE_IN_ORDER, str(folder), backend]
    assert subprocess.run(program, capture_output=True, text=True).stdout == "alive\n"


def test_a_folder_of_an_earlier_version_is_loaded(graph, model, tmp_path):
    backend, folder = graph
    shutil.copytree(folder, tmp_path / "earlier")
    for path in (tmp_path / "earlier" / backend).iterdir():
        path.rename(tmp_path / "earlier" / path.name)
    exported = SimCSE(tmp_path / "earlier", backend=backend)
    torch.testing.assert_close(
        exported.encode(TEXTS), SimCSE(model).encode(TEXTS), rtol=0, atol=1e-5
    )


def copies(graph, tmp_path, name="copy"):
    """Copy the export, because a test changes its files; return the backend, the folder and the graph."""
    backend, folder = graph
    target = tmp_path / name
    shutil.copytree(folder, target)
    return backend, target, target / GRAPHS[backend]


@pytest.mark.parametrize(
    "sent",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["copy", "pickle"],
)
def test_a_graph_can_be_copied_and_sent_to_another_process(sent, graph):
    backend, folder = graph
    model = SimCSE(folder, backend=backend)
    model.build_index(TEXTS)
    other = sent(model)
    assert torch.equal(other.encode(TEXTS), model.encode(TEXTS))
    assert (
        other.search("dog")[0].sentence == "dog"
        and other.identity() == model.identity()
    )


def test_a_graph_that_was_replaced_on_the_disk_is_not_that_of_a_model_in_memory(
    graph, tmp_path
):
    backend, folder, path = copies(graph, tmp_path)
    model = SimCSE(folder, backend=backend)
    sent = pickle.dumps(model)
    path.write_bytes(path.read_bytes() + b" ")
    assert (
        model.identity().weights == SimCSE(graph[1], backend=backend).identity().weights
    )
    with pytest.raises(
        ValueError, match=f"{path} was changed or removed .*Load the model again"
    ):
        pickle.loads(sent)


def test_a_graph_beside_other_weights_is_refused_and_one_beside_its_own_is_not(
    graph, model, tmp_path
):
    backend, folder, path = copies(graph, tmp_path)
    shutil.copytree(model, folder, dirs_exist_ok=True)
    assert len(SimCSE(folder, backend=backend).encode(TEXTS)) == len(TEXTS)
    graphs = shutil.copytree(path.parent, tmp_path / backend)
    trained = AutoModelForCL.from_pretrained(model)
    with torch.no_grad():
        for tensor in trained.parameters():
            tensor.add_(0.02 * torch.randn_like(tensor))
    trained.save_pretrained(folder)
    shutil.copytree(graphs, path.parent, dirs_exist_ok=True)
    with pytest.raises(
        ValueError,
        match=f"{path} is the graph of other weights than those beside it: export",
    ):
        SimCSE(folder, backend=backend)


def test_saving_other_weights_removes_the_graph_of_those_before(
    graph, model, tmp_path, caplog
):
    backend, folder, path = copies(graph, tmp_path)
    (path.parent / "notes.txt").write_text("mine")
    SimCSE(model).save_pretrained(folder)
    assert not path.exists() and (path.parent / "notes.txt").exists()
    assert f"{path} is removed" in caplog.text and "simcse-hf export" in caplog.text
    with pytest.raises(ValueError, match="has no"):
        SimCSE(folder, backend=backend)


def write_graph(path, backend, inputs, output):
    """Write a graph that adds its inputs up."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    shape = ["batch", "length"]
    kind = onnx.TensorProto.INT64
    node = onnx.helper.make_node(
        "Sum" if len(inputs) > 1 else "Identity",
        ["x" + name for name in inputs],
        [output],
    )
    casts = [
        onnx.helper.make_node("Cast", [name], ["x" + name], to=onnx.TensorProto.FLOAT)
        for name in inputs
    ]
    found = onnx.helper.make_graph(
        [*casts, node],
        "graph",
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name in inputs],
        [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)],
    )
    made = onnx.helper.make_model(
        found, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    if backend == "onnx":
        onnx.save(made, path)
        return
    import openvino

    onnx.save(made, path.with_suffix(".onnx"))
    openvino.save_model(openvino.Core().read_model(path.with_suffix(".onnx")), path)


@pytest.mark.parametrize(
    "inputs, output",
    [
        (["input_ids", "attention_mask", "token_type_ids"], "last_hidden_state"),
        (["input_ids", "attention_mask", "token_type_ids"], "sentence_embedding"),
        (["input_ids", "attention_mask"], "token_embeddings"),
        (["input_ids"], "sentence_embedding"),
    ],
)
def test_a_graph_of_another_program_is_refused_in_a_line_that_says_which_are_read(
    inputs, output, graph, tmp_path
):
    backend, folder, path = copies(graph, tmp_path)
    write_graph(path, backend, inputs, output)
    with pytest.raises(ValueError) as raised:
        SimCSE(folder, backend=backend)
    words = str(raised.value)
    assert f"{path} takes {', '.join(inputs)} and returns {output}." in words
    assert "takes input_ids and attention_mask and returns sentence_embedding." in words
    assert (
        f"Write one with `simcse-hf export MODEL --to {backend} --output FOLDER`"
        in words
    )
    assert len(words.splitlines()) == 1


def test_a_damaged_graph_is_named(graph, tmp_path):
    backend, folder, path = copies(graph, tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        ValueError,
        match=f"{folder}: cannot be loaded, because a file is missing or damaged",
    ):
        SimCSE(folder, backend=backend)


# --- int8 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(text for text in TEXTS if text) + "\n")
    return path


def command(to, model, output, *options):
    return main(
        [
            "export",
            str(model),
            "--to",
            to,
            "--output",
            str(output),
            "--quiet",
            "--json",
            *map(str, options),
        ]
    )


@pytest.fixture
def quick(graph, monkeypatch):
    """Take the module's graph in place of a new one, and let every form be as fast as float32."""
    backend, folder = graph
    monkeypatch.setitem(
        export.EXPORTS,
        backend,
        lambda _, new: shutil.copytree(folder, new) / GRAPHS[backend],
    )
    monkeypatch.setattr(export_int8, "_seconds", lambda *_: 1.0)
    return backend


def test_the_fastest_form_within_the_loss_is_written_beside_float32(
    quick, model, texts, tmp_path, capsys
):
    options = (
        "--texts",
        texts,
        "--calibrate",
        texts,
        "--allow_slow",
        "--max_loss",
        "5",
    )
    assert command(f"{quick}-int8", model, tmp_path / "out", *options) == 0
    measured = json.loads(capsys.readouterr().out)
    assert {form["method"] for form in measured["forms"]} == set(
        export_int8.METHODS[quick]
    )
    assert measured["loss"] == pytest.approx(100 * (1 - measured["mean_cosine"]))
    names = {path.name for path in (tmp_path / "out" / quick).iterdir()}
    int8 = INT8_GRAPHS[quick][export_int8.processor_instructions()].split("/")[1]
    assert {int8, GRAPHS[quick].split("/")[1]} <= names
    plain, exported = SimCSE(model), SimCSE(tmp_path / "out", backend=quick)
    assert exported.model.files[0].endswith(int8)
    for encode in ("encode", "encode_query"):
        cosines = (
            getattr(plain, encode)(TEXTS) * getattr(exported, encode)(TEXTS)
        ).sum(dim=1)
        assert cosines.min() > 0.95
    with pytest.raises(ValueError, match="cannot be saved: copy its folder"):
        exported.save_pretrained(tmp_path / "copy")


@pytest.mark.parametrize(
    "options, message",
    [
        (
            ("--max_loss", "-1", "--allow_slow"),
            "int8 loses more than max_loss -1: .*static.*dynamic",
        ),
        (
            ("--max_loss", "100"),
            "int8 does not pay on this processor: .*1.2 times is the least",
        ),
    ],
)
def test_an_export_that_loses_too_much_or_is_slow_is_not_written(
    quick, options, message, model, texts, tmp_path
):
    simcse = SimCSE(model)
    checks = export_int8.Checks(str(texts), None)
    arguments = {"max_loss": float(options[1]), "allow_slow": "--allow_slow" in options}
    with pytest.raises(ValueError, match=message):
        export_int8.export_int8(
            simcse, tmp_path / "out", f"{quick}-int8", checks, **arguments
        )
    assert not (tmp_path / "out").exists()


def test_int8_chooses_the_runtime_too(model, tmp_path, monkeypatch):
    def make(backend):
        return lambda _, folder: (folder.mkdir(), folder / GRAPHS[backend])[1]

    for backend in GRAPHS:
        monkeypatch.setitem(export.EXPORTS, backend, make(backend))
        monkeypatch.setattr(
            export_int8,
            f"_quantize_{backend}",
            lambda _, __, path, *___: path.write_text("graph"),
        )
    monkeypatch.setattr(export_int8, "SimCSE", lambda folder, backend: folder.name)
    speeds = {
        "onnx-mixed": 1.0,
        "onnx-dynamic": 2.0,
        "openvino-dynamic": 3.0,
        "openvino-static": 4.0,
    }
    speeds["onnx-static"] = 5.0
    constant = {
        "mean_cosine": 1.0,
        "lowest_cosine": 1.0,
        "int8_sentences_per_second": 1.0,
    }

    def measure(_, name):
        return constant | {
            "loss": 9.0 if name == "onnx-static" else 0.1,
            "speed": speeds[name],
        }

    checks = SimpleNamespace(measure=measure, calibration=["a"])
    (tmp_path / "out" / "openvino").mkdir(parents=True)
    path, best = export_int8.export_int8(
        SimCSE(model), tmp_path / "out", "int8", checks
    )
    assert (best["backend"], best["method"]) == (
        "openvino",
        "static",
    ) and path.read_text() == "graph"
    assert [form["speed"] for form in best["forms"]] == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_weights_get_7_bits_where_sums_of_products_overflow_and_mixed_keeps_wide_products(
    graph, model, tmp_path
):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    backend, folder = graph
    if backend != "onnx":
        pytest.skip("OpenVINO chooses when it loads the graph")
    simcse, products = SimCSE(model), {}
    for method in export_int8.METHODS["onnx"]:
        largest = {}
        for instructions in ("avx2", "vnni"):
            path = tmp_path / f"{method}-{instructions}"
            export_int8._quantize_onnx(
                simcse, folder / GRAPHS["onnx"], path, method, TEXTS, instructions
            )
            quantized = onnx.load(path).graph
            weights = map(onnx.numpy_helper.to_array, quantized.initializer)
            largest[instructions] = max(
                abs(x.astype(int)).max()
                for x in weights
                if x.dtype == "int8" and x.ndim == 2
            )
            products[method] = [node.op_type for node in quantized.node].count(
                "MatMulInteger"
            )
        assert largest["avx2"] <= 64 < largest["vnni"] <= 127
    half_of_the_layers = (simcse.model.config.num_hidden_layers + 1) // 2
    assert products["dynamic"] - products["mixed"] == half_of_the_layers


def test_what_a_graph_cannot_do_is_refused(model):
    with pytest.raises(
        ValueError,
        match="has no onnx/model.onnx. Write one with `simcse-hf export .* --to onnx --output",
    ):
        SimCSE(model, backend="onnx")
    with pytest.raises(
        ValueError, match="backend must be one of torch, onnx, openvino, got 'tensorrt'"
    ):
        SimCSE(model, backend="tensorrt")
    for setting in (
        {"pooler_type": "max"},
        {"dtype": torch.float16},
        {"device": "cuda"},
        {"head": "dense"},
    ):
        with pytest.raises(
            ValueError,
            match=f"leave out {next(iter(setting))}, or export the model again",
        ):
            SimCSE(model, backend="openvino", **setting)


@pytest.mark.parametrize(
    "to, options, message",
    [
        ("int8", (), "give texts, data_dir or both"),
        ("onnx", ("--max_loss", "1"), "max_loss: only for exports to int8, onnx-int8"),
        ("openvino", ("--calibrate", "x"), "calibrate: only for exports to int8"),
    ],
)
def test_options_of_int8_are_asked_for_and_belong_to_int8(
    to, options, message, model, tmp_path, capsys
):
    assert command(to, model, tmp_path / "out", *options) == 2
    assert message in capsys.readouterr().err


def test_data_dir_compares_the_sts_sets_that_it_has(quick, model, tmp_path, capsys):
    write_stsb(tmp_path)
    options = ("--data_dir", tmp_path, "--allow_slow", "--max_loss", "100")
    assert command(f"{quick}-int8", model, tmp_path / "out", *options) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (
        measured["sts_tasks"]
        and measured["loss"] == measured["sts_before"] - measured["sts_after"]
    )
