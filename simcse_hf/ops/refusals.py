"""Refuse arguments and files with a table of problems."""

from collections.abc import Mapping


def refuse(problems: Mapping[str, object]) -> None:
    """Raise an error with the first problem that is there.

        refuse({f"rows must be at least 1, got {rows}": rows < 1})

    Args:
        problems (`Mapping[str, object]`): Whether each problem is there, by a message that says what is wrong, where,
            and what to do.

    Raises:
        ValueError: With the message of the problem.
    """
    for problem, is_there in problems.items():
        if is_there:
            raise ValueError(problem)
