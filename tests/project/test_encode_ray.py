"""`examples/encode_ray.py`: its workers give the embeddings of `encode`, and an interrupted run is resumed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import WORDS, tiny_config

from simcse_hf import AutoModelForCL, SimCSE

PROGRAM = Path(__file__).parents[2] / "examples" / "encode_ray.py"


@pytest.mark.slow
@pytest.mark.timeout(900)  # starting Ray twice takes minutes on a busy machine
def test_a_resumed_run_on_ray_writes_the_missing_rows_once(save_checkpoint, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    checkpoint = save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg"))
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, generator.integers(2, 12))) for _ in range(60)]
    folder, output = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    rows = pa.table({"id": range(60), "text": texts})

    def run():
        command = [sys.executable, str(PROGRAM), "--model", str(checkpoint), "--batch_size", "8", "--workers", "2"]
        command += ["--input", str(folder), "--output", str(output), "--id_column", "id", "--truncate_dim", "16"]
        environment = os.environ | {"RAY_ADDRESS": "local", "RAY_OVERRIDE_RESOURCES": '{"CPU": 6}'}
        return subprocess.run(command, timeout=600, env=environment, capture_output=True, text=True)

    for part in range(2):
        pq.write_table(rows.slice(20 * part, 20), folder / f"{part}.parquet")
    first = run()
    assert first.returncode == 0, first.stderr[-3000:]
    written = {path: path.stat().st_mtime_ns for path in output.glob("*.parquet")}
    pq.write_table(rows.slice(40), folder / "2.parquet")  # these rows were missing, as after an interruption
    second = run()
    assert second.returncode == 0, second.stderr[-3000:]
    assert written and {path: path.stat().st_mtime_ns for path in written} == written
    table = pq.read_table(output).sort_by("id")
    assert table["id"].to_pylist() == list(range(60)) and table["text"].to_pylist() == texts
    expected = SimCSE(checkpoint, device="cpu").encode(texts, truncate_dim=16, convert_to_numpy=True)
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)
