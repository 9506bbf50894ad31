"""What several commands share: options with one name, help text and default, models, and what is written and printed.

`simcse-hf COMMAND --help` must answer at once, so nothing that a parser needs may import torch. The modules of the
commands therefore import the rest of the package inside functions.
"""

import json
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ActionsContainer
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..names import BACKENDS, POOLER_TYPES, TASK_KINDS
from .options import CommandParser

if TYPE_CHECKING:
    from datasets import Dataset

    from ..inference.simcse import SimCSE

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: What no command that replaces a folder writes: a training run or a repository is there as well.
_NOT_REPLACED = re.compile(r"checkpoint-\d+|trainer_state\.json|training_args\.bin|results\.json|\.git")

MODEL_HELP = "folder of a checkpoint, or name of a model on the Hugging Face hub"
TRUNCATE_HELP = "keep this many leading dimensions of an embedding, and then normalize it"
COLUMN_HELP = "column of texts, if the file has several"
TEXT_FILE_HELP = "file of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped"


def command_parser(command: str, description: str, **options: Any) -> ArgumentParser:
    """Make the parser of one command.

    Args:
        command (`str`): Name of the command, such as `"encode"`.
        description (`str`): One or two sentences that `--help` shows above the options.
        options (`Any`): Further arguments of `argparse.ArgumentParser`.

    Returns:
        `argparse.ArgumentParser`: The parser, without any option yet.
    """
    return CommandParser(prog=f"simcse-hf {command}", description=description, **options)


def positive_int(text: str) -> int:
    """Read an option that counts something.

    Args:
        text (`str`): The word on the command line.

    Returns:
        `int`: The number, at least 1.

    Raises:
        ArgumentTypeError: If the word is not a whole number of at least 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)


def add_model_options(
    parser: ArgumentParser,
    *,
    model: bool = True,
    default: str | None = None,
    runtime: bool = True,
    postprocess: bool = True,
) -> None:
    """Add the options that say which model to load and how.

    Args:
        parser (`argparse.ArgumentParser`): Parser of the command.
        model (`bool`, *optional*, defaults to `True`): Whether to add `--model`.
        default (`str`, *optional*): What is used without `--model`, in words. Without it `--model` is required.
        runtime (`bool`, *optional*, defaults to `True`): Whether to add `--long_texts` and `--model_backend`.
        postprocess (`bool`, *optional*, defaults to `True`): Whether to add `--no_postprocess`.
    """
    group = parser.add_argument_group("model")
    group.set_defaults(long_texts=None, model_backend="torch", no_postprocess=False)
    if model:
        words = MODEL_HELP if default is None else f"{MODEL_HELP}; default: {default}"
        group.add_argument("--model", required=default is None, help=words)
    add_pooler_option(group)
    group.add_argument(
        "--max_length", type=positive_int, help="number of tokens to which a text is cut; default: the model's"
    )
    group.add_argument("--dtype", choices=DTYPES, default="fp32", help="type of the model's weights; default: fp32")
    group.add_argument("--device", help="such as cpu or cuda:0; default: a GPU if there is one")
    if runtime:
        group.add_argument(
            "--long_texts",
            choices=("cut", "mean"),
            help="a text of more tokens is cut, or split into windows whose embeddings are averaged; default: cut",
        )
        group.add_argument(
            "--model_backend",
            choices=BACKENDS,
            help="what computes the embeddings; onnx and openvino read what `simcse-hf export` wrote; default: torch",
        )
    if postprocess:
        group.add_argument(
            "--no_postprocess", action="store_true", help="do not apply the whitening or flow saved beside the model"
        )


def add_pooler_option(parser: _ActionsContainer) -> None:
    """Add `--pooler_type`, or `--pooler` for short."""
    parser.add_argument(
        "--pooler_type",
        "--pooler",
        choices=POOLER_TYPES,
        metavar="POOLER",
        help=f"how token states become one embedding: {', '.join(POOLER_TYPES)}; default: what the model names",
    )


def add_text_options(parser: ArgumentParser, *, several_columns: bool = False) -> None:
    """Add `--input` and `--column`.

    Args:
        parser (`argparse.ArgumentParser`): Parser of the command.
        several_columns (`bool`, *optional*, defaults to `False`): Whether several columns may be named.
    """
    group = parser.add_argument_group("texts")
    group.add_argument("--input", required=True, metavar="FILE", help=TEXT_FILE_HELP)
    if several_columns:
        group.add_argument(
            "--column", "--columns", nargs="+", metavar="NAME", help="columns of texts, if the file has several"
        )
    else:
        group.add_argument("--column", metavar="NAME", help=COLUMN_HELP)


def add_prompt_options(parser: ArgumentParser) -> None:
    """Add `--prompt` and `--prompt_name`."""
    group = parser.add_argument_group("prompt").add_mutually_exclusive_group()
    group.add_argument("--prompt", metavar="TEXT", help="put this before each text, such as 'query: '")
    group.add_argument(
        "--prompt_name",
        metavar="NAME",
        help="put this prompt of the model before each text; default: the model's prompt for this use, if it has one",
    )


def add_batch_options(parser: ArgumentParser) -> None:
    """Add `--token_budget`."""
    parser.add_argument(
        "--token_budget", type=positive_int, help="number of tokens in a padded batch; default: depends on the device"
    )


def parse_task(text: str) -> tuple[str, str]:
    """Read an option that names a task from the user's own files.

    Args:
        text (`str`): The word on the command line, such as `classification=test.csv`.

    Returns:
        `tuple[str, str]`: The kind of task and the file or folder.

    Raises:
        ArgumentTypeError: If the word is not KIND=FILE, or the kind is unknown.
    """
    kind, equals, path = text.partition("=")
    if not equals or not path or kind not in TASK_KINDS:
        raise ArgumentTypeError(f"must be KIND=FILE, with KIND one of {', '.join(TASK_KINDS)}, got {text!r}")
    return kind, path


def add_task_option(parser: _ActionsContainer) -> None:
    """Add `--task KIND=FILE` to a parser or a group of its options; the value is a list of `parse_task`'s tuples."""
    parser.add_argument(
        "--task",
        action="append",
        type=parse_task,
        default=[],
        metavar="KIND=FILE",
        help=f"task from a file of yours, repeatable; KIND is one of {', '.join(TASK_KINDS)}",
    )


