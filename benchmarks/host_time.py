"""The host's part of a training step: what the CPU does beside forward, backward and optimizer.

    python -m benchmarks host_time --output benchmarks/results/host_time.json

On a GPU with CUDA graphs, the host's part decides the time of a step. It depends on the number of modules and
parameters and hardly on their sizes, so the encoder has BERT-base's 12 layers at a width of 8. `stock` is what torch
and transformers do: they walk over all modules in `train`, over all parameters in `zero_grad` and
`floating_point_ops`, and make batches in the training process. `ours` is what this package does on a GPU: see
`simcse_hf/models/step_methods.py`, and two workers that make batches. Figures are medians of the CPU time of the
training thread, in milliseconds, over the steps of alternating rounds. The whole step includes forward pass, backward
pass and optimizer of this small encoder.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from torch import nn
from transformers import Trainer, TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.models.step_methods import StepMethods
from simcse_hf.training.base import ContrastiveTrainer

from .harness import Report, machine, markdown
from .synthetic import TINY, training_rows, write_encoder

BATCH = 64
PARTS = ("train", "zero_grad", "floating_point_ops", "next batch", "whole step")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=60, help="training steps of a round")
    parser.add_argument("--rounds", type=int, default=3)


class StepTimes(TrainerCallback):
    """Measure the CPU time of the training thread from step to step."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.marks.append(time.thread_time())

    def seconds(self) -> list[float]:
        """Return the seconds of each step but the first, which allocates."""
        marks = self.marks[1:]
        return [b - a for a, b in zip(marks, marks[1:], strict=False)]


@contextmanager
def stock_methods() -> Iterator[None]:
    """Give models and trainers the methods of torch and transformers."""
    with (
        mock.patch.object(StepMethods, "train", nn.Module.train),
        mock.patch.object(StepMethods, "zero_grad", nn.Module.zero_grad),
        mock.patch.object(ContrastiveTrainer, "floating_point_ops", Trainer.floating_point_ops),
    ):
        yield


def make_trainer(encoder: Path, steps: int, workers: int) -> SimCSETrainer:
    args = SimCSETrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        dataloader_num_workers=workers,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = training_rows("paper", BATCH * steps, TINY["vocab_size"] - 5)
    return SimCSETrainer(AutoModelForCL.from_pretrained(encoder), args, rows)


def median_milliseconds(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return 1000 * statistics.median(times)


def measure(encoder: Path, steps: int, workers: int) -> dict[str, float]:
    """Train for some steps, and time the parts of a step on their own afterwards."""
    trainer = make_trainer(encoder, steps, workers)
    times = StepTimes()
    trainer.add_callback(times)
    trainer.train()
    model, batches = trainer.model, iter(trainer.get_train_dataloader())
    batch = next(batches)
    for parameter in model.parameters():
        parameter.grad = None
    model.train()
    parts = {
        "train": median_milliseconds(model.train, steps),
        "zero_grad": median_milliseconds(model.zero_grad, steps),
        "floating_point_ops": median_milliseconds(lambda: trainer.floating_point_ops(batch), steps),
        "next batch": median_milliseconds(lambda: next(batches), steps - 2),
        "whole step": 1000 * statistics.median(times.seconds()),
    }
    return parts


def run(options: argparse.Namespace, report: Report) -> None:
    found: dict[str, list[dict[str, float]]] = {"stock": [], "ours": []}
    with tempfile.TemporaryDirectory() as directory:
        shape = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8, "num_hidden_layers": 12}
        with mock.patch.dict(TINY, shape):
            encoder = write_encoder(Path(directory, "bert"), "bert-base", tiny=True)
        for _ in range(options.rounds):
            with stock_methods():
                found["stock"].append(measure(encoder, options.steps, workers=0))
            found["ours"].append(measure(encoder, options.steps, workers=2))
    medians = {
        kind: {part: round(statistics.median(one[part] for one in rounds), 3) for part in PARTS}
        for kind, rounds in found.items()
    }
    report.save(machine=machine(), batch=BATCH, unit="ms of the training thread", **medians)


def table(results: dict) -> str:
    rows = [[part, results["stock"][part], results["ours"][part]] for part in PARTS]
    return markdown(["ms of CPU time", "stock", "ours"], rows)
