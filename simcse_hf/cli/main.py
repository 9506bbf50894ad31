"""The console script `simcse-hf`: run the command that the first word names, and end with a status and one line."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from io import TextIOWrapper

from .. import __version__
from .options import Command, choice_parser, run_command
from .signature import PACKAGE, read_function

#: Errors of the hub and of the connection to it, by name: importing their packages takes seconds.
_HUB_ERRORS = {
    "ConnectionError",
    "DatasetNotFoundError",
    "HfHubHTTPError",
    "HTTPError",
    "LocalEntryNotFoundError",
    "OIDCError",
}

#: What errors of a full disk or memory say.
_FULL = ("No space left on device", "out of memory", "can't allocate memory")

#: What the file system says of a name under which nothing can be read or written.
_NO_PLACE = {errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EPERM, errno.EROFS}

OK, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

#: The function of each command. `train` reads its words itself, because its options are those of its method.
COMMANDS = {
    "train": Command("training.recipe:train", read="cli.train:read_train", together=True, says_steps=True),
    "adapt": Command("apps.adapt.adapt:adapt", positional=("corpus",), says_steps=True),
    "evaluate": Command(
        "evaluation.scoring:evaluate",
        verbose="List every subset and split",
        together=True,
        then="publishing.card:refresh_card",
    ),
    "compare": Command("evaluation.compare:compare", positional=("results",), together=True),
    "study": Command("apps.study.study:study", positional=("ways",), together=True, says_steps=True),
    "which-model": Command("apps.which_model:which_model", positional=("models",), together=True),
    "analyze": Command("apps.analysis:analyze", positional=("sources",)),
    "encode": Command("encoding.files:encode", together=True),
    "index": Command("apps.search:index"),
    "index-add": Command("apps.search:index_add"),
    "index-delete": Command("apps.search:index_delete"),
    "search": Command("apps.search:search", positional=("queries",), lines="queries"),
    "duplicates": Command("apps.search:duplicates", positional=("input",)),
    "demo": Command("apps.demo:demo"),
    "postprocess": Command(
        "encoding.fitting:fit_postprocessing", flags={"columns": ("--column", "--columns")}, action="fit"
    ),
    "mine": Command("apps.mining:mine", flags={"columns": ("--column", "--columns")}),
    "build-nli": Command("apps.build_nli:build_nli"),
    "export": Command("apps.export:export", positional=("model",)),
    "card": Command("publishing.card:card", positional=("directory",)),
    "check-server": Command("apps.check_server:check_server", positional=("url",)),
    "push": Command("publishing.hub:push", positional=("directory", "repo_id")),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv (`Sequence[str]`, *optional*): The words after `simcse-hf`. By default those of this process.

    Returns:
        `int`: The exit status.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv  # before or after the command's name
    argv = [word for word in argv if word != "--traceback"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a letter that its encoding lacks is written as an escape
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper):  # a byte that it lacks is told with its line
        sys.stdin.reconfigure(errors="surrogateescape")
    # Before torch is imported. Its threads would wait by spinning, and take the cores from other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "--quiet" in argv:  # before tqdm is imported: some bars are those of other libraries
        os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    if argv and argv[0] in COMMANDS:
        run = partial(run_command, argv[0], COMMANDS[argv[0]], argv[1:])
        return exit_status(run, f"simcse-hf {argv[0]}", show_traceback=show_traceback)
    summaries = {name: read_function(command.function)[0].splitlines()[0] for name, command in COMMANDS.items()}
    parser = choice_parser(
        "simcse-hf",
        "COMMAND [options]",
        summaries,
        "Train, evaluate, publish and use sentence embeddings with contrastive learning.",
        "Exit status: 0 for success, 1 for a failed run, 2 for wrong usage or input.",
    )
    parser.add_argument("--version", action="version", version=f"simcse-hf {__version__}")
    parser.add_argument("--traceback", action="store_true", help="Show the Python traceback of an error")
    if argv:
        parser.parse_args(argv[:1])  # which ends
    parser.print_help()
    return OK


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
        if "tqdm" in sys.modules:  # end the bars of the run, so that the message has a line of its own
            for bar in list(sys.modules["tqdm"].tqdm._instances):
                bar.close()
        if show_traceback:
            traceback.print_exc()
        message = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, OSError) and error.errno in _NO_PLACE:
            message = f"{error.filename}: {error.strerror}: name another file or folder"
        if _is_from_hub(error):
            message += "; check the name, the connection and HF_HUB_OFFLINE, or name local files"
        print(f"{name}: error: {message}", file=sys.stderr)
        return status


def _is_from_hub(error: Exception) -> bool:
    return not _HUB_ERRORS.isdisjoint(cls.__name__ for cls in type(error).__mro__)


def _status_of(error: Exception) -> int | None:
    """Return the exit status of an error that one line can say, and None for a defect."""
    if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(str(PACKAGE)):
        # The input was right, and the run or the push failed; or weights or a loss are not finite.
        if hasattr(error, "exit_status") or isinstance(error, FloatingPointError):
            return FAILED
        if isinstance(error, (ValueError, FileNotFoundError, ImportError)):
            return WRONG_USAGE
    # A package that an option needs, or a name under which nothing can be read or written.
    if isinstance(error, ImportError) or getattr(error, "errno", None) in _NO_PLACE:
        return WRONG_USAGE
    if isinstance(error, OSError) and error.errno:  # of the file system: it names the file and needs no traceback
        return FAILED
    # safetensors and Arrow have error classes of their own for a full disk, torch's are RuntimeErrors.
    is_full = any(words in str(error) for words in _FULL) or isinstance(error, MemoryError)
    if _is_from_hub(error) or is_full:
        return FAILED
    return None


if __name__ == "__main__":
    sys.exit(main())
