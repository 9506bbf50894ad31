"""Steps as CUDA graphs, an experiment of the benchmark: they train as other steps do."""

import contextlib
import logging

import pytest
import torch

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers, the peer")

from trainer_helpers import make, model_of, texts, weights

from benchmarks.gpu.graphs import WARM_UP, GraphTrainer, StepGraphs
from simcse_hf.data.collator import ContrastiveCollator, PackingCollator


class Stream:
    def wait_stream(self, other):
        pass


class Graph:
    """Stands for a graph: what its block computes is recorded, and a replay counts."""

    replays = 0

    def replay(self):
        Graph.replays += 1


def batch_of(tokenizer, tokens):
    rows = [{"input_ids": [[2, *[7] * (tokens + i % 3), 3]]} for i in range(8)]
    return PackingCollator(ContrastiveCollator(tokenizer), 0, multiple=16, length=24)(rows)


@pytest.fixture
def capturing(monkeypatch):
    """Steps with stand-ins for torch's functions of graphs: what is captured runs."""
    Graph.replays = 0
    for name, stand_in in {
        "CUDAGraph": Graph,
        "synchronize": lambda: None,
        "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "graph": lambda *args, **kwargs: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    model = model_of(dropout=0.0).train()
    model.prepare_objective()
    steps = StepGraphs(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), max_norm=1.0)
    steps.can_capture, steps.pool, steps.stream, steps.seconds = True, None, Stream(), 0.0
    return steps


def test_a_graph_is_captured_for_each_shape_and_reads_the_tensors_of_its_batch(capturing, tokenizer):
    for tokens in (3, 3, 3, 3, 15, 3, 15):
        capturing.step(batch_of(tokenizer, tokens))
    assert len(capturing.captured) == 2
    assert Graph.replays == 7 - WARM_UP
    other = batch_of(tokenizer, 3)
    other["input_ids"][0, 0, 1] = 9
    capturing.step(other)
    step = next(iter(capturing.captured.values()))
    assert torch.equal(step.batch["input_ids"], other["input_ids"])
    assert all(parameter.grad is None for parameter in capturing.model.parameters())
    assert capturing.optimizer.param_groups[0]["lr"] == 1e-3


def test_a_capture_that_fails_is_said_once_and_the_run_goes_on(capturing, tokenizer, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    with caplog.at_level(logging.WARNING):
        losses = [capturing.step(batch_of(tokenizer, 3))[0].loss.item() for _ in range(WARM_UP + 3)]
    assert caplog.text.count("cannot be captured, so the run goes on without graphs: operation not permitted") == 1
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    """The weights and the log of a run with steps that could be captured, and of one with the Trainer's."""
    runs = {}
    settings = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 7, "weight_decay": 0.1}
    settings |= {"warmup_steps": 3, "optim": "adamw_torch_fused", "logging_steps": 1, "learning_rate": 1e-3}
    for by_graph in (True, False):
        folder = tmp_path_factory.mktemp("graphs")
        kind = {"trainer_class": GraphTrainer} if by_graph else {}
        trainer = make(folder, tokenizer, texts(32, 2), model_of(dropout=0.0), **kind, **settings)
        trainer.train()
        runs[by_graph] = weights(trainer.model), [entry for entry in trainer.state.log_history if "loss" in entry]
    return runs


def test_steps_that_could_be_captured_train_the_weights_of_other_steps(trained):
    """Key biases are left out: their exact gradient is 0, and Adam scales what rounding leaves of it."""
    for name, weight in trained[False][0].items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(trained[True][0][name], weight, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("name", ["loss", "grad_norm", "learning_rate", "contrastive_loss"])
def test_steps_that_could_be_captured_log_the_numbers_of_other_steps(trained, name):
    found, expected = ([entry[name] for entry in trained[by_graph][1]] for by_graph in (True, False))
    assert len(found) == 10
    assert found == pytest.approx(expected, rel=1e-4)
