"""InfoNCE, SimCSE's loss, and SimCSE's objective, the base of the objectives that add something to it."""

from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..ops.distributed import first_row, gather_rows
from .base import Objective, TrainingRows, as_full_precision, comparable
from .checks import check_choice, check_options, check_similarity, require
from .encoder import EncodedBatch

#: Logits of a block of rows, 32 MB in float32, of which glibc returns every block to the system. More logits are
#: computed in blocks, and again in the backward pass.
CHUNK_LOGITS = 2**23


class InfoNCE(nn.Module):
    r"""Cross-entropy of finding an anchor's positive among all positives and hard negatives of the batch.

    Let s(a, b) be the cosine or the dot product, divided by the temperature tau. For anchors h_i, positives h+_j and
    hard negatives h-_jm (SimCSE, arXiv:2104.08821, Eq. 1, 4, 5 and 8):

        l_i = -log ( e^{s(h_i, h+_i)} / sum_j ( e^{s(h_i, h+_j)} + sum_m alpha^{[i=j]} e^{s(h_i, h-_jm)} ) )

    Eq. 4 (unsupervised) is Eq. 1 with positives from a second dropout mask. Without hard negatives the inner sum is
    empty. Eq. 5 is alpha = 1, and Eq. 8 any alpha. The weight applies to a row's own hard negatives only; those of
    other rows count once.

    With `symmetric` the loss is NT-Xent (SimCLR, arXiv:2002.05709, Eq. 1): each of the 2N anchors and positives looks
    for its partner among the other 2N - 1, of which 2N - 2 are negatives, and the loss is the mean of 2N terms. Hard
    negatives count in both directions with the same weight, because what contradicts a text also contradicts what
    follows from it.

    With `false_negative_margin` m, a candidate whose similarity to a query exceeds that of its positive by more
    than m is left out of the sum: it is probably an unlabelled positive. NV-Retriever (Moreira et al. 2024,
    arXiv:2407.15831) does so when it mines. The similarities are those of the embeddings in the loss or, as in
    GISTEmbed (Solatorio 2024, arXiv:2402.16829), those of a frozen guide. With a guide, m is 0 by default.

    Each term is computed as softplus(logsumexp over the others of (s_other - s_positive)). Its gradient stays accurate
    in float32 when the loss is nearly 0 and softmax(positive) rounds to 1. Large batches are computed in blocks of
    rows, so memory grows with the number of embeddings instead of its square.

    Args:
        temperature (`float`, *optional*): tau, above 0. Defaults to 0.05 for the cosine and to 1 for the dot product,
            the paper's choices (Table D.1).
        similarity (`str`, *optional*, defaults to `"cosine"`): `"cosine"` or `"dot"`.
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): The *logarithm* of alpha, which is added to the
            logits of a row's own hard negatives, as in the reference implementation.
        symmetric (`bool`, *optional*, defaults to `False`): Whether positives look for their anchors as well.
        false_negative_margin (`float`, *optional*): m, in units of the similarity, not divided by the temperature. By
            default every candidate counts, or with a guide those that it finds no closer than the positive.

    Raises:
        ValueError: If an argument is not valid. The message names it.
    """

    def __init__(
        self,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        false_negative_margin: float | None = None,
    ):
        super().__init__()
        self.similarity, self.temperature = check_similarity(similarity, temperature)
        check_options("true or false", symmetric=symmetric)
        numbers = {"hard_negative_weight": hard_negative_weight, "false_negative_margin": false_negative_margin}
        check_options("a finite number", **numbers)
        self.hard_negative_weight = hard_negative_weight
        self.symmetric = symmetric
        self.false_negative_margin = false_negative_margin

    def forward(
        self,
        embeddings: torch.Tensor,
        *,
        gather: bool = False,
        extra_negatives: torch.Tensor | None = None,
        text_ids: torch.Tensor | None = None,
        guide: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the mean loss of column 0 against column 1, with the further columns as hard negatives.

        Args:
            embeddings (`torch.Tensor`): This process's rows, of shape `(n, 2 + k, dim)`.
            gather (`bool`, *optional*, defaults to `False`): Whether the candidates are the rows of all processes. In
                evaluation each process uses its own.
            extra_negatives (`torch.Tensor`, *optional*): Candidates of shape `(q, dim)` that are nobody's positive,
                such as a queue.
            text_ids (`torch.Tensor`, *optional*): Integers of shape `(n, 2 + k)`, equal for equal texts. A candidate
                with the text of the anchor or of its positive is left out, so that a repeated text is no negative of
                itself. Extra negatives are never left out.
            guide (`torch.Tensor`, *optional*): The guide's unit vectors of the texts, of shape `(n, 2 + k, g)`.

        Returns:
            `torch.Tensor`: A scalar in float32 or wider. Loss and gradient of an anchor with a single candidate are 0.

        Raises:
            ValueError: If `text_ids` does not have one number for each text.
        """
        rows, columns = embeddings.shape[:2]
        if text_ids is not None:
            message = f"text_ids must be {(rows, columns)}, one per text, got {tuple(text_ids.shape)}"
            require(text_ids.shape == (rows, columns), message)
        # The candidates of a row stand side by side: with two hard negatives p0 n00 n01 p1 n10 n11, so those of row 1
        # start in column 1 * 3. With several processes, the rows of this one start at row rank * rows.
        start, first = 0 if self.symmetric else 1, first_row(rows, gather)
        candidates = gather_rows(embeddings[:, start:], gather)
        candidate_ids = None if text_ids is None else gather_rows(text_ids[:, start:], gather)
        candidate_guide = None if guide is None else gather_rows(guide[:, start:], gather)
        width = columns - start
        own = width * torch.arange(first, first + rows, device=embeddings.device)[:, None]
        queries = {"hard_negatives": own + torch.arange(2 - start, width, device=own.device)}
        queries |= {} if text_ids is None else {"query_ids": text_ids[:, :2]}
        if self.symmetric:  # the pair of row 1 is a1 p1 in columns 4 5: a1 looks for 5 and skips 4, p1 looks for 4
            pair = torch.cat([own, own + 1], dim=1)
            queries = {name: torch.cat([x, x]) for name, x in queries.items()}
            queries["excluded"] = torch.cat([pair.flip(1), pair])
        else:
            queries["excluded"] = own
        searching = 2 if self.symmetric else 1
        queries["queries"] = embeddings[:, :searching].transpose(0, 1).flatten(0, 1)
        if guide is not None:
            queries["query_guide"] = guide[:, :searching].transpose(0, 1).flatten(0, 1)
        with torch.autocast(embeddings.device.type, enabled=False):
            pool = as_full_precision(candidates).flatten(0, 1)
            pool = comparable(pool if extra_negatives is None else torch.cat([pool, extra_negatives]), self.similarity)
            ids, seen = (None if x is None else x.flatten(0, 1) for x in (candidate_ids, candidate_guide))
            size = -(-CHUNK_LOGITS // len(pool))
            if size >= len(queries["queries"]):
                return self._terms(pool, ids, seen, **queries).mean()
            parts = zip(*(x.split(size) for x in queries.values()), strict=True)
            block = partial(checkpoint, self._terms, use_reentrant=False, preserve_rng_state=False)
            blocks = [block(pool, ids, seen, **dict(zip(queries, part, strict=True))) for part in parts]
            return torch.cat(blocks).mean()

    def _terms(
        self,
        candidates: torch.Tensor,
        candidate_ids: torch.Tensor | None,
        candidate_guide: torch.Tensor | None,
        *,
        queries: torch.Tensor,
        excluded: torch.Tensor,
        hard_negatives: torch.Tensor,
        query_ids: torch.Tensor | None = None,
        query_guide: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the losses of some queries.

        `excluded` are the columns of a query that are no negatives: its positive and then, perhaps, the query itself.
        """
        queries = comparable(queries, self.similarity) / self.temperature
        positive = (queries * candidates.index_select(0, excluded[:, 0])).sum(1, keepdim=True)
        # Not -inf: if every other candidate of a query is left out, its loss is 0, and so is its gradient (not NaN).
        others, nothing = (queries @ candidates.T).sub_(positive), torch.finfo(queries.dtype).min
        left_out = None  # the weights below change the logits, but not which candidates are false negatives
        if query_guide is not None and candidate_guide is not None:
            seen = query_guide @ candidate_guide.T
            left_out = seen > seen.gather(1, excluded[:, :1]) + (self.false_negative_margin or 0.0)
        elif self.false_negative_margin is not None:
            left_out = others > self.false_negative_margin / self.temperature
        if self.hard_negative_weight:
            weight = others.new_full((), self.hard_negative_weight).expand(hard_negatives.shape)
            others.scatter_add_(1, hard_negatives, weight)
        if left_out is not None:  # extra negatives, the columns after those with ids or a guide, always count
            others[:, : left_out.shape[1]].masked_fill_(left_out, nothing)
        if candidate_ids is not None and query_ids is not None:
            for ids in query_ids.unbind(1):
                others[:, : len(candidate_ids)].masked_fill_(ids[:, None] == candidate_ids, nothing)
        others.scatter_(1, excluded, nothing)
        return F.softplus(others.logsumexp(1)) + 0.0 * positive[:, 0]  # NaN and infinity must reach the loss


@dataclass
class ContrastiveInputs:
    """The inputs of InfoNCE at the full embedding size.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`.
        queue (`torch.Tensor`, *optional*): Embeddings of earlier batches, of shape `(q, dim)`, which are negatives of
            every anchor.
        text_ids (`torch.Tensor`, *optional*): Integers of shape `(batch, num_sentences)`, equal for equal texts.
        guide (`torch.Tensor`, *optional*): The unit vectors of a guide, of shape `(batch, num_sentences, g)`.
        other_losses (`dict[str, torch.Tensor]`): Named losses that are added to InfoNCE once, whatever the widths of
            [`Matryoshka`].
    """

    embeddings: torch.Tensor
    queue: torch.Tensor | None = None
    text_ids: torch.Tensor | None = None
    guide: torch.Tensor | None = None
    other_losses: dict[str, torch.Tensor] = field(default_factory=dict)


class SimCSEObjective(Objective):
    """[`InfoNCE`] of column 0 against column 1, with the further columns as hard negatives.

    SimCSE (Gao et al. 2021, arXiv:2104.08821), Eq. 1, 4, 5 and 8. A row may have any number of hard negatives of any
    label: one contradiction in the paper, or a contradiction and a neutral hypothesis (Table 7).

    A subclass that adds a queue, changes the embeddings or adds a loss overrides [`prepare`]. It is called once per
    step and the loss once per width, so [`Matryoshka`] runs a second encoder only once.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): See [`InfoNCE`].
        similarity (`str`, *optional*, defaults to `"cosine"`): See [`InfoNCE`].
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): See [`InfoNCE`].
        symmetric (`bool`, *optional*, defaults to `False`): Whether positives look for their anchors as well (NT-Xent;
            SimCLR, arXiv:2002.05709, Eq. 1).
        mask_duplicates (`bool`, *optional*, defaults to `False`): Whether to leave out candidates with the same text
            as the anchor or its positive.
        false_negative_margin (`float`, *optional*): Leave out candidates that are more similar to the anchor than its
            positive by more than this, by the embeddings or by the guide of the run; see [`InfoNCE`].
        encoders (`int`, *optional*, defaults to `1`): 2 trains an independent encoder for all columns but the first
            (Table 2).

    Raises:
        ValueError: If an argument is not valid.
    """

    summary = "contrastive learning (SimCSE): InfoNCE with the other rows of the batch as negatives"
    papers: tuple[str, ...] = ("simcse",)
    vectors: tuple[str, ...] = ("guide",)

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        mask_duplicates: bool = False,
        false_negative_margin: float | None = None,
        encoders: int = 1,
    ):
        super().__init__(dim)
        check_options("true or false", mask_duplicates=mask_duplicates)
        check_choice("encoders", encoders, (1, 2))
        self.info_nce = InfoNCE(temperature, similarity, hard_negative_weight, symmetric, false_negative_margin)
        self.temperature = self.info_nce.temperature
        self.similarity = similarity
        self.hard_negative_weight = hard_negative_weight
        self.symmetric = symmetric
        self.mask_duplicates = mask_duplicates
        self.false_negative_margin = false_negative_margin
        self.encoders = encoders
        self.needs_text_ids = mask_duplicates

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with relations, and batches without negatives.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the rows have relations, or if a batch consists of one pair.
        """
        require(
            not rows.has_relations,
            f"the training rows have relations, which objective {self.name!r} does not read: train it on single "
            "texts, pairs, or rows of sent0, sent1 and hard negatives (see simcse-hf build-nli)",
        )
        require(
            rows.global_batch > 1 or rows.num_sentences > 2,
            "a batch of one text has no negatives, so its loss is 0: raise per_device_train_batch_size",
        )

    def prepare(self, batch: EncodedBatch) -> ContrastiveInputs:
        """Collect the inputs of the loss, with any encoder passes and state updates of a training step.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `ContrastiveInputs`: The inputs of [`loss_at`].

        Raises:
            ValueError: If `mask_duplicates` is set and the batch has no `text_ids`.
        """
        text_ids = batch.text_ids if self.needs_text_ids else None
        return ContrastiveInputs(batch.embeddings, text_ids=text_ids, guide=batch.inputs.get("guide"))

    def loss_at(self, inputs: ContrastiveInputs, dim: int) -> torch.Tensor:
        """Compute InfoNCE of the leading dimensions.

        Args:
            inputs (`ContrastiveInputs`): What [`prepare`] returned.
            dim (`int`): The number of leading dimensions.

        Returns:
            `torch.Tensor`: A scalar.
        """
        return self.info_nce(
            inputs.embeddings[..., :dim],
            gather=self.training,
            extra_negatives=None if inputs.queue is None else inputs.queue[:, :dim],
            text_ids=inputs.text_ids,
            guide=inputs.guide,
        )

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        """Compute the loss; see [`Objective.forward`]."""
        inputs = self.prepare(batch)
        loss = self.loss_at(inputs, self.dim)
        return {"info_nce": loss, **inputs.other_losses} if inputs.other_losses else loss
