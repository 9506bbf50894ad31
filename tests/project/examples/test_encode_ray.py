"""`examples/encode_ray.py` writes each row once, and `examples/study_ray.py` trains each part once."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from encoding_helpers import random_texts
from trainer_helpers import model_of

import simcse_hf
from simcse_hf import SimCSE

PROGRAM = ROOT / "examples" / "encode_ray.py"
#: A cluster of its own, on this machine.
CLUSTER = {"RAY_ADDRESS": "local", "RAY_OVERRIDE_RESOURCES": '{"CPU": 6}', "RAY_USAGE_STATS_ENABLED": "0"}


# Starting Ray takes minutes on a busy machine.
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_row_is_written_once_with_its_vector(save_checkpoint, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    checkpoint = save_checkpoint(model_of(pooler_type="avg"))
    rows = pa.table({"id": range(400), "text": random_texts(400)})
    (tmp_path / "texts").mkdir()
    for part in range(4):
        pacsv.write_csv(rows.slice(100 * part, 100), tmp_path / f"texts/{part}.csv")
    line = f"--model {checkpoint} --batch_size 8 --workers 2 --input {tmp_path / 'texts'} --output {tmp_path / 'out'}"
    command = [sys.executable, str(PROGRAM), *line.split(), *"--id_column id --format csv --truncate_dim 16".split()]
    subprocess.run(command, env=os.environ | CLUSTER | {"RAY_AUTH_MODE": "disabled"}, check=True)
    table = pq.read_table(tmp_path / "out").sort_by("id")
    assert table.select(["id", "text"]) == rows, "a row is lost or twice there"
    texts = rows["text"].to_pylist()
    expected = SimCSE(checkpoint, device="cpu").encode(texts, truncate_dim=16, convert_to_numpy=True)
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)


def test_every_part_of_a_study_is_trained_and_then_its_verdict_is_said(monkeypatch, capsys):
    """A stand-in for Ray, which calls a function here."""
    called = []
    here = SimpleNamespace(
        init=lambda: None,
        get=lambda results: results,
        remote=lambda **_: lambda function: SimpleNamespace(remote=function),
    )
    monkeypatch.setitem(sys.modules, "ray", here)
    monkeypatch.setattr(simcse_hf, "study", lambda file, part=None: called.append((file, part)), raising=False)
    monkeypatch.setattr(sys, "argv", ["study_ray.py", "study.yaml", "--parts", "2"])
    runpy.run_path(PROGRAM.with_name("study_ray.py"), run_name="__main__")
    assert called == [("study.yaml", "1/2"), ("study.yaml", "2/2"), ("study.yaml", None)]
