"""What a command returns, and where it writes: files and folders are replaced on request only, and never by half."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .errors import SettingError
from .files import StrPath, entries, write_atomically


@dataclass(frozen=True)
class Result:
    """What a command of this package has found or written, as a dataclass with the numbers.

    `str(result)` is what a person reads, also as the last line of a cell, and `to_dict` what a file or `--json` holds.
    """

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]  # before `dataclass` writes one

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return str(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], **own: Any) -> Self:
        """Make a result from the fields that its file holds; `own` replaces some of them."""
        known = {name: value for name, value in document.items() if name in cls.__dataclass_fields__}
        return cls(**known | own)

    @property
    def exit_status(self) -> int:
        """Return the status with which the command ends."""
        return 0

    def details(self) -> str:
        """Return what `--verbose` shows in place of `str(result)`."""
        return str(self)

    def wait(self) -> None:
        """Wait for what goes on after the result is there, such as a server. Most have nothing to wait for."""


if TYPE_CHECKING:
    from datasets import Dataset

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
#: What no command that replaces a folder writes: a training run or a repository is there as well.
_NOT_REPLACED = re.compile(r"checkpoint-\d+|trainer_state\.json|training_args\.bin|results\.json|\.git")


def check_output_file(output: StrPath | None, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse an output that is a folder, a file of another kind, or one that must not be replaced.

    Args:
        output (`str` or `os.PathLike`, *optional*): The file that will be written; `None` if there is none.
        overwrite (`bool`): Whether an existing file may be replaced.
        suffixes (`tuple[str, ...]`, *optional*): How the name of the file may end; by default in any way.

    Raises:
        SettingError: If the file cannot be written there.
    """
    if output is None:
        return
    path = Path(output).expanduser()
    if suffixes and path.suffix not in suffixes:
        raise SettingError(f"output must end in {', '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise SettingError(f"output {path} is a folder: name a file")
    if path.exists() and not overwrite:
        raise SettingError(f"output {path} exists: name another file, or set overwrite")


def write_table(rows: "Dataset", output: StrPath) -> None:
    """Write rows to a file, which is either complete or not there.

    Args:
        rows (`datasets.Dataset`): The rows.
        output (`str` or `os.PathLike`): File to write, ending in one of `TABLE_SUFFIXES`. Its folder is made if
            needed.
    """
    path = Path(output).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary:
        write = {".csv": rows.to_csv, ".jsonl": rows.to_json, ".parquet": rows.to_parquet}[path.suffix]
        write(str(temporary))


@contextmanager
def output_folder(output: StrPath, overwrite: bool, marker: str, sources: Sequence[StrPath]) -> Iterator[Path]:
    """Yield a folder to write to, which replaces `output` only when it is complete.

    Args:
        output (`str` or `os.PathLike`): The folder that will be written.
        overwrite (`bool`): Whether an earlier output there may be replaced.
        marker (`str`): File that tells a folder written by this command from any other.
        sources (`Sequence[str]`): Folders that are read, and so must not be replaced.

    Yields:
        `Path`: A folder to make and write to. It becomes `output` when the block ends without an error.

    Raises:
        SettingError: If `output` would be replaced without `overwrite`, was not written by this command, is read, or
            is the current folder.
    """
    folder = Path(output).expanduser()
    other = "name another output"
    if folder.resolve() == Path.cwd():
        raise SettingError(f"output {folder} is the current folder, which cannot be replaced: name a folder in it")
    if folder.is_file() or entries(folder):
        if not overwrite:
            raise SettingError(f"{folder} is not an empty folder: {other}, or set overwrite")
        if not (folder / marker).is_file():
            raise SettingError(f"{folder} holds something else (there is no {marker} in it): {other}")
        for path in sorted(folder.iterdir()):
            if _NOT_REPLACED.fullmatch(path.name):
                raise SettingError(f"{folder} holds more than an earlier output ({path.name}): {other}")
        for source in map(Path, sources):
            if source.exists() and source.resolve().is_relative_to(folder.resolve()):
                raise SettingError(f"{folder} holds the model that is read: {other}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(folder) as temporary:
        yield temporary
