"""Documents are separated by blank lines, and pairs of neighbouring sentences stay within their document."""

import statistics
from collections import Counter

import pytest
from conftest import CLS, SEP
from data_helpers import write
from transformers import BertTokenizer

from simcse_hf.data.documents import SpanDataset, next_sentence_pairs, read_documents

# --- sentences ---

DOCUMENTS = [["a1", "a2", "a3", "a4", "a5"], ["alone"], ["c1", "c2"]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    documents = ["\n".join(sentences) + "\n" for sentences in DOCUMENTS]
    return write(tmp_path_factory.mktemp("documents") / "d.txt.gz", "\n".join(documents))


def test_blank_lines_separate_documents(file):
    assert list(read_documents(file)) == DOCUMENTS


def test_several_blank_lines_and_carriage_returns_make_no_empty_documents(tmp_path):
    text = "\ufeff\n\nx 1\r\nx 2\r\n \t\r\n\r\n\r\ny 1\r\n\r\n"
    messy = write(tmp_path / "messy.txt", text)
    assert list(read_documents(messy)) == [["x 1", "x 2"], ["y 1"]]


# --- pairs of neighbouring sentences ---


def pairs_with_seed(file, seed):
    return next_sentence_pairs(file, window=3, seed=seed)


@pytest.fixture(scope="module")
def pair_counts(file):
    """How often each pair is drawn with 100 seeds."""
    counts = Counter()
    for seed in range(100):
        pairs = pairs_with_seed(file, seed)
        counts.update(zip(pairs["sent0"], pairs["sent1"], strict=True))
    return counts


def test_every_sentence_that_has_a_next_one_begins_a_pair(file):
    assert pairs_with_seed(file, 0)["sent0"][:] == ["a1", "a2", "a3", "a4", "c1"]


NEXT_SENTENCES = pytest.mark.parametrize(
    "first, following",
    [
        ("a1", ["a2", "a3", "a4"]),
        ("a2", ["a3", "a4", "a5"]),
        ("a3", ["a4", "a5"]),
        ("a4", ["a5"]),
        ("c1", ["c2"]),
    ],
)


@NEXT_SENTENCES
def test_window_three_draws_any_of_the_next_sentences_that_are_left(pair_counts, first, following):
    drawn = {second for sentence, second in pair_counts if sentence == first}
    assert drawn == set(following)


@NEXT_SENTENCES
def test_each_of_the_next_sentences_is_as_likely(pair_counts, first, following):
    for second in following:
        assert pair_counts[first, second] == pytest.approx(100 / len(following), abs=25)


def test_the_same_seed_draws_the_same_pairs(file):
    assert pairs_with_seed(file, 5)["sent1"][:] == pairs_with_seed(file, 5)["sent1"][:]


# --- spans ---

LETTERS = [chr(97 + i) for i in range(26)]
TOKENS = [f"{a}{b}" for a in LETTERS for b in LETTERS]
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
    """The place in the document at which a span starts, and the one after its end."""
    assert ids[0] == CLS
    assert ids[-1] == SEP
    inside = ids[1:-1]
    start = inside[0] - len(SPECIAL)
    end = start + len(inside)
    assert inside == list(range(inside[0], inside[0] + len(inside))), "a part of the document"
    return start, end


def draw_rows(dataset, number):
    """The spans of the first row in each of some epochs."""
    rows = []
    for epoch in range(number):
        dataset.set_epoch(epoch)
        rows.append([span_of(ids) for ids in dataset[0]["input_ids"]])
    return rows


def length(span):
    start, end = span
    return end - start


@pytest.fixture(scope="module")
def rows_of_spans(tokenizer):
    """1500 rows of an anchor and two positives, of 4 to 64 tokens, from a document of 200 tokens."""
    dataset = SpanDataset([document(200)], tokenizer, 66, max_span=64, min_span=4, positives=2)
    return draw_rows(dataset, 1500)


@pytest.fixture(scope="module")
def anchors(rows_of_spans):
    return [anchor for anchor, *_ in rows_of_spans]


@pytest.fixture(scope="module")
def positives(rows_of_spans):
    return [positive for _, *both in rows_of_spans for positive in both]


def test_a_row_has_an_anchor_and_its_positives(rows_of_spans):
    assert {len(row) for row in rows_of_spans} == {3}


def test_spans_lie_in_the_document(anchors, positives):
    for start, end in anchors + positives:
        assert 0 <= start < end <= 200


def test_spans_have_the_lengths_allowed(anchors, positives):
    lengths = [length(span) for span in anchors + positives]
    assert min(lengths) >= 4
    assert max(lengths) <= 64


# Beta(4, 2) has mean 2/3 and variance 2/63, Beta(2, 4) mean 1/3 and the same variance; rounding down takes half.


def test_the_lengths_of_anchors_follow_the_papers_distribution(anchors):
    lengths = [length(anchor) for anchor in anchors]
    assert statistics.mean(lengths) == pytest.approx(4 + 60 * 2 / 3 - 0.5, abs=1.0)
    assert statistics.stdev(lengths) == pytest.approx(60 * (2 / 63) ** 0.5, abs=0.7)


def test_the_lengths_of_positives_follow_the_papers_distribution(positives):
    lengths = [length(positive) for positive in positives]
    assert statistics.mean(lengths) == pytest.approx(4 + 60 / 3 - 0.5, abs=0.8)


def test_the_start_of_an_anchor_is_uniform(anchors):
    """The shares of the room before and behind the anchor are equal on average."""
    shares = [start / (200 - length((start, end))) for start, end in anchors]
    assert statistics.mean(shares) == pytest.approx(0.5, abs=0.03)


def touches(positive, anchor):
    return positive[0] <= anchor[1] and positive[1] >= anchor[0]


def relation(positive, anchor):
    if positive[1] == anchor[0] or positive[0] == anchor[1]:
        return "adjacent"
    if anchor[0] <= positive[0] and positive[1] <= anchor[1]:
        return "within"
    return "overlapping"


def test_positives_touch_their_anchor(rows_of_spans):
    for anchor, *positives in rows_of_spans:
        assert all(touches(positive, anchor) for positive in positives)


def test_positives_are_adjacent_to_their_anchor_overlap_with_it_or_lie_within(
    rows_of_spans,
):
    found = set()
    for anchor, *positives in rows_of_spans:
        found |= {relation(positive, anchor) for positive in positives}
    assert found == {"adjacent", "within", "overlapping"}


# --- several anchors ---


@pytest.fixture(scope="module", params=[(1, 1), (2, 2), (3, 1)], ids=str)
def numbers(request):
    """The number of anchors of a row, and of the positives of each."""
    return request.param


@pytest.fixture(scope="module")
def dataset(tokenizer, numbers):
    anchors, positives = numbers
    return SpanDataset([document(100)], tokenizer, 18, anchors=anchors, positives=positives)


@pytest.fixture(scope="module")
def groups(dataset, numbers):
    """For each of 200 rows, its anchors with their positives."""
    anchors, positives = numbers
    size = 1 + positives
    found = []
    for row in draw_rows(dataset, 200):
        assert len(row) == anchors * size
        found.append([row[start : start + size] for start in range(0, len(row), size)])
    return found


def test_by_default_a_span_is_as_long_as_the_model_reads_and_at_least_a_token(dataset):
    assert dataset.max_span == 16
    assert dataset.min_span == 1


def test_a_document_is_a_row_of_token_ids(dataset):
    assert len(dataset) == 1
    assert dataset.column_names == ["input_ids"]


def test_anchors_of_a_row_do_not_overlap(groups):
    for row in groups:
        anchors = [anchor for anchor, *_ in row]
        for anchor, following in zip(anchors, anchors[1:], strict=False):
            assert anchor[1] <= following[0]


def test_positives_touch_their_own_anchor(groups):
    for row in groups:
        for anchor, *positives in row:
            assert all(touches(positive, anchor) for positive in positives)


def test_documents_that_are_too_short_are_left_out(tokenizer):
    documents = [document(tokens) for tokens in (10, 64, 63, 65, 9)]
    dataset = SpanDataset(documents, tokenizer, 18, anchors=2)  # needs 2 * 2 * 16 tokens
    assert len(dataset) == 2
