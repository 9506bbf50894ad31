"""Rows with equal texts: a warning that they meet in a batch, and batches in which they do not."""

import logging

import pytest
from datasets import Dataset
from trainer_helpers import make, model_of, scored, sentences

APART = {"batch_sampler": "no_duplicates"}


def repeated(anchors=9, rows=32, seed=0):
    """Pairs of a few anchors with different positives."""
    own = sentences(anchors, seed)
    return Dataset.from_dict(
        {
            "sent0": [own[i % anchors] for i in range(rows)],
            "sent1": sentences(rows, seed + 1),
        }
    )


def with_negatives(rows):
    """The rows with hard negatives, of which every third is absent and some are positives of other rows."""
    found = [None if i % 3 == 0 else text for i, text in enumerate(rows["sent1"][:])]
    return rows.add_column("sent2", found[5:] + found[:5])


def texts_of(batch):
    """The texts of each row of a batch, without padding."""
    rows = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        texts = {tuple(text[there.bool()].tolist()) for text, there in zip(ids, mask, strict=True)}
        rows.append(texts - {()})
    return rows


def assert_no_text_stands_in_two_rows(rows):
    assert len(set().union(*rows)) == sum(map(len, rows))


def test_no_text_stands_in_two_rows_of_a_batch(tmp_path, tokenizer):
    rows = with_negatives(repeated())
    trainer = make(tmp_path, tokenizer, rows, per_device_train_batch_size=4, **APART)
    batches = [texts_of(batch) for batch in trainer.get_train_dataloader()]
    assert len(batches) >= 6, "most rows fit"
    for batch in batches:
        assert_no_text_stands_in_two_rows(batch)
        assert len(batch) == 4


def test_equal_texts_are_known_by_their_words_where_columns_have_other_prompts(tmp_path, tokenizer):
    anchors = sentences(8)
    positives = [*anchors[1:], "a cat", *sentences(8, 5)]
    trainer = make(
        tmp_path,
        tokenizer,
        Dataset.from_dict({"sent0": anchors * 2, "sent1": positives}),
        prompts={"anchor": "the old ", "positive": "a red "},
        per_device_train_batch_size=4,
        **APART,
    )
    trainer.data_collator.add_text_ids = True
    for batch in trainer.get_train_dataloader():
        assert len(batch["text_ids"].unique()) == 8


def test_no_text_stands_in_two_rows_of_a_batch_of_a_mixture(tmp_path, tokenizer):
    data = {"few": repeated(), "many": repeated(11, 44, seed=3), "scored": scored(16)}
    tables = {"scored": {"objective": "cosent"}}
    trainer = make(tmp_path, tokenizer, data, datasets=tables, per_device_train_batch_size=4, **APART)
    found = set()
    for batch in trainer.get_train_dataloader():
        assert_no_text_stands_in_two_rows(texts_of(batch))
        found.add(int(batch["dataset"][0]))
    assert found == {0, 1, 2}


def reports_of(caplog, words):
    """The messages with some words."""
    return [record.message for record in caplog.records if words in record.message]


def test_rows_that_are_left_out_of_an_epoch_are_counted(tmp_path, tokenizer, caplog):
    anchors = ["a cat"] * 20 + sentences(21, 1)
    rows = Dataset.from_dict({"sent0": anchors, "sent1": sentences(41, 2)})
    with caplog.at_level(logging.WARNING):
        make(tmp_path, tokenizer, rows, **APART).get_train_dataloader()
    [report] = reports_of(caplog, "no_duplicates")
    words = "only 24 of 41 rows fit into batches of 8 rows with different texts"
    assert words in report


# --- the warning ---


def warnings_of(caplog, trainer):
    with caplog.at_level(logging.WARNING):
        trainer.check_run()
    return reports_of(caplog, "a row meets")


def answers(rows):
    """Questions with one of ten answers."""
    few = sentences(10, 7)
    return Dataset.from_dict({"question": sentences(rows), "answer": [few[i % 10] for i in range(rows)]})


@pytest.mark.parametrize(
    ("rows", "meets"),
    [
        (repeated(200, 2000), "0.032"),  # 7 others of 1,999, of which 9 are the same
        (answers(200), ""),
        (with_negatives(repeated()), ""),
    ],
    ids=["anchors", "positives", "hard negatives"],
)
def test_anchors_or_positives_that_meet_in_a_batch_are_reported_with_the_cures(
    tmp_path, tokenizer, caplog, rows, meets
):
    [warning] = warnings_of(caplog, make(tmp_path, tokenizer, rows))
    words = ["in a batch of 8, a row meets on average", meets, "batch_sampler to no_duplicates", "mask_duplicates"]
    assert [word for word in words if word not in warning] == []


@pytest.mark.parametrize(
    "options, settings",
    [
        (APART, {}),
        ({}, {"objective_options": {"mask_duplicates": True}}),
        ({}, {"objective": "barlow_twins", "objective_options": {"projector_dim": 8}}),
    ],
)
def test_nothing_is_reported_where_equal_texts_are_no_negatives(tmp_path, tokenizer, caplog, options, settings):
    model = model_of(**settings)
    trainer = make(tmp_path, tokenizer, repeated(), model, **options)
    assert not warnings_of(caplog, trainer)


def test_nothing_is_reported_where_equal_texts_hardly_ever_meet(tmp_path, tokenizer, caplog):
    rows = repeated(1500, 3000)
    assert not warnings_of(caplog, make(tmp_path, tokenizer, rows))


def test_an_objective_that_cannot_leave_them_out_recommends_other_batches_alone(tmp_path, tokenizer, caplog):
    model = model_of(objective="contrastive_tension", pooler_type="avg")
    [warning] = warnings_of(caplog, make(tmp_path, tokenizer, repeated(), model))
    assert "no_duplicates" in warning
    assert "mask_duplicates" not in warning
