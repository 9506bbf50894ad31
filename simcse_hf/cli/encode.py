"""`simcse-hf encode`: a file of texts to shards of vectors."""

import argparse

import numpy as np
import torch
from accelerate import PartialState

from ..inference.quantization import PRECISIONS
from ..inference.shards import FORMATS, encode_file, read_manifest
from ..inference.simcse import SimCSE
from ..models.poolers import POOLER_TYPES

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simcse-hf encode",
        description="Encodes a file of texts to shards of vectors. Under `accelerate launch` each process takes "
        "shards of its own.",
    )
    parser.add_argument("--model", required=True, help="directory or hub name")
    parser.add_argument("--input", required=True, help="txt, csv, tsv, json, jsonl or parquet file, or one gzipped")
    parser.add_argument("--output", required=True, help="folder for the shards and their manifest")
    parser.add_argument("--column", help="column of texts, where the file has several")
    parser.add_argument("--pooler", choices=POOLER_TYPES, help="default: the one the checkpoint names")
    parser.add_argument("--max_length", type=int, help="tokens a text is cut to; default: the checkpoint's")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the model's weights; default: fp32")
    parser.add_argument("--device", help="default: a GPU where there is one")
    parser.add_argument("--no_postprocess", action="store_true", help="leave the model's whitening or flow aside")
    parser.add_argument("--no_normalize", action="store_true", help="keep the vectors' lengths")
    parser.add_argument("--truncate_dim", type=int, help="keep so many leading dimensions, then normalise")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="of the vectors; default: float32")
    parser.add_argument("--ranges", help="npy file (2, dim) for int8; default: the ranges of the first shard")
    parser.add_argument("--shard_size", type=int, default=50_000, help="vectors of a shard; default: 50000")
    parser.add_argument("--format", choices=FORMATS, default="npy", help="default: npy")
    parser.add_argument("--token_budget", type=int, help="tokens of a padded batch; default: by device")
    parser.add_argument("--resume", action="store_true", help="write the shards that an interrupted run left out")
    return parser


def encode_main(argv: list[str]) -> int:
    """Runs `simcse-hf encode`; returns the exit status.

    Raises:
        ValueError: what [`encode_file`] and [`SimCSE`] raise.
        SystemExit: with status 2, for a wrong command line.
    """
    arguments = _parser().parse_args(argv)
    state = PartialState()
    device = arguments.device or (str(state.device) if state.num_processes > 1 else None)
    model = SimCSE(
        arguments.model,
        pooler_type=arguments.pooler,
        device=device,
        dtype=DTYPES[arguments.dtype],
        max_length=arguments.max_length,
        postprocess=not arguments.no_postprocess,
    )
    paths = encode_file(
        model,
        arguments.input,
        arguments.output,
        column=arguments.column,
        normalize=not arguments.no_normalize,
        truncate_dim=arguments.truncate_dim,
        precision=arguments.precision,
        ranges=None if arguments.ranges is None else _read_ranges(arguments.ranges),
        shard_size=arguments.shard_size,
        file_format=arguments.format,
        token_budget=arguments.token_budget,
        resume=arguments.resume,
        show_progress=True,
    )
    if state.is_main_process:
        rows = read_manifest(arguments.output)["input"]["rows"]
        print(f"{rows} texts in {len(paths)} shard(s) under {arguments.output}")
    return 0


def _read_ranges(path: str) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"--ranges {path}: no readable npy file: {error}") from error
