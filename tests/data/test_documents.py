"""Documents are separated by blank lines, and pairs of neighbouring sentences stay within their document."""

import statistics
from collections import Counter

import pytest
from conftest import CLS, SEP
from data_helpers import write
from transformers import BertTokenizer

from simcse_hf.data.documents import SpanDataset, next_sentence_pairs, read_documents

DOCUMENTS = [["a1", "a2", "a3", "a4", "a5"], ["alone"], ["c1", "c2"]]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "d.txt.gz", "\n".join("\n".join(d) + "\n" for d in DOCUMENTS))


def test_blank_lines_separate_documents(file, tmp_path):
    assert list(read_documents(file)) == DOCUMENTS
    messy = write(tmp_path / "messy.txt", "\ufeff\n\nx 1\r\nx 2\r\n \t\r\n\r\n\r\ny 1\r\n\r\n")
    assert list(read_documents(messy)) == [["x 1", "x 2"], ["y 1"]]


def test_window_three_draws_any_of_the_next_sentences_that_are_left(file):
    counts = Counter()
    for seed in range(100):
        pairs = next_sentence_pairs(file, window=3, seed=seed)
        assert pairs["sent0"][:] == ["a1", "a2", "a3", "a4", "c1"]
        counts.update(zip(pairs["sent0"], pairs["sent1"], strict=True))
    candidates = {"a1": "a2 a3 a4", "a2": "a3 a4 a5", "a3": "a4 a5", "a4": "a5", "c1": "c2"}
    for first, seconds in candidates.items():
        seconds = seconds.split()
        assert {second for one, second in counts if one == first} == set(seconds)
        for second in seconds:
            assert counts[first, second] == pytest.approx(100 / len(seconds), abs=25)
    again = [next_sentence_pairs(file, window=3, seed=5)["sent1"][:] for _ in range(2)]
    assert again[0] == again[1]


# --- spans -----------------------------------------------------------------------------------------------------------

LETTERS = [chr(97 + i) for i in range(26)]
TOKENS = [f"{a}{b}" for a in LETTERS for b in LETTERS]


@pytest.fixture(scope="module")
def tokenizer():
    """Give every token of a document an id of its own, so that a span shows where it came from."""
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "a", *TOKENS]
    return BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=1000)


def document(tokens, sentence=10):
    return [" ".join(TOKENS[:tokens][i : i + sentence]) for i in range(0, tokens, sentence)]


def spans(row):
    """Check that every span is a part of the document, and return their (start, end)."""
    ranges = []
    for ids in row["input_ids"]:
        assert ids[0] == CLS and ids[-1] == SEP
        inside = ids[1:-1]
        assert inside == list(range(inside[0], inside[0] + len(inside)))
        ranges.append((inside[0] - 6, inside[-1] - 5))
    return ranges


def samples(dataset, number):
    for epoch in range(number):
        dataset.set_epoch(epoch)
        yield spans(dataset[0])


def test_lengths_and_positions_follow_the_papers_distributions(tokenizer):
    dataset = SpanDataset([document(200)], tokenizer, 66, max_span=64, min_span=4, positives=2)
    anchors, positives, relations = [], [], set()
    for (start, end), *others in samples(dataset, 1500):
        assert 0 <= start and end <= 200 and len(others) == 2
        anchors.append((start, end))
        for low, high in others:
            assert 0 <= low and high <= 200 and low <= end and high >= start
            positives.append(high - low)
            relations.add("adjacent" if high == start or low == end else "within" if start <= low and high <= end
                          else "overlapping")  # fmt: skip
    lengths = [end - start for start, end in anchors]
    assert 4 <= min(lengths) and max(lengths) <= 64 and 4 <= min(positives) and max(positives) <= 64
    # Beta(4, 2) has mean 2/3 and variance 2/63, Beta(2, 4) mean 1/3 and the same variance; rounding down takes half.
    assert statistics.mean(lengths) == pytest.approx(4 + 60 * 2 / 3 - 0.5, abs=1.0)
    assert statistics.mean(positives) == pytest.approx(4 + 60 / 3 - 0.5, abs=0.8)
    assert statistics.stdev(lengths) == pytest.approx(60 * (2 / 63) ** 0.5, abs=0.7)
    assert relations == {"adjacent", "within", "overlapping"}
    # A uniform start: the shares of the room before and behind the anchor are equal on average.
    assert statistics.mean(start / (200 - end + start) for start, end in anchors) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("anchors, positives", [(1, 1), (2, 2), (3, 1)])
def test_anchors_of_a_row_do_not_overlap_and_positives_touch_their_anchor(anchors, positives, tokenizer):
    dataset = SpanDataset([document(100)], tokenizer, 18, anchors=anchors, positives=positives)
    assert (dataset.max_span, dataset.min_span, len(dataset), dataset.column_names) == (16, 1, 1, ["input_ids"])
    for row in samples(dataset, 200):
        assert len(row) == anchors * (1 + positives)
        heads = row[:: 1 + positives]
        assert all(one[1] <= other[0] for one, other in zip(heads, heads[1:], strict=False))
        for place, (low, high) in enumerate(row):
            start, end = heads[place // (1 + positives)]
            assert low <= end and high >= start


def test_documents_that_are_too_short_are_left_out(tokenizer):
    documents = [document(n) for n in (10, 64, 63, 65, 9)]
    dataset = SpanDataset(documents, tokenizer, 18, anchors=2)  # needs 2 * 2 * 16
    assert len(dataset) == 2
