"""Average the word vectors of a GloVe or word2vec text file, the paper's first baseline."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm
from transformers.utils import logging

from ..data.read import raw_lines

logger = logging.get_logger(__name__)


class WordVectors:
    """An encoder that averages the vectors of a text's words.

    A text is split into words at white space, because the STS and transfer files are tokenised. A word is looked up as
    it is written and then in lower case. Unknown words are left out, and a text without a known word has the zero
    embedding. Only the vectors of words that occur are kept: each `encode` with new words reads through the file once,
    so that a file of millions of words needs little memory.

    Args:
        path (`str | Path`): A text file, possibly gzipped, with a word and its numbers on each line, separated by
            single spaces. The header line of word2vec's format is recognised.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If its first lines are not word vectors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._has_header, self.dim = self._layout()
        self._known: dict[str, np.ndarray] = {}
        self._looked_up: set[str] = set()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Average the vectors of each text's words.

        Args:
            texts (`list[str]`): Tokenised texts.

        Returns:
            `numpy.ndarray`: Embeddings of shape `(len(texts), dim)`, float32.

        Raises:
            ValueError: If a line of the file does not hold `dim` numbers. The message names the file and the line.
        """
        wanted = {form for text in texts for word in text.split() for form in (word, word.lower())}
        if not wanted <= self._looked_up:
            self._read(wanted - self._looked_up)
            self._looked_up |= wanted
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        empty = 0
        for row, text in enumerate(texts):
            known = [
                self._known[form]
                for form in (word if word in self._known else word.lower() for word in text.split())
                if form in self._known
            ]
            if known:
                vectors[row] = np.mean(known, axis=0)
            else:
                empty += 1
        if empty:
            logger.warning(f"{empty} of {len(texts)} texts have no word in {self.path}, so their cosines are 0.")
        return vectors

    def _lines(self) -> Iterator[tuple[int, str]]:
        for number, _, line in raw_lines(self.path):
            try:
                yield number, line.decode("utf-8").rstrip("\r\n ")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.path}, line {number}: not UTF-8 text. Word vectors are read from the text format. "
                    "Convert a binary file first."
                ) from error

    def _layout(self) -> tuple[bool, int]:
        """Return whether the file has a header, and the number of dimensions."""
        lines = self._lines()
        _, first = next(lines, (1, ""))
        fields = first.split(" ")
        if len(fields) == 2 and all(field.isdecimal() for field in fields):
            _, second = next(lines, (2, ""))
            size = second.count(" ")  # a word of this format holds no space
            if fields[1].lstrip("0") != str(size):
                raise ValueError(
                    f"{self.path}, line 2: {size} numbers, but the header says {fields[1][:20]}. Download the file "
                    "again."
                )
            return True, size
        self._numbers(fields[1:], 1)
        if len(fields) < 3:
            raise ValueError(f"{self.path}, line 1: a word and its vector are needed, not {first[:80]!r}.")
        return False, len(fields) - 1

    def _numbers(self, fields: list[str], line: int) -> np.ndarray:
        try:
            vector = np.array(fields, dtype=np.float32)
        except ValueError as error:
            raise ValueError(f"{self.path}, line {line}: not a word and its vector ({error}).") from error
        if not np.isfinite(vector).all():
            raise ValueError(f"{self.path}, line {line}: a number of the vector is not finite.")
        return vector

    def _read(self, wanted: set[str]) -> None:
        for number, line in tqdm(self._lines(), desc=f"Reading {self.path.name}", unit=" words"):
            if number == 1 and self._has_header:
                continue
            # Split from the right, because some words of GloVe's largest file contain spaces.
            fields = line.rsplit(" ", self.dim)
            if len(fields) != self.dim + 1:
                raise ValueError(
                    f"{self.path}, line {number}: {len(fields) - 1} numbers instead of {self.dim}. Correct the line."
                )
            if fields[0] in wanted and fields[0] not in self._known:
                self._known[fields[0]] = self._numbers(fields[1:], number)
