"""Steps as CUDA graphs: they train as other steps do, and a run that cannot have them says why."""

import contextlib
import logging

import pytest
import torch
from trainer_helpers import make, model_of, texts, weights

from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.packed_batch import PackedBatch, PackingCollator
from simcse_hf.training import graphs
from simcse_hf.training.graphs import WARM_UP, StepGraphs


class Stream:
    def wait_stream(self, other):
        pass


class Graph:
    """Stands for a graph: what its block computes is recorded, and a replay counts."""

    replays = 0

    def replay(self):
        Graph.replays += 1


@pytest.fixture
def cuda_on_a_cpu(monkeypatch):
    """Stand-ins for torch's functions of graphs: what is captured runs."""
    Graph.replays = 0
    for name, stand_in in {
        "CUDAGraph": Graph,
        "synchronize": lambda: None,
        "current_stream": Stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "graph": lambda *args, **kwargs: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


def graphs_of(dropout=0.0):
    model = model_of(dropout=dropout).train()
    model.prepare_objective()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return StepGraphs(model, optimizer, max_norm=1.0)


def batch_of(tokenizer, tokens):
    rows = [{"input_ids": [[2, *[7] * (tokens + i % 3), 3]]} for i in range(8)]
    return PackingCollator(
        ContrastiveCollator(tokenizer), 0, multiple=16, length=24, stays_packed=True
    )(rows)


@pytest.fixture
def capturing(cuda_on_a_cpu):
    steps = graphs_of()
    steps.can_capture, steps.pool, steps.stream, steps.seconds = (
        True,
        None,
        Stream(),
        0.0,
    )
    return steps


def test_a_graph_is_captured_for_each_shape_after_real_steps(capturing, tokenizer):
    for tokens in (3, 3, 3, 3, 15, 3, 15):
        capturing.step(batch_of(tokenizer, tokens))
    assert len(capturing.captured) == 2
    assert Graph.replays == 7 - WARM_UP


def test_a_replay_reads_the_numbers_of_its_batch(capturing, tokenizer):
    for _ in range(WARM_UP + 1):
        capturing.step(batch_of(tokenizer, 3))
    other = batch_of(tokenizer, 3)
    other["numbers"][1] = 9
    capturing.step(other)
    (step,) = capturing.captured.values()
    assert torch.equal(step.batch["numbers"], other["numbers"])


def test_a_capture_that_fails_is_said_once_and_the_run_goes_on(
    capturing, tokenizer, monkeypatch, caplog
):
    def fail(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    with caplog.at_level(logging.WARNING):
        losses = [
            capturing.step(batch_of(tokenizer, 3))[0].loss.item()
            for _ in range(WARM_UP + 3)
        ]
    assert (
        caplog.text.count(
            "cannot be captured, so the run goes on without graphs: operation not permitted"
        )
        == 1
    )
    assert losses[-1] < losses[0]


def test_a_step_leaves_no_gradients_and_the_rate_a_number(tokenizer):
    steps = graphs_of()
    steps.step(batch_of(tokenizer, 3))
    assert all(parameter.grad is None for parameter in steps.model.parameters())
    assert steps.optimizer.param_groups[0]["lr"] == 1e-3


def test_fillers_change_neither_loss_nor_gradient(tokenizer):
    packed = batch_of(tokenizer, 3)
    exact = PackedBatch(
        ContrastiveCollator(tokenizer)(
            [{"input_ids": [[2, 7, 9, 3]]}, {"input_ids": [[2, 8, 3]]}]
        ),
        0,
    )
    filled = PackedBatch(exact.unpack() | {"packing": None}, 0, multiple=64, length=16)
    results = []
    for batch in (exact, filled):
        model = model_of(dropout=0.0, pooler_type="avg").double().train()
        inputs = batch.unpack()
        loss = model(**inputs).loss
        loss.backward()
        results.append(
            (
                loss.item(),
                {
                    name: x.grad
                    for name, x in model.named_parameters()
                    if x.grad is not None
                },
            )
        )
    assert packed.stays_packed
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer):
    """The weights and the log of a run with steps that could be captured, and of one with the Trainer's."""
    runs = {}
    for by_graph in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("simcse_hf.training.trainer.find_problem", lambda *args: None)
            changes = {
                "num_train_epochs": 2,
                "per_device_train_batch_size": 7,
                "weight_decay": 0.1,
                "warmup_steps": 3,
            }
            changes |= {
                "max_steps": -1,
                "optim": "adamw_torch_fused",
                "logging_steps": 1,
                "cuda_graphs": by_graph,
            }
            folder = tmp_path_factory.mktemp("graphs")
            trainer = make(
                folder,
                tokenizer,
                texts(32, 2),
                model_of(dropout=0.0),
                learning_rate=1e-3,
                **changes,
            )
            trainer.train()
        assert (trainer.graphs is not None) == by_graph
        runs[by_graph] = (
            weights(trainer.model),
            [entry for entry in trainer.state.log_history if "loss" in entry],
        )
    return runs


def test_steps_that_could_be_captured_train_the_weights_of_other_steps(trained):
    """Key biases are left out: their exact gradient is 0, and Adam scales what rounding leaves of it."""
    for name, weight in trained[False][0].items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(
                trained[True][0][name], weight, rtol=0, atol=2e-6, msg=name
            )


@pytest.mark.parametrize(
    "name", ["loss", "grad_norm", "learning_rate", "contrastive_loss"]
)
def test_steps_that_could_be_captured_log_the_numbers_of_other_steps(trained, name):
    found, expected = (
        [entry[name] for entry in trained[by_graph][1]] for by_graph in (True, False)
    )
    assert len(found) == 10
    assert found == pytest.approx(expected, rel=1e-4)


PROBLEMS = {
    "no NVIDIA GPU": {},
    "several forward passes": {"gradient_accumulation_steps": 2},
    "optim is sgd": {"optim": "sgd"},
    "needs more than one pass, or has a state of its own": {"objective": "esimcse"},
    "masked-LM loss": {"do_mlm": True},
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_run_that_cannot_have_graphs_says_why(
    problem, tmp_path, tokenizer, monkeypatch, caplog
):
    changes = dict(PROBLEMS[problem])
    settings = {
        name: changes.pop(name) for name in ("objective", "do_mlm") if name in changes
    }
    trainer = make(
        tmp_path,
        tokenizer,
        texts(32, 1),
        model_of(**settings),
        max_steps=1,
        cuda_graphs=True,
        **changes,
    )
    if changes or settings:
        monkeypatch.setattr(graphs, "DEVICE", "cpu")
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "cuda_graphs has no effect" in caplog.text and problem in caplog.text
