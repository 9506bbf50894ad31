"""Tests of SimCSETrainer: losses, resuming, several processes, and the checks before a run."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from conftest import FAMILIES, OLD_TRANSFORMERS, fast_first, read_json, tiny_config, tiny_tokenizer
from torch._dynamo.utils import counters
from trainer_helpers import (
    assert_close_weights,
    assert_same_weights,
    logged,
    model_of,
    refuses,
    sentences,
    texts,
    weights,
)
from trainer_helpers import make as make_trainer
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from simcse_hf import AutoModelForCL

# --- a step ---


@pytest.mark.parametrize("do_mlm, passes", [(False, 1), (True, 2)])
def test_a_step_needs_one_encoder_pass_and_a_second_for_masked_lm(make, do_mlm, passes):
    # Pairs, because the check of dropout would add encoder passes.
    trainer = make(texts(32, 2), model_of(do_mlm=do_mlm))
    seen = Mock(return_value=None)
    trainer.model.base_model.register_forward_hook(seen)
    trainer.train()
    assert seen.call_count == 4 * passes


@pytest.mark.parametrize("columns", [1, 4])
def test_training_updates_every_trainable_parameter_and_logs_the_parts_of_the_loss(trained, columns):
    """Unused positions and words have no gradient, but each embedding matrix as a whole has one."""
    model = model_of(do_mlm=True, mlm_weight=0.5)
    before = weights(model)
    trainer = trained(texts(32, columns), model)
    unchanged = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "key.bias" not in name and torch.equal(before[name], parameter):
            unchanged.append(name)
    assert unchanged == []
    losses, contrastive, masked = (logged(trainer, name) for name in ("loss", "contrastive_loss", "mlm_loss"))
    sums = [one + 0.5 * other for one, other in zip(contrastive, masked, strict=True)]
    assert len(losses) == 2 and losses == pytest.approx(sums, abs=2e-3)


# --- compiled steps ---

CAN_BE_COMPILED = pytest.mark.skipif(OLD_TRANSFORMERS, reason="transformers 5.2 cannot be compiled")
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}


def train_and_count_graphs(trainer):
    """Train, and return the weights, and how many graphs and breaks the compiler made."""
    torch._dynamo.reset()
    counters.clear()
    trainer.train()
    breaks = sum(counters["graph_break"].values())
    return weights(trainer.model), counters["stats"]["unique_graphs"], breaks


@CAN_BE_COMPILED
@pytest.mark.parametrize("columns, dropout", fast_first((3, 0.0), (1, None)))
def test_torch_compile_makes_one_graph_for_any_number_of_tokens_without_breaks_and_gives_the_same_weights(
    make, columns, dropout
):
    """CUDA graphs can only be recorded from such a graph."""
    rows = {}
    for column in range(columns):
        rows[f"sent{column}"] = [sentences(1, 32 * column + row, words=1 + row % 8)[0] for row in range(32)]
    found = []
    for changes in ({}, COMPILED):
        options = {"max_seq_length": 12, "optim": "sgd", "learning_rate": 0.02, **changes}
        trainer = make(rows, model_of(dropout=dropout, pooler_type="avg"), **options)
        batches = trainer.get_train_dataloader()
        assert len({len(batch["packing"].token_index) for batch in batches}) > 2
        found.append(train_and_count_graphs(trainer))
    (plain, *none), (compiled, *one) = found
    assert (none, one) == ([0, 0], [1, 0])
    if dropout == 0:  # compiled code draws other masks
        assert_close_weights(compiled, plain, atol=1e-5, rtol=0)


def test_training_avoids_the_attention_of_cudnn(trained, monkeypatch):
    avoid = Mock(return_value=nullcontext())
    monkeypatch.setattr("simcse_hf.training.trainer.avoid_cudnn_attention", avoid)
    trainer = trained(max_steps=1)
    avoid.assert_called_once_with(trainer.args.device)


# --- refusals and warnings ---


def attention_without_dropout(module, query, key, value, attention_mask, **kwargs):
    return sdpa_attention_forward(module, query, key, value, attention_mask, **(kwargs | {"dropout": 0.0}))


@pytest.fixture
def drops_no_weights():
    """Register an attention function that, like some kernels, accepts a dropout rate but ignores it."""
    name = "drops_no_weights"
    AttentionInterface.register(name, attention_without_dropout)
    AttentionMaskInterface.register(name, sdpa_mask)
    yield name
    for interface in (AttentionInterface, AttentionMaskInterface):
        del interface._global_mapping[name]


@pytest.mark.parametrize(
    "model_type, changes",
    [("bert", {}), ("modernbert", {"bf16": True}), ("bert", COMPILED), ("bert", {"gradient_checkpointing": True})],
)
def test_an_attention_function_that_ignores_dropout_is_refused_and_nothing_has_changed(
    make, drops_no_weights, model_type, changes
):
    model = model_of(model_type)
    model.set_attn_implementation(drops_no_weights)
    trainer = make(model=model, **changes)
    before, noise = weights(model), torch.get_rng_state()
    with refuses("drops_no_weights dropout = 0.1 sdpa"):
        trainer.train()
    assert torch.equal(noise, torch.get_rng_state())
    assert_same_weights(before, weights(model))
    assert not any(module._forward_hooks for module in model.modules())
    assert model.unpadded


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("unpadded", [True, False])
def test_an_attention_function_that_applies_dropout_is_accepted(make, model_type, unpadded):
    model = model_of(model_type)
    model.unpadded = unpadded
    make(model=model).check_run()


@pytest.mark.parametrize(
    "columns, unpadded, rate", [pytest.param(1, True, 0.0, id="a rate of 0"), pytest.param(2, False, 0.1, id="pairs")]
)
def test_ignoring_dropout_is_accepted_if_the_run_needs_no_attention_dropout(
    make, drops_no_weights, columns, unpadded, rate
):
    config = tiny_config(attention_probs_dropout_prob=rate, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, unpadded=unpadded)
    model.set_attn_implementation(drops_no_weights)
    trainer = make(texts(32, columns), model, max_steps=1)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize(
    "settings, rows, changes, said",
    [
        ({}, 32, {"gradient_accumulation_steps": 2}, "adds no negatives"),
        ({}, 33, {}, "1 row in an epoch has no negatives"),
        ({"mlm_weight": 0.5}, 32, {}, "mlm_weight and mlm_probability have no effect"),
        ({}, 32, {"view_both": True}, "view_both has no effect"),
        ({}, 32, {"dataset_shares": "round_robin"}, "dataset_shares has no effect"),
        ({"hard_negative_weight": 1.0}, 32, {}, "hard_negative_weight has no effect"),
    ],
)
def test_what_changes_nothing_or_weakens_a_run_is_said(make, caplog, settings, rows, changes, said):
    make().check_run()
    assert not caplog.text
    make(texts(rows), model_of(**settings), **changes).check_run()
    assert said in caplog.text


def test_a_saved_model_cuts_texts_where_the_tokenizer_of_its_trainer_does(tmp_path):
    """Also in sentence-transformers, which reads the length from a file of its own."""
    trainer = make_trainer(tmp_path, tiny_tokenizer(12), texts(8))
    trainer.save_model()
    assert read_json(tmp_path / "run/sentence_bert_config.json")["max_seq_length"] == 12
