"""NLI triplets have each entailed hypothesis once, with negatives of its own premise; groups have all pairs."""

import logging

import pytest
from data_helpers import content_of, write
from datasets import ClassLabel, Dataset

from simcse_hf import load_text_dataset
from simcse_hf.cli.main import main
from simcse_hf.data.nli import build_nli_groups, build_nli_triplets
from simcse_hf.names import NLI_LABELS

PAIRS = [
    ("A dog runs.", "An animal moves.", "entailment"),
    ("A dog runs.", "A dog is brown.", "neutral"),
    ("A cat sleeps.", "A cat is awake.", "contradiction"),
    ("A dog runs.", "A dog sleeps.", "contradiction"),
    ("A dog runs.", "A dog is on its feet.", "entailment"),
    ("A man sings.", "A person sings.", "entailment"),
    ("A dog runs.", "A dog sits.", "contradiction"),
]


def rows_of(pairs, names=("premise", "hypothesis", "label")):
    return [dict(zip(names, pair, strict=True)) for pair in pairs]


ROWS = rows_of(PAIRS)
POSITIVES = [
    ("A dog runs.", "An animal moves."),
    ("A dog runs.", "A dog is on its feet."),
]


def pairs_of(data):
    return list(zip(data["sent0"], data["sent1"], strict=True))


def test_the_draw_follows_the_seed_and_reaches_every_negative():
    draws = [tuple(build_nli_triplets(ROWS, seed=seed)["hard_neg"]) for seed in range(30)]
    assert draws == [tuple(build_nli_triplets(ROWS, seed=seed)["hard_neg"]) for seed in range(30)]
    assert len(set(draws)) == 4  # two triplets, two negatives, drawn on their own


def test_two_hard_negatives_of_two_labels_are_one_of_each():
    """SimCSE, Table 7: a contradiction and a neutral hypothesis."""
    rows = rows_of([*PAIRS, ("A man sings.", "A man is mute.", "contradiction")])
    for seed in range(20):
        data = build_nli_triplets(
            rows,
            seed=seed,
            hard_negatives_per_pair=2,
            negatives=("contradiction", "neutral"),
        )
        assert pairs_of(data) == POSITIVES  # the man has no neutral hypothesis
        assert set(data["hard_neg_1"]) <= {"A dog sleeps.", "A dog sits."}
        assert set(data["hard_neg_2"]) == {"A dog is brown."}


def test_a_random_sample_of_the_rows_keeps_their_order():
    everything = pairs_of(build_nli_triplets(ROWS, hard_negatives_per_pair=0))
    samples = set()
    for seed in range(20):
        sample = pairs_of(build_nli_triplets(ROWS, hard_negatives_per_pair=0, max_rows=2, seed=seed))
        assert len(sample) == 2 and sample == [pair for pair in everything if pair in sample]
        samples.add(tuple(sample))
    assert len(samples) == 3
    assert pairs_of(build_nli_triplets(ROWS, hard_negatives_per_pair=0, max_rows=9)) == everything


def test_a_class_label_column_uses_its_own_names():
    names = ["contradiction", "neutral", "entailment"]
    data = Dataset.from_list([row | {"label": names.index(row["label"])} for row in ROWS])
    data = data.cast_column("label", ClassLabel(names=names))
    assert build_nli_triplets(data).to_list() == build_nli_triplets(ROWS).to_list()


@pytest.mark.parametrize("label", [-1, "-", None])
def test_pairs_without_a_label_or_a_text_and_conflicting_labels_are_left_out_and_counted(label, caplog):
    pairs = [
        *PAIRS,
        PAIRS[0],
        ("A dog runs.", "A dog is on its feet.", "contradiction"),
    ]
    pairs += [
        ("A dog runs.", " ", "entailment"),
        (None, "x", "entailment"),
        ("A dog runs.", "A dog barks.", label),
    ]
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        assert pairs_of(build_nli_triplets(rows_of(pairs))) == POSITIVES[:1]
    for count in (
        "1 pairs without a label",
        "2 pairs with an empty text",
        "1 hypotheses with two labels",
    ):
        assert count in caplog.text


def test_premises_that_differ_in_case_or_punctuation_are_one_premise():
    pairs = [("A dog  runs", "A dog moves.", 0), ("a dog runs.", "A dog stands.", 2)]
    pairs += [("?!", "Nothing.", 0), ("...", "All.", 2)]
    expected = {
        "sent0": "A dog  runs",
        "sent1": "A dog moves.",
        "hard_neg": "A dog stands.",
    }
    assert build_nli_triplets(rows_of(pairs)).to_list() == [expected]


def test_the_command_writes_a_file_that_load_text_dataset_reads(tmp_path, capsys):
    rows = rows_of((premise, f'{hypothesis} "Yes, é", \n he said.', label) for premise, hypothesis, label in PAIRS)
    source = write(tmp_path / "pairs.jsonl", content_of("jsonl", rows))
    output = tmp_path / "new/triplets.csv"
    assert main(f"build-nli --input {source} --output {output} --seed 7".split()) == 0
    assert "2 rows of sent0, sent1, hard_neg" in capsys.readouterr().out
    want = build_nli_triplets(rows, seed=7).rename_column("hard_neg", "sent2")
    assert load_text_dataset(output, cache_dir=tmp_path / "cache").to_list() == want.to_list()
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize("positives", [["neutral"], NLI_LABELS])
def test_other_labels_can_be_positives(positives):
    """SimCSE, Table 4: training on neutral, contradictory or all pairs."""
    data = build_nli_triplets(ROWS, positives=positives, hard_negatives_per_pair=0)
    assert data.column_names == ["sent0", "sent1"]
    assert sorted(pairs_of(data)) == sorted(pair[:2] for pair in PAIRS if pair[2] in positives)


@pytest.mark.parametrize(
    "names, label",
    [
        (("premise", "hypothesis", "label"), NLI_LABELS.index),
        (("sentence1", "sentence2", "gold_label"), str.title),
        (("context", "hypothesis", "label"), lambda label: label[0]),  # ANLI
    ],
)
def test_files_of_other_names_and_labels_give_the_same_rows(tmp_path, names, label):
    rows = rows_of([(a, b, label(word)) for a, b, word in PAIRS], names)
    parts = {"a.jsonl": rows[:3], "b.jsonl.gz": rows[3:]}
    paths = [write(tmp_path / name, content_of("jsonl", part)) for name, part in parts.items()]
    assert build_nli_triplets(paths).to_list() == build_nli_triplets(ROWS).to_list()


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_row_of_premises_has_all_hypotheses_with_the_entailed_ones_first():
    """A premise without an entailed hypothesis stays: its hypotheses are negatives of the others."""
    dog = "A dog runs.|An animal moves.|A dog is on its feet.|A dog is brown.|A dog sleeps.|A dog sits."
    texts = [
        dog.split("|"),
        ["A cat sleeps.", "A cat is awake."],
        ["A man sings.", "A person sings."],
    ]
    rows = build_nli_groups(ROWS, sampling="premises")
    assert rows.to_dict() == {"texts": texts, "relations": [[0, 0, 1, 2, 2], [2], [0]]}


def test_pairs_keeps_every_labelled_pair_as_a_row_and_the_pairs_of_a_premise_adjacent():
    pairs = [(*row["texts"], NLI_LABELS[row["relations"][0]]) for row in build_nli_groups(ROWS)]
    assert sorted(pairs) == sorted(PAIRS)
    assert [pair[0] for pair in pairs] == ["A dog runs."] * 5 + [
        "A cat sleeps.",
        "A man sings.",
    ]
