"""DiffCSE: InfoNCE, and telling a sentence's replaced tokens by its vector."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoTokenizer

from ..ops.distributed import mean_over_processes
from .base import EncodedBatch, Encoder
from .info_nce import as_full_precision
from .masked_lm import load_masked_lm
from .simcse import ContrastiveInputs, SimCSEObjective


class DiffCSE(SimCSEObjective):
    r"""SimCSE's loss + weight * the loss of a discriminator that sees an edited sentence and the original's vector.

    Chuang et al. 2022 (arXiv:2204.10298), Eq. 3 and 4. Of a sentence x, tokens are masked and filled in by a frozen
    masked-LM, the generator, with its likeliest token: x''. For every token of x'' the discriminator predicts whether
    it is another than in x. It is an encoder of its own, which starts as a copy of the model's, is trained with it and
    thrown away; its first input embedding, that of [CLS], is the sentence vector h of x, through which the gradient
    reaches the encoder. The loss is the mean binary cross-entropy over all tokens of the batch that are no special
    tokens, over all processes, and of every sentence of a row.

    Masks are drawn from torch's global generator, like dropout. In evaluation mode the loss is that of SimCSE alone.

    Here h is what the model's pooler gives, with SimCSE's dense + tanh head for `cls`; the paper's projection is of
    two layers with batch normalisation. Only masked tokens are replaced.

    Args:
        dim: of the sentence vectors.
        temperature, similarity, hard_negative_weight: of [`InfoNCE`].
        replaced_weight: lambda, the weight of the discriminator's loss, 0.005 in the paper.
        mask_ratio: share of the tokens that are masked, 0.3 in the paper.
        generator: directory or hub name of a masked-LM with its tokenizer, of the model's vocabulary; by default the
            checkpoint that the model was loaded from. The paper's is a smaller one, `distilbert-base-uncased`.

    Raises:
        ValueError: a weight or ratio outside its range.
    """

    summary = (
        "contrastive learning (DiffCSE): InfoNCE, and a discriminator of replaced tokens that reads the embedding"
    )
    papers = ("diffcse", "simcse")
    supports_gradcache = False

    def __init__(
        self,
        dim: int,
        temperature: float = 0.05,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        replaced_weight: float = 0.005,
        mask_ratio: float = 0.3,
        generator: str | None = None,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        if not replaced_weight > 0:
            raise ValueError(f"replaced_weight must be above 0, got {replaced_weight}")
        if not 0 < mask_ratio < 1:
            raise ValueError(f"mask_ratio must lie between 0 and 1, got {mask_ratio}")
        self.replaced_weight = replaced_weight
        self.mask_ratio = mask_ratio
        self.generator = generator
        self.discriminator: nn.Module | None = None
        self.classifier = nn.Linear(dim, 1)

    def attach(self, model: Encoder) -> None:
        """Copies the encoder and loads the generator.

        Raises:
            ValueError: there is no trained masked-LM to load, it has another vocabulary or no mask token, or the
                encoder's embeddings are narrower than its vectors.
        """
        source = self.generator or model.name_or_path
        masked_lm, tokenizer = _load_generator(source)
        if masked_lm.config.vocab_size != model.config.vocab_size:
            raise ValueError(
                f"the generator {source} has a vocabulary of {masked_lm.config.vocab_size} tokens and the model "
                f"one of {model.config.vocab_size}: name a generator with the model's tokenizer"
            )
        if tokenizer.mask_token_id is None:
            raise ValueError(f"the tokenizer of the generator {source} has no mask token: name a masked-LM")
        self.discriminator = model.copy_encoder().base_model
        width = self.discriminator.get_input_embeddings().embedding_dim
        if width != self.dim:
            raise ValueError(
                f"objective 'diffcse' puts the sentence vector in place of an input embedding, and those of this "
                f"encoder ({model.config.model_type}) have {width} numbers, the vector {self.dim}"
            )
        pooler = getattr(self.discriminator, "pooler", None)
        if pooler is not None:  # no loss reaches it
            pooler.requires_grad_(False)
        # In a tuple it is no submodule: it is frozen, and not to be saved with every checkpoint.
        self._generator = (masked_lm,)
        self._mask_token_id = tokenizer.mask_token_id
        self._special_ids = torch.tensor(tokenizer.all_special_ids)

    def prepare(self, batch: EncodedBatch) -> ContrastiveInputs:
        """The batch's vectors and, in training, this process's share of the weighted loss, `replaced_tokens`."""
        if not self.training:
            return ContrastiveInputs(batch.vectors)
        mask = batch.inputs["attention_mask"].flatten(0, -2)
        present = mask.any(-1)  # rows that have fewer sentences are filled up with empty ones
        ids, mask = batch.inputs["input_ids"].flatten(0, -2)[present], mask[present]
        tokens = (mask == 1) & ~torch.isin(ids, self._special_ids.to(ids.device))
        edited = self._edit(ids, mask, tokens)
        logits = self._replaced_logits(edited, mask, batch.vectors.flatten(0, -2)[present])[tokens]
        targets = (edited != ids)[tokens].to(logits.dtype)
        total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        mean = mean_over_processes(total, tokens.sum())
        return ContrastiveInputs(batch.vectors, other_losses={"replaced_tokens": self.replaced_weight * mean})

    @torch.no_grad()
    def _edit(self, ids: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(n, length) ids with some of the `tokens` replaced by what the generator puts there."""
        chosen = tokens & (torch.rand(ids.shape, device=ids.device) < self.mask_ratio)
        generator = self._generator[0].to(ids.device)
        logits = generator(input_ids=ids.masked_fill(chosen, self._mask_token_id), attention_mask=mask).logits
        return torch.where(chosen, logits.argmax(-1), ids)

    def _replaced_logits(self, ids: torch.Tensor, mask: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        embeddings = self.discriminator.get_input_embeddings()(ids)
        conditioned = torch.cat([vectors[:, None].to(embeddings.dtype), embeddings[:, 1:]], dim=1)
        hidden = self.discriminator(inputs_embeds=conditioned, attention_mask=mask).last_hidden_state
        return as_full_precision(self.classifier(hidden).squeeze(-1))


def _load_generator(source: str):
    """A frozen masked-LM and its tokenizer.

    Raises:
        ValueError: there is none, or its head is not trained.
    """
    advice = "Name one by the option generator of objective 'diffcse': a masked-LM with the model's tokenizer."
    if not source:
        raise ValueError(f"the model was not loaded from a checkpoint, so there is no generator to load. {advice}")
    try:
        return load_masked_lm(source), AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(f"the generator of objective 'diffcse': {error}. {advice}") from error
