"""Tokenize a training set once: rows of texts become rows of token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import ge
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..objectives.base import ABSENT, NEGATIVE, POSITIVE
from ..runtime.errors import DataError, SettingError
from .collator import pad
from .columns import NO_TEXT, first_few, has_text
from .read import VERSION
from .token_ids import Template, number_of, parse_template, to_token_ids

logger = logging.get_logger(__name__)

_BATCH = 10_000  # rows that are numbered at once


def tokenize_dataset(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | Sequence[int],
    templates: Sequence[str] = (),
    prompts: Sequence[str] = ("",),
) -> Dataset:
    """Tokenize rows of texts and truncate them to `max_seq_length`, without padding.

    Args:
        dataset (`datasets.Dataset`): Columns `sent0`, `sent1`, ... in the order anchor, positive, hard negatives; or a
            column `texts` of lists with a column `relations` beside it, see `build_nli_groups`. The columns
            `score` and `label` stay as they are.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which adds its special tokens.
        max_seq_length (`int` or `Sequence[int]`): The most tokens of a text, including special tokens; or one
            number each for the anchor, the positive and all further texts; the last one given applies to the rest.
        templates (`Sequence[str]`, *optional*, defaults to `()`): Templates to put the texts into, see
            `parse_template`: the first for `sent0` and the last for the other columns. A single column becomes one for
            each template.
        prompts (`Sequence[str]`, *optional*): What is put before each text, in the same order of columns.

    Returns:
        `datasets.Dataset`: A column `input_ids` with a list of token ids for each sentence of a row; a column `length`
        with the length of the row's longest sentence, for `train_sampling_strategy="group_by_length"`;
        the columns that hold no texts; and where rows have fewer hard negatives than others, their `relations`.

    Raises:
        DataError: If the dataset is empty, or a template is malformed, too long, or meant for rows with relations.
    """
    if len(dataset) == 0:
        raise DataError("the dataset to tokenize is empty.")
    row_tokenizer = RowTokenizer(dataset.column_names, tokenizer, max_seq_length, templates, prompts)
    backend: Any = tokenizer
    # The state of a fast tokenizer holds the truncation of its last call, so its state is read after a call like ours.
    backend("", truncation=True, max_length=row_tokenizer.columns[0].length)
    # A slow tokenizer keeps its rules (merges, normalization, lower-casing) in Python objects: it is hashed whole.
    rules = backend.backend_tokenizer.to_str() if backend.is_fast else Hasher.hash(backend)
    decides = [dataset.column_names, rules, tokenizer.truncation_side, row_tokenizer.columns]
    tokenized = dataset.map(
        row_tokenizer,
        batched=True,
        remove_columns=[name for name in dataset.column_names if name not in NO_TEXT],
        new_fingerprint=Hasher.hash([VERSION, dataset._fingerprint, *decides]),
        desc="Tokenizing",
    )
    full_rows = (np.flatnonzero(tokenized["is_full"][:]) + 1).tolist()
    if full_rows:
        lengths = dict.fromkeys(str(column.length) for column in row_tokenizer.columns)
        logger.warning(
            f"{len(full_rows)} of {len(tokenized)} rows hold a text that fills max_seq_length = "
            f"{' or '.join(lengths)} tokens, so its end may be cut (rows {first_few(full_rows)}). Raise "
            "max_seq_length if these texts matter."
        )
    helpers = ["is_full", "has_gap"]
    if row_tokenizer.relations and not any(tokenized["has_gap"]):
        helpers.append("relations")
    return tokenized.remove_columns(helpers)


def as_sentences(tokens: Dataset, tokenizer: PreTrainedTokenizerBase, name: str) -> Dataset:
    """Return token ids of a caller with a list for each sentence, and without padding.

    Args:
        tokens (`datasets.Dataset`): A column `input_ids` with the token ids of one sentence, or with a list of them
            for each sentence, and possibly an `attention_mask` of the same form. Other columns stay as they are.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which knows the padding token.
        name (`str`): What messages call the rows.

    Returns:
        `datasets.Dataset`: The rows; token ids without a mask that a transform draws anew stay as they are.

    Raises:
        ValueError: If a mask has another length than its token ids or leaves out all of a text, or a row is padded and
            there is no mask. The message names the row.
    """
    has_mask = "attention_mask" in tokens.column_names
    is_flat = hasattr(getattr(tokens.features["input_ids"], "feature", None), "dtype")  # a list of lists has no dtype
    if not len(tokens) or tokens.format["type"] == "custom" or not (is_flat or has_mask):
        return tokens
    padding = {tokenizer.pad_token_id} - {tokenizer.eos_token_id}

    def sentences_of(rows: Mapping[str, Sequence], numbers: Sequence[int]) -> dict[str, list]:
        masks_of_rows = rows["attention_mask"] if has_mask else rows["input_ids"]
        sentences = []
        for number, texts, masks in zip(numbers, rows["input_ids"], masks_of_rows, strict=True):
            where = f"{name}, row {number + 1}"
            if is_flat:
                texts, masks = [texts], [masks]
            if list(map(len, texts)) != list(map(len, masks)):
                raise DataError(f"{where}: attention_mask must have one number for each of the input_ids.")
            kept = [list(compress(*text)) for text in zip(texts, masks, strict=True)] if has_mask else texts
            if not all(kept):
                raise DataError(f"{where}: no token of a text is left (see attention_mask). Remove the row.")
            if not has_mask and padding & {*texts[0][:1], *texts[0][-1:]}:
                raise DataError(f"{where}: the tokens are padded. Add the column attention_mask, or do not pad.")
            sentences.append(kept)
        return {"input_ids": sentences}

    removed = ["attention_mask"] if has_mask else None
    return tokens.with_format(None).map(sentences_of, batched=True, with_indices=True, remove_columns=removed)


@dataclass
class _Column:
    """How the texts of a column of a tokenized row are read.

    Args:
        length (`int`): The most tokens of a text.
        prompt (`str`, *optional*): What is put before each text.
        template (`Template`, *optional*): What each text is put into.
        limit (`int`, *optional*): The most tokens of a text with its template.
    """

    length: int
    prompt: str = ""
    template: Template | None = None
    limit: int = 0


class RowTokenizer:
    """Tokenize batches of rows; see [`tokenize_dataset`].

    Args:
        column_names (`Sequence[str]`): The columns of the rows.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        max_seq_length (`int` or `Sequence[int]`): The most tokens of a text, including special tokens.
        templates (`Sequence[str]`): Templates to put the texts into.
        prompts (`Sequence[str]`): What is put before each text.

    Attributes:
        names (`list[str]`): The column of rows of texts that each column of a tokenized row is made of.
        columns (`list`): How each column of a tokenized row is read. Rows with relations have one for the premise, one
            for the texts that are its positives and one for all others.
        relations (`list[int]`): The relation of each text after the first, in rows with hard negatives.

    Raises:
        ValueError: If a template is malformed, too long, or meant for rows with relations.
    """

    def __init__(
        self,
        column_names: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int | Sequence[int],
        templates: Sequence[str],
        prompts: Sequence[str],
    ):
        self.tokenizer = tokenizer
        self.is_grouped = "texts" in column_names
        if self.is_grouped and templates:
            raise SettingError(
                "templates are for sentences, pairs and triplets, but these rows have relations: drop templates"
            )
        lengths = [max_seq_length] if isinstance(max_seq_length, int) else max_seq_length
        parsed: list[Template | None] = [parse_template(template, tokenizer) for template in templates]
        names = [name for name in column_names if name not in NO_TEXT]
        self.relations = []
        if len(names) > 2:
            self.relations = [POSITIVE] + [NEGATIVE] * (len(names) - 2)
        if self.is_grouped:
            names = ["texts", "texts", "texts"]
        elif len(names) == 1 and parsed:
            names *= len(parsed)
        elif parsed:
            parsed = [parsed[0]] + [parsed[-1]] * (len(names) - 1)
        self.names = names
        self.columns = []
        for place in range(len(names)):
            length = lengths[min(place, len(lengths) - 1)]
            prompt = prompts[min(place, len(prompts) - 1)]
            template = parsed[place] if parsed else None
            limit = template.full_length(tokenizer, length) if template else length
            self.columns.append(_Column(length, prompt, template, limit))

    def __call__(self, rows: Mapping) -> dict:
        """Turn columns of texts into columns of tokens.

        Args:
            rows (`Mapping[str, Sequence]`): The columns.

        Returns:
            `dict[str, list]`: `input_ids`; `length`, the tokens of the longest text; whether a text `is_full` and
            may be cut, and whether the row `has_gap`, an absent text; the `relations` of rows with hard negatives;
            and `text_ids`, if equal texts have different tokens in different columns.
        """
        if self.is_grouped:
            texts = []
            for row, relations in zip(rows["texts"], rows["relations"], strict=True):
                parts = [0, *(1 if relation == POSITIVE else 2 for relation in relations)]
                parts += [2] * (len(row) - len(parts))  # the objective refuses a text without a relation
                texts.append(list(zip(parts, row, strict=False)))
        else:
            columns = [rows[name] for name in self.names]
            texts = [list(enumerate(row)) for row in zip(*columns, strict=True)]
        input_ids = self._tokenize(texts, self.columns)
        lengths = [list(map(len, row)) for row in input_ids]
        limits = [[self.columns[part].limit for part, _ in row] for row in texts]
        tokenized: dict = {
            "input_ids": input_ids,
            "length": list(map(max, lengths)),
            "is_full": [any(map(ge, *row)) for row in zip(lengths, limits, strict=True)],
            "has_gap": [0 in row for row in lengths],
        }
        if self.relations:
            tokenized["relations"] = []
            for _, *others in lengths:
                relations = zip(self.relations, others, strict=True)
                tokenized["relations"].append([relation if length else ABSENT for relation, length in relations])
        if any(column != self.columns[0] for column in self.columns):
            plain = _Column(max(column.length for column in self.columns))
            token_ids = self._tokenize(texts, [plain] * len(self.columns))
            tokenized["text_ids"] = [list(map(number_of, row)) for row in token_ids]
        return tokenized

    def _tokenize(self, texts: Sequence[Sequence[tuple]], columns: Sequence[_Column]) -> list[list[list[int]]]:
        """Tokenize rows of texts, each with the number of its column."""
        tokenized = []
        for number, column in enumerate(columns):
            cells = chain.from_iterable(texts)
            prompted = [column.prompt + text for part, text in cells if part == number and has_text(text)]
            if column.template:
                ids = column.template.tokenize(self.tokenizer, prompted, column.length)
            else:
                ids = to_token_ids(self.tokenizer, prompted, truncation=True, max_length=column.length)
            tokenized.append(iter(ids))
        return [[next(tokenized[part]) if has_text(text) else [] for part, text in row] for row in texts]


def number_texts(rows: Dataset) -> np.ndarray:
    """Give the texts of rows of token ids numbers that are equal for equal texts.

    Args:
        rows (`datasets.Dataset`): The rows, with the column `input_ids` and, where equal texts have different tokens,
            `text_ids`.

    Returns:
        `np.ndarray`: Numbers of 64 bits of shape `(rows, most texts of a row)`, 0 where a row has no text; see
            [`number_of`].
    """
    column = "text_ids" if "text_ids" in rows.column_names else "input_ids"
    tables = []
    for batch in rows.select_columns([column]).iter(_BATCH):
        numbers = batch[column]
        if column == "input_ids":
            numbers = [list(map(number_of, row)) for row in numbers]
        tables.append(pad(numbers, 0)[0])
    width = max(table.shape[1] for table in tables)
    return torch.cat([F.pad(table, (0, width - table.shape[1])) for table in tables]).numpy()
