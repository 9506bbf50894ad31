"""Masked-LM pretraining lowers the loss and saves a stock checkpoint that SimCSE can start from."""

import json
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, VOCABULARY, random_batch, tiny_config, with_masked_inputs
from datasets import Dataset
from process_helpers import launch
from safetensors.torch import load_file, save_file
from trainer_helpers import assert_same_weights
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    TrainingArguments,
)

from simcse_hf import AutoModelForCL
from simcse_hf.training.pretraining import (
    MaskedLMTrainer,
    pretrain,
    pretraining_arguments,
)
from simcse_hf.training.recipe import Recipe


@pytest.fixture
def sentences(tmp_path):
    """Write 120 lines whose words have a fixed order, so that a masked-LM can learn it."""
    words = VOCABULARY[5:21]
    lines = [
        " ".join(words[(i + j) % 16] for j in range(4 + i % 5)) for i in range(120)
    ]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.txt"


def parse(line):
    return pretraining_arguments(Recipe.read("mlm", line.split()).completed().given)


@pytest.fixture
def run(sentences, tmp_path):
    """`run(line, output="out")` pretrains with these arguments and returns the results."""

    def run(line, output="out"):
        common = f"--train_file {sentences} --output_dir {tmp_path / output}"
        words = f"{common} --use_cpu true --disable_tqdm true --report_to none {line}"
        return pretrain(Recipe.read("mlm", words.split()).completed().given).to_dict()

    return run


def trainer_of(model, tmp_path, tokenizer, probability):
    return MaskedLMTrainer(
        model, TrainingArguments(str(tmp_path), use_cpu=True), tokenizer, probability
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_at_the_masked_positions_is_that_of_the_stock_model(
    tokenizer, tmp_path, family
):
    model = AutoModelForMaskedLM.from_config(tiny_config(family, dropout=0.0))
    trainer = trainer_of(model, tmp_path, tokenizer, 0.3)
    batch = with_masked_inputs(random_batch(5, length=9), seed=1)
    mask, labels = batch["attention_mask"], batch["mlm_targets"]
    inputs = {"input_ids": batch["mlm_input_ids"], "attention_mask": mask}
    stock = model(**inputs, labels=labels).loss
    torch.testing.assert_close(
        trainer.compute_loss(model, {**inputs, "labels": labels}), stock
    )
    nothing = trainer.compute_loss(
        model, {**inputs, "labels": torch.full_like(labels, -100)}
    )
    assert (
        nothing.isfinite() and model(**inputs, labels=labels).loss == stock
    )  # the model is as it was


def test_a_run_lowers_the_loss_and_saves_a_stock_model_that_simcse_can_start_from(
    run, tmp_path
):
    out = tmp_path / "out"
    common = "--max_seq_length 16 --mlm_probability 0.3 --save_strategy no"
    sizes = "--vocab_size 120 --hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2"
    steps = "--max_steps 40 --learning_rate 5e-3 --warmup_steps 0 --per_device_train_batch_size 16"
    words = f"{common} --train_tokenizer {sizes} --max_position_embeddings 32 {steps}"
    results = run(words)
    assert results == json.loads((out / "results.json").read_text())
    losses = results["masked_lm_loss"]
    assert losses["after"] < losses["before"] - 0.5
    model, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert (
        type(model) is BertForMaskedLM
        and not info["missing_keys"]
        and not info["unexpected_keys"]
    )
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (
        len(tokenizer) == model.config.vocab_size <= 120
        and tokenizer.pad_token_id == model.config.pad_token_id
    )
    start = AutoModelForCL.from_pretrained(out)
    assert start.head_source == "fresh" and start.settings.pooler_type == "cls"
    with pytest.raises(ValueError, match="holds an earlier run"):
        run(words)

    more = run(f"{common} --model_name_or_path {out} --max_steps 1", "more")
    assert more["masked_lm_loss"]["before"] == pytest.approx(losses["after"], abs=1e-5)


def test_a_contrastive_model_is_continued_as_a_stock_model(
    save_checkpoint, run, tmp_path
):
    start = save_checkpoint(
        AutoModelForCL.from_config(tiny_config(), pooler_type="avg")
    )
    run(
        f"--model_name_or_path {start} --max_steps 1 --max_seq_length 16 --save_strategy no"
    )
    assert "simcse" not in json.loads((tmp_path / "out/config.json").read_text())


@pytest.mark.parametrize("batches", [1, 2])
def test_a_resumed_run_draws_the_masks_of_an_uninterrupted_one_and_a_finished_one_takes_no_step(
    batches, run, tmp_path
):
    """A WordPiece tokenizer that is trained again would have another vocabulary."""
    sizes = "--train_tokenizer true --vocab_size 60 --hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2"
    words = f"{sizes} --max_steps 4 --per_device_train_batch_size 4 --save_steps 2 --save_total_limit 5"
    words += f" --gradient_accumulation_steps {batches}"
    whole = run(words)
    vocabulary = (tmp_path / "out/tokenizer.json").read_text()
    for checkpoint in (tmp_path / "out/checkpoint-2", "true"):
        again = run(f"{words} --resume_from_checkpoint {checkpoint}")
        assert (
            whole["masked_lm_loss"]["after"] == again["masked_lm_loss"]["after"]
            and again["steps"] == 4
        )
        assert (tmp_path / "out/tokenizer.json").read_text() == vocabulary


@pytest.mark.parametrize(
    "words, option",
    [
        ("", "--train_tokenizer"),
        ("--train_tokenizer --model x", "--train_tokenizer"),
        ("--train_tokenizer --extend_tokenizer 5", "--extend_tokenizer"),
    ],
)
def test_a_new_encoder_trains_its_tokenizer_and_an_existing_one_keeps_or_extends_it(
    words, option, run
):
    with pytest.raises(ValueError, match=option):
        run(words)


def test_a_length_by_column_is_refused_before_anything_is_read(capsys):
    with pytest.raises(SystemExit, match="^2$"):
        parse("--train_tokenizer --max_seq_length anchor=32")
    assert "invalid int value: 'anchor=32'" in capsys.readouterr().err


def test_too_few_sentences_are_refused(run, sentences):
    sentences.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="texts.txt: 2 sentences are too few"):
        run("--train_tokenizer")


