"""The record by which an interrupted adaptation continues: its arguments, the time spent and what was measured."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from transformers.utils import logging

from ...ops.files import read_json_object, write_atomically
from ...publishing.card_results import ADAPTATION

logger = logging.get_logger(__name__)

RECORD = "search/record.json"
RESULT = ADAPTATION

_SECONDS_BETWEEN_WRITES = 2.0
Value = TypeVar("Value")


class Record:
    """Finished measurements by name, kept in a file, and a clock that runs only while the command does.

    Args:
        directory (`Path`): The output directory of the adaptation.
        arguments (`dict[str, Any]`): What the user asked for, in types that JSON can hold.
        budget (`float`): Seconds that the adaptation may take.

    Raises:
        ValueError: If the directory holds an adaptation with other arguments, or something else.
    """

    def __init__(self, directory: Path, arguments: dict[str, Any], budget: float):
        self._path = directory / RECORD
        self._state: dict[str, Any] = {"arguments": arguments, "seconds": 0.0, "done": {}, "notes": []}
        if self._path.exists():
            self._state = read_json_object(self._path, *self._state, advice="Start again with --overwrite.")
            _check_arguments(directory, self._state["arguments"], arguments)
        elif directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ValueError(f"{directory} holds something else (there is no {RECORD} in it): name another --output.")
        self.budget = budget
        self.was_interrupted = bool(self._state["done"])
        self._before = self._state["seconds"]
        self._started = self._written = time.monotonic()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.save()

    @property
    def seconds(self) -> float:
        """Seconds spent so far, those of interrupted runs of the command included."""
        return self._before + time.monotonic() - self._started

    @property
    def seconds_left(self) -> float:
        """Seconds until the budget is spent; negative when it is overdrawn."""
        return self.budget - self.seconds

    def tick(self) -> None:
        """Save the time spent, at most every two seconds, so that a killed process does not lose it."""
        if time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            self.save()

    def once(self, name: str, compute: Callable[[], Value]) -> Value:
        """Return what is recorded under a name; compute and record it if there is nothing yet.

        Args:
            name (`str`): The name.
            compute (`Callable`): Returns a value that JSON can hold.

        Returns:
            `Value`: The value.
        """
        done = self._state["done"]
        if name not in done:
            done[name] = compute()
            self.save()
        return done[name]

    def has(self, name: str) -> bool:
        """Return whether something is recorded under a name."""
        return name in self._state["done"]

    @property
    def notes(self) -> list[str]:
        """What the report has to say about the search, such as methods that could not be tried."""
        return self._state["notes"]

    def note(self, text: str) -> None:
        """Add a note, unless it is there, and log it."""
        if text not in self.notes:
            self.notes.append(text)
            logger.warning(text)
            self.save()

    def check_unchanged(self, name: str, value: Any, what: str) -> None:
        """Refuse to continue if an input is not what it was when the adaptation began.

        Args:
            name (`str`): Name of the input in the record.
            value (`Any`): A fingerprint of it.
            what (`str`): The input in words, for the message.

        Raises:
            ValueError: If the fingerprint differs from the recorded one.
        """
        if self.once(name, lambda: value) != value:
            raise ValueError(
                f"{what} has changed since the adaptation in {self._path.parents[1]} began, so its figures could not "
                "be compared. Start again with --overwrite, or name another --output."
            )

    def save(self) -> None:
        """Save the time spent."""
        self._state["seconds"] = round(self.seconds, 3)
        with write_atomically(self._path) as temporary:
            temporary.write_text(json.dumps(self._state, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self._written = time.monotonic()


def clear_output(directory: Path) -> None:
    """Delete an earlier adaptation, for `--overwrite`.

    Args:
        directory (`Path`): The output directory, which need not exist.

    Raises:
        ValueError: If the directory holds something else.
    """
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / RECORD).is_file():
        raise ValueError(f"{directory} holds something else (there is no {RECORD} in it): name another --output.")
    shutil.rmtree(directory)


def _check_arguments(directory: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise ValueError(
                f"{directory} holds an adaptation with --{name} {_shown(before.get(name))}, not "
                f"{_shown(now.get(name))}. Continue it with its own arguments, start again with --overwrite, or name "
                "another --output."
            )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join("=".join(x) if isinstance(x, list) else str(x) for x in value) or "(none)"
    return "(none)" if value is None else str(value)
