"""Every parser returns all rows of a mutated file, or raises an error of this package that names the file."""

import logging
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsers import PARSERS

from simcse_hf.cli.main import _status_of

CORPUS = Path(__file__).parent / "corpus"
SEEDED = [name for name, parser in PARSERS.items() if parser.seeds]
#: What stands in files that break parsers.
PIECES = [
    b'"',
    b"'",
    b",",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xe9",
    b"\xef\xbb\xbf",
    b"\\ud83d",
    b"\xf0\x9f",
    b"null",
    b"NaN",
    b"1e999",
    b"-1",
    b"0",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"[" * 5000,
    b"9" * 5000,
    b" ",
    b"label",
    b"sep=;\n",
]
#: An edit: where it is, how many bytes it replaces (all bytes of a word if negative), and by what.
edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(-1, 9),
        st.sampled_from(PIECES) | st.binary(max_size=3),
    ),
    max_size=3,
)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("simcse_hf").setLevel(logging.ERROR)
    yield
    logging.getLogger("simcse_hf").setLevel(logging.NOTSET)


def mutate(content, edits):
    for place, size, piece in edits:
        words = [match.span() for match in re.finditer(rb"[\w.+-]+", content)]
        start = round(place * len(content))
        end = start + size
        if size < 0 and words:
            start, end = words[min(len(words) - 1, int(place * len(words)))]
        content = content[:start] + piece + content[end:]
    return content


def check(parser, files, folder):
    """Parse an input, and fail for an error that would be a traceback, that names no file, or for lost rows."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    try:
        rows = parser.parse(folder)
    except Exception as error:
        if _status_of(error) is None:
            raise
        assert not parser.names_file or str(folder) in str(error)
    else:
        assert parser.count is None or rows == parser.count(files)


@pytest.mark.parametrize("name", SEEDED)
def test_a_valid_file_is_not_refused(name, tmp_path):
    for files in PARSERS[name].seeds:
        check(PARSERS[name], files, tmp_path / "input")
        PARSERS[name].parse(tmp_path / "input")


@pytest.mark.parametrize("name", SEEDED)
@settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_row_of_a_file_is_returned_or_it_is_refused_by_an_error_that_names_it(name, data, tmp_path):
    parser = PARSERS[name]
    files = dict(data.draw(st.sampled_from(parser.seeds)))
    victim = data.draw(st.sampled_from(sorted(files)))
    files[victim] = mutate(files[victim], data.draw(edits))
    check(parser, files, tmp_path / "input")


@pytest.mark.parametrize(
    "folder",
    sorted(CORPUS.glob("*/*")),
    ids=lambda folder: f"{folder.parent.name}-{folder.name}",
)
def test_an_input_that_failed_once_does_not_fail_again(folder, tmp_path):
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    check(PARSERS[folder.parent.name], files, tmp_path / "input")
