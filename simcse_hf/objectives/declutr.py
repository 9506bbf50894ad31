"""DeCLUTR: NT-Xent between anchor spans and the means of the positive spans around them."""

import torch
import torch.nn.functional as F

from ..ops.distributed import gather_rows, world
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision


class DeCLUTR(Objective):
    r"""NT-Xent over the 2N views of a minibatch (Giorgi et al. 2021, arXiv:2006.03659).

    A positive view is the mean of the vectors of an anchor's positive spans. With views v_1 to v_N the anchors,
    v_{N+1} to v_{2N} the positives of the same order and s the cosine over the temperature, each view has to find its
    partner p(i) among all others, 2(N - 1) of which are negatives:

        1/(2N) sum_i -log ( e^{s(v_i, v_p(i))} / sum_{k != i} e^{s(v_i, v_k)} )

    The paper adds the masked-LM loss, unweighted: `do_mlm` with `mlm_weight` 1 in the model.

    Columns of a row: an anchor and its positives, `anchors` times over (other anchors of the same document are the
    paper's hard negatives).

    Args:
        dim: of the sentence vectors.
        temperature: 0.05 in the paper.
        anchors: in a row; 2 in the paper.

    Raises:
        ValueError: a temperature that is not above 0; anchors below 1.
    """

    summary = "contrastive learning (DeCLUTR): NT-Xent between spans and the means of nearby spans"
    papers = ("declutr",)
    rows = "spans"

    def __init__(self, dim: int, temperature: float = 0.05, anchors: int = 1):
        super().__init__(dim)
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if anchors < 1:
            raise ValueError(f"anchors must be at least 1, got {anchors}")
        self.temperature = temperature
        self.anchors = anchors

    def check(self, rows: TrainingRows) -> None:
        if rows.num_sentences < 2 * self.anchors or rows.num_sentences % self.anchors:
            raise ValueError(
                f"objective declutr takes rows of {self.anchors} x (an anchor, one or more positives), and the "
                f"training rows hold {rows.num_sentences} texts: give pairs or spans of documents, or change its "
                "option anchors"
            )
        if rows.batch_size * rows.processes * self.anchors == 1:
            raise ValueError(
                "a batch of one anchor has no negatives, so its loss is 0: raise per_device_train_batch_size"
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        """(batch, anchors * (1 + positives), dim) vectors -> the mean over this process's views, a scalar."""
        with torch.autocast(batch.vectors.device.type, enabled=False):
            vectors = as_full_precision(batch.vectors)
            groups = vectors.reshape(len(vectors) * self.anchors, -1, vectors.shape[-1])
            views = F.normalize(torch.stack([groups[:, 0], groups[:, 1:].mean(1)]), dim=-1)  # (2, n, dim)
            own, first = views.shape[1], 0
            everyone = views.transpose(0, 1)
            if self.training:
                everyone = gather_rows(everyone)
                first = world()[0] * own
            total = len(everyone)
            if total == 1:
                return 0.0 * views.sum()
            # Candidates: all anchors, then all positives. The partner of anchor i is total + i, of positive i it is i.
            logits = views.flatten(0, 1) @ everyone.transpose(0, 1).flatten(0, 1).T / self.temperature
            places = first + torch.arange(own, device=logits.device)
            themselves = torch.cat([places, total + places])[:, None]
            partners = torch.cat([total + places, places])[:, None]
            positive = logits.gather(1, partners)
            others = logits.scatter(1, torch.cat([themselves, partners], dim=1), float("-inf"))
            # Cross-entropy, in a form whose gradient is accurate where the loss is small.
            return F.softplus(torch.logsumexp(others - positive, dim=1)).mean()
