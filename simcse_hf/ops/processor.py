"""Which bfloat16 instructions this processor has, and so whether bfloat16 is fast or slow on it."""

from typing import Any

import torch


def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 matrices in hardware, much faster than float32 ones."""
    return bool(_capabilities().get("amx_bf16"))


def lacks_bfloat16() -> bool:
    """Return whether this x86 processor lacks bfloat16 instructions, which makes bfloat16 slower than float32."""
    capabilities = _capabilities()
    instructions = ("amx_bf16", "avx512_bf16", "avx10_2")
    return capabilities.get("architecture") == "x86_64" and not any(map(capabilities.get, instructions))


def _capabilities() -> dict[str, Any]:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities
