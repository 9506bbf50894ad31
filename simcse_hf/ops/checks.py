"""One check for the values of arguments, with one form of message, and hints at what was meant."""

import difflib
import math
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import Any, Literal

Kind = Literal[
    "true or false",
    "an integer above 0",
    "an integer of 0 or more",
    "a finite number",
    "a number above 0",
    "a number of 0 or more",
    "a number of 0 or more and below 1",
    "a number between 0 and 1",
    "a number between -1 and 1",
]


def check_values(kind: Kind | Collection[Any], **options: Any) -> None:
    """Check that arguments have values of some kind.

    Args:
        kind (`str` or `Collection`): What they must be: one of `Kind`, a `range` of integers, or the values that they
            may have.
        **options (`Any`): The arguments by name. `None` stands for an argument that is not set, unless `kind` lists
            the values.

    Raises:
        ValueError: If one is something else. The message names the argument.
    """
    for name, value in options.items():
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)  # those of numpy, too
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if isinstance(kind, range):
            fits = value is None or (is_integer and value in kind)
            wanted = f"an integer between {kind[0]} and {kind[-1]}"
        elif not isinstance(kind, str):
            fits = value in kind
            wanted = f"one of {', '.join(map(str, kind))}"
        else:
            of_kind = {
                "true or false": isinstance(value, bool),
                "an integer above 0": is_integer and value > 0,
                "an integer of 0 or more": is_integer and value >= 0,
                "a finite number": is_number,
                "a number above 0": is_number and value > 0,
                "a number of 0 or more": is_number and value >= 0,
                "a number of 0 or more and below 1": is_number and 0 <= value < 1,
                "a number between 0 and 1": is_number and 0 <= value <= 1,
                "a number between -1 and 1": is_number and -1 <= value <= 1,
            }
            fits = value is None or of_kind[kind]
            wanted = kind
        if not fits:
            raise ValueError(f"{name} must be {wanted}, got {value!r}")


def did_you_mean(words: Iterable[str], known: Collection[str]) -> str:
    """Return a sentence that names the known word nearest to each mistyped one.

    Args:
        words (`Iterable[str]`): Words that were not understood. Those that are near to none are left out.
        known (`Collection[str]`): The words that there are.

    Returns:
        `str`: `" (did you mean --max_steps?)"`, or an empty string.
    """
    near = []
    for word in words:
        near += difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {', '.join(near)}?)" if near else ""
