"""Tests of SimCSETrainer: losses, resuming, several processes, and the checks before a run."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import FAMILIES, OLD_TRANSFORMERS, fast_first, tiny_config
from datasets import Dataset
from torch._dynamo.utils import counters
from trainer_helpers import (
    assert_close_weights,
    assert_same_weights,
    logged,
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
def test_a_step_needs_one_encoder_pass_and_a_second_for_masked_lm(tmp_path, tokenizer, monkeypatch, do_mlm, passes):
    trainer = make(tmp_path, tokenizer, model=model_of(do_mlm=do_mlm))
    # The dropout check before the run would add encoder passes.
    monkeypatch.setattr(SimCSETrainer, "_check_dropout", Mock())
    seen = Mock(return_value=None)
    trainer.model.base_model.register_forward_hook(seen)
    trainer.train()
    assert seen.call_count == 4 * passes


MLM_WEIGHT = 0.5
COLUMNS = pytest.mark.parametrize("columns", [1, 4], scope="module")


@pytest.fixture(scope="module")
def trained(columns, tokenizer, tmp_path_factory):
    """A trainer with a masked-LM loss after its run, and the weights before."""
    model = model_of(do_mlm=True, mlm_weight=MLM_WEIGHT)
    before = weights(model)
    folder = tmp_path_factory.mktemp("trained")
    trainer = make(folder, tokenizer, texts(32, columns), model)
    trainer.train()
    return trainer, before


@COLUMNS
def test_training_updates_every_trainable_parameter(trained):
    """Unused positions and words have no gradient, but each embedding matrix as a whole has one."""
    trainer, before = trained
    unchanged = []
    for name, parameter in trainer.model.named_parameters():
        has_gradient = parameter.requires_grad and "key.bias" not in name
        if has_gradient and torch.equal(before[name], parameter):
            unchanged.append(name)
    assert unchanged == []


@COLUMNS
def test_training_logs_every_second_step(trained):
    trainer, _ = trained
    assert len(logged(trainer, "loss")) == 2


@COLUMNS
def test_the_parts_of_the_loss_are_logged(trained):
    trainer, _ = trained
    parts = zip(
        logged(trainer, "loss"),
        logged(trainer, "contrastive_loss"),
        logged(trainer, "mlm_loss"),
        strict=True,
    )
    for loss, contrastive, masked_lm in parts:
        assert loss == pytest.approx(contrastive + MLM_WEIGHT * masked_lm, abs=2e-3)


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


@pytest.fixture(scope="module")
def two_steps(columns, dropout, tokenizer, tmp_path_factory):
    """`two_steps(**changes)` trains two steps, and returns the weights, the graphs and the breaks."""

    def run(**changes):
        trainer = make(
            tmp_path_factory.mktemp("steps"),
            tokenizer,
            texts(32, columns),
            model_of(dropout=dropout),
            max_steps=2,
            max_seq_length=12,
            optim="sgd",
            learning_rate=0.02,
            **changes,
        )
        return train_and_count_graphs(trainer)

    return run


@pytest.fixture(scope="module")
def compiled(two_steps):
    return two_steps(**COMPILED)


@pytest.fixture(scope="module")
def plain(two_steps):
    return two_steps()


ROWS_TO_COMPILE = pytest.mark.parametrize("columns, dropout", fast_first((3, 0.0), (1, None)), scope="module")


@CAN_BE_COMPILED
@ROWS_TO_COMPILE
def test_torch_compile_makes_a_single_graph_without_breaks(compiled):
    """CUDA graphs can only be recorded from such a graph."""
    _, graphs, breaks = compiled
    assert (graphs, breaks) == (1, 0)


@CAN_BE_COMPILED
@ROWS_TO_COMPILE
def test_without_torch_compile_no_graph_is_made(plain):
    _, graphs, breaks = plain
    assert (graphs, breaks) == (0, 0)


@CAN_BE_COMPILED
@pytest.mark.parametrize("columns, dropout", [(3, 0.0)], scope="module")
def test_torch_compile_gives_the_same_weights(compiled, plain):
    assert_close_weights(compiled[0], plain[0], atol=1e-5, rtol=0)


@CAN_BE_COMPILED
@pytest.mark.parametrize("pooler_type", ["cls", "avg"])
def test_compiled_steps_share_one_graph_whatever_the_number_of_tokens(tmp_path, tokenizer, pooler_type):
    words = ["a cat sat on the mat " * (1 + number % 5) for number in range(64)]
    trainer = make(
        tmp_path,
        tokenizer,
        Dataset.from_dict({"sent0": words}),
        model_of(pooler_type=pooler_type),
        max_steps=8,
        max_seq_length=24,
        per_device_train_batch_size=8,
        **COMPILED,
    )
    batches = trainer.get_train_dataloader()
    assert len({len(batch["packing"].token_index) for batch in batches}) > 2
    _, graphs, breaks = train_and_count_graphs(trainer)
    assert (graphs, breaks) == (1, 0)


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
        {},
        {
            "view": "crop",
            "view_rate": 0.3,
            "dataloader_num_workers": 1,
            "dataloader_persistent_workers": True,
        },
    ],
    ids=["a large run", "workers that stay"],
)
def test_a_run_that_is_resumed_in_its_second_epoch_ends_with_equal_weights(tmp_path, tokenizer, monkeypatch, changes):
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


@pytest.fixture
def refused(tmp_path, tokenizer, drops_no_weights, model_type, changes):
    """A model whose run was refused, and its weights and the random state before."""
    model = model_of(model_type)
    model.set_attn_implementation(drops_no_weights)
    trainer = make(tmp_path, tokenizer, model=model, **changes)
    found = SimpleNamespace(model=model, before=weights(model))
    found.noise = torch.get_rng_state()
    with pytest.raises(ValueError, match="drops_no_weights.*dropout.* = 0.1.*sdpa"):
        trainer.train()
    found.noise_after = torch.get_rng_state()
    return found


EVERY_WAY_TO_TRAIN = pytest.mark.parametrize(
    "model_type, changes",
    [
        ("bert", {}),
        ("distilbert", {}),
        ("modernbert", {"bf16": True}),
        ("bert", COMPILED),
        ("bert", {"gradient_checkpointing": True}),
    ],
)


@EVERY_WAY_TO_TRAIN
def test_an_attention_function_that_ignores_dropout_is_refused(refused):
    assert_same_weights(refused.before, weights(refused.model))


@EVERY_WAY_TO_TRAIN
def test_a_refused_run_leaves_the_random_state_alone(refused):
    assert torch.equal(refused.noise, refused.noise_after)


@EVERY_WAY_TO_TRAIN
def test_a_refused_run_leaves_no_hooks(refused):
    assert not any(module._forward_hooks for module in refused.model.modules())


@EVERY_WAY_TO_TRAIN
def test_a_refused_run_leaves_the_removal_of_padding_on(refused):
    assert refused.model.unpadded


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("unpadded", [True, False])
def test_an_attention_function_that_applies_dropout_is_accepted(tmp_path, tokenizer, model_type, unpadded):
    model = model_of(model_type)
    model.unpadded = unpadded
    make(tmp_path, tokenizer, model=model).check_run()


@pytest.mark.parametrize(
    "columns, unpadded, rate",
    [
        pytest.param(1, True, 0.0, id="a rate of 0"),
        pytest.param(1, False, 0.0, id="a rate of 0 with padding"),
        pytest.param(2, False, 0.1, id="pairs"),
    ],
)
def test_ignoring_dropout_is_accepted_if_the_run_needs_no_attention_dropout(
    tmp_path, tokenizer, drops_no_weights, columns, unpadded, rate
):
    config = tiny_config(attention_probs_dropout_prob=rate, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, unpadded=unpadded)
    model.set_attn_implementation(drops_no_weights)
    trainer = make(tmp_path, tokenizer, texts(32, columns), model, max_steps=1)
    assert trainer.train().global_step == 1


NO_NEGATIVES = "adds no negatives"
A_ROW_WITHOUT_NEGATIVES = "1 row in an epoch has no negatives"


def test_warns_that_gradient_accumulation_adds_no_negatives(tmp_path, tokenizer, caplog):
    make(tmp_path, tokenizer, gradient_accumulation_steps=2).check_run()
    assert NO_NEGATIVES in caplog.text


def test_warns_about_a_row_that_is_alone_in_its_batch(tmp_path, tokenizer, caplog):
    make(tmp_path, tokenizer, texts(33)).check_run()
    assert A_ROW_WITHOUT_NEGATIVES in caplog.text


@pytest.mark.parametrize("words", [NO_NEGATIVES, A_ROW_WITHOUT_NEGATIVES])
def test_a_usual_run_is_not_warned_of(tmp_path, tokenizer, caplog, words):
    make(tmp_path, tokenizer).check_run()
    assert words not in caplog.text
