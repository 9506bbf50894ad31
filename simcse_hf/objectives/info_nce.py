"""InfoNCE, SimCSE's loss, and SimCSE's objective, the base of the objectives that add something to it."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..runtime.distributed import gather_rows, missing_columns, own_rows
from ..runtime.errors import DataError, SettingError, check_values
from .base import ABSENT, EncodedBatch, Loss, Objective, Options, TrainingRows, as_full_precision, no_autocast

#: Logits of a block of rows, 32 MB in float32, of which glibc returns every block to the system. More logits are
#: computed in blocks, and again in the backward pass.
CHUNK_LOGITS = 2**23
#: Tolerance of comparisons of similarities, in units of the machine epsilon. Two copies of a text
#: have embeddings that differ by rounding, and rounding must not decide which copy is closer to a third text.
ROUNDING_STEPS = 16
#: The default temperature of each similarity: those of SimCSE, Table D.1, where a dot product is not divided ("N/A").
DEFAULT_TEMPERATURES = {"cosine": 0.05, "dot": 1.0}
SIMILARITIES = tuple(DEFAULT_TEMPERATURES)
#: The texts that the denominator of [`InfoNCE`] sums over.
NEGATIVES = ("batch", "own", "batch+queries", "batch+documents", "all")

#: An odd number with bits everywhere, so that [`link`] gives two pairs of texts the same number only by chance.
_SPREAD = -0x61C8864680B583EB

#: What is known of some texts by its name, each with an axis for the rows and one for the columns; see
#: [`InfoNCE.forward`].
Texts = dict[str, Tensor]


def check_similarity(similarity: str, temperature: float | None) -> tuple[str, float]:
    """Check a similarity and a temperature, and fill in the default temperature of the similarity.

    Args:
        similarity (`str`): `"cosine"` or `"dot"`.
        temperature (`float`, *optional*): The temperature, or `None` for `DEFAULT_TEMPERATURES[similarity]`.

    Returns:
        `tuple[str, float]`: The similarity and the temperature.

    Raises:
        ValueError: If the similarity is unknown, or the temperature is not a finite number above 0.
    """
    check_values(SIMILARITIES, similarity=similarity)
    if temperature is None:
        temperature = DEFAULT_TEMPERATURES[similarity]
    check_values("a number above 0", temperature=temperature)
    return similarity, temperature


def link(first: Tensor, second: Tensor) -> Tensor:
    """Return one number for two texts, from the integers `text_ids` of both, in 64 bits without their overflow."""
    return first * _SPREAD + second


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

    `negatives` chooses the sum of the denominator. `"batch"` is the one above. With `"own"` it has no texts of other
    rows: e^{s(h_i, h+_i)} + sum_m alpha e^{s(h_i, h-_im)}, which needs rows with hard negatives. `"all"` is the
    denominator of Qwen3-Embedding (Zhang et al. 2025, arXiv:2506.05176, Eq. 1): the one above, and with d_j for each
    positive and hard negative of row j

        sum_{j != i} e^{s(h_i, h_j)} + sum_{j != i} sum_{d_j} e^{s(h+_i, d_j)}

    `"batch+queries"` adds the first of these sums, of anchors, and `"batch+documents"` the second one. Their mask
    m_ij is `false_negative_margin=0.1` with `text_ids`, and the margin holds for the similarities of both sums.
    (ms-swift also counts the row's own hard negatives in the second sum, to which its margin does not apply.)

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
        negatives (`str`, *optional*, defaults to `"batch"`): One of `NEGATIVES`.

    Raises:
        ValueError: If an argument is not valid. The message names it.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import InfoNCE
        >>> texts = torch.eye(3)
        >>> rows = torch.stack([texts, texts], dim=1)  # (3, 2, 3): each anchor equals its positive
        >>> loss = InfoNCE(temperature=1.0)(rows)
        >>> round(loss.item(), 4)  # -log(e / (e + 2)): the other two positives have the cosine 0
        0.5514
    """

    def __init__(
        self,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        false_negative_margin: float | None = None,
        negatives: str = "batch",
    ):
        super().__init__()
        self.similarity, self.temperature = check_similarity(similarity, temperature)
        check_values("true or false", symmetric=symmetric)
        check_values(NEGATIVES, negatives=negatives)
        check_values(
            "a finite number", hard_negative_weight=hard_negative_weight, false_negative_margin=false_negative_margin
        )
        self.hard_negative_weight = hard_negative_weight
        self.symmetric = symmetric
        self.false_negative_margin = false_negative_margin
        self.negatives = negatives
        #: Whether the sum also compares positives with the texts of other rows.
        self.compares_documents = negatives in ("batch+documents", "all")
        #: The first column of the candidates.
        self.start = 0 if symmetric or negatives in ("batch+queries", "all") else 1

    def forward(
        self,
        embeddings: Tensor,
        *,
        gather: bool = False,
        extra_negatives: Tensor | None = None,
        text_ids: Tensor | None = None,
        are_pairs: Tensor | None = None,
        guide: Tensor | None = None,
        present: Tensor | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Tensor:
        """Compute the loss of column 0 against column 1, with the further columns as hard negatives.

        Args:
            embeddings (`torch.Tensor`): This process's rows, of shape `(n, 2 + k, dim)`.
            gather (`bool`, *optional*, defaults to `False`): Whether the candidates are the rows of all processes. In
                evaluation each process uses its own.
            extra_negatives (`torch.Tensor`, *optional*): Candidates of shape `(q, dim)` that are nobody's positive,
                such as a queue. Whatever the `negatives`, each compared text is compared with them, too.
            text_ids (`torch.Tensor`, *optional*): Integers of shape `(n, 2 + k)`, equal for equal texts. A candidate
                with the text of the anchor or of its positive is left out, and so is one that is in a pair with either
                of them in another row: the other positives of an equal anchor, and the anchors of an equal positive.
                Extra negatives are never left out.
            are_pairs (`torch.Tensor`, *optional*): Of shape `(n,)` and type bool: the rows whose first two texts
                belong together. By default all do.
            guide (`torch.Tensor`, *optional*): The guide's unit vectors of the texts, of shape `(n, 2 + k, g)`.
            present (`torch.Tensor`, *optional*): Of shape `(n, 2 + k)` and type bool: `False` where a row has fewer
                texts than the widest, which are no candidates. Either all processes give it or none.
            reduction (`str`, *optional*, defaults to `"mean"`): `"mean"` or `"none"`.

        Returns:
            `torch.Tensor`: The mean loss in float32 or wider or, without reduction, the losses of the anchors and
                then, if it is symmetric, of the positives. Loss and gradient of a text with a single candidate are 0.

        Raises:
            SettingError: If `text_ids` does not have one number for each text.
        """
        count = len(embeddings)
        shape = embeddings.shape[:2]
        if text_ids is not None and text_ids.shape != shape:
            raise SettingError(f"text_ids must be {list(shape)}, one per text, got {list(text_ids.shape)}")
        missing = 0 if present is None else missing_columns(present, gather)
        with no_autocast(embeddings):
            normalize = self.similarity == "cosine"
            vectors = as_full_precision(embeddings, normalize)
            known = {"vectors": vectors, "ids": text_ids, "guide": guide, "present": present}
            texts = {name: x for name, x in known.items() if x is not None}
            pool = {name: gather_rows(x[:, self.start :], gather, missing) for name, x in texts.items()}
            if text_ids is not None:
                pairs = text_ids[:, :2]
                if are_pairs is not None:  # a text that belongs to no other is in a pair with itself
                    pairs = pairs.where(are_pairs[:, None], pairs[:, :1])
                pairs = gather_rows(pairs, gather)
                pool["links"] = link(pairs[:, :, None], pairs[:, None]).flatten().sort().values
            candidates = pool["vectors"].flatten(0, 1)
            if extra_negatives is not None:
                extra = as_full_precision(extra_negatives, normalize)
                candidates = torch.cat([candidates, extra])
            own = own_rows(embeddings, gather)
            block_size = -(-CHUNK_LOGITS // len(candidates))
            sums = []
            for column in (0, 1) if self.symmetric or self.compares_documents else (0,):
                for first in range(0, count, block_size):
                    rows = slice(first, first + block_size)
                    arguments = (texts, rows, column, own[rows], pool, candidates)
                    if block_size >= count:
                        of_block = self._terms(*arguments)
                    else:
                        of_block = checkpoint(self._terms, *arguments, use_reentrant=False, preserve_rng_state=False)
                    sums.append(of_block)
        in_order = torch.cat(sums)
        if self.compares_documents:
            in_order = in_order.view(2, count).logsumexp(0)
        in_order = F.softplus(in_order)
        return in_order.mean() if reduction == "mean" else in_order

    def _terms(
        self,
        texts: Texts,
        rows: slice,
        column: int,
        own: Tensor,
        pool: Texts,
        candidates: Tensor,
    ) -> Tensor:
        """Compare the texts in a column of some rows with their negatives.

        Args:
            texts (`Texts`): The texts of this process.
            rows (`slice`): The rows, n of them.
            column (`int`): The column of the queries; their partners are in the other one of the first two.
            own (`torch.Tensor`): The rows of the pool that these rows are, of shape `(n,)`.
            pool (`Texts`): The candidates, and the `links` of texts that belong together, in order.
            candidates (`torch.Tensor`): Their vectors, row by row, and behind them the extra negatives.

        Returns:
            `torch.Tensor`: log sum e^{s - s_positive} over the negatives of each text, of shape `(n,)`. Its softplus
                is the loss.
        """
        queries = texts["vectors"][rows, column] / self.temperature
        partners = texts["vectors"][rows, 1 - column]
        positive = (queries * partners).sum(1, keepdim=True)
        others = (queries @ candidates.T).sub_(positive)

        left_out = []
        if "guide" in pool:
            guide = texts["guide"][rows]
            seen = guide[:, column] @ pool["guide"].flatten(0, 1).T
            of_pair = (guide[:, 0] * guide[:, 1]).sum(1, keepdim=True)
            limit = of_pair + (self.false_negative_margin or 0.0)
            left_out.append(seen > limit + ROUNDING_STEPS * torch.finfo(seen.dtype).eps)
        elif self.false_negative_margin is not None:
            lengths = queries.norm(dim=1, keepdim=True) * partners.norm(dim=1, keepdim=True)
            margin = self.false_negative_margin / self.temperature
            limit = margin + ROUNDING_STEPS * torch.finfo(others.dtype).eps * lengths
            left_out.append(others > limit)
        if "ids" in pool:
            known = pool["links"]
            for ids in texts["ids"][rows, :2].unbind(1):
                links = link(ids[:, None], pool["ids"].flatten())
                place = torch.searchsorted(known, links).clamp(max=len(known) - 1)
                left_out.append(known[place] == links)
        if "present" in pool:
            left_out.append(~pool["present"].flatten())

        # The numbers of each row's own texts among the candidates: the pair first, then the hard negatives.
        total, width = pool["vectors"].shape[:2]
        first = width * own[:, None]
        numbers = first + torch.arange(width, device=own.device)
        pair, hard_negatives = numbers.tensor_split([2 - self.start], dim=1)
        if self.hard_negative_weight:
            weight = others.new_tensor(self.hard_negative_weight)
            others.scatter_add_(1, hard_negatives, weight.expand(hard_negatives.shape))
        if self.negatives == "own" or (self.compares_documents and column == 1):
            place = torch.arange(total * width, device=own.device)
            is_own = place // width == own[:, None]
            is_anchor = place % width < 1 - self.start
            left_out.append(~is_own if self.negatives == "own" else is_own | is_anchor)
        nothing = torch.finfo(others.dtype).min  # not -inf: if all others are left out, the gradient is 0 and not NaN
        for each in left_out:  # extra negatives are behind the others and have no ids
            others[:, : each.shape[-1]].masked_fill_(each, nothing)
        # Neither the partner nor, where anchors are candidates, the query itself is a negative.
        others.scatter_(1, pair, nothing)
        return others.logsumexp(1) + 0.0 * positive[:, 0]  # NaN and infinity must reach the loss


class Prepared(NamedTuple):
    """What [`SimCSEObjective.prepare`] makes of a batch.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`.
        queue (`torch.Tensor`, *optional*): Embeddings of earlier batches, of shape `(q, dim)`, which are negatives of
            every anchor.
        other_losses (`Mapping[str, torch.Tensor]`): Named losses that are added to InfoNCE once, whatever the widths.
    """

    embeddings: Tensor
    queue: Tensor | None = None
    other_losses: Mapping[str, Tensor] = {}


class SimCSEObjective(Objective):
    """[`InfoNCE`] of column 0 against column 1, with the further columns as hard negatives.

    SimCSE (Gao et al. 2021, arXiv:2104.08821), Eq. 1, 4, 5 and 8. A row may have any number of hard negatives of any
    label: one contradiction in the paper, or a contradiction and a neutral hypothesis (Table 7). If their number
    differs, the rows have `relations`. With `negatives="own"` a row of a stream without any has the loss 0.

    A subclass that adds a queue, changes the embeddings or adds a loss overrides [`prepare`]. It is called once per
    step, and InfoNCE once per width, so under [`Matryoshka`] a second encoder runs only once.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*): Temperature of the softmax, above 0. Defaults to 0.05 for the cosine and
            to 1 for the dot product.
        similarity (`str`, *optional*, defaults to `"cosine"`): `"cosine"` or `"dot"`.
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): Logarithm of alpha, the weight of a row's own
            hard negatives (Eq. 8).
        symmetric (`bool`, *optional*, defaults to `False`): Whether positives look for their anchors as well (NT-Xent;
            SimCLR, arXiv:2002.05709, Eq. 1).
        bidirectional (`bool`, *optional*, defaults to `False`): Whether the loss is the mean of two, that of anchors
            that look for their positive and that of positives that look for their anchor among the anchors alone.
        mask_duplicates (`bool`, *optional*, defaults to `False`): Whether to leave out candidates with the same text
            as the anchor or its positive, and those that are in a pair with either of them.
        false_negative_margin (`float`, *optional*): Leave out candidates that are more similar to the anchor than its
            positive by more than this, by the embeddings or by the guide of the run.
        encoders (`int`, *optional*, defaults to `1`): 2 trains an independent encoder for all columns but the first
            (Table 2).
        negatives (`str`, *optional*, defaults to `"batch"`): What the positive is told from: `batch`, all positives
            and hard negatives of the batch; `own`, the hard negatives of the row alone; `batch+queries`, also the
            other anchors; `batch+documents`, also the texts of other rows, compared with the positive; `all`, both, as
            in Qwen3-Embedding (Zhang et al. 2025, arXiv:2506.05176, Eq. 1).

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, build_objective
        >>> objective = build_objective("simcse", dim=64, options={"temperature": 0.05, "matryoshka_dims": [16]})
        >>> batch = EncodedBatch(torch.randn(8, 3, 64))  # eight rows of an anchor, a positive and a hard negative
        >>> list(objective(batch))
        ['loss_64', 'loss_16']
    """

    name = "simcse"
    summary = "contrastive learning (SimCSE): InfoNCE with the other rows of the batch as negatives"
    papers: tuple[str, ...] = ("simcse",)
    vectors: tuple[str, ...] = ("guide",)
    similarity = "cosine"

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        symmetric: bool = False,
        bidirectional: bool = False,
        mask_duplicates: bool = False,
        false_negative_margin: float | None = None,
        encoders: int = 1,
        negatives: str = "batch",
    ):
        super().__init__(dim)
        check_values("true or false", mask_duplicates=mask_duplicates, bidirectional=bidirectional)
        check_values((1, 2), encoders=encoders)
        choices = {
            "symmetric": symmetric,
            "bidirectional": bidirectional,
            f"negatives={negatives}": negatives != "batch",
        }
        given = [choice for choice, is_given in choices.items() if is_given]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} each choose the candidates: set one of them")
        self.info_nce = InfoNCE(
            temperature, similarity, hard_negative_weight, symmetric, false_negative_margin, negatives
        )
        self.similarity = self.info_nce.similarity
        if negatives == "own":
            self.summary = "contrastive learning (SimCSE): InfoNCE with the row's own hard negatives alone"
        elif negatives != "batch":
            self.papers = ("simcse", "qwen3-embedding")
        self.bidirectional = bidirectional
        self.encoders = encoders
        self.needs_text_ids = mask_duplicates
        #: The sizes whose losses are summed; see [`Matryoshka`].
        self.widths = [dim]

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows with relations that are not a positive and hard negatives, and batches without negatives.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            DataError: If a row with relations does not consist of an anchor, one positive and hard negatives, if a
                batch consists of one pair, or if a row lacks the hard negatives that it is compared with.
        """
        rows.check_relations(self.name)
        if self.info_nce.negatives == "own":
            texts = [rows.num_sentences]
            if "relations" in rows.columns:
                texts = [1 + len(row) - row.count(ABSENT) for row in rows.column("relations")]
            for number, count in enumerate(texts, 1):
                if count < 3:
                    raise DataError(
                        f"training row {number} has no hard negative, and negatives=own compares the positive with "
                        "nothing else: add hard negatives (simcse-hf mine), or remove rows without any"
                    )
            return
        if rows.num_sentences <= 2:
            rows.check_batch("a batch of one text has no negatives, so its loss is 0")
        if not self.needs_text_ids:
            can_mask = "mask_duplicates" in self.options
            first = "the option mask_duplicates of the objective, or " if can_mask else ""
            rows.warn_of_equal_texts(f"set {first}batch_sampler to no_duplicates")

    def prepare(self, batch: EncodedBatch) -> Prepared:
        """Return what the loss compares, after any encoder passes and state updates of a training step.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `Prepared`: The embeddings, and the queue and other losses of a subclass.
        """
        return Prepared(batch.embeddings)

    def forward(self, batch: EncodedBatch) -> Loss:
        """Compute the loss; see [`Objective.forward`].

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `torch.Tensor` or `dict[str, torch.Tensor]`: The loss; `info_nce` and the other losses if there are some;
                or `loss_256` for a width of 256 and so on, if there are several.

        Raises:
            ValueError: If `mask_duplicates` is set and the batch has no `text_ids`.
        """
        embeddings, queue, other_losses = self.prepare(batch)
        known: Options = {}
        if "relations" in batch.inputs:
            is_present = batch.inputs["relations"] != ABSENT
            known["present"] = F.pad(is_present, (1, 0), value=True)  # an anchor is always there
        if self.needs_text_ids:
            known["text_ids"] = batch.text_ids
        if "guide" in self.vectors:
            known["guide"] = batch.inputs.get("guide")
        of_widths = {}
        for width in self.widths:
            extra = None if queue is None else queue[:, :width]
            loss = self.info_nce(embeddings[..., :width], gather=self.training, extra_negatives=extra, **known)
            if self.bidirectional:
                pairs = {name: x[:, :2].flip(1) for name, x in known.items() if x is not None}
                back = self.info_nce(embeddings[:, :2, :width].flip(1), gather=self.training, **pairs)
                loss = (loss + back) / 2
            of_widths[f"loss_{width}"] = loss
        if len(of_widths) > 1:
            return {**of_widths, **other_losses}
        if other_losses:
            return {"info_nce": loss, **other_losses}
        return loss
