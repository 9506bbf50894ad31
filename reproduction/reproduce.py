"""Reproduce a table: finish its runs, compare the figures with the paper's, and judge the paper's claims."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from simcse_hf import __version__
from simcse_hf.runtime.files import write_text

from .cost import steps_of
from .figures import figure, is_resampled, metric, resample
from .report import format_markdown
from .runs import RunStore
from .specs import Run, Sources, differences, runs_of
from .table import Row, Table
from .verdict import CONFIDENCE, RESAMPLES, Sample, judge

logger = logging.get_logger("simcse_hf.reproduction")  # of the package whose messages the commands show

#: What a run may raise without ending the command: the other rows of the table are still of use.
_FAILURES = (ValueError, FloatingPointError, NotImplementedError)


@dataclass(frozen=True)
class Options:
    """What the user of `python -m reproduction` asks for.

    Args:
        sources (`Sources`): Where the data, the models and the results are.
        scale (`str`, *optional*, defaults to `"small"`): `"small"` or `"paper"`.
        seeds (`int`, *optional*, defaults to `3`): Runs of each cell.
        only (`tuple[str, ...]`, *optional*): Names of the rows to run; by default all.
        keep_models (`bool`, *optional*, defaults to `False`): Keep the trained models.
    """

    sources: Sources
    scale: str = "small"
    seeds: int = 3
    only: tuple[str, ...] = ()
    keep_models: bool = False


@dataclass(frozen=True)
class Planned:
    """A cell's run, and the evaluations that the table needs of it."""

    row: Row
    column: int
    run: Run
    groups: tuple[str, ...]


def plan(table: Table, options: Options) -> list[Planned]:
    """List the runs of a table, each with the evaluations that all of its columns need.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.

    Returns:
        `list[Planned]`: The runs in the order of training, one for each cell and seed. Cells may share a run.

    Raises:
        ValueError: If `only` names no row, or a recipe or setting is unknown.
    """
    if unknown := [name for name in options.only if name not in {row.name for row in table.rows}]:
        rows = ", ".join(row.name for row in table.rows)
        raise ValueError(f"--only {', '.join(unknown)}: {table.name} has no such row; its rows are {rows}")
    planned: list[Planned] = []
    groups: dict[str, dict[str, None]] = {}
    for row, column, run in runs_of(table, options.scale, options.seeds, options.sources):
        planned.append(Planned(row, column, run, ()))
        # A run records its dev figure. A start model may have no pooler of its own: it is measured by the row's only.
        needed = groups.setdefault(run.key(options.sources), {"dev": None} if run.trained else {})
        needed[row.variant.of(metric(table.columns[column].metric).group)] = None
    return [replace(each, groups=tuple(groups[each.run.key(options.sources)])) for each in planned]


def reproduce(table: Table, options: Options, command: Sequence[str] = ()) -> dict[str, Any]:
    """Finish the runs of a table, and write its results after each run.

    A killed call continues where it stopped, and several processes may share a folder of results: each trains runs
    that no other has begun.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.
        command (`Sequence[str]`, *optional*): The words of the command line, for the record.

    Returns:
        `dict[str, Any]`: The document that is written to `TABLE.json` in the folder of results.

    Raises:
        ValueError: If the table names an unknown row, recipe or setting, or none of its runs could be made.
    """
    store = RunStore(options.sources, options.keep_models)
    planned = plan(table, options)
    failures: dict[str, str] = {}
    pending = [each for each in planned if not options.only or each.row.name in options.only]
    wanted = _distinct(pending, options)
    for wait in (False, True):  # first what no other process trains, then wait for what one does
        left = []
        for each in pending:
            key = each.run.key(options.sources)
            if key in failures or store.has(each.run, each.groups):
                continue
            logger.info(f"{table.name}: {each.row.name}, {table.columns[each.column].name}, seed {each.run.seed}")
            try:
                if not store.finish(each.run, each.groups, wait=wait):
                    left.append(each)
                    continue
            except _FAILURES as error:
                failures[key] = str(error)
                logger.warning(f"{table.name}: {each.row.name} could not be run: {error}")
                continue
            done = sum(store.has(run, groups) for run, groups in wanted)
            logger.info(f"{table.name}: {done} of {len(wanted)} runs are finished.")
            write_document(summarise(table, store, options, planned, failures, command), options)
        pending = left
    document = summarise(table, store, options, planned, failures, command)
    write_document(document, options)
    if failures and not any(store.has(run, groups) for run, groups in wanted):
        raise ValueError(f"{table.name}: none of {len(wanted)} runs could be made: {next(iter(failures.values()))}")
    return document


def _distinct(planned: Sequence[Planned], options: Options) -> list[tuple[Run, tuple[str, ...]]]:
    return list({each.run.key(options.sources): (each.run, each.groups) for each in planned}.values())


