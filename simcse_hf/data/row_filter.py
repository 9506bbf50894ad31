"""Conditions on the cells of a row, such as `is_duplicate=1` or `score>=0.4`."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_CONDITION = re.compile(r"(?P<column>[^=<>!]+)(?P<sign>>=|<=|!=|=|>|<)(?P<value>.*)", re.DOTALL)
_ORDER: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Condition:
    """What the cell of one column must be for its row to be kept.

    Args:
        column (`str`): The column.
        sign (`str`): `"="`, `"!="`, `">"`, `"<"`, `">="` or `"<="`.
        value (`str`): What the cell is compared with. The last four signs compare numbers; the others compare numbers
            if both are numbers, and otherwise texts without white space at their ends.

    Raises:
        ValueError: If the sign compares numbers and the value is none.
    """

    column: str
    sign: str
    value: str

    def __post_init__(self) -> None:
        if self.sign in _ORDER and _number(self.value) is None:
            raise ValueError(f"condition {self}: {self.value!r} is no number, and {self.sign} compares numbers.")

    def __str__(self) -> str:
        return f"{self.column}{self.sign}{self.value}"

    def holds(self, cell: Any, where: Callable[[], str]) -> bool:
        """Say whether a cell fulfils the condition.

        Args:
            cell (`Any`): The cell.
            where (`Callable[[], str]`): Says for a message where the cell stands.

        Returns:
            `bool`: Whether it does. An empty cell never does, except with the sign `!=`.

        Raises:
            ValueError: If the sign compares numbers and the cell is none.
        """
        text = "" if cell is None else str(cell).strip()
        number, value = _number(text), _number(self.value)
        if self.sign in _ORDER:
            if not text:
                return False
            if number is None or value is None:
                raise ValueError(
                    f"{where()}, column {self.column!r}: expected a number for the condition {self}, got {cell!r}."
                )
            return _ORDER[self.sign](number, value)
        equal = text == self.value.strip() if number is None or value is None else number == value
        return equal == (self.sign == "=")


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Args:
        text (`str`): A column, one of the signs `=`, `!=`, `>`, `<`, `>=` and `<=`, and a value.

    Returns:
        [`Condition`]: The condition.

    Raises:
        ValueError: If the text is no condition.
    """
    found = _CONDITION.fullmatch(text)
    if found is None or not found["column"].strip():
        raise ValueError(
            f"{text!r} is no condition: write a column, one of =, !=, >, <, >=, <=, and a value, such as label=1 or "
            "score>=0.4."
        )
    return Condition(found["column"].strip(), found["sign"], found["value"])


def keeps(conditions: Sequence[Condition], cells: Sequence[Any], where: Callable[[], str]) -> bool:
    """Say whether the cells of a row fulfil all conditions, each its own.

    Args:
        conditions (`Sequence[Condition]`): The conditions.
        cells (`Sequence[Any]`): The cell of each condition's column.
        where (`Callable[[], str]`): Says for a message where the row stands.

    Returns:
        `bool`: Whether they do.

    Raises:
        ValueError: If a cell is no number where one is needed.
    """
    return all(condition.holds(cell, where) for condition, cell in zip(conditions, cells, strict=True))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
