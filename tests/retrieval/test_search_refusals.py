"""What search refuses, and that the message names the argument, the sentence or the file."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import NEEDS_PEFT
from evaluation_helpers import write
from retrieval_helpers import SENTENCES, CountingModel
from sentence_transformers import SentenceTransformer
from trainer_helpers import refuses

from simcse_hf import SentenceIndex, SimCSE
from simcse_hf.encoding.fitting import fit_transform
from simcse_hf.retrieval.faiss_index import FaissIndex

VECTORS = CountingModel().encode(SENTENCES)
NAN = VECTORS.copy()
NAN[3, 0] = np.nan


def build(sentences=SENTENCES, **options):
    return SentenceIndex.build(CountingModel(), sentences, **options)


def build_from(vectors, sentences=SENTENCES):
    return build(sentences, vectors=vectors)


def search(query="the cat", **options):
    return build().search(query, **options)


def faiss(backend, parameters=None, count=0, among=None):
    pytest.importorskip("faiss")
    index = FaissIndex(8, backend)
    if parameters is not None:
        index.set_parameters(parameters)
    index.add(VECTORS[:count])
    index.search(VECTORS[:1], 1, among)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: build([]), "no sentences"),
        (lambda: build("a sentence, not a path"), "no such file"),
        (lambda: build_from([VECTORS[:40], VECTORS[40:79]]), "more sentences than the 79 vectors"),
        (lambda: build_from([VECTORS], SENTENCES[:79]), "more vectors than the 79 sentences"),
        (lambda: build_from([VECTORS[:, :5]]), r"\(80, 5\).*8 dimensions"),
        (lambda: build_from([VECTORS[:40], VECTORS[40:][::-1]]), "for sentence [4-7]"),
        (lambda: build_from([NAN]), "sentence 3 of the index.*not finite"),
        (lambda: search(top_k=0), "top_k.*0"),
        (lambda: search(threshold=float("nan")), "threshold.*nan"),
        (lambda: search(np.full(8, np.nan)), "query 0.*not finite"),
        (lambda: search(torch.zeros(8, dtype=torch.uint8)), "queries are torch.uint8"),
        (lambda: faiss("IDMap,Flat"), "'IDMap,Flat' .* leave out IDMap"),
        (lambda: faiss("annoy"), "backend must be .*'annoy'"),
        (lambda: faiss("HNSW32", "nprobe=3"), "'HNSW32' takes no parameters 'nprobe=3'"),
        (lambda: faiss("NSG8", count=10), "'NSG8' cannot add embeddings .*smaller than 100"),
        (lambda: faiss("IVF64,Flat", count=10), "10 embeddings cannot train the backend 'IVF64,Flat'"),
        (lambda: faiss("PCA4,Flat", count=50, among=np.zeros(30_000, dtype=bool)), "'PCA4,Flat' takes no filter"),
    ],
)
def test_a_refusal_names_what_is_wrong(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def whiten(model):
    fit_transform(model, "whitening", write(Path(model.name_or_path, "texts.txt"), SENTENCES), dim=8)


def train(model):
    next(model.parameters()).data.mul_(1.5)  # which leaves the version of the tensor as it was


def change_prompt(model):
    model.prompts.update(document="the man ")


@pytest.mark.parametrize(
    "change, words",
    [
        (whiten, "postprocessing None there, 'whitening' here"),
        (change_prompt, "prompts 'the man '"),
        (lambda model: train(model.model), "other weights"),
        (lambda model: model.tokenizer.add_tokens("newword"), "another tokenizer"),
    ],
)
def test_a_model_that_has_changed_is_refused_wherever_its_index_is_used(change, words, model, tmp_path):
    model.build_index(SENTENCES)
    model.save_index(tmp_path / "before")
    change(model)
    for use in (
        lambda: model.search("the cat"),
        lambda: model.search(np.ones(32)),
        lambda: model.add_to_index(["one more"]),
        lambda: model.save_index(tmp_path / "after"),
        lambda: model.load_index(tmp_path / "before"),
    ):
        with refuses(f"was built with model {words} build the index again"):
            use()
    assert not (tmp_path / "after").exists()
    model.build_index(SENTENCES)
    assert len(model.search("the cat")) == 5


@pytest.mark.parametrize("change, words", [(train, "other weights"), (change_prompt, "prompts 'the man '")])
def test_a_model_of_sentence_transformers_that_has_changed_is_refused_as_well(change, words, checkpoint, tmp_path):
    model = SentenceTransformer(str(checkpoint), device="cpu")
    index = SentenceIndex.build(model, SENTENCES)
    index.save(tmp_path / "before")
    change(model)
    for use in (lambda: index.search("the cat"), lambda: SentenceIndex.load(tmp_path / "before", model)):
        with refuses(f"another model: {words}"):
            use()


def test_an_index_opens_with_its_model_in_another_library_and_in_half_precision(model, checkpoint, tmp_path):
    other = SentenceTransformer(str(checkpoint), device="cpu")
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    assert len(SentenceIndex.load(tmp_path / "index", other).search("the cat")) == 5
    index = SentenceIndex.build(other, SENTENCES)
    other.bfloat16()
    assert len(index.search("the cat")) == 5


@NEEDS_PEFT
@pytest.mark.parametrize("library", ["simcse_hf", "sentence_transformers"])
def test_an_adapter_that_was_switched_off_makes_another_model(library, model, checkpoint):
    from peft import LoraConfig

    encoder = model
    switched = model.model.base_model
    if library == "sentence_transformers":
        encoder = switched = SentenceTransformer(str(checkpoint), device="cpu")
    switched.add_adapter(LoraConfig(target_modules=["query"], init_lora_weights=False))
    index = SentenceIndex.build(encoder, SENTENCES)
    assert len(index.search("the cat")) == 5
    switched.disable_adapters()
    with refuses("another model: other weights"):
        index.search("the cat")
    switched.enable_adapters()
    assert len(index.search("the cat")) == 5


def test_a_moved_model_with_a_prompt_of_queries_and_in_bfloat16_is_the_model_of_its_index(model, checkpoint, tmp_path):
    model.build_index(SENTENCES[:3])
    model.save_index(tmp_path / "index")
    model.prompts.update(query="the man ", classification="a cat ")
    model.to("cpu")
    assert len(model.search("a cat")) == 3
    moved = SimCSE(checkpoint.rename(tmp_path / "moved"), device="cpu", dtype=torch.bfloat16)
    assert len(SentenceIndex.load(tmp_path / "index", moved)) == 3


def test_a_model_that_gives_nan_is_not_the_model_of_an_index(tmp_path, monkeypatch):
    """NaN < 0.999 is false, so that such a model could pass for the right one."""
    build().save(tmp_path / "index")
    nothing = np.full((1, 8), np.nan)
    monkeypatch.setattr(CountingModel, "encode", lambda self, texts, **options: nothing)
    with refuses("embedding of a fixed sentence has a cosine of nan"):
        SentenceIndex.load(tmp_path / "index", CountingModel())
