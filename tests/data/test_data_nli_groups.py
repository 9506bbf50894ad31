"""Tests of NLI rows: labelled pairs, or a premise with all of its hypotheses in one row."""

import json
import logging
import time
from collections import defaultdict
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from simcse_hf.data.nli import SAMPLINGS, build_nli_groups

ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
LABELS = ("entailment", "neutral", "contradiction")
DATA = Path(__file__).parents[3] / "shared" / "data" / "nli" / "nli_pairs.csv.gz"

PAIRS = [
    ("A dog runs.", "It is brown.", NEUTRAL),
    ("A dog runs.", "An animal moves.", ENTAILMENT),
    ("A cat sleeps.", "A cat is awake.", CONTRADICTION),
    ("A dog runs.", "A dog sleeps.", CONTRADICTION),
    ("A man sings.", "A person sings.", ENTAILMENT),
    ("A dog runs.", "It is on its feet.", ENTAILMENT),
]
GROUPS = [
    {
        "texts": ["A dog runs.", "An animal moves.", "It is on its feet.", "It is brown.", "A dog sleeps."],
        "relations": [0, 0, 1, 2],
    },
    {"texts": ["A cat sleeps.", "A cat is awake."], "relations": [2]},
    {"texts": ["A man sings.", "A person sings."], "relations": [0]},
]


def rows(pairs):
    return [{"premise": a, "hypothesis": b, "label": LABELS[label]} for a, b, label in pairs]


def test_a_row_of_premises_has_all_hypotheses_with_the_entailed_ones_first():
    data = build_nli_groups(rows(PAIRS), sampling="premises")
    assert data.column_names == ["texts", "relations"]
    assert data.to_list() == GROUPS


def test_premises_without_an_entailed_hypothesis_are_kept():
    """The cross-entropy learns from their pairs, and their hypotheses are negatives of the other premises."""
    assert build_nli_groups(rows(PAIRS[2:3]), sampling="premises").to_list() == GROUPS[1:2]


def test_pairs_keeps_every_labelled_pair_as_a_row_and_the_pairs_of_a_premise_adjacent():
    data = build_nli_groups(rows(PAIRS))
    pairs = [(*row["texts"], *row["relations"]) for row in data]
    assert sorted(pairs) == sorted(PAIRS)
    assert [pair[0] for pair in pairs] == ["A dog runs."] * 4 + ["A cat sleeps.", "A man sings."]


def test_duplicates_conflicts_missing_labels_and_wordings(caplog):
    more = [
        *rows(PAIRS[:1]),
        {"premise": "a dog  runs", "hypothesis": "It is on its feet.", "label": "contradiction"},
        {"premise": "A dog runs.", "hypothesis": "It barks.", "label": "-"},
        {"premise": "A dog runs.", "hypothesis": "", "label": 0},
    ]
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        first = build_nli_groups(rows(PAIRS) + more, sampling="premises")[0]
    assert first["texts"] == ["A dog runs.", "An animal moves.", "It is brown.", "A dog sleeps."]
    assert first["relations"] == [0, 1, 2]
    for count in ("1 pairs without a label", "1 pairs with an empty text", "1 hypotheses with two labels"):
        assert count in caplog.text


def test_files_and_datasets(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows(PAIRS))))
    assert build_nli_groups(path, sampling="premises").to_list() == GROUPS
    names = list(reversed(LABELS))
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=names)})
    columns = [{"premise": a, "hypothesis": b, "label": 2 - label} for a, b, label in PAIRS]
    dataset = Dataset.from_list(columns, features=features)
    assert build_nli_groups(dataset, sampling="premises").to_list() == GROUPS


def test_invalid_input_is_refused_with_file_and_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("premise,hypothesis,label\na,b,neutral\na,c,contra\n")
    with pytest.raises(ValueError, match=r"x\.csv, line 3: unknown label 'contra'"):
        build_nli_groups(path)
    with pytest.raises(ValueError, match="sampling must be one of pairs, premises, got '3p3n'.* max_positives"):
        build_nli_groups(rows(PAIRS), sampling="3p3n")
    with pytest.raises(ValueError, match="no row could be built from 0 premise"):
        build_nli_groups([], sampling="pairs")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the shared NLI data is not beside the repository")
def test_real_pairs_are_grouped_in_seconds():
    start = time.process_time()  # others may use the machine
    data = {sampling: build_nli_groups(DATA, sampling=sampling) for sampling in SAMPLINGS}
    assert time.process_time() - start < 60
    pairs = defaultdict(dict)
    for (premise, hypothesis), (relation,) in zip(data["pairs"]["texts"], data["pairs"]["relations"], strict=True):
        pairs[premise][hypothesis] = relation
    assert len(data["pairs"]) == 140650
    premises = {
        texts[0]: dict(zip(texts[1:], relations, strict=True))
        for texts, relations in zip(data["premises"]["texts"], data["premises"]["relations"], strict=True)
    }
    assert premises == pairs
