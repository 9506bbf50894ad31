"""The record of an adaptation: nothing is measured twice, time counts across interruptions, arguments must agree."""

import json
import time

import pytest

from simcse_hf.training.adaptation import record as record_module
from simcse_hf.training.adaptation.record import RECORD, Record, clear_output

ARGUMENTS = {"corpus": "a.txt", "seeds": 3, "task": [["pairs", "p.csv"]], "column": None}


def test_a_measurement_is_made_once_even_after_an_interruption(tmp_path):
    calls = []
    for _ in range(2):
        record = Record(tmp_path / "out", ARGUMENTS, 60)
        assert record.once("score", lambda: calls.append(1) or {"accuracy": 1.5}) == {"accuracy": 1.5}
    assert calls == [1] and record.was_interrupted


def test_a_measurement_that_failed_is_made_again(tmp_path):
    record = Record(tmp_path / "out", ARGUMENTS, 60)
    with pytest.raises(KeyboardInterrupt):
        record.once("score", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert Record(tmp_path / "out", ARGUMENTS, 60).once("score", lambda: 7) == 7


def test_the_time_of_an_interrupted_run_counts_and_the_time_between_runs_does_not(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(record_module.time, "monotonic", lambda: now[0])
    record = Record(tmp_path / "out", ARGUMENTS, 60)
    now[0] += 20
    record.tick()
    now[0] += 1  # less than two seconds after the last write, and then the process is killed
    record.tick()
    now[0] += 500
    record = Record(tmp_path / "out", ARGUMENTS, 60)
    assert record.seconds == 20 and record.seconds_left == 40


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"seeds": 5}, r"--seeds 3, not 5"),
        ({"corpus": "b.txt"}, r"--corpus a.txt, not b.txt"),
        ({"task": []}, r"--task pairs=p.csv, not \(none\)"),
        ({"column": "text"}, r"--column \(none\), not text"),
    ],
)
def test_other_arguments_are_refused_and_named(tmp_path, changes, message):
    Record(tmp_path / "out", ARGUMENTS, 60).once("score", lambda: 1)
    with pytest.raises(ValueError, match=message):
        Record(tmp_path / "out", {**ARGUMENTS, **changes}, 60)


def test_a_changed_input_is_refused(tmp_path):
    Record(tmp_path / "out", ARGUMENTS, 60).check_unchanged("corpus", 1, "The corpus a.txt")
    with pytest.raises(ValueError, match="The corpus a.txt has changed"):
        Record(tmp_path / "out", ARGUMENTS, 60).check_unchanged("corpus", 2, "The corpus a.txt")


def test_a_directory_with_other_files_is_neither_used_nor_deleted(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"):
        Record(tmp_path, ARGUMENTS, 60)
    with pytest.raises(ValueError, match="holds something else"):
        clear_output(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_earlier_adaptation_is_deleted_on_request(tmp_path):
    Record(tmp_path / "out", ARGUMENTS, 60)
    clear_output(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    clear_output(tmp_path / "out")  # nothing there is fine


def test_the_record_is_complete_after_every_measurement(tmp_path):
    record = Record(tmp_path / "out", ARGUMENTS, 60)
    began = time.monotonic()
    record.once("score", lambda: [1, 2])
    saved = json.loads((tmp_path / "out" / RECORD).read_text())
    assert saved["done"] == {"score": [1, 2]} and saved["arguments"] == ARGUMENTS
    assert 0 <= saved["seconds"] <= time.monotonic() - began + 60
