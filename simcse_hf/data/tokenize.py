"""Tokenise a training set once: rows of texts become rows of token ids."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from .columns import SCORE
from .templates import Template, read_template

logger = logging.get_logger(__name__)

_SHOWN_ROWS = 5
_LAYOUT = 2  # a part of the cache key: increase it when the columns change


def tokenize_dataset(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    num_proc: int | None = None,
    templates: Sequence[str] = (),
) -> Dataset:
    """Tokenise rows of texts and truncate them to `max_seq_length`, without padding.

    Args:
        dataset (`datasets.Dataset`): Columns `sent0`, `sent1`, ... in the order anchor, positive, hard negatives; or a
            column `texts` of lists with a column `relations` beside it, see `build_nli_groups`. The column
            `score` stays as it is.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which adds its special tokens.
        max_seq_length (`int`): The most tokens of a text, including special tokens.
        num_proc (`int`, *optional*): Number of processes that tokenise.
        templates (`Sequence[str]`, *optional*, defaults to `()`): Templates to put the texts into, see
            `read_template`: the first for `sent0` and the last for the other columns. A single column becomes one for
            each template.

    Returns:
        `datasets.Dataset`: A column `input_ids` with a list of token ids for each sentence of a row; a column `length`
        with the length of the row's longest sentence, by which `train_sampling_strategy="group_by_length"` groups;
        and `relations` or `score`, if there are any.

    Raises:
        ValueError: If the dataset is empty, or a template is malformed, too long, or meant for rows with relations.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset to tokenise is empty.")
    tokenized = dataset.map(
        row_tokenizer(dataset.column_names, tokenizer, max_seq_length, templates),
        batched=True,
        num_proc=num_proc,
        remove_columns=[name for name in dataset.column_names if name not in (SCORE, "relations")],
        new_fingerprint=_fingerprint(dataset, tokenizer, max_seq_length, templates),
        desc="Tokenising",
    )
    plan = _plan(dataset.column_names, tokenizer, templates)
    full_lengths = [t.full_length(tokenizer, max_seq_length) if t else max_seq_length for _, t in plan]
    _warn_of_truncation(tokenized, max_seq_length, min(full_lengths))
    return tokenized


def row_tokenizer(
    column_names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    templates: Sequence[str] = (),
) -> Callable[[Mapping[str, Sequence[Any]]], dict[str, list[Any]]]:
    """Make the function that tokenises a batch of rows; see [`tokenize_dataset`].

    Args:
        column_names (`Sequence[str]`): The columns of the rows.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        max_seq_length (`int`): The most tokens of a text, including special tokens.
        templates (`Sequence[str]`, *optional*, defaults to `()`): Templates to put the texts into.

    Returns:
        `Callable`: Turns columns of texts into the columns `input_ids` and `length`.

    Raises:
        ValueError: If a template is malformed, too long, or meant for rows with relations.
    """
    is_grouped = "texts" in column_names
    if is_grouped and templates:
        raise ValueError(
            "templates apply to sentences, pairs and triplets, but these rows have relations, so drop templates."
        )
    plan = _plan(column_names, tokenizer, templates)

    def tokenize_texts(texts: Sequence[str]) -> list[list[int]]:
        return to_token_ids(tokenizer, list(texts), truncation=True, max_length=max_seq_length) if texts else []

    def tokenize(rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        if is_grouped:
            ids = iter(tokenize_texts([text for row in rows["texts"] for text in row]))
            sentences = [[next(ids) for _ in row] for row in rows["texts"]]
        else:
            by_column = [
                tokenize_texts(rows[column])
                if template is None
                else template.tokenize(tokenizer, rows[column], max_seq_length)
                for column, template in plan
            ]
            sentences = [list(row) for row in zip(*by_column, strict=True)]
        return {"input_ids": sentences, "length": [max(map(len, row)) for row in sentences]}

    return tokenize


def _plan(
    column_names: Sequence[str], tokenizer: PreTrainedTokenizerBase, templates: Sequence[str]
) -> list[tuple[str, Template | None]]:
    """Return the column of texts, and the template that it goes into, of each sentence of a tokenised row."""
    columns = [column for column in column_names if column != SCORE]
    parsed = [read_template(template, tokenizer) for template in templates]
    if parsed and len(columns) == 1:
        return [(columns[0], template) for template in parsed]
    return [(column, parsed[0 if i == 0 else -1] if parsed else None) for i, column in enumerate(columns)]


def to_token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], **options: Any) -> list[list[int]]:
    """Return `tokenizer(texts, **options)["input_ids"]`, without the objects around them where that is possible.

    A fast tokenizer also computes offsets, and wraps each text in Python objects under the interpreter's lock, for
    which a thread that feeds a device has to wait. The call for the first text sets up its backend, which then
    tokenizes all texts directly.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        texts (`list[str]`): At least one text.
        **options (`Any`): Further arguments of the tokenizer's call, without padding.

    Returns:
        `list[list[int]]`: The token ids of each text.
    """
    first = tokenizer(texts[:1], return_attention_mask=False, **options)["input_ids"]
    if getattr(type(tokenizer), "_encode_plus", None) is PreTrainedTokenizerFast._encode_plus:
        ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts)]
        if ids[:1] == first:
            return ids
    return tokenizer(texts, return_attention_mask=False, **options)["input_ids"]


def _warn_of_truncation(tokenized: Dataset, max_seq_length: int, full_length: int) -> None:
    """Log how many rows have a text of the length of one that was cut, with the tokens of its template."""
    full_rows = np.flatnonzero(tokenized.with_format("numpy")["length"][:] >= full_length) + 1
    if len(full_rows):
        dots = ", ..." if len(full_rows) > _SHOWN_ROWS else ""
        logger.warning(
            f"{len(full_rows)} of {len(tokenized)} rows hold a text that fills max_seq_length = {max_seq_length} "
            f"tokens, so its end may be cut (rows {', '.join(map(str, full_rows[:_SHOWN_ROWS]))}{dots}). Raise "
            "max_seq_length if these texts matter."
        )


def _fingerprint(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, templates: Sequence[str]
) -> str:
    """Hash what decides the token ids, so that `map` finds its earlier result and no stale one."""
    # The default of `map`, a hash of the pickled function, would change with the tokenizer's first call.
    tokenizer("", truncation=True, max_length=max_seq_length)
    # A slow tokenizer keeps its rules (merges, normalisation, lower-casing) in Python objects, so it is hashed whole.
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else Hasher.hash(tokenizer)
    key = [dataset._fingerprint, dataset.column_names, rules, tokenizer.truncation_side, max_seq_length, *templates]
    return Hasher.hash([_LAYOUT, *key])
