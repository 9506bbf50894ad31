"""Synonyms from WordNet, through nltk."""

import os
import re
import warnings
from typing import Any

_DOWNLOAD = "python -m nltk.downloader wordnet"


class WordNetSynonyms:
    """Look up the synonyms of English words in WordNet: the other words of all their synsets, of any part of speech.

    A word is looked up in lower case and, if it is inflected, by its base form. Synonyms are base forms. WordNet is
    read from where nltk looks for it: a folder of `nltk.data.path`, such as the one in the environment variable
    NLTK_DATA. Nothing is downloaded.

    Raises:
        ValueError: If nltk is not installed, finds no WordNet, or finds an incomplete one.
    """

    def __init__(self) -> None:
        self._root = _find()
        self._forget()
        self._reader = _open(self._root)

    def __call__(self, word: str) -> tuple[str, ...]:
        """Return the synonyms of a word without punctuation, in a fixed order.

        Args:
            word (`str`): The word.

        Returns:
            `tuple[str, ...]`: The synonyms, or `()` if there are none.
        """
        # The reader seeks in open files, and a forked process shares their positions with its parent.
        if self._process != os.getpid():
            self._forget()
        if word not in self._known:
            if self._reader is None:
                self._reader = _open(self._root)
            lemmas = {name for synset in self._reader.synsets(word.lower()) for name in synset.lemma_names()}
            synonyms = {re.sub(r"\((a|p|ip)\)$", "", name).replace("_", " ") for name in lemmas}
            self._known[word] = tuple(sorted(name for name in synonyms if name.lower() != word.lower()))
        return self._known[word]

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._process, self._reader = os.getpid(), None
        self._known: dict[str, tuple[str, ...]] = {}


def _find() -> Any:
    try:
        import nltk
    except ImportError as error:
        raise ValueError(
            "the views synonyms and eda need nltk. Install it with `pip install 'simcse-hf[augment]'`, and WordNet "
            f"with `{_DOWNLOAD}`."
        ) from error
    for resource in ("corpora/wordnet", "corpora/wordnet.zip/wordnet/"):
        try:
            return nltk.data.find(resource)
        except LookupError:
            continue
    raise ValueError(
        f"the views synonyms and eda need WordNet, and nltk finds none. Get it with `{_DOWNLOAD}`, or set NLTK_DATA "
        f"to a folder with corpora/wordnet in it (searched: {', '.join(nltk.data.path)})."
    )


def _open(root: Any) -> Any:
    from nltk.corpus.reader import WordNetCorpusReader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader warns that it has English only
        try:
            return WordNetCorpusReader(root, omw_reader=None)
        except (OSError, LookupError) as error:
            raise ValueError(f"{root}: not a complete WordNet: {error}. Get it with `{_DOWNLOAD}`.") from error