def add_general_options(parser: ArgumentParser) -> None:
    """Add `--json` and `--quiet`, which a command takes last."""
    group = parser.add_argument_group("general")
    group.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    group.add_argument("--quiet", action="store_true", help="show no progress bars, and only warnings and errors")


def add_output_options(parser: ArgumentParser, help: str, *, required: bool = True) -> None:
    """Add `--output` and `--overwrite`, and then the general options.

    Args:
        parser (`argparse.ArgumentParser`): Parser of the command.
        help (`str`): What is written.
        required (`bool`, *optional*, defaults to `True`): Whether `--output` must be given.
    """
    group = parser.add_argument_group("output")
    group.add_argument("--output", required=required, metavar="PATH", help=help)
    group.add_argument("--overwrite", action="store_true", help="replace --output if it exists")
    add_general_options(parser)


def load_encoder(name: str, arguments: Namespace, **settings: Any) -> "SimCSE":
    """Load the model that a command line names, in each of the processes that the launcher has started.

    Args:
        name (`str`): Folder or hub name.
        arguments (`argparse.Namespace`): The options of `add_model_options`.
        settings (`Any`): Further arguments of `SimCSE`, which take precedence over the command line.

    Returns:
        `SimCSE`: The model.

    Raises:
        ValueError: If the model or the device does not exist, or as `SimCSE` says.
    """
    import torch
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    from ..inference.simcse import SimCSE
    from ..ops.launch import join_processes

    state = join_processes()
    own_device = str(state.device) if state.num_processes > 1 else None
    if arguments.quiet:
        disable_progress_bars()  # which TQDM_DISABLE does not reach
        logging.set_verbosity_warning()
    if arguments.device is not None:
        try:
            torch.zeros(1, device=arguments.device).item()
        except (RuntimeError, AssertionError, ImportError) as error:  # unknown, absent, or not in this build of torch
            raise ValueError(
                f"--device {arguments.device}: this machine cannot use it ({error}); leave out --device"
            ) from None
    options = {
        "pooler_type": arguments.pooler_type,
        "max_length": arguments.max_length,
        "dtype": getattr(torch, DTYPES[arguments.dtype]),
        "device": arguments.device or own_device,
        "postprocess": not arguments.no_postprocess,
        "long_texts": arguments.long_texts or "cut",
        "backend": arguments.model_backend,
    }
    try:
        return SimCSE(name, **options | settings)
    except (OSError, HFValidationError) as error:
        raise ValueError(
            f"{name!r} is neither the folder of a model nor the name of one on the hub that can be reached ({error})"
        ) from error


