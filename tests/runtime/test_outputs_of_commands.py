"""Folders that commands write: something else is never replaced."""

import pytest

import simcse_hf
from simcse_hf.apps.search import Duplicate
from simcse_hf.runtime.outputs import Result, output_folder


def _replace(folder, sources=()):
    with output_folder(folder, True, "done", sources) as new:
        new.mkdir()


@pytest.mark.parametrize(
    "files, sources, message",
    [
        ("thesis.tex", [], "there is no done in it"),
        ("done", ["model"], "holds the model that is read"),
        ("checkpoint-500 done", [], "checkpoint-500"),
        ("results.json done", [], "results.json"),
        (".git done", [], ".git"),
    ],
)
def test_a_folder_of_something_else_is_never_replaced(files, sources, message, tmp_path):
    folder = tmp_path / "output"
    (folder / "model").mkdir(parents=True)
    for name in files.split():
        (folder / name).write_text("precious")
    with pytest.raises(ValueError, match=message):
        _replace(folder, [str(folder / source) for source in sources])
    assert all((folder / name).read_text() == "precious" for name in files.split())


def test_the_current_folder_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"output \. is the current folder"):
        _replace(".")
    assert not list(tmp_path.iterdir()), "the block must not run"


def test_a_cell_shows_what_print_gives_of_every_result():
    for name in dir(simcse_hf):
        getattr(simcse_hf, name)
    for kind in Result.__subclasses__():
        assert "__str__" in vars(kind) and kind.__repr__ is Result.__repr__, kind
    found = Duplicate(1.0, 0, 1, "a cat", "a kitten")
    assert repr(found) == str(found)