def test_the_script_reads_the_recipe_and_reports_a_missing_file_in_one_line(
    monkeypatch, capsys
):
    options, args = pretraining_arguments(
        Recipe.read("mlm", ["pretrain-mlm-small", "--hidden_size", "64"]).given
    )
    assert (options.hidden_size, options.vocab_size, options.train_tokenizer) == (
        64,
        16384,
        True,
    )
    assert args.learning_rate == 5e-4
    script = str(Path(__file__).parents[2] / "examples" / "pretrain_mlm.py")
    monkeypatch.setattr(
        sys, "argv", [script, "--train_file", "absent.txt", "--use_cpu"]
    )
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path(script, run_name="__main__")
    error = capsys.readouterr().err
    assert "absent.txt" in error and "Traceback" not in error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_encoder_that_is_stored_in_half_precision_is_trained_in_float32(
    dtype, run, tmp_path, save_checkpoint
):
    start = save_checkpoint(BertForMaskedLM(tiny_config()).to(dtype))
    run(
        f"--model {start} --max_steps 1 --max_seq_length 16 --save_strategy no --learning_rate 1e-6"
    )
    assert {
        x.dtype for x in load_file(tmp_path / "out/model.safetensors").values()
    } == {torch.float32}
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"


def test_a_metric_that_masked_lm_does_not_compute_is_refused(run):
    sizes = "--train_tokenizer --vocab_size 60 --hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2"
    with pytest.raises(
        ValueError, match="'accuracy' is no metric of this run: take one of 'loss'"
    ):
        run(
            f"{sizes} --metric_for_best_model accuracy --eval_strategy steps --eval_steps 1 --max_steps 1"
        )


# --- steps of several batches ---


