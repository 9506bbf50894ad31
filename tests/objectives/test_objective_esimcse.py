"""ESimCSE: a momentum encoder without dropout embeds earlier batches, which are further negatives."""

import copy

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import esimcse as model_of
from objective_helpers import slow_info_nce


def batches(steps=4, rows=4, sentences=2):
    return [random_batch(rows, sentences, seed=10 + step) for step in range(steps)]


def train(model, data, lr=0.1):
    """Return the loss, the gradients and the queue of each step of gradient descent."""
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD([p for p in inner.parameters() if p.requires_grad], lr=lr)
    steps = []
    for batch in data:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in inner.named_parameters() if p.grad is not None}
        objective = inner.objective
        steps.append((loss.item(), gradients, objective.queue[: objective.filled].clone()))
        optimizer.step()
    return steps


@pytest.mark.parametrize("sentences, settings", [(2, {}), (4, {}), (3, {"similarity": "dot", "temperature": 2.0})])
@pytest.mark.parametrize("queue_size", [4, 7, 40])
def test_matches_a_slow_run_with_its_own_queue_and_momentum_encoder(sentences, queue_size, settings):
    data = batches(sentences=sentences)
    steps = train(model_of(queue_size, **settings), data)
    live = model_of(queue_size, **settings)
    average, queue = {name: p.detach().clone() for name, p in live.bert.named_parameters()}, []
    shadow = copy.deepcopy(live.bert)
    optimizer = torch.optim.SGD(live.bert.parameters(), lr=0.1)
    for batch, (loss, gradients, kept) in zip(data, steps, strict=True):
        for name, parameter in live.bert.named_parameters():
            # The dense + tanh head has no momentum.
            momentum = 0.0 if name.startswith("pooler.") else 0.9
            average[name] = momentum * average[name] + (1 - momentum) * parameter.detach()
        optimizer.zero_grad()
        vectors = live.bert(**flat(batch)).pooler_output.view(4, sentences, -1)
        kind = settings.get("similarity", "cosine")
        expected = slow_info_nce(vectors, settings.get("temperature", 0.05), kind=kind, extra=queue)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-9)
        by_hand = {f"bert.{name}": parameter.grad for name, parameter in live.bert.named_parameters()}
        torch.testing.assert_close(gradients, by_hand, rtol=1e-7, atol=1e-10)
        optimizer.step()
        shadow.load_state_dict(average, strict=False)
        with torch.no_grad():
            anchors = shadow(**{name: x[:, 0] for name, x in batch.items()}).pooler_output
        queue = [*anchors, *queue][:queue_size]
        torch.testing.assert_close(kept, torch.stack(queue), rtol=1e-9, atol=1e-12)


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
