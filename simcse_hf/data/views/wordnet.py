"""Synonyms from WordNet, through nltk."""

import os
import re
import warnings

_DOWNLOAD = "python -m nltk.downloader wordnet"


class WordNetSynonyms:
    """A word -> the other words of all its synsets in WordNet, of any part of speech.

    The word is looked up in lower case and, where it is inflected, by its base form; what it finds are base forms. Its
    data are where nltk looks for them: a folder of `nltk.data.path`, of the environment variable NLTK_DATA for one.
    Nothing is downloaded.

    Raises:
        ValueError: nltk is not installed, or finds no WordNet, or one with files missing.
    """

    def __init__(self):
        self._root = _find()
        self._forget()
        self._reader = _open(self._root)

    def __call__(self, word: str) -> tuple[str, ...]:
        """The synonyms of a word without punctuation, in a fixed order; () where there are none."""
        # A reader seeks in open files, whose position a forked process shares with the one it was forked from.
        if self._process != os.getpid():
            self._forget()
        if word not in self._known:
            if self._reader is None:
                self._reader = _open(self._root)
            names = {name for synset in self._reader.synsets(word.lower()) for name in synset.lemma_names()}
            synonyms = {re.sub(r"\((a|p|ip)\)$", "", name).replace("_", " ") for name in names}
            self._known[word] = tuple(sorted(name for name in synonyms if name.lower() != word.lower()))
        return self._known[word]

    def __getstate__(self) -> dict:
        return {"_root": self._root}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._process, self._reader, self._known = os.getpid(), None, {}


def _find():
    try:
        import nltk
    except ImportError as error:
        raise ValueError(
            "the views synonyms and eda need nltk: pip install 'simcse-hf[augment]', then the data of WordNet: "
            f"{_DOWNLOAD}"
        ) from error
    for place in ("corpora/wordnet", "corpora/wordnet.zip/wordnet/"):
        try:
            return nltk.data.find(place)
        except LookupError:
            continue
    raise ValueError(
        f"the views synonyms and eda need WordNet, and nltk finds none: get it with `{_DOWNLOAD}`, or set NLTK_DATA "
        f"to a folder with corpora/wordnet in it (searched: {', '.join(nltk.data.path)})"
    )


def _open(root):
    from nltk.corpus.reader import WordNetCorpusReader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it has no other languages
        try:
            return WordNetCorpusReader(root, omw_reader=None)
        except (OSError, LookupError) as error:
            raise ValueError(f"{root}: not a complete WordNet: {error}. Get it with `{_DOWNLOAD}`") from error
