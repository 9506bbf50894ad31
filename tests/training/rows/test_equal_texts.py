"""Rows with equal texts: a warning that they meet in a batch, and batches in which they do not."""

import pytest
from datasets import Dataset
from trainer_helpers import model_of, scored, sentences

APART = {"batch_sampler": "no_duplicates"}


def repeated(anchors=9, rows=32, seed=0):
    """Pairs of a few anchors with different positives."""
    own = sentences(anchors, seed)
    return Dataset.from_dict({"sent0": [own[i % anchors] for i in range(rows)], "sent1": sentences(rows, seed + 1)})


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


def test_equal_texts_are_known_by_their_words_where_columns_have_other_prompts(make):
    anchors = sentences(8)
    positives = [*anchors[1:], "a cat", *sentences(8, 5)]
    rows = {"sent0": anchors * 2, "sent1": positives}
    options = APART | {"prompts": {"anchor": "the old ", "positive": "a red "}, "per_device_train_batch_size": 4}
    trainer = make(rows, **options)
    trainer.data_collator.add_text_ids = True
    for batch in trainer.get_train_dataloader():
        assert len(batch["text_ids"].unique()) == 8


def test_no_text_stands_in_two_rows_of_a_batch_also_of_a_mixture(make):
    data = {"few": with_negatives(repeated()), "many": repeated(11, 44, seed=3), "scored": scored(16)}
    tables = {"scored": {"objective": "cosent"}}
    trainer = make(data, datasets=tables, per_device_train_batch_size=4, **APART)
    batches = [0, 0, 0]
    for batch in trainer.get_train_dataloader():
        rows = texts_of(batch)
        assert len(set().union(*rows)) == sum(map(len, rows)) and len(rows) == 4
        batches[int(batch["dataset"][0])] += 1
    assert batches[0] >= 6 and batches[1] >= 8, "most rows fit"


def reports_of(caplog, words):
    """The messages with some words."""
    return [record.message for record in caplog.records if words in record.message]


def test_rows_that_are_left_out_of_an_epoch_are_counted(make, caplog):
    anchors = ["a cat"] * 20 + sentences(21, 1)
    rows = {"sent0": anchors, "sent1": sentences(41, 2)}
    make(rows, **APART).get_train_dataloader()
    [report] = reports_of(caplog, "no_duplicates")
    words = "only 24 of 41 rows fit into batches of 8 rows with different texts"
    assert words in report


# --- the warning ---


def warnings_of(caplog, trainer):
    trainer.check_run()
    return reports_of(caplog, "a row meets")


def answers(rows):
    """Questions with one of ten answers."""
    few = sentences(10, 7)
    return {"question": sentences(rows), "answer": [few[i % 10] for i in range(rows)]}


@pytest.mark.parametrize(
    "rows, meets",
    [
        (repeated(200, 2000), "0.032"),  # 7 others of 1,999, of which 9 are the same
        (answers(200), ""),
        (with_negatives(repeated()), ""),
    ],
    ids=["anchors", "positives", "hard negatives"],
)
def test_anchors_or_positives_that_meet_in_a_batch_are_reported_with_the_cures(make, caplog, rows, meets):
    [warning] = warnings_of(caplog, make(rows))
    words = ["in a batch of 8, a row meets on average", meets, "batch_sampler to no_duplicates", "mask_duplicates"]
    assert [word for word in words if word not in warning] == []


@pytest.mark.parametrize(
    "rows, options, settings",
    [
        (repeated(), APART, {}),
        (repeated(), {}, {"objective_options": {"mask_duplicates": True}}),
        (repeated(), {}, {"objective": "barlow_twins", "objective_options": {"projector_dim": 8}}),
        (repeated(1500, 3000), {}, {}),
    ],
    ids=["other batches", "a mask", "no negatives", "many different texts"],
)
def test_nothing_is_reported_where_equal_texts_are_no_negatives_or_hardly_ever_meet(
    make, caplog, rows, options, settings
):
    assert not warnings_of(caplog, make(rows, model_of(**settings), **options))


def test_an_objective_that_cannot_leave_them_out_recommends_other_batches_alone(make, caplog):
    model = model_of(objective="contrastive_tension", pooler_type="avg")
    [warning] = warnings_of(caplog, make(repeated(), model))
    assert "no_duplicates" in warning
    assert "mask_duplicates" not in warning
