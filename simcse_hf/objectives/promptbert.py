"""PromptBERT: InfoNCE of two templates' vectors, each without what the template alone gives."""

from collections.abc import Sequence

import torch

from .base import EncodedBatch, Encoder, TrainingRows
from .simcse import ContrastiveInputs, SimCSEObjective


class PromptBERT(SimCSEObjective):
    """InfoNCE between a text in one template and the same text in another, with template denoising.

    Jiang et al. 2022 (arXiv:2201.04337), Eq. 5: h = h_[MASK] - h'_[MASK], where h' is the vector of the template
    without the text, whose tokens keep the positions they have around it. Here the text's tokens are hidden from
    attention, which is just that for every encoder. One pass over a row for each template and length of text gives
    them all, under the dropout of training; it carries gradient.

    The model's pooler is `mask` and its setting `templates` holds the two. A trained model encodes with the first
    template and subtracts nothing, as in the paper. There is no projection after the vector.

    Args:
        dim: of the sentence vectors.
        temperature, similarity, hard_negative_weight: of [`InfoNCE`].
        template_edges: a setting of the model: for every template the numbers of tokens before and after the text,
            special tokens included. A column beyond the last template has the last.
        denoise: whether to subtract the template's own vector in training.

    Raises:
        ValueError: the model has no templates.
    """

    summary = (
        "contrastive learning (PromptBERT): InfoNCE of template embeddings, from which the template's own is "
        "subtracted"
    )
    papers = ("promptbert", "simcse")
    supports_gradcache = False

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        template_edges: Sequence[Sequence[int]] = (),
        denoise: bool = True,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        if not template_edges:
            raise ValueError(
                "objective 'promptbert' needs a model with pooler_type 'mask' and templates, for example "
                "'This sentence : \"{text}\" means [MASK].' and 'This sentence of \"{text}\" means [MASK].'"
            )
        self.template_edges = [list(edges) for edges in template_edges]
        self.denoise = denoise

    def attach(self, model: Encoder) -> None:
        if model.settings.encoders == 2:
            raise ValueError("objective 'promptbert' subtracts vectors of one encoder: train with encoders=1")

    def check(self, rows: TrainingRows) -> None:
        super().check(rows)
        longest = max(sum(edges) for edges in self.template_edges)
        if rows.dataset is not None and min(len(ids) for ids in rows.dataset[0]["input_ids"]) < longest:
            raise ValueError(
                f"row 1 of train_dataset has a text of fewer tokens than the template around it ({longest}): give "
                "texts, or token ids made with the templates"
            )

    def prepare(self, batch: EncodedBatch) -> ContrastiveInputs:
        if not (self.training and self.denoise):
            return ContrastiveInputs(batch.vectors)
        rows, columns = batch.vectors.shape[:2]
        mask = batch.inputs["attention_mask"]
        lengths = mask.sum(-1)
        template = torch.arange(columns, device=mask.device).clamp(max=len(self.template_edges) - 1)
        before, after = torch.tensor(self.template_edges, device=mask.device)[template].unbind(1)
        position = torch.arange(mask.shape[-1], device=mask.device)
        in_text = (position >= before[:, None]) & (position < (lengths - after)[..., None])
        hidden = (mask * ~in_text).flatten(0, 1)
        # Rows of one template and length differ in the text only, which nothing attends to.
        kinds = torch.stack([template.expand(rows, -1), lengths], dim=-1).flatten(0, 1)
        distinct, kind = kinds.unique(dim=0, return_inverse=True)
        first = torch.full((len(distinct),), len(kind), device=kind.device).scatter_reduce(
            0, kind, torch.arange(len(kind), device=kind.device), "amin"
        )
        inputs = {
            name: batch.inputs[name].flatten(0, 1)[first]
            for name in ("input_ids", "token_type_ids")
            if name in batch.inputs
        }
        alone = batch.model.embed(attention_mask=hidden[first], **inputs)[kind]
        return ContrastiveInputs(batch.vectors - alone.view_as(batch.vectors))
