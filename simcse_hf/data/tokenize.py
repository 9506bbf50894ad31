"""Tokenises a training set once: rows of texts become rows of token id lists."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .templates import read_template

logger = logging.get_logger(__name__)

SHOWN_ROWS = 5


def tokenize_dataset(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    num_proc: int | None = None,
    templates: Sequence[str] = (),
) -> Dataset:
    """Rows of texts -> rows of token ids, cut to `max_seq_length`, not padded.

    Args:
        dataset: columns `sent0`, `sent1`, ... in the order of the roles: anchor, positive, hard negatives; or a column
            `texts`, a list a row, with `relations` beside it (see `build_nli_groups`).
        tokenizer: adds its special tokens.
        max_seq_length: tokens a text is cut to, special tokens included.
        num_proc: processes to tokenise with.
        templates: to put the texts into (see `read_template`): the first for `sent0`, the last for the other columns.
            A single column becomes one for each template.

    Returns:
        A column `input_ids`: a list of `num_sentences` lists of ids a row; and `relations`, where there are any.

    Raises:
        ValueError: the dataset is empty; templates that are not valid, too long or for rows with relations.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset to tokenise is empty")
    grouped = "texts" in dataset.column_names
    columns = ["texts"] if grouped else dataset.column_names
    if grouped and templates:
        raise ValueError("templates are for texts, pairs and triplets, and these rows have relations: drop templates")
    read = [read_template(template, tokenizer) for template in templates]
    # What becomes a column of token ids: a column of texts, and the template it goes into.
    if read and len(columns) == 1:
        plan = [(columns[0], template) for template in read]
    else:
        plan = [(column, read[0 if i == 0 else -1] if read else None) for i, column in enumerate(columns)]

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
            if template is None
            else template.tokenize(tokenizer, rows[column], max_seq_length)
            for column, template in plan
        ]
        # A template is not counted in max_seq_length.
        limits = [max_seq_length + (template.num_tokens if template else 0) for _, template in plan]
        rows_of_ids = [list(row) for row in zip(*by_column, strict=True)]
        at_limit = [sum(len(ids) >= limit for ids, limit in zip(row, limits, strict=True)) for row in rows_of_ids]
        return {"input_ids": rows_of_ids, "at_limit": at_limit}

    tokenized = dataset.map(
        tokenize_groups if grouped else tokenize,
        batched=True,
        num_proc=num_proc,
        remove_columns=columns,
        new_fingerprint=_fingerprint(dataset, tokenizer, max_seq_length, templates),
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


def _fingerprint(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, templates: Sequence[str]
) -> str:
    """The same for the same texts, tokenizer, length and templates, so that `map` finds its earlier result.

    The default, a hash of the pickled function, is not: a tokenizer's state changes with its first call.
    """
    tokenizer("", truncation=True, max_length=max_seq_length)
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else sorted(tokenizer.get_vocab().items())
    return Hasher.hash([dataset._fingerprint, dataset.column_names, rules, max_seq_length, *templates])
