"""Kernels of a compiled step over packed buckets, counted without a GPU.

    python -m benchmarks compiled_kernels --output benchmarks/results/compiled_kernels.json

torch's compiler decides on a CPU, for a small encoder, which operations of the forward and backward pass it fuses;
nothing is compiled to machine code. Every node that its scheduler keeps counts as one kernel: a fused group, a matrix
product, or attention, which is one in each direction. Autocast is the CPU's to bfloat16, which casts the same weights
as CUDA's; `casts` are the nodes that do nothing else. The compiler may fuse a few operations differently for a GPU.
Each layer adds the same number of kernels, so that of BERT-base's 12 layers follows from encoders of 2 and 3 layers.
Clipping and the optimizer are not counted.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._inductor import scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.ir import FallbackKernel, MultiOutput
from transformers import BertConfig

from simcse_hf import BertForCL
from simcse_hf.data.buckets import BucketPlan, PackedCollator
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.models.packed import PackedStep
from simcse_hf.ops import static_packing

from .harness import Report, markdown

LAYERS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, nargs=2, default=[2, 3], help="sizes of the two encoders, one apart")


@torch.library.custom_op("benchmarks::attention", mutates_args=())
def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Stand for the flash kernel: one node with its shapes."""
    return torch.zeros_like(query)


@torch.library.custom_op("benchmarks::attention_backward", mutates_args=())
def attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stand for the backward pass of the flash kernel."""
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


attention.register_fake(lambda query, key, value: torch.empty_like(query))
attention_backward.register_fake(lambda gradient, *inputs: tuple(map(torch.empty_like, inputs)))
attention.register_autograd(
    lambda ctx, gradient: attention_backward(gradient, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def _kind(node: Any) -> str | None:
    """Name the kernel of a node of the compiler; `None` if it launches none."""
    if isinstance(node, scheduler.NopKernelSchedulerNode) or isinstance(node.node, MultiOutput):
        return None
    if isinstance(node, scheduler.ExternKernelSchedulerNode):
        return "attention" if isinstance(node.node, FallbackKernel) else "matrix products"
    operations = {str(origin.target) for part in node.get_nodes() for origin in part.node.get_origins()}
    is_cast = all(name.startswith(("prims.convert_element_type", "aten.reshape", "aten.view")) for name in operations)
    return "casts" if is_cast else "fused groups"


@contextmanager
def counted_nodes() -> Iterator[Counter[str]]:
    """Count the nodes that torch's compiler keeps, by kind, and compile nothing to machine code."""
    found: Counter[str] = Counter()
    codegen = scheduler.Scheduler.codegen

    def count(self: Any) -> Any:
        found.update(filter(None, map(_kind, self.nodes)))
        return codegen(self)

    with (
        mock.patch.object(scheduler.Scheduler, "codegen", count),
        mock.patch.object(AsyncCompile, "cpp_pybinding", lambda *arguments, **options: lambda *tensors: None),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        yield found


class _Tokenizer:
    pad_token_id = 1


def count_step(layers: int) -> Counter[str]:
    """Count the kernels of a step of an encoder with so many layers, by the kind of the compiler's nodes."""
    torch._dynamo.reset()
    shape = {"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 128}
    config = BertConfig(**shape, num_hidden_layers=layers, max_position_embeddings=64, pad_token_id=1)
    model = BertForCL(config, pooler_type="cls", temperature=0.05).train()
    model.prepare_objective()
    model.packed_step = PackedStep(model, backend="inductor")
    rows = [{"input_ids": [[2, *range(5, 9 + i), 3]]} for i in range(8)]
    batch = PackedCollator(ContrastiveCollator(_Tokenizer()), BucketPlan((256,), 8, 2, 16))(rows)
    with (
        mock.patch.object(static_packing, "supports_flash", lambda query: True),
        mock.patch.object(static_packing, "flash_attention", lambda q, k, v, *bounds, **options: attention(q, k, v)),
        counted_nodes() as found,
    ):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
    return found


def run(options: argparse.Namespace, report: Report) -> None:
    small, large = options.layers
    counts = {layers: count_step(layers) for layers in options.layers}
    a_layer = (counts[large].total() - counts[small].total()) / (large - small)
    report.save(
        torch=torch.__version__,
        counted={f"{layers} layers": dict(count) for layers, count in counts.items()},
        kernels_of_a_layer=a_layer,
        kernels={f"{LAYERS} layers": counts[small].total() + (LAYERS - small) * a_layer},
    )


def table(results: dict[str, Any]) -> str:
    rows = [[name, sum(kinds.values())] for name, kinds in results["counted"].items()]
    rows += [["each further layer", results["kernels_of_a_layer"]], *results["kernels"].items()]
    return markdown(["encoder", "kernels of forward and backward pass"], rows)
