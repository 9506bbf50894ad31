"""What each objective costs beside the encoder: its forward and backward pass as a share of a training step.

    python -m benchmarks objective_cost --output benchmarks/results/objective_cost.json

The step is that of a randomly initialised BERT-base on sentences as long as those of Wikipedia, truncated to 32
tokens, with AdamW. It is measured at batch size 64; the step at 512 is taken as 8 times as long, because the cost is
linear in the rows. The objective reads random embeddings. Encoder passes of its own (ESimCSE, PromptBERT, DiffCSE) and
the projector of Barlow Twins and VICReg are not counted, and TSDAE, which is a decoder pass, is left out.
"""

import argparse
import statistics

import torch
from transformers import BertConfig

from simcse_hf import BertForCL
from simcse_hf.objectives import OBJECTIVES, EncodedBatch, build_objective
from simcse_hf.objectives.info_nce import Prepared, SimCSEObjective

from .harness import Report, machine, markdown, seconds_of

DIM, LENGTH, MEAN_LENGTH = 768, 32, 25
BATCHES = (64, 512)
WITH_PROJECTOR = ("barlow_twins", "vicreg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5)


def run(options: argparse.Namespace, report: Report) -> None:
    torch.manual_seed(0)
    step = time_step(BATCHES[0], options.repeats)
    report.save(machine=machine(), step_seconds_at_batch_64=round(step, 3), objectives={})
    for name in (name for name in OBJECTIVES if not OBJECTIVES[name].reconstructs):
        costs = {}
        for batch in BATCHES:
            seconds = time_objective(name, batch, options.repeats)
            share = seconds / (step * batch / BATCHES[0])
            costs[f"batch_{batch}"] = {"milliseconds": round(1000 * seconds, 2), "share_of_step": round(share, 5)}
        report.results["objectives"][name] = costs
        print(name, costs, flush=True)


def time_step(batch: int, repeats: int) -> float:
    model = BertForCL(BertConfig()).train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), fused=True)
    lengths = (MEAN_LENGTH + 6 * torch.randn(batch, 2)).round().clamp(4, LENGTH)
    mask = (torch.arange(LENGTH) < lengths[..., None]).long()
    ids = torch.randint(1000, 30_000, mask.shape) * mask

    def step() -> None:
        model(ids, mask).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return statistics.median([seconds_of(step) for _ in range(repeats + 1)][1:])


def time_objective(name: str, batch: int, repeats: int) -> float:
    """Measure a forward and backward pass (median)."""
    objective = build_objective(name, DIM, {"projector_dim": DIM} if name in WITH_PROJECTOR else {})
    if name in WITH_PROJECTOR:
        objective.project = lambda batch: batch.embeddings.unbind(1)
    columns = 1 if name == "is_bert" else 3 if OBJECTIVES[name].rows in ("nli", "spans") else 2
    embeddings = torch.randn(batch, columns, DIM, requires_grad=True)
    inputs = {"attention_mask": torch.ones(batch, columns, MEAN_LENGTH, dtype=torch.long)}
    if OBJECTIVES[name].rows == "nli":
        inputs["relations"] = torch.tensor([[0, 2]]).repeat(batch, 1)
    inputs["text_ids"] = torch.arange(batch * columns).view(batch, columns)
    inputs["scores"] = torch.arange(batch) % 6 / 1.2
    states = None
    if objective.needs_hidden_states:
        states = torch.randn(batch, columns, MEAN_LENGTH, DIM, requires_grad=True)
    queue = torch.randn(5 * batch // 2, DIM) if name == "esimcse" else None

    if isinstance(objective, SimCSEObjective):  # without passes of its own
        objective.prepare = lambda batch: Prepared(batch.embeddings, queue)

    def step() -> None:
        loss = objective(EncodedBatch(embeddings, inputs, hidden_states=states))
        (sum(loss.values()) if isinstance(loss, dict) else loss).backward()

    return statistics.median([seconds_of(step) for _ in range(repeats + 1)][1:])


def table(results: dict) -> str:
    rows = [
        [name, *(f"{costs[f'batch_{batch}']['share_of_step']:.2%}" for batch in BATCHES)]
        for name, costs in results["objectives"].items()
    ]
    return markdown(["objective", *(f"share of a step, batch {batch}" for batch in BATCHES)], rows)
