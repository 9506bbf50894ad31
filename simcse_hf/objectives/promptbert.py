"""PromptBERT: InfoNCE between two templates' embeddings, each without what its template alone contributes."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..runtime.errors import SettingError, check_values
from .base import TEXT_INPUTS, EncodedBatch, TrainedModel
from .info_nce import Prepared, SimCSEObjective

#: How a model subtracts the template's own embedding, in training and at inference, and with which layer.
DENOISINGS = ("none", "transform", "tanh")


def embed_templates(
    embed: Callable[..., Tensor],
    texts: Mapping[str, Tensor],
    template: Tensor,
    edges: Sequence[Sequence[int]],
) -> Tensor:
    """Embed the templates around some texts without the texts, whose places stay empty.

    We hide the text's tokens from attention, which is equivalent for every encoder. A text of 2 tokens in a template
    of 3 + 3 (`[CLS] This :`, `means [MASK] [SEP]`) is then encoded with this attention mask:

        tokens      [CLS]  This  :  two  words  means  [MASK]  [SEP]
        mask          1     1    1   0     0      1      1       1

    Two rows with the same template and length have the same embedding, so one pass over one row of each kind is
    enough.

    Args:
        embed (`Callable`): Maps `input_ids`, `attention_mask` and optional `token_type_ids` to `(n, dim)`.
        texts (`Mapping[str, torch.Tensor]`): These inputs for the texts in their templates, each of shape
            `(n, length)`.
        template (`torch.Tensor`): The number of each text's template, of shape `(n,)`.
        edges (`Sequence[Sequence[int]]`): The numbers of tokens before and after the text in each template.

    Returns:
        `torch.Tensor`: Embeddings of shape `(n, dim)`.
    """
    mask = texts["attention_mask"]
    lengths = mask.sum(-1)
    before, after = torch.tensor(edges, device=mask.device)[template].unbind(1)
    end = lengths - after
    position = mask.cumsum(-1) - 1
    in_text = (position >= before[:, None]) & (position < end[:, None])
    # Texts with the same template and length differ only in tokens that nothing attends to: encode one of each.
    # For (template, length) = (0, 7), (1, 9), (0, 7), group_of_text is [0, 1, 0], and first_text, the first text of
    # each group, is [0, 1].
    kinds = torch.stack([template, lengths], dim=-1)
    groups, group_of_text = kinds.unique(dim=0, return_inverse=True)
    numbers = torch.arange(len(groups), device=mask.device)[:, None]
    first_text = (group_of_text == numbers).int().argmax(1)
    alone = {**texts, "attention_mask": mask * ~in_text}
    embeddings = embed(**{name: x[first_text] for name, x in alone.items()})
    return embeddings[group_of_text]


class PromptBERT(SimCSEObjective):
    """InfoNCE between a text in one template and the same text in another, with template denoising.

    Jiang et al. 2022 (arXiv:2201.04337), Eq. 5. An embedding is h_[MASK] - h'_[MASK], where h' comes from the template
    without the text, whose tokens keep the positions that they have around the text (see [`embed_templates`]). The
    pass for h' uses training's dropout and carries gradient.

    The model's pooler is `mask`, and its setting `templates` holds the templates. As in the authors' code, there are
    two kinds of models:

    - Without labels, a sentence is put into two templates. The subtraction, and a dense layer with tanh after it, are
      for training only. A trained model encodes with the first template and subtracts nothing.
    - With labels (pairs or triplets), there is one template. The model's setting `denoising` makes the subtraction and
      its layer a part of the embedding, in training and at inference (see [`~models.pooling.TemplateHead`]). This
      objective then adds nothing to InfoNCE, and GradCache can be used.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*, defaults to `0.05`): See [`InfoNCE`].
        similarity (`str`, *optional*, defaults to `"cosine"`): See [`InfoNCE`].
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): See [`InfoNCE`].
        denoise (`bool`, *optional*, defaults to `True`): Subtract the template's own embedding in training. It has no
            effect on a model that denoises its embeddings itself.
        head (`bool`, *optional*, defaults to `True`): Use the dense + tanh layer in training, with the same exception.

    Raises:
        ValueError: If an argument is not valid.
    """

    name = "promptbert"
    summary = (
        "contrastive learning (PromptBERT): InfoNCE of template embeddings, from which the template's own is "
        "subtracted"
    )
    papers = ("promptbert", "simcse")
    # The authors' run for bert-base-uncased (run.sh, "unsup-bert"). Their RoBERTa run quotes with ' in place of ".
    # Their supervised run is the recipe sup-promptbert-bert-base-uncased.
    defaults = {
        "pooler_type": "mask",
        "mlp_only_train": False,
        "templates": ['This sentence of "{text}" means [MASK].', 'This sentence : "{text}" means [MASK].'],
        "per_device_train_batch_size": 256,
        "learning_rate": 1e-5,
        "num_train_epochs": 1,
    }
    supports_gradcache = False

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        denoise: bool = True,
        head: bool = True,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        check_values("true or false", denoise=denoise, head=head)
        self.denoise = denoise
        self.has_head = head
        self.head: nn.Sequential | None = None

    def attach(self, model: TrainedModel) -> None:
        """Make the head, and take over the model's templates.

        Args:
            model (`TrainedModel`): The model to be trained.

        Raises:
            SettingError: If the model has no templates.
        """
        settings = model.settings
        if not settings.template_edges:
            examples = " and ".join(map(repr, self.defaults["templates"]))
            raise SettingError(f"objective 'promptbert' needs pooler_type 'mask' and templates, such as {examples}")
        #: The numbers of tokens before and after the text in each template, including special tokens. Columns beyond
        #: the last template use the last one.
        self.template_edges = settings.template_edges
        if settings.denoising != "none":
            # The embeddings of such a model need no further pass, which is what GradCache cannot do.
            self.supports_gradcache = True
            self.denoise = False
            self.has_head = False
        if self.has_head:
            dense = nn.Linear(self.dim, self.dim)
            nn.init.normal_(dense.weight, std=0.02)  # as BERT draws its layers
            nn.init.zeros_(dense.bias)
            self.head = nn.Sequential(dense, nn.Tanh())

    def prepare(self, batch: EncodedBatch) -> Prepared:
        """Return the batch's embeddings; in training, denoised and passed through the head."""
        embeddings = batch.embeddings
        if self.training and self.denoise:
            # Embed the templates without the texts. Rows may have fewer texts than others.
            rows, columns, dim = embeddings.shape
            numbers = torch.arange(columns, device=embeddings.device)
            template = numbers.clamp(max=len(self.template_edges) - 1).repeat(rows)
            present: slice | Tensor = slice(None)
            if "relations" in batch.inputs:
                has_tokens = batch.inputs["attention_mask"].flatten(0, 1).any(1)
                present = has_tokens.nonzero()[:, 0]
            texts = {}
            for name in batch.inputs.keys() & TEXT_INPUTS:
                texts[name] = batch.inputs[name].flatten(0, 1)[present]
            alone = embed_templates(batch.model.embed, texts, template[present], self.template_edges)
            subtracted = alone.new_zeros(rows * columns, dim)
            subtracted[present] = alone
            embeddings = embeddings - subtracted.view_as(embeddings)
        if self.training and self.head is not None:
            embeddings = self.head(embeddings.to(next(self.head.parameters()).dtype))
        return Prepared(embeddings)
