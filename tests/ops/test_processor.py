"""The processor's bfloat16 instructions decide which precision is the faster one on a CPU."""

import pytest
import torch

from simcse_hf.ops.processor import lacks_bfloat16, multiplies_bfloat16

X86 = {"architecture": "x86_64", "amx_bf16": False, "avx512_bf16": False}


@pytest.mark.parametrize(
    "capabilities, multiplies, lacks",
    [
        (X86, False, True),
        (X86 | {"avx512_bf16": True}, False, False),
        (X86 | {"avx512_bf16": True, "amx_bf16": True}, True, False),
        ({"architecture": "aarch64"}, False, False),
        ({}, False, False),
    ],
)
def test_the_instructions_of_a_processor_are_recognised(monkeypatch, capabilities, multiplies, lacks):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert multiplies_bfloat16() is multiplies and lacks_bfloat16() is lacks
