"""How a program ends: errors that the user can mend are one line, and the exit status says what happened."""

import errno
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])

#: Errors of the file system, which name the file and need no traceback.
_FILE_ERRORS = {
    getattr(errno, name) for name in "EACCES EPERM EROFS ENOSPC EDQUOT ENOENT EEXIST EISDIR ENOTDIR".split()
}

OK, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


def exit_status(run: Callable[[], int | None], name: str, *, show_traceback: bool = False) -> int:
    """Run a program and turn its errors into an exit status.

    A `ValueError`, `FileNotFoundError` or `ImportError` that this package raised itself is about the input and says
    what to do. It becomes one line on standard error. An error of the file system, such as a full disk, becomes one
    line too. Any other exception is a defect and keeps its traceback.

    Args:
        run (`Callable`): The program. `None` counts as status 0.
        name (`str`): Name of the program, printed before the message.
        show_traceback (`bool`, *optional*, defaults to `False`): Whether to print the traceback of every error.

    Returns:
        `int`: 0 for success, 1 for a failed run, 2 for wrong usage or input, 130 if the user interrupted the program.
            A training run that SIGTERM stopped exits with 143 by itself.
    """
    try:
        return run() or OK
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended, as in `simcse-hf search ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        if show_traceback:
            traceback.print_exc()
        print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return status


def _status_of(error: Exception) -> int | None:
    """Return the exit status of an error that one line can say, and None for a defect."""
    is_ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(PACKAGE)
    if is_ours and hasattr(error, "exit_status"):
        return int(error.exit_status)
    if is_ours and isinstance(error, FloatingPointError):  # the weights of a training run are not finite
        return FAILED
    if is_ours and isinstance(error, (ValueError, FileNotFoundError, ImportError)):
        return WRONG_USAGE
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        return FAILED
    if "No space left on device" in str(error):  # safetensors and Arrow have error classes of their own for it
        return FAILED
    return None
