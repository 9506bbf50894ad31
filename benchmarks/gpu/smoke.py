"""The smoke test of the GPU benchmark: is what follows worth measuring?"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from simcse_hf import BertForCL
from simcse_hf.data.buckets import BucketPlan, PackedCollator
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.models.packed import PackedStep
from simcse_hf.ops.static_packing import StaticPacking, attend_static

from ..synthetic import encoder_config

HEADS, SIZE = 4, 64
LENGTHS = (5, 32, 1, 17)
RATE = 0.1


def smoke_test(device: str) -> dict[str, Any]:
    """Run each check; a check that fails is recorded with its error."""
    checks: dict[str, Callable[[], Any]] = {
        "device": lambda: torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cuDNN": lambda: torch.backends.cudnn.version(),
        "attention of packed sentences, largest error against float32": lambda: attention_error(device),
        "its gradients, largest error against float32": lambda: attention_error(device, gradients=True),
        f"dropout rate of that attention, asked {RATE}": lambda: realised_rate(device),
        f"dropout rate of SDPA, asked {RATE}": lambda: realised_rate(device, sdpa=True),
        "synchronisations of a step without padding": lambda: synchronisations(device, packed=False),
        "synchronisations of a packed step": lambda: synchronisations(device, packed=True),
    }
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception as error:  # the rest must still run
            found[name] = f"failed: {error!r}"[:300]
    return found


def attention_error(device: str, gradients: bool = False) -> float:
    """Compare bf16 attention on the device with float32 on the CPU: all tokens, and first tokens only.

    The row ends with two fillers, of three tokens and of none.
    """
    total = sum(LENGTHS) + 3
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(total, HEADS, SIZE, generator=generator) for _ in range(3)]
    cu = torch.tensor([0, *LENGTHS, 3, 0], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    real, worst = sum(LENGTHS), 0.0
    for first_only in (False, True):
        results = []
        for place, dtype in (("cpu", torch.float32), (device, torch.bfloat16)):
            leaves = [x.detach().to(place, dtype).requires_grad_() for x in inputs]
            packing = StaticPacking(cu.to(place), len(LENGTHS), max(LENGTHS), first_only)
            query = leaves[0].index_select(0, packing.starts) if first_only else leaves[0]
            out = attend_static(query, *leaves[1:], packing, SIZE**-0.5)
            out = out if first_only else out[:real]
            if gradients:
                out.float().square().sum().backward()
            wanted = [leaf.grad[:real] for leaf in leaves] if gradients else [out.detach()]
            results.append([x.float().cpu() for x in wanted])
        pairs = zip(*results, strict=True)
        worst = max(worst, *((x - y).abs().max().item() / x.abs().max().item() for x, y in pairs))
    return worst


def realised_rate(device: str, sdpa: bool = False) -> float:
    """Measure the share of attention weights that dropout removes: with V = identity, the output is the weights."""
    sentences, heads = 64, 8
    value = torch.eye(SIZE, device=device, dtype=torch.bfloat16).repeat(sentences, 1)[:, None].expand(-1, heads, -1)
    query = torch.zeros_like(value)  # equal scores: every weight is 1 / SIZE before dropout
    if sdpa:
        parts = (x.unflatten(0, (sentences, SIZE)).transpose(1, 2) for x in (query, query, value))
        out = F.scaled_dot_product_attention(*parts, dropout_p=RATE)
    else:
        cu = torch.arange(0, sentences * SIZE + 1, SIZE, dtype=torch.int32, device=device)
        packing = StaticPacking(cu, sentences, SIZE, first_only=False)
        out = attend_static(query.contiguous(), query.contiguous(), value.contiguous(), packing, 1.0, RATE)
    return (out == 0).float().mean().item()


def synchronisations(device: str, packed: bool) -> str:
    """Count the warnings of torch's synchronisation debug mode in a step of a small model, not compiled."""
    if device == "cpu":
        return "none on a CPU"
    torch.manual_seed(0)
    config = encoder_config("bert-base", tiny=True)
    model = BertForCL(config, pooler_type="cls", temperature=0.05).to(device).train()
    model.prepare_objective()
    model.packed_step = PackedStep(model, disable=True)
    collator = ContrastiveCollator(_Tokenizer(), add_lengths=True)
    collate = PackedCollator(collator, BucketPlan((512,), 8, 2, 32)) if packed else collator
    rows = [{"input_ids": [[0, *range(5, 9 + i), 2]]} for i in range(8)]
    batch = _to(collate(rows), device)
    for mode in ("default", "warn"):  # the first step allocates
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            with warnings.catch_warnings(record=True) as caught, torch.autocast(device, torch.bfloat16):
                warnings.simplefilter("always")
                model(**batch).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = sorted({f"{warning.filename.rpartition('/')[2]}:{warning.lineno}" for warning in caught})
    return f"{len(caught)} {' '.join(places)}".strip()


class _Tokenizer:
    pad_token_id = 1


def _to(batch: Any, device: str) -> Any:
    if isinstance(batch, dict):
        return {name: _to(value, device) for name, value in batch.items()}
    return batch.to(device) if hasattr(batch, "to") else batch
