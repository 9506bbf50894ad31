r"""Search the shards that `simcse-hf encode` wrote in Qdrant, with other columns of the file as a filter.

pip install qdrant-client       # SERVER is the URL of a Qdrant server, or a folder for the embedded mode
simcse-hf encode --model MODEL --input docs.csv --column text --prompt_name document --output vectors
python examples/search_qdrant.py SERVER fill vectors docs.csv --keep source year
python examples/search_qdrant.py SERVER find MODEL "A query" --filter source=news
"""

import argparse
from itertools import islice

from qdrant_client import QdrantClient
from qdrant_client.models import Distance, FieldCondition, Filter, MatchValue, PointStruct, VectorParams

from simcse_hf import SimCSE
from simcse_hf.data.table import stream_texts
from simcse_hf.encoding.files import read_manifest, read_shards
from simcse_hf.runtime.files import digest

COLLECTION = "sentences"


def fill(client: QdrantClient, folder: str, source: str, keep: list[str]) -> None:
    """Upload texts, columns and vectors into a new collection, shard by shard."""
    manifest = read_manifest(folder)
    if manifest["input"]["blake2b"] != digest(source):
        raise SystemExit(f"{folder} was made from another file than {source}: encode it again.")
    rows = stream_texts(source, manifest["settings"]["column"], keep)
    for number, shard in enumerate(read_shards(folder)):
        if number == 0:
            client.create_collection(COLLECTION, VectorParams(size=shard.shape[1], distance=Distance.COSINE))
        points = (
            PointStruct(id=row, vector=vector.tolist(), payload={"text": text, **dict(zip(keep, cells, strict=True))})
            for vector, (row, text, *cells) in zip(shard, islice(rows, len(shard)), strict=True)
            if text.strip()
        )
        client.upload_points(COLLECTION, points, batch_size=1000, wait=True)


def find(client: QdrantClient, model: SimCSE, query: str, columns: dict[str, str], top_k: int = 5) -> list:
    """Return rows, texts, columns and cosines of the nearest texts whose columns hold these values."""
    found = client.query_points(
        COLLECTION,
        model.encode_query(query, convert_to_numpy=True).tolist(),
        query_filter=Filter(must=[FieldCondition(key=k, match=MatchValue(value=v)) for k, v in columns.items()]),
        limit=top_k,
    )
    return [(point.id, point.payload.pop("text"), point.payload, point.score) for point in found.points]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server")
    parser.add_argument("action", choices=("fill", "find"))
    parser.add_argument("names", nargs=2, help="fill: folder of the shards, and file; find: model, and query")
    parser.add_argument("--keep", nargs="*", default=[], help="fill: columns of the file to store")
    parser.add_argument("--filter", nargs="*", default=[], metavar="COLUMN=VALUE", help="find: values of columns")
    arguments = parser.parse_args()
    place = {"url" if "://" in arguments.server else "path": arguments.server}
    database = QdrantClient(**place)
    if arguments.action == "fill":
        fill(database, *arguments.names, arguments.keep)
    else:
        conditions = dict(condition.split("=", 1) for condition in arguments.filter)
        for result in find(database, SimCSE(arguments.names[0]), arguments.names[1], conditions):
            print(*result, sep="\t")
    database.close()