def summarise(
    table: Table,
    store: RunStore,
    options: Options,
    planned: Sequence[Planned],
    failures: dict[str, str],
    command: Sequence[str],
) -> dict[str, Any]:
    """Compare the figures of the finished runs with the paper's, and judge the claims.

    Args:
        table (`Table`): The table.
        store (`RunStore`): The runs.
        options (`Options`): What is asked for.
        planned (`Sequence[Planned]`): What [`plan`] returns.
        failures (`dict[str, str]`): Why runs failed, by their key.
        command (`Sequence[str]`): The words of the command line.

    Returns:
        `dict[str, Any]`: The document of the table.
    """
    finished = [each for each in planned if store.has(each.run, each.groups)]
    rows = []
    samples, averaged = _samples(table, planned, finished, store)
    for row in table.rows:
        trained = {each.column for each in planned if each.row.name == row.name and each.run.trained}
        cells_of_row = [
            _cell(table.paper_figure(row, number), samples.get((row.name, number)), number in trained)
            for number in range(len(table.columns))
        ]
        keys = [each.run.key(options.sources) for each in planned if each.row.name == row.name]
        why = {failures[key] for key in keys if key in failures}
        rows.append({"name": row.name, "cells": cells_of_row, "failure": "; ".join(sorted(why)) or None})
    names = [column.name for column in table.columns]
    verdicts = []
    for claim in table.claims:
        number = 0 if claim.column is None else names.index(claim.column)
        cells = {f"{row} @ {names[column]}": sample for (row, column), sample in samples.items()}
        cells |= {row: sample for (row, column), sample in samples.items() if column == number}
        verdicts.append({"column": names[number], **asdict(judge(claim, cells))})
    return {
        "table": table.name,
        "paper": table.paper,
        "number": table.table,
        "title": table.title,
        "figure": table.figure,
        "scale": options.scale,
        "start": options.sources.model,
        "seeds": options.seeds,
        "columns": [
            {"name": column.name, "averaged": averaged[column.name], "resampled": is_resampled(column.metric)}
            for column in table.columns
        ],
        "rows": rows,
        "claims": verdicts,
        "bootstrap": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "over": "seeds and test examples"},
        "differs": differences(table, options.scale, options.sources.model),
        "seconds": sum((store.read(run) or {"seconds": 0})["seconds"] for run, _ in _distinct(finished, options)),
        "command": list(command),
        "version": __version__,
    }


def _samples(
    table: Table, planned: Sequence[Planned], finished: Sequence[Planned], store: RunStore
) -> tuple[dict[tuple[str, int], Sample], dict[str, list[str]]]:
    """Return the figures of each cell by row and column, and the tasks that each column averages.

    A scan counts for a seed when all of its runs are finished. Its figure is the column's quantile over the runs.
    """
    samples: dict[tuple[str, int], Sample] = {}
    averaged: dict[str, list[str]] = {column.name: [] for column in table.columns}
    points = Counter((each.row.name, each.column, each.run.seed) for each in planned)
    found: dict[tuple[str, int, int], list[tuple[float, np.ndarray]]] = {}
    for each in finished:
        column, aggregation = table.columns[each.column], each.row.aggregation or table.aggregation
        measured = store.measured(each.run)
        how = (measured, column.metric, aggregation, table.correlation, each.row.variant)
        value, tasks = figure(*how)
        if not tasks:  # the data of the column is missing
            continue
        averaged[column.name] = list(tasks)
        cell = (each.row.name, each.column, each.run.seed)
        found.setdefault(cell, []).append((value, resample(*how, resamples=RESAMPLES)))
    for (row, number, seed), runs in found.items():
        if len(runs) == points[row, number, seed]:
            quantile = table.columns[number].quantile
            sample = samples.setdefault((row, number), Sample({}, {}))
            sample.figures[seed] = float(np.quantile([value for value, _ in runs], quantile))
            sample.resampled[seed] = np.quantile([drawn for _, drawn in runs], quantile, axis=0)
    return samples, averaged


def _cell(paper: float | None, sample: Sample | None, trained: bool) -> dict[str, Any]:
    if sample is None:
        return {"paper": paper, "figures": {}, "mean": None, "sd": None, "difference": None, "trained": trained}
    values = list(sample.figures.values())
    mean = statistics.mean(values)
    return {
        "paper": paper,
        "figures": {str(seed): round(value, 4) for seed, value in sample.figures.items()},
        "mean": round(mean, 4),
        "sd": round(statistics.stdev(values), 4) if len(values) > 1 and trained else None,
        "difference": None if paper is None else round(mean - paper, 4),
        "trained": trained,  # without training, the figure does not depend on the seed
    }


def write_document(document: dict[str, Any], options: Options, folder: Path | None = None) -> Path:
    """Write the results of a table as JSON and as Markdown.

    Args:
        document (`dict[str, Any]`): What [`summarise`] returns.
        options (`Options`): Names the folder of results.
        folder (`Path`, *optional*): Another folder to write to.

    Returns:
        `Path`: The JSON file.
    """
    folder = folder or options.sources.output
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document_name(document['table'], options)}.json"
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(path.with_suffix(".md"), format_markdown(document))
    return path


def document_name(table: str, options: Options) -> str:
    """Return the name of the files of a table, which says the scale and the start model if they are not the usual."""
    parts = [table.replace("/", "-")]
    if options.scale == "paper":
        parts.append("paper")
    if options.sources.model is not None:
        parts.append(Path(options.sources.model).name)
    return "-".join(parts)


def dry_run(table: Table, options: Options) -> dict[str, Any]:
    """List the runs of a table, and what they lack, without training.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.

    Returns:
        `dict[str, Any]`: `runs` (row, column, seed, key, settings of the row, steps, rows of a step, and whether it is
            done), and `missing` (what to download).
    """
    store = RunStore(options.sources)
    planned = [each for each in plan(table, options) if not options.only or each.row.name in options.only]
    runs = []
    for each in planned:
        steps, batch = steps_of(each.run.settings) if each.run.trained else (0, 0)
        runs.append(
            {
                "row": each.row.name,
                "column": table.columns[each.column].name,
                "seed": each.run.seed,
                "key": each.run.key(options.sources),
                "settings": each.row.settings,
                "steps": steps,
                "batch": batch,
                "done": store.has(each.run, each.groups),
            }
        )
    return {
        "table": table.name,
        "title": table.title,
        "scale": options.scale,
        "runs": runs,
        "missing": list(dict.fromkeys(text for each in planned for text in each.run.missing(options.sources))),
    }
