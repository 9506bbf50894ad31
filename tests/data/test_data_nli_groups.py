"""What a user is promised of NLI groups: a premise with all of its hypotheses, or as many as asked for, in one row."""

import json
import logging
import time
from collections import defaultdict
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from simcse_hf.data.nli_groups import SAMPLINGS, build_nli_groups

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
    {"texts": ["A man sings.", "A person sings."], "relations": [0]},
]


def rows(pairs):
    return [{"premise": a, "hypothesis": b, "label": LABELS[label]} for a, b, label in pairs]


def many(positives, negatives):
    """A premise with so many of each, in turns; the sign of a name tells them apart."""
    names = [f"+{i}" for i in range(positives)] + [f"-{i}" for i in range(negatives)]
    return rows([("A premise.", name, ENTAILMENT if name[0] == "+" else 1 + int(name[1:]) % 2) for name in names])


def test_a_row_is_a_premise_with_its_hypotheses_positives_first():
    data = build_nli_groups(rows(PAIRS))
    assert data.column_names == ["texts", "relations"]
    assert data.to_list() == GROUPS


def test_a_premise_without_positive_is_left_out_and_counted(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        build_nli_groups(rows(PAIRS))
    assert "2 rows of up to 4 hypotheses from 3 premises; left out: 1 premises without an entailed" in caplog.text
    with pytest.raises(ValueError, match=r"no row could be built from 1 premise\(s\); left out: 1 premises"):
        build_nli_groups(rows(PAIRS[2:3]))


def test_pairs_keeps_every_labelled_pair_as_a_row_of_its_own():
    data = build_nli_groups(rows(PAIRS), sampling="pairs")
    found = [(*row["texts"], *row["relations"]) for row in data]
    assert sorted(found) == sorted(PAIRS) and [row[0] for row in found][:4] == ["A dog runs."] * 4


@pytest.mark.parametrize(
    ("sampling", "positives", "negatives"),
    [("3p3n", 3, 3), ("3all3n", 3, 3), ("3palln", 3, 6), ("allpalln", 5, 6)],
)
def test_the_limits_of_the_samplings(sampling, positives, negatives):
    (row,) = build_nli_groups(many(5, 6), sampling=sampling)
    hypotheses = row["texts"][1:]
    assert [text[0] for text in hypotheses] == ["+"] * positives + ["-"] * negatives
    assert len(set(hypotheses)) == len(hypotheses)
    assert row["relations"] == [0 if text[0] == "+" else 1 + int(text[1:]) % 2 for text in hypotheses]
    few = build_nli_groups(many(2, 1), sampling=sampling)
    assert few.to_list() == build_nli_groups(many(2, 1)).to_list()


def test_the_draw_follows_the_seed_and_reaches_every_hypothesis_in_its_order():
    draws = [tuple(build_nli_groups(many(4, 5), sampling="3p3n", seed=seed)["texts"][0][1:]) for seed in range(40)]
    assert draws == [
        tuple(build_nli_groups(many(4, 5), sampling="3p3n", seed=seed)["texts"][0][1:]) for seed in range(40)
    ]
    assert {name for draw in draws for name in draw} == {f"+{i}" for i in range(4)} | {f"-{i}" for i in range(5)}
    assert all(list(draw) == sorted(draw) for draw in draws)
    assert len(set(draws)) > 20


def test_duplicates_conflicts_missing_labels_and_wordings(caplog):
    more = [
        *rows(PAIRS[:1]),
        {"premise": "a dog  runs", "hypothesis": "It is on its feet.", "label": "contradiction"},
        {"premise": "A dog runs.", "hypothesis": "It barks.", "label": "-"},
        {"premise": "A dog runs.", "hypothesis": "", "label": 0},
    ]
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        first = build_nli_groups(rows(PAIRS) + more)[0]
    assert first["texts"] == ["A dog runs.", "An animal moves.", "It is brown.", "A dog sleeps."]
    assert first["relations"] == [0, 1, 2]
    for count in ("1 pairs without a label", "1 pairs with an empty text", "1 hypotheses with two labels"):
        assert count in caplog.text


def test_files_and_datasets(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows(PAIRS))))
    assert build_nli_groups(path).to_list() == GROUPS
    names = list(reversed(LABELS))
    features = Features({"premise": Value("string"), "hypothesis": Value("string"), "label": ClassLabel(names=names)})
    columns = [{"premise": a, "hypothesis": b, "label": 2 - label} for a, b, label in PAIRS]
    assert build_nli_groups(Dataset.from_list(columns, features=features)).to_list() == GROUPS


def test_bad_input_names_its_place(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("premise,hypothesis,label\na,b,neutral\na,c,contra\n")
    with pytest.raises(ValueError, match=r"x\.csv, line 3: unknown label 'contra'"):
        build_nli_groups(path)
    with pytest.raises(ValueError, match="sampling must be one of pairs, 3p3n, 3all3n, 3palln, allpalln, got '2p2n'"):
        build_nli_groups(rows(PAIRS), sampling="2p2n")
    with pytest.raises(ValueError, match="no row could be built from 0 premise"):
        build_nli_groups([], sampling="pairs")


@pytest.mark.skipif(not DATA.exists(), reason="the shared NLI data is not beside the repository")
def test_real_pairs_are_grouped_in_seconds():
    start = time.process_time()  # others may use the machine
    data = {sampling: build_nli_groups(DATA, sampling=sampling) for sampling in SAMPLINGS[:2]}
    data["allpalln"] = build_nli_groups(DATA)
    assert time.process_time() - start < 60
    pairs = defaultdict(dict)
    for (premise, hypothesis), (relation,) in zip(data["pairs"]["texts"], data["pairs"]["relations"], strict=True):
        pairs[premise][hypothesis] = relation
    assert len(data["pairs"]) == 140650
    wanted = {premise: labels for premise, labels in pairs.items() if ENTAILMENT in labels.values()}
    found = {
        texts[0]: dict(zip(texts[1:], relations, strict=True))
        for texts, relations in zip(data["allpalln"]["texts"], data["allpalln"]["relations"], strict=True)
    }
    assert found == wanted
    for relations in data["3p3n"]["relations"]:
        assert 1 <= relations.count(0) <= 3 and len(relations) - relations.count(0) <= 3
