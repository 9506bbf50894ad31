"""What an adaptation reads: a bounded sample of distinct texts, and labels of every kind, without the tasks' texts."""

import json

import pytest
from evaluation_helpers import write
from trainer_helpers import refuses

from simcse_hf.apps.adapt import inputs as inputs_module
from simcse_hf.apps.adapt.inputs import (
    neighbouring_spans,
    prepare_labels,
    read_corpus,
    split_tasks,
)
from simcse_hf.encoding.windows import split_sentences
from simcse_hf.retrieval.mining import fold_text

NOTHING = frozenset()

# --- texts ---


@pytest.fixture
def texts():
    """A hundred different texts."""
    big = [f"the big cat {number}" for number in range(50)]
    small = [f"the small cat {number}" for number in range(50)]
    return big + small


@pytest.fixture
def thrice(tmp_path, texts):
    """What is read from a file with each text three times, also in upper case and after white space."""
    upper = [text.upper() for text in texts]
    indented = [f"  {text}" for text in texts]
    path = write(tmp_path / "texts.txt", [*texts, *upper, *indented])
    return read_corpus(path, NOTHING)


def test_texts_are_distinct_up_to_case_and_white_space(thrice, texts):
    read, _ = thrice
    assert sorted(read) == sorted(texts)


def test_a_corpus_is_described_by_its_texts_and_rows(thrice):
    _, described = thrice
    assert described == {"path": "texts.txt", "texts": 100, "rows": 300, "overlap": 0}


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A file of 4,000 texts, of which 1,000 are kept."""
    monkeypatch.setattr(inputs_module, "MAX_TEXTS", 1000)
    return write(tmp_path / "texts.txt", [f"text {number}" for number in range(4000)])


def test_of_a_large_corpus_the_limit_is_kept(large):
    read, _ = read_corpus(large, NOTHING)
    assert len(read) == 1000


def test_a_large_corpus_is_sampled_evenly(large):
    read, _ = read_corpus(large, NOTHING)
    of_first_half = [text for text in read if int(text.split()[1]) < 2000]
    assert 430 < len(of_first_half) < 570


def test_a_large_corpus_is_sampled_the_same_way_each_time(large):
    assert read_corpus(large, NOTHING)[0] == read_corpus(large, NOTHING)[0]


@pytest.fixture
def longer_than_the_limit(tmp_path, texts, monkeypatch):
    """A file of which 80 rows may be read. The rest is not even valid csv, which reading it would show."""
    monkeypatch.setattr(inputs_module, "MAX_ROWS", 80)
    path = tmp_path / "texts.csv"
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts) + '"broken')
    return path


def test_rows_after_the_limit_are_not_read(longer_than_the_limit):
    _, described = read_corpus(longer_than_the_limit, NOTHING)
    assert described["rows"] == 80


def test_the_warning_says_how_many_rows_are_read(longer_than_the_limit, caplog):
    read_corpus(longer_than_the_limit, NOTHING)
    assert "only the first 80 rows are read" in caplog.text


@pytest.fixture
def corpus_and_scored(tmp_path, texts):
    """A file of the texts, and those that a task scores, 32 of them in other case."""
    rows = [f"{texts[n]},{texts[n + 50]},{n % 2}" for n in range(16)]
    file = write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *rows])
    *_, scored = split_tasks([f"pairs={file}"], {})
    path = write(tmp_path / "texts.txt", [text.upper() for text in texts])
    return path, scored


def test_texts_that_a_task_scores_are_left_out(corpus_and_scored):
    read, _ = read_corpus(*corpus_and_scored)
    assert len(read) == 68


def test_texts_that_a_task_scores_are_counted(corpus_and_scored):
    _, described = read_corpus(*corpus_and_scored)
    assert described["overlap"] == 32


def test_the_warning_counts_the_texts_that_a_task_scores(corpus_and_scored, caplog):
    read_corpus(*corpus_and_scored)
    words = "32 of 100 rows hold a text that a task scores. They are left out."
    assert words in caplog.text


# --- labels ---

#: Of each file: its lines, the objective that its rows choose, and the rows without those of the text "f".
LABELS = {
    "triplets.csv": (
        ["anchor,positive,negative", "a,b,c", "d,e,F"],
        "simcse",
        [{"sent0": "a", "sent1": "b", "sent2": "c"}],
    ),
    "pairs.csv": (
        ["sent0,sent1", "a,b", "f,e"],
        "simcse",
        [{"sent0": "a", "sent1": "b"}],
    ),
    "scored.csv": (
        ["sentence1,sentence2,score", "a,b,4.5", "f,c,1"],
        "cosent",
        [{"sentence1": "a", "sentence2": "b", "score": 4.5}],
    ),
    "sts-train.csv": (
        ["main\tnews\t2012\t1\t4.5\ta\tb", "main\tnews\t2012\t2\t1\tf\tc"],
        "cosent",
        [{"sentence1": "a", "sentence2": "b", "score": 4.5}],
    ),
    "classes.csv": (
        ["text,intent", "a,x", "b,x", "c,y", "f,y"],
        "class_labels",
        [
            {"text": "a", "label": 0},
            {"text": "b", "label": 0},
            {"text": "c", "label": 1},
        ],
    ),
    "several.jsonl": (
        [
            '{"text": "a", "label": ["x", "y"]}',
            '{"text": "b", "label": ["x"]}',
            '{"text": "f", "label": ["y"]}',
        ],
        "class_labels",
        [{"text": "a", "label": [0, 1]}, {"text": "b", "label": [0]}],
    ),
}
EVERY_KIND_OF_LABELS = pytest.mark.parametrize("name", LABELS)


@pytest.fixture
def prepared(name, tmp_path):
    """The objective and the rows of a file of labels, where a task scores the text "f"."""
    lines, _, _ = LABELS[name]
    given = write(tmp_path / name, lines)
    output = tmp_path / "labels.jsonl"
    objective = prepare_labels(str(given), frozenset("f"), output)
    return objective, [json.loads(line) for line in output.read_text().splitlines()]


@EVERY_KIND_OF_LABELS
def test_labels_of_every_kind_choose_their_objective(name, prepared):
    _, objective, _ = LABELS[name]
    assert prepared[0] == objective


@EVERY_KIND_OF_LABELS
def test_labels_of_every_kind_are_read_without_the_texts_of_a_task(name, prepared):
    _, _, rows = LABELS[name]
    assert prepared[1] == rows


# --- refusals ---


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        pytest.param("few.txt", ["one line"], id="one line"),
        pytest.param("same.txt", ["the same line"] * 1000, id="equal lines"),
    ],
)
def test_a_corpus_of_a_single_text_is_refused(tmp_path, name, lines):
    path = write(tmp_path / name, lines)
    with refuses(f"{name} 1 distinct"):
        read_corpus(path, NOTHING)


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        pytest.param(
            "pairs.csv",
            ["sent0,sent1", "f,b"],
            "pairs.csv tasks",
            id="a task scores every row",
        ),
        pytest.param(
            "nli.csv",
            [
                "sentence1,sentence2,label",
                "a man,a person,0",
                "a man,a tired man,1",
                "a man,no man,2",
            ],
            "nli.csv build-nli",
            id="nli without its triplets",
        ),
        pytest.param("texts.txt", ["a", "b"], "texts.txt label", id="texts without labels"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path, name, lines, words):
    path = write(tmp_path / name, lines)
    with refuses(words):
        prepare_labels(str(path), frozenset("f"), tmp_path / "labels.jsonl")


# --- pairs of neighbouring spans ---

DOCUMENT = [
    "One is here.",
    "Two is here.",
    "Three is here.",
    "Four is here.",
    "Five is here.",
]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("lines.txt", [*DOCUMENT, "", "A short one.", "Of two sentences.", ""]),
        ("rows.txt", [" ".join(DOCUMENT), "A short one. Of two sentences."]),
        ("rows.csv", ["text", f'"{" ".join(DOCUMENT)}"', "A short one."]),
    ],
)
def test_a_pair_of_spans_is_four_consecutive_sentences_of_one_document(tmp_path, name, lines):
    [pair] = neighbouring_spans(write(tmp_path / name, lines), NOTHING)
    sentences = [*split_sentences(pair["sent0"]), *split_sentences(pair["sent1"])]
    first = DOCUMENT.index(sentences[0])
    assert sentences == DOCUMENT[first : first + 4]


@pytest.mark.parametrize(
    "scored",
    ["three is here.", "one is here. two is here. three is here. four is here."],
)
def test_a_document_that_a_task_scores_gives_no_pair_of_spans(tmp_path, scored):
    file = write(tmp_path / "lines.txt", [*DOCUMENT[:4], "", "Another.", ""])
    assert neighbouring_spans(file, frozenset([fold_text(scored)])) == []


def test_the_pairs_of_spans_are_the_same_in_every_call(tmp_path):
    file = write(tmp_path / "rows.txt", [" ".join(DOCUMENT * 3)] * 20)
    first = neighbouring_spans(file, NOTHING)
    second = neighbouring_spans(file, NOTHING)
    assert first == second
