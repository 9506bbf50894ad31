"""The table of clients: what other programs compute from our files equals `SimCSE.encode` to 1e-6, or is refused.

A row is a kind of checkpoint, a column a program that reads it. Where a program cannot give the same vectors, there
is a refusal, which comes before a vector is computed.
"""

from functools import cache

import numpy as np
import pytest
import torch
from conftest import NEEDS_PEFT, OLD_TRANSFORMERS, save_with_tokenizer
from evaluation_helpers import write
from retrieval_helpers import make_sentences
from tokenizers import Tokenizer
from torch.nn.functional import normalize
from trainer_helpers import model_of
from transformers import AutoModel, AutoTokenizer

from simcse_hf import AutoModelForCL, SentenceIndex, SimCSE
from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.encoding.graphs import export_graph
from simcse_hf.models.adapters import add_lora

TEXTS = [
    "the cat sat on the mat .",
    "a dog",
    "a man sang , the woman slept " * 12,
    "",
    "red house, big tree",
]
LENGTH = 30
#: The settings of each kind of checkpoint; `family` is the encoder's.
KINDS = {
    "cls": {"pooler_type": "cls"},
    "cls, head for training only": {"pooler_type": "cls", "mlp_only_train": True},
    "avg": {"pooler_type": "avg"},
    "first and last layer": {"pooler_type": "avg_first_last"},
    "without [CLS]": {"pooler_type": "avg_no_cls"},
    "last token": {"pooler_type": "lasttoken", "family": "roberta"},
    "prompts": {
        "pooler_type": "avg",
        "prompts": {"query": "a cat : ", "document": "the house : "},
    },
    "dot": {"pooler_type": "avg", "similarity_fn_name": "dot"},
    "whitening": {"pooler_type": "avg"},
    "flow": {"pooler_type": "avg"},
    "adapter": {"pooler_type": "cls", "mlp_only_train": True},
}
NO_MODULE = "sentence-transformers has no module for"
NO_TRANSFORM = "the graph ends at the pooler"
#: What is refused, by kind and client.
REFUSED = {
    ("without [CLS]", "SentenceTransformer object"): NO_MODULE,
    ("flow", "SentenceTransformer object"): NO_MODULE,
    ("without [CLS]", "SentenceTransformer"): "avg_no_cls",
    ("flow", "SentenceTransformer"): "flow",
    **{(kind, client): NO_TRANSFORM for kind in ("whitening", "flow") for client in ("onnxruntime", "openvino")},
}
EXPORTED = {"cls", "last token", "whitening", "flow"}
#: Models for clients that read all modules, and clients of one kind. An export takes seconds, so graphs are tested
#: where the pooler is hard.
NOT_FOR = {
    "AutoModel": {"cls", "first and last layer", "without [CLS]", "whitening", "flow"},
    "peft": KINDS.keys() - {"adapter"},
    "onnxruntime": KINDS.keys() - EXPORTED,
    "openvino": KINDS.keys() - EXPORTED,
}
if OLD_TRANSFORMERS:
    NOT_FOR["SentenceTransformer"] = {"adapter"}
    NOT_FOR["AutoModel"].add("adapter")


