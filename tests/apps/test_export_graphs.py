"""Exported graphs: every runtime and client gives the embeddings of torch, and int8 is written only if it is good."""

import copy
import ctypes
import gc
import pickle
import shutil
from functools import partial
from threading import current_thread

import numpy as np
import pytest
import torch
from conftest import save_encoder, tiny_config
from encoding_helpers import perturb
from evaluation_helpers import binary_pairs, write, write_rows, write_stsb
from trainer_helpers import refuses
from transformers import BertModel

from simcse_hf import AutoModelForCL, SimCSE, evaluate
from simcse_hf.apps import export
from simcse_hf.encoding.files import encode, read_shards
from simcse_hf.encoding.graphs import GRAPHS, feeds

TEXTS = [
    "a cat sat on the mat .",
    "dog",
    "",
    "the old man sang . " * 200,
    "a small bird slept in the big red tree",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model that reads 512 tokens and has a query prompt."""
    stock = tmp_path_factory.mktemp("stock")
    folder = tmp_path_factory.mktemp("model") / "float32"
    save_encoder(stock, BertModel, tiny_config(max_position_embeddings=512))
    simcse = SimCSE(stock, pooler_type="avg", max_length=512)
    simcse.prompts["query"] = "a dog "
    simcse.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(model):
    """The model, computed by torch."""
    return SimCSE(model)


@pytest.fixture(scope="module", params=GRAPHS)
def backend(request):
    for package in ("onnxruntime", "onnxscript", request.param):
        pytest.importorskip(package)
    return request.param


@pytest.fixture
def load(backend):
    """`load(folder)` opens the graph in a folder."""
    return partial(SimCSE, backend=backend)


@pytest.fixture(scope="module")
def folder(backend, plain, tmp_path_factory):
    """The folder of the model in float32 for a backend."""
    folder = tmp_path_factory.mktemp("exports") / backend
    export.export_graph(plain, folder, backend)
    return folder


def only_with(backend, wanted, reason):
    if backend != wanted:
        pytest.skip(reason)


def assert_same_embeddings(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# --- embeddings ---


@pytest.mark.parametrize("threads", [1, 3])
def test_a_graph_gives_the_embeddings_of_torch(threads, folder, load, plain, monkeypatch):
    """It computes as many batches at the same time as torch has threads."""
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    model = load(folder)
    assert model.dim == plain.dim and model.prompts == plain.prompts and model.max_length == 512
    for options in (
        {},
        {"batch_size": 1},
        {"token_budget": 30},
        {"long_texts": "mean", "max_length": 12},
        {"prompt_name": "query"},
    ):
        assert_same_embeddings(model.encode(TEXTS, **options), plain.encode(TEXTS, **options))
    vectors = model.encode(["a cat"] * 10_000)
    assert_same_embeddings(vectors, plain.encode("a cat").expand(10_000, -1))


def test_openvino_computes_in_bfloat16_on_request_and_onnx_refuses(folder, backend, plain, load):
    if backend == "onnx":
        assert load(folder, dtype=torch.float32).dim == plain.dim
        with refuses("leave out dtype"):
            load(folder, dtype=torch.bfloat16)
        return
    in_bfloat16 = load(folder, dtype=torch.bfloat16)
    cosines = (in_bfloat16.encode(TEXTS) * plain.encode(TEXTS)).sum(dim=1)
    assert cosines.min() > 0.999


def test_an_export_is_encoded_and_searched_like_its_model(folder, load, texts, plain, tmp_path):
    exported = load(folder)
    encode(exported, texts, tmp_path / "shards")
    expected = plain.encode([text for text in TEXTS if text])
    assert_same_embeddings(torch.tensor(np.load(tmp_path / "shards/vectors.npy")), expected)
    exported.build_index(texts, vectors=read_shards(tmp_path / "shards"))
    assert exported.search("dog")[0].sentence == "dog"
    with refuses("leave out device"):
        exported.encode("dog", device="meta")
    exported.model.digests = ["of another graph"]
    with refuses("model weights"):
        encode(exported, texts, tmp_path / "shards", resume=True)


# --- what an evaluation says of a graph ---


def test_an_evaluation_has_the_size_and_the_speed_of_the_weights_or_of_the_graph(
    model, plain, folder, backend, tmp_path
):
    columns = ["sentence1", "sentence2", "label"]
    task = [f"pairs={write_rows(tmp_path / 'pairs.csv', columns, binary_pairs(12))}"]
    of_torch = evaluate(model, task=task).cost
    of_graph = evaluate(folder, task=task, model_backend=backend).cost
    numbers = sum(weight.numel() for weight in plain.model.parameters())
    assert of_torch["megabytes"] == pytest.approx(4 * numbers / 1e6)
    size = sum(path.stat().st_size for path in folder.glob(f"{backend}/*"))
    assert of_graph["megabytes"] > 0.9 * size / 1e6
    assert min(of_torch["texts_per_second"], of_graph["texts_per_second"]) > 0


# --- processes and threads ---


def test_openvino_is_called_once_before_threads_share_it(folder, backend, monkeypatch, load):
    only_with(backend, "openvino", "sessions of ONNX need no first call")
    openvino = pytest.importorskip("openvino")
    make = openvino.CompiledModel.create_infer_request
    callers = []

    def remember_the_caller(compiled):
        callers.append(current_thread())
        return make(compiled)

    monkeypatch.setattr(openvino.CompiledModel, "create_infer_request", remember_the_caller)
    load(folder)
    assert callers == [current_thread()]


class Stack(ctypes.Structure):
    """The stack on which the handlers of signals run."""

    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


def start_of_stack():
    found = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found.start


def test_a_process_outlives_a_signal_after_it_freed_two_graphs(folder, backend):
    """The signal would end the process if the stack for its handler were that of a freed graph."""
    only_with(backend, "openvino", "sessions of ONNX set no stack for signal handlers")
    SimCSE(folder, backend=backend)  # sets the stack that stays
    before = start_of_stack()
    first, second = (SimCSE(folder, backend=backend) for _ in range(2))
    del first
    gc.collect()
    del second
    gc.collect()
    assert start_of_stack() == before


@pytest.mark.parametrize("send", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_graph_can_be_copied_and_sent_to_another_process_with_its_index(send, folder, load):
    model = load(folder)
    model.build_index(TEXTS)
    sent = send(model)
    assert torch.equal(sent.encode(TEXTS), model.encode(TEXTS))
    assert sent.identity() == model.identity()
    assert sent.search("dog")[0].sentence == "dog"


# --- the files ---


def test_a_graph_names_no_folder_of_the_machine_that_wrote_it(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            for word in ("site-packages", "torch/nn", str(folder.parent)):
                assert word.encode() not in path.read_bytes()


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the folder, whose files a test may change."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture
def graph(copied, backend):
    """The graph in the copy."""
    return copied / GRAPHS[backend].file


def test_a_graph_that_was_replaced_on_the_disk_is_not_that_of_a_model_in_memory(copied, graph, load, folder):
    model = load(copied)
    sent = pickle.dumps(model)
    graph.write_bytes(graph.read_bytes() + b" ")
    assert model.identity().weights == load(folder).identity().weights
    with refuses(f"{graph} was changed or removed Load the model again"):
        pickle.loads(sent)


def test_a_graph_beside_other_weights_is_refused(copied, graph, load, model, tmp_path):
    graphs = shutil.copytree(graph.parent, tmp_path / "graphs")
    shutil.copytree(model, copied, dirs_exist_ok=True)  # its own weights
    assert len(load(copied).encode(TEXTS)) == len(TEXTS)
    perturb(AutoModelForCL.from_pretrained(model), 0.02).save_pretrained(copied)
    shutil.copytree(graphs, graph.parent, dirs_exist_ok=True)
    with refuses(f"{graph} is the graph of other weights than those beside it: export"):
        load(copied)


def test_saving_other_weights_removes_the_graph_of_those_before(copied, graph, backend, plain, caplog, load):
    (graph.parent / "notes.txt").write_text("mine")
    plain.save_pretrained(copied)
    assert not graph.exists() and (graph.parent / "notes.txt").exists()
    assert f"{graph} is removed" in caplog.text and "simcse-hf export" in caplog.text
    with refuses(f"has no {GRAPHS[backend].file}. Write one with `simcse-hf export"):
        load(copied)


def test_a_damaged_graph_is_named(copied, graph, load):
    graph.write_bytes(graph.read_bytes()[:100])
    with refuses(f"{copied}: cannot be loaded, because a file is missing or damaged"):
        load(copied)


# --- graphs of another program ---


def write_graph(path, backend, inputs, output):
    """Write a graph that returns the largest of its inputs as numbers."""
    onnx = pytest.importorskip("onnx")
    declared = ", ".join(f"int64[batch, length] {name}" for name in inputs)
    steps = f"largest = Max ({', '.join(inputs)}) {output} = Cast <to: int = 1> (largest)"
    body = f"({declared}) => (float[batch, length] {output}) {{ {steps} }}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> graph {body}')
    if backend == "onnx":
        onnx.save(made, path)
        return
    import openvino

    onnx.save(made, path.with_suffix(".onnx"))
    openvino.save_model(openvino.Core().read_model(path.with_suffix(".onnx")), path)


@pytest.mark.parametrize(
    "inputs, output",
    [
        (["input_ids", "attention_mask", "token_type_ids"], "sentence_embedding"),
        (["input_ids", "attention_mask"], "token_embeddings"),
    ],
)
def test_a_graph_of_another_program_is_refused_with_what_it_reads(inputs, output, copied, graph, backend, load):
    write_graph(graph, backend, inputs, output)
    with pytest.raises(ValueError) as raised:
        load(copied)
    said = str(raised.value)
    assert f"{graph} takes {', '.join(inputs)} and returns {output}." in said
    assert "takes input_ids and attention_mask and returns sentence_embedding." in said
    assert f"Write one with `simcse-hf export MODEL --to {backend} --output FOLDER`" in said
    assert len(said.splitlines()) == 1


# --- int8 ---


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write(tmp_path_factory.mktemp("texts") / "texts.txt", [text for text in TEXTS if text])


@pytest.fixture
def measured_as(monkeypatch):
    """`measured_as(losses)` lets each form, in the order in which it is tried, lose as much."""

    def measure(losses):
        rest = iter(losses)
        found = {"mean_cosine": 1.0, "lowest_cosine": 1.0}
        monkeypatch.setattr(export, "lost", lambda *_: found | {"loss": next(rest)})

    return measure


@pytest.fixture
def quick(backend, folder, monkeypatch):
    """Take the module's graph in place of a new one."""

    def copy_graph(_, new, name):
        return shutil.copytree(folder, new) / GRAPHS[name].file

    monkeypatch.setattr(export, "export_graph", copy_graph)


def test_int8_is_written_beside_float32_with_what_it_loses(quick, backend, model, plain, texts, tmp_path, load):
    output = tmp_path / "out"
    options = {"texts": texts, "calibrate": texts, "max_loss": 5.0}
    measured = export.export(model, output, to=f"{backend}-int8", **options).measured
    assert measured["loss"] == pytest.approx(100 * (1 - measured["mean_cosine"]))
    assert measured["method"] == GRAPHS[backend].methods[0]
    int8_file = GRAPHS[backend].int8[export.processor_instructions()]
    assert (output / int8_file).exists() and (output / GRAPHS[backend].file).exists()
    in_int8 = load(output)
    assert in_int8.model.files[0].endswith(int8_file)
    for method in ("encode", "encode_query"):
        found = getattr(in_int8, method)(TEXTS)
        expected = getattr(plain, method)(TEXTS)
        assert (found * expected).sum(dim=1).min() > 0.95
    with refuses("cannot be saved: copy its folder"):
        in_int8.save_pretrained(tmp_path / "copy")


def test_the_first_method_that_loses_little_enough_is_written_and_nothing_without_one(
    quick, backend, plain, texts, measured_as, tmp_path
):
    only_with(backend, "onnx", "the choice is the same for every runtime, and OpenVINO takes longer")
    dynamic, mixed, static = GRAPHS[backend].methods
    options = {"to": "onnx-int8", "texts": texts, "instructions": "vnni"}
    measured_as([9.0] * 3)
    with refuses(f"int8 loses more than max_loss 0.5: {dynamic} {mixed} {static}"):
        export.export(plain, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    measured_as([9.0, 0.1])
    found = export.export(plain, tmp_path / "out", **options)
    assert found.measured["method"] == mixed
    assert (tmp_path / "out" / GRAPHS[backend].int8["vnni"]).exists()


def test_the_loss_of_a_named_method_is_that_of_the_average_of_the_sts_sets_in_data_dir(
    quick, backend, plain, tmp_path
):
    write_stsb(tmp_path)
    options = {"data_dir": tmp_path, "max_loss": 100.0, "method": GRAPHS[backend].methods[-1]}
    measured = export.export(plain, tmp_path / "out", to=f"{backend}-int8", **options).measured
    assert measured["sts_tasks"] and measured["method"] == options["method"]
    assert measured["loss"] == measured["sts_before"] - measured["sts_after"]


# --- the weights of ONNX in int8 ---


def test_the_weights_of_onnx_get_7_bits_where_sums_overflow_and_mixed_keeps_half_of_the_wide_products(
    folder, backend, plain, tmp_path
):
    onnx = pytest.importorskip("onnx")
    only_with(backend, "onnx", "OpenVINO chooses when it loads the graph")
    onnx_graph = GRAPHS["onnx"]
    products = {}
    for method in onnx_graph.methods:
        for bits in (7, 8):
            path = tmp_path / f"{method}-{bits}"
            onnx_graph.quantize(folder / onnx_graph.file, path, method, feeds(plain, TEXTS), bits)
            written = onnx.load(path).graph
            largest = 0
            for tensor in written.initializer:
                weight = onnx.numpy_helper.to_array(tensor)
                if weight.dtype == "int8" and weight.ndim == 2:
                    largest = max(largest, abs(weight.astype(int)).max())
            assert 2 ** (bits - 2) < largest <= 2 ** (bits - 1), (method, bits)
            products[method] = [node.op_type for node in written.node].count("MatMulInteger")
    layers = plain.model.config.num_hidden_layers
    assert products["dynamic"] - products["mixed"] == (layers + 1) // 2


# --- refusals ---


def test_an_unknown_backend_and_what_a_graph_cannot_do_are_refused(model):
    for options, message in (
        ({"backend": "tensorrt"}, "backend must be one of torch, onnx, openvino, got 'tensorrt'"),
        ({"pooler_type": "max"}, "leave out pooler_type, or export the model again"),
        ({"dtype": torch.float16}, "leave out dtype, or export the model again"),
        ({"device": "cuda"}, "leave out device, or export the model again"),
        ({"head": "dense"}, "leave out head, or export the model again"),
    ):
        with refuses(message):
            SimCSE(model, **{"backend": "openvino"} | options)


def test_options_of_int8_are_asked_for_and_belong_to_int8(model, tmp_path):
    for to, options, message in (
        ("int8", {}, "give texts, data_dir or both"),
        ("onnx", {"max_loss": 1.0}, "max_loss: only for exports to int8, onnx-int8"),
    ):
        with refuses(message):
            export.export(model, tmp_path / "out", to=to, **options)
