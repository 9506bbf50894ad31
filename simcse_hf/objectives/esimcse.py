"""ESimCSE: InfoNCE with a queue of a momentum encoder's embeddings as further negatives."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.distributed import gather_rows
from ..runtime.errors import SettingError, check_values
from .base import TEXT_INPUTS, EncodedBatch, TrainedModel, TrainingRows
from .info_nce import Prepared, SimCSEObjective


class ESimCSE(SimCSEObjective):
    r"""InfoNCE in which anchors are also compared with embeddings of earlier batches.

    Wu et al. 2022 (arXiv:2109.04380), Eq. 5. Beside the positives and hard negatives of the batch, the denominator
    sums e^{s(h_i, q_m)} over a queue of M embeddings q_m. They come from a momentum encoder, which follows the
    trained one at every training pass by theta_m <- momentum * theta_m + (1 - momentum) * theta (Eq. 6), and which
    embeds the anchors without dropout. The dense + tanh head has no momentum: the queue uses the trained one, as in
    the authors' code. New embeddings join the queue after the loss, those of all processes, and replace the oldest.
    Until the queue is full, the loss uses what it holds.

    The paper's positives are sentences with repeated words. They are a view of the training texts (`repeat_words`) and
    not part of this loss. In evaluation mode there is no queue, and the loss is that of SimCSE.

    The momentum encoder and the queue are saved with the objective, so a resumed run continues with both.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*, defaults to `0.05`): See [`SimCSEObjective`].
        similarity (`str`, *optional*, defaults to `"cosine"`): See [`SimCSEObjective`].
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): See [`SimCSEObjective`].
        momentum (`float`, *optional*, defaults to `0.995`): At least 0 and below 1. The paper uses 0.995.
        queue_size (`int`, *optional*, defaults to `160`): M. The paper's best is 2.5 batches: 160 at batch size 64.

    Raises:
        ValueError: If the momentum or the queue size is out of range.
    """

    name = "esimcse"
    summary = (
        "contrastive learning (ESimCSE): InfoNCE with a queue of a momentum encoder's embeddings as further negatives"
    )
    papers = ("esimcse", "simcse")
    # Section 4.1 of the paper, for bert-base-uncased.
    defaults = {
        "pooler_type": "cls",
        "mlp_only_train": True,
        "per_device_train_batch_size": 64,
        "learning_rate": 3e-5,
        "num_train_epochs": 1,
    }
    vectors = ()
    supports_gradcache = False
    view = ("repeat_words", None)

    queue: Tensor
    filled: Tensor

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        momentum: float = 0.995,
        queue_size: int = 160,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        check_values("a number of 0 or more and below 1", momentum=momentum)
        check_values("an integer above 0", queue_size=queue_size)
        self.momentum = momentum
        self.queue_size = queue_size
        self.momentum_encoder: Any = None
        self.register_buffer("queue", torch.zeros(queue_size, dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def attach(self, model: TrainedModel) -> None:
        """Copy the encoder: the copy is the momentum encoder."""
        copy: Any = model.copy_encoder()
        if copy.dtype in (torch.float16, torch.bfloat16):
            copy.float()  # half precision would round small updates to zero
        self.momentum_encoder = copy.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "ESimCSE":
        """Set the mode of the objective; the momentum encoder never uses dropout."""
        super().train(mode)
        if self.momentum_encoder is not None:
            # Its submodules are in evaluation mode, so that dropout is off. The model itself is in training mode, so
            # that it uses the pooler of training.
            self.momentum_encoder.eval().training = True
        return self

    def check(self, rows: TrainingRows) -> None:
        """Refuse a batch that is larger than the queue, and what [`SimCSEObjective`] refuses."""
        super().check(rows)
        batch = rows.global_batch
        if batch > self.queue_size:
            raise SettingError(
                f"queue_size is {self.queue_size}, below the {batch} texts of a batch: set queue_size to {batch} or "
                f"more (the paper's 2.5 batches are {5 * batch // 2})"
            )

    def prepare(self, batch: EncodedBatch) -> Prepared:
        """Return the embeddings and the queue; in training, update the momentum encoder and the queue."""
        if not self.training:
            return super().prepare(batch)
        queue = self.queue[: self.filled].clone()  # the backward pass needs it without this step's update
        with torch.no_grad():
            # 1. The momentum encoder follows the trained one, whose head it has.
            trained = dict(batch.model.named_parameters())
            for name, parameter in self.momentum_encoder.named_parameters():
                parameter.lerp_(trained[name].to(parameter.dtype), 1 - self.momentum)
            head = batch.model.contrastive_head.state_dict()
            self.momentum_encoder.contrastive_head.load_state_dict(head)
            # 2. It embeds the anchors.
            anchors: dict[str, Any] = {name: batch.inputs[name][:, 0] for name in batch.inputs.keys() & TEXT_INPUTS}
            packing = batch.packing
            if packing is not None:  # where the tokens of the anchors lie in a row of their own
                rows, columns = batch.inputs["input_ids"].shape[:2]
                packing = packing.select(np.arange(rows) * columns)
            embeddings = gather_rows(self.momentum_encoder.embed(**anchors, packing=packing))
            # 3. They join the queue: newest first, and not normalized, because the loss applies the similarity, at the
            # width that it uses.
            newest = torch.cat([embeddings.to(self.queue.dtype), self.queue])
            self.queue.copy_(newest[: self.queue_size])
            self.filled.add_(len(embeddings)).clamp_(max=self.queue_size)
        return Prepared(batch.embeddings, queue)
