"""What an adaptation reads: a bounded sample of distinct texts, and labels of every kind, without the tasks' texts."""

import json

import pytest
from evaluation_helpers import write
from trainer_helpers import refuses

from simcse_hf.inference.windows import split_sentences
from simcse_hf.search.mining import fold_text
from simcse_hf.training.adaptation import inputs as inputs_module
from simcse_hf.training.adaptation.inputs import (
    neighbouring_spans,
    prepare_labels,
    read_corpus,
    read_tasks,
)

NOTHING = frozenset()


@pytest.fixture
def texts():
    return [
        f"the {size} cat {number}" for size in ("big", "small") for number in range(50)
    ]


def test_texts_are_distinct_up_to_case_and_white_space(tmp_path, texts):
    path = write(
        tmp_path / "texts.txt",
        [*texts, *(text.upper() for text in texts), *(f"  {t}" for t in texts)],
    )
    read, described = read_corpus(path, NOTHING)
    assert sorted(read) == sorted(texts)
    assert described == {"path": "texts.txt", "texts": 100, "rows": 300, "overlap": 0}


def test_a_large_corpus_is_sampled_evenly_and_the_same_way_each_time(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(inputs_module, "MAX_TEXTS", 1000)
    path = write(tmp_path / "texts.txt", [f"text {number}" for number in range(4000)])
    read, _ = read_corpus(path, NOTHING)
    assert read == read_corpus(path, NOTHING)[0] and len(read) == 1000
    assert 430 < sum(int(text.split()[1]) < 2000 for text in read) < 570


def test_rows_after_the_limit_are_not_read_and_that_is_said(
    tmp_path, texts, monkeypatch, caplog
):
    monkeypatch.setattr(inputs_module, "MAX_ROWS", 80)
    path = tmp_path / "texts.csv"
    # The second half is not even valid csv, which reading it would show.
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts) + '"broken')
    assert read_corpus(path, NOTHING)[1]["rows"] == 80
    assert "only the first 80 rows are read" in caplog.text


def test_texts_that_a_task_scores_are_left_out_and_counted(tmp_path, texts, caplog):
    rows = [f"{texts[n]},{texts[n + 50]},{n % 2}" for n in range(16)]
    file = write(tmp_path / "pairs.csv", ["sentence1,sentence2,label", *rows])
    *_, scored = read_tasks([f"pairs={file}"], {})
    path = write(tmp_path / "texts.txt", [text.upper() for text in texts])
    read, described = read_corpus(path, scored)
    assert len(read) == 68 and described["overlap"] == 32
    assert (
        "32 of 100 rows hold a text that a task scores. They are left out."
        in caplog.text
    )


SCORED = [{"sentence1": "a", "sentence2": "b", "score": 4.5}]
LABELS = {
    "triplets.csv": (
        "anchor,positive,negative|a,b,c|d,e,F",
        "simcse",
        [{"sent0": "a", "sent1": "b", "sent2": "c"}],
    ),
    "pairs.csv": ("sent0,sent1|a,b|f,e", "simcse", [{"sent0": "a", "sent1": "b"}]),
    "scored.csv": ("sentence1,sentence2,score|a,b,4.5|f,c,1", "cosent", SCORED),
    "sts-train.csv": (
        "main\tnews\t2012\t1\t4.5\ta\tb|main\tnews\t2012\t2\t1\tf\tc",
        "cosent",
        SCORED,
    ),
    "classes.csv": (
        "text,intent|a,x|b,x|c,y|f,y",
        "class_labels",
        [
            {"text": "a", "label": 0},
            {"text": "b", "label": 0},
            {"text": "c", "label": 1},
        ],
    ),
    "several.jsonl": (
        '{"text": "a", "label": ["x", "y"]}|{"text": "b", "label": ["x"]}|{"text": "f", "label": ["y"]}',
        "class_labels",
        [{"text": "a", "label": [0, 1]}, {"text": "b", "label": [0]}],
    ),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_of_every_kind_are_read_without_the_texts_of_a_task(tmp_path, name):
    lines, objective, rows = LABELS[name]
    path = tmp_path / "labels.jsonl"
    assert (
        prepare_labels(
            str(write(tmp_path / name, lines.split("|"))), frozenset("f"), path
        )
        == objective
    )
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows


REFUSED = {
    "few.txt": ("one line", "few.txt 1 distinct"),
    "same.txt": ("|".join(["the same line"] * 1000), "same.txt 1 distinct"),
    "pairs.csv": ("sent0,sent1|f,b", "pairs.csv tasks"),  # a task scores every row
    "nli.csv": (
        "sentence1,sentence2,label|a man,a person,0|a man,a tired man,1|a man,no man,2",
        "nli.csv build-nli",
    ),
    "texts.txt": ("a|b", "texts.txt label"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_texts_and_labels_that_are_none_are_refused(tmp_path, name):
    lines, words = REFUSED[name]
    path = write(tmp_path / name, lines.split("|"))
    with refuses(words):
        if name in ("few.txt", "same.txt"):
            read_corpus(path, NOTHING)
        prepare_labels(str(path), frozenset("f"), tmp_path / "labels.jsonl")


# --- pairs of neighbouring spans ---


def neighbours(first, second, sentences):
    """Whether two spans are four consecutive sentences of a document."""
    places = [sentences.index(each) for each in (*first, *second)]
    return places == list(range(places[0], places[0] + 4))


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
def test_a_pair_of_spans_is_four_consecutive_sentences_of_one_document(
    tmp_path, name, lines
):
    [pair] = neighbouring_spans(write(tmp_path / name, lines), frozenset())
    first = split_sentences(pair["sent0"])
    second = split_sentences(pair["sent1"])
    assert neighbours(first, second, DOCUMENT)


@pytest.mark.parametrize(
    "scored",
    ["three is here.", "one is here. two is here. three is here. four is here."],
)
def test_a_document_that_a_task_scores_gives_no_pair_of_spans(tmp_path, scored):
    file = write(tmp_path / "lines.txt", [*DOCUMENT[:4], "", "Another.", ""])
    assert neighbouring_spans(file, frozenset([fold_text(scored)])) == []


def test_the_pairs_of_spans_are_the_same_in_every_call(tmp_path):
    file = write(tmp_path / "rows.txt", [" ".join(DOCUMENT * 3)] * 20)
    assert neighbouring_spans(file, frozenset()) == neighbouring_spans(
        file, frozenset()
    )
