"""Documents are separated by blank lines, and pairs of neighbouring sentences stay within their document."""

import statistics
from collections import Counter
from string import ascii_lowercase

import pytest
from conftest import CLS, SEP
from data_helpers import write
from transformers import BertTokenizer

from simcse_hf.data.documents import SpanDataset, next_sentence_pairs, read_documents

DOCUMENTS = [["a1", "a2", "a3", "a4", "a5"], ["alone"], ["c1", "c2"]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    documents = ["\n".join(sentences) + "\n" for sentences in DOCUMENTS]
    return write(tmp_path_factory.mktemp("documents") / "d.txt.gz", "\n".join(documents))


def test_blank_lines_separate_documents(file, tmp_path):
    assert list(read_documents(file)) == DOCUMENTS
    messy = write(tmp_path / "messy.txt", "\ufeff\n\nx 1\r\nx 2\r\n \t\r\n\r\n\r\ny 1\r\n\r\n")
    assert list(read_documents(messy)) == [["x 1", "x 2"], ["y 1"]]


FOLLOWING = {"a1": "a2 a3 a4", "a2": "a3 a4 a5", "a3": "a4 a5", "a4": "a5", "c1": "c2"}


def test_each_of_the_next_three_sentences_of_the_document_is_as_likely(file):
    counts = Counter()
    for seed in range(100):
        pairs = next_sentence_pairs(file, window=3, seed=seed)
        assert pairs["sent0"][:] == list(FOLLOWING)
        counts.update(zip(pairs["sent0"], pairs["sent1"], strict=True))
    assert pairs[:] == next_sentence_pairs(file, window=3, seed=99)[:]
    assert set(counts) == {(first, second) for first, drawn in FOLLOWING.items() for second in drawn.split()}
    for (first, _), count in counts.items():
        assert count == pytest.approx(100 / len(FOLLOWING[first].split()), abs=25)


# --- spans ---

TOKENS = [f"{a}{b}" for a in ascii_lowercase for b in ascii_lowercase]
SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "a"]


@pytest.fixture(scope="module")
def tokenizer():
    """Give every token of a document an id of its own, so that a span shows where it came from."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *TOKENS])}
    return BertTokenizer(vocab=vocabulary, model_max_length=1000)


def document(tokens):
    """Sentences of ten different tokens, and one of the rest."""
    return [" ".join(TOKENS[start : min(start + 10, tokens)]) for start in range(0, tokens, 10)]


def span_of(ids):
    """The places in the document of the tokens of a span."""
    assert ids[0] == CLS
    assert ids[-1] == SEP
    places = [token - len(SPECIAL) for token in ids[1:-1]]
    span = range(places[0], places[0] + len(places))
    assert places == list(span), "a part of the document"
    return span


def draw_rows(dataset, number):
    """The spans of the first row in each of some epochs."""
    rows = []
    for epoch in range(number):
        dataset.set_epoch(epoch)
        rows.append([span_of(ids) for ids in dataset[0]["input_ids"]])
    return rows


@pytest.fixture(scope="module")
def rows_of_spans(tokenizer):
    """1500 rows of an anchor and two positives, of 4 to 64 tokens, from a document of 200 tokens."""
    dataset = SpanDataset([document(200)], tokenizer, 66, max_span=64, min_span=4, positives=2)
    return draw_rows(dataset, 1500)


def test_the_lengths_of_spans_follow_the_papers_distribution(rows_of_spans):
    """Beta(4, 2) has mean 2/3 and variance 2/63, Beta(2, 4) mean 1/3 and the same variance, less half by rounding."""
    anchors = [len(anchor) for anchor, *_ in rows_of_spans]
    positives = [len(positive) for _, *both in rows_of_spans for positive in both]
    assert statistics.mean(anchors) == pytest.approx(4 + 60 * 2 / 3 - 0.5, abs=1.0)
    assert statistics.stdev(anchors) == pytest.approx(60 * (2 / 63) ** 0.5, abs=0.7)
    assert statistics.mean(positives) == pytest.approx(4 + 60 / 3 - 0.5, abs=0.8)
    assert min(anchors + positives) >= 4 and max(anchors + positives) <= 64


def test_the_start_of_an_anchor_is_uniform(rows_of_spans):
    """The shares of the room before and behind the anchor are equal on average."""
    shares = [anchor.start / (200 - len(anchor)) for anchor, *_ in rows_of_spans]
    assert statistics.mean(shares) == pytest.approx(0.5, abs=0.03)


def relation(positive, anchor):
    assert 0 <= positive.start <= anchor.stop
    assert anchor.start <= positive.stop <= 200
    if positive.stop == anchor.start or positive.start == anchor.stop:
        return "adjacent"
    if anchor.start <= positive.start and positive.stop <= anchor.stop:
        return "within"
    return "overlapping"


def test_positives_are_adjacent_to_their_anchor_overlap_with_it_or_lie_within(rows_of_spans):
    found = set()
    for anchor, *positives in rows_of_spans:
        assert len(positives) == 2
        found |= {relation(positive, anchor) for positive in positives}
    assert found == {"adjacent", "within", "overlapping"}


@pytest.mark.parametrize("anchors, positives", [(1, 1), (2, 2), (3, 1)])
def test_anchors_of_a_row_do_not_overlap_and_each_has_its_own_positives(anchors, positives, tokenizer):
    dataset = SpanDataset([document(100)], tokenizer, 18, anchors=anchors, positives=positives)
    assert dataset.max_span == 16 and dataset.min_span == 1, "as long as the model reads, and at least a token"
    assert len(dataset) == 1 and dataset.column_names == ["input_ids"]
    size = 1 + positives
    for row in draw_rows(dataset, 200):
        assert len(row) == anchors * size
        end = 0
        for start in range(0, len(row), size):
            anchor, *own = row[start : start + size]
            assert end <= anchor.start
            end = anchor.stop
            for positive in own:
                relation(positive, anchor)


def test_documents_that_are_too_short_are_left_out(tokenizer):
    documents = [document(tokens) for tokens in (10, 64, 63, 65, 9)]
    dataset = SpanDataset(documents, tokenizer, 18, anchors=2)  # needs 2 * 2 * 16 tokens
    assert len(dataset) == 2
