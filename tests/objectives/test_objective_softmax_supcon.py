"""Tests of Eq. 3 of arXiv:2106.04791; and of it and its two terms over several processes."""

import pytest
import torch
from process_helpers import in_processes
from relation_helpers import ROWS, embedded, training_rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcse_hf.objectives import EncodedBatch
from simcse_hf.objectives.labelled.nli import Softmax, SoftmaxSupCon, SupCon

DIM = 5
PROCESSES = 2
OBJECTIVES = {
    "softmax": (Softmax, {}),
    "supcon": (SupCon, {}),
    "supcon, cosine": (SupCon, {"similarity": "cosine"}),
    "softmax, augmented": (Softmax, {"augment": True}),
    "softmax+supcon": (SoftmaxSupCon, {}),
}
BATCHES = {  # the first half of the rows is the first process's
    "other numbers of hypotheses": [[0], [0], [0, 1, 2, 0], [1, 0]],
    "no positive in a process": [[1], [2, 1], [0, 2], [0, 0, 1]],
    "no positive at all": [[1], [2], [1, 2], [2]],
    "one row each": [[0, 2], [0]],
}


class Encoder(nn.Module):
    """A linear layer in place of the encoder, and the objective."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(DIM, DIM).double()
        objective, options = OBJECTIVES[name]
        self.objective = objective(DIM, **options).double()

    def forward(self, vectors, relations, text_ids):
        inputs = {"relations": relations, "text_ids": text_ids}
        loss = self.objective(EncodedBatch(self.layer(vectors), inputs))
        return sum(loss.values()) if isinstance(loss, dict) else loss


def step(model, *inputs):
    loss = model(*inputs)
    loss.backward()
    module = model.module if isinstance(model, DistributedDataParallel) else model
    return loss.item(), {name: p.grad for name, p in module.named_parameters()}


def rows_of(rank, rows):
    """Return the rows of a process, with as many columns as its longest row."""
    whole, each = embedded(rows, DIM), len(rows) // PROCESSES
    mine = slice(rank * each, (rank + 1) * each)
    width = max(map(len, rows[mine]))
    relations, text_ids = (whole.inputs[name][mine] for name in ("relations", "text_ids"))
    return whole.embeddings.detach()[mine, : width + 1], relations[:, :width], text_ids[:, : width + 1]


def results_of(rank, processes):
    """Return the loss, the gradients and the evaluation loss of each objective and batch."""
    results = {}
    for name in OBJECTIVES:
        for batch, rows in BATCHES.items():
            mine = rows_of(rank, rows)
            in_evaluation = Encoder(name).eval()(*mine).item()
            results[name, batch] = *step(DistributedDataParallel(Encoder(name)), *mine), in_evaluation
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """`results[rank][objective, batch]`."""
    return in_processes(results_of, tmp_path_factory.mktemp("processes"), PROCESSES)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_give_the_loss_and_gradient_of_one(name, batch, results):
    whole = embedded(BATCHES[batch], DIM)
    loss, gradients = step(Encoder(name), whole.embeddings.detach(), *whole.inputs.values())
    assert (loss == 0) == (name.startswith("supcon") and batch == "no positive at all")
    losses = [of_rank[name, batch][0] for of_rank in results]
    assert sum(losses) / PROCESSES == pytest.approx(loss, rel=1e-9)
    for of_rank in results:
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(of_rank[name, batch][1][parameter], gradient, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_evaluation_uses_the_rows_of_its_own_process(name, batch, results):
    for rank, of_rank in enumerate(results):
        alone = Encoder(name).eval()(*rows_of(rank, BATCHES[batch])).item()
        assert of_rank[name, batch][2] == pytest.approx(alone, rel=1e-12)


# --- one process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("supcon_weight", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("name", ROWS)
def test_the_parts_are_the_two_losses_weighted(name, supcon_weight):
    options = {"temperature": 0.7, "similarity": "dot"}
    objective = SoftmaxSupCon(DIM, hidden_dim=3, supcon_weight=supcon_weight, **options).double()
    softmax = Softmax(DIM, 3).double()
    softmax.load_state_dict(objective.softmax.state_dict())
    batch = embedded(ROWS[name], DIM)
    parts = objective(batch)
    expected = {
        "softmax_loss": (1 - supcon_weight) * softmax(batch).item(),
        "supcon_loss": supcon_weight * SupCon(DIM, **options)(batch).item(),
    }
    assert {part: value.item() for part, value in parts.items()} == pytest.approx(expected)


def test_the_default_weight_is_that_of_the_best_model():
    assert SoftmaxSupCon(DIM).supcon_weight == 0.3


def test_rows_are_checked_for_both():
    objective = SoftmaxSupCon(DIM)
    objective.check(training_rows([[0, 2], [0, 1]]))
    with pytest.raises(ValueError, match=r"training row 2 has the relations \[0, 3\]"):
        objective.check(training_rows([[0, 2], [0, 3]]))
    with pytest.raises(ValueError, match="none of the 2 training rows has an entailed hypothesis"):
        objective.check(training_rows([[2], [1]]))


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_a_weight_outside_its_range_is_refused(weight):
    with pytest.raises(ValueError, match=f"supcon_weight must be from 0 to 1, got {weight}"):
        SoftmaxSupCon(DIM, supcon_weight=weight)
