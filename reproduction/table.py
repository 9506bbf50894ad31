"""Read a table of a paper from its YAML file: rows, columns, the paper's figures and its claims."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from simcse_hf.publishing.card_text import PAPERS

from .measures import FIT_ON, METHODS, Transform

TABLES = Path(__file__).with_name("tables")
SCALES = ("small", "paper")


@dataclass(frozen=True)
class Column:
    """A column of a table: what is measured, and what its runs change.

    Args:
        name (`str`): Header of the column.
        metric (`str`, *optional*, defaults to `"dev"`): The figure; see [`measures.METRICS`].
        recipe (`str`, *optional*): Recipe of its runs, in place of the table's.
        settings (`dict`, *optional*): Arguments of `simcse-hf train` that its runs change.
        small (`dict`, *optional*): Arguments that they change at the small scale only.
        only (`str`, *optional*): The one scale at which the column is run; by default both.
        sample (`int`, *optional*): Training rows to draw at the paper's scale; by default all.
        quantile (`float`, *optional*, defaults to `1.0`): Of the runs of a row with a `scan`, the quantile to show: 1
            for the best.
    """

    name: str
    metric: str = "dev"
    recipe: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    sample: int | None = None
    quantile: float = 1.0


@dataclass(frozen=True)
class Row:
    """A row of a table: a variant of the method.

    Args:
        name (`str`): The variant. Claims name rows by it.
        paper (`list`, *optional*): The paper's figure for each column; `None` where it gives none.
        recipe (`str`, *optional*): Recipe of its runs, in place of the column's and the table's.
        settings (`dict`, *optional*): Arguments of `simcse-hf train` that its runs change.
        small (`dict`, *optional*): Arguments that they change at the small scale only.
        only (`str`, *optional*): The one scale at which the row is run; by default both.
        scan (`dict`, *optional*): By scale, the values of arguments to scan: the row has a run for each combination.
            `objective_options.NAME` is one option of the objective.
        pooler (`str`, *optional*): Pooler with which the trained model is measured.
        postprocess (`dict`, *optional*): `method` (`whitening` or `flow`) and `fit_on` (`nli` or `target`) of the
            transform after which it is measured.
        aggregation (`str`, *optional*): How STS12 to STS16 make one figure, in place of the table's.
    """

    name: str
    paper: list[float | None] = field(default_factory=list)
    recipe: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    scan: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    pooler: str | None = None
    postprocess: dict[str, str] = field(default_factory=dict)
    aggregation: str | None = None

    @property
    def transform(self) -> Transform:
        """How embeddings of the row's models are transformed before they are scored."""
        return (self.postprocess["method"], self.postprocess["fit_on"]) if self.postprocess else ()


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper states.

    Args:
        says (`str`): The paper's own words.
        column (`str`, *optional*): The column it is about; by default the first.
        better (`str`, *optional*): The row that the paper places above each row of `than`. `ROW @ COLUMN` is a row of
            another column, and a list of rows stands for the best of them.
        than (`list`, *optional*): The other rows.
        similar (`list`, *optional*): Rows that the paper calls alike, in place of `better` and `than`.
        within (`float`, *optional*): By how many points rows that are alike may differ.
    """

    says: str
    column: str | None = None
    better: str | list[str] | None = None
    than: list[str | list[str]] = field(default_factory=list)
    similar: list[str | list[str]] = field(default_factory=list)
    within: float | None = None

    def rows(self) -> Iterator[str]:
        """Yield the names of the rows that the claim is about."""
        for entry in (self.better, *self.than, *self.similar):
            yield from [entry] if isinstance(entry, str) else entry or []


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Args:
        paper (`str`): The paper's name in `publishing/papers.bib`.
        table (`str`): Its number, such as `"A.1"`.
        title (`str`): What it compares.
        figure (`str`): What its figures are, with their scale.
        recipe (`str`): Recipe of the runs; a column or row may name another.
        columns (`list[Column]`): What is measured.
        rows (`list[Row]`): What is compared.
        claims (`list[Claim]`, *optional*): Orderings that the paper states.
        aggregation (`str`, *optional*, defaults to `"all"`): How STS12 to STS16 make one figure.
        correlation (`str`, *optional*, defaults to `"spearman"`): Metric of the STS tasks.
        settings (`dict`, *optional*): Arguments that all of its runs change, before the scale does.
        small (`dict`, *optional*): Arguments that its runs change at the small scale only.
        differs (`list[str]`, *optional*): What differs from the paper at the small scale, beyond what the scale says.
        name (`str`, *optional*): What the command calls it, such as `"simcse/3"`; from the file's name.
    """

    paper: str
    table: str
    title: str
    figure: str
    recipe: str
    columns: list[Column]
    rows: list[Row]
    claims: list[Claim] = field(default_factory=list)
    aggregation: str = "all"
    correlation: str = "spearman"
    settings: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    name: str = ""

    def row(self, name: str) -> Row:
        """Return the row of a name, which exists."""
        return next(row for row in self.rows if row.name == name)

    def cells(self, scale: str) -> Iterator[tuple[int, Row, Column]]:
        """Yield the number of the column, the row and the column of each cell that is run at a scale, row by row."""
        for row in self.rows:
            for number, column in enumerate(self.columns):
                if all(part.only in (None, scale) for part in (row, column)):
                    yield number, row, column

    def paper_figure(self, row: Row, column: int) -> float | None:
        """Return the paper's figure of a cell, or `None` if it gives none."""
        return row.paper[column] if row.paper else None


