"""Average the word vectors of a GloVe or word2vec text file, the paper's first baseline."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

logger = logging.get_logger("simcse_hf.reproduction")


class WordVectors:
    """An encoder that averages the vectors of a text's words.

    A text is split into words at white space, because the STS and transfer files are tokenised. A word is looked up as
    it is written and then in lower case. Unknown words are left out, and a text without a known word has the zero
    embedding. Only the vectors of words that occur are kept in memory.

    Args:
        path (`Path`): A text file, possibly gzipped, with a word and its numbers on each line, separated by single
            spaces. The header line of word2vec's format is recognised.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def encode(self, texts: list[str]) -> np.ndarray:
        """Average the vectors of each text's words.

        Args:
            texts (`list[str]`): Tokenised texts.

        Returns:
            `numpy.ndarray`: Embeddings of shape `(len(texts), dim)`, float32.

        Raises:
            ValueError: If a line of the file is no word with its numbers. The message names the file and the line.
        """
        known, dim = self._read({form for text in texts for word in text.split() for form in (word, word.lower())})
        vectors = np.zeros((len(texts), dim), dtype=np.float32)
        empty = 0
        for row, text in enumerate(texts):
            forms = [word if word in known else word.lower() for word in text.split()]
            if found := [known[form] for form in forms if form in known]:
                vectors[row] = np.mean(found, axis=0)
            else:
                empty += 1
        if empty:
            logger.warning(f"{empty} of {len(texts)} texts have no word in {self.path}, so their cosines are 0.")
        return vectors

    def _read(self, wanted: set[str]) -> tuple[dict[str, np.ndarray], int]:
        """Return the vectors of the words that are wanted, and the number of dimensions."""
        known: dict[str, np.ndarray] = {}
        dim = number = 0
        opener: Any = gzip.open if self.path.suffix.lower() == ".gz" else open
        with opener(self.path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    # Split from the right, because some words of GloVe's largest file contain spaces.
                    word, *numbers = line.decode("utf-8").rstrip("\r\n ").rsplit(" ", dim or -1)
                    if number == 1:
                        dim = int(numbers[0]) if len(numbers) == 1 else len(numbers)
                        if len(numbers) == 1:
                            continue
                    if len(numbers) != dim:
                        raise ValueError(f"{len(numbers)} numbers instead of {dim}")
                    if word in wanted and word not in known:
                        known[word] = np.array(numbers, dtype=np.float32)
                        if not np.isfinite(known[word]).all():
                            raise ValueError("a number is not finite")
                except (ValueError, IndexError) as error:
                    raise ValueError(f"{self.path}, line {number}: not a word and its vector ({error}).") from error
        if not dim:
            raise ValueError(f"{self.path}: no word vectors. Download the file again.")
        return known, dim
