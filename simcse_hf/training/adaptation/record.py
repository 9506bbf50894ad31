"""The record by which an interrupted adaptation continues: its arguments, its inputs and what was measured."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from ...ops.errors import refuse_changes
from ...ops.files import entries, read_json_object, remove, write_json

WORK = "search"
RECORD = f"{WORK}/record.json"
_ADVICE = "Continue it as it began, start again with --overwrite, or name another --output."
Value = TypeVar("Value")


class Record:
    """Finished measurements by name, in a file of the output directory.

    Args:
        directory (`Path`): The output directory of the adaptation.
        arguments (`Mapping[str, Any]`): What the user asked for, in types that JSON can hold.

    Raises:
        ValueError: If the directory holds an adaptation with other arguments, or something else.
    """

    def __init__(self, directory: Path, arguments: Mapping):
        self.directory = directory
        self._path = directory / RECORD
        self._state: dict = {"arguments": dict(arguments), "done": {}}
        if self._path.exists():
            self._state = read_json_object(self._path, *self._state, advice="Start again with --overwrite.")
            refuse_changes(self._state["arguments"], arguments, f"The adaptation in {directory}", _ADVICE)
        else:
            refuse_foreign(directory)

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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, self._state)
        return done[name]

    def check_unchanged(self, what: str, texts: Iterable[str]) -> None:
        """Refuse to continue if an input is not what it was when the adaptation began.

        Args:
            what (`str`): The input in words, for the message.
            texts (`Iterable[str]`): Its texts.

        Raises:
            ValueError: If the texts differ from those of the beginning.
        """
        number = 0
        for text in texts:
            number = crc32(f"{text}\0".encode("utf-8", "surrogatepass"), number)
        if self.once(what, lambda: number) != number:
            raise ValueError(f"{what} has changed since the adaptation in {self.directory} began. {_ADVICE}")


def refuse_foreign(directory: Path) -> None:
    """Raise a `ValueError` if a directory holds something that is not an adaptation."""
    if entries(directory) and not (directory / RECORD).is_file():
        raise ValueError(f"{directory} holds something else (there is no {RECORD} in it): name another --output.")


def clear_output(directory: Path) -> None:
    """Delete an earlier adaptation, for `--overwrite`; raise a `ValueError` if the directory holds something else."""
    refuse_foreign(directory)
    for path in entries(directory):
        remove(path)
