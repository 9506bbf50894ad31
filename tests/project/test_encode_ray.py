"""`examples/encode_ray.py`: its workers give the embeddings of `encode`, and an interrupted run is resumed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import WORDS, tiny_config

from simcse_hf import AutoModelForCL, SimCSE

PROGRAM = Path(__file__).parents[2] / "examples" / "encode_ray.py"


@pytest.fixture(scope="module")
def program():
    specification = importlib.util.spec_from_file_location("encode_ray", PROGRAM)
    module = importlib.util.module_from_spec(specification)
    sys.modules["encode_ray"] = module
    specification.loader.exec_module(module)
    yield module
    del sys.modules["encode_ray"]


@pytest.fixture
def checkpoint(save_checkpoint):
    return save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg"))


def make_rows(count):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, generator.integers(1, 12))) for _ in range(count)]
    return pa.table({"id": range(count), "text": texts})


def work_of(program, checkpoint, *words):
    required = ["--model", str(checkpoint), "--input", "t.parquet", "--output", "out", "--device", "cpu"]
    return program.prepare_work(program.parse_arguments([*required, *words]))


@pytest.mark.parametrize(
    "words, settings",
    [
        ([], {}),
        (["--dtype", "bf16", "--max_length", "5"], {"dtype": torch.bfloat16, "max_length": 5}),
        (["--truncate_dim", "8", "--precision", "ubinary", "--prompt", "red "], {}),
        (["--no_normalize", "--pooler_type", "max", "--token_budget", "40"], {"pooler_type": "max"}),
    ],
)
def test_the_workers_give_the_embeddings_of_encode(program, checkpoint, words, settings):
    work, _ = work_of(program, checkpoint, *words)
    rows = make_rows(40)
    tokenized = program.Tokenize(work)(rows)
    assert tokenized.column_names == ["id", "text", "token_ids"]
    encoded = program.Encode(work)(tokenized)
    assert encoded.column_names == ["id", "text", "vector"] and encoded["id"] == rows["id"]
    chosen = work.settings
    expected = SimCSE(checkpoint, device="cpu", **settings).encode(
        rows["text"].to_pylist(),
        convert_to_numpy=True,
        normalize_embeddings=chosen.normalize_embeddings,
        truncate_dim=chosen.truncate_dim,
        precision=chosen.precision,
        token_budget=chosen.token_budget,
        prompt=chosen.prefix,
    )
    vectors = np.array(encoded["vector"].to_pylist(), dtype=expected.dtype)
    np.testing.assert_array_equal(vectors, expected)


def test_the_tokenizing_worker_loads_no_model_and_names_a_row_without_text(program, checkpoint, monkeypatch):
    work, _ = work_of(program, checkpoint)
    monkeypatch.setattr(program, "load_encoder", None)
    worker = program.Tokenize(work)
    with pytest.raises(ValueError, match=r"the row \{'id': 1, 'text': None\} has no text in column 'text'"):
        worker(pa.table({"id": [0, 1], "text": ["a cat", None]}))


def test_invalid_settings_are_refused_before_ray_starts(program, checkpoint, tmp_path):
    with pytest.raises(ValueError, match="--ranges belongs to --precision int8 and uint8, and these need it"):
        work_of(program, checkpoint, "--precision", "int8")
    with pytest.raises(ValueError, match="between 1 and the model's 32"):
        work_of(program, checkpoint, "--truncate_dim", "33")
    np.save(tmp_path / "ranges.npy", np.zeros((2, 5), dtype=np.float32))
    with pytest.raises(ValueError, match=r"ranges must be \(2, 32\)"):
        work_of(program, checkpoint, "--precision", "int8", "--ranges", str(tmp_path / "ranges.npy"))
    with pytest.raises(SystemExit):
        work_of(program, checkpoint, "--resume")


def test_a_run_is_resumed_with_the_same_model_and_settings_only(program, checkpoint, tmp_path):
    folder = str(tmp_path / "out")
    _, description = work_of(program, checkpoint, "--id_column", "id")
    program.start_run(folder, description, resume=False, overwrite=False)
    program.start_run(folder, description, resume=True, overwrite=False)
    with pytest.raises(ValueError, match="holds a run already: continue it with --resume"):
        program.start_run(folder, description, resume=False, overwrite=False)
    _, other = work_of(program, checkpoint, "--id_column", "id", "--dtype", "bf16", "--truncate_dim", "8")
    with pytest.raises(ValueError, match=r"a different run \(model dtype, model weights, settings truncate_dim\)"):
        program.start_run(folder, other, resume=True, overwrite=False)
    (tmp_path / "out" / "part.parquet").write_text("old")
    program.start_run(folder, other, resume=False, overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_run.json"]
    assert json.loads((tmp_path / "out" / "_run.json").read_text()) == other


def test_the_format_is_that_of_the_files_in_a_folder(program, tmp_path):
    for name in ("b.parquet", "a.parquet"):
        (tmp_path / name).touch()
    both = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    assert program.find_files(str(tmp_path)) == (both, "parquet")
    assert program.find_files(str(tmp_path / "b*")) == (both[1:], "parquet")
    assert program.find_files("s3://bucket/texts/*.csv.gz") == ("s3://bucket/texts/*.csv.gz", "csv")
    with pytest.raises(ValueError, match="there is no such file"):
        program.find_files(str(tmp_path / "c.txt"))
    with pytest.raises(ValueError, match="no extension tells the format"):
        program.find_files("s3://bucket/texts")


@pytest.mark.slow
def test_a_resumed_run_on_ray_writes_the_missing_rows_once(program, checkpoint, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    rows = make_rows(60)
    (tmp_path / "texts").mkdir()
    for part in range(3):
        pq.write_table(rows.slice(20 * part, 20), tmp_path / "texts" / f"{part}.parquet")

    def run(*words):
        command = [sys.executable, str(PROGRAM), "--model", str(checkpoint), "--device", "cpu", "--batch_size", "8"]
        command += ["--input", str(tmp_path / "texts"), "--output", str(tmp_path / "out"), "--id_column", "id"]
        options = {
            "env": os.environ | {"RAY_ADDRESS": "local", "RAY_OVERRIDE_RESOURCES": '{"CPU": 6}'},
            "capture_output": True,
            "text": True,
        }
        return subprocess.run([*command, *words], timeout=600, **options)

    (tmp_path / "later.parquet").write_bytes((tmp_path / "texts" / "2.parquet").read_bytes())
    (tmp_path / "texts" / "2.parquet").unlink()  # these rows are missing, as after an interruption
    first = run()
    assert first.returncode == 0, first.stderr[-3000:]
    (tmp_path / "later.parquet").rename(tmp_path / "texts" / "2.parquet")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    assert run().returncode == 2
    second = run("--resume")
    assert second.returncode == 0, second.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in written} == written
    table = pq.read_table(tmp_path / "out").sort_by("id")
    assert table["id"].to_pylist() == list(range(60))
    expected = SimCSE(checkpoint, device="cpu").encode(rows["text"].to_pylist(), convert_to_numpy=True)
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)
