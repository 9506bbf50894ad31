"""Reproduce a table: a study of its rows, whose figures stand beside the paper's and judge the paper's claims."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from simcse_hf import __version__
from simcse_hf.apps.study.judge import words_of
from simcse_hf.apps.study.runs import (
    COST_FILE,
    RUNS,
    SeedRun,
    finish_run,
    plan_runs,
    remove_model,
    score_files,
    score_run,
    taken,
)
from simcse_hf.evaluation.report import Evaluation
from simcse_hf.evaluation.tasks import Task
from simcse_hf.evaluation.verdict import Sample
from simcse_hf.runtime.files import remove, write_text

from .claims import CONFIDENCE, judge
from .cost import steps_of
from .measures import RESAMPLES, metric, quantile_sample, sample_metric
from .report import format_markdown
from .rows import Options, differences, ways_of
from .table import Table

logger = logging.get_logger("simcse_hf.reproduction")  # of the package whose messages the commands show

FIRST_SEED = 42


def plan(table: Table, options: Options) -> list[SeedRun]:
    """List the runs of a table, those without training first, and then one seed of all rows before the next.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.

    Returns:
        `list[SeedRun]`: One for each cell, point of a scan and seed. Equal runs have the same folder.

    Raises:
        ValueError: If `only` names no row, or a recipe or setting is unknown.
    """
    unknown = [name for name in options.only if name not in {row.name for row in table.rows}]
    if unknown:
        rows = ", ".join(row.name for row in table.rows)
        raise ValueError(f"--only {', '.join(unknown)}: {table.name} has no such row; its rows are {rows}")
    trained = []
    untrained = []
    for _, row, column in table.cells(options.scale):
        for way in ways_of(table, row, column, options):
            (trained if way.is_trained else untrained).append(way)
    folder = options.output / RUNS
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    return plan_runs(untrained, [None], folder) + plan_runs(trained, seeds, folder)


def finish(runs: Sequence[SeedRun], options: Options, is_wanted: bool) -> dict[str | None, Evaluation]:
    """Train and measure a run, unless it is finished.

    Args:
        runs (`Sequence[SeedRun]`): The run, once for each cell that shows it.
        options (`Options`): What is asked for.
        is_wanted (`bool`): Whether the run is to be made if it is not finished.

    Returns:
        `dict[str | None, Evaluation]`: The results with each pooler; none if the run is not wanted, or if another
        process works on it.

    Raises:
        Exception: What training or scoring raises, for example because a file is missing.
    """
    run = runs[0]
    way = run.way
    # 1. The tasks by pooler. Scores stay when a model is trained again for other tasks, so they have another folder.
    tasks: dict[str | None, dict[str, Task]] = {}
    for each in runs:
        tasks.setdefault(each.way.row.pooler, {}).update(each.way.tasks(run.folder))
    of_pooler = {}
    for pooler in tasks:
        of_pooler[pooler] = replace(run, folder=scores_of(run) / (pooler or "own pooler"))

    def score() -> dict[str | None, Evaluation]:
        found = {}
        for pooler, each in of_pooler.items():
            load = partial(way.open, run.folder, pooler)
            with torch.autocast("cpu", torch.bfloat16) if way.in_bf16 else nullcontext():
                found[pooler] = score_run(each, load, tasks[pooler], bar=False)
        return found

    # 2. What is finished is read.
    is_trained = run.record is not None or not way.is_trained
    files: list[Path] = []
    for pooler, each in of_pooler.items():
        files += score_files(each, tasks[pooler]).values()
    if is_trained and all(file.exists() for file in files):
        return score()
    if not is_wanted:
        return {}

    # 3. What is not, is trained and scored.
    with taken(run.folder) as is_ours:
        if not is_ours:
            return {}
        if way.is_trained:
            if not any(run.folder.glob("*.safetensors")):  # the model was removed, and other tasks need it
                remove(run.folder / COST_FILE)
            finish_run(run)
        found = score()
        if way.is_trained and not options.keep_models:
            remove_model(run)
    return found


def scores_of(run: SeedRun) -> Path:
    """Return the folder of the scores of a run."""
    return run.folder.parent.with_name("scores") / run.folder.name


def reproduce(table: Table, options: Options, command: Sequence[str] = ()) -> dict[str, Any]:
    """Finish the runs of a table, and write its results.

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
    runs = plan(table, options)
    found: dict[tuple[Path, str | None], Evaluation] = {}
    failures: dict[Path, str] = {}
    by_folder: dict[Path, list[SeedRun]] = {}
    for run in runs:
        by_folder.setdefault(run.folder, []).append(run)
    for number, (folder, equal) in enumerate(by_folder.items(), start=1):
        name = equal[0].name
        wanted = not options.only or any(run.way.row.name in options.only for run in equal)
        if wanted:
            logger.info(f"{table.name}: run {number} of {len(by_folder)}: {name}")
        try:
            for pooler, evaluation in finish(equal, options, wanted).items():
                found[folder, pooler] = evaluation
        except Exception as error:  # an objective of somebody's own may raise anything, and the others go on
            if not wanted:
                continue
            failures[folder] = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            logger.warning(f"{table.name}: {name} could not be run: {failures[folder]}")
    if failures and not found:
        raise ValueError(f"{table.name}: none of its runs could be made: {next(iter(failures.values()))}")
    document = summarise(table, options, runs, found, failures, command)
    write_document(document, options)
    return document


