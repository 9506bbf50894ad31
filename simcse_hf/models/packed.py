"""The training step over packed batches of fixed shape: encoder and objective in one compiled graph."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from ..objectives import EncodedBatch
from ..objectives.base import Encoder
from ..ops.distributed import world
from ..ops.gathered_weights import GatheredWeights
from ..ops.static_packing import StaticPacking
from .output import ContrastiveOutput

#: Rows and columns of a batch, and the most tokens of a sentence.
PackedShape = tuple[int, int, int]


class _Embedder(nn.Module):
    """Embed packed sentences with the layers of a model.

    It is a module of its own so that `torch.func.functional_call` can replace the weights of all layers that it runs.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.encoder, self.dense_layers = model.base_model, model.dense_layers
        self.head = model.contrastive_head if model.settings.pooler_type == "cls" else None
        self.has_own_pooler = model.has_own_pooler

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, packing: StaticPacking) -> torch.Tensor:
        # A mask of four axes reaches the attention function as it is, which reads the packing instead.
        no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        inputs = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": no_mask}
        embeddings = self.encoder(**inputs, packing=packing).last_hidden_state.squeeze(0)  # of first tokens
        if self.head is not None:
            embeddings = self.head(embeddings[:, None]) if self.has_own_pooler else self.head(embeddings)
        for layer in self.dense_layers:
            embeddings = layer(embeddings)
        return embeddings


class PackedStep:
    """Embeddings and loss of packed batches (see [`~data.buckets.PackedCollator`]), from compiled code.

    The shapes are those of a bucket, so there is one graph for each bucket and no other. On CUDA the graph is recorded
    as a CUDA graph, which a step then launches as a whole. The loss is that of the padded batch.

    Args:
        model (`ContrastiveModel`): The model. Its encoder has BERT's layers, its pooler reads [CLS] only.
        compile_options (`Any`): Arguments of `torch.compile`, such as `mode="reduce-overhead"`.
    """

    def __init__(self, model: Any, **compile_options: Any):
        self.model = model
        self._embedder = _Embedder(model)
        self.weights = GatheredWeights(self._embedder, model.base_model.encoder.layer[-1])
        options = {"fullgraph": True, "dynamic": False} | compile_options
        self._embed: Callable[..., torch.Tensor] = torch.compile(self.embed, **options)
        self._score: Callable[..., tuple[torch.Tensor, torch.Tensor]] = torch.compile(self._embed_and_score, **options)

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, cu_seqlens: torch.Tensor, shape: PackedShape
    ) -> ContrastiveOutput:
        """Compute the loss of a batch and its embeddings.

        Args:
            input_ids (`torch.Tensor`): Token ids of shape `(1, bucket)`.
            position_ids (`torch.Tensor`): Of the same shape.
            cu_seqlens (`torch.Tensor`): See [`StaticPacking`].
            shape (`tuple[int, int, int]`): Rows, columns, and the most tokens of a sentence.

        Returns:
            [`ContrastiveOutput`]: The loss and the embeddings. With CUDA graphs, the next step overwrites both.
        """
        batch = (input_ids, position_ids, cu_seqlens, tuple(shape))
        if input_ids.is_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        if world()[1] == 1:
            loss, embeddings = self._score(*batch)
        else:  # The gather waits for other processes, so it stays outside the graph.
            embeddings = self._embed(*batch)
            loss = self._loss(embeddings)
        return ContrastiveOutput(loss, embeddings, contrastive_loss=loss)

    def embed(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, cu_seqlens: torch.Tensor, shape: PackedShape
    ) -> torch.Tensor:
        """Compute embeddings of shape `(rows, columns, dim)`; the arguments are those of a call."""
        rows, columns, longest = shape
        packing = StaticPacking(cu_seqlens, rows * columns, longest)
        weights = self.weights(input_ids.device.type)
        embeddings = torch.func.functional_call(
            self._embedder, weights, (input_ids, position_ids, packing), tie_weights=False
        )
        return embeddings.view(rows, columns, -1)

    def _embed_and_score(self, *batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = self.embed(*batch)
        return self._loss(embeddings), embeddings

    def _loss(self, embeddings: torch.Tensor) -> torch.Tensor:
        objective = self.model.objective
        assert objective is not None
        return cast(torch.Tensor, objective(EncodedBatch(embeddings, {}, cast(Encoder, self.model))))
