"""Read a bounded sample of a corpus of any size, without duplicates and without the texts of the evaluation."""

import os
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ...data.read import text_column

logger = logging.get_logger(__name__)

#: Rows that are read of a larger file. They take seconds; all rows of 10 GB would take minutes of the budget.
MAX_ROWS = 1_000_000
#: A file of one JSON array has to be in memory as a whole.
MAX_ARRAY_BYTES = 2**31
MIN_TEXTS = 64
#: Above this share of unknown tokens, the encoder cannot read the corpus; above the second, we warn.
UNREADABLE, HARD_TO_READ = 0.5, 0.05
_MOSTLY_DUPLICATES = 0.5
#: Training reads far less of a text, and long documents would fill the memory.
_MAX_CHARACTERS = 10_000
_TOKENIZED_TEXTS = 2_000


@dataclass(frozen=True)
class Corpus:
    """Distinct texts drawn from a file, and what was left out.

    Args:
        path (`str`): The file.
        column (`str`): The column of texts.
        texts (`tuple[str, ...]`): The texts, in random order.
        rows (`int`): Rows that were read, without empty ones.
        complete (`bool`): Whether the whole file was read.
        duplicates (`int`): Rows that repeat an earlier text.
        not_drawn (`int`): Distinct texts beyond the size of the sample.
        overlap (`int`, *optional*, defaults to `0`): Texts that were removed because the evaluation uses them.
        unknown_tokens (`float`, *optional*, defaults to `0.0`): Share of the tokens that the tokenizer does not know.
        max_length (`int`, *optional*, defaults to `0`): Tokens to which training cuts a text.
    """

    path: str
    column: str
    texts: tuple[str, ...]
    rows: int
    complete: bool
    duplicates: int
    not_drawn: int
    overlap: int = 0
    unknown_tokens: float = 0.0
    max_length: int = 0

    def describe(self) -> dict[str, Any]:
        """Return everything but the texts, and their number, for the record of the run."""
        return {**asdict(self), "path": Path(self.path).name, "texts": len(self.texts)}


def normalized(text: str) -> str:
    """Return a text as it is compared: in lower case, with single spaces."""
    return " ".join(text.strip()[:_MAX_CHARACTERS].casefold().split())


def read_corpus(path: str | os.PathLike[str], column: str | None = None, max_texts: int = 100_000) -> Corpus:
    """Draw distinct texts from a file in one pass and in bounded memory (reservoir sampling, Vitter 1985).

    Texts that differ only in case or white space count as duplicates. Only the first `MAX_ROWS` rows are read.

    Args:
        path (`str | os.PathLike`): A txt, csv, tsv, json, jsonl or parquet file, or one of these followed by .gz.
        column (`str`, *optional*): The column of texts, if the file has several.
        max_texts (`int`, *optional*, defaults to `100_000`): The largest number of texts to draw.

    Returns:
        `Corpus`: The texts, which are the same in every call.

    Raises:
        ValueError: If the file cannot be read, its column is unclear, or it holds fewer than `MIN_TEXTS` distinct
            texts.
    """
    table, column = _open(path, column)
    rng = random.Random(0)
    drawn: list[str] = []
    seen: set[int] = set()
    rows, complete = 0, True
    for number, (text,) in table.rows([column]):
        if rows == MAX_ROWS:
            complete = False
            break
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{table.at(number)}, column {column!r}: expected a text, got {text!r}.")
        if text is None or not text.strip():
            continue
        rows += 1
        key = hash(normalized(text))
        if key in seen:
            continue
        seen.add(key)
        if len(drawn) < max_texts:
            drawn.append(text.strip()[:_MAX_CHARACTERS])
        elif (place := rng.randrange(len(seen))) < max_texts:
            drawn[place] = text.strip()[:_MAX_CHARACTERS]
    rng.shuffle(drawn)
    corpus = Corpus(str(path), column, tuple(drawn), rows, complete, rows - len(seen), len(seen) - len(drawn))
    _check(corpus)
    return corpus


def _open(path: str | os.PathLike[str], column: str | None) -> tuple[Any, str]:
    name = str(path).lower()
    if name.endswith(".json") and Path(path).is_file() and os.path.getsize(path) > MAX_ARRAY_BYTES:
        raise ValueError(
            f"{path}: this .json file of {os.path.getsize(path) / 1e9:.1f} GB would be read into memory as a whole. "
            "Write one object on each line and name the file .jsonl, of which a sample is read."
        )
    table, column = text_column(path, column)
    table.refuse_late_keys = False  # only the column of texts is read
    return table, column


