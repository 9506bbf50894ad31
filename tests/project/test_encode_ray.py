"""`examples/encode_ray.py`: an interrupted run is resumed, and a killed worker changes nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from conftest import tiny_config
from encoding_helpers import random_texts

from simcse_hf import AutoModelForCL, SimCSE

PROGRAM = Path(__file__).parents[2] / "examples" / "encode_ray.py"
MARK = "SIMCSE_TEST_OF_RAY"

# Starting Ray takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster(save_checkpoint, tmp_path):
    """A model, a table of texts, and how to start the program with two workers on a Ray cluster of its own."""
    pytest.importorskip("ray", reason="ray is not installed")
    checkpoint = save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg"))
    folder = tmp_path / "texts"
    folder.mkdir()

    def start(*options):
        line = f"--model {checkpoint} --batch_size 8 --workers 2 --input {folder} --output {tmp_path / 'out'}"
        command = [sys.executable, str(PROGRAM), *line.split(), "--id_column", "id", *options]
        environment = os.environ | {
            "RAY_ADDRESS": "local",
            "RAY_OVERRIDE_RESOURCES": '{"CPU": 6}',
        }
        environment |= {
            MARK: str(tmp_path),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with open(tmp_path / "log", "w") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    return checkpoint, folder, start


def workers(folder):
    """The processes of our cluster that encode a block at this moment."""
    for process in psutil.process_iter(["cmdline", "environ"]):  # None where it may not be read
        command, environment = (
            process.info["cmdline"] or [""],
            process.info["environ"] or {},
        )
        is_worker = command[0].startswith("ray::MapWorker(MapBatches(Encoder)).submit")
        if is_worker and environment.get(MARK) == str(folder):
            yield process


def test_a_killed_worker_loses_no_row_and_writes_none_twice(cluster, tmp_path):
    checkpoint, folder, start = cluster
    rows = pa.table({"id": range(4000), "text": random_texts(4000)})
    output = tmp_path / "out"
    for part in range(8):
        pacsv.write_csv(rows.slice(500 * part, 500), folder / f"{part}.csv")
    process, killed = start("--format", "csv", "--truncate_dim", "16"), None
    while process.poll() is None:
        if killed is None and any(output.glob("*.parquet")):  # some rows are written, and others are not
            killed = next(workers(tmp_path), None)
            if killed is not None:
                killed.kill()
        time.sleep(0.005)
    log = (tmp_path / "log").read_text()
    assert process.wait(timeout=1500) == 0, log[-3000:]
    assert killed is not None and "The actor" in log, "no worker was killed"
    table = pq.read_table(output).sort_by("id")
    assert table.select(["id", "text"]) == rows, "a row is lost or twice there"
    expected = SimCSE(checkpoint, device="cpu").encode(
        rows["text"].to_pylist(), truncate_dim=16, convert_to_numpy=True
    )
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)
