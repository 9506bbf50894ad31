"""What each objective costs beside the encoder: its forward and backward pass, as a share of a training step.

    python benchmarks/objective_cost.py --output benchmarks/results/objective_cost.json

The step is that of a randomly initialised BERT-base (768 dimensions) on sentences of the lengths of Wikipedia, cut at
32 tokens, with AdamW: measured at batch 64, and 8 times that at 512 (the cost of a step is linear in its rows). The
objective reads random vectors; passes of its own through an encoder (ESimCSE, PromptBERT, DiffCSE) and the projector
of Barlow Twins and VICReg are not counted.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from common import write_results
from transformers import BertConfig

from simcse_hf import BertForCL
from simcse_hf.objectives import OBJECTIVES, EncodedBatch, make_objective
from simcse_hf.objectives.simcse import ContrastiveInputs, SimCSEObjective

DIM, LENGTH, MEAN_LENGTH = 768, 32, 25
BATCHES = (64, 512)
SETTINGS = {"template_edges": [[6, 4], [6, 4]]}  # tokens before and after a text, for PromptBERT
WITH_PROJECTOR = ("barlow_twins", "vicreg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    step = time_step(BATCHES[0], arguments.repeats)
    report = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "step_seconds_at_batch_64": round(step, 3),
        "objectives": {},
    }
    for name in OBJECTIVES:
        found = {}
        for batch in BATCHES:
            seconds = time_objective(name, batch, arguments.repeats)
            share = seconds / (step * batch / BATCHES[0])
            found[f"batch_{batch}"] = {"milliseconds": round(1000 * seconds, 2), "share_of_step": round(share, 5)}
        report["objectives"][name] = found
        print(name, found, flush=True)
    write_results(arguments.output, report)


def time_step(batch: int, repeats: int) -> float:
    model = BertForCL(BertConfig()).train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), fused=True)
    lengths = (MEAN_LENGTH + 6 * torch.randn(batch, 2)).round().clamp(4, LENGTH)
    mask = (torch.arange(LENGTH) < lengths[..., None]).long()
    ids = torch.randint(1000, 30_000, mask.shape) * mask
    times = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        model(ids, mask).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def time_objective(name: str, batch: int, repeats: int) -> float:
    """Seconds of a forward and backward pass, the median."""
    objective = make_objective(name, DIM, SETTINGS, {"projector_dim": DIM} if name in WITH_PROJECTOR else {})
    if name in WITH_PROJECTOR:
        objective.projector = torch.nn.Identity()
    columns = 1 if name == "is_bert" else 3 if OBJECTIVES[name].rows != "texts" else 2
    vectors = torch.randn(batch, columns, DIM, requires_grad=True)
    inputs = {"attention_mask": torch.ones(batch, columns, MEAN_LENGTH, dtype=torch.long)}
    if OBJECTIVES[name].rows == "nli":
        inputs["relations"] = torch.tensor([[0, 2]]).repeat(batch, 1)
        inputs["text_ids"] = torch.arange(batch * columns).view(batch, columns)
    states = None
    if objective.needs_hidden_states:
        states = torch.randn(batch, columns, MEAN_LENGTH, DIM, requires_grad=True)
    queue = torch.randn(5 * batch // 2, DIM) if name == "esimcse" else None
    times = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        if isinstance(objective, SimCSEObjective):
            loss = objective.loss_at(ContrastiveInputs(vectors, queue), DIM)
        else:
            loss = objective(EncodedBatch(vectors, inputs, hidden_states=states))
        loss = sum(loss.values()) if isinstance(loss, dict) else loss
        loss.backward()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
