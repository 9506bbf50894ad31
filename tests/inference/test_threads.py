"""`encode` in several threads, and beside a training: the same embeddings as alone, and no side effect."""

import copy
import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import MethodType

import pytest
import torch
from conftest import FAMILIES, random_batch, tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.ops.evaluation_view import evaluation_view

TEXTS = ["a cat sat on the mat .", "dog", "the big old man slept in a small red house , the woman sang ."]


@pytest.fixture
def simcse(save_checkpoint):
    config = tiny_config("bert", dropout=0.3)
    return SimCSE(save_checkpoint(AutoModelForCL.from_config(config, pooler_type="cls")), device="cpu")


def test_threads_with_different_lengths_get_the_embeddings_of_one_thread(simcse):
    """A fast tokenizer keeps the truncation of its last call, which used to leak into other threads."""
    lengths = [3, 4, 5, 8, 16]
    alone = {length: simcse.encode(TEXTS, max_length=length) for length in lengths}

    def encode(number):
        length = lengths[number % len(lengths)]
        return torch.equal(simcse.encode(TEXTS, max_length=length), alone[length])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(encode, range(200)))


def test_encode_leaves_the_tokenizer_as_it_was(simcse):
    backend = simcse.tokenizer.backend_tokenizer
    for state in (lambda: backend.enable_truncation(7, stride=2), backend.no_truncation):
        state()
        backend.enable_padding(length=11)
        before = backend.truncation, backend.padding
        simcse.encode(TEXTS, max_length=4)
        assert (backend.truncation, backend.padding) == before


def test_encode_beside_a_training_has_no_dropout_and_takes_none_away(simcse):
    model = simcse.model
    alone = simcse.encode(TEXTS)
    model.train()
    modes, stop = [], threading.Event()

    def watch(module, inputs, output):
        modes.append((threading.current_thread() is threading.main_thread(), module.training))

    model.base_model.embeddings.dropout.register_forward_hook(watch)

    def encode():
        results = []
        while not stop.is_set():
            results.append(simcse.encode(TEXTS))
        return results

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(encode) for _ in range(2)]
        for step in range(40):
            model(**random_batch(4, 2, seed=step)).loss.backward()  # no step of an optimizer: the weights stay
        stop.set()
        results = [result for future in futures for result in future.result()]
    assert results and all(torch.equal(result, alone) for result in results)
    assert {training for main, training in modes if main} == {True}
    assert {training for main, training in modes if not main} == {False}
    assert model.training and all(module.training for module in model.base_model.modules())


def test_a_model_that_is_switched_to_training_in_the_middle_of_a_call_encodes_without_dropout(simcse):
    alone = simcse.encode(TEXTS, batch_size=1)
    calls = []

    def switch(module, inputs):
        calls.append(module.training)
        simcse.model.train()

    simcse.model.register_forward_pre_hook(switch)
    assert torch.equal(simcse.encode(TEXTS, batch_size=1), alone)
    assert calls == [False] * 3 and simcse.model.training


@pytest.mark.parametrize("family", FAMILIES)
def test_a_view_computes_what_the_model_computes_in_evaluation_mode(family):
    model = AutoModelForCL.from_config(tiny_config(family), pooler_type="cls")
    batch = random_batch(5)
    with torch.no_grad():
        wanted = model.eval()(**batch).sentence_embeddings
        view = evaluation_view(model.train())
        assert torch.equal(view(**batch).sentence_embeddings, wanted)
        assert not torch.equal(model(**batch).sentence_embeddings, wanted), "the model itself has dropout"
    assert model.training and not any(module.training for module in view.modules())
    pairs = zip(view.named_parameters(), model.named_parameters(), strict=True)
    assert all(ours is theirs for (_, ours), (_, theirs) in pairs)


def test_a_view_is_kept_until_the_model_changes():
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type="cls")
    view = evaluation_view(model)
    assert evaluation_view(model) is view
    layer = model.base_model.encoder.layer[1]

    def put_a_layer():
        model.base_model.encoder.layer[0] = layer

    changes = [
        lambda: setattr(model, "unpadded", False),
        lambda: setattr(layer, "a_new_attribute", 1),
        lambda: model.update_settings(temperature=0.3),
        put_a_layer,
        model.eval,
    ]
    for change in changes:
        change()
        view, earlier = evaluation_view(model), view
        assert view is not earlier and evaluation_view(model) is view
    assert not view.unpadded and view.settings.temperature == 0.3
    assert view.base_model.encoder.layer[0].attention.self.query.weight is layer.attention.self.query.weight


def test_a_kept_view_is_not_copied_and_does_not_keep_its_model_alive():
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type="cls")
    view = evaluation_view(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.base_model))):
        kept = vars(other).get("_kept_evaluation_view")
        assert kept is None or kept._kept is None
    gone = weakref.ref(model)
    del model, view
    gc.collect()
    assert gone() is None


def test_a_forward_that_accelerate_has_wrapped_runs_in_the_mode_of_the_view():
    model = AutoModelForCL.from_config(tiny_config("bert"), pooler_type="cls").train()
    batch = random_batch(5)
    wanted = evaluation_view(model)(**batch).sentence_embeddings
    inner = model.forward.__func__
    model.forward = MethodType(lambda self, **inputs: inner(self, **inputs), model)
    assert torch.equal(evaluation_view(model)(**batch).sentence_embeddings, wanted)
    model.forward = lambda **inputs: inner(model, **inputs)
    assert evaluation_view(model) is model


def test_a_model_whose_forward_was_replaced_is_still_encoded_without_dropout(simcse):
    alone = simcse.encode(TEXTS)
    forward = simcse.model.forward
    simcse.model.forward = lambda **inputs: forward(**inputs)
    simcse.model.train()
    assert torch.equal(simcse.encode(TEXTS), alone) and simcse.model.training
