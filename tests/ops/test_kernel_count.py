"""A training step without padding launches no more kernels than one with padding: a GPU waits for launches."""

import argparse

import pytest
import torch
from conftest import tiny_config
from torch import nn

from benchmarks import compiled_kernels
from benchmarks.compiled_kernels import launches
from benchmarks.gpu_kernels import CudaAutocast, KernelCount, batch_lengths, count_step
from simcse_hf import AutoModelForCL
from simcse_hf.ops import packing

LAYERS = 3


@pytest.fixture(params=["cls", "cls_before_pooler", "avg"])
def model(request):
    with torch.device("meta"):
        config = tiny_config(hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=8)
        return AutoModelForCL.from_config(config, pooler_type=request.param).train()


def test_a_step_at_batch_64_launches_at_most_the_kernels_of_a_padded_step(model):
    counts = {}
    for model.unpadded in (True, False):
        counts[model.unpadded] = count_step(model, batch_lengths(64))
    assert counts[True].total <= counts[False].total
    assert counts[True].by_name["_flash_attention_forward"] == LAYERS
    assert counts[False].by_name["_scaled_dot_product_flash_attention"] == LAYERS


def test_without_flash_attention_nothing_is_sorted_and_only_the_result_filled_with_zeros_in_a_layer(model):
    flash, sdpa = (count_step(model, batch_lengths(64), flash).by_name for flash in (True, False))
    assert not {"index_put", "_index_put_impl_", "sort", "argsort"} & sdpa.keys()
    assert sdpa["new_zeros"] - flash["new_zeros"] <= LAYERS + 2
    assert sdpa["index_select"] - flash["index_select"] <= 7 * LAYERS


def test_the_packing_of_a_batch_is_one_copy():
    lengths = batch_lengths(64)
    mask = torch.empty(64 * 2, 32, device="meta")
    with KernelCount() as count:
        packing.Packing.from_mask(mask, lengths=lengths.reshape(-1))
    assert count.by_name == {"_to_copy": 1}


def test_casts_are_those_of_autocast_on_a_gpu():
    with torch.device("meta"):
        layer, norm, x = nn.Linear(8, 8), nn.LayerNorm(8), torch.empty(4, 8)
    with KernelCount() as count, CudaAutocast():
        first, second = layer(x), layer(x)
        assert first.dtype == second.dtype == torch.bfloat16
        assert norm(first).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    # The weight and the bias once, x twice, and the input of the norm.
    assert count.by_name == {"_to_copy": 5, "addmm": 3, "native_layer_norm": 1}


def test_views_and_unfilled_memory_are_no_kernels():
    x = torch.empty(4, 8, device="meta")
    with KernelCount() as count:
        x.new_empty(3).unsqueeze(0), x.T.reshape(2, 16)[0].detach()
        torch.arange(3) + 1  # on the host
    assert count.by_name == {"clone": 1}  # the transposed matrix is not contiguous


def test_a_list_of_tensors_fills_kernels_by_tensors_and_by_blocks():
    assert launches([torch.empty(1, device="meta")] * 110, lists=1) == 1
    assert launches([torch.empty(1, device="meta")] * 111, lists=1) == 2
    assert launches([torch.empty(1, device="meta")] * 37, lists=4) == 2
    assert launches([torch.empty(320 * 65_536, device="meta")], lists=1) == 1
    assert launches([torch.empty(320 * 65_536 + 1, device="meta")], lists=1) == 2
    assert launches([], lists=1) == 0


@pytest.mark.slow
def test_a_compiled_step_of_bert_base_needs_at_most_450_kernels():
    """Forward and backward pass, loss, clipping and optimizer; no kernel casts a single weight or gradient."""
    results = {}

    class Results:
        save = staticmethod(results.update)

    compiled_kernels.run(argparse.Namespace(layers=[2, 3]), Results)
    step = results["weights copied at once"]
    assert step["together"] <= 450
    assert "casts" not in step["12 layers"]
    assert results["weights cast by autocast"]["12 layers"]["casts"] > 200
