"""Kernels that a training step launches on an NVIDIA GPU, counted without one.

    python -m benchmarks gpu_kernels --output benchmarks/results/gpu_kernels.json

At small batch sizes a GPU waits for the host to launch kernels, so their number decides the speed. The forward and
backward pass of BERT-base run on meta tensors, which have shapes and no values. Every ATen operator that computes
something counts as one kernel; views and memory that is not filled count as none. Casts are those of CUDA's autocast
to bfloat16, which is emulated. Attention counts as one kernel in each direction, and one more for a mask. Clipping and
the optimizer are not counted; they are the same for all.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig

from simcse_hf import BertForCL
from simcse_hf.data.collator import HostLengths
from simcse_hf.ops import attention

from .harness import Report, markdown
from .synthetic import LENGTHS

MOST_TOKENS = 32
#: What autocast computes in half precision and in float32 on a GPU, as far as encoders and objectives use it.
_IN_HALF = {F.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.bmm, F.conv1d}
_IN_FLOAT32 = {
    F.layer_norm,
    torch.layer_norm,
    torch.softmax,
    F.softmax,
    torch.log_softmax,
    F.log_softmax,
    torch.logsumexp,
    F.softplus,
    F.cross_entropy,
    F.cosine_similarity,
    torch.sum,
    torch.Tensor.sum,
}
_WITHOUT_KERNEL = (
    "scalar_tensor",  # a number for `where`, which a GPU kernel takes as an argument
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "detach",
    "_unsafe_view",
    "lift_fresh",
)


class KernelCount(TorchDispatchMode):
    """Count the ATen operators that launch a kernel, by name, while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.by_name.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        on_device = any(x.device.type != "cpu" for x in tensors)
        if on_device and not func.is_view and name not in _WITHOUT_KERNEL:
            self.by_name[name] += 1
        return result


class CudaAutocast(TorchFunctionMode):
    """Cast the arguments of torch functions as CUDA's autocast to bfloat16 does, on tensors of any device.

    A weight is cast once. `torch.autocast(..., enabled=False)` switches the casts off, as on a GPU. Attention runs as
    the operator of flash attention, also with a mask, which would need another kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, torch.Tensor] = {}
        self._is_on = True
        self._patch = mock.patch("torch.autocast", self._region)

    def __enter__(self) -> "CudaAutocast":
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._patch.stop()

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:  # one kernel on a GPU
            x, rate, training = args[0], kwargs["p"], kwargs["training"]
            return torch.native_dropout(x, rate, True)[0] if training else x
        if func is F.scaled_dot_product_attention:
            query, key, value = (self._cast(x, torch.bfloat16) if self._is_on else x for x in args[:3])
            rate, scale = kwargs.get("dropout_p", 0.0), kwargs.get("scale")
            if kwargs.get("attn_mask") is not None:  # torch makes a mask of numbers from a boolean one
                torch.where(kwargs["attn_mask"], 0.0, -torch.inf)
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, rate, scale=scale)[0]
        dtype = torch.bfloat16 if func in _IN_HALF else torch.float32 if func in _IN_FLOAT32 else None
        if self._is_on and dtype is not None:
            args = [self._cast(x, dtype) for x in args]
            kwargs = {name: self._cast(x, dtype) for name, x in kwargs.items()}
        return func(*args, **kwargs)

    def _cast(self, x: Any, dtype: torch.dtype) -> Any:
        if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.bfloat16) or x.dtype == dtype:
            return x
        if not (isinstance(x, torch.nn.Parameter) and x.requires_grad):
            return x.to(dtype)
        if id(x) not in self._weights:
            self._weights[id(x)] = x.to(dtype)
        return self._weights[id(x)]

    @contextmanager
    def _region(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True) -> Iterator[None]:
        before, self._is_on = self._is_on, self._is_on and enabled
        try:
            yield
        finally:
            self._is_on = before


def batch_lengths(rows: int, seed: int = 0) -> np.ndarray:
    """Draw the numbers of tokens of a batch of Wikipedia sentences, each of which appears twice."""
    histogram = LENGTHS["wikipedia"]["sentence"]
    weights = np.array(list(histogram.values()), dtype=float)
    drawn = np.random.default_rng(seed).choice([int(n) for n in histogram], size=rows, p=weights / weights.sum())
    return drawn.clip(max=MOST_TOKENS)[:, None].repeat(2, 1).view(HostLengths)


def count_step(model: torch.nn.Module, lengths: np.ndarray, flash: bool = True) -> KernelCount:
    """Count the kernels of the forward and backward pass of a model on the meta device.

    Args:
        model (`torch.nn.Module`): A contrastive model on the meta device.
        lengths (`np.ndarray`): The number of tokens of each text, of shape `(batch, num_sentences)`.
        flash (`bool`, *optional*, defaults to `True`): Whether flash attention is at hand, as in half precision from
            Ampere on.

    Returns:
        `KernelCount`: The kernels by operator.
    """
    ids = torch.zeros(*lengths.shape, int(lengths.max()), dtype=torch.long, device="meta")
    with mock.patch.object(attention, "supports_flash", lambda query: flash and query.dtype == torch.bfloat16):
        with KernelCount() as count:
            with CudaAutocast():
                loss = model(input_ids=ids, attention_mask=torch.empty_like(ids), lengths=lengths).loss
            loss.backward()
    model.zero_grad()
    return count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512], help="rows of a batch")


def run(options: argparse.Namespace, report: Report) -> None:
    counts = {}
    for pooler in ("cls", "avg"):
        with torch.device("meta"):
            model = BertForCL(BertConfig(), pooler_type=pooler, temperature=0.05).train()
        for batch in options.batches:
            lengths = batch_lengths(batch)
            row = {}
            for name, (unpadded, flash) in {
                "padded": (False, True),
                "ours": (True, True),
                "ours, without flash": (True, False),
            }.items():
                model.unpadded = unpadded
                row[name] = count_step(model, lengths, flash).total
            counts[f"{pooler}, batch {batch}"] = row
    report.save(torch=torch.__version__, encoder="bert-base", tokens=MOST_TOKENS, kernels=counts)


def table(results: dict[str, Any]) -> str:
    rows = [[name, *row.values()] for name, row in results["kernels"].items()]
    return markdown(["step", *next(iter(results["kernels"].values()))], rows)