def check_output_file(arguments: Namespace, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse an `--output` that is a folder, or a file of another kind or one that must not be replaced.

    Args:
        arguments (`argparse.Namespace`): The options of `add_output_options`.
        suffixes (`tuple[str, ...]`, *optional*): How the name of the file may end; by default in any way.

    Raises:
        ValueError: If the file cannot be written there.
    """
    if arguments.output is None:
        return
    path = Path(arguments.output)
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"--output must end in {', '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise ValueError(f"--output {path} is a folder: name a file")
    if path.exists() and not arguments.overwrite:
        raise ValueError(f"--output {path} exists: name another file, or replace it with --overwrite")


def write_table(rows: "Dataset", output: str | Path) -> None:
    """Write rows to a file, which is either complete or not there.

    Args:
        rows (`datasets.Dataset`): The rows.
        output (`str` or `Path`): File to write, ending in one of `TABLE_SUFFIXES`. Its folder is made if needed.
    """
    from ..ops.files import write_atomically

    path = Path(output).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as temporary:
        write = {".csv": rows.to_csv, ".jsonl": rows.to_json, ".parquet": rows.to_parquet}[path.suffix]
        write(str(temporary))


@contextmanager
def output_folder(arguments: Namespace, marker: str, sources: Sequence[str]) -> Iterator[Path]:
    """Yield a folder to write to, which replaces `--output` only when it is complete.

    Args:
        arguments (`argparse.Namespace`): The options of `add_output_options`.
        marker (`str`): File that tells a folder written by this command from any other.
        sources (`Sequence[str]`): Folders that are read, and so must not be replaced.

    Yields:
        `Path`: A folder to make and write to. It becomes `--output` when the block ends without an error.

    Raises:
        ValueError: If `--output` would be replaced without `--overwrite`, was not written by this command, is read, or
            is the current folder.
    """
    from ..ops.files import entries, write_atomically

    folder = Path(arguments.output).expanduser()
    other = "name another --output"
    if folder.resolve() == Path.cwd():
        raise ValueError(f"--output {folder} is the current folder, which cannot be replaced: name a folder in it")
    if folder.is_file() or entries(folder):
        if not arguments.overwrite:
            raise ValueError(f"{folder} is not an empty directory: {other}, or add --overwrite")
        if not (folder / marker).is_file():
            raise ValueError(f"{folder} holds something else (there is no {marker} in it): {other}")
        for path in sorted(folder.iterdir()):
            if _NOT_REPLACED.fullmatch(path.name):
                raise ValueError(f"{folder} holds more than an earlier output ({path.name}): {other}")
        for source in map(Path, sources):
            if source.exists() and source.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{folder} holds the model that is read: {other}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(folder) as temporary:
        yield temporary


def report(arguments: Namespace, document: Any, text: str) -> None:
    """Print the result of a command on standard output.

    Args:
        arguments (`argparse.Namespace`): The options of `add_general_options`.
        document (`Any`): The result, printed with `--json` as one line of JSON.
        text (`str`): The result in words, printed otherwise.
    """
    if arguments.json:
        text = json.dumps(document, ensure_ascii=False, default=os.fspath)
    print(text, flush=True)
