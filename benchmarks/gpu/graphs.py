"""A training step as one CUDA graph: forward, backward, clipping and AdamW in one launch, whatever the host does.

No GPU has measured it in a whole run yet, so it is an experiment and no option of the package. PyTorch's own form is
`--torch_compile true --torch_compile_mode reduce-overhead`.

A step of a small batch launches about a thousand kernels, which takes the host longer than the GPU needs to run them.
A graph is captured once for each shape of a batch and replayed for all others of that shape. torchtitan captures
forward and backward alike (https://github.com/pytorch/torchtitan/pull/3559).
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
from transformers.utils import logging

from simcse_hf import SimCSETrainer
from simcse_hf.data.collator import Batch, PackingCollator
from simcse_hf.models.modeling import ContrastiveModel, ContrastiveOutput

logger = logging.get_logger(__name__)

#: Steps without a graph before the first capture: they create the state of the optimizer and what is made lazily.
WARM_UP = 3
#: The type of device that has graphs.
DEVICE = "cuda"
#: The tensors of a packing.
_OF_PACKING = ("token_index", "rows", "bounds")


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

    def step(self, batch: Batch) -> tuple[ContrastiveOutput, Tensor]:
        """Take the gradient of a batch, clip it and update the weights.

        Args:
            batch (`dict`): The batch with its packing, on the device.

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
        form = form_of(batch)
        if form not in self.captured:
            try:
                self.captured[form] = self._capture(batch)
            except RuntimeError as error:
                self.can_capture = False
                self.captured.clear()
                logger.warning(f"a step cannot be captured, so the run goes on without graphs: {error}")
                return self._compute(batch)
        return self._replay(self.captured[form], batch)

    def _replay(self, step: CapturedStep, batch: Batch) -> tuple[ContrastiveOutput, Tensor]:
        """Take a step by its graph."""
        started = time.perf_counter()
        tensors = tensors_of(batch)
        for name, x in step.batch.items():
            x.copy_(tensors[name], non_blocking=True)
        step.graph.replay()
        if self.steps == WARM_UP + 2:  # neither the first replay nor, as a rule, one after a capture
            torch.cuda.synchronize()
            ratio = self.seconds / (time.perf_counter() - started)
            logger.info(f"steps are captured after step {WARM_UP}: {ratio:.1f} times as fast")
        return step.output, step.norm

    def _warm_up(self, batch: Batch) -> tuple[ContrastiveOutput, Tensor]:
        """Take a step without a graph on the stream of the captures, as torch asks for before a capture."""
        started = time.perf_counter()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self._compute(batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - started
        return result

    def _capture(self, batch: Batch) -> CapturedStep:
        """Record a step, which does not run yet."""
        tensors = {name: x.clone() for name, x in tensors_of(batch).items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            output, norm = self._compute(with_tensors(batch, tensors))
        return CapturedStep(graph, tensors, output, norm)

    def _compute(self, batch: Batch) -> tuple[ContrastiveOutput, Tensor]:
        """Compute a step: what a graph records."""
        self._forget_gradients()
        output = self.model(**batch)
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


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Return all tensors of a batch by name, also those of its packing."""
    packing = batch["packing"]
    tensors = {name: x for name, x in batch.items() if isinstance(x, Tensor)}
    return tensors | {name: getattr(packing, name) for name in _OF_PACKING}


def with_tensors(batch: Batch, tensors: dict[str, Tensor]) -> Batch:
    """Return a batch of the same form with other tensors."""
    own = {name: x for name, x in tensors.items() if name not in _OF_PACKING}
    of_packing = {name: tensors[name] for name in _OF_PACKING}
    return batch | own | {"packing": replace(batch["packing"], **of_packing)}


def form_of(batch: Batch) -> Hashable:
    """Return what two batches have in common if one program can compute both: all shapes, and what is no tensor."""
    shapes = {name: x.shape for name, x in tensors_of(batch).items()}
    others = {name: x for name, x in batch.items() if name != "packing" and name not in shapes}
    packing = batch["packing"]
    return tuple(shapes.items()), packing.shape, packing.longest, tuple(others.items())


class GraphTrainer(SimCSETrainer):
    """A Trainer whose steps are CUDA graphs, after which nothing is left to clip and the optimizer has nothing to do.

    It is for runs of one process without padding, with a fused AdamW, one pass in a step, and an objective that has no
    state of its own.

    Args:
        args (`Any`): As for [`SimCSETrainer`].
        kwargs (`Any`): As for [`SimCSETrainer`].
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.graphs: StepGraphs | None = None
        #: The norm of the gradient, which a graph has taken and clipped.
        self.norm_of_graph: Tensor | None = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as [`SimCSETrainer`] does, with graphs of its own for each run."""
        self.graphs = None
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training, whose batches have few shapes."""
        loader = super().get_train_dataloader()
        packing = getattr(loader, "base_dataloader", loader).collate_fn
        assert isinstance(packing, PackingCollator) and self.rows is not None
        packing.use_few_shapes(2 * self._train_batch_size, self.rows.longest)
        return loader

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Take a whole step by a graph."""
        self.model.train()
        if self.graphs is None:
            optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # Accelerate has wrapped it
            self.graphs = StepGraphs(self.model, optimizer, self.args.max_grad_norm)
        output, self.norm_of_graph = self.graphs.step(self._prepare_inputs(inputs))
        self.watch.add(output)
        assert output.loss is not None
        self.watch.run_loss = self.watch.run_loss + output.loss.double()
        return output.loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return self.norm_of_graph
