"""Lines of text files, decoded strictly and with their numbers."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .texts import LONGEST_TEXT, TOO_LONG

SUFFIX = re.compile(r"\.(txt|csv|tsv|jsonl|json|parquet)(\.gz)?$", re.IGNORECASE)

SUFFIXES = ".txt, .csv, .tsv, .json, .jsonl, .parquet, or one of these followed by .gz"
#: A byte that is not in the encoding of its file, and the start of a file in UTF-16, as they are decoded.
_UNDECODED = re.compile("[\udc80-\udcff]")
#: The line by which Excel knows what separates cells.
_EXCEL = re.compile(r'\ufeff?"?sep=.?"?\s*', re.IGNORECASE)
_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")


def open_binary(path: Path) -> Any:
    """Open a file for reading, unpacked if its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")


def decoded_lines(
    path: Path,
    encoding: str = "utf-8",
    newline: str = "",
) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line of a file, with its end but without a byte-order mark.

    Args:
        path (`Path`): The file, unpacked if its name ends in .gz.
        encoding (`str`, *optional*, defaults to `"utf-8"`): Its encoding.
        newline (`str`, *optional*, defaults to `""`): What ends a line, as for `open`. By default this is a line feed,
            a carriage return or both.

    Yields:
        `tuple[int, str]`: The number and the line.

    Raises:
        ValueError: If a byte is not in this encoding, with its line and offset, the file is not a complete gzip
            stream, or a line is longer than `LONGEST_TEXT`, unless the file is .json, where it may be the whole array.
    """
    kind = SUFFIX.search(path.name)
    limit = -1 if kind and kind[1].lower() == "json" else LONGEST_TEXT + 1
    offset = 0
    with open_binary(path) as stream:
        try:
            text = io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline=newline)
            for number, line in enumerate(iter(partial(text.readline, limit), ""), 1):
                wrong = _UNDECODED.search(line)
                if wrong:
                    offset += len(line[: wrong.start()].encode(encoding, "surrogateescape"))
                    guess = "UTF-16" if number == 1 and line.startswith(_UTF_16) else "WINDOWS-1252"
                    raise ValueError(
                        f"{path}, line {number}: byte 0x{ord(wrong[0]) - 0xDC00:02x} at byte offset {offset} is not "
                        f"{encoding.upper()}. The text may be {guess}: convert it with `iconv -f {guess} -t UTF-8`."
                    )
                offset += len(line) if line.isascii() else len(line.encode(encoding))
                if number == 1 and _EXCEL.fullmatch(line):
                    raise ValueError(f"{path}, line 1: {line.strip()} is for Excel and no text. Remove the line.")
                if "\0" in line:
                    raise ValueError(f"{path}, line {number}: a NUL byte; convert UTF-16 text with `iconv -t UTF-8`.")
                if len(line) == limit:
                    raise ValueError(f"{path}, line {number}: {TOO_LONG}")
                yield number, line.removeprefix("\ufeff") if number == 1 else line
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path}: cannot be read to its end: {error} Copy or download it again.") from None


def read_lines(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a text file, which may be gzipped, without their ends. Only line feeds end a line."""
    lines = decoded_lines(Path(path), encoding, newline="\n")
    return [line.removesuffix("\n").removesuffix("\r") for _, line in lines]
