"""The command that turns labelled natural language inference pairs into training triplets."""

from collections.abc import Sequence
from dataclasses import dataclass

from .. import build_nli_triplets
from ..names import NLILabel
from ..runtime.files import StrPath
from ..runtime.outputs import TABLE_SUFFIXES, Result, check_output_file, write_table


@dataclass(frozen=True)
class Triplets(Result):
    """The training rows that `build_nli` wrote.

    Args:
        output (`str`): The file.
        rows (`int`): Number of rows.
        columns (`list[str]`): Names of the columns.
    """

    output: str
    rows: int
    columns: list[str]

    def __str__(self) -> str:
        return f"{self.output}: {self.rows} rows of {', '.join(self.columns)}"


def build_nli(
    input: Sequence[StrPath],
    output: StrPath,
    *,
    seed: int = 42,
    hard_negatives_per_pair: int = 1,
    negatives: Sequence[NLILabel] = ("contradiction",),
    positives: Sequence[NLILabel] = ("entailment",),
    max_rows: int | None = None,
    overwrite: bool = False,
) -> Triplets:
    """Turn SNLI and MultiNLI rows into training triplets.

    A row has a premise, an entailed hypothesis and contradictory ones.

    Args:
        input (`Sequence[str | os.PathLike]`): Files of labelled pairs: csv, tsv, json, jsonl or parquet, optionally
            gzipped.
        output (`str` or `os.PathLike`): File to write, ending in .csv, .jsonl or .parquet.
        seed (`int`, *optional*, defaults to `42`): Seed of the draw of hard negatives.
        hard_negatives_per_pair (`int`, *optional*, defaults to `1`): Hard negatives of an entailment pair; 0 writes
            pairs without negatives.
        negatives (`Sequence[str]`, *optional*, defaults to `("contradiction",)`): Labels that hard negatives may have.
        positives (`Sequence[str]`, *optional*, defaults to `("entailment",)`): Labels that positives may have.
        max_rows (`int`, *optional*): Keep a random sample of at most this many rows.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.

    Returns:
        `Triplets`: What was written.

    Examples:
        >>> from simcse_hf import build_nli
        >>> print(build_nli(["nli.csv"], "my-triplets.csv"))
        my-triplets.csv: 64 rows of sent0, sent1, hard_neg
    """
    check_output_file(output, overwrite, TABLE_SUFFIXES)
    rows = build_nli_triplets(
        input,
        seed=seed,
        hard_negatives_per_pair=hard_negatives_per_pair,
        negatives=negatives,
        positives=positives,
        max_rows=max_rows,
    )
    write_table(rows, output)
    return Triplets(str(output), len(rows), rows.column_names)