def one_step(folder, rows, **options):
    """The weights after one step of gradient descent on rows of token ids and labels, and its loss."""
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny_config(dropout=0.0))
    values = {
        "optim": "sgd",
        "learning_rate": 1.0,
        "max_steps": 1,
        "logging_steps": 1,
        "max_grad_norm": 0.0,
    }
    values |= {
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    args = TrainingArguments(
        str(folder), train_sampling_strategy="sequential", **values | options
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    trainer = MaskedLMTrainer(
        model, args, tokenizer, 0.15, train_dataset=Dataset.from_list(rows)
    )
    trainer.train()
    return model.state_dict(), trainer.state.log_history[0]["loss"]


def rows_with_labels(tokens):
    """Rows of 9 tokens, of which the first `tokens` of each row are to be predicted."""
    ids = torch.randint(
        5, 20, (len(tokens), 9), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return [
        {"input_ids": row, "labels": row[:number] + [-100] * (9 - number)}
        for row, number in zip(ids, tokens, strict=True)
    ]


@pytest.mark.parametrize(
    "tokens", [(1, 8, 3, 6, 2, 7, 1, 5), (9, 0, 0, 0, 0, 4, 0, 0), (0,) * 8], ids=str
)
@pytest.mark.parametrize("batches", [2, 4, 8])
def test_a_step_of_several_batches_is_that_of_all_their_rows(
    tokens, batches, tmp_path, tokenizer
):
    tokenizer.save_pretrained(tmp_path)
    rows = rows_with_labels(tokens)
    whole, loss = one_step(tmp_path, rows, per_device_train_batch_size=8)
    parts = {
        "per_device_train_batch_size": 8 // batches,
        "gradient_accumulation_steps": batches,
    }
    found, found_loss = one_step(tmp_path, rows, **parts)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for name, expected in whole.items():
        torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-5)


def _own_step(folder, rows, options):
    found = one_step(folder, rows, **options)
    torch.save(found, folder / f"{os.environ['RANK']}.pt")


def test_two_processes_take_the_step_of_one(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    rows = rows_with_labels((1, 8, 3, 6, 2, 7, 1, 5))
    whole, loss = one_step(tmp_path, rows, per_device_train_batch_size=8)
    launch(
        _own_step,
        tmp_path,
        rows,
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    )
    for rank in range(2):
        found, found_loss = torch.load(tmp_path / f"{rank}.pt")
        assert found_loss == pytest.approx(loss, rel=1e-5)
        for name, expected in whole.items():
            torch.testing.assert_close(found[name], expected, atol=1e-6, rtol=1e-5)


# --- the order of the rows ---


class Seen(MaskedLMTrainer):
    """A trainer that notes the rows of each step."""

    def training_step(self, model, inputs, *args):
        lengths = inputs["attention_mask"].sum(1).tolist()
        self.seen += [
            tuple(ids[:length])
            for ids, length in zip(inputs["input_ids"].tolist(), lengths, strict=True)
        ]
        return super().training_step(model, inputs, *args)


def by_length(folder, resume=None, **options):
    """The rows that a run draws that groups 32 rows by their length, as `train mlm` does, and its weights."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    lengths = [4 + number % 9 for number in range(32)]
    rows = [
        {
            "input_ids": torch.randint(5, 20, (each,), generator=generator).tolist(),
            "length": each,
        }
        for each in lengths
    ]
    order = {
        "train_sampling_strategy": "group_by_length",
        "length_column_name": "length",
    }
    values = {
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **order,
        **options,
    }
    args = TrainingArguments(str(folder), **values)
    trainer = Seen(
        BertForMaskedLM(tiny_config()),
        args,
        AutoTokenizer.from_pretrained(folder),
        0.15,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.seen = []
    trainer.train(resume_from_checkpoint=resume)
    return trainer.seen, trainer.model.state_dict()


def test_a_run_by_length_is_resumed_in_a_later_epoch_with_the_order_of_that_epoch(
    tmp_path, tokenizer
):
    tokenizer.save_pretrained(tmp_path)
    options = {"max_steps": 7, "save_strategy": "steps", "save_steps": 3}
    _, whole = by_length(tmp_path, **options)
    _, again = by_length(tmp_path, str(tmp_path / "checkpoint-6"), **options)
    assert_same_weights(whole, again)


def _own_rows(folder):
    seen, _ = by_length(folder, max_steps=2)
    torch.save(seen, folder / f"{os.environ['RANK']}.pt")


def test_two_processes_draw_each_row_by_length_once(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    launch(_own_rows, tmp_path)
    seen = torch.load(tmp_path / "0.pt") + torch.load(tmp_path / "1.pt")
    assert len(seen) == len(set(seen)) == 32


# --- words of a domain ---


def test_words_of_the_domain_are_added_measured_and_resumed(
    tmp_path, sentences, run, save_checkpoint, tokenizer
):
    words = ["tachycardia", "the", "cat", "sat", "bradycardia", "dog"]
    sentences.write_text(
        "\n".join(
            " ".join(words[(i + j) % 6] for j in range(3 + i % 4)) for i in range(120)
        )
    )
    encoder = save_checkpoint(BertForMaskedLM(tiny_config()))
    weights = load_file(encoder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): x
        for name, x in weights.items()
    }
    save_file(
        old, encoder / "model.safetensors", {"format": "pt"}
    )  # as those of bert-base-uncased
    steps = "--max_steps 4 --save_steps 2 --max_seq_length 16 --per_device_train_batch_size 8"
    line = f"--model {encoder} --extend_tokenizer 5 {steps}"
    whole = run(line, "whole")
    assert whole["added_words"] == 2 and whole["vocabulary"] == len(tokenizer) + 2
    assert whole["words_after"] == {"pieces_per_word": 1, "unknown_share": 0}
    assert (
        whole["words_before"]["pieces_per_word"] > 1
        or whole["words_before"]["unknown_share"] > 0
    )
    shutil.copytree(tmp_path / "whole/checkpoint-2", tmp_path / "resumed/checkpoint-2")
    resumed = run(
        f"{line} --resume_from_checkpoint {tmp_path}/resumed/checkpoint-2", "resumed"
    )
    drop = {"train_seconds", "masked_lm_loss", "perplexity"}
    assert {k: v for k, v in whole.items() if k not in drop} == {
        k: v for k, v in resumed.items() if k not in drop
    }
    assert whole["masked_lm_loss"]["after"] == resumed["masked_lm_loss"]["after"]
    assert len(AutoTokenizer.from_pretrained(tmp_path / "whole")) == whole["vocabulary"]
