"""A training step as one CUDA graph: forward, backward, clipping and AdamW in one launch, whatever the host does.

A step of a small batch launches about a thousand kernels, which takes the host longer than the GPU needs to run them.
A graph is captured once for each shape of a batch and replayed for all others of that shape. torchtitan captures
forward and backward alike (https://github.com/pytorch/torchtitan/pull/3559).
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import Trainer
from transformers.training_args import OptimizerNames
from transformers.utils import logging

from ..data.packed_batch import PackedBatch
from ..models.modeling import ContrastiveModel, ContrastiveOutput
from .arguments import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: The type of device that has graphs.
DEVICE = "cuda"
#: Steps without a graph before the first capture: they create the state of the optimizer and what is made lazily.
WARM_UP = 3


@dataclass
class CapturedStep:
    """A graph with the memory that it reads and writes in every replay.

    Args:
        graph (`torch.cuda.CUDAGraph`): The graph.
        batch (`dict[str, torch.Tensor]`): The tensors of the batch that it reads.
        output (`ContrastiveOutput`): What the model returned, which the next replay overwrites.
        norm (`torch.Tensor`): The norm of the gradient before clipping, likewise.
    """

    graph: torch.cuda.CUDAGraph
    batch: dict[str, Tensor]
    output: ContrastiveOutput
    norm: Tensor


class StepGraphs:
    """Take training steps by CUDA graphs, one for each shape of a batch, all in one pool of memory.

    The first steps, and all steps on another device than a GPU, compute the same without a graph. After a step the
    parameters have no gradients, so that a further step of the optimizer changes nothing.

    Args:
        model (`ContrastiveModel`): The model, in training mode.
        optimizer (`torch.optim.AdamW`): The optimizer, which is fused.
        max_norm (`float`): The norm to which the gradient is clipped; 0 leaves it as it is.
    """

    def __init__(self, model: ContrastiveModel, optimizer: torch.optim.AdamW, max_norm: float):
        self.model = model
        self.optimizer = optimizer
        self.max_norm = max_norm if max_norm > 0 else float("inf")
        self.parameters = [x for group in optimizer.param_groups for x in group["params"] if x.requires_grad]
        device = self.parameters[0].device
        #: The learning rate of each group on the device, where a replay reads it.
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.captured: dict[Hashable, CapturedStep] = {}
        self.steps = 0
        self.can_capture = device.type == DEVICE
        if self.can_capture:
            for group in optimizer.param_groups:
                group["capturable"] = True
            #: How long the last step without a graph took.
            self.seconds = 0.0
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()

    def step(self, batch: PackedBatch) -> tuple[ContrastiveOutput, Tensor]:
        """Take the gradient of a batch, clip it and update the weights.

        Args:
            batch (`PackedBatch`): The batch, on the device.

        Returns:
            `tuple[ContrastiveOutput, torch.Tensor]`: The output of the model and the norm of the gradient before
            clipping. The next step overwrites them.
        """
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])
        self.steps += 1
        if not self.can_capture:
            return self._compute(batch)
        if self.steps <= WARM_UP:
            return self._warm_up(batch)
        if batch.form not in self.captured:
            try:
                self.captured[batch.form] = self._capture(batch)
            except RuntimeError as error:
                self.can_capture = False
                self.captured.clear()
                logger.warning(f"cuda_graphs: a step cannot be captured, so the run goes on without graphs: {error}")
                return self._compute(batch)
        return self._replay(self.captured[batch.form], batch)

    def _replay(self, step: CapturedStep, batch: PackedBatch) -> tuple[ContrastiveOutput, Tensor]:
        """Take a step by its graph."""
        started = time.perf_counter()
        for name, x in step.batch.items():
            x.copy_(batch[name], non_blocking=True)
        step.graph.replay()
        if self.steps == WARM_UP + 2:  # neither the first replay nor, as a rule, one after a capture
            torch.cuda.synchronize()
            ratio = self.seconds / (time.perf_counter() - started)
            logger.info(f"cuda_graphs: steps are captured after step {WARM_UP}: {ratio:.1f} times as fast")
        return step.output, step.norm

    def _warm_up(self, batch: PackedBatch) -> tuple[ContrastiveOutput, Tensor]:
        """Take a step without a graph on the stream of the captures, as torch asks for before a capture."""
        started = time.perf_counter()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self._compute(batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - started
        return result

    def _capture(self, batch: PackedBatch) -> CapturedStep:
        """Record a step, which does not run yet."""
        tensors = {name: x.clone() for name, x in batch.items() if isinstance(x, Tensor)}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            output, norm = self._compute(batch.with_tensors(tensors))
        return CapturedStep(graph, tensors, output, norm)

    def _compute(self, batch: PackedBatch) -> tuple[ContrastiveOutput, Tensor]:
        """Compute a step: what a graph records."""
        self._forget_gradients()
        output = self.model(**batch.unpack())
        output.loss.backward()
        norm = clip_grad_norm_(self.parameters, self.max_norm)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            group["lr"] = rate
        try:
            # The schedule counts the calls of the instance's own `step`, which the Trainer makes.
            torch.optim.AdamW.step(self.optimizer)
        finally:  # The schedule reads and writes numbers.
            for rate, group in zip(rates, self.optimizer.param_groups, strict=True):
                group["lr"] = rate
        self._forget_gradients()
        loss = output.loss.detach()
        parts = None if output.parts is None else {name: x.detach() for name, x in output.parts.items()}
        return ContrastiveOutput(loss, output.sentence_embeddings.detach(), contrastive_loss=loss, parts=parts), norm

    def _forget_gradients(self) -> None:
        """Let the backward pass write gradients in place of adding to them."""
        for parameter in self.parameters:
            parameter.grad = None


def find_problem(args: SimCSETrainingArguments, model: ContrastiveModel) -> str | None:
    """Say why the steps of a run cannot be captured.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run.
        model (`ContrastiveModel`): The model with its objective.

    Returns:
        `str`, *optional*: What stands in the way; `None` if nothing does.
    """
    objective = model.prepare_objective()
    if args.device.type != DEVICE:
        return "there is no NVIDIA GPU"
    if args.world_size > 1:
        return "there are several processes"
    if args.gradient_accumulation_steps > 1 or args.gradcache_chunk_size is not None:
        return "a step has several forward passes"
    if args.torch_compile or args.fp16:
        return "torch_compile and fp16 have steps of their own"
    if args.optim != OptimizerNames.ADAMW_TORCH_FUSED:
        return f"optim is {OptimizerNames(args.optim).value} and not adamw_torch_fused"
    if not model.runs_unpadded or args.gradient_checkpointing:
        return "the encoder runs with padding"
    if model.settings.do_mlm or model.has_adapter():
        return "the model has a masked-LM loss or an adapter"
    has_state = len(list(objective.buffers())) > 0
    if has_state or not objective.supports_gradcache or objective.needs_hidden_states or objective.encoders > 1:
        return f"objective {model.settings.objective!r} needs more than one pass, or has a state of its own"
    if not hasattr(Trainer, "_get_grad_norm"):
        return "this version of transformers clips gradients in its loop"
    return None
