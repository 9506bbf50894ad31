"""Write tiny files of every kind that a release saves, so that later releases can test that they still load them.

    PYTHONPATH=.:tests python tests/golden/write_golden_files.py

The files go into a folder named after the release, with `expected.json`, which holds the values that were read back
from them. A release adds its folder once and never changes it. `test_golden_files.py` reads the folders of all
releases.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from conftest import VOCABULARY, tiny_config
from transformers import BertTokenizer

from simcse_hf import SimCSE, __version__
from simcse_hf.inference.shards import encode_file, read_shards
from simcse_hf.models.auto import contrastive_class
from simcse_hf.postprocessing import fit_flow, fit_whitening
from simcse_hf.postprocessing.files import Fit, find_transform, save_transform

TEXTS = [
    "the cat sat on the mat .",
    "a dog ran",
    "the bird sang in the big red tree .",
    "a man slept in the house",
    "the small old woman ran ##s",
    "birds sang .",
]
ROUNDED = 7  # digits of the values in expected.json


def make_checkpoint(folder: Path, model_type: str, **settings: object) -> SimCSE:
    """Save an encoder of width 16 with random weights, and load it."""
    config = tiny_config(model_type, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    model = contrastive_class(type(config))(config, **settings)
    with torch.no_grad():  # larger weights than at the start of training, so that texts get different embeddings
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=40).save_pretrained(folder)
    loaded = SimCSE(folder, device="cpu")
    loaded.name_or_path = f"golden/{model_type}"  # the files must not name a folder of this machine
    return loaded


def write(folder: Path) -> dict:
    """Write the files of this release to a new folder, and return what `expected.json` holds."""
    torch.manual_seed(7)
    bert = make_checkpoint(folder / "bert", "bert", prompts={"query": "the "})
    distilbert = make_checkpoint(folder / "distilbert", "distilbert")
    raw = torch.randn(50, 16)
    fit = Fit(bert.pooler_type, bert.max_length, "texts.txt", ["text"], len(raw), {"dim": 4})
    for name, transform in (("whitening", fit_whitening([raw], 4)), ("flow", fit_flow(raw, blocks=1, width=4)[0])):
        (folder / name).mkdir()
        save_transform(folder / name, transform, fit)
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    encode_file(bert, folder / "texts.txt", folder / "shards", shard_size=4)
    encode_file(
        bert, folder / "texts.txt", folder / "shards_int8", shard_size=4, file_format="parquet", precision="int8"
    )
    return {
        "texts": TEXTS,
        "bert": bert.encode(TEXTS).tolist(),
        "distilbert": distilbert.encode(TEXTS).tolist(),
        "shards_int8": [part.tolist() for part in read_shards(folder / "shards_int8")],
        "whitening": transformed(folder / "whitening", bert.encode(TEXTS)),
        "flow": transformed(folder / "flow", bert.encode(TEXTS)),
    }


def transformed(folder: Path, embeddings: torch.Tensor) -> list:
    """Apply the transform of a folder."""
    found = find_transform(folder, {})
    assert found is not None
    return found[0].transform(embeddings).tolist()


def rounded(value: object) -> object:
    """Round every number of a nested list or table."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return round(value, ROUNDED) if isinstance(value, float) else value


def main() -> None:
    folder = Path(__file__).parent / __version__
    if folder.exists():
        sys.exit(f"{folder} exists already: the files of a release are written once")
    folder.mkdir()
    try:
        expected = write(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    for lock in folder.rglob(".lock"):
        lock.unlink()
    (folder / "expected.json").write_text(json.dumps(rounded(expected)) + "\n")
    print(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()), "bytes in", folder)


if __name__ == "__main__":
    main()
