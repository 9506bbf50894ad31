"""What an adaptation reads: a bounded sample of distinct texts, and labels of every kind, without the tasks' texts."""

import json

import pytest
from evaluation_helpers import write
from trainer_helpers import refuses

from simcse_hf.apps.adapt import inputs as inputs_module
from simcse_hf.apps.adapt.inputs import neighbouring_spans, prepare_labels, read_corpus, split_tasks
from simcse_hf.apps.mining import fold_text
from simcse_hf.encoding.windows import split_sentences

NOTHING = frozenset()

# --- texts ---


@pytest.fixture
def texts():
    """A hundred different texts."""
    return [f"the cat {number}" for number in range(100)]


def test_texts_are_distinct_up_to_case_and_white_space(tmp_path, texts):
    upper = [text.upper() for text in texts]
    indented = [f"  {text}" for text in texts]
    read, described = read_corpus(write(tmp_path / "texts.txt", [*texts, *upper, *indented]), NOTHING)
    assert sorted(read) == sorted(texts)
    assert described == {"path": "texts.txt", "texts": 100, "rows": 300, "overlap": 0}


def test_a_large_corpus_is_sampled_evenly_and_the_same_way_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs_module, "MAX_TEXTS", 1000)
    large = write(tmp_path / "texts.txt", [f"text {number}" for number in range(4000)])
    read, _ = read_corpus(large, NOTHING)
    of_first_half = [text for text in read if int(text.split()[1]) < 2000]
    assert len(read) == 1000 and 430 < len(of_first_half) < 570
    assert read == read_corpus(large, NOTHING)[0]


def test_rows_after_the_limit_are_not_read_with_a_warning(tmp_path, texts, monkeypatch, caplog):
    """The rest is not even valid csv, which reading it would show."""
    monkeypatch.setattr(inputs_module, "MAX_ROWS", 80)
    path = tmp_path / "texts.csv"
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts) + '"broken')
    _, described = read_corpus(path, NOTHING)
    assert described["rows"] == 80 and "only the first 80 rows are read" in caplog.text


def test_texts_that_a_task_scores_in_any_case_are_left_out_with_a_warning(tmp_path, texts, caplog):
    rows = [f"{texts[n]},{texts[n + 50]},{n % 2}" for n in range(16)]
    file = write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *rows])
    *_, scored = split_tasks([f"pairs={file}"], {})
    read, described = read_corpus(write(tmp_path / "texts.txt", [text.upper() for text in texts]), scored)
    assert len(read) == 68 and described["overlap"] == 32
    assert "32 of 100 rows hold a text that a task scores. They are left out." in caplog.text


# --- labels ---

#: Of each file: its lines, the objective that its rows choose, and the rows without those of the text "f".
LABELS = {
    "triplets.csv": (
        ["anchor,positive,negative", "a,b,c", "d,e,F"],
        "simcse",
        [{"sent0": "a", "sent1": "b", "sent2": "c"}],
    ),
    "scored.csv": (
        ["sentence1,sentence2,score", "a,b,4.5", "f,c,1"],
        "cosent",
        [{"sent0": "a", "sent1": "b", "score": 4.5}],
    ),
    "sts-train.csv": (
        ["main\tnews\t2012\t1\t4.5\ta\tb", "main\tnews\t2012\t2\t1\tf\tc"],
        "cosent",
        [{"sent0": "a", "sent1": "b", "score": 4.5}],
    ),
    "classes.csv": (
        ["text,intent", "a,x", "b,x", "c,y", "f,y"],
        "class_labels",
        [{"sent0": "a", "label": 0}, {"sent0": "b", "label": 0}, {"sent0": "c", "label": 1}],
    ),
    "several.jsonl": (
        ['{"text": "a", "label": ["x", "y"]}', '{"text": "b", "label": ["x"]}', '{"text": "f", "label": ["y"]}'],
        "class_labels",
        [{"sent0": "a", "label": [0, 1]}, {"sent0": "b", "label": [0]}],
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_every_kind_choose_their_objective_without_the_texts_of_a_task(name, tmp_path):
    lines, objective, rows = LABELS[name]
    output = tmp_path / "labels.jsonl"
    assert prepare_labels(str(write(tmp_path / name, lines)), frozenset("f"), output) == objective
    assert [json.loads(line) for line in output.read_text().splitlines()] == rows


# --- refusals ---


def test_a_corpus_of_a_single_text_is_refused(tmp_path):
    path = write(tmp_path / "same.txt", ["the same line"] * 1000)
    with refuses("same.txt 1 distinct"):
        read_corpus(path, NOTHING)


def test_labels_that_are_none_are_refused(tmp_path):
    for name, lines, words in (
        ("pairs.csv", ["sent0,sent1", "f,b"], "pairs.csv tasks"),
        ("nli.csv", ["sentence1,sentence2,label", "man,person,0", "man,tired,1", "man,no,2"], "nli.csv build-nli"),
    ):
        with refuses(words):
            prepare_labels(str(write(tmp_path / name, lines)), frozenset("f"), tmp_path / "labels.jsonl")


# --- pairs of neighbouring spans ---

DOCUMENT = [f"{number} is here." for number in ("One", "Two", "Three", "Four", "Five")]


@pytest.mark.parametrize(
    "name, lines",
    [
        ("lines.txt", [*DOCUMENT, "", "A short one.", "Of two sentences.", ""]),
        ("rows.csv", ["text", f'"{" ".join(DOCUMENT)}"', "A short one."]),
    ],
)
def test_a_pair_of_spans_is_four_consecutive_sentences_of_one_document(tmp_path, name, lines):
    file = write(tmp_path / name, lines)
    [pair] = found = neighbouring_spans(file, NOTHING)
    sentences = [*split_sentences(pair["sent0"]), *split_sentences(pair["sent1"])]
    first = DOCUMENT.index(sentences[0])
    assert sentences == DOCUMENT[first : first + 4]
    assert neighbouring_spans(file, NOTHING) == found, "the same in every call"


def test_a_document_that_a_task_scores_gives_no_pair_of_spans(tmp_path):
    file = write(tmp_path / "lines.txt", [*DOCUMENT[:4], "", "Another.", ""])
    for scored in ("three is here.", "one is here. two is here. three is here. four is here."):
        assert neighbouring_spans(file, frozenset([fold_text(scored)])) == []
