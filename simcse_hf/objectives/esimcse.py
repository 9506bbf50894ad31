"""ESimCSE: InfoNCE with a queue of a momentum encoder's vectors as further negatives."""

import torch
from torch import nn

from ..ops.distributed import gather_rows
from .base import EncodedBatch, Encoder, TrainingRows
from .info_nce import as_full_precision
from .simcse import ContrastiveInputs, SimCSEObjective


class ESimCSE(SimCSEObjective):
    r"""InfoNCE whose anchors also meet the vectors of earlier batches.

    Wu et al. 2022 (arXiv:2109.04380), Eq. 5: beside the batch's positives and hard negatives the denominator sums
    e^{s(h_i, q_m)} over a queue of M vectors q_m. They come from a momentum encoder, which follows the trained one by
    theta_m <- momentum * theta_m + (1 - momentum) * theta (Eq. 6) at every training pass, and sees the anchors without
    dropout. Its vectors join the queue after the loss, those of all processes, and push out the oldest. While the
    queue fills, the vectors that are there count.

    The paper's positives, sentences with repeated words, are a view of the training texts (`repeat_words`), not a
    matter of this loss. In evaluation mode there is no queue: the loss is that of SimCSE.

    The momentum encoder and the queue are saved with the objective, so a resumed run goes on with both.

    Args:
        dim: of the sentence vectors.
        temperature, similarity, hard_negative_weight: of [`InfoNCE`].
        momentum: at least 0 and below 1. The paper's is 0.995.
        queue_size: M, vectors. The paper's best is 2.5 batches, 160 at its batch size of 64.

    Raises:
        ValueError: a momentum or queue size outside its range.
    """

    summary = (
        "contrastive learning (ESimCSE): InfoNCE with a queue of a momentum encoder's embeddings as further negatives"
    )
    papers = ("esimcse", "simcse")
    supports_gradcache = False
    view = "repeat_words"

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        momentum: float = 0.995,
        queue_size: int = 160,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
        if not isinstance(queue_size, int) or queue_size < 1:
            raise ValueError(f"queue_size must be an integer above 0, got {queue_size!r}")
        self.momentum = momentum
        self.momentum_encoder: nn.Module | None = None
        self.register_buffer("queue", torch.zeros(queue_size, dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def attach(self, model: Encoder) -> None:
        self.momentum_encoder = half_precision_to_float32(model.copy_encoder()).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "ESimCSE":
        super().train(mode)
        if self.momentum_encoder is not None:
            # The pooler is that of training; dropout is off.
            self.momentum_encoder.eval().training = True
        return self

    def check(self, rows: TrainingRows) -> None:
        super().check(rows)
        whole = rows.batch_size * rows.processes
        if whole > len(self.queue):
            raise ValueError(
                f"queue_size is {len(self.queue)}, and a batch has {whole} texts (per_device_train_batch_size "
                f"{rows.batch_size}, {rows.processes} process(es)), which would push each other out. Set the "
                f"objective's option queue_size to {whole} or more (the paper: 2.5 batches, {5 * whole // 2})."
            )

    def prepare(self, batch: EncodedBatch) -> ContrastiveInputs:
        if not self.training:
            return ContrastiveInputs(batch.vectors)
        queue = self.queue[: int(self.filled)].clone()  # the loss keeps it for its gradient; the buffer changes below
        self._follow(batch.model)
        anchors = {
            name: batch.inputs[name][:, 0]
            for name in ("input_ids", "attention_mask", "token_type_ids")
            if name in batch.inputs
        }
        with torch.no_grad():
            self._enqueue(gather_rows(self.momentum_encoder.embed(**anchors)))
        return ContrastiveInputs(batch.vectors, queue)

    @torch.no_grad()
    def _follow(self, model: Encoder) -> None:
        trained = dict(model.named_parameters())
        for name, parameter in self.momentum_encoder.named_parameters():
            parameter.lerp_(trained[name].to(parameter.dtype), 1 - self.momentum)

    def _enqueue(self, vectors: torch.Tensor) -> None:
        # Newest first. Kept unnormalised: the similarity, and the width it is taken at, are the loss's matter.
        vectors = as_full_precision(vectors).to(self.queue.dtype)
        self.queue.copy_(torch.cat([vectors, self.queue])[: len(self.queue)])
        self.filled.add_(len(vectors)).clamp_(max=len(self.queue))


def half_precision_to_float32(module: nn.Module) -> nn.Module:
    """Return the module in float32 if its weights are in half precision, in which small steps would round to none."""
    dtype = next(module.parameters()).dtype
    return module.float() if dtype in (torch.float16, torch.bfloat16) else module
