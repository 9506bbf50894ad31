"""Tokenise a training set once: rows of texts become rows of token ids."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from ..ops.errors import refuse
from .cache import cached_map
from .columns import NO_TEXT
from .templates import Template, read_template

logger = logging.get_logger(__name__)

_SHOWN_ROWS = 5
#: Texts whose tokens are counted, a number of tokens that says nothing about their language, and the shares of unknown
#: tokens that are reported and refused.
_SAMPLE, _FEW_TOKENS, _HARD_TO_READ, _UNREADABLE = 2_000, 20, 0.05, 0.5


def tokenize_dataset(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | Sequence[int],
    num_proc: int | None = None,
    templates: Sequence[str] = (),
    prompts: Sequence[str] = ("",),
) -> Dataset:
    """Tokenise rows of texts and truncate them to `max_seq_length`, without padding.

    Args:
        dataset (`datasets.Dataset`): Columns `sent0`, `sent1`, ... in the order anchor, positive, hard negatives; or a
            column `texts` of lists with a column `relations` beside it, see `build_nli_groups`. The columns
            `score` and `label` stay as they are.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which adds its special tokens.
        max_seq_length (`int` or `Sequence[int]`): The most tokens of a text, including special tokens; or one number
            for the anchor, one for the positive, and one for all other texts, of which the last may be left out.
        num_proc (`int`, *optional*): Number of processes that tokenise.
        templates (`Sequence[str]`, *optional*, defaults to `()`): Templates to put the texts into, see
            `read_template`: the first for `sent0` and the last for the other columns. A single column becomes one for
            each template.
        prompts (`Sequence[str]`, *optional*): What is put before each text, in the same order of columns.

    Returns:
        `datasets.Dataset`: A column `input_ids` with a list of token ids for each sentence of a row; a column `length`
        with the length of the row's longest sentence, by which `train_sampling_strategy="group_by_length"` groups;
        and the columns that hold no texts.

    Raises:
        ValueError: If the dataset is empty, or a template is malformed, too long, or meant for rows with relations.
    """
    if len(dataset) == 0:
        raise ValueError("the dataset to tokenise is empty.")
    plan = _plan(dataset.column_names, tokenizer, max_seq_length, templates, prompts)
    tokenized = cached_map(
        dataset,
        row_tokenizer(dataset.column_names, tokenizer, max_seq_length, templates, prompts),
        _cache_key(dataset, tokenizer, plan),
        num_proc=num_proc,
        remove_columns=[name for name in dataset.column_names if name not in NO_TEXT],
        desc="Tokenising",
    )
    _warn_of_truncation(tokenized, tokenizer, plan)
    return tokenized


def row_tokenizer(
    column_names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | Sequence[int],
    templates: Sequence[str] = (),
    prompts: Sequence[str] = ("",),
) -> Callable[[Mapping[str, Sequence[Any]]], dict[str, list[Any]]]:
    """Make the function that tokenises a batch of rows; see [`tokenize_dataset`].

    Args:
        column_names (`Sequence[str]`): The columns of the rows.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        max_seq_length (`int` or `Sequence[int]`): The most tokens of a text, including special tokens.
        templates (`Sequence[str]`, *optional*, defaults to `()`): Templates to put the texts into.
        prompts (`Sequence[str]`, *optional*): What is put before each text.

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
    plan = _plan(column_names, tokenizer, max_seq_length, templates, prompts)

    def tokenize_texts(texts: Sequence[str], part: _Column) -> list[list[int]]:
        texts = [part.prompt + text for text in texts] if part.prompt else list(texts)
        if part.template is not None:
            return part.template.tokenize(tokenizer, texts, part.length)
        return to_token_ids(tokenizer, texts, truncation=True, max_length=part.length) if texts else []

    def tokenize(rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        if is_grouped:
            first, others = plan
            anchors = tokenize_texts([row[0] for row in rows["texts"]], first)
            ids = iter(tokenize_texts([text for row in rows["texts"] for text in row[1:]], others))
            sentences = [
                [anchor, *(next(ids) for _ in row[1:])] for anchor, row in zip(anchors, rows["texts"], strict=True)
            ]
        else:
            by_column = [tokenize_texts(rows[part.name], part) for part in plan]
            sentences = [list(row) for row in zip(*by_column, strict=True)]
        return {"input_ids": sentences, "length": [max(map(len, row)) for row in sentences]}

    return tokenize


@dataclass
class _Column:
    """How the texts of a column of a tokenised row are read."""

    name: str
    length: int
    prompt: str
    template: Template | None

    def full_length(self, tokenizer: PreTrainedTokenizerBase) -> int:
        """Return the number of tokens of a text that is cut, with those of its template."""
        return self.length if self.template is None else self.template.full_length(tokenizer, self.length)


def _plan(
    column_names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int | Sequence[int],
    templates: Sequence[str],
    prompts: Sequence[str],
) -> list[_Column]:
    """Return the columns of a tokenised row; for rows with relations the premise and one for all hypotheses."""
    lengths = [max_seq_length] if isinstance(max_seq_length, int) else max_seq_length
    columns = ["texts"] * 2 if "texts" in column_names else [name for name in column_names if name not in NO_TEXT]
    parsed = [read_template(template, tokenizer) for template in templates]
    if parsed and len(columns) == 1:
        return [_Column(columns[0], lengths[0], prompts[0], template) for template in parsed]
    return [
        _Column(
            name,
            lengths[min(i, len(lengths) - 1)],
            prompts[min(i, len(prompts) - 1)],
            parsed[0 if i == 0 else -1] if parsed else None,
        )
        for i, name in enumerate(columns)
    ]


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


def check_known(
    token_ids: Iterable[Sequence[int]], tokenizer: PreTrainedTokenizerBase, name: str, refuses: bool = True
) -> bool:
    """Measure in a sample of texts whether the tokenizer knows their words, as it does not in a foreign script.

    Args:
        token_ids (`Iterable[Sequence[int]]`): The token ids of the texts, of which the first 2,000 are read.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer that made them.
        name (`str`): What messages call the texts.
        refuses (`bool`, *optional*, defaults to `True`): Whether texts are refused of which more than half is unknown.

    Returns:
        `bool`: Whether more than 5% of the tokens are unknown, which gives a warning.

    Raises:
        ValueError: If more than half of the tokens are unknown.
    """
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    tokens = [token for ids in islice(token_ids, _SAMPLE) for token in ids if token not in special]
    share = tokens.count(unknown) / max(1, len(tokens))
    if share <= _HARD_TO_READ or len(tokens) < _FEW_TOKENS or unknown == tokenizer.eos_token_id:
        return False
    message = (
        f"{name}: {share:.0%} of the tokens are unknown to the model's tokenizer, so the model cannot tell these "
        "words apart. Use an encoder that knows the language and its script, such as a multilingual one, or train one "
        "with `simcse-hf train mlm --train_tokenizer true`."
    )
    refuse({message: refuses and share > _UNREADABLE})
    logger.warning(message)
    return True


def _warn_of_truncation(tokenized: Dataset, tokenizer: PreTrainedTokenizerBase, plan: Sequence[_Column]) -> None:
    """Log how many rows have a text of the length of one that was cut, with the tokens of its template."""
    limits = np.array([part.full_length(tokenizer) for part in plan])
    full_rows: list[int] = []
    done = 0
    for batch in tokenized.select_columns("input_ids").with_format("arrow").iter(10_000):
        rows = batch["input_ids"].combine_chunks()
        widths, lengths = (x.value_lengths().to_numpy(zero_copy_only=False) for x in (rows, rows.flatten()))
        row_of_text = np.repeat(np.arange(len(widths)), widths)
        column_of_text = np.arange(len(lengths)) - np.repeat(np.cumsum(widths) - widths, widths)
        is_full = lengths >= limits[np.minimum(column_of_text, len(limits) - 1)]
        full_rows += (np.unique(row_of_text[is_full]) + 1 + done).tolist()
        done += len(widths)
    if full_rows:
        dots = ", ..." if len(full_rows) > _SHOWN_ROWS else ""
        logger.warning(
            f"{len(full_rows)} of {len(tokenized)} rows hold a text that fills max_seq_length = "
            f"{' or '.join(dict.fromkeys(str(part.length) for part in plan))} tokens, so its end may be cut (rows "
            f"{', '.join(map(str, full_rows[:_SHOWN_ROWS]))}{dots}). Raise max_seq_length if these texts matter."
        )


def _cache_key(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, plan: Sequence[_Column]) -> list[Any]:
    """Return what decides the token ids beside the texts, so that an earlier result is found and no stale one."""
    # The default of `map`, a hash of the pickled function, would change with the tokenizer's first call.
    tokenizer("", truncation=True, max_length=plan[0].length)
    # A slow tokenizer keeps its rules (merges, normalisation, lower-casing) in Python objects, so it is hashed whole.
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else Hasher.hash(tokenizer)
    return [dataset.column_names, rules, tokenizer.truncation_side, list(map(asdict, plan))]
