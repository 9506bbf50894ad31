"""The record of an adaptation: nothing is measured twice, and arguments and inputs must stay what they were."""

import json

import pytest

from simcse_hf.ops.files import entries
from simcse_hf.training.adaptation.record import RECORD, Record, clear_output

ARGUMENTS = {"corpus": "a.txt", "seeds": 3, "task": ["pairs=p.csv"], "column": None}


def test_a_measurement_is_made_once_even_after_an_interruption(tmp_path):
    calls = []
    for _ in range(2):
        record = Record(tmp_path / "out", ARGUMENTS)
        assert record.once("score", lambda: calls.append(1) or {"accuracy": 1.5}) == {"accuracy": 1.5}
    assert calls == [1]
    assert json.loads((tmp_path / "out" / RECORD).read_text())["done"] == {"score": {"accuracy": 1.5}}


def test_a_measurement_that_was_interrupted_is_made_again(tmp_path):
    record = Record(tmp_path / "out", ARGUMENTS)
    with pytest.raises(KeyboardInterrupt):
        record.once("score", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert Record(tmp_path / "out", ARGUMENTS).once("score", lambda: 7) == 7


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"seeds": 5}, "seeds: 3 there, 5 here"),
        ({"corpus": "b.txt"}, "corpus: a.txt there, b.txt here"),
        ({"column": "text"}, "column: None there, text here"),
    ],
)
def test_other_arguments_are_refused_and_named(tmp_path, changes, message):
    Record(tmp_path / "out", ARGUMENTS)
    assert not (tmp_path / "out").exists(), "nothing was measured, so other arguments may follow"
    Record(tmp_path / "out", ARGUMENTS).once("score", lambda: 1)
    with pytest.raises(ValueError, match=message):
        Record(tmp_path / "out", {**ARGUMENTS, **changes})


def test_a_changed_input_is_refused(tmp_path):
    Record(tmp_path / "out", ARGUMENTS).check_unchanged("The text a.txt", ["a cat", "a dog"])
    Record(tmp_path / "out", ARGUMENTS).check_unchanged("The text a.txt", ["a cat", "a dog"])
    with pytest.raises(ValueError, match="The text a.txt has changed"):
        Record(tmp_path / "out", ARGUMENTS).check_unchanged("The text a.txt", ["a cat a", "dog"])


def test_a_directory_with_other_files_is_neither_used_nor_deleted(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"):
        Record(tmp_path, ARGUMENTS)
    with pytest.raises(ValueError, match="holds something else"):
        clear_output(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_an_earlier_adaptation_is_deleted_on_request(tmp_path):
    Record(tmp_path / "out", ARGUMENTS)
    clear_output(tmp_path / "out")
    assert not entries(tmp_path / "out")
    clear_output(tmp_path / "out")  # nothing there is fine
