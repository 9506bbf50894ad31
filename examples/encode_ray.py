r"""Encode files of texts on a Ray cluster, for corpora that are too large for one machine.

    pip install 'simcse-hf[ray]'
    python examples/encode_ray.py --model MODEL --input 's3://bucket/texts/*.parquet' --column text --output DIR \
        --encoders 8 --gpus_per_encoder 1 --dtype bf16 --tokenizers 32 --id_column id

Ray Data reads and writes the rows in blocks. Workers on CPUs tokenize; workers on GPUs, each with a model, turn token
ids into embeddings. Without a cluster, Ray runs on this machine. Ray does not keep the order of the rows, but each row
keeps its other columns, so include a column with an id. With `--id_column` Ray also records which rows have been
written, and the same command with `--resume` encodes the others. On one machine, or on several with a common folder,
prefer `simcse-hf encode`: it keeps the order and does not need Ray.
"""

import argparse
import glob
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
from transformers import AutoTokenizer

from simcse_hf import SimCSE
from simcse_hf.cli.common import (
    add_batch_options,
    add_general_options,
    add_model_options,
    add_output_options,
    add_prompt_options,
    load_encoder,
    positive_int,
)
from simcse_hf.cli.errors import OK, WRONG_USAGE
from simcse_hf.inference.batches import encode_token_ids, tokenize_texts
from simcse_hf.inference.encoding import EncodingSettings, shape_embeddings
from simcse_hf.inference.quantization import (
    PRECISIONS,
    SCALAR_PRECISIONS,
    check_precision,
    check_ranges,
    check_truncate_dim,
)
from simcse_hf.inference.shard_run import describe_model
from simcse_hf.ops.finite import check_finite

TOKEN_IDS, VECTOR = "token_ids", "vector"
RUN, CHECKPOINT = "_run.json", "_checkpoint"  # readers of parquet folders skip names with an underscore


@dataclass(frozen=True)
class Work:
    """What the workers do with a text.

    Args:
        model (`str`): Folder or name of the model, which every machine can load.
        column (`str`): The column of texts.
        settings (`EncodingSettings`): How a text becomes an embedding.
        templates (`tuple[str, ...]`): The model's templates.
        arguments (`dict[str, Any]`): The options of `load_encoder`, which loads the model.
    """

    model: str
    column: str
    settings: EncodingSettings
    templates: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)


class Tokenize:
    """A worker on a CPU that adds the column of token ids to each block of rows."""

    def __init__(self, work: Work) -> None:
        self.work, self.tokenizer = work, AutoTokenizer.from_pretrained(work.model)

    def __call__(self, rows: pa.Table) -> pa.Table:
        texts = rows[self.work.column].to_pylist()
        missing = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
        if missing is not None:
            row = rows.slice(missing, 1).to_pylist()[0]
            raise ValueError(
                f"the row {row} has no text in column {self.work.column!r}. Fill or drop such rows first."
            )
        settings = self.work.settings
        ids = tokenize_texts(
            self.tokenizer, [settings.prefix + text for text in texts], settings.max_length, self.work.templates
        )
        return rows.append_column(TOKEN_IDS, pa.array(ids, pa.list_(pa.int32())))


