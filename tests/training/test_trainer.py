"""Tests of SimCSETrainer: losses, evaluation, resuming, several processes, and the checks before a run."""

import json
import logging
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from conftest import FAMILIES, VOCABULARY, fast_first, tiny_config
from datasets import Dataset
from process_helpers import start_processes
from torch._dynamo.utils import counters
from trainer_helpers import registered_attention
from transformers import (
    BertTokenizer,
    TrainerCallback,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.evaluation.sts import ScoredPairs
from simcse_hf.training.checks import check_run, check_sharding

WORDS = VOCABULARY[5:25]


def texts(rows, columns=1, seed=0):
    """Make rows of random short sentences over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: " ".join(WORDS[i] for i in torch.randint(len(WORDS), (6,), generator=generator))  # noqa: E731
    return Dataset.from_dict({f"sent{c}": [draw() for _ in range(rows)] for c in range(columns)})


def pairs(rows=12):
    data = texts(rows, 2, seed=9)
    return ScoredPairs("stsb", data["sent0"][:], data["sent1"][:], [float(i % 6) for i in range(rows)])


def arguments(tmp_path, **changes):
    values = {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    return SimCSETrainingArguments(**(values | changes))


def best_model_arguments(tmp_path, max_steps):
    """Arguments that evaluate and save every second step and load the best model at the end."""
    every_second = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    return arguments(tmp_path, max_steps=max_steps, load_best_model_at_end=True, **every_second)


def model_of(model_type="bert", dropout=None, **settings):
    """Make a model whose weights are large enough for clearly different embeddings of random sentences."""
    torch.manual_seed(1)
    return AutoModelForCL.from_config(tiny_config(model_type, dropout=dropout, initializer_range=0.2), **settings)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert not differing


# --- a step ---


@pytest.mark.parametrize("do_mlm, passes", [(False, 1), (True, 2)])
def test_a_step_needs_one_encoder_pass_and_a_second_for_masked_lm(tmp_path, tokenizer, monkeypatch, do_mlm, passes):
    model = model_of(do_mlm=do_mlm)
    trainer = SimCSETrainer(model, arguments(tmp_path), texts(32), processing_class=tokenizer)
    # The dropout check before the run would add encoder passes.
    monkeypatch.setattr("simcse_hf.training.checks.check_dropout", lambda *_: None)
    seen = []
    model.base_model.register_forward_hook(lambda *_: seen.append(1))
    trainer.train()
    assert len(seen) == 4 * passes


@pytest.mark.parametrize("columns", [1, 4])
def test_training_updates_every_trainable_parameter(tmp_path, tokenizer, columns):
    model = model_of(do_mlm=True)
    before = weights(model)
    trainer = SimCSETrainer(model, arguments(tmp_path, max_steps=3), texts(32, columns), processing_class=tokenizer)
    trainer.train()
    after = weights(model)
    # Unused positions and words have no gradient, but each embedding matrix as a whole has one.
    still = [
        name for name, p in model.named_parameters() if p.requires_grad and torch.equal(before[name], after[name])
    ]
    assert [name for name in still if "key.bias" not in name] == []


def test_the_parts_of_the_loss_are_logged(tmp_path, tokenizer):
    model = model_of(do_mlm=True, mlm_weight=0.5)
    trainer = SimCSETrainer(model, arguments(tmp_path), texts(32), processing_class=tokenizer)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 2
    for entry in entries:
        assert entry["loss"] == pytest.approx(entry["contrastive_loss"] + 0.5 * entry["mlm_loss"], abs=2e-3)


def test_a_nan_loss_stops_training_and_keeps_the_saved_checkpoints(tmp_path, tokenizer):
    class Break(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 3:
                with torch.no_grad():
                    model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))

    arguments_ = arguments(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=1, max_steps=8)
    trainer = SimCSETrainer(model_of(), arguments_, texts(64), processing_class=tokenizer, callbacks=[Break()])
    with pytest.raises(FloatingPointError, match="contrastive_loss is nan at or before step 4"):
        trainer.train()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-2"]
    saved = AutoModelForCL.from_pretrained(tmp_path / "run" / "checkpoint-2")
    assert all(torch.isfinite(tensor).all() for tensor in saved.state_dict().values())


@pytest.mark.parametrize("columns, dropout", fast_first((3, 0.0), (1, None)))
def test_torch_compile_gives_the_same_weights_from_a_single_graph(tmp_path, tokenizer, columns, dropout):
    """CUDA graphs can only be recorded from one graph without breaks."""
    trained = []
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        changes = {"pad_to_max_length": True, "max_seq_length": 12, "optim": "sgd", "learning_rate": 0.02}
        changes |= {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        arguments_ = arguments(tmp_path, max_steps=2, **changes)
        model = model_of(dropout=dropout)
        SimCSETrainer(model, arguments_, texts(32, columns), processing_class=tokenizer).train()
        trained.append(weights(model))
        assert counters["stats"]["unique_graphs"] == int(compiled) and not counters["graph_break"]
    if dropout == 0.0:
        for name in trained[0]:
            torch.testing.assert_close(trained[0][name], trained[1][name], atol=1e-5, rtol=0)


# --- evaluation on a dev set ---


def test_dev_spearman_is_logged_and_selects_the_best_model(tmp_path, tokenizer):
    arguments_ = best_model_arguments(tmp_path, max_steps=6)
    trainer = SimCSETrainer(model_of(), arguments_, texts(64), dev_set=pairs(), processing_class=tokenizer)
    trainer.train()
    scores = {e["step"]: e["eval_stsb_spearman"] for e in trainer.state.log_history if "eval_stsb_spearman" in e}
    assert list(scores) == [2, 4, 6]
    best = max(scores, key=scores.get)
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    assert trainer.evaluate()["eval_stsb_spearman"] == pytest.approx(scores[best], abs=1e-4)


def test_the_last_step_is_evaluated_and_logs_eval_loss_and_dev_spearman(tmp_path, tokenizer):
    arguments_ = arguments(tmp_path, max_steps=5, eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=4)
    trainer = SimCSETrainer(
        model_of(), arguments_, texts(64), eval_dataset=texts(8, 2), dev_set=pairs(), processing_class=tokenizer
    )
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "eval_stsb_spearman" in entry]
    assert [entry["step"] for entry in entries] == [4, 5]
    assert all("eval_loss" in entry for entry in entries)


# --- resuming ---


class _Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("model_type", ["distilbert"])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_run(tmp_path, tokenizer, model_type):
    def run(name, callbacks=(), resume=None):
        arguments_ = arguments(
            tmp_path, output_dir=str(tmp_path / name), max_steps=9, save_strategy="steps", save_steps=4, seed=3
        )
        trainer = SimCSETrainer(
            model_of(model_type, do_mlm=True),
            arguments_,
            texts(40),
            processing_class=tokenizer,
            callbacks=[*callbacks],
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("killed", [_Kill()])
    resumed = run("killed", resume=str(tmp_path / "killed" / "checkpoint-4"))
    assert resumed.state.global_step == 9
    assert_same_weights(weights(whole.model), weights(resumed.model))


def test_the_best_model_of_an_encoder_without_pooler_keeps_its_head(tmp_path, tokenizer):
    arguments_ = best_model_arguments(tmp_path, max_steps=6)
    trainer = SimCSETrainer(model_of("distilbert"), arguments_, texts(64), dev_set=pairs(), processing_class=tokenizer)
    trainer.train()
    saved = AutoModelForCL.from_pretrained(trainer.state.best_model_checkpoint)
    assert saved.head_source == "kept"
    assert_same_weights(weights(saved), weights(trainer.model))


# --- several processes ---


def _train_in_process(rank, processes, port, directory, batch):
    import os

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=40)
    arguments_ = arguments(
        directory,
        output_dir=str(directory / f"of-{processes}"),
        per_device_train_batch_size=batch,
        eval_strategy="steps",
        eval_steps=4,
        ddp_backend="gloo",
        max_grad_norm=0.5,
    )
    tasks = [f"classification={directory / 'labelled.csv'}"]
    trainer = SimCSETrainer(
        model_of(dropout=0.0), arguments_, texts(64, 3), dev_set=pairs(), processing_class=tokenizer, dev_tasks=tasks
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()
    torch.distributed.destroy_process_group()


def test_two_processes_give_the_weights_and_scores_of_one_with_the_whole_batch(tmp_path):
    rows = [f"{text},{i % 3}" for i, text in enumerate(dict.fromkeys(texts(40, seed=9)["sent0"][:]))]
    (tmp_path / "labelled.csv").write_text("\n".join(["text,label", *rows]))
    for processes, batch in ((1, 8), (2, 4)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        start_processes(_train_in_process, (processes, port, tmp_path, batch), processes)
    one, two = (AutoModelForCL.from_pretrained(tmp_path / f"of-{n}").state_dict() for n in (1, 2))
    for name in one:
        if "key.bias" not in name:  # its gradient is zero up to rounding, which Adam amplifies
            torch.testing.assert_close(one[name], two[name], atol=2e-5, rtol=0)
    histories = [json.loads((tmp_path / f"of-{n}" / "trainer_state.json").read_text())["log_history"] for n in (1, 2)]
    for metric in ("eval_stsb_spearman", "eval_classification_accuracy", "eval_classification_knn_accuracy"):
        dev = [[e[metric] for e in history if metric in e] for history in histories]
        assert dev[0] and dev[0] == pytest.approx(dev[1], abs=1e-6)
    for part in ("loss", "contrastive_loss", "grad_norm"):
        logged = [[e[part] for e in history if part in e] for history in histories]
        assert logged[0] == pytest.approx(logged[1], rel=1e-3)


# --- refusals and warnings ---


def _attention_without_dropout(module, query, key, value, attention_mask, **kwargs):
    return sdpa_attention_forward(module, query, key, value, attention_mask, **(kwargs | {"dropout": 0.0}))


@pytest.fixture
def drops_no_weights():
    """Register an attention function that, like some kernels, accepts a dropout rate but ignores it."""
    with registered_attention("drops_no_weights", _attention_without_dropout) as name:
        yield name


@pytest.mark.parametrize("model_type, changes", [("bert", {}), ("distilbert", {}), ("modernbert", {"bf16": True})])
def test_an_attention_function_that_ignores_dropout_is_refused(
    tmp_path, tokenizer, drops_no_weights, model_type, changes
):
    model = model_of(model_type)
    model.set_attn_implementation(drops_no_weights)
    trainer = SimCSETrainer(model, arguments(tmp_path, **changes), texts(32), processing_class=tokenizer)
    before = weights(model), torch.get_rng_state()
    with pytest.raises(ValueError, match="drops_no_weights drops no attention weights.*dropout.* = 0.1.*sdpa"):
        trainer.train()
    assert_same_weights(before[0], weights(model))
    assert torch.equal(before[1], torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "changes", [{"torch_compile": True, "torch_compile_backend": "eager"}, {"gradient_checkpointing": True}]
)
def test_the_dropout_check_uses_padding_if_the_model_does(tmp_path, tokenizer, drops_no_weights, changes):
    model = model_of()
    model.set_attn_implementation(drops_no_weights)
    trainer = SimCSETrainer(model, arguments(tmp_path, **changes), texts(32), processing_class=tokenizer)
    with pytest.raises(ValueError, match="drops no attention weights"):
        trainer.train()
    assert model.unpadded


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("unpadded", [True, False])
def test_an_attention_function_that_applies_dropout_is_accepted(tmp_path, tokenizer, model_type, unpadded):
    model = model_of(model_type)
    model.unpadded = unpadded
    check_run(SimCSETrainer(model, arguments(tmp_path), texts(32), processing_class=tokenizer))


@pytest.mark.parametrize("columns, unpadded, rate", [(1, True, 0.0), (1, False, 0.0), (2, False, 0.1)])
def test_ignoring_dropout_is_accepted_if_the_run_needs_no_attention_dropout(
    tmp_path, tokenizer, drops_no_weights, columns, unpadded, rate
):
    """The dropout rate is 0, or the rows are pairs, which need no dropout."""
    torch.manual_seed(1)
    config = tiny_config(attention_probs_dropout_prob=rate, initializer_range=0.2)
    model = AutoModelForCL.from_config(config, unpadded=unpadded)
    model.set_attn_implementation(drops_no_weights)
    trainer = SimCSETrainer(model, arguments(tmp_path, max_steps=1), texts(32, columns), processing_class=tokenizer)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize(
    "columns, changes, message",
    [
        (1, {"per_device_train_batch_size": 1}, "a batch of one text has no negatives"),
        (2, {"view": "fixed_mask"}, "view fixed_mask is for single sentences"),
        (1, {"per_device_train_batch_size": 64, "dataloader_drop_last": True}, "32 rows, fewer than one batch of 64"),
        (0, {}, "train_dataset is empty"),
        (1, {"max_seq_length": 64}, r"max_seq_length is 64.*\(bert\) has 40 positions"),
    ],
)
def test_runs_that_cannot_train_are_refused(tmp_path, tokenizer, columns, changes, message):
    rows = texts(32, columns) if columns else Dataset.from_dict({"input_ids": []})
    with pytest.raises(ValueError, match=message):
        SimCSETrainer(model_of(), arguments(tmp_path, **changes), rows, processing_class=tokenizer).train()


@pytest.mark.parametrize(
    "rows, changes, message",
    [
        (32, {"gradient_accumulation_steps": 2}, "adds no negatives"),
        (33, {}, "1 row in an epoch has no negatives"),
    ],
)
def test_warns_about_rows_without_negatives(tmp_path, tokenizer, caplog, rows, changes, message):
    trainer = SimCSETrainer(model_of(), arguments(tmp_path, **changes), texts(rows), processing_class=tokenizer)
    with caplog.at_level(logging.WARNING, "simcse_hf"):
        trainer.train()
    assert message in caplog.text


def test_masked_lm_with_sharded_weights_is_refused(tmp_path, tokenizer, monkeypatch):
    trainer = SimCSETrainer(model_of(do_mlm=True), arguments(tmp_path), texts(32), processing_class=tokenizer)
    trainer.is_fsdp_enabled = True
    for version, refused in ((1, False), (2, True)):
        plugin = SimpleNamespace(fsdp_version=version)
        monkeypatch.setattr(trainer.accelerator.state, "fsdp_plugin", plugin, raising=False)
        with pytest.raises(ValueError, match="do_mlm does not work with FSDP2") if refused else nullcontext():
            check_sharding(trainer)


def test_warns_when_accelerate_ignores_fsdp(tmp_path, tokenizer, caplog, monkeypatch):
    trainer = SimCSETrainer(model_of(), arguments(tmp_path, max_steps=1), texts(32), processing_class=tokenizer)
    with caplog.at_level(logging.WARNING, "simcse_hf"):
        trainer.train()
        assert "FSDP" not in caplog.text
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        trainer.train()
    assert "Accelerate ignores it on this device: each process holds the whole model" in caplog.text


def test_fixed_mask_can_be_trained_and_is_saved_in_the_config(tmp_path, tokenizer):
    trainer = SimCSETrainer(
        model_of(), arguments(tmp_path, view="fixed_mask", max_seq_length=16), texts(32), processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model()
    section = json.loads((tmp_path / "run" / "config.json").read_text())["simcse"]["training"]
    assert section["fixed_mask"] is True and section["max_seq_length"] == 16
