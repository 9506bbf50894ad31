"""Tokenises a training set once: rows of texts become rows of token id lists."""

import numpy as np
import pyarrow.compute as pc
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
        dataset: columns `sent0`, `sent1`, ... in the order of the roles: anchor, positive, hard negatives; or a column
            `texts`, a list a row, with `relations` beside it (see `build_nli_groups`).
        tokenizer: adds its special tokens.
        max_seq_length: tokens a text is cut to, special tokens included.
        num_proc: processes to tokenise with.

    Returns:
        A column `input_ids`: a list of `num_sentences` lists of ids a row; and `relations`, where there are any.

    Raises:
        ValueError: the dataset is empty.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset to tokenise is empty")
    grouped = "texts" in dataset.column_names
    columns = ["texts"] if grouped else dataset.column_names

    def tokenize_groups(rows: dict) -> dict:
        texts = [text for row in rows["texts"] for text in row]
        ids = iter(
            tokenizer(texts, truncation=True, max_length=max_seq_length, return_attention_mask=False)["input_ids"]
        )
        groups = [[next(ids) for _ in row] for row in rows["texts"]]
        return {"input_ids": groups, "at_limit": [sum(len(i) == max_seq_length for i in row) for row in groups]}

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
        tokenize_groups if grouped else tokenize,
        batched=True,
        num_proc=num_proc,
        remove_columns=columns,
        new_fingerprint=_fingerprint(dataset, tokenizer, max_seq_length),
        desc="Tokenising",
    )
    at_limit = np.asarray(tokenized.data.column("at_limit"))
    if at_limit.any():
        num_texts = pc.sum(pc.list_value_length(tokenized.data.column("input_ids"))).as_py()
        rows = ", ".join(str(row + 1) for row in np.flatnonzero(at_limit)[:SHOWN_ROWS])
        logger.warning(
            f"{at_limit.sum()} of {num_texts} texts fill max_seq_length = {max_seq_length} tokens: "
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
