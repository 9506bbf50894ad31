"""What is given beside the training rows changes what it says, and nothing that a run learns."""

import pytest
from trainer_helpers import (
    assert_close_weights,
    assert_same_weights,
    model_of,
    rows_for,
    sentences,
    texts,
    train_and_resume,
    weights,
)

# --- the order of the rows ---

ORDERS = {
    "by length": {"train_sampling_strategy": "group_by_length"},
    "not seedable": {"accelerator_config": {"use_seedable_sampler": False}},
    "workers that stay": {
        "view": "crop",
        "view_rate": 0.3,
        "dataloader_num_workers": 1,
        "dataloader_persistent_workers": True,
    },
    "a large run": {},
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_is_resumed_in_a_later_epoch_with_the_order_of_that_epoch(make, monkeypatch, order):
    if order == "a large run":
        monkeypatch.setattr("simcse_hf.training.rows.LARGEST_LISTED", 10)
    rows = [sentences(1, place, words=3 + place % 6)[0] for place in range(32)]
    options = {"max_steps": 7, "save_strategy": "steps", "save_steps": 6, **ORDERS[order]}
    train_and_resume(lambda: make(rows, **options), 6)  # an epoch has four steps


# --- a loss of the caller ---


def apart(output, labels, num_items_in_batch=None):
    """The mean distance of an anchor and its positive: of two batches, that of all their rows."""
    anchors, positives = output.sentence_embeddings.unbind(1)
    return (anchors - positives).square().sum(1).mean()


ONE_STEP = {"compute_loss_func": apart, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}
ONE_STEP |= {"train_sampling_strategy": "sequential", "max_steps": 1, "logging_steps": 1}


def test_a_step_of_several_batches_with_a_loss_of_the_caller_is_one_of_all_rows(trained):
    found = []
    for batches in (1, 4):
        options = {"per_device_train_batch_size": 8 // batches, "gradient_accumulation_steps": batches}
        model = model_of(pooler_type="avg", dropout=0.0)
        trainer = trained(texts(8, 2), model, **ONE_STEP, **options)
        found.append((weights(trainer.model), trainer.state.log_history[0]["loss"]))
    (whole, loss), (parts, loss_of_parts) = found
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)
    assert_close_weights(whole, parts, atol=1e-6, rtol=1e-5)


def assert_same_runs(make, rows, settings, *options):
    """Two runs that differ by their options end with the same weights and evaluate the same loss."""
    found = []
    for given in options:
        trainer = make(rows, model_of(**settings), eval_dataset=rows, per_device_train_batch_size=4, **given)
        trainer.train()
        found.append((weights(trainer.model), trainer.evaluate()["eval_loss"]))
    (one, loss), (other, expected) = found
    assert_same_weights(one, other)
    assert loss == expected


def test_a_loss_of_the_caller_gets_the_classes_that_the_objective_reads(make):
    given = []

    def ours(output, labels, num_items_in_batch=None):
        given.append(labels)
        return output.loss

    settings = {"pooler_type": "avg", "objective": "class_labels"}
    options = {"gradient_accumulation_steps": 2, "max_steps": 2}
    rows = {"text": sentences(24), "label": [number % 3 for number in range(24)]}
    assert_same_runs(make, rows, settings, options, options | {"compute_loss_func": ours})
    assert all(labels.shape == (4,) for labels in given[:4])


# --- columns ---


@pytest.mark.parametrize(
    "objective, options",
    [
        ("simcse", {"prompts": {"anchor": "the ", "positive": "a "}}),
        ("class_labels", {}),
        ("softmax", {}),
        ("simcse", {"view": "delete_words"}),
        ("simcse", {"train_sampling_strategy": "group_by_length"}),
    ],
)
def test_unused_columns_may_be_removed_or_not(make, objective, options):
    settings = {"objective": objective, "pooler_type": "avg_no_cls"}
    if objective == "simcse":
        settings["objective_options"] = {"mask_duplicates": True}
    rows = rows_for(objective)
    if "prompts" in options:  # texts that are equal but for their prompts
        rows = {"sent0": sentences(4) * 4, "sent1": sentences(16)}
    given = [options | {"remove_unused_columns": removes} for removes in (False, True)]
    assert_same_runs(make, rows, settings, *given)
