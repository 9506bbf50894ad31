"""The methods of `SimCSE` that keep an index of sentences and search in it."""

import os
from collections.abc import Sequence
from typing import Any

from ..search import SentenceIndex
from ..search.sentences import Results


class SearchMethods:
    """Index sentences and find those that are most similar to a query, for a class with a method `encode`."""

    index: SentenceIndex | None = None

    def build_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options: Any) -> None:
        """Index sentences, or those of a file, as `self.index`; arguments as in `SentenceIndex.build`."""
        self.index = SentenceIndex.build(self, sentences_or_file_path, **options)

    def add_to_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options: Any) -> None:
        """Add sentences to the index; arguments as in `SentenceIndex.add`."""
        self._existing_index().add(sentences_or_file_path, **options)

    def save_index(self, folder: str | os.PathLike) -> None:
        """Save the index in a folder, as `SentenceIndex.save` does."""
        self._existing_index().save(folder)

    def load_index(self, folder: str | os.PathLike, **options: Any) -> None:
        """Open a saved index as `self.index`; arguments as in `SentenceIndex.load`."""
        self.index = SentenceIndex.load(folder, self, **options)

    def search(self, queries: str | Sequence[str], **options: Any) -> Results | list[Results]:
        """Find the sentences of the index that are most similar to each query; arguments as `SentenceIndex.search`."""
        return self._existing_index().search(queries, **options)

    def _existing_index(self) -> SentenceIndex:
        if self.index is None:
            raise ValueError("the model has no index yet: call build_index or load_index first")
        return self.index
