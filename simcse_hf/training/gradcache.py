"""GradCache: batches of any size in the encoder memory of a part of one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from transformers import TrainingArguments

from ..models.modeling import ContrastiveModel, ContrastiveOutput
from ..objectives import EncodedBatch, Objective
from ..objectives.base import total_and_parts
from ..objectives.masked_lm import IGNORED
from ..ops.distributed import sum_over_processes, world

_MLM_INPUTS = ("mlm_input_ids", "mlm_targets")


class CachedBatch:
    """A training batch whose vectors are all there, and whose graph is there for a chunk at a time.

    Gao et al. 2021 (arXiv:2101.06983), section 3: the chunks are encoded without graph, the objective of all vectors
    gives the gradient of each, and then every chunk is encoded again, with graph, and its gradient carried on into the
    encoder. Each chunk has a random seed of its own, set before both of its passes, so both meet the same dropout
    masks. The gradient is the one of the whole batch under those masks.

    `output` holds the losses. Its `loss` is the objective's, and its backward leaves the gradient in the vectors and
    in the objective's parameters; [`backward`] then carries it on. The masked-LM loss is that of [`backward`] too.

    Args:
        model: the contrastive model, in training mode.
        inputs: of its `forward`, (batch, ...) each.
        chunk_size: rows of the batch in an encoder pass.
        trim: cut the padding that no text of a chunk needs.
        autocast: makes the context of mixed precision for the objective; the model's forward has its own.
    """

    def __init__(
        self,
        model: ContrastiveModel,
        inputs: dict[str, torch.Tensor],
        chunk_size: int,
        trim: bool = True,
        autocast: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.model = model
        self.chunks = _split(inputs, chunk_size, trim)
        # Drawn from the run's generator, which the chunks' own streams then leave alone: a resumed run draws the same.
        self.seeds = torch.randint(2**63 - 1, (len(self.chunks),)).tolist()
        with torch.no_grad(), own_random_state(model.device):
            found = []
            for chunk, seed in zip(self.chunks, self.seeds, strict=True):
                torch.manual_seed(seed)
                alone = {name: x for name, x in chunk.items() if name not in _MLM_INPUTS}
                found.append(model(**alone, use_objective=False).sentence_embeddings)
        self.vectors = torch.cat(found).requires_grad_()
        seen = {name: x for name, x in inputs.items() if name not in _MLM_INPUTS}
        with autocast():
            loss, parts = total_and_parts(model.objective(EncodedBatch(self.vectors, seen)))
        self.output = ContrastiveOutput(
            loss=loss, sentence_embeddings=self.vectors.detach(), contrastive_loss=loss, parts=parts
        )

    def backward(
        self,
        wrapped: nn.Module | None = None,
        no_sync: Callable[[], AbstractContextManager] = nullcontext,
        mlm_factor: float | torch.Tensor = 1.0,
    ) -> ContrastiveOutput:
        """Carries the vectors' gradient on into the encoder, after that of `output.loss` was taken.

        Args:
            wrapped: the model as it is called in training (by DistributedDataParallel); default: the model itself.
            no_sync: makes the context in which processes keep their gradients to themselves: for all chunks but the
                last, whose backward exchanges what was gathered.
            mlm_factor: what the masked-LM loss is multiplied by, beside its weight, before its gradient is taken: what
                the gradient of `output.loss` was scaled with.

        Returns:
            `output` with the masked-LM loss, if there is one, in it and in its `loss`, detached.
        """
        shares = self._mlm_shares()
        mlm_loss = None if shares is None else self.vectors.new_zeros((), dtype=torch.float32)
        gradients = self.vectors.grad.split([len(chunk["input_ids"]) for chunk in self.chunks])
        last = len(self.chunks) - 1
        with own_random_state(self.model.device):
            for i, (chunk, seed, gradient) in enumerate(zip(self.chunks, self.seeds, gradients, strict=True)):
                torch.manual_seed(seed)
                with nullcontext() if i == last else no_sync():
                    found = (self.model if wrapped is None else wrapped)(**chunk, use_objective=False)
                    surrogate = (found.sentence_embeddings.to(gradient.dtype) * gradient).sum()
                    if shares is not None:
                        share = shares[i] * found.mlm_loss
                        mlm_loss += share.detach()
                        surrogate = surrogate + mlm_factor * self.model.settings.mlm_weight * share
                    if i == last and world()[1] > 1:
                        # Their gradient is there, but processes exchange it when a backward comes past.
                        trained = [p for p in self.model.objective.parameters() if p.requires_grad]
                        surrogate = surrogate + sum(0.0 * parameter.sum() for parameter in trained)
                    surrogate.backward()
        self.vectors.grad = None
        output = self.output
        output["loss"] = output.loss.detach()
        if mlm_loss is not None:
            output["mlm_loss"] = mlm_loss
            output["loss"] = output.loss + self.model.settings.mlm_weight * mlm_loss
        return output

    def _mlm_shares(self) -> torch.Tensor | None:
        """By what the mean over the masked tokens of each chunk counts in the mean over those of the batch."""
        if "mlm_targets" not in self.chunks[0]:
            return None
        counts = sum_over_processes(torch.stack([(chunk["mlm_targets"] != IGNORED).sum() for chunk in self.chunks]))
        return counts / counts.sum().clamp(min=1)


def check_gradcache(objective: Objective, args: TrainingArguments) -> None:
    """Called before the first step.

    Raises:
        ValueError: an objective or a way of training that needs the whole batch's graph.
    """
    name = type(objective).__name__
    if objective.needs_hidden_states:
        raise ValueError(
            f"gradcache_chunk_size: {name} reads the hidden states of all tokens, which are not kept over the chunks: "
            "unset gradcache_chunk_size"
        )
    if not objective.supports_gradcache:
        raise ValueError(
            f"gradcache_chunk_size: {name} makes encoder passes of its own over the whole batch: "
            "unset gradcache_chunk_size"
        )
    if args.torch_compile:
        raise ValueError(
            "gradcache_chunk_size needs the same dropout masks in both passes of a chunk, and compiled code draws "
            "others with a graph than without: unset torch_compile or gradcache_chunk_size"
        )
    if args.deepspeed or args.fsdp:
        raise ValueError(
            "gradcache_chunk_size works with one process or DistributedDataParallel: unset deepspeed and fsdp, or "
            "gradcache_chunk_size"
        )


def _split(inputs: dict[str, torch.Tensor], chunk_size: int, trim: bool) -> list[dict[str, torch.Tensor]]:
    length = inputs["input_ids"].shape[-1]
    split = {name: x.split(chunk_size) for name, x in inputs.items()}
    chunks = [dict(zip(split, parts, strict=True)) for parts in zip(*split.values(), strict=True)]
    if not trim:
        return chunks
    longest = torch.stack([chunk["attention_mask"].sum(-1).amax() for chunk in chunks]).tolist()
    return [
        {name: x[..., :kept] if x.dim() == 3 and x.shape[-1] == length else x for name, x in chunk.items()}
        for chunk, kept in zip(chunks, longest, strict=True)
    ]


def own_random_state(device: torch.device) -> AbstractContextManager:
    """In here seeds may be set: the generators go on afterwards as if nothing had been drawn."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)
