"""What a study found: a table, a sentence and a picture, in words, in a notebook and as JSON."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...evaluation.report import format_rows
from ...runtime.files import StrPath, as_written, read_json
from ...runtime.outputs import Result
from ..analysis import IntervalRow, draw_intervals

#: The verdict in the output folder.
STUDY = "study.json"
PICTURE = "study.png"
#: The mean over the tasks, where there are several.
MEAN = "mean"


@dataclass(frozen=True)
class Outcome:
    """One row of the table: a way, the start, or keyword search. All scores are times 100.

    Args:
        name (`str`): Its name.
        scores (`dict[str, dict[str, float]]`): For each task and their `mean`, the score of each seed; `""` stands for
            the seed of what is not trained.
        mean (`dict[str, float]`): For each of them, the mean over the seeds.
        sd (`dict[str, float]`): The sample standard deviation over the seeds; `None` of what is not trained.
        difference (`dict[str, dict]`): For each of them, the difference from the first way: `value`, `low` and `high`.
            None of the first way.
        cells (`dict[str, float]`): Of a grid, the mean score of each cell on the dev set, which chooses.
        cell (`str`, *optional*): Of a grid, the cell that it chooses.
        operations (`float`): Floating-point operations of the training, as transformers counts them.
        model_bytes (`int`): Size of the weights.
        folders (`dict[str, str]`): The folder of the run of each seed, seen from the output folder.
    """

    name: str
    scores: Mapping[str, Mapping[str, float]]
    mean: Mapping[str, float]
    sd: Mapping[str, float | None]
    difference: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cells: Mapping[str, float] = field(default_factory=dict)
    cell: str | None = None
    operations: float = 0.0
    model_bytes: int = 0
    folders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Study(Result):
    """Ways to train side by side, on the same seeds and the same test items.

    Args:
        summary (`str`): The verdict in a sentence.
        take (`str`, *optional*): The way to take: the cheapest that was not shown to be worse than the best one.
        first (`str`): The way that the differences are from.
        seeds (`list[int]`): The seeds of every way.
        tasks (`list[str]`): What the verdict is about.
        judged_on (`str`): `"test"`, or `"dev"` where the dev set also chose the checkpoints.
        outcomes (`list[Outcome]`): The ways in the order of the file, the start, and keyword search.
        failures (`dict[str, str]`): Why runs failed, by way and seed.
        missing (`list[str]`): The runs that are not finished, by way and seed.
        confidence (`float`): Level at which all intervals of a column hold together.
        output (`str`): The output folder, which is not written into the file.
    """

    summary: str
    take: str | None
    first: str
    seeds: list[int]
    tasks: list[str]
    judged_on: str
    outcomes: list[Outcome]
    failures: Mapping[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    confidence: float = 0.95
    output: str = ""

    @classmethod
    def read(cls, path: StrPath) -> "Study":
        """Read the study of a folder, or of its `study.json`.

        Args:
            path (`str` or `os.PathLike`): The output folder of a study, or the file in it.

        Returns:
            [`Study`]: The study.

        Raises:
            ValueError: If there is none, or it is damaged.
        """
        file = Path(path) / STUDY if Path(path).is_dir() else Path(path)
        advice = "Run the study again, which trains nothing twice."
        document = read_json(file, "outcomes", "summary", advice=advice)
        with as_written(file, advice):
            outcomes = [Outcome(**each) for each in document["outcomes"]]
            return cls.from_dict(document, outcomes=outcomes, output=str(file.parent))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of study.json, with the table as a card shows it."""
        content = super().to_dict()
        del content["output"]
        return content | {"table": self.table()}

    @property
    def exit_status(self) -> int:
        """Return 1 if a run failed."""
        return 1 if self.failures else 0

    @property
    def columns(self) -> list[str]:
        """The tasks, and their mean where there are several."""
        return [*self.tasks, MEAN] if len(self.tasks) > 1 else self.tasks

    def table(self) -> list[list[str]]:
        """Return the cells of the table, with its header: ways by tasks, and the difference from the first way."""
        decides = self.columns[-1] if self.columns else ""
        rows = [["", *self.columns, f"over {self.first}", "interval"]]
        for each in self.outcomes:
            row = [each.name]
            for column in self.columns:
                spread = each.sd.get(column)
                row.append(f"{each.mean[column]:.2f}" + ("" if spread is None else f" ± {spread:.2f}"))
            difference = each.difference.get(decides)
            if difference is None:
                row += ["", ""]
            elif difference["low"] is None:
                row += [f"{difference['value']:+.2f}", "unknown"]
            else:
                row += [f"{difference['value']:+.2f}", f"[{difference['low']:+.2f}, {difference['high']:+.2f}]"]
            rows.append(row)
        return rows

    def __str__(self) -> str:
        header, *rows = self.table()
        kind = "test tasks"
        if self.judged_on == "dev":
            kind = "the dev set, which also chose the checkpoints (differences allow for that)"
        blocks = [
            f"Mean ± standard deviation over the seeds {', '.join(map(str, self.seeds))} on {kind}, x 100",
            format_rows(rows, *header),
            f"The {100 * self.confidence:g}% intervals hold together for all pairs of ways.",
        ]
        for each in self.outcomes:
            if each.cells:
                blocks.append(format_rows(each.cells.items(), each.name, "dev"))
                blocks.append(
                    f"The dev set chooses {each.cell}. Each seed has the cell that the other seeds choose, so "
                    "neither its test items nor its seed chose it."
                )
        blocks += [f"{run} failed: {why}" for run, why in self.failures.items()]
        if self.missing:
            blocks.append(f"Not finished yet: {', '.join(self.missing)}. Call the study again.")
        return "\n\n".join([*blocks, self.summary])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table, the sentence, and the picture if matplotlib is installed."""
        shown = f"<pre>{html.escape(str(self))}</pre>"
        picture = io.BytesIO()
        if self.draw(picture):
            encoded = base64.b64encode(picture.getvalue()).decode()
            shown += f'<img src="data:image/png;base64,{encoded}" alt="{html.escape(self.summary)}">'
        return shown

    def draw(self, target: Any) -> bool:
        """Draw each seed as a point and each interval as a line, over the first way.

        Args:
            target (`str`, `os.PathLike` or `IO[bytes]`): Where the picture is written, as PNG.

        Returns:
            `bool`: Whether there is a picture: matplotlib is installed, and a difference is known.
        """
        decides = self.columns[-1] if self.tasks else ""
        rows: list[IntervalRow] = []
        zero = next((each.mean[decides] for each in self.outcomes if each.name == self.first), 0.0)
        for each in self.outcomes:
            found = each.difference.get(decides)
            if found is None and each.name != self.first:
                continue
            points = [score - zero for score in each.scores[decides].values()]
            if found is None or found["low"] is None:
                rows.append((each.name, points, None, ()))
            else:
                rows.append((each.name, points, found["value"], (found["low"], found["high"])))
        key = f"circles: one seed; diamonds and bars: difference with its {100 * self.confidence:g}% interval"
        caption = f"{decides} x 100, less the mean of {self.first}\n{key}"
        return len(rows) > 1 and draw_intervals(target, rows, caption)


@dataclass(frozen=True)
class Plan(Result):
    """What a study would train.

    Args:
        runs (`list[str]`): The runs that are not finished, by way and seed.
        steps (`dict[str, int]`): The steps of a run of each way.
        seconds (`dict[str, float]`): How long the first step of each way took.
        minutes (`float`): An estimate of the time that is left, without evaluation.
    """

    runs: list[str]
    steps: dict[str, int]
    seconds: dict[str, float]
    minutes: float

    def __str__(self) -> str:
        lines = []
        for way, steps in self.steps.items():
            left = sum(run.startswith(f"{way}, seed ") for run in self.runs)
            lines.append(
                f"{way}: {left} runs of {steps} steps are left; the first step took {self.seconds[way]:.2f} s"
            )
        return "\n".join([*lines, f"About {self.minutes:.0f} minutes of training are left, without evaluation."])


def choose_way(outcomes: Sequence[Outcome], found: Mapping[tuple[str, str], Any], decides: str) -> tuple[str, str]:
    """Return the way to take, and the sentence that says why.

    It is the cheapest way that was not shown to be worse than the best one: cheaper is what has smaller weights, then
    what needs fewer operations to train, then what is written earlier.

    Args:
        outcomes (`Sequence[Outcome]`): The ways to choose from.
        found (`Mapping[tuple[str, str], PairDifference]`): The difference of each pair of them.
        decides (`str`): The task or mean that decides.

    Returns:
        `tuple[str, str]`: The name, and the sentence.
    """
    best = max(outcomes, key=lambda each: each.mean[decides])
    worse = []
    for each in sorted(outcomes, key=lambda each: (each.model_bytes, each.operations)):
        if each is best:
            break
        over = found[best.name, each.name]
        if over.is_better:
            worse.append(each.name)
            continue
        interval = "" if over.low is None else f" [{over.low:+.2f}, {over.high:+.2f}]"
        return each.name, (
            f"Take {each.name}: it is the cheapest of the ways that were not shown to be worse than the best one "
            f"({best.name}, {over.value:+.2f}{interval} over it)."
        )
    than = "it is the cheapest"
    if worse:
        than = f"it was shown to be better than every cheaper way ({', '.join(worse)})"
    return best.name, f"Take {best.name}: it has the best mean, and {than}."