class Encode:
    """A worker, usually on a GPU, that loads the model once and replaces token ids by embeddings."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.model = load_encoder(work.model, argparse.Namespace(**work.arguments))

    def __call__(self, rows: pa.Table) -> pa.Table:
        model, settings = self.model, self.work.settings
        embeddings = encode_token_ids(
            model.model,
            rows[TOKEN_IDS].to_pylist(),
            model.tokenizer.pad_token_id,
            token_budget=settings.token_budget,
        )
        if model.postprocessing is not None:
            embeddings = model.postprocessing.transform(embeddings)
        check_finite(embeddings, "row {} of a block")
        codes = shape_embeddings(embeddings, settings).numpy()
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), codes.shape[1])
        return rows.drop_columns([TOKEN_IDS]).append_column(VECTOR, vectors)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--input", required=True, help="txt, csv or parquet files: a path, a folder or a pattern")
    parser.add_argument("--column", default="text", help="column of texts; the default, text, is right for txt files")
    add_prompt_options(parser)
    parser.add_argument("--no_normalize", action="store_true", help="do not scale embeddings to unit length")
    parser.add_argument("--truncate_dim", type=positive_int, help="keep this many leading dimensions")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="type of the embeddings")
    parser.add_argument("--ranges", help="npy file of shape (2, dim), needed for int8 and uint8")
    add_batch_options(parser)
    parser.add_argument("--tokenizers", type=positive_int, default=1, help="number of workers that tokenize")
    parser.add_argument("--encoders", type=positive_int, default=1, help="number of workers with a model")
    parser.add_argument("--cpus_per_tokenizer", type=float, default=1)
    parser.add_argument("--cpus_per_encoder", type=float, default=1)
    parser.add_argument("--gpus_per_encoder", type=float, default=0)
    parser.add_argument(
        "--batch_size", type=positive_int, default=8192, help="rows that are sorted by length together"
    )
    add_output_options(parser, "folder for parquet files, or its URL")
    parser.add_argument("--id_column", help="column whose values name the rows, which makes a run resumable")
    parser.add_argument("--resume", action="store_true", help="encode the rows that an interrupted run left out")
    add_general_options(parser, json=False)
    arguments = parser.parse_args(argv)
    if arguments.resume and not arguments.id_column:
        parser.error("--resume needs the --id_column with which the run was started")
    if arguments.resume and arguments.overwrite:
        parser.error("--resume keeps what --overwrite would replace: give one of the two")
    return arguments


def prepare_work(arguments: argparse.Namespace) -> tuple[Work, dict[str, Any]]:
    """Load the model once, check the settings, and describe the run so that it is resumed with the same ones.

    Args:
        arguments (`argparse.Namespace`): The command line.

    Returns:
        `tuple[Work, dict[str, Any]]`: The work, and the description.

    Raises:
        ValueError: If a setting is invalid.
    """
    model: SimCSE = load_encoder(arguments.model, arguments, device="cpu")
    check_precision(arguments.precision)
    check_truncate_dim(arguments.truncate_dim, model.dim)
    ranges = None if arguments.ranges is None else np.load(arguments.ranges, allow_pickle=False)
    if (arguments.precision in SCALAR_PRECISIONS) != (ranges is not None):
        raise ValueError(
            "--ranges belongs to --precision int8 and uint8, and these need it: `simcse-hf encode --precision int8` "
            "on some of the texts writes ranges.npy."
        )
    if ranges is not None:
        check_ranges(ranges, arguments.truncate_dim or model.dim)
    settings = EncodingSettings(
        prefix=model.resolve_prompt(arguments.prompt, arguments.prompt_name),
        max_length=model.max_length,
        token_budget=arguments.token_budget,
        normalize_embeddings=not arguments.no_normalize,
        truncate_dim=arguments.truncate_dim,
        precision=arguments.precision,
        ranges=ranges,
    )
    names = ("pooler_type", "max_length", "dtype", "device", "no_postprocess", "quiet")
    loading = {name: getattr(arguments, name) for name in names}
    work = Work(arguments.model, arguments.column, settings, tuple(model.model.settings.templates), loading)
    described = {
        name: getattr(settings, name) for name in ("prefix", "normalize_embeddings", "truncate_dim", "precision")
    }
    described |= {"ranges": None if ranges is None else ranges.tolist()}
    described |= {"input": arguments.input, "column": arguments.column, "id_column": arguments.id_column}
    return work, {"model": describe_model(model), "settings": described}


def start_run(output: str, description: dict[str, Any], resume: bool, overwrite: bool) -> str:
    """Write `_run.json` in the output folder, or compare it with this run.

    Args:
        output (`str`): The folder or its URL.
        description (`dict[str, Any]`): What the run does.
        resume (`bool`): Whether the folder may hold this run already.
        overwrite (`bool`): Whether to empty the folder first.

    Returns:
        `str`: The path of the folder on its file system, which is absolute.

    Raises:
        ValueError: If the folder holds another run, or one that is not to be resumed.
    """
    files, folder = pa.fs.FileSystem.from_uri(output if "://" in output else str(Path(output).expanduser().resolve()))
    exists = files.get_file_info(f"{folder}/{RUN}").type != pa.fs.FileType.NotFound
    if exists and overwrite:
        files.delete_dir_contents(folder)
        exists = False
    text = json.dumps(description, indent=2)
    if exists:
        if not resume:
            raise ValueError(f"{output} holds a run already: continue it with --resume, or name another folder.")
        with files.open_input_stream(f"{folder}/{RUN}") as stream:
            earlier = json.loads(stream.read())
        if earlier != json.loads(text):
            changed = [
                f"{section} {name}"
                for section in ("model", "settings")
                for name, value in json.loads(text)[section].items()
                if earlier.get(section, {}).get(name) != value
            ]
            raise ValueError(f"{output} holds a different run ({', '.join(changed)}): name another folder.")
        return folder
    files.create_dir(folder, recursive=True)
    with files.open_output_stream(f"{folder}/{RUN}") as stream:
        stream.write(text.encode())
    return folder


def find_files(source: str) -> tuple[list[str] | str, str]:
    """Find the input files, and their format by the name of the first one.

    Args:
        source (`str`): A path, a folder or a pattern; or a URL, which Ray resolves.

    Returns:
        `tuple[list[str] | str, str]`: The files or the URL, and `"parquet"`, `"csv"` or `"text"`.

    Raises:
        ValueError: If no file is there, or the name of a URL does not tell the format.
    """
    formats = {".parquet": "parquet", ".csv": "csv", ".txt": "text"}
    pattern = os.path.join(source, "*") if os.path.isdir(source) else source
    paths = [source] if "://" in source else sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    if not paths:
        raise ValueError(f"--input {source}: there is no such file.")
    found = next((formats[suffix] for suffix in formats if suffix in os.path.basename(paths[0])), None)
    if found is None:
        raise ValueError(
            f"--input {source}: no extension tells the format. Name files that end in {', '.join(formats)}."
        )
    return (source if "://" in source else paths), found


def encode(arguments: argparse.Namespace) -> None:
    import ray
    from ray.data import ActorPoolStrategy
    from ray.data.checkpoint import CheckpointConfig

    work, description = prepare_work(arguments)
    folder = start_run(arguments.output, description, arguments.resume, arguments.overwrite)
    ray.init(ignore_reinit_error=True)
    cpus = ray.cluster_resources()["CPU"]
    needed = arguments.tokenizers * arguments.cpus_per_tokenizer + arguments.encoders * arguments.cpus_per_encoder
    free = 2 if arguments.id_column else 1  # for the tasks that read and write, and to filter rows that are written
    if needed > cpus - free:  # they could never start
        raise ValueError(
            f"the workers would use {needed:g} of the {cpus:g} CPUs, and reading and writing need {free}. Lower "
            "--tokenizers, --encoders, --cpus_per_tokenizer or --cpus_per_encoder."
        )
    if arguments.id_column:
        output = arguments.output if "://" in arguments.output else folder
        context = ray.data.DataContext.get_current()
        context.checkpoint_config = CheckpointConfig(
            arguments.id_column, f"{output.rstrip('/')}/{CHECKPOINT}", delete_checkpoint_on_success=False
        )
    paths, file_format = find_files(arguments.input)
    read = {"parquet": ray.data.read_parquet, "csv": ray.data.read_csv, "text": ray.data.read_text}[file_format]
    blocks = {"batch_size": arguments.batch_size, "batch_format": "pyarrow", "fn_constructor_args": (work,)}
    tokenized = read(paths).map_batches(
        Tokenize, num_cpus=arguments.cpus_per_tokenizer, compute=ActorPoolStrategy(size=arguments.tokenizers), **blocks
    )
    encoded = tokenized.map_batches(
        Encode,
        num_cpus=arguments.cpus_per_encoder,
        num_gpus=arguments.gpus_per_encoder,
        compute=ActorPoolStrategy(size=arguments.encoders),
        **blocks,
    )
    encoded.write_parquet(arguments.output)


def main(argv: list[str]) -> int:
    """Run the program.

    Args:
        argv (`list[str]`): The words after its name.

    Returns:
        `int`: The exit status.
    """
    arguments = parse_arguments(argv)
    try:
        encode(arguments)
    except ValueError as error:
        print(f"encode_ray.py: {error}", file=sys.stderr)
        return WRONG_USAGE
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
