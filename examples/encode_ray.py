r"""Encode files of texts on a Ray cluster, for corpora that are too large for one machine.

    pip install simcse-hf 'ray[data]>=2.60'
    python examples/encode_ray.py --model MODEL --input s3://bucket/texts/ --column text --output s3://bucket/out \
        --workers 8 --gpus 1 --dtype bfloat16 --id_column id

Ray Data reads and writes the rows in blocks, and each worker loads the model once. Without a cluster, Ray runs on this
machine. Ray does not keep the order of the rows, but each row keeps its other columns, so include one with an id. With
`--id_column`, Ray records which rows have been written, and the same command encodes the others after an interruption.
On one machine, or on several with a common folder, prefer `simcse-hf encode`: it keeps the order, does not need Ray,
and refuses to continue with another model or file.
"""

import argparse
import os
from typing import Any

import pyarrow as pa
import ray
import torch
from ray.data import ActorPoolStrategy, DataContext
from ray.data.checkpoint import CheckpointConfig

from simcse_hf import SimCSE


class Encoder:
    """A worker that loads the model once and adds the column `vector` to each block of rows.

    Args:
        model (`dict[str, Any]`): Arguments of `SimCSE`.
        column (`str`): The column of texts.
        options (`dict[str, Any]`): Arguments of `SimCSE.encode`.
    """

    def __init__(self, model: dict[str, Any], column: str, options: dict[str, Any]) -> None:
        self.model = SimCSE(**model)
        self.column = column
        self.options = options

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Encode a block; a row without a text is an error, which names it."""
        texts = rows[self.column].to_pylist()
        missing = [number for number, text in enumerate(texts) if not (text or "").strip()]
        if missing:
            row = rows.slice(missing[0], 1).to_pylist()[0]
            raise ValueError(f"the row {row} has no text in column {self.column!r}. Fill or drop such rows first.")
        vectors = self.model.encode(texts, convert_to_numpy=True, **self.options)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        return rows.append_column("vector", column)


def main() -> None:
    """Read the command line and encode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder or name of the model, which every machine can load")
    parser.add_argument("--pooler_type")
    parser.add_argument("--max_length", type=int)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--input", required=True, help="file, folder or URL of parquet, csv or txt files")
    parser.add_argument("--format", default="parquet", choices=("parquet", "csv", "text"))
    parser.add_argument("--column", default="text", help="column of texts; the default, text, is right for txt files")
    parser.add_argument("--prompt")
    parser.add_argument("--truncate_dim", type=int)
    parser.add_argument("--output", required=True, help="folder for parquet files, or its URL")
    parser.add_argument("--id_column", help="column whose values name the rows, which makes a run resumable")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpus", type=float, default=1, help="of a worker")
    parser.add_argument("--gpus", type=float, default=0, help="of a worker")
    parser.add_argument("--batch_size", type=int, default=8192, help="rows that are sorted by length together")
    arguments = parser.parse_args()
    ray.init(ignore_reinit_error=True)
    output = arguments.output if "://" in arguments.output else os.path.abspath(arguments.output)
    if arguments.id_column:
        DataContext.get_current().checkpoint_config = CheckpointConfig(
            arguments.id_column, f"{output.rstrip('/')}/_checkpoint", delete_checkpoint_on_success=False
        )
    model = {
        "name_or_path": arguments.model,
        "dtype": getattr(torch, arguments.dtype),
        "pooler_type": arguments.pooler_type,
        "max_length": arguments.max_length,
    }
    options = {"prompt": arguments.prompt, "truncate_dim": arguments.truncate_dim}
    readers = {"parquet": ray.data.read_parquet, "csv": ray.data.read_csv, "text": ray.data.read_text}
    rows = readers[arguments.format](arguments.input)
    encoded = rows.map_batches(
        Encoder,
        fn_constructor_args=(model, arguments.column, options),
        compute=ActorPoolStrategy(size=arguments.workers),
        num_cpus=arguments.cpus,
        num_gpus=arguments.gpus,
        batch_size=arguments.batch_size,
        batch_format="pyarrow",
    )
    encoded.write_parquet(output)


if __name__ == "__main__":
    main()
