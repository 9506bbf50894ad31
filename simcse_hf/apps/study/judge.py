"""The verdict of a study: what each way scored, the differences, the table and the sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from transformers.utils import logging

from ... import SimCSE
from ...evaluation.bm25 import BM25
from ...evaluation.bootstrap import Parts
from ...evaluation.protocol import Protocol
from ...evaluation.tasks import Task
from ...evaluation.tasks.base import headline
from ...evaluation.verdict import Sample, differences, make_samples, mean_sample
from ...models.modeling import AutoModelForCL
from ...names import KEYWORDS
from ...runtime.identity import digest_value
from ...training.dev_sets import PLAIN_POOLERS
from ...training.run_results import Results, dev_scores
from ...training.seeds import learnt_settings
from .asked import Asked, dev_tasks
from .result import MEAN, Outcome, Study, choose_way
from .runs import RUNS, Run, score_run
from .ways import START, Way

logger = logging.get_logger(__name__)


@dataclass
class Scored:
    """The scores of one way with each seed, on each task.

    Args:
        figures (`dict[str, dict[int | None, float]]`): The score of each seed, by task, times 100.
        parts (`dict[str, dict[int | None, Parts]]`): What the bootstrap resamples.
        optimism (`dict[int | None, float]`): By how much a score is too high because it chose a checkpoint.
    """

    figures: dict[str, dict[int | None, float]]
    parts: dict[str, dict[int | None, Parts]]
    optimism: dict[int | None, float]

    @classmethod
    def empty(cls) -> "Scored":
        """Return an object to which seeds are added."""
        return cls({}, {}, {})

    def add(self, seed: int | None, task: str, figure: float, parts: Parts, optimism: float = 0.0) -> None:
        """Add the score of a seed on a task."""
        self.figures.setdefault(task, {})[seed] = figure
        self.parts.setdefault(task, {})[seed] = parts
        self.optimism[seed] = optimism


def judge(
    asked: Asked,
    runs: Sequence[Run],
    tasks: Mapping[str, Task],
    protocol: Protocol,
    failures: Mapping[str, str],
    bar: bool,
) -> Study:
    """Compare the ways whose runs are all finished.

    Args:
        asked (`Asked`): What is asked for.
        runs (`Sequence[Run]`): The runs.
        tasks (`Mapping[str, Task]`): The test tasks; without any, the dev set judges.
        protocol (`Protocol`): How tasks are scored.
        failures (`Mapping[str, str]`): Why runs failed.
        bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Study`]: The study.
    """
    # 1. The ways whose runs are all finished.
    missing = []
    finished: dict[str, list[Run]] = {}
    for run in runs:
        if run.name in failures:
            continue
        if run.record is None:
            missing.append(run.name)
        else:
            finished.setdefault(run.way.name, []).append(run)
    ways = [way for way in asked.ways if len(finished.get(way.name, ())) == len(asked.seeds)]

    # 2. Their scores: of the ways, of what the dev set chooses in each grid, of each start, and of keyword search.
    scored: dict[str, Scored] = {}
    dev: dict[str, dict[int | None, float]] = {}
    for way in ways:
        for run in finished[way.name]:
            results = Results.read(run.folder)
            if results.dev_metric is not None:
                dev.setdefault(way.name, {})[run.seed] = results.score("saved")
        scored[way.name] = score_way(finished[way.name], tasks, protocol, bar)
    chosen = {}
    for grid in dict.fromkeys(way.grid for way in ways if way.grid is not None):
        cells = [way.name for way in asked.ways if way.grid == grid]
        if all(cell in scored for cell in cells):
            chosen[grid], scored[grid] = choose_cells(cells, dev, scored)
    starts: dict[str, Way] = {}
    for way in ways:
        starts.setdefault(str(way.recipe.decide().checkpoint.name), way)
    for name, way in starts.items():
        known_as = START if len(starts) == 1 else f"{START} {name}"
        scored[known_as] = score_start(way, finished[way.name][0], asked, tasks, protocol, bar)
    if tasks and not any(task.needs_vectors for task in tasks.values()):
        folder = asked.output / RUNS / KEYWORDS
        scored[KEYWORDS] = score_untrained(Run(ways[0], None, folder), BM25, tasks, protocol, bar)

    # 3. Their differences, on each task and on the mean of the tasks.
    all_cells = {way.name for way in asked.ways if way.grid is not None}
    judged = [name for name in scored if name not in all_cells]
    columns: dict[str, dict[str, Sample]] = {}
    names = list(next(iter(scored.values())).figures) if scored else []
    for task in names:
        parts = {name: each.parts[task] for name, each in scored.items()}
        figures = {name: each.figures[task] for name, each in scored.items()}
        samples = make_samples(parts, figures, task, protocol)
        columns[task] = {name: replace(each, optimism=scored[name].optimism) for name, each in samples.items()}
    if len(names) > 1:
        columns[MEAN] = {name: mean_sample([columns[task][name] for task in names]) for name in scored}
    found = {}
    for column, samples in columns.items():
        found[column] = differences({name: samples[name] for name in judged}, confidence=asked.confidence)
        for (one, other), each in list(found[column].items()):
            found[column][other, one] = each.opposite

    # 4. The table: a grid stands before its cells, and what is not trained after all ways.
    first = asked.compared[0]
    order = []
    for name in asked.compared:
        order += [name, *(way.name for way in asked.ways if way.grid == name)]
    order += [name for name in scored if name not in order]
    grid_of = {way.name: way.grid for way in asked.ways}
    costs = {way.name: cost_of(finished[way.name]) for way in ways}
    for grid, cell in chosen.items():
        costs[grid] = costs[cell]
    outcomes = []
    for name in order:
        if name not in scored:
            continue
        operations, size = costs.get(name, (0.0, 0 if name == KEYWORDS else min(size for _, size in costs.values())))
        over_first = {}
        for column in columns:
            if name in judged and name != first and first in judged:
                over_first[column] = asdict(found[column][name, first])
        samples = {column: columns[column][name] for column in columns}
        outcomes.append(
            Outcome(
                name,
                scores={column: words_of(sample.figures) for column, sample in samples.items()},
                mean={column: sample.mean for column, sample in samples.items()},
                sd={column: sample.sd for column, sample in samples.items()},
                difference=over_first,
                grid=grid_of.get(name),
                cell=chosen.get(name),
                dev=fmean(dev[name].values()) if name in dev else None,
                operations=operations,
                model_bytes=size,
                folders={str(run.seed): f"{RUNS}/{run.folder.name}" for run in finished.get(name, ())},
            )
        )

    # 5. The sentence.
    take = None
    summary = "No way is finished with all seeds, so there is no verdict."
    if len(judged) > 1:
        decides = list(columns)[-1]
        take, summary = choose_way([each for each in outcomes if each.name in judged], found[decides], decides)
    on = "test" if tasks else "dev"
    return Study(
        summary, take, first, asked.seeds, names, on, outcomes, failures, missing, asked.confidence, str(asked.output)
    )


def words_of(figures: Mapping[int | None, float]) -> dict[str, float]:
    """Return figures with the seeds as words, which JSON needs; that of what is not trained is empty."""
    return {"" if seed is None else str(seed): figure for seed, figure in figures.items()}


def cost_of(runs: Sequence[Run]) -> tuple[float, int]:
    """Return the operations of training and the bytes of the weights, as means over runs."""
    records = [run.record or {} for run in runs]
    return fmean(record["operations"] for record in records), max(record["bytes"] for record in records)


def score_way(runs: Sequence[Run], tasks: Mapping[str, Task], protocol: Protocol, bar: bool) -> Scored:
    """Return the scores of a way: those of its models on the test tasks or, without any, on the dev set."""
    scored = Scored.empty()
    for run in runs:
        if tasks:
            add_evaluation(scored, run, partial(run.way.open, run.folder), tasks, protocol, bar)
            continue
        results = Results.read(run.folder)
        scores = dev_scores(run.folder, results)
        assert scores is not None  # as the dev set is what judges
        scored.add(run.seed, str(results.dev_metric), results.score("saved"), scores.saved, scores.optimism)
    return scored


def score_untrained(
    run: Run, model: Callable[[], Any], tasks: Mapping[str, Task], protocol: Protocol, bar: bool
) -> Scored:
    """Return the scores of what is not trained on the test tasks."""
    scored = Scored.empty()
    add_evaluation(scored, run, model, tasks, protocol, bar)
    return scored


def add_evaluation(
    scored: Scored, run: Run, model: Callable[[], Any], tasks: Mapping[str, Task], protocol: Protocol, bar: bool
) -> None:
    """Add the scores of a run on each task that has one; a task without data has none."""
    evaluation = score_run(run, model, tasks, protocol, bar)
    for name in tasks:
        figure = headline(evaluation.results[name], protocol)
        if figure is not None:
            scored.add(run.seed, name, figure, evaluation.scores[name])


def score_start(way: Way, run: Run, asked: Asked, tasks: Mapping[str, Task], protocol: Protocol, bar: bool) -> Scored:
    """Return the scores of the model that a way begins with, as one would use it.

    An encoder that names no pooler is used with the plain one that scores better on the dev set.

    Args:
        way (`Way`): The way.
        run (`Run`): One of its runs.
        asked (`Asked`): What is asked for.
        tasks (`Mapping[str, Task]`): The test tasks; without any, the dev set judges.
        protocol (`Protocol`): How tasks are scored.
        bar (`bool`): Show a bar while texts are encoded.

    Returns:
        [`Scored`]: The scores.
    """
    if not tasks:
        results = Results.read(run.folder)
        scored = Scored.empty()
        metric = str(results.dev_metric)
        scores = dev_scores(run.folder, results)
        assert scores is not None
        scored.add(None, metric, results.score("start"), scores.start)
        return scored
    name = str(way.recipe.decide().checkpoint.name)
    model = AutoModelForCL.from_pretrained(name)
    pooler = None
    if model.settings.inference_pooler == "cls" and model.head_source != "kept":
        pooler = PLAIN_POOLERS[0]
        dev = list(dev_tasks(way.recipe).values())
        if dev:
            by_pooler = {}
            for each in PLAIN_POOLERS:
                by_pooler[each] = dev[0].evaluate(SimCSE(name, pooler_type=each)).metrics[dev[0].metric]
            pooler = max(by_pooler, key=lambda each: by_pooler[each])
        logger.info(f"{name} names no pooler: as the start it is used with {pooler}.")
    folder = asked.output / RUNS / f"{START}-{digest_value([digest_start(way), pooler])[:12]}"
    untrained = Run(way, None, folder)
    return score_untrained(untrained, partial(SimCSE, name, pooler_type=pooler), tasks, protocol, bar)


def choose_cells(
    cells: Sequence[str], dev: Mapping[str, Mapping[int | None, float]], scored: Mapping[str, Scored]
) -> tuple[str, Scored]:
    """Choose a cell of a grid by the dev set, and return it with scores that had no part in the choice.

    The score with a seed is that of the cell that is best on the dev set with all *other* seeds. So neither its test
    items nor its seed chose it, and the mean over the seeds says what such a choice gives in a new run. With the dev
    scores 80, 70 of one cell and 75, 76 of another, the first seed has the score of the second cell, whose 76 is
    better than 70, and the second seed that of the first cell, whose 80 is better than 75.

    Args:
        cells (`Sequence[str]`): The cells.
        dev (`Mapping[str, Mapping[int, float]]`): The dev score of each cell with each seed.
        scored (`Mapping[str, Scored]`): The test scores of each cell.

    Returns:
        `tuple[str, Scored]`: The cell that is best on the dev set with all seeds, and the scores.
    """
    mixed = Scored.empty()
    seeds = list(dev[cells[0]])
    for seed in seeds:
        others = [each for each in seeds if each != seed]
        best = max(cells, key=lambda cell: fmean(dev[cell][each] for each in others))
        for task, figures in scored[best].figures.items():
            mixed.add(seed, task, figures[seed], scored[best].parts[task][seed])
    return max(cells, key=lambda cell: fmean(dev[cell].values())), mixed


def digest_start(way: Way) -> list[Any]:
    """Return what tells the model that a way begins with from others: its name, and its weights if they are here."""
    settings = learnt_settings(way.recipe.decide())
    weights = {name: value for name, value in settings.items() if name.endswith(".safetensors")}
    return [settings["model_name_or_path"], settings.get("model_revision"), weights]
