"""Tokenises a training set once: rows of texts become rows of token id lists."""

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

logger = logging.get_logger(__name__)

MIN_LENGTH = 3
SHOWN_ROWS = 5


def max_positions(config: PreTrainedConfig) -> int | None:
    """Tokens a text may have at most, special tokens included; None where the encoder sets no bound.

    RoBERTa and its relatives count positions from `pad_token_id + 1`: the table serves fewer tokens than it has rows.
    """
    rows = getattr(config, "max_position_embeddings", None)
    if not isinstance(rows, int) or rows <= 0:
        return None
    offset = (
        config.pad_token_id + 1 if config.model_type in _OFFSET_POSITIONS and config.pad_token_id is not None else 0
    )
    return rows - offset


_OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def check_max_length(max_seq_length: int, config: PreTrainedConfig) -> None:
    """Raises ValueError for a length without room for a token, or beyond the encoder's positions."""
    if max_seq_length < MIN_LENGTH:
        raise ValueError(f"a max_seq_length of {max_seq_length} leaves no room for [CLS], a token and [SEP]")
    positions = max_positions(config)
    if positions is not None and max_seq_length > positions:
        raise ValueError(
            f"max_seq_length is {max_seq_length}, but this encoder ({config.model_type}) has {positions} positions. "
            f"Use max_seq_length {positions} or less."
        )


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
