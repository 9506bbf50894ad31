"""Errors of the user's making, said in one line where a program ends."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])


def exit_status(run: Callable[[], int | None], name: str) -> int:
    """Runs a program's main function.

    A ValueError, FileNotFoundError or ImportError that this package raised itself is about the input and says what to
    do: it becomes one line on stderr and status 2. Any other exception, and one from inside a library, keeps its
    traceback.

    Args:
        run: the program; None counts as status 0.
        name: of the program, before the message.

    Returns:
        The exit status.
    """
    try:
        return run() or 0
    except (ValueError, FileNotFoundError, ImportError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE):
            raise
        print(f"{name}: error: {error}", file=sys.stderr)
        return 2