def _check(corpus: Corpus) -> None:
    if len(corpus.texts) < MIN_TEXTS:
        repeated = f" ({corpus.duplicates} of {corpus.rows} rows repeat an earlier one)" if corpus.duplicates else ""
        raise ValueError(
            f"{corpus.path}: {len(corpus.texts)} distinct text(s){repeated} are too few to adapt a model to: give at "
            f"least {MIN_TEXTS}, better several thousand, with one text in each row."
        )
    if not corpus.complete:
        logger.warning(
            f"{corpus.path}: only the first {MAX_ROWS:,} rows were read. Shuffle the file first if its order matters."
        )
    if corpus.not_drawn:
        logger.info(f"{corpus.path}: drew {len(corpus.texts):,} of {len(corpus.texts) + corpus.not_drawn:,} texts.")
    if corpus.duplicates > _MOSTLY_DUPLICATES * corpus.rows:
        logger.warning(
            f"{corpus.path}: {corpus.duplicates:,} of {corpus.rows:,} rows repeat an earlier text and are left out; "
            f"{len(corpus.texts):,} distinct texts remain."
        )


def without_texts(corpus: Corpus, evaluated: Iterable[str], keep: bool) -> Corpus:
    """Remove the texts that the evaluation uses from a corpus, and report how many there are.

    Args:
        corpus (`Corpus`): The corpus.
        evaluated (`Iterable[str]`): The texts of all tasks.
        keep (`bool`): Report them, but train on them.

    Returns:
        `Corpus`: The rest of the corpus, with `overlap`.

    Raises:
        ValueError: If fewer than `MIN_TEXTS` texts remain.
    """
    known = set(map(normalized, evaluated))
    rest = tuple(text for text in corpus.texts if normalized(text) not in known)
    overlap = len(corpus.texts) - len(rest)
    if not overlap:
        return corpus
    if keep:
        logger.warning(
            f"{corpus.path}: {overlap:,} of {len(corpus.texts):,} texts also occur in the tasks. They stay in the "
            "training text, as --keep_overlap asks, so the verdict may be too favourable."
        )
        return replace(corpus, overlap=overlap)
    logger.warning(
        f"{corpus.path}: {overlap:,} of {len(corpus.texts):,} texts also occur in the tasks. They are removed from "
        "the training text; --keep_overlap keeps them."
    )
    if len(rest) < MIN_TEXTS:
        raise ValueError(
            f"{corpus.path}: only {len(rest)} of {len(corpus.texts)} texts remain without those of the tasks, and "
            f"{MIN_TEXTS} are needed. Add texts, or train on the tasks' texts too with --keep_overlap."
        )
    return replace(corpus, texts=rest, overlap=overlap)


def fit_to_tokenizer(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, limit: int) -> Corpus:
    """Measure how well a tokenizer knows a corpus, and choose the length to which training cuts its texts.

    The length is that of 95% of the texts, at least 16 and at most `limit` tokens.

    Args:
        corpus (`Corpus`): The corpus.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        limit (`int`): The largest length.

    Returns:
        `Corpus`: The corpus with `unknown_tokens` and `max_length`.

    Raises:
        ValueError: If more than half of the tokens are unknown, as in a script that the vocabulary does not have.
    """
    ids = tokenizer(list(islice(corpus.texts, _TOKENIZED_TEXTS)))["input_ids"]
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    tokens = [token for row in ids for token in row if token not in special]
    unknown = tokens.count(tokenizer.unk_token_id) / max(1, len(tokens)) if tokenizer.unk_token_id is not None else 0.0
    example = next((text for text in corpus.texts if text), "")[:60]
    if unknown > UNREADABLE:
        raise ValueError(
            f"{corpus.path}: {unknown:.0%} of the tokens are unknown to the model's tokenizer (a text begins "
            f"{example!r}). The model cannot read this script: start from a multilingual encoder, or train one with "
            "`simcse-hf train mlm --train_tokenizer true`."
        )
    if unknown > HARD_TO_READ:
        logger.warning(f"{corpus.path}: {unknown:.0%} of the tokens are unknown to the model's tokenizer.")
    lengths = sorted(map(len, ids))
    length = min(limit, max(16, lengths[int(0.95 * (len(lengths) - 1))]))
    return replace(corpus, unknown_tokens=round(unknown, 4), max_length=length)
