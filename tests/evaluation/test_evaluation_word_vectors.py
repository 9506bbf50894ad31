"""Averaged word vectors from text files."""

import gzip

import numpy as np
import pytest
from evaluation_helpers import write

from simcse_hf.evaluation import word_vectors
from simcse_hf.evaluation.word_vectors import WordVectors

LINES = ["the 1 0 0", "cat 0 1 0", "New 0 0 1", "new 5 5 5", ". . . 7 8 9"]


@pytest.mark.parametrize("header", [[], ["5 3"]])
@pytest.mark.parametrize("packed", [False, True])
def test_vectors_of_known_words_are_averaged(tmp_path, header, packed):
    path = write(tmp_path / "glove.txt", header + LINES)
    if packed:
        path = tmp_path / "glove.txt.gz"
        path.write_bytes(gzip.compress("\n".join(header + LINES).encode()))
    vectors = WordVectors(path).encode(["the cat", "The the unknown cat", "New new", ""])
    assert vectors.dtype == np.float32
    # `The` is result in lower case, `New` as written.
    assert vectors.tolist() == [
        [0.5, 0.5, 0],
        pytest.approx([2 / 3, 1 / 3, 0]),
        [2.5, 2.5, 3],
        [0, 0, 0],
    ]


def test_the_file_is_only_read_again_for_new_words(tmp_path, monkeypatch):
    model = WordVectors(write(tmp_path / "glove.txt", LINES))
    reads = []
    read = model._read
    monkeypatch.setattr(model, "_read", lambda wanted: (reads.append(wanted), read(wanted)))
    model.encode(["the cat"])
    model.encode(["cat the the"])
    model.encode(["cat unknown"])
    model.encode(["unknown the"])
    assert reads == [{"the", "cat"}, {"unknown"}]


def test_warns_of_texts_without_a_known_word(tmp_path, monkeypatch):
    message = []
    monkeypatch.setattr(word_vectors.logger, "warning", message.append)
    WordVectors(write(tmp_path / "glove.txt", LINES)).encode(["the", "none", "of these"])
    assert len(message) == 1 and message[0].startswith("2 of 3 texts")


@pytest.mark.parametrize(
    "lines, message",
    [
        (["word"], "line 1: a word and its vector are needed"),
        (["the one two"], "line 1: not a word and its vector"),
        (["the 1 2 3", "cat 1 2"], "line 2: 2 numbers instead of 3"),
        (["the 1 2 3", "cat 1 x 3"], "line 2: not a word and its vector"),
        (["the 1 2 3", "cat 1 nan 3"], "line 2: a number of the vector is not finite"),
        (["2 300", "the 1 2 3"], "line 2: 3 numbers, but the header says 300"),
        (["2 99999999999999999999"], "line 2: 0 numbers"),
        ([], "line 1: a word and its vector are needed"),
    ],
)
def test_errors_name_the_line_of_malformed_files(tmp_path, lines, message):
    path = write(tmp_path / "glove.txt", lines)
    with pytest.raises(ValueError, match=message) as error:
        WordVectors(path).encode(["the cat"])
    assert str(path) in str(error.value)


def test_binary_files_are_an_error(tmp_path):
    path = tmp_path / "word2vec.txt"
    path.write_bytes(b"2 3\nthe \xff\xfe\x00\x01")
    with pytest.raises(ValueError, match="line 2: not UTF-8 text. Word vectors are read from the text format"):
        WordVectors(path).encode(["the"])


def test_a_truncated_gzip_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "glove.txt.gz"
    path.write_bytes(gzip.compress("\n".join(LINES * 9).encode())[:-12])
    with pytest.raises(ValueError, match="glove.txt.gz: cannot be read to its end"):
        WordVectors(path).encode(["the"])
