"""Kernels of a compiled step over packed buckets, counted without a GPU.

    python -m benchmarks compiled_kernels --output benchmarks/results/compiled_kernels.json

torch's compiler decides on a CPU, for a small encoder, which operations of the forward and backward pass it fuses;
nothing is compiled to machine code. Every node that its scheduler keeps counts as one kernel: a fused group, a matrix
product, or attention, which is one in each direction. Autocast is the CPU's to bfloat16, which casts the same weights
as CUDA's; `casts` are the nodes that do nothing else. Two choices that the compiler makes for CPUs only are switched
off, see `as_for_a_gpu`. It may still fuse a few operations differently for a GPU. Each layer adds the same number of
kernels, so that of BERT-base's 12 layers follows from encoders of 2 and 3 layers.

Operators on lists of tensors are counted for BERT-base's own shapes: the copies of all weights and gradients,
clipping, and fused AdamW. torch gives such a list to one kernel until it is full (`MultiTensorApply.cuh`). The limits
are those of CUDA 12; from CUDA 13 on they are higher and there are fewer kernels.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._inductor import scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.ir import FallbackKernel, MultiOutput
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, Trainer

from simcse_hf import BertForCL
from simcse_hf.data.buckets import BucketPlan, PackedCollator
from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.models.packed import PackedStep
from simcse_hf.ops import static_packing

from .gpu_kernels import KernelCount
from .harness import Report, markdown

LAYERS = 12
#: Of a kernel for lists of tensors in CUDA 12: the numbers that a block computes, the most blocks, and by the number
#: of lists the most tensors.
_CHUNK, _MOST_BLOCKS, _MOST_TENSORS = 65_536, 320, {1: 110, 2: 64, 4: 36}
_WEIGHT_COPIES = ("simcse_hf.gather_weights", "simcse_hf.scatter_gradients")


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
        name = str(getattr(node.node, "op_overload", ""))
        if name.startswith(_WEIGHT_COPIES):
            return "copies of all weights"
        if name.startswith("aten.randint"):
            return "seeds of dropout"
        return "attention" if isinstance(node.node, FallbackKernel) else "matrix products"
    operations = {str(origin.target) for part in node.get_nodes() for origin in part.node.get_origins()}
    is_cast = all(name.startswith(("prims.convert_element_type", "aten.reshape", "aten.view")) for name in operations)
    return "casts" if is_cast else "fused groups"


@contextmanager
def as_for_a_gpu() -> Iterator[None]:
    """Switch off what torch's compiler does for CPUs only: a copy for each part of a `cat`, and ranks of fusions.

    On a CPU, a reduction and what reads it are fused only after all other fusions. A pair of the first rank that turns
    out to be impossible then ends the fusing of the whole graph.
    """
    with (
        mock.patch.object(
            CppScheduling, "get_fusion_pair_priority", scheduler.BaseScheduling.get_fusion_pair_priority
        ),
        torch._inductor.config.patch(force_pointwise_cat=True),
    ):
        yield


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


def count_step(layers: int, gathered: bool = True) -> Counter[str]:
    """Count the kernels of a step of an encoder with so many layers, by the kind of the compiler's nodes.

    Args:
        layers (`int`): Number of layers.
        gathered (`bool`, *optional*, defaults to `True`): Whether all weights are copied at once. Without it, autocast
            casts each weight, and queries, keys and values are three products.

    Returns:
        `Counter[str]`: The kernels by kind.
    """
    torch._dynamo.reset()
    shape = {"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 128}
    config = BertConfig(**shape, num_hidden_layers=layers, max_position_embeddings=64, pad_token_id=1)
    model = BertForCL(config, pooler_type="cls", temperature=0.05).train()
    model.prepare_objective()
    model.packed_step = step = PackedStep(model, backend="inductor")
    if not gathered:
        step.weights.groups.clear()
    rows = [{"input_ids": [[2, *range(5, 9 + i), 3]]} for i in range(8)]
    batch = PackedCollator(ContrastiveCollator(_Tokenizer()), BucketPlan((256,), 8, 2, 16))(rows)
    with (
        mock.patch.object(static_packing, "supports_flash", lambda query: True),
        mock.patch.object(static_packing, "flash_attention", lambda q, k, v, *bounds, **options: attention(q, k, v)),
        as_for_a_gpu(),
        counted_nodes() as found,
    ):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
    return found


def launches(tensors: Sequence[torch.Tensor], lists: int) -> int:
    """Count the kernels of an operator on lists of tensors, as torch fills them on a GPU.

    Args:
        tensors (`Sequence[torch.Tensor]`): The tensors of one of the lists.
        lists (`int`): Number of lists.

    Returns:
        `int`: The number of kernels.
    """
    kernels = count = blocks = 0
    for tensor in tensors:
        count, chunks = count + 1, -(-tensor.numel() // _CHUNK)
        for chunk in range(chunks):
            blocks, is_last = blocks + 1, chunk == chunks - 1
            if blocks == _MOST_BLOCKS or (count == _MOST_TENSORS[lists] and is_last):
                # A tensor that is not finished comes first in the next kernel.
                kernels, blocks, count = kernels + 1, 0, 0 if is_last else 1
    return kernels + (blocks > 0)


class _ListLaunches(TorchDispatchMode):
    """Add up the launches of operators on lists of tensors, which `KernelCount` counts as one each."""

    def __init__(self) -> None:
        super().__init__()
        self.additional = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(("_foreach", "_fused_adamw")):
            self.additional += launches(args[0], 4 if name.startswith("_fused") else 1) - 1
        if name == "_foreach_norm":  # It clears the partial sums of the blocks, and adds them up.
            self.additional += 2
        return func(*args, **(kwargs or {}))


def count_optimizer(model: torch.nn.Module) -> int:
    """Count the kernels of clipping the gradient's norm and of fused AdamW with the Trainer's two groups.

    Args:
        model (`torch.nn.Module`): A model on any device; its parameters' shapes are used.

    Returns:
        `int`: The number of kernels of a step after the first.
    """
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    with FakeTensorMode(allow_non_fake_inputs=True):
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for name, parameter in model.named_parameters():
            copy = torch.nn.Parameter(torch.empty(parameter.shape, device="cuda"))
            copy.grad = torch.empty_like(copy)
            groups[name in decayed].append(copy)
        optimizer = torch.optim.AdamW([{"params": group} for group in groups.values()], fused=True)
        optimizer.step()  # makes the averages
        with KernelCount() as operators, _ListLaunches() as lists:
            torch.nn.utils.clip_grad_norm_(groups[True] + groups[False], 1.0, foreach=True)
            optimizer.step()
    operators.by_name.pop("device", None)
    return operators.total + lists.additional


def count_weight_copies(model: Any) -> int:
    """Count the kernels that copy the weights of all linear layers, and their gradients back."""
    weights = [weight for group in PackedStep(model).weights.groups.values() for weight in group]
    return 2 * launches(weights, 2)


def run(options: argparse.Namespace, report: Report) -> None:
    small, large = options.layers
    with torch.device("meta"):
        model = BertForCL(BertConfig(num_hidden_layers=LAYERS), pooler_type="cls", temperature=0.05).train()
    for name, gathered in (("weights copied at once", True), ("weights cast by autocast", False)):
        counts = {layers: count_step(layers, gathered) for layers in options.layers}
        kinds = {}
        for kind in counts[large]:
            a_layer = (counts[large][kind] - counts[small][kind]) / (large - small)
            kinds[kind] = round(counts[small][kind] + (LAYERS - small) * a_layer)
        if gathered:
            kinds["copies of all weights"] = count_weight_copies(model)
        kinds["clipping and AdamW"] = count_optimizer(model)
        row = {f"{layers} layers": dict(count) for layers, count in counts.items()}
        report.save(**{name: {**row, f"{LAYERS} layers": kinds, "together": sum(kinds.values())}})
    report.save(torch=torch.__version__)


def table(results: dict[str, Any]) -> str:
    steps = {name: row for name, row in results.items() if name.startswith("weights")}
    kinds = dict.fromkeys(kind for row in steps.values() for kind in row[f"{LAYERS} layers"])
    rows = [[kind, *(row[f"{LAYERS} layers"].get(kind, 0) for row in steps.values())] for kind in kinds]
    rows.append(["together", *(row["together"] for row in steps.values())])
    return markdown(["kernels of a step of BERT-base", *steps], rows)
