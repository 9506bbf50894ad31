"""Random masks for masked language modelling, drawn inside the training step."""

import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from ..objectives.masked_lm import mask_tokens


class TokenMasker:
    """Draw masks for token ids: 80% become [MASK], 10% a random token, 10% stay.

    The masks come from torch's global generator, as dropout masks do. So a resumed run draws the same masks as an
    uninterrupted one, which masks drawn in data loader workers would not guarantee.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Knows the mask token and the special tokens, which are never masked.
        probability (`float`): Share of the tokens to predict.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float):
        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)

    def __call__(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the masked ids and the targets, which are -100 where nothing is to be predicted."""
        return mask_tokens(input_ids, self._collator)

    def mask_once(self, dataset: Dataset, seed: int) -> Dataset:
        """Mask a data set of `input_ids` with masks that are the same in every evaluation.

        Args:
            dataset (`Dataset`): Rows of `input_ids`.
            seed (`int`): Seed of the masks; the global generator is left as it was.

        Returns:
            `Dataset`: Columns `input_ids`, masked, and `labels`.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            rows = [self(torch.tensor([ids])) for ids in dataset["input_ids"]]
        masked, labels = ([row[i][0].tolist() for row in rows] for i in (0, 1))
        return Dataset.from_dict({"input_ids": masked, "labels": labels})
