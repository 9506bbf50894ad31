"""The record of an adaptation: nothing is measured twice, and arguments and inputs must stay what they were."""

import json

import pytest

from simcse_hf.training.adaptation.adaptation import RECORD, Record

ARGUMENTS = {"corpus": "a.txt", "seeds": 3, "task": ["pairs=p.csv"], "column": None}


def test_a_measurement_is_made_once_even_after_an_interruption(tmp_path):
    calls = []
    with pytest.raises(KeyboardInterrupt):
        Record(tmp_path / "out", ARGUMENTS).once("score", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    for _ in range(2):
        record = Record(tmp_path / "out", ARGUMENTS)
        assert record.once("score", lambda: calls.append(1) or {"accuracy": 1.5}) == {"accuracy": 1.5}
    assert calls == [1]
    assert json.loads((tmp_path / "out" / RECORD).read_text())["done"] == {"score": {"accuracy": 1.5}}


def test_other_arguments_and_a_changed_input_are_refused_by_name(tmp_path):
    Record(tmp_path / "out", ARGUMENTS)
    assert not (tmp_path / "out").exists(), "nothing was measured, so other arguments may follow"
    for _ in range(2):
        Record(tmp_path / "out", ARGUMENTS).check_unchanged("The text a.txt", ["a cat", "a dog"])
    for changes in ({"seeds": 5}, {"corpus": "b.txt"}, {"column": "text"}):
        name, value = next(iter(changes.items()))
        with pytest.raises(ValueError, match=f"{name}: {ARGUMENTS[name]} there, {value} here"):
            Record(tmp_path / "out", ARGUMENTS | changes)
    with pytest.raises(ValueError, match="The text a.txt"):
        Record(tmp_path / "out", ARGUMENTS).check_unchanged("The text a.txt", ["a cat a", "dog"])
