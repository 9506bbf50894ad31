"""ESimCSE: a momentum encoder without dropout embeds earlier batches, which are further negatives."""

import copy

import pytest
import torch
from conftest import flat, random_batch
from objective_helpers import esimcse, gradients_by_name, slow_info_nce
from trainer_helpers import assert_same_weights, weights


def make_batch(step=0, sentences=2):
    return random_batch(4, sentences, seed=10 + step)


def anchors_of(batch):
    return {name: values[:, 0] for name, values in batch.items()}


# --- a run of three steps against a slow one ---


def train_both(queue_size, sentences, similarity="cosine", temperature=0.05):
    """Train a model, and a copy of its encoder with a queue and a momentum encoder of its own, on the same batches.

    Yields them, the queue, and both losses after each backward pass, before the weights change.
    """
    options = {"similarity": similarity, "temperature": temperature}
    model = esimcse(queue_size, **options)
    encoder = esimcse(queue_size, **options).bert
    momentum_encoder = copy.deepcopy(encoder)
    average = momentum_encoder.state_dict()
    queue = []
    optimizer = torch.optim.SGD([*model.bert.parameters(), *encoder.parameters()], lr=0.1)
    for step in range(4):
        batch = make_batch(step, sentences)
        for name, parameter in encoder.named_parameters():
            momentum = 0.0 if name.startswith("pooler.") else 0.9  # the dense layer of the head has no momentum
            average[name].mul_(momentum).add_((1 - momentum) * parameter.detach())
        vectors = encoder(**flat(batch)).pooler_output.view(4, sentences, -1)
        expected = slow_info_nce(vectors, temperature, kind=similarity, extra=queue)
        with torch.no_grad():
            anchors = momentum_encoder(**anchors_of(batch)).pooler_output
        queue = [*anchors, *queue][:queue_size]
        loss = model(**batch).loss
        loss.backward()
        expected.backward()
        yield model, encoder, queue, loss.item(), expected.item()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("queue_size", [4, 7, 40])
@pytest.mark.parametrize(
    "settings",
    [{"sentences": 2}, {"sentences": 4}, {"sentences": 3, "similarity": "dot", "temperature": 2.0}],
    ids=["pairs", "hard negatives", "dot product"],
)
def test_loss_gradient_and_queue_of_each_step_are_those_of_the_slow_run(settings, queue_size):
    for model, encoder, queue, loss, expected in train_both(queue_size, **settings):
        assert loss == pytest.approx(expected, rel=1e-9)
        slow = {f"bert.{name}": gradient for name, gradient in gradients_by_name(encoder).items()}
        torch.testing.assert_close(gradients_by_name(model), slow, rtol=1e-7, atol=1e-10)
        queued = model.objective.queue[: model.objective.filled]
        torch.testing.assert_close(queued, torch.stack(queue), rtol=1e-9, atol=1e-12)


# --- the momentum encoder ---


def test_the_momentum_encoder_has_no_dropout():
    model = esimcse(dropout=0.5, momentum=0.0)
    model.train()  # as the Trainer does at every step
    batch = make_batch()
    model(**batch)
    with torch.no_grad():
        expected = model.eval().bert(**anchors_of(batch)).pooler_output
    torch.testing.assert_close(model.objective.queue[:4], expected, rtol=0, atol=1e-12)


def test_the_momentum_encoder_follows_small_changes_of_half_precision_weights():
    model = esimcse(momentum=0.999).bfloat16()
    model.objective.attach(model)

    def dense(model):
        return model.bert.encoder.layer[0].output.dense

    copied = dense(model.objective.momentum_encoder)
    before = copied.weight.clone()
    with torch.no_grad():
        dense(model).weight.add_(0.125)
    model(**make_batch()).loss.backward()
    moved = copied.weight - before
    torch.testing.assert_close(moved, torch.full_like(moved, 0.000125), rtol=0.1, atol=0)


# --- evaluation ---


def test_evaluation_uses_no_queue_and_changes_no_state():
    model = esimcse()
    model(**make_batch(0))
    model.eval()
    before = weights(model)
    batch = make_batch(1)
    plain = slow_info_nce(model.embed(**flat(batch)).view(4, 2, -1))
    torch.testing.assert_close(model(**batch).loss, plain, rtol=1e-9, atol=0)
    assert_same_weights(before, model.state_dict())
