"""Encode files of texts on a Ray cluster, for corpora that are too large for one machine.

    pip install 'simcse-hf[ray]'
    python examples/encode_ray.py --model MODEL --input 's3://bucket/texts/*.parquet' --column text --output DIR

Ray Data reads, encodes and writes the rows in blocks, and each worker loads one model. Without a cluster, Ray runs on
this machine. Ray does not keep the order of the rows, but each row keeps its other columns, so include a column with
an id. On one machine, or on several with a common folder, prefer `simcse-hf encode`: it keeps the order, can be
resumed and does not need Ray.
"""

import argparse
import glob

import ray

from simcse_hf.inference.simcse import SimCSE


class Encoder:
    """A worker that loads the model once and adds the column `vector` to each batch."""

    def __init__(self, model: str, column: str, pooler: str | None, truncate_dim: int | None):
        self.model = SimCSE(model, pooler_type=pooler)
        self.column, self.truncate_dim = column, truncate_dim

    def __call__(self, batch: dict) -> dict:
        texts = list(batch[self.column])
        vectors = self.model.encode(texts, truncate_dim=self.truncate_dim, convert_to="numpy")
        return batch | {"vector": vectors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pooler")
    parser.add_argument("--input", required=True, help="txt, csv or parquet files: a path, a folder or a pattern")
    parser.add_argument("--column", default="text", help="column of texts; the default, text, is right for txt files")
    parser.add_argument("--output", required=True, help="folder for parquet files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpus_per_worker", type=float, default=1)
    parser.add_argument("--gpus_per_worker", type=float, default=0)
    parser.add_argument(
        "--batch_size", type=int, default=2048, help="number of rows that are sorted by length together"
    )
    parser.add_argument("--truncate_dim", type=int)
    arguments = parser.parse_args()

    ray.init()
    cpus = ray.cluster_resources()["CPU"]
    if arguments.workers * arguments.cpus_per_worker >= cpus:
        # With all CPUs reserved for workers, the tasks that read the input could never start.
        parser.error(
            f"the workers would use all {cpus:g} CPUs and leave none for reading; lower --workers or --cpus_per_worker"
        )
    paths = sorted(glob.glob(arguments.input)) or arguments.input
    first = paths[0] if isinstance(paths, list) else paths
    file_format = next((name for name in ("parquet", "csv") if f".{name}" in first), "text")
    read = {"parquet": ray.data.read_parquet, "csv": ray.data.read_csv, "text": ray.data.read_text}[file_format]
    encoded = read(paths).map_batches(
        Encoder,
        fn_constructor_args=(arguments.model, arguments.column, arguments.pooler, arguments.truncate_dim),
        batch_size=arguments.batch_size,
        num_cpus=arguments.cpus_per_worker,
        num_gpus=arguments.gpus_per_worker,
        compute=ray.data.ActorPoolStrategy(size=arguments.workers),
    )
    encoded.write_parquet(arguments.output)


if __name__ == "__main__":
    main()
