"""Write Arrow tables to the cache of `datasets`.

The builder has a file of its own because `datasets` replaces `open` and `Path` in the module of every builder.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from datasets import ArrowBasedBuilder, DatasetInfo, SplitGenerator


class TextBuilder(ArrowBasedBuilder):
    """Build a dataset from Arrow tables, which are made only if the cache does not hold the dataset yet.

    `Dataset.from_generator` does the same row by row, which is several times slower.

    Args:
        arrow_tables (`Callable`): Makes the tables.
        options (`Any`): Arguments of `datasets.DatasetBuilder`. `hash` decides which dataset of the cache is found.
    """

    def __init__(self, arrow_tables: Callable[[], Iterator[pa.Table]], **options: Any):
        self._arrow_tables = arrow_tables
        super().__init__(dataset_name="texts", **options)

    def _info(self) -> DatasetInfo:
        return DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[SplitGenerator]:
        return [SplitGenerator(name="train", gen_kwargs={})]

    def _generate_tables(self) -> Iterator[tuple[Any, pa.Table]]:
        yield from enumerate(self._arrow_tables())
