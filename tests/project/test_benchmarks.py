"""Every benchmark is registered and explains itself, and a wrong name is refused before anything is measured."""

from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_benchmark_is_registered():
    files = [
        path
        for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*/__init__.py"))
        if "\ndef table(" in path.read_text()
    ]
    assert BENCHMARKS.keys() == {
        path.parent.name if path.stem == "__init__" else path.stem for path in files
    }


def test_a_wrong_name_of_texts_is_refused_with_the_names_that_exist():
    pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers, the peer"
    )
    with pytest.raises(SystemExit, match=r"--texts nosuch: choose from .*NLI triplets"):
        main(["cpu", "--texts", "nosuch"])
