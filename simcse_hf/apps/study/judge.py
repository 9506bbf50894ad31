"""The verdict of a study: what each way scored, the differences, the table and the sentence."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Any

from transformers.utils import logging

from ... import SimCSE
from ...evaluation.bm25 import BM25
from ...evaluation.protocol import PAPER_PROTOCOL
from ...evaluation.tasks import Task
from ...evaluation.tasks.base import headline
from ...evaluation.verdict import Sample, Scored, differences, make_samples, mean_sample
from ...models.modeling import AutoModelForCL
from ...names import KEYWORDS
from ...runtime.identity import digest_value
from ...training.dev_sets import PLAIN_POOLERS
from ...training.run_results import Results, dev_scores
from ...training.seeds import learnt_files
from .asked import Asked, dev_tasks
from .result import MEAN, Outcome, Study, choose_way
from .runs import RUNS, SeedRun, score_run
from .ways import START

logger = logging.get_logger(__name__)


#: What one way scored on each task with each seed.
WayScores = dict[str, dict[int | None, Scored]]


def judge_runs(
    asked: Asked,
    runs: Sequence[SeedRun],
    tasks: Mapping[str, Task],
    failures: Mapping[str, str],
    bar: bool,
) -> Study:
    """Compare the ways whose runs are all finished.

    Args:
        asked (`Asked`): What is asked for.
        runs (`Sequence[SeedRun]`): The runs.
        tasks (`Mapping[str, Task]`): The test tasks; without any, the dev set judges.
        failures (`Mapping[str, str]`): Why runs failed.
        bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Study`]: The study.
    """
    # 1. The ways whose runs are all finished.
    missing = []
    finished: dict[str, list[SeedRun]] = {}
    for way in asked.ways:
        own = [run for run in runs if run.way is way]
        missing += [run.name for run in own if run.record is None and run.name not in failures]
        if all(run.record is not None and run.name not in failures for run in own):
            finished[way.name] = own

    # 2. Their scores: of the ways, of what the dev set chooses in each grid, of each start, and of keyword search.
    scored: dict[str, WayScores] = {}
    chosen: dict[str, str] = {}
    dev: dict[str, float] = {}
    for name in asked.compared:
        cells = [way.name for way in asked.ways if way.grid == name]
        if name in finished:
            scored[name] = score_runs(finished[name], tasks, bar)
        if cells and all(cell in finished for cell in cells):
            scores = {}
            for cell in cells:
                scores[cell] = {run.seed: Results.read(run.folder).score("saved") for run in finished[cell]}
            dev |= {cell: fmean(each.values()) for cell, each in scores.items()}
            chosen[name] = max(cells, key=lambda cell: dev[cell])
            own = [finished[cell][number] for number, cell in enumerate(choose_cells(scores))]
            scored[name] = score_runs(own, tasks, bar)
    first_runs: dict[str, SeedRun] = {}
    for run, *_ in finished.values():
        first_runs.setdefault(run.way.start, run)
    starts = []
    for name, run in first_runs.items():
        starts.append(START if len(first_runs) == 1 else f"{START} {name}")
        scored[starts[-1]] = score_start(run, asked, tasks, bar)
    if tasks and not any(task.needs_vectors for task in tasks.values()):
        keywords = SeedRun(asked.ways[0], None, asked.output / RUNS / KEYWORDS)
        scored[KEYWORDS] = score_runs([keywords], tasks, bar, BM25)

    # 3. What each row of the table has cost.
    costs = {}
    for name, own in finished.items():
        records = [run.record or {} for run in own]
        costs[name] = (fmean(each["operations"] for each in records), max(each["bytes"] for each in records))
    costs |= {grid: costs[cell] for grid, cell in chosen.items()}
    costs |= {name: (0.0, min(costs[way][1] for way in finished)) for name in starts}
    costs[KEYWORDS] = (0.0, 0)

    # 4. The table, in which the cells of a grid stand below it, and the sentence.
    columns = sample_scores(scored)
    found = {}
    for column, samples in columns.items():
        found[column] = differences(samples, confidence=asked.confidence)
        for (one, other), each in list(found[column].items()):
            found[column][other, one] = each.opposite
    first = asked.compared[0]
    outcomes = []
    for name in scored:
        over_first = {}
        if name != first and first in scored:
            over_first = {column: asdict(found[column][name, first]) for column in columns}
        folders = {str(run.seed): f"{RUNS}/{run.folder.name}" for run in finished.get(chosen.get(name, name), ())}
        outcomes.append(
            Outcome(
                name,
                scores={column: words_of(samples[name].figures) for column, samples in columns.items()},
                mean={column: samples[name].mean for column, samples in columns.items()},
                sd={column: samples[name].sd for column, samples in columns.items()},
                difference=over_first,
                cells={way.name: dev[way.name] for way in asked.ways if way.grid == name},
                cell=chosen.get(name),
                operations=costs[name][0],
                model_bytes=costs[name][1],
                folders=folders,
            )
        )
    take = None
    summary = "No way is finished with all seeds, so there is no verdict."
    if len(outcomes) > 1:
        decides = list(columns)[-1]
        take, summary = choose_way(outcomes, found[decides], decides)
    return Study(
        summary=summary,
        take=take,
        first=first,
        seeds=asked.seeds,
        tasks=[column for column in columns if column != MEAN],
        judged_on="test" if tasks else "dev",
        outcomes=outcomes,
        failures=failures,
        missing=missing,
        confidence=asked.confidence,
        output=str(asked.output),
    )


def sample_scores(scored: Mapping[str, WayScores]) -> dict[str, dict[str, Sample]]:
    """Resample the scores of each task and, where there are several, their mean.

    Args:
        scored (`Mapping[str, WayScores]`): The scores of each way on the same tasks.

    Returns:
        `dict[str, dict[str, Sample]]`: For each task and the mean, the sample of each way.
    """
    columns: dict[str, dict[str, Sample]] = {}
    tasks = list(next(iter(scored.values()), ()))
    for task in tasks:
        columns[task] = make_samples({name: each[task] for name, each in scored.items()}, task)
    if len(tasks) > 1:
        columns[MEAN] = {name: mean_sample([columns[task][name] for task in tasks]) for name in scored}
    return columns


def words_of(figures: Mapping[int | None, float]) -> dict[str, float]:
    """Return figures by seed, as JSON takes them: a seed as a word, and `""` for a system that is not trained."""
    return {"" if seed is None else str(seed): figure for seed, figure in figures.items()}


def score_runs(
    runs: Sequence[SeedRun],
    tasks: Mapping[str, Task],
    bar: bool,
    model: Callable[[], Any] | None = None,
) -> WayScores:
    """Return the scores of runs with different seeds on the test tasks or, without any, on the dev set.

    Args:
        runs (`Sequence[SeedRun]`): The runs.
        tasks (`Mapping[str, Task]`): The test tasks. One without data has no score.
        bar (`bool`): Show a bar while texts are encoded.
        model (`Callable`, *optional*): Loads what is not trained. By default each run has its own model.

    Returns:
        `WayScores`: The scores.
    """
    scored: WayScores = defaultdict(dict)
    for run in runs:
        if not tasks:
            results = Results.read(run.folder)
            scores = dev_scores(run.folder, results)
            assert scores is not None  # as the dev set is what judges
            of_seed = Scored(results.score("saved"), scores.saved, scores.optimism)
            scored[str(results.dev_metric)][run.seed] = of_seed
            continue
        evaluation = score_run(run, model or partial(run.way.open, run.folder), tasks, bar)
        for name in tasks:
            figure = headline(evaluation.results[name], PAPER_PROTOCOL)
            if figure is not None:
                scored[name][run.seed] = Scored(figure, evaluation.scores[name])
    return scored


def score_start(run: SeedRun, asked: Asked, tasks: Mapping[str, Task], bar: bool) -> WayScores:
    """Return the scores of the model that a run begins with, as one would use it.

    An encoder that names no pooler is used with the plain one that scores better on the dev set.

    Args:
        run (`SeedRun`): The run.
        asked (`Asked`): What is asked for.
        tasks (`Mapping[str, Task]`): The test tasks; without any, the dev set judges.
        bar (`bool`): Show a bar while texts are encoded.

    Returns:
        `WayScores`: The scores.
    """
    if not tasks:
        results = Results.read(run.folder)
        scores = dev_scores(run.folder, results)
        assert scores is not None
        return {str(results.dev_metric): {None: Scored(results.score("start"), scores.start)}}
    name = run.way.decided.checkpoint.name
    learnt = run.way.learnt
    load = partial(SimCSE, name, revision=learnt["model_revision"])
    model = AutoModelForCL.from_pretrained(name, revision=learnt["model_revision"])
    pooler = None
    if model.settings.inference_pooler == "cls" and model.head_source != "kept":
        pooler = PLAIN_POOLERS[0]
        dev = list(dev_tasks(run.way).values())
        if dev:
            by_pooler = {}
            for each in PLAIN_POOLERS:
                by_pooler[each] = dev[0].evaluate(load(pooler_type=each)).metrics[dev[0].metric]
            pooler = max(by_pooler, key=lambda each: by_pooler[each])
        logger.info(f"{name} names no pooler: as the start it is used with {pooler}.")
    digests = [learnt[f"digest of {file}"] for file in learnt_files(learnt["model_name_or_path"])]
    known_by = digest_value([digests or [name, learnt["model_revision"]], pooler])
    folder = asked.output / RUNS / f"{START}-{known_by[:12]}"
    return score_runs([SeedRun(run.way, None, folder)], tasks, bar, partial(load, pooler_type=pooler))


def choose_cells(dev: Mapping[str, Mapping[int | None, float]]) -> list[str]:
    """Choose a cell of a grid for each seed by the dev scores of all *other* seeds.

    So the cell whose run with a seed is judged was chosen neither by the test items nor by this seed, and the mean
    over the seeds says what such a choice gives in a new run. With the dev scores 80, 70 of one cell and 75, 76 of
    another, the first seed is that of the second cell, whose 76 is better than 70, and the second seed that of the
    first cell, whose 80 is better than 75.

    Args:
        dev (`Mapping[str, Mapping[int, float]]`): The dev score of each cell with each seed.

    Returns:
        `list[str]`: The cell of each seed.
    """
    chosen = []
    for seed in next(iter(dev.values())):
        others = {cell: [score for each, score in scores.items() if each != seed] for cell, scores in dev.items()}
        chosen.append(max(others, key=lambda cell: fmean(others[cell])))
    return chosen
