"""Tests of Matryoshka: the same objective at every width, summed, and nothing done twice."""

from types import SimpleNamespace

import pytest
import torch
from conftest import flat, random_batch, tiny_config

from simcse_hf import BertForCL
from simcse_hf.objectives import EncodedBatch, build_objective

WITH_OWN_PARAMETERS = ["barlow_twins", "vicreg", "is_bert"]
NARROW = {name: {"projector_dim": 16} for name in ("barlow_twins", "vicreg")}  # the default width is 8,192


def slow_info_nce(vectors, width, temperature):
    """Slow reference: one pair at a time, with only the leading dimensions."""
    total = 0.0
    for i, row in enumerate(vectors):
        anchor = row[0][:width]
        terms = []
        for other in vectors:
            for candidate in other[1:]:
                short = candidate[:width]
                cosine = (anchor * short).sum() / (anchor * anchor).sum().sqrt() / (short * short).sum().sqrt()
                terms.append((cosine / temperature).exp())
        total = total - (terms[i * len(row[1:])] / sum(terms)).log()
    return total / len(vectors)


@pytest.mark.parametrize("rows, sentences, dim, dims, temperature", [(3, 2, 8, [4], 0.5), (5, 4, 12, [3, 12, 7], 0.2)])
def test_equals_a_sum_over_widths(rows, sentences, dim, dims, temperature):
    objective = build_objective("simcse", dim, {"matryoshka_dims": dims, "temperature": temperature})
    vectors = torch.randn(rows, sentences, dim, dtype=torch.float64, requires_grad=True)
    parts = objective(EncodedBatch(vectors))
    widths = sorted({dim, *dims}, reverse=True)
    assert list(parts) == [f"loss_{width}" for width in widths]
    expected = {width: slow_info_nce(vectors, width, temperature) for width in widths}
    for width in widths:
        assert parts[f"loss_{width}"].item() == pytest.approx(expected[width].item(), rel=1e-10)
    results, exact = (torch.autograd.grad(sum(x.values()), vectors)[0] for x in (parts, expected))
    torch.testing.assert_close(results, exact, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", WITH_OWN_PARAMETERS)
def test_any_objective_gets_each_width_and_its_own_parameters(name):
    objective = build_objective(name, 8, {"matryoshka_dims": [4]} | NARROW.get(name, {}))
    if name == "is_bert":
        objective.attach(SimpleNamespace(settings=SimpleNamespace(pooler_type="avg")))
    objective.double()
    vectors, states = torch.randn(6, 2, 8).double(), torch.randn(6, 2, 5, 8).double()
    inputs = {"attention_mask": torch.ones(6, 2, 5, dtype=torch.long)}
    parts = objective(EncodedBatch(vectors, inputs, None, states))
    for width, inner in zip((8, 4), objective.objectives, strict=True):
        alone = inner(EncodedBatch(vectors[..., :width], inputs, None, states[..., :width]))
        alone = alone if isinstance(alone, dict) else {"loss": alone}
        for part, value in alone.items():
            torch.testing.assert_close(parts[f"{part}_{width}"], value)
    names = [{n: p.shape for n, p in inner.named_parameters()} for inner in objective.objectives]
    assert names[0].keys() == names[1].keys()


def esimcse(dims, steps=3, optimise=True):
    """Return the model, and the loss parts and the queue of each step."""
    torch.manual_seed(3)
    options = {"queue_size": 7, "momentum": 0.9}
    model = BertForCL(tiny_config(dropout=0.0, initializer_range=0.2), objective="esimcse", objective_options=options)
    model.objective = build_objective("esimcse", 32, {"matryoshka_dims": dims} | options)
    model.objective.attach(model)
    model.double().train()
    calls, results = [], []
    model.objective.objectives[0].momentum_encoder.base_model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(steps):
        batch = random_batch(4, 2, seed=step)
        queue = model.objective.objectives[0]
        before = queue.queue[: queue.filled].clone()
        output = model(**batch)
        with torch.no_grad():
            vectors = model.bert(**flat(batch)).pooler_output.view(4, 2, -1)
        results.append((output.parts, vectors, before))
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, results, len(calls)


def test_all_widths_share_one_momentum_encoder():
    model, results, calls = esimcse([8, 16])
    assert len(model.objective.objectives) == 1 and calls == len(results)
    for step, (parts, vectors, queue) in enumerate(results):
        assert len(queue) == min(4 * step, 7)
        for width in (32, 16, 8):
            total = 0.0
            for i in range(4):
                anchor = vectors[i, 0, :width]
                others = [v[:width] for v in vectors[:, 1]] + [v[:width] for v in queue]
                logits = torch.stack([torch.cosine_similarity(anchor, other, dim=0) / 0.05 for other in others])
                total -= torch.log_softmax(logits, 0)[i]
            assert parts[f"loss_{width}"].item() == pytest.approx(total.item() / 4, rel=1e-9)


def test_widths_are_sorted_and_the_full_size_is_added():
    assert build_objective("simcse", 768, {"matryoshka_dims": [64, 256]}).dims == [768, 256, 64]
    assert build_objective("simcse", 768, {"matryoshka_dims": [64, 768]}).dims == [768, 64]


def test_the_setting_matryoshka_dims_trains_with_one_loss_per_width(tmp_path):
    model = BertForCL(tiny_config(), objective="esimcse", matryoshka_dims=[8, 16])
    output = model.train()(**random_batch(4, 2))
    assert list(output.parts) == ["loss_32", "loss_16", "loss_8"]
    assert output.loss.item() == pytest.approx(sum(output.parts.values()).item())
    model.save_pretrained(tmp_path)
    again = BertForCL.from_pretrained(tmp_path)
    again.prepare_objective()
    assert torch.equal(again.objective.objectives[0].queue, model.objective.objectives[0].queue)
    assert int(again.objective.objectives[0].filled) == 4
    with pytest.raises(ValueError, match="matryoshka_dims.*33"):
        BertForCL(tiny_config(), matryoshka_dims=[33]).prepare_objective()
