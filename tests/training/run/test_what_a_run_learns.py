"""What is given beside the training rows changes what it says, and nothing that a run learns."""

import pytest
import torch
from conftest import tiny_config
from datasets import Dataset
from trainer_helpers import (
    EVALUATES,
    SETTINGS,
    assert_close_weights,
    assert_same_weights,
    make,
    model_of,
    pairs,
    rows_for,
    sentences,
    texts,
    train_and_resume,
    trainer_of,
    weights,
)
from transformers import BertForMaskedLM

ROWS = {"eval_dataset": texts(8, 2, seed=7)}
SETS = {"eval_dataset": {"news": texts(8, 2, seed=7), "tweets": texts(8, 2, seed=8)}}


def trained(folder, tokenizer, **options):
    trainer = make(folder, tokenizer, **options)
    trainer.train()
    return weights(trainer.model)


# --- evaluations ---


@pytest.mark.parametrize(
    "given",
    [SETS, {"dev_set": pairs()}, ROWS | {"dev_set": pairs(), "eval_on_start": True}],
    ids=["sets", "dev set", "both"],
)
def test_what_is_evaluated_does_not_change_the_weights(tmp_path, tokenizer, given):
    plain = trained(tmp_path / "plain", tokenizer)
    assert_same_weights(
        plain,
        trained(tmp_path / "evaluates", tokenizer, **EVALUATES | {"eval_steps": 1} | given),
    )


@pytest.mark.parametrize("objective", SETTINGS)
def test_an_evaluation_changes_neither_the_weights_nor_the_noise(objective, tmp_path, tokenizer, save_checkpoint):
    start = save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)))
    trainer = trainer_of(start, tmp_path, tokenizer, objective)
    before, noise = weights(trainer.model), torch.get_rng_state()
    trainer.evaluate(rows_for(objective, tokenizer))
    trainer.predict(rows_for(objective, tokenizer))
    assert torch.equal(noise, torch.get_rng_state())
    assert_same_weights(before, weights(trainer.model))


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
def test_a_run_is_resumed_in_a_later_epoch_with_the_order_of_that_epoch(tmp_path, tokenizer, monkeypatch, order):
    if order == "a large run":
        monkeypatch.setattr("simcse_hf.training.rows.LARGEST_LISTED", 10)
    rows = Dataset.from_dict({"sent0": [sentences(1, place, words=3 + place % 6)[0] for place in range(32)]})
    options = {"max_steps": 7, "save_strategy": "steps", "save_steps": 6, **ORDERS[order]}
    train_and_resume(lambda: make(tmp_path, tokenizer, rows, **options), 6)  # an epoch has four steps


# --- a loss of the caller ---


def apart(output, labels, num_items_in_batch=None):
    """The mean distance of an anchor and its positive: of two batches, that of all their rows."""
    anchors, positives = output.sentence_embeddings.unbind(1)
    return (anchors - positives).square().sum(1).mean()


OF_PAIRS = {
    "compute_loss_func": apart,
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 0.0,
}
IN_ORDER = {"train_sampling_strategy": "sequential", "max_steps": 1, "logging_steps": 1}


def test_a_step_of_several_batches_with_a_loss_of_the_caller_is_one_of_all_rows(tmp_path, tokenizer):
    found = []
    for batches in (1, 4):
        options = {"per_device_train_batch_size": 8 // batches, "gradient_accumulation_steps": batches}
        model = model_of(pooler_type="avg", dropout=0.0)
        trainer = make(tmp_path, tokenizer, texts(8, 2), model, **OF_PAIRS, **IN_ORDER, **options)
        trainer.train()
        found.append((weights(trainer.model), trainer.state.log_history[0]["loss"]))
    (whole, loss), (parts, loss_of_parts) = found
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)
    assert_close_weights(whole, parts, atol=1e-6, rtol=1e-5)


def test_a_loss_of_the_caller_gets_the_classes_that_the_objective_reads(tmp_path, tokenizer):
    given = []

    def ours(output, labels, num_items_in_batch=None):
        given.append(labels)
        return output.loss

    labelled = Dataset.from_dict({"text": sentences(24), "label": [number % 3 for number in range(24)]})
    runs = []
    for options in ({}, {"compute_loss_func": ours}):
        model = model_of(pooler_type="avg", objective="class_labels")
        options |= {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "max_steps": 2}
        trainer = make(tmp_path, tokenizer, labelled, model, eval_dataset=labelled, **options)
        trainer.train()
        runs.append((weights(model), trainer.evaluate()["eval_loss"]))
    assert_same_weights(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert all(labels.shape == (4,) for labels in given[:4])


# --- columns ---


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        ("simcse", {"prompts": {"anchor": "the ", "positive": "a "}}),
        ("class_labels", {}),
        ("softmax", {}),
        ("simcse", {"view": "delete_words"}),
        ("simcse", {"train_sampling_strategy": "group_by_length"}),
    ],
)
def test_unused_columns_may_be_removed_or_not(tmp_path, tokenizer, objective, options):
    runs = []
    for removes in (False, True):
        settings = {"objective_options": {"mask_duplicates": True}} if objective == "simcse" else {}
        model = model_of(objective=objective, pooler_type="avg_no_cls", **settings)
        rows = rows_for(objective, tokenizer)
        if "prompts" in options:  # texts that are equal but for their prompts
            rows = Dataset.from_dict({"sent0": sentences(4) * 4, "sent1": sentences(16)})
        given = options | {"per_device_train_batch_size": 4, "remove_unused_columns": removes}
        trainer = make(tmp_path, tokenizer, rows, model, eval_dataset=rows, **given)
        trainer.train()
        runs.append((weights(model), trainer.evaluate()["eval_loss"]))
    assert_same_weights(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