def summarise(
    table: Table,
    options: Options,
    runs: Sequence[SeedRun],
    found: Mapping[tuple[Path, str | None], Evaluation],
    failures: Mapping[Path, str],
    command: Sequence[str],
) -> dict[str, Any]:
    """Compare the figures of the finished runs with the paper's, and judge the claims.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.
        runs (`Sequence[SeedRun]`): What [`plan`] returns.
        found (`dict[tuple[Path, str | None], Evaluation]`): The results by the folder of the run and the pooler.
        failures (`dict[Path, str]`): Why runs failed, by their folder.
        command (`Sequence[str]`): The words of the command line.

    Returns:
        `dict[str, Any]`: The document of the table.
    """
    # 1. The figures of each cell with each seed.
    samples: dict[tuple[str, str], Sample] = {}
    averaged: dict[str, list[str]] = {column.name: [] for column in table.columns}
    for _, row, column in table.cells(options.scale):
        points: dict[str, dict[int | None, Evaluation]] = {}
        for run in runs:
            if run.way.row is row and run.way.column is column:
                evaluations = points.setdefault(run.way.name, {})
                if (run.folder, row.pooler) in found:
                    evaluations[run.seed] = found[run.folder, row.pooler]
        aggregation = row.aggregation or table.aggregation
        of_points = []
        for evaluations in points.values():
            how = (metric(column.metric), row.transform, aggregation, table.correlation)
            sample, tasks = sample_metric(evaluations, *how)
            averaged[column.name] = tasks or averaged[column.name]
            of_points.append(sample)
        sample = quantile_sample(of_points, column.quantile)
        if sample.figures:
            samples[row.name, column.name] = sample

    # 2. The table.
    trained = {(run.way.row.name, run.way.column.name) for run in runs if run.way.is_trained}
    rows = []
    for row in table.rows:
        why = {failures[run.folder] for run in runs if run.way.row is row and run.folder in failures}
        cells = []
        for number, column in enumerate(table.columns):
            place = (row.name, column.name)
            cells.append(_cell(table.paper_figure(row, number), samples.get(place), place in trained))
        rows.append({"name": row.name, "cells": cells, "failure": "; ".join(sorted(why)) or None})

    # 3. The claims.
    verdicts = []
    for claim in table.claims:
        judged = claim.column or table.columns[0].name
        of_claim = {f"{row} @ {column}": sample for (row, column), sample in samples.items()}
        of_claim |= {row: sample for (row, column), sample in samples.items() if column == judged}
        verdicts.append({"column": judged, **asdict(judge(claim, of_claim))})
    records = {run.folder: run.record or {} for run in runs if (run.folder, run.way.row.pooler) in found}
    return {
        "table": table.name,
        "paper": table.paper,
        "number": table.table,
        "title": table.title,
        "figure": table.figure,
        "scale": options.scale,
        "start": options.model,
        "seeds": options.seeds,
        "columns": [
            {
                "name": column.name,
                "averaged": averaged[column.name],
                "resampled": metric(column.metric).is_resampled,
            }
            for column in table.columns
        ],
        "rows": rows,
        "claims": verdicts,
        "bootstrap": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "over": "seeds and test examples"},
        "differs": differences(table, options),
        "seconds": sum(record.get("train_seconds") or 0 for record in records.values()),
        "command": list(command),
        "version": __version__,
    }


def _cell(paper: float | None, sample: Sample | None, trained: bool) -> dict[str, Any]:
    if sample is None:
        return {"paper": paper, "figures": {}, "mean": None, "sd": None, "difference": None, "trained": trained}
    return {
        "paper": paper,
        "figures": {seed: round(figure, 4) for seed, figure in words_of(sample.figures).items()},
        "mean": round(sample.mean, 4),
        "sd": None if sample.sd is None else round(sample.sd, 4),
        "difference": None if paper is None else round(sample.mean - paper, 4),
        "trained": trained,  # without training, there is one figure for all seeds
    }


def write_document(document: dict[str, Any], options: Options, folder: Path | None = None) -> None:
    """Write the results of a table as JSON and as Markdown.

    Args:
        document (`dict[str, Any]`): What [`summarise`] returns.
        options (`Options`): Names the folder of results, the scale and the start model, which are in the names of the
            files if they are not the usual ones.
        folder (`Path`, *optional*): Another folder to write to.
    """
    folder = folder or options.output
    folder.mkdir(parents=True, exist_ok=True)
    parts = [document["table"].replace("/", "-")]
    if options.scale == "paper":
        parts.append("paper")
    if options.model is not None:
        parts.append(Path(options.model).name)
    path = folder / f"{'-'.join(parts)}.json"
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(path.with_suffix(".md"), format_markdown(document))


def dry_run(table: Table, options: Options) -> dict[str, Any]:
    """List the runs of a table, and what they lack, without training.

    Args:
        table (`Table`): The table.
        options (`Options`): What is asked for.

    Returns:
        `dict[str, Any]`: `runs` (row, column, seed, key, settings of the row, steps, rows of a step, and whether it is
            trained or, without training, measured), and `missing` (what to download).
    """
    runs = []
    missing: dict[str, None] = {}
    for run in plan(table, options):
        way = run.way
        if options.only and way.row.name not in options.only:
            continue
        missing |= dict.fromkeys(way.missing())
        steps, batch = steps_of(way.recipe.given) if way.is_trained else (0, 0)
        runs.append(
            {
                "row": way.row.name,
                "column": way.column.name,
                "seed": run.seed,
                "key": run.folder.name,
                "settings": way.row.settings,
                "steps": steps,
                "batch": batch,
                "done": run.record is not None if way.is_trained else scores_of(run).exists(),
            }
        )
    return {
        "table": table.name,
        "title": table.title,
        "scale": options.scale,
        "runs": runs,
        "missing": list(missing),
    }
