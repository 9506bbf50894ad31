"""The smoke test of the GPU benchmark: is what follows worth measuring?"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from simcse_hf import BertForCL
from simcse_hf.data.collator import ContrastiveCollator, PackingCollator
from simcse_hf.kernels.packing import Packing
from simcse_hf.kernels.unpadded import attend

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
        "synchronisations of a step without padding": lambda: synchronisations(device),
    }
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception as error:  # the rest must still run
            found[name] = f"failed: {error!r}"[:300]
    return found


def attention_error(device: str, gradients: bool = False) -> float:
    """Compare bf16 attention on the device with float32 on the CPU: all tokens, and first tokens only."""
    lengths = sorted(LENGTHS, reverse=True)  # the order in which a CPU packs
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(sum(lengths), HEADS, SIZE, generator=generator) for _ in range(3)]
    worst = 0.0
    for first_only in (False, True):
        results = []
        for place, dtype in (("cpu", torch.float32), (device, torch.bfloat16)):
            leaves = [x.detach().to(place, dtype).requires_grad_() for x in inputs]
            packing = _packing(lengths, place)
            query = leaves[0].index_select(0, packing.bounds[:-1]) if first_only else leaves[0]
            out = _attend(query, *leaves[1:], packing, scaling=SIZE**-0.5)
            if gradients:
                out.float().square().sum().backward()
            results.append(
                [x.float().cpu() for x in ([leaf.grad for leaf in leaves] if gradients else [out.detach()])]
            )
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
        packing = _packing([SIZE] * sentences, device)
        out = _attend(*(x.contiguous() for x in (query, query, value)), packing, scaling=1.0, dropout=RATE)
    return (out == 0).float().mean().item()


def _attend(query: Tensor, key: Tensor, value: Tensor, packing: Packing, **options: float) -> Tensor:
    heads_first = (x.transpose(0, 1)[None] for x in (query, key, value))
    out, _ = attend(None, *heads_first, None, packing, **options)
    return out[0]


def _packing(lengths: Sequence[int], device: str) -> Packing:
    return Packing.from_lengths(np.array(lengths), in_order=device != "cpu").to(torch.device(device))


def synchronisations(device: str) -> str:
    """Count the warnings of torch's synchronisation debug mode in a step of a small model, not compiled."""
    if device == "cpu":
        return "none on a CPU"
    torch.manual_seed(0)
    config = encoder_config("bert-base", tiny=True)
    model = BertForCL(config, pooler_type="cls", temperature=0.05).to(device).train()
    model.prepare_objective()
    collator = PackingCollator(ContrastiveCollator(_Tokenizer()), _Tokenizer.pad_token_id, in_order=True)
    rows = [{"input_ids": [[0, *range(5, 9 + i), 2]]} for i in range(8)]
    batch = collator(rows).to(torch.device(device))
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
