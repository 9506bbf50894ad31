"""Fuzzing targets: folders that the package itself has written, and that may be damaged or come from elsewhere."""

import json
from pathlib import Path

import torch
from torch import nn

from simcse_hf import SimCSE
from simcse_hf.inference.shards import read_manifest, read_shards
from simcse_hf.models.pooling import load_layer
from simcse_hf.models.sentence_transformers import read_sentence_transformers_files
from simcse_hf.models.settings import ContrastiveSettings
from simcse_hf.postprocessing.files import find_transform

from .campaign import Target
from .mutation import Files

#: Valid folders, which the tests keep for each release.
_GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
_OLD, _NEW = _GOLDEN / "0.2.0", _GOLDEN / "0.3.0"
_ROWS = 6  # of the shards there


def _files(folder: str, *patterns: str, release: Path = _OLD) -> Files:
    root = release / folder
    paths = sorted({path for pattern in patterns or ("**/*",) for path in root.glob(pattern) if path.is_file()})
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _read_settings(folder: Path) -> None:
    try:
        section = json.loads((folder / "section.json").read_bytes())
    except (ValueError, OSError, RecursionError):
        return  # transformers reads config.json
    ContrastiveSettings.resolve(section)


def _read_sentence_transformers(folder: Path) -> None:
    read_sentence_transformers_files(folder)


def _load_dense(folder: Path) -> None:
    load_layer(nn.Linear(16, 16), folder, "2_Dense", "linear.")


def _load_transform(folder: Path) -> None:
    found = find_transform(folder, {})
    if found is not None:
        found[0].transform(torch.zeros(2, found[0].input_dim))


def _read_shards(folder: Path) -> int:
    rows = sum(map(len, read_shards(folder)))
    return max(rows, read_manifest(folder)["input"]["rows"])


def _load_checkpoint(folder: Path) -> None:
    SimCSE(folder, device="cpu").encode(["the cat sat"])


def _expect_all(files: Files) -> int:
    return _ROWS


def saved_targets() -> list[Target]:
    """Return the targets whose inputs are folders that the package has written."""
    section = {"section.json": json.dumps(ContrastiveSettings().to_section()).encode()}
    bert = "modules.json", "*_config.json", "config_*.json", "*/config.json"
    return [
        Target("settings", [section], _read_settings, names_file=False),
        Target("sentence_transformers", [_files("bert", *bert)], _read_sentence_transformers),
        Target("dense_layer", [_files("distilbert", "2_Dense/*")], _load_dense, share=0.5),
        Target("whitening", [_files("whitening")], _load_transform, share=0.3),
        Target("flow", [_files("flow")], _load_transform, share=0.1),
        Target("shards", [_files("shards")], _read_shards, _expect_all),
        Target("shards_parquet", [_files("shards_int8")], _read_shards, _expect_all, share=0.5),
        Target("checkpoint", [_files("bert")], _load_checkpoint, names_file=False, share=0.02),
    ]
