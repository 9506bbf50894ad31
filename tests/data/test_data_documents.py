"""Documents are separated by blank lines, and pairs of neighbouring sentences stay within their document."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from simcse_hf.data.documents import next_sentence_pairs, read_documents
from simcse_hf.data.read import DataFileNotFoundError

WIKI = Path(__file__).parents[3] / "shared/data/wiki/wiki_documents.txt.gz"
DOCUMENTS = [["a1", "a2", "a3", "a4", "a5"], ["alone"], ["c1", "c2"]]


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(params=["d.txt", "d.txt.gz"])
def file(request, tmp_path):
    return write(tmp_path / request.param, "\n".join("\n".join(d) + "\n" for d in DOCUMENTS))


def test_blank_lines_separate_documents(file, tmp_path):
    assert list(read_documents(file)) == DOCUMENTS
    messy = write(tmp_path / "messy.txt", "\ufeff\n\nx 1\r\nx 2\r\n \t\r\n\r\n\r\ny 1\r\n\r\n")
    assert list(read_documents(messy)) == [["x 1", "x 2"], ["y 1"]]
    assert list(read_documents([file, str(messy)])) == [*DOCUMENTS, ["x 1", "x 2"], ["y 1"]]


def test_pairs_stay_within_their_document(file):
    pairs = next_sentence_pairs(file)
    assert pairs.column_names == ["sent0", "sent1"]
    expected = [("a1", "a2"), ("a2", "a3"), ("a3", "a4"), ("a4", "a5"), ("c1", "c2")]
    assert list(zip(pairs["sent0"], pairs["sent1"], strict=True)) == expected


def test_window_three_draws_any_of_the_next_sentences_that_are_left(file):
    counts = Counter()
    for seed in range(300):
        pairs = next_sentence_pairs(file, window=3, seed=seed)
        assert pairs["sent0"][:] == ["a1", "a2", "a3", "a4", "c1"]
        counts.update(zip(pairs["sent0"], pairs["sent1"], strict=True))
    candidates = {"a1": "a2 a3 a4", "a2": "a3 a4 a5", "a3": "a4 a5", "a4": "a5", "c1": "c2"}
    for first, seconds in candidates.items():
        seconds = seconds.split()
        assert {second for one, second in counts if one == first} == set(seconds)
        for second in seconds:
            assert counts[first, second] == pytest.approx(300 / len(seconds), abs=45)
    again = [next_sentence_pairs(file, window=3, seed=5)["sent1"][:] for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("d.txt", "a\nb\nc\n", "no empty line between line 1 and line 3.*an empty line after each document"),
        ("d.txt", "\n\na\nb\n\n", "no empty line between line 1 and line 4"),
        ("d.txt", "\n \n", "no sentences, only blank lines"),
        ("d.csv", "text\na\n\nb\n", r"documents are read from \.txt or \.txt\.gz"),
        ("d.txt", "", "the file is empty"),
    ],
)
def test_refuses_a_file_without_documents(name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=f"{path}: .*{message}|{path}: {message}"):
        next_sentence_pairs(path)


def test_names_the_line_of_a_byte_that_is_not_utf8(tmp_path):
    path = tmp_path / "d.txt"
    path.write_bytes(b"a\n\nb\nfran\xe7ais\n")
    with pytest.raises(ValueError, match=f"{path}, line 4: byte 0xe7"):
        list(read_documents(path))


def test_refuses_documents_of_one_sentence_each(tmp_path):
    path = write(tmp_path / "d.txt", "a\n\nb\n\nc\n")
    with pytest.raises(ValueError, match="all 3 documents are a single sentence"):
        next_sentence_pairs(path)


def test_refuses_a_window_below_one_and_a_missing_file(file, tmp_path):
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        next_sentence_pairs(file, window=0)
    with pytest.raises(DataFileNotFoundError, match="no such file"):
        next_sentence_pairs(tmp_path / "none.txt")


@pytest.mark.skipif(not WIKI.exists(), reason="no shared/data/wiki/wiki_documents.txt.gz beside the checkout")
def test_reads_the_wikipedia_documents():
    documents = list(read_documents(WIKI))
    assert len(documents) == 11226 and sum(map(len, documents)) == 300003
