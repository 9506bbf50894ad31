"""What a user is promised of column names: asked for, then known, then by position, and never a guess in silence."""

import logging

import pytest

from simcse_hf.data.columns import output_columns, resolve_columns


def resolve(found, **options):
    return resolve_columns(found.split(), name="data.csv", **options)


def test_output_columns():
    assert output_columns(1) == ["sent0"]
    assert output_columns(4) == ["sent0", "sent1", "sent2", "sent3"]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ("hard_neg sent1 sent0", "sent0 sent1 hard_neg"),
        ("sent0 sent1", "sent0 sent1"),
        ("sent0 sent1 hard_neg1 hard_neg0", "sent0 sent1 hard_neg0 hard_neg1"),
        ("hard_neg_10 sent0 hard_neg_2 sent1 hard_neg", "sent0 sent1 hard_neg hard_neg_2 hard_neg_10"),
        ("sent3 sent2 sent1 sent0", "sent0 sent1 sent2 sent3"),
        ("negative positive anchor", "anchor positive negative"),
        ("anchor positive", "anchor positive"),
        ("negative_2 negative_1 anchor positive", "anchor positive negative_1 negative_2"),
        ("label sentence2 sentence1", "sentence1 sentence2"),
        ("idx text label", "text"),
        ("id sentence", "sentence"),
        ("sent0", "sent0"),
    ],
)
def test_known_names_are_put_in_order(found, chosen):
    assert resolve(found) == chosen.split()


@pytest.mark.parametrize("found", ["x", "x y", "x y z", "x y z w", "text other", "sent1 sent0b"])
def test_other_names_go_by_position_and_the_log_says_so(found, caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        assert resolve(found) == found.split()
    assert "data.csv: columns taken by position: " + ", ".join(map(repr, found.split())) in caplog.text


def test_asked_for_wins_over_known_names():
    assert resolve("sent0 sent1 hard_neg", columns=["hard_neg", "sent0"]) == ["hard_neg", "sent0"]


def test_asked_for_but_missing():
    with pytest.raises(ValueError, match="data.csv: no column 'premise'; the columns are 'a', 'b'"):
        resolve("a b", columns=["a", "premise"])


@pytest.mark.parametrize("columns", [[], "a"])
def test_asked_for_must_be_a_list(columns):
    with pytest.raises(ValueError, match="columns must be a non-empty list"):
        resolve("a b", columns=columns)


def test_asked_for_twice():
    with pytest.raises(ValueError, match="names a column twice"):
        resolve("a b", columns=["a", "a"])


@pytest.mark.parametrize("other", ["idx", "id", "label", "gold_label", "score", "pair_id"])
def test_position_does_not_decide_over_a_column_that_is_no_text(other):
    with pytest.raises(ValueError, match=rf"data\.csv: column\(s\) '{other}' look like no text.*columns=\[\.\.\.\]"):
        resolve(f"x y {other}")


def test_a_column_of_numbers_is_no_text_whatever_its_name():
    sample = [("A dog.", "An animal.", "0.5"), ("A cat.", "An animal.", "-1e3")]
    with pytest.raises(ValueError, match="'similarity' look like no text"):
        resolve("x y similarity", sample=sample)
    assert resolve("x y similarity", sample=[*sample, ("A.", "B.", "none of it")]) == ["x", "y", "similarity"]
    with pytest.raises(ValueError, match="'y' look like no text"):
        resolve("x y", sample=[("A dog.", 3)])
    assert resolve("x y", sample=[("A dog.", None)]) == ["x", "y"]


def test_the_only_column_is_taken_even_when_it_holds_numbers():
    assert resolve("text", sample=[("1984",), ("42",)]) == ["text"]


@pytest.mark.parametrize(("found", "missing"), [("sent0 hard_neg", "sent1"), ("anchor negative_1 x", "positive")])
def test_negatives_without_a_positive(found, missing):
    with pytest.raises(ValueError, match=f"but no '{missing}'"):
        resolve(found)


def test_two_negatives_of_one_number():
    with pytest.raises(ValueError, match="'hard_neg1' and 'hard_neg_1' have the same number"):
        resolve("sent0 sent1 hard_neg1 hard_neg_1")


def test_expected_number_of_columns():
    assert resolve("sent0 sent1 hard_neg", expected_columns=3) == ["sent0", "sent1", "hard_neg"]
    with pytest.raises(ValueError) as caught:
        resolve("text label", expected_columns=3)
    assert "data.csv: 1 text column(s) ('text') where 3 are expected" in str(caught.value)
    assert "anchor, positive and 1 hard negative(s)" in str(caught.value)
    assert "'text', 'label'" in str(caught.value)


def test_ignored_columns_are_named_and_a_label_beside_a_pair_is_a_warning(caplog):
    with caplog.at_level(logging.INFO, logger="simcse_hf"):
        resolve("sent0 sent1 source")
        resolve("sentence1 sentence2 label")
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "ignored 'source'" in caplog.text
    assert "ignored 'label'. Every row counts as a positive pair" in caplog.text
