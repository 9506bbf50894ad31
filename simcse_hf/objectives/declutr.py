"""DeCLUTR: NT-Xent between anchor spans and the mean of the positive spans around each of them."""

from dataclasses import replace

import torch

from ..runtime.errors import DataError, check_values
from .base import EncodedBatch, Loss, TrainedModel, TrainingRows, as_full_precision
from .info_nce import Prepared, SimCSEObjective


class DeCLUTR(SimCSEObjective):
    r"""NT-Xent over the 2N views of a batch (Giorgi et al. 2021, arXiv:2006.03659).

    A positive view is the mean embedding of an anchor's positive spans. Let v_1 to v_N be the anchors, v_{N+1} to
    v_{2N} their positives in the same order, and s the cosine divided by the temperature. Each view has to find its
    partner p(i) among all others, 2(N - 1) of which are negatives:

        1/(2N) sum_i -log ( e^{s(v_i, v_p(i))} / sum_{k != i} e^{s(v_i, v_k)} )

    The paper adds the masked-LM loss, unweighted: give the model `do_mlm=True` and `mlm_weight=1.0`. As in the
    authors' code, the anchors are then masked, their embeddings come from the masked text, and the masked-LM loss is
    taken from the same encoder pass. Positives are never masked.

    The columns of a row are an anchor and its positives, `anchors` times over. Further anchors of the same document
    are the paper's hard negatives.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*, defaults to `0.05`): Temperature of the softmax. The paper uses 0.05.
        anchors (`int`, *optional*, defaults to `1`): Anchors per row. The paper uses 2.
        positives (`int`, *optional*): Positives per anchor. By default the rows decide: the scripts draw 2 spans, as
            in the paper, and other rows may have any number.
        max_span (`int`, *optional*): Longest span that the scripts draw (see `SpanDataset`).
        min_span (`int`, *optional*): Shortest span that the scripts draw.

    Raises:
        ValueError: If the temperature is not above 0, or a number is below 1.
    """

    name = "declutr"
    summary = "contrastive learning (DeCLUTR): NT-Xent between spans and the mean of nearby spans"
    papers = ("declutr",)
    # Section 4.2 of the paper. Its spans have 32 to 512 tokens, and its documents 2 anchors (see the recipe).
    defaults = {
        "pooler_type": "avg",
        "mlp_only_train": False,
        "do_mlm": True,
        "mlm_weight": 1.0,
        "max_seq_length": 512,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-5,
        "weight_decay": 0.1,
        "warmup_steps": 0.1,
        "num_train_epochs": 1,
    }
    vectors = ()
    rows = "spans"

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        anchors: int = 1,
        positives: int | None = None,
        max_span: int | None = None,
        min_span: int | None = None,
    ):
        super().__init__(dim, temperature, symmetric=True)
        check_values("an integer above 0", anchors=anchors, positives=positives, max_span=max_span, min_span=min_span)
        self.anchors = anchors
        self.positives = positives

    def attach(self, model: TrainedModel) -> None:
        """Ask for the hidden states of the anchors if the model has a masked-LM loss."""
        self.needs_hidden_states = bool(model.settings.do_mlm)

    def mlm_columns(self, num_sentences: int) -> list[int]:
        """Mask the anchors, before the encoder pass that embeds them; see [`Objective.mlm_columns`]."""
        texts_of_anchor = num_sentences // self.anchors
        return list(range(0, num_sentences, texts_of_anchor))

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows that do not consist of anchors with equally many positives, and a batch of one anchor."""
        columns = rows.num_sentences
        positives = columns // self.anchors - 1
        if columns % self.anchors or positives < 1 or self.positives not in (None, positives):
            raise DataError(
                f"objective 'declutr' takes rows of {self.anchors} x (an anchor and {self.positives or 'several'} "
                f"positive(s)), but the training rows hold {columns} texts: change its options anchors and positives"
            )
        if self.anchors == 1:
            rows.check_batch("a batch of one anchor has no negatives")

    def prepare(self, batch: EncodedBatch) -> Prepared:
        """Return pairs of an anchor and the mean of its positives."""
        embeddings = as_full_precision(batch.embeddings)
        rows, _, dim = embeddings.shape
        groups = embeddings.reshape(rows * self.anchors, -1, dim)
        anchors = groups[:, 0]
        positives = groups[:, 1:].mean(1)
        return Prepared(torch.stack([anchors, positives], dim=1))

    def forward(self, batch: EncodedBatch) -> Loss:
        """Compute the loss; see [`Objective.forward`]."""
        # Relations describe the texts of a row, of which `prepare` makes pairs.
        inputs = {name: x for name, x in batch.inputs.items() if name != "relations"}
        return super().forward(replace(batch, inputs=inputs))
