"""Rows with equal texts: a warning that they meet in a batch, and batches in which they do not."""

import logging

import pytest
from datasets import Dataset
from trainer_helpers import SAVES, make, model_of, scored, sentences, train_and_resume

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
        texts = {
            tuple(text[there.bool()].tolist())
            for text, there in zip(ids, mask, strict=True)
        }
        rows.append(texts - {()})
    return rows


@pytest.mark.parametrize(
    "rows", [repeated(), with_negatives(repeated())], ids=["pairs", "hard negatives"]
)
def test_no_text_stands_in_two_rows_of_a_batch(tmp_path, tokenizer, rows):
    batches = list(
        make(
            tmp_path, tokenizer, rows, per_device_train_batch_size=4, **APART
        ).get_train_dataloader()
    )
    assert len(batches) >= 6
    for batch in batches:
        found = texts_of(batch)
        assert len(found) == 4 and len(set().union(*found)) == sum(map(len, found))


def test_equal_texts_are_known_by_their_words_where_columns_have_other_prompts(
    tmp_path, tokenizer
):
    rows = Dataset.from_dict(
        {
            "sent0": sentences(8) * 2,
            "sent1": [*sentences(8)[1:], "a cat", *sentences(8, 5)],
        }
    )
    prompts = {"anchor": "the old ", "positive": "a red "}
    trainer = make(
        tmp_path,
        tokenizer,
        rows,
        prompts=prompts,
        per_device_train_batch_size=4,
        **APART,
    )
    trainer.data_collator.add_text_ids = True
    for batch in trainer.get_train_dataloader():
        assert len(batch["text_ids"].unique()) == 8


def test_no_text_stands_in_two_rows_of_a_batch_of_a_mixture(tmp_path, tokenizer):
    data = {"few": repeated(), "many": repeated(11, 44, seed=3), "scored": scored(16)}
    trainer = make(
        tmp_path,
        tokenizer,
        data,
        datasets={"scored": {"objective": "cosent"}},
        per_device_train_batch_size=4,
        **APART,
    )
    seen = set()
    for batch in trainer.get_train_dataloader():
        found = texts_of(batch)
        assert len(set().union(*found)) == sum(map(len, found))
        seen.add(int(batch["dataset"][0]))
    assert seen == {0, 1, 2}


def test_a_run_without_equal_texts_in_a_batch_is_resumed_in_its_second_epoch(
    tmp_path, tokenizer
):
    options = SAVES | APART | {"max_steps": 8, "save_steps": 6, "logging_steps": 1}
    train_and_resume(lambda: make(tmp_path, tokenizer, repeated(), **options), 6)


def test_rows_that_are_left_out_of_an_epoch_are_counted(tmp_path, tokenizer, caplog):
    pairs = zip(["a cat"] * 20 + sentences(21, 1), sentences(41, 2), strict=True)
    rows = Dataset.from_list(
        [{"sent0": anchor, "sent1": positive} for anchor, positive in pairs]
    )
    with caplog.at_level(logging.WARNING):
        make(tmp_path, tokenizer, rows, **APART).get_train_dataloader()
        make(
            tmp_path, tokenizer, repeated(4, 31), per_device_train_batch_size=4, **APART
        ).get_train_dataloader()
    reports = [
        record.message for record in caplog.records if "no_duplicates" in record.message
    ]
    assert (
        len(reports) == 1
        and "only 24 of 41 rows fit into batches of 8 rows with different texts"
        in reports[0]
    )


# --- the warning ---


def warnings_of(caplog, *trainers):
    with caplog.at_level(logging.WARNING):
        for trainer in trainers:
            trainer._check_run()
    return [
        record.message for record in caplog.records if "a row meets" in record.message
    ]


def answers(rows=2000):
    """Questions with one of ten answers."""
    few = sentences(10, 7)
    return Dataset.from_dict(
        {"question": sentences(rows), "answer": [few[i % 10] for i in range(rows)]}
    )


@pytest.mark.parametrize(
    "rows", [repeated(200, 2000), answers(200), with_negatives(repeated())]
)
def test_anchors_or_positives_that_meet_in_a_batch_are_reported_once_with_the_cure(
    tmp_path, tokenizer, caplog, rows
):
    found = warnings_of(caplog, make(tmp_path, tokenizer, rows))
    assert len(found) == 1
    assert (
        "batch_sampler to no_duplicates" in found[0] and "mask_duplicates" in found[0]
    )


def test_the_report_says_how_many_meet_in_a_batch(tmp_path, tokenizer, caplog):
    (found,) = warnings_of(caplog, make(tmp_path, tokenizer, repeated(200, 2000)))
    assert found.startswith(
        "Anchors or positives are repeated: in a batch of 8, a row meets on average 0.032 others"
    )  # 7 others of 1,999, of which 9 are the same


@pytest.mark.parametrize(
    "options, settings",
    [
        (APART, {}),
        ({}, {"objective_options": {"mask_duplicates": True}}),
        ({}, {"objective": "barlow_twins", "objective_options": {"projector_dim": 8}}),
    ],
)
def test_nothing_is_reported_where_equal_texts_are_no_negatives(
    tmp_path, tokenizer, caplog, options, settings
):
    assert not warnings_of(
        caplog, make(tmp_path, tokenizer, repeated(), model_of(**settings), **options)
    )


def test_nothing_is_reported_where_equal_texts_hardly_ever_meet(
    tmp_path, tokenizer, caplog
):
    rows = repeated(1500, 3000)
    assert not warnings_of(caplog, make(tmp_path, tokenizer, rows))


def test_an_objective_that_cannot_leave_them_out_recommends_other_batches_alone(
    tmp_path, tokenizer, caplog
):
    model = model_of(objective="contrastive_tension", pooler_type="avg")
    (found,) = warnings_of(caplog, make(tmp_path, tokenizer, repeated(), model))
    assert "no_duplicates" in found and "mask_duplicates" not in found
