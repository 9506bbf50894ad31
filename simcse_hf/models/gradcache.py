"""GradCache: train with batches of any size in the encoder memory of a small chunk."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from ..data.collator import Batch, length_sorted_batches
from ..kernels.packing import Packing
from ..objectives import EncodedBatch, Objective
from ..objectives.base import ROW_INPUTS, add_up
from ..objectives.masked_lm import IGNORED
from ..runtime.distributed import gather_rows, sum_over_processes, world
from ..runtime.errors import SettingError
from .modeling import ContrastiveModel, ContrastiveOutput, preserve_random_state

_MLM_INPUTS = ("mlm_input_ids", "mlm_targets")
_MakesContext = Callable[[], AbstractContextManager]


class CachedBatch:
    """A training batch with all its embeddings, which keeps the graph of one chunk at a time.

    Gao et al. 2021 (arXiv:2101.06983), section 3. With a batch of 4 rows in chunks of 2:

    1. Encode both chunks without a graph.
    2. Compute the objective of all 4 embeddings; its backward pass gives the gradient of each embedding.
    3. Encode the first chunk again, with a graph, and carry its gradients on into the encoder; then the second.

    Rows of similar length share a chunk. A chunk of shorter texts holds more rows: as many as fit into the tokens of
    `chunk_size` rows of the batch's longest text or, where no padding is computed, of its mean text.

    Each chunk has its own random seed, set before both of its passes, so that both draw the same dropout masks. The
    gradient is that of the whole batch under those masks.

    `output.loss` is the objective's loss. Its backward pass is step 2; [`backward`] is step 3, which also computes the
    masked-LM loss.

    Args:
        model (`ContrastiveModel`): The model, in training mode.
        inputs (`dict`): The inputs of its forward pass, of shape `(batch, ...)`.
        chunk_size (`int`): Rows in an encoder pass, of which shorter texts make more.
        autocast (`Callable`, *optional*): Makes the context of mixed precision for the objective; the model's forward
            pass has its own.
    """

    def __init__(
        self,
        model: ContrastiveModel,
        inputs: Batch,
        chunk_size: int,
        autocast: _MakesContext = nullcontext,
    ):
        self.model = model
        self.objective = model.prepare_objective()
        rows, self.chunks = _split(inputs, chunk_size, model.runs_unpadded)
        self.order = torch.tensor(rows, device=model.device)
        # The seeds come from the run's generator, which the chunks leave alone: a resumed run draws the same seeds.
        self.seeds = torch.randint(2**63 - 1, (len(self.chunks),)).tolist()
        embeddings = []
        with torch.no_grad(), preserve_random_state(model.device):
            for chunk, seed in zip(self.chunks, self.seeds, strict=True):
                torch.manual_seed(seed)
                texts = {name: x for name, x in chunk.items() if name not in _MLM_INPUTS}
                embeddings.append(model(**texts, return_loss=False).sentence_embeddings)
        in_order = torch.cat(embeddings)[self.order.argsort()]
        self.embeddings = in_order.requires_grad_()
        visible = {name: x for name, x in inputs.items() if name not in (*_MLM_INPUTS, "packing")}
        batch = EncodedBatch(self.embeddings, visible, packing=inputs.get("packing"))
        with autocast():
            loss, parts = add_up(self.objective(batch))
        self.output = ContrastiveOutput(loss, in_order.detach(), contrastive_loss=loss, parts=parts)

    def backward(
        self,
        wrapped: nn.Module | None = None,
        no_sync: _MakesContext = nullcontext,
        mlm_factor: float | Tensor = 1.0,
    ) -> ContrastiveOutput:
        """Carry the embeddings' gradient on into the encoder, after the backward pass of `output.loss`.

        Args:
            wrapped (`nn.Module`, *optional*): The model as it is called in training (by DistributedDataParallel); by
                default the model itself.
            no_sync (`Callable`, *optional*): Makes the context in which processes keep their gradients to themselves.
                It is used for all chunks but the last, whose backward pass exchanges the accumulated gradients.
            mlm_factor (`float` or `torch.Tensor`, *optional*, defaults to `1.0`): Factor on the gradient of the
                masked-LM loss: what the gradient of `output.loss` was scaled with.

        Returns:
            `ContrastiveOutput`: `output`, detached, with the masked-LM loss, if there is one, in it and in its `loss`.
        """
        called = wrapped or self.model
        # The weight of each chunk's mean over masked tokens in the mean over those of the batch: chunks with 1 and 3
        # masked tokens weigh 1/4 and 3/4.
        weights = None
        if "mlm_targets" in self.chunks[0]:
            masked = [(chunk["mlm_targets"] != IGNORED).sum() for chunk in self.chunks]
            counts = sum_over_processes(torch.stack(masked))
            weights = counts / counts.sum().clamp(min=1)
        mlm_weight = self.model.settings.mlm_weight
        mlm_loss = self.embeddings.new_zeros((), dtype=torch.float32)
        sizes = [len(chunk["input_ids"]) for chunk in self.chunks]
        assert self.embeddings.grad is not None and self.output.loss is not None
        gradients = self.embeddings.grad[self.order].split(sizes)
        last = len(self.chunks) - 1
        with preserve_random_state(self.model.device):
            for i, chunk in enumerate(self.chunks):
                torch.manual_seed(self.seeds[i])
                with nullcontext() if i == last else no_sync():
                    output = called(**chunk, return_loss=False)
                    # The gradient of <embedding, g> with g constant is g times the embedding's own gradient, which
                    # is the chain rule.
                    gradient = gradients[i]
                    embeddings = output.sentence_embeddings.to(gradient.dtype)
                    surrogate = (embeddings * gradient).sum()
                    if weights is not None:
                        weighted = weights[i] * output.mlm_loss
                        mlm_loss += weighted.detach()
                        surrogate = surrogate + mlm_factor * mlm_weight * weighted
                    if i == last and world()[1] > 1:
                        # DistributedDataParallel exchanges a gradient when a backward pass reaches its parameter. The
                        # objective's parameters already have theirs, so this pass adds 0 to it.
                        for parameter in self.objective.parameters():
                            if parameter.requires_grad:
                                surrogate = surrogate + 0.0 * parameter.sum()
                    surrogate.backward()
        self.embeddings.grad = None
        loss = self.output.loss.detach()
        if weights is not None:
            self.output["mlm_loss"] = mlm_loss
            loss = loss + mlm_weight * mlm_loss
        self.output["loss"] = loss
        return self.output


def check_gradcache(objective: Objective, args: TrainingArguments) -> None:
    """Refuse an objective or a way of training that needs the graph of the whole batch.

    Args:
        objective (`Objective`): The objective of the run.
        args (`TrainingArguments`): The training arguments.

    Raises:
        SettingError: If the objective or the arguments do not work with GradCache.
    """
    name = objective.name
    if objective.needs_hidden_states:
        problem = f"objective {name!r} reads the hidden states of all tokens, which are not kept across chunks"
    elif not objective.supports_gradcache:
        problem = f"objective {name!r} makes passes of its own over the whole batch (supports_gradcache is False)"
    elif args.torch_compile:
        problem = "torch_compile draws other dropout masks in the second pass of a chunk than in the first"
    elif args.deepspeed or args.fsdp:
        problem = "deepspeed and fsdp need the whole batch; one process and DistributedDataParallel do not"
    elif "lomo" in args.optim or "layerwise" in args.optim:
        problem = "this optim changes the weights in each backward pass, and every chunk has its own"
    else:
        return
    raise SettingError(f"gradcache_chunk_size: {problem}: leave one of the two out")


def _split(inputs: Batch, chunk_size: int, unpadded: bool) -> tuple[list[int], list[Batch]]:
    """Return the rows of the batch in the order of their chunks, and the token inputs of each chunk.

    Texts of 5, 2, 2, 2 and 2 tokens in chunks of two make a chunk of rows 0 and 1, and one of rows 2, 3 and 4: into
    2 * 5 tokens fit up to five of the shorter texts. Without padding, larger chunks save nothing and leave the
    processor's caches, so there the chunks have as many tokens as two rows on average, 5.2.
    """
    ids = inputs["input_ids"]
    packing: Packing | None = inputs.get("packing")
    numbers = np.arange(ids.shape[0] * ids.shape[1]).reshape(ids.shape[:2])
    if packing is not None and packing.lengths_of_rows is not None:
        longest = torch.from_numpy(packing.lengths_of_rows[numbers]).amax(-1)
    else:  # one wait for the device
        longest = inputs["attention_mask"].sum(-1).amax(-1).cpu()
    length = longest.double().mean() if unpadded else longest.max()
    token_budget = round(chunk_size * float(length))
    chunks = length_sorted_batches(longest.numpy(), token_budget)
    if "mlm_targets" in inputs:  # The processes count the masked tokens of each chunk together.
        own_number = torch.tensor([len(chunks)], device=ids.device)
        number = gather_rows(own_number).max()
        while len(chunks) < number:
            largest = max(chunks, key=len)
            half = len(largest) // 2
            place = chunks.index(largest)
            chunks[place : place + 1] = largest[:half], largest[half:]
    read = inputs.keys() - {*ROW_INPUTS, "packing"}
    read |= {"relations"}  # by which the model knows that texts may be missing
    parts = []
    for rows in chunks:
        part = {name: x[rows] for name, x in inputs.items() if name in read}
        width = int(longest[rows[0]])
        for name, x in part.items():
            if x.ndim == 3:
                part[name] = x[:, :, :width]
        if packing is not None:
            part["packing"] = packing.select(numbers[rows].ravel(), width)
        parts.append(part)
    return list(chain.from_iterable(chunks)), parts
