"""DiffCSE: InfoNCE, and a discriminator that finds a sentence's replaced tokens with the help of its embedding."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from ..runtime.distributed import mean_over_processes
from ..runtime.errors import ModelError, SettingError, check_values
from ..runtime.loading import load_pretrained
from .base import EncodedBatch, TrainedModel, as_full_precision
from .dimension_contrastive import GlobalBatchNorm
from .info_nce import Prepared, SimCSEObjective
from .masked_lm import load_masked_lm, mask_tokens


class DiffCSE(SimCSEObjective):
    r"""SimCSE's loss, and that of a discriminator that reads an edited sentence and the embedding of the original.

    Chuang et al. 2022 (arXiv:2204.10298), Eq. 3 and 4. Tokens of a sentence x are masked as for masked-LM training (of
    the selected tokens 80% become [MASK], 10% a random token, 10% stay). A frozen masked-LM, the generator, then
    predicts every token of the edited sentence x''. As in the authors' code, its likeliest token replaces every token
    of x, selected or not, except special tokens.

    For every token of x'', the discriminator predicts whether it differs from that of x. It is an encoder of its own,
    which starts as a copy of the model's, is trained with it and discarded afterwards. The sentence embedding h of x
    replaces the first position ([CLS]) in the output of the discriminator's embedding layer, so no position embedding,
    layer norm or dropout is applied to h. The encoder receives gradient through h. The loss is the mean binary
    cross-entropy over all tokens of the global batch except special tokens, for all sentences of a row.

    In training, h passes through the authors' projector: linear layer to twice the size, batch norm, ReLU, linear
    layer, batch norm without scale and bias. It takes the place of SimCSE's head, so use pooler `cls_before_pooler`.

    Masks are drawn from torch's global generator, like dropout. In evaluation mode the loss is SimCSE's alone, and
    there is no projector.

    Args:
        dim (`int`): Embedding size.
        temperature (`float`, *optional*, defaults to `0.05`): See [`SimCSEObjective`].
        similarity (`str`, *optional*, defaults to `"cosine"`): See [`SimCSEObjective`].
        hard_negative_weight (`float`, *optional*, defaults to `0.0`): See [`SimCSEObjective`].
        replaced_weight (`float`, *optional*, defaults to `0.005`): Lambda, the weight of the discriminator's loss.
        mask_ratio (`float`, *optional*, defaults to `0.3`): Share of the tokens that are selected for masking.
        generator (`str`, *optional*): Directory or hub name of a masked-LM with its tokenizer, which must have the
            model's vocabulary. By default it is the checkpoint that the model was loaded from. The paper uses a
            smaller one, `distilbert-base-uncased`.
        projector (`bool`, *optional*, defaults to `True`): Use the projector in training.

    Raises:
        ValueError: If a weight or ratio is out of range.
    """

    name = "diffcse"
    summary = (
        "contrastive learning (DiffCSE): InfoNCE, and a discriminator of replaced tokens that reads the embedding"
    )
    papers = ("diffcse", "simcse")
    # The authors' run_diffcse.sh for bert-base-uncased. The projector takes the place of SimCSE's head.
    defaults = {
        "pooler_type": "cls_before_pooler",
        "mlp_only_train": False,
        "per_device_train_batch_size": 64,
        "learning_rate": 7e-6,
        "num_train_epochs": 2,
    }
    vectors = ()
    supports_gradcache = False

    def __init__(
        self,
        dim: int,
        temperature: float | None = None,
        similarity: str = "cosine",
        hard_negative_weight: float = 0.0,
        replaced_weight: float = 0.005,
        mask_ratio: float = 0.3,
        generator: str | None = None,
        projector: bool = True,
    ):
        super().__init__(dim, temperature, similarity, hard_negative_weight)
        check_values("a number above 0", replaced_weight=replaced_weight, mask_ratio=mask_ratio)
        check_values("a number of 0 or more and below 1", mask_ratio=mask_ratio)
        check_values("true or false", projector=projector)
        self.replaced_weight = replaced_weight
        self.mask_ratio = mask_ratio
        self.generator = generator
        self.classifier = nn.Linear(dim, 1)
        self.projector: nn.Sequential | None = None
        if projector:
            self.projector = nn.Sequential(
                nn.Linear(dim, 2 * dim, bias=False),
                GlobalBatchNorm(2 * dim),
                nn.ReLU(),
                nn.Linear(2 * dim, dim, bias=False),
                GlobalBatchNorm(dim, affine=False),
            )

    def attach(self, model: TrainedModel) -> None:
        """Copy the encoder as the discriminator, and load the generator.

        Args:
            model (`TrainedModel`): The model to be trained.

        Raises:
            ModelError: If there is no trained masked-LM to load, or it has another vocabulary.
            SettingError: If the encoder's embedding layer does not have the size of the sentence embedding.
        """
        source = self.generator or model.name_or_path
        advice = "Set the option generator of objective 'diffcse' to a masked-LM with the model's tokenizer."
        if not source:
            raise ModelError(f"the model was not loaded from a checkpoint, so there is no generator to load. {advice}")
        try:
            masked_lm = load_masked_lm(source)
            tokenizer = load_pretrained(AutoTokenizer.from_pretrained, source)
        except (OSError, ValueError) as error:
            raise ModelError(f"the generator of objective 'diffcse': {error}. {advice}") from error
        if masked_lm.config.vocab_size != model.config.vocab_size:
            raise ModelError(
                f"the generator {source} has a vocabulary of {masked_lm.config.vocab_size} tokens, but the model "
                f"{model.config.vocab_size}. {advice}"
            )
        self.discriminator: Any = model.copy_encoder().base_model
        width = self.discriminator.get_input_embeddings().embedding_dim
        if width != self.dim or not hasattr(self.discriminator, "embeddings"):
            raise SettingError(
                f"objective 'diffcse' needs an embedding layer of size {self.dim}, as the sentence embedding, but "
                f"that of this encoder ({model.config.model_type}) has size {width}: choose another encoder"
            )
        pooler = getattr(self.discriminator, "pooler", None)
        if pooler is not None:  # no loss reaches it
            pooler.requires_grad_(False)
        # Inside a tuple it is not a submodule, so it is neither trained nor saved with every checkpoint.
        self._generator: tuple[Any] = (masked_lm,)
        self._masker = DataCollatorForLanguageModeling(tokenizer, mlm_probability=self.mask_ratio)

    def prepare(self, batch: EncodedBatch) -> Prepared:
        """Return the embeddings and, in training, this process's share of the weighted loss `replaced_tokens`."""
        embeddings = batch.embeddings
        if not self.training:
            return Prepared(embeddings)
        mask = batch.inputs["attention_mask"].flatten(0, 1)
        present = mask.any(-1)  # a row with fewer sentences than the widest is filled up with empty ones
        mask = mask[present]
        of_texts = embeddings.flatten(0, 1)[present]
        if self.projector is not None:
            of_texts = self.projector(of_texts.to(self.classifier.weight.dtype))
            filled = of_texts.new_zeros(len(present), self.dim)
            filled[present] = of_texts
            embeddings = filled.view_as(embeddings)
        ids = batch.inputs["input_ids"].flatten(0, 1)[present]
        # 1. The generator's likeliest tokens for the masked sentence replace the tokens of the sentence.
        with torch.no_grad():
            masked, _ = mask_tokens(ids, self._masker)
            generator = self._generator[0].to(ids.device)
            likeliest = generator(input_ids=masked, attention_mask=mask).logits.argmax(-1)
        special_ids = torch.tensor(self._masker.tokenizer.all_special_ids, device=ids.device)
        tokens = (mask == 1) & ~torch.isin(ids, special_ids)
        edited = torch.where(tokens, likeliest, ids)
        # 2. The discriminator reads the embedding of the sentence in the place of the first token of the edited one.

        def put_embeddings_first(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
            first = of_texts[:, None].to(output.dtype)
            return torch.cat([first, output[:, 1:]], dim=1)

        # A hook, because each architecture has its own way from its embedding layer to its first attention layer.
        hook = self.discriminator.embeddings.register_forward_hook(put_embeddings_first)
        try:
            hidden = self.discriminator(input_ids=edited, attention_mask=mask).last_hidden_state
        finally:
            hook.remove()
        # 3. It predicts for each token whether it was replaced.
        logits = as_full_precision(self.classifier(hidden).squeeze(-1))[tokens]
        is_replaced = (edited != ids)[tokens].to(logits.dtype)
        total = F.binary_cross_entropy_with_logits(logits, is_replaced, reduction="sum")
        loss = mean_over_processes(total, tokens.sum())
        return Prepared(embeddings, other_losses={"replaced_tokens": self.replaced_weight * loss})