def table_names() -> list[str]:
    """List the tables of the papers, as `"simcse/3"`."""
    return sorted(_name_of(path) for path in TABLES.glob("*.yaml"))


def load_table(name: str) -> Table:
    """Read a table.

    Args:
        name (`str`): A table of the package, such as `"simcse/3"`, or a YAML file of one's own.

    Returns:
        [`Table`]: The table.

    Raises:
        ValueError: If there is no such table, or the file is invalid. The message names the file and the place.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else TABLES / f"{name.replace('/', '-')}.yaml"
    if not path.is_file():
        known = ", ".join(table_names())
        raise ValueError(f"there is no table {name}. Use one of {known}, or the path of a YAML file.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path.name} is not valid YAML in UTF-8: {error}") from None
    table = _read(Table, values, path.name)
    parts: dict[str, Any] = {
        name: [_read(cls, entry, f"{path.name}: {name}, entry {n}") for n, entry in enumerate(getattr(table, name), 1)]
        for name, cls in (("columns", Column), ("rows", Row), ("claims", Claim))
    }
    table = replace(table, **parts, name=_name_of(path) if path.parent == TABLES else path.stem)
    _check(table, path.name)
    return table


def _name_of(path: Path) -> str:
    return path.stem.replace("-", "/", 1)


def _read(cls: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a table of names and values, not {values!r}")
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(values) - set(known), key=str):
        raise ValueError(f"{where}: unknown entry {', '.join(map(str, unknown))}; known are {', '.join(known)}")
    required = [name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{where}: {', '.join(missing)} is missing")
    for name, value in values.items():
        expected = {"columns": list, "rows": list}.get(name, known[name].default_factory)
        if expected in (list, dict) and not isinstance(value, expected):
            raise ValueError(f"{where}: {name} must be a {'list' if expected is list else 'table'}, not {value!r}")
    return cls(**values)


def _check(table: Table, where: str) -> None:
    if table.paper not in PAPERS:
        raise ValueError(f"{where}: paper {table.paper!r} has no entry in publishing/papers.bib; add one")
    for kind, parts in (("row", table.rows), ("column", table.columns)):
        names = [part.name for part in parts]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{where}: two {kind}s are named {', '.join(repeated)}; rename one")
        for part in parts:
            if part.only not in (None, *SCALES):
                raise ValueError(f"{where}: {kind} {part.name}: only must be one of {', '.join(SCALES)}")
    for row in table.rows:
        if row.paper and len(row.paper) != len(table.columns):
            raise ValueError(
                f"{where}: row {row.name} has {len(row.paper)} scores of the paper, and the table has "
                f"{len(table.columns)} columns; use null where the paper gives none"
            )
        method, fit_on = row.postprocess.get("method"), row.postprocess.get("fit_on")
        is_transform = len(row.postprocess) == 2 and method in METHODS and fit_on in FIT_ON
        if row.postprocess and not is_transform:
            raise ValueError(
                f"{where}: row {row.name}: postprocess must have method ({', '.join(METHODS)}) and fit_on "
                f"({', '.join(FIT_ON)}), not {row.postprocess}"
            )
        for scale, values in row.scan.items():
            if scale not in SCALES or not isinstance(values, dict):
                raise ValueError(f"{where}: row {row.name}: scan must name scales and their arguments, not {scale}")
    for column in table.columns:
        if not 0 <= column.quantile <= 1:
            raise ValueError(f"{where}: column {column.name}: quantile must be from 0 to 1, not {column.quantile}")
    rows, columns = {row.name for row in table.rows}, {column.name for column in table.columns}
    for claim in table.claims:
        here = f"{where}: claim {claim.says!r}"
        cells = rows | {f"{row} @ {column}" for row in rows for column in columns}
        if unknown := [name for name in claim.rows() if name not in cells]:
            raise ValueError(f"{here} names {', '.join(unknown)}, and there is no such row")
        if claim.column is not None and claim.column not in columns:
            raise ValueError(f"{here} names the column {claim.column}, and there is no such column")
        is_ordering = claim.better is not None and bool(claim.than)
        is_alike = len(claim.similar) > 1 and claim.within is not None
        if is_ordering == is_alike:
            raise ValueError(f"{here} needs either better and than, or similar (two rows or more) and within")
