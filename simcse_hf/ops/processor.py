"""What this processor computes quickly: products of bfloat16 matrices or not."""

from typing import Any

import torch


def multiplies_bfloat16() -> bool:
    """Say whether this processor has units for products of bfloat16 matrices, which are then much faster."""
    return bool(_capabilities().get("amx_bf16"))


def lacks_bfloat16() -> bool:
    """Say whether this is an x86 processor without bfloat16 instructions, where float32 is several times as fast."""
    capabilities = _capabilities()
    instructions = ("amx_bf16", "avx512_bf16", "avx10_2")
    return capabilities.get("architecture") == "x86_64" and not any(map(capabilities.get, instructions))


def _capabilities() -> dict[str, Any]:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities
