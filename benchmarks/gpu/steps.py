"""Training steps without a Trainer: their loss and gradient, their time, and where the GPU spends it."""

import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from torch.profiler import ProfilerActivity, profile

from simcse_hf import BertForCL
from simcse_hf.data.collator import Batch, ContrastiveCollator, PackingCollator

from ..synthetic import IDS, encoder_config
from .attention import LENGTH, draw_lengths, seconds_on_gpu
from .graphs import WARM_UP, StepGraphs, form_of
from .profiling import PROFILED, device_events, synchronize

BATCHES, ROWS = 5, 8  # that are compared


class _Tokenizer:
    pad_token_id = IDS["pad_token_id"]


def make_model(device: str, tiny: bool, pooler: str = "cls_before_pooler", dropout: float | None = None) -> BertForCL:
    """Make BERT-base with random weights, which are the same on every device."""
    config = encoder_config("bert-base", tiny)
    if dropout is not None:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    torch.manual_seed(0)
    model = BertForCL(config, pooler_type=pooler, temperature=0.05).to(device).train()
    model.prepare_objective()
    return model


def make_graphs(
    model: BertForCL, device: str, captures: bool = True, compiles: bool = False, tiny: bool = False, **adamw: Any
) -> StepGraphs:
    """Make the steps of the package, in bf16 as the Trainer computes them, with graphs or without."""
    if compiles:
        for layer in model.base_model.encoder.layer:
            layer.compile(dynamic=True, fullgraph=True, backend="eager" if tiny else "inductor")
    if not tiny:
        model.forward = torch.autocast(device, torch.bfloat16)(model.forward)  # type: ignore[method-assign]
    steps = StepGraphs(model, torch.optim.AdamW(model.parameters(), fused=True, **adamw), max_norm=1.0)
    steps.can_capture = steps.can_capture and captures
    return steps


def make_rows(corpus: str, rows: int, seed: int, vocabulary: int) -> list[dict[str, Any]]:
    """Draw rows of random token ids; the texts of a row differ."""
    draw = random.Random(seed)
    found = []
    for lengths in draw_lengths(corpus, rows, seed).tolist():
        found.append({"input_ids": [[draw.randrange(5, vocabulary) for _ in range(n)] for n in lengths]})
    return found


def pack(rows: list[dict[str, Any]]) -> Batch:
    """Collate rows as the Trainer does for graphs."""
    collator = PackingCollator(ContrastiveCollator(_Tokenizer()), _Tokenizer.pad_token_id, in_order=True)
    collator.use_few_shapes(len(rows) * len(rows[0]["input_ids"]), LENGTH)
    return collator(rows)


def compare_with_padding(device: str, tiny: bool, pooler: str, compiles: bool) -> dict[str, Any]:
    """Compare loss and gradient of steps in bf16 with those of the padded model in float32 on the CPU, no dropout.

    With a rate of 0 the weights stay, and with a first beta of 0 the first moment of AdamW is the gradient, which is
    clipped to norm 1.
    """
    model = make_model(device, tiny, pooler, dropout=0.0)
    reference = make_model("cpu", tiny, pooler, dropout=0.0)
    reference.unpadded = False
    adamw = {"lr": 0.0, "betas": (0.0, 0.999), "weight_decay": 0.0}
    steps = make_graphs(model, device, compiles=compiles, tiny=tiny, **adamw)
    found: dict[str, Any] = {
        "relative errors of the loss": [],
        "cosines of the gradient": [],
        "ratios of its norm": [],
    }
    for seed in range(WARM_UP + BATCHES):
        batch = make_rows("paper", ROWS, seed, model.config.vocab_size)
        output, norm = steps.step(send_to_device(pack(batch), torch.device(device)))
        if seed < WARM_UP and steps.can_capture:
            continue
        reference.zero_grad()
        expected = reference(**ContrastiveCollator(_Tokenizer())(batch)).loss
        expected.backward()
        pairs = []
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            if other.grad is not None:
                moment = steps.optimizer.state[parameter]["exp_avg"]
                pairs.append((moment.double().cpu().flatten(), other.grad.double().flatten()))
        gradient, whole = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        found["relative errors of the loss"].append(abs(output.loss.item() / expected.item() - 1))
        found["cosines of the gradient"].append(F.cosine_similarity(gradient, whole, dim=0).item())
        found["ratios of its norm"].append(norm.item() / whole.norm().item())
    return found | {"graphs": len(steps.captured)}


def replay_one_batch(device: str, tiny: bool) -> dict[str, Any]:
    """Take steps of one batch with a learning rate of 0: only dropout can change the loss."""
    model = make_model(device, tiny)
    steps = make_graphs(model, device, tiny=tiny, lr=0.0)
    batch = send_to_device(pack(make_rows("paper", ROWS, 0, model.config.vocab_size)), torch.device(device))
    losses = [steps.step(batch)[0].loss.item() for _ in range(WARM_UP + 6)]
    return {"all losses differ": len(set(losses)) == len(losses), "losses": losses, "graphs": len(steps.captured)}


def time_steps(
    device: str, tiny: bool, corpus: str, rows: int, captures: bool, compiles: bool = False
) -> dict[str, Any]:
    """Time steps, the host's part of them, and the graphs alone; and profile three of them."""
    on_gpu = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    model = make_model(device, tiny)
    steps = make_graphs(model, device, captures, compiles, tiny)
    number = 6 if tiny else 60
    batches = []
    for seed in range(number):
        batch = pack(make_rows(corpus, rows, seed, model.config.vocab_size))
        if on_gpu:
            pinned = {name: batch[name].pin_memory() for name in ("input_ids", "attention_mask")}
            batch = batch | pinned
        batches.append(batch)

    def take(batch: Batch) -> None:
        steps.step(send_to_device(batch, torch.device(device), non_blocking=True))

    by_form = {form_of(batch): batch for batch in batches}
    start = time.perf_counter()
    for batch in [*batches[: WARM_UP + 1], *by_form.values()]:
        take(batch)
    synchronize()
    warm_up = time.perf_counter() - start
    start = time.perf_counter()
    for batch in batches:
        take(batch)
    host = time.perf_counter() - start
    synchronize()
    seconds = time.perf_counter() - start
    found = {
        "sentences_per_second": rows * len(make_rows(corpus, 1, 0, 99)[0]["input_ids"]) * number / seconds,
        "ms a step": 1000 * seconds / number,
        "host's ms a step": 1000 * host / number,
        "warm-up, seconds": warm_up,
        "shapes": len(by_form),
        "graphs": len(steps.captured),
    }
    if on_gpu:
        found["peak MiB"] = (torch.cuda.max_memory_reserved() - before) // 2**20
        found["ms of a graph"] = [1000 * seconds_on_gpu(step.graph.replay) for step in steps.captured.values()]
        found |= _kernels(lambda: take(batches[0]))
    return found


def _kernels(step: Callable[[], None]) -> dict[str, Any]:
    """Profile some steps: their kernels, and those that take the most time."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for start, stop, name in device_events(profiler):
        times.setdefault(name[:90], []).append((stop - start) / 1e6 / PROFILED)
    largest = sorted(times.items(), key=lambda item: -sum(item[1]))[:25]
    return {
        "kernels a step": sum(len(values) for values in times.values()) / PROFILED,
        "ms in kernels a step": sum(sum(values) for values in times.values()),
        "largest: times and ms a step": [[n, len(x) / PROFILED, round(sum(x), 3)] for n, x in largest],
    }
