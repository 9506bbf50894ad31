"""Tests of SimCSETrainer: losses, resuming, several processes, and the checks before a run."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from conftest import FAMILIES, OLD_TRANSFORMERS, fast_first, tiny_config
from datasets import Dataset
from torch._dynamo.utils import counters
from trainer_helpers import (
    assert_close_weights,
    assert_same_weights,
    make,
    model_of,
    texts,
    train_and_resume,
    weights,
)
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from simcse_hf import AutoModelForCL, SimCSETrainer

# --- a step ---


@pytest.mark.parametrize("do_mlm, passes", [(False, 1), (True, 2)])
def test_a_step_needs_one_encoder_pass_and_a_second_for_masked_lm(
    tmp_path, tokenizer, monkeypatch, do_mlm, passes
):
    trainer = make(tmp_path, tokenizer, model=model_of(do_mlm=do_mlm))
    # The dropout check before the run would add encoder passes.
    monkeypatch.setattr(SimCSETrainer, "_check_dropout", lambda *_: None)
    seen = []
    trainer.model.base_model.register_forward_hook(lambda *_: seen.append(1))
    trainer.train()
    assert len(seen) == 4 * passes


@pytest.mark.parametrize("columns", [1, 4])
def test_training_updates_every_trainable_parameter_and_logs_the_parts_of_the_loss(
    tmp_path, tokenizer, columns
):
    model = model_of(do_mlm=True, mlm_weight=0.5)
    before = weights(model)
    trainer = make(tmp_path, tokenizer, texts(32, columns), model)
    trainer.train()
    # Unused positions and words have no gradient, but each embedding matrix as a whole has one.
    still = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and torch.equal(before[name], p)
    ]
    assert [name for name in still if "key.bias" not in name] == []
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 2
    for entry in entries:
        assert entry["loss"] == pytest.approx(
            entry["contrastive_loss"] + 0.5 * entry["mlm_loss"], abs=2e-3
        )


@pytest.mark.skipif(OLD_TRANSFORMERS, reason="transformers 5.2 cannot be compiled")
@pytest.mark.parametrize("columns, dropout", fast_first((3, 0.0), (1, None)))
def test_torch_compile_gives_the_same_weights_from_a_single_graph(
    tmp_path, tokenizer, columns, dropout
):
    """CUDA graphs can only be recorded from one graph without breaks."""
    trained = []
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        changes = {"max_seq_length": 12, "optim": "sgd", "learning_rate": 0.02}
        changes |= (
            {"torch_compile": True, "torch_compile_backend": "eager"}
            if compiled
            else {}
        )
        trainer = make(
            tmp_path,
            tokenizer,
            texts(32, columns),
            model_of(dropout=dropout),
            max_steps=2,
            **changes,
        )
        trainer.train()
        trained.append(weights(trainer.model))
        assert (
            counters["stats"]["unique_graphs"] == int(compiled)
            and not counters["graph_break"]
        )
    if dropout == 0.0:
        assert_close_weights(*trained, atol=1e-5, rtol=0)


@pytest.mark.skipif(OLD_TRANSFORMERS, reason="transformers 5.2 cannot be compiled")
@pytest.mark.parametrize("pooler_type", ["cls", "avg"])
def test_compiled_steps_share_one_graph_whatever_the_number_of_tokens(
    tmp_path, tokenizer, pooler_type
):
    torch._dynamo.reset()
    counters.clear()
    rows = Dataset.from_dict(
        {"sent0": ["a cat sat on the mat " * (1 + i % 5) for i in range(64)]}
    )
    changes = {
        "torch_compile": True,
        "torch_compile_backend": "eager",
        "per_device_train_batch_size": 8,
    }
    model = model_of(pooler_type=pooler_type)
    trainer = make(
        tmp_path, tokenizer, rows, model, max_steps=8, max_seq_length=24, **changes
    )
    sizes = {
        len(batch["packing"].token_index) for batch in trainer.get_train_dataloader()
    }
    trainer.train()
    assert len(sizes) > 2
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_training_avoids_the_attention_of_cudnn(tmp_path, tokenizer, monkeypatch):
    avoid = Mock(return_value=nullcontext())
    monkeypatch.setattr("simcse_hf.training.trainer.avoid_cudnn_attention", avoid)
    trainer = make(tmp_path, tokenizer, max_steps=1)
    trainer.train()
    avoid.assert_called_once_with(trainer.args.device)


# --- the order of the rows ---


@pytest.mark.parametrize(
    "changes",
    [
        {},  # a computed order
        {
            "view": "crop",
            "view_rate": 0.3,
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
        },
    ],
    ids=["a large run", "workers that stay"],
)
def test_a_run_that_is_resumed_in_its_second_epoch_ends_with_equal_weights(
    tmp_path, tokenizer, monkeypatch, changes
):
    monkeypatch.setattr("simcse_hf.training.rows.LARGEST_LISTED", 10)
    options = changes | {
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": 6,
        "logging_steps": 1,
    }
    train_and_resume(lambda: make(tmp_path, tokenizer, texts(40), **options), 6)


# --- refusals and warnings ---


def attention_without_dropout(module, query, key, value, attention_mask, **kwargs):
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, **(kwargs | {"dropout": 0.0})
    )


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
    [
        ("bert", {}),
        ("distilbert", {}),
        ("modernbert", {"bf16": True}),
        ("bert", {"torch_compile": True, "torch_compile_backend": "eager"}),
        ("bert", {"gradient_checkpointing": True}),
    ],
)
def test_an_attention_function_that_ignores_dropout_is_refused(
    tmp_path, tokenizer, drops_no_weights, model_type, changes
):
    model = model_of(model_type)
    model.set_attn_implementation(drops_no_weights)
    trainer = make(tmp_path, tokenizer, model=model, **changes)
    before = weights(model)
    noise = torch.get_rng_state()
    with pytest.raises(ValueError, match="drops_no_weights.*dropout.* = 0.1.*sdpa"):
        trainer.train()
    assert_same_weights(before, weights(model))
    assert torch.equal(noise, torch.get_rng_state())
    assert (
        not any(module._forward_hooks for module in model.modules()) and model.unpadded
    )


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("unpadded", [True, False])
def test_an_attention_function_that_applies_dropout_is_accepted(
    tmp_path, tokenizer, model_type, unpadded
):
    model = model_of(model_type)
    model.unpadded = unpadded
    make(tmp_path, tokenizer, model=model)._check_run()


@pytest.mark.parametrize(
    "columns, unpadded, rate", [(1, True, 0.0), (1, False, 0.0), (2, False, 0.1)]
)
def test_ignoring_dropout_is_accepted_if_the_run_needs_no_attention_dropout(
    tmp_path, tokenizer, drops_no_weights, columns, unpadded, rate
):
    """The dropout rate is 0, or the rows are pairs, which need no dropout."""
    config = tiny_config(attention_probs_dropout_prob=rate, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, unpadded=unpadded)
    model.set_attn_implementation(drops_no_weights)
    assert (
        make(tmp_path, tokenizer, texts(32, columns), model, max_steps=1)
        .train()
        .global_step
        == 1
    )


@pytest.mark.parametrize(
    "rows, changes, message",
    [
        (32, {"gradient_accumulation_steps": 2}, "adds no negatives"),
        (33, {}, "1 row in an epoch has no negatives"),
        (
            32,
            {},
            "Accelerate ignores it on this device: each process holds the whole model",
        ),
    ],
)
def test_warns_about_rows_without_negatives_and_of_fsdp_without_an_accelerator(
    tmp_path, tokenizer, caplog, monkeypatch, rows, changes, message
):
    make(tmp_path, tokenizer)._check_run()
    assert message not in caplog.text
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    make(tmp_path, tokenizer, texts(rows), **changes)._check_run()
    assert message in caplog.text
