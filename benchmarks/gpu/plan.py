"""What no GPU has measured yet, in one run of nine minutes: `python -m benchmarks gpu --plan`.

| part | seconds | asks |
|---|---|---|
| machine | 15 | what products, copies and the start of a kernel take |
| attention | 60 | how fast and how right each kernel is, and which one the package chooses |
| loss | 40 | whether a step as a graph has the loss and the gradient of the padded step in float32 |
| bits | 70 | whether runs with graphs are equal in all bits: two alike, without graphs, killed and resumed |
| trainer | 190 | the Trainer with graphs, by default, with padding and compiled |
| steps | 120 | the same steps without a Trainer, and where the GPU spends its time |
| encoding | 40 | a file to vectors, and where the host spends its time |

What there was no time for is named in `left_out`; a second call with `--parts` and the same `--output` adds it.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..harness import Report, machine, markdown, shown
from ..synthetic import encoder_config, training_rows, write_encoder
from . import attention, steps
from .bits import STEPS, compare_runs
from .encoding import profile_encoding
from .training import CONTESTANTS, WARM_UP, Work, clean_up, measure_contestant

PARTS = ("machine", "attention", "loss", "bits", "trainer", "steps", "encoding")
KERNELS = ("flash", "memory-efficient", "padded", "tile")
LAST = 30  # seconds before the end after which nothing begins

Measurement = tuple[str, str, Callable[[], dict[str, Any]]]


def run_plan(options: argparse.Namespace, report: Report) -> None:
    """Take the measurements one by one, and write each of them at once."""
    deadline = time.monotonic() + 60 * options.minutes - LAST
    report.save(machine=machine(), tiny=options.tiny, plan=report.results.get("plan", []), left_out=[])
    with TemporaryDirectory() as directory:
        for part, name, measure in measurements(options, Path(directory)):
            if part not in options.parts:
                continue
            row = {"part": part, "measurement": name}
            if time.monotonic() > deadline:
                report.save(left_out=[*report.results["left_out"], row])
                continue
            start = time.monotonic()
            try:
                with attention.forced(options.kernel):
                    row |= {"found": measure()}
            except Exception as error:  # the rest must still run
                row |= {"failed": repr(error)[:600]}
            row["seconds"] = round(time.monotonic() - start, 1)
            torch._dynamo.reset()
            clean_up()
            kept = [x for x in report.results["plan"] if (x["part"], x["measurement"]) != (part, name)]
            report.save(plan=[*kept, row])
            print(row, flush=True)


def measurements(options: argparse.Namespace, folder: Path) -> Iterator[Measurement]:
    """List all measurements in their order."""
    device, tiny = options.device, options.tiny
    small, large = (8, 8) if tiny else (64, 512)
    kernels = KERNELS if device == "cuda" else ("padded",)
    words = encoder_config("bert-base", tiny).vocab_size - 5
    model = write_encoder(folder / "bert-base", "bert-base", tiny)

    yield "machine", "products, copies, kernels", attention.measure_machine

    yield "attention", "choice", partial(attention.choices, device)
    for kernel in kernels:
        for rows in dict.fromkeys((small, large)):
            yield "attention", f"{kernel}, {rows} rows", partial(attention.measure_attention, kernel, device, rows)
        yield "attention", f"{kernel}, dropout", partial(attention.measure_dropout, kernel, device)
        if kernel != "tile":
            first = partial(attention.measure_attention, kernel, device, small, first_only=True)
            yield "attention", f"{kernel}, first tokens", first
        if kernel in ("memory-efficient", "padded"):
            single = partial(attention.measure_attention, kernel, device, large, torch.float32)
            yield "attention", f"{kernel}, float32", single

    for name, pooler, compiles in (
        ("graph", "cls_before_pooler", False),
        ("graph, with the head", "cls", False),
        ("graph, layers compiled", "cls_before_pooler", True),
    ):
        yield "loss", name, partial(steps.compare_with_padding, device, tiny, pooler, compiles)

    rows = training_rows("paper", small * STEPS, words)
    yield "bits", "replays of one batch", partial(steps.replay_one_batch, device, tiny)
    yield "bits", "runs", partial(compare_runs, model, rows, small, bf16=not tiny)

    for corpus, batch in (("paper", 8),) if tiny else (("paper", 64), ("paper", 512), ("nli", 512), ("paper", 128)):
        for contestant in ("plain", "graphs", "padded", "compiled"):
            if contestant == "compiled" and batch != small:
                continue  # Compiling takes 40 seconds.
            yield (
                "trainer",
                f"{corpus}, {batch} rows, {contestant}",
                partial(_train, contestant, corpus, batch, model, tiny),
            )
    for kernel in kernels:
        train = partial(_train, "graphs", "paper", large, model, tiny, kernel)
        yield "trainer", f"paper, {large} rows, graphs, {kernel}", train

    for rows in dict.fromkeys((small, large)):
        for name, captures, compiles in (
            ("graph", True, False),
            ("graph, layers compiled", True, True),
            ("no graph", False, False),
        ):
            time_steps = partial(steps.time_steps, device, tiny, "paper", rows, captures, compiles)
            yield "steps", f"paper, {rows} rows, {name}", time_steps

    yield "encoding", "BERT-base", partial(profile_encoding, model, device, 200 if tiny else 200_000, words)


def _train(
    contestant: str, corpus: str, batch: int, model: Path, tiny: bool, kernel: str | None = None
) -> dict[str, Any]:
    """Measure a Trainer as `python -m benchmarks gpu` does."""
    timed = 4 if tiny else 40
    work = Work("bert-base", corpus, batch, 1_000_000, 1)
    rows = training_rows(corpus, batch * (WARM_UP + timed + 5), encoder_config("bert-base", tiny).vocab_size - 5)
    with attention.forced(kernel):
        return measure_contestant(CONTESTANTS[contestant], work, model, rows, batch, timed, tiny)


def table_of_plan(results: dict[str, Any]) -> str:
    """Show what was found, a line for each number, and what was left out."""
    rows = []
    for row in results["plan"]:
        found = row.get("found", {"failed": row.get("failed")})
        for name, value in found.items():
            rows.append([row["part"], row["measurement"], name, shown(value)])
    for row in results["left_out"]:
        rows.append([row["part"], row["measurement"], "left out", "no time"])
    return markdown(["part", "measurement", "of", "is"], rows)
