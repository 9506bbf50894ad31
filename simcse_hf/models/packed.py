"""The training step over packed batches of fixed shape: encoder and objective in one compiled graph."""

from collections.abc import Callable
from typing import Any, cast

import torch

from ..objectives import EncodedBatch
from ..objectives.base import Encoder
from ..ops.distributed import world
from ..ops.static_packing import StaticPacking
from .output import ContrastiveOutput

#: Rows and columns of a batch, and the most tokens of a sentence.
PackedShape = tuple[int, int, int]


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
        model = self.model
        rows, columns, longest = shape
        packing = StaticPacking(cu_seqlens, rows * columns, longest)
        # A mask of four axes reaches the attention function as it is, which reads the packing instead.
        no_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        inputs = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": no_mask}
        embeddings = model.base_model(**inputs, packing=packing).last_hidden_state.squeeze(0)  # of first tokens
        if model.settings.pooler_type == "cls":
            head = model.contrastive_head
            embeddings = head(embeddings[:, None]) if model.has_own_pooler else head(embeddings)
        for layer in model.dense_layers:
            embeddings = layer(embeddings)
        return embeddings.view(rows, columns, -1)

    def _embed_and_score(self, *batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = self.embed(*batch)
        return self._loss(embeddings), embeddings

    def _loss(self, embeddings: torch.Tensor) -> torch.Tensor:
        objective = self.model.objective
        assert objective is not None
        return cast(torch.Tensor, objective(EncodedBatch(embeddings, {}, cast(Encoder, self.model))))
