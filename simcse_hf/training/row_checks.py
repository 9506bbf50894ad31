"""Checks of training rows before the first step, and their digest."""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.tokenize import check_known
from ..data.view_dataset import SeededDataset

logger = logging.get_logger(__name__)

#: Share of the training rows above which repetitions are reported.
DUPLICATE_SHARE = 0.05
#: Rows whose tokens are compared with the vocabulary.
_SAMPLE_ROWS = 500
_BATCH = 10_000


def check_vocabulary(rows: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise a `ValueError` if the tokenizer does not know most of the words of the first rows."""
    sample = []
    for number in range(min(_SAMPLE_ROWS, len(rows))):
        sample += rows[number]["input_ids"]
    check_known(sample, tokenizer, name)


def check_length_grouping(args: Any, rows: Any) -> None:
    """Refuse to group rows by their length where no column says how long they are.

    Without the column, transformers takes the number of texts in a row for its length, so all rows are equally long.

    Args:
        args (`SimCSETrainingArguments`): The training arguments.
        rows (`Any`): The training rows.

    Raises:
        ValueError: If the rows are drawn anew when they are read, or have no column of lengths.
    """
    if args.train_sampling_strategy != "group_by_length" or args.length_column_name in rows.column_names:
        return
    problem = f"train_dataset has {', '.join(rows.column_names)}"
    advice = "add the column, pass texts in place of ids"
    if isinstance(rows, SeededDataset):
        problem = f"the rows of a {type(rows).__name__} are drawn anew in every epoch"
        advice = "train on texts with view='identity'"
    raise ValueError(
        "train_sampling_strategy='group_by_length' needs the number of tokens of each training row in the column "
        f"{args.length_column_name!r}, and {problem}: {advice}, or use train_sampling_strategy='random'"
    )


def warn_of_repeated_rows(rows: Dataset) -> None:
    """Count the rows that repeat an earlier one, and say so if there are many."""
    repeated = count_repeated_rows(rows)
    if repeated > DUPLICATE_SHARE * len(rows):
        logger.warning(
            f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
            "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove them, "
            "unless that is intended."
        )


def count_repeated_rows(rows: Dataset) -> int:
    """Count the rows whose token ids equal those of an earlier row, by digests of 64 bits."""
    digests = bytearray()
    for batch in rows.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=_BATCH):
        for digest in _digests_of_batch(batch["input_ids"].combine_chunks()):
            digests += digest
    return len(rows) - len(np.unique(np.frombuffer(bytes(digests), dtype=np.uint64)))


def _digests_of_batch(rows: Any) -> Iterator[bytes]:
    """Yield a digest of each row of an Arrow array of lists of texts, from the bytes of its tokens and lengths."""
    # The rows [[5, 6], [7]] and [[8]] are the tokens 5 6 7 8, the texts' bounds 0 2 3 4 and the rows' bounds 0 2 3.
    texts = rows.flatten()
    text_bounds = _bounds(texts)
    row_bounds = _bounds(rows)
    tokens = texts.flatten().to_numpy(zero_copy_only=False)
    lengths = np.diff(text_bounds)
    token_bounds = text_bounds[row_bounds]
    for row in range(len(rows)):
        own_tokens = tokens[token_bounds[row] : token_bounds[row + 1]]
        own_lengths = lengths[row_bounds[row] : row_bounds[row + 1]]
        yield blake2b(own_tokens.tobytes() + own_lengths.tobytes(), digest_size=8).digest()


def _bounds(lists: Any) -> np.ndarray:
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0]


def digest_of_rows(rows: Dataset) -> str:
    """Return a digest of all columns of rows in their order."""
    total = blake2b(digest_size=16)
    for batch in rows.with_format("arrow").iter(batch_size=_BATCH):
        for column in batch.columns:
            values = column.combine_chunks()
            while hasattr(values, "value_lengths"):
                total.update(values.value_lengths().to_numpy(zero_copy_only=False).tobytes())
                values = values.flatten()
            numbers = values.to_numpy(zero_copy_only=False)
            total.update(repr(numbers.tolist()).encode() if numbers.dtype == object else numbers.tobytes())
    return total.hexdigest()
