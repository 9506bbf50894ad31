"""What the commands return."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a command of this package has found or written, as a dataclass with the numbers.

    `str(result)` is what a person reads, and `to_dict` what a file or `--json` holds.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that can be written as JSON."""
        return asdict(self)

    @property
    def exit_status(self) -> int:
        """Return the status with which the command ends."""
        return 0

    def details(self) -> str:
        """Return what `--verbose` shows in place of `str(result)`."""
        return str(self)

    def wait(self) -> None:
        """Wait for what goes on after the result is there, such as a server. Most have nothing to wait for."""