def save(kind, folder):
    settings = dict(KINDS[kind])
    base = folder.with_name("base")
    save_with_tokenizer(model_of(settings.pop("family", "bert"), max_length=LENGTH, **settings), base)
    simcse = SimCSE(base, device="cpu")
    simcse.encode(TEXTS, max_length=12)  # no file may remember this length
    if kind in ("whitening", "flow"):
        texts = write(folder.with_suffix(".txt"), make_sentences(300))
        options = {"dim": 8} if kind == "whitening" else {"epochs": 1}
        fit_transform(simcse, kind, texts, **options)
    if kind == "adapter":
        model = AutoModelForCL.from_pretrained(base)
        add_lora(model, {"r": 4})
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_adapter = True
        model.save_pretrained(folder)
        simcse.tokenizer.model_max_length = LENGTH
        simcse.tokenizer.save_pretrained(folder)
    else:
        simcse.save_pretrained(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(kind)` is the folder of a checkpoint of a kind, which is written once."""

    @cache
    def saved(kind):
        folder = tmp_path_factory.mktemp("clients") / "model"
        save(kind, folder)
        return folder

    return saved


# --- the clients: each returns the vectors of `TEXTS` ----------------------------------------------------------------


def sentence_transformer(folder, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    return st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def sentence_transformer_object(folder, tmp_path):
    pytest.importorskip("sentence_transformers")
    return SimCSE(folder, device="cpu").to_sentence_transformer().encode(TEXTS)


def last_states(encoder, folder):
    inputs = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return encoder.eval()(**inputs).last_hidden_state, inputs["attention_mask"]


def auto_model(folder, tmp_path):
    pooler = SimCSE(folder, device="cpu").pooler_type
    states, mask = last_states(AutoModel.from_pretrained(folder), folder)
    if pooler == "avg":
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    if pooler == "lasttoken":
        return states[torch.arange(len(states)), mask.sum(1) - 1]
    return states[:, 0]


def peft_model(folder, tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(folder.with_name("base")), folder)
    return last_states(model.merge_and_unload(), folder)[0][:, 0]


def of_graph(folder, run):
    """Tokenize with the file of the raw tokenizer, text by text, and run a graph."""
    (tokenizer_file,) = folder.rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    vectors = []
    for text in map(tokenizer.encode, TEXTS):
        inputs = {"input_ids": np.array([text.ids]), "attention_mask": np.array([text.attention_mask])}
        vectors.append(run(inputs))
    return np.concatenate(vectors)


def onnxruntime(folder, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    (path,) = exported(folder).rglob("model.onnx")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == [
        "last_hidden_state",
        "sentence_embedding",
    ]
    if SimCSE(folder, device="cpu").pooler_type == "lasttoken":  # as a client does that pools the first output itself
        return of_graph(exported(folder), lambda inputs: session.run(None, inputs)[0][:, -1])
    return of_graph(exported(folder), lambda inputs: session.run(["sentence_embedding"], inputs)[0])


def openvino(folder, tmp_path):
    runtime = pytest.importorskip("openvino")
    (path,) = exported(folder).rglob("model.onnx")
    model = runtime.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return of_graph(exported(folder), lambda inputs: model(inputs)["sentence_embedding"])


@cache
def exported(folder):
    export_graph(SimCSE(folder, device="cpu"), folder.with_name("onnx"), "onnx")
    return folder.with_name("onnx")


def faiss_index(folder, tmp_path):
    faiss = pytest.importorskip("faiss")
    SentenceIndex.build(SimCSE(folder, device="cpu"), TEXTS, backend="Flat").save(tmp_path / "index")
    (path,) = (tmp_path / "index").rglob("index.faiss")
    return faiss.read_index(str(path)).reconstruct_n(0, len(TEXTS))


CLIENTS = {
    "SentenceTransformer": sentence_transformer,
    "SentenceTransformer object": sentence_transformer_object,
    "AutoModel": auto_model,
    "peft": peft_model,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "faiss": faiss_index,
}


PAIRS = [
    pytest.param(kind, client, marks=NEEDS_PEFT if kind == "adapter" else ())
    for kind in KINDS
    for client in CLIENTS
    if kind not in NOT_FOR.get(client, ())
]


@pytest.mark.parametrize("kind, client", PAIRS)
def test_a_client_gives_the_same_vectors_or_is_refused(kind, client, saved, tmp_path):
    folder = saved(kind)
    if (kind, client) in REFUSED:
        with pytest.raises(Exception, match=REFUSED[kind, client]):
            CLIENTS[client](folder, tmp_path)
        return
    found = torch.as_tensor(np.asarray(CLIENTS[client](folder, tmp_path)))
    if kind == "prompts" and client == "faiss":  # documents are encoded with their prompt
        expected = SimCSE(folder, device="cpu").encode_document(TEXTS)
    else:
        expected = SimCSE(folder, device="cpu").encode(TEXTS)
    if client in ("SentenceTransformer", "AutoModel", "peft", "onnxruntime", "openvino") and kind != "dot":
        found = normalize(found, dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-6 if kind == "dot" else 0, atol=1e-6)


@pytest.mark.parametrize("kind", ["prompts", "dot"])
def test_a_sentence_transformer_object_has_the_prompts_the_length_and_the_similarity(kind, saved):
    model = SimCSE(saved(kind), device="cpu")
    same = model.to_sentence_transformer()
    for encode in ("encode_query", "encode_document"):
        found = getattr(same, encode)(TEXTS, convert_to_tensor=True)
        torch.testing.assert_close(found, getattr(model, encode)(TEXTS), rtol=1e-6, atol=1e-6)
    found = same.similarity(same.encode(TEXTS), same.encode(TEXTS))
    torch.testing.assert_close(found, model.similarity(TEXTS, TEXTS), rtol=1e-5, atol=1e-5)
    assert same.max_seq_length == LENGTH and same.similarity_fn_name == model.similarity_fn_name


def test_what_sentence_transformers_cannot_compute_is_no_sentence_transformer(saved):
    folder = saved("cls")
    for model, words in (
        (SimCSE(folder, device="cpu", long_texts="mean"), "long_texts='mean'"),
        (SimCSE(exported(folder), backend="onnx"), "backend='onnx'"),
    ):
        with pytest.raises(ValueError, match=words):
            model.to_sentence_transformer()
