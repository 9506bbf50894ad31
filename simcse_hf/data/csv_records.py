"""Records of csv and tsv files with their line numbers."""

import csv
from collections.abc import Iterator
from pathlib import Path

from transformers.utils import logging

from .lines import decoded_lines
from .texts import LONGEST_TEXT

logger = logging.get_logger(__name__)

_long_rows: set[Path] = set()  # files whose first row of several lines was reported


def csv_records(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and the cells, of each record of a csv or tsv file, the header included.

    Blank lines are skipped. The first quoted cell that spans lines is reported by a warning: a text may have line
    breaks, but an opening quote that belongs to a text swallows the lines up to the next quote.

    Args:
        path (`Path`): The file.
        delimiter (`str`): The character between cells.

    Yields:
        `tuple[int, list[str]]`: The line number, from 1, and the cells.

    Raises:
        ValueError: If a quote is misplaced or not closed, or the bytes are wrong. The message names the line.
    """
    csv.field_size_limit(max(LONGEST_TEXT, csv.field_size_limit()))  # csv's own 131072 is below one long document
    reader = csv.reader((line for _, line in decoded_lines(path)), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {number}: not valid csv: {error}. A double quote inside a quoted cell must be doubled, "
                "a line break inside a cell needs quotes around the cell; .jsonl has neither rule."
            ) from None
        quoted = f"{path}, line {number}: a cell that opens with a double quote runs on to line {reader.line_num}"
        # An unescaped quote at the start of a tsv cell swallows the lines up to the next quote without an error.
        if delimiter == "\t" and any("\n" in cell and "\t" in cell for cell in cells):
            raise ValueError(f"{quoted}. Write such a quote as a quoted cell with the quote doubled, or use .jsonl.")
        if reader.line_num > number and path not in _long_rows:
            _long_rows.add(path)
            logger.warning(
                f"{quoted}, so these lines are one row, and other rows may be longer than a line too. If the texts "
                "have no line breaks, a quote is not closed: double one that belongs to a text, and quote its cell."
            )
        if cells:
            yield number, cells
