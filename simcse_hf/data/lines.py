"""Decode a file of text into numbered lines, or say which byte is wrong."""

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

_UTF8_BOM = b"\xef\xbb\xbf"
_BROKEN_GZIP = "{}: cannot be read to its end: {} Copy or download the file again."


class Place(NamedTuple):
    """Where a row starts in a file.

    Args:
        number (`int`): The number of its first line, or of the row itself where a format has no lines, from 1.
        offset (`int`): Number of bytes before it in the unpacked file; 0 where a format has no lines.
    """

    number: int
    offset: int


FIRST = Place(1, 0)


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading, unpacked if its name ends in .gz.

    Args:
        path (`Path`): The file.

    Returns:
        `BinaryIO`: The open stream.
    """
    if path.suffix.lower() == ".gz":
        # gzip's own line iterator is several times slower.
        return BufferedReader(gzip.open(path, "rb"), 2**20)
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    """Read a whole file, unpacked if its name ends in .gz.

    Args:
        path (`Path`): The file.

    Returns:
        `bytes`: Its content.

    Raises:
        ValueError: If the file is not a complete gzip stream.
    """
    try:
        with open_binary(path) as stream:
            return stream.read()
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(_BROKEN_GZIP.format(path, error)) from None


def raw_lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file with their ends: line feeds, carriage returns or both.

    Args:
        path (`Path`): The file, unpacked if its name ends in .gz.
        offset (`int`, *optional*, defaults to `0`): Where to start, in bytes. It must be the start of a line. A gzip
            stream is unpacked up to there.

    Yields:
        `bytes`: A line.

    Raises:
        ValueError: If the file is not a complete gzip stream.
    """
    with open_binary(path) as stream:
        try:
            if offset:
                stream.seek(offset)
            for line in stream:
                # `splitlines` of bytes knows these three line ends only, not those of Unicode.
                yield from line.splitlines(keepends=True) if b"\r" in line else (line,)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(_BROKEN_GZIP.format(path, error)) from None


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line of a UTF-8 file, with or without a byte-order mark.

    A line ends in a line feed, a carriage return or both, and keeps its end.

    Args:
        path (`Path`): The file.

    Yields:
        `tuple[int, str]`: The number and the line.

    Raises:
        ValueError: If a byte is not UTF-8, with its line and offset, or the file is not a complete gzip stream.
    """
    for place, line in placed_lines(path):
        yield place.number, line


def placed_lines(path: Path, start: Place = FIRST) -> Iterator[tuple[Place, str]]:
    """Yield the lines of a file like [`decoded_lines`], each with its place, from some place on.

    Args:
        path (`Path`): The file.
        start (`Place`, *optional*, defaults to `FIRST`): The place of the first line to read.

    Yields:
        `tuple[Place, str]`: The place and the line.

    Raises:
        ValueError: If a byte is not UTF-8, with its line and offset, or the file is not a complete gzip stream.
    """
    offset = start.offset
    for number, raw in enumerate(raw_lines(path, offset), start.number):
        try:
            yield Place(number, offset), raw.removeprefix(_UTF8_BOM).decode() if number == 1 else raw.decode()
        except UnicodeDecodeError as error:
            # The error counts bytes after the byte-order mark.
            begin = error.start + len(_UTF8_BOM) * (number == 1 and raw.startswith(_UTF8_BOM))
            encoding = "UTF-16" if number == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
            raise ValueError(
                f"{path}, line {number}: byte 0x{raw[begin]:02x} at byte offset {offset + begin} is not UTF-8. The "
                f"text may be {encoding}: convert it with `iconv -f {encoding} -t UTF-8` and use the result."
            ) from None
        offset += len(raw)
