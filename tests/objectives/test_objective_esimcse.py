"""ESimCSE: a momentum encoder without dropout embeds earlier batches, which are further negatives."""

import copy

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import esimcse as model_of
from objective_helpers import slow_info_nce


def batches(steps=4, rows=4, sentences=2):
    return [random_batch(rows, sentences, seed=10 + step) for step in range(steps)]


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("sentences, settings", [(2, {}), (4, {}), (3, {"similarity": "dot", "temperature": 2.0})])
@pytest.mark.parametrize("queue_size", [4, 7, 40])
def test_matches_a_slow_run_with_its_own_queue_and_momentum_encoder(sentences, queue_size, settings):
    model, live = (model_of(queue_size, **settings) for _ in range(2))
    optimizers = [torch.optim.SGD(each.bert.parameters(), lr=0.1) for each in (model, live)]
    shadow, queue = copy.deepcopy(live.bert), []
    for batch in batches(sentences=sentences):
        for optimizer in optimizers:
            optimizer.zero_grad()
        average = shadow.state_dict()
        for name, parameter in live.bert.named_parameters():
            # The dense + tanh head has no momentum.
            momentum = 0.0 if name.startswith("pooler.") else 0.9
            average[name].mul_(momentum).add_((1 - momentum) * parameter.detach())
        loss = model(**batch).loss
        vectors = live.bert(**flat(batch)).pooler_output.view(4, sentences, -1)
        kind = settings.get("similarity", "cosine")
        expected = slow_info_nce(vectors, settings.get("temperature", 0.05), kind=kind, extra=queue)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
        loss.backward()
        expected.backward()
        torch.testing.assert_close(gradients(model.bert), gradients(live.bert), rtol=1e-7, atol=1e-10)
        assert all(name.startswith("bert.") for name in gradients(model))
        with torch.no_grad():
            anchors = shadow(**{name: x[:, 0] for name, x in batch.items()}).pooler_output
        queue = [*anchors, *queue][:queue_size]
        kept = model.objective.queue[: model.objective.filled]
        torch.testing.assert_close(kept, torch.stack(queue), rtol=1e-9, atol=1e-12)
        for optimizer in optimizers:
            optimizer.step()


def test_the_momentum_encoder_has_neither_gradient_nor_dropout():
    model, batch = model_of(dropout=0.5, momentum=0.0), batches(1)[0]
    model.train()  # as the Trainer does at every step
    model(**batch).loss.backward()
    assert all(p.grad is None and not p.requires_grad for p in model.objective.momentum_encoder.parameters())
    with torch.no_grad():
        expected = model.eval().bert(**{name: x[:, 0] for name, x in batch.items()}).pooler_output
    torch.testing.assert_close(model.objective.queue[:4], expected, rtol=0, atol=1e-12)


def test_evaluation_uses_no_queue_and_changes_no_state():
    model, data = model_of(), batches(2)
    model(**data[0])
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.eval()
    plain = slow_info_nce(model.embed(**flat(data[1])).view(4, 2, -1))
    assert model(**data[1]).loss.item() == pytest.approx(plain.item(), rel=1e-9)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())


def test_the_momentum_encoder_of_half_precision_weights_is_in_float32():
    model = model_of(momentum=0.999).bfloat16()
    model.objective.attach(model)
    assert {p.dtype for p in model.objective.momentum_encoder.parameters()} == {torch.float32}
    encoders = (model, model.objective.momentum_encoder)
    layer, copied = (encoder.bert.encoder.layer[0].output.dense for encoder in encoders)
    before = copied.weight.clone()
    with torch.no_grad():
        layer.weight.add_(0.125)
    model(**batches(1)[0]).loss.backward()
    moved = copied.weight - before
    torch.testing.assert_close(moved, torch.full_like(moved, 0.000125), rtol=0.1, atol=0)
