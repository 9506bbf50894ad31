"""SimCSE's objective on a batch: InfoNCE over the rows of all processes."""

from ..distributed import gather_rows, world
from .info_nce import InfoNCE
from .interface import Embedded, Objective, TrainingRows


class SimCSEObjective(Objective):
    """[`InfoNCE`] of column 0 against column 1, with columns 2 and further as hard negatives."""

    def __init__(
        self, dim: int, temperature: float = 0.05, similarity: str = "cosine", hard_negative_weight: float = 0.0
    ):
        super().__init__(dim)
        self.info_nce = InfoNCE(temperature, similarity, hard_negative_weight)

    def check(self, rows: TrainingRows) -> None:
        if rows.batch_size * rows.processes == 1 and rows.num_sentences < 3:
            raise ValueError(
                "a batch of one text has no negatives, so its loss is 0: raise per_device_train_batch_size"
            )

    def forward(self, batch: Embedded):
        anchors, candidates = batch.vectors[:, 0], batch.vectors[:, 1:]
        first = 0
        if self.training:
            candidates = gather_rows(candidates)
            first = world()[0] * len(anchors)
        negatives = candidates[:, 1:] if candidates.shape[1] > 1 else None
        return self.info_nce(anchors, candidates[:, 0], negatives, first_positive=first)
