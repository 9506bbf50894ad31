"""Tokenises a training set once: rows of texts become rows of token id lists."""

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

logger = logging.get_logger(__name__)

SHOWN_ROWS = 5


def tokenize_dataset(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, num_proc: int | None = None
) -> Dataset:
    """Rows of texts -> rows of token ids, cut to `max_seq_length`, not padded.

    Args:
        dataset: columns `sent0`, `sent1`, ... in the order of the roles: anchor, positive, hard negatives.
        tokenizer: adds its special tokens.
        max_seq_length: tokens a text is cut to, special tokens included.
        num_proc: processes to tokenise with.

    Returns:
        One column `input_ids`: a list of `num_sentences` lists of ids a row.

    Raises:
        ValueError: the dataset is empty.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset to tokenise is empty")
    columns = dataset.column_names

    def tokenize(rows: dict) -> dict:
        by_column = [
            tokenizer(rows[column], truncation=True, max_length=max_seq_length, return_attention_mask=False)[
                "input_ids"
            ]
            for column in columns
        ]
        longest = [sum(len(ids) == max_seq_length for ids in row) for row in zip(*by_column, strict=True)]
        return {"input_ids": [list(row) for row in zip(*by_column, strict=True)], "at_limit": longest}

    tokenized = dataset.map(
        tokenize,
        batched=True,
        num_proc=num_proc,
        remove_columns=columns,
        new_fingerprint=_fingerprint(dataset, tokenizer, max_seq_length),
        desc="Tokenising",
    )
    at_limit = np.asarray(tokenized.data.column("at_limit"))
    if at_limit.any():
        rows = ", ".join(str(row + 1) for row in np.flatnonzero(at_limit)[:SHOWN_ROWS])
        logger.warning(
            f"{at_limit.sum()} of {len(dataset) * len(columns)} texts fill max_seq_length = {max_seq_length} tokens: "
            f"what is longer is cut (rows {rows}{', ...' if np.count_nonzero(at_limit) > SHOWN_ROWS else ''})."
        )
    return tokenized.remove_columns("at_limit")


def _fingerprint(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> str:
    """The same for the same texts, tokenizer and length, so that `map` finds its earlier result.

    The default, a hash of the pickled function, is not: a tokenizer's state changes with its first call.
    """
    tokenizer("", truncation=True, max_length=max_seq_length)
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else sorted(tokenizer.get_vocab().items())
    return Hasher.hash([dataset._fingerprint, dataset.column_names, rules, max_seq_length])
