"""Masked-LM pretraining lowers the loss and saves a stock checkpoint that SimCSE can start from."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, VOCABULARY, random_batch, save_encoder, tiny_config, with_masked_inputs
from datasets import Dataset
from evaluation_helpers import write
from process_helpers import launch
from safetensors.torch import load_file, save_file
from trainer_helpers import assert_same_weights, refuses
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

from simcse_hf import AutoModelForCL
from simcse_hf.apps.pretraining import (
    MaskedLMTrainer,
    PretrainingArguments,
    make_encoder,
    pretrain,
    pretraining_arguments,
)
from simcse_hf.training.parser import WordParser

QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}


def run_on(sentences, output, line):
    """Pretrain with these arguments, and return the results."""
    files = f"--train_file {sentences} --output_dir {output}"
    words = f"{files} --use_cpu true --disable_tqdm true --report_to none {line}"
    return pretrain(**WordParser([PretrainingArguments]).read(words.split())).to_dict()


@pytest.fixture
def sentences(tmp_path):
    """A file of 120 lines whose words have a fixed order, so that a masked-LM can learn it."""
    words = VOCABULARY[5:21]
    lines = []
    for first in range(120):
        places = range(first, first + 4 + first % 5)
        lines.append(" ".join(words[place % 16] for place in places))
    return write(tmp_path / "texts.txt", lines)


@pytest.fixture
def run(sentences, tmp_path):
    """`run(line)` pretrains with these arguments in the folder `out` of the test, and returns the results."""
    return lambda line: run_on(sentences, tmp_path / "out", line)


# --- the loss at the masked positions ---


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_at_the_masked_positions_is_that_of_the_stock_model(family, tmp_path, tokenizer):
    stock = AutoModelForMaskedLM.from_config(tiny_config(family, dropout=0.0))
    args = PretrainingArguments(str(tmp_path), use_cpu=True, mlm_probability=0.3)
    trainer = MaskedLMTrainer(stock, args, tokenizer)
    batch = with_masked_inputs(random_batch(5, length=9), seed=1)
    inputs = {"input_ids": batch["mlm_input_ids"], "attention_mask": batch["attention_mask"]}
    masked = inputs | {"labels": batch["mlm_targets"]}
    torch.testing.assert_close(trainer.compute_loss(stock, dict(masked)), stock(**masked).loss)
    nothing = inputs | {"labels": torch.full_like(batch["mlm_targets"], -100)}
    assert trainer.compute_loss(stock, nothing).isfinite()


# --- a new encoder ---

SIZES = "--train_tokenizer --vocab_size 120 --hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2"
MASKS = "--max_seq_length 16 --mlm_probability 0.3 --save_strategy no"
STEPS = "--max_steps 40 --learning_rate 5e-3 --warmup_steps 0 --per_device_train_batch_size 16 --eval_strategy epoch"
WORDS = f"{MASKS} {SIZES} --max_position_embeddings 32 {STEPS}"


def test_a_run_lowers_the_loss_and_saves_a_stock_model_that_simcse_and_another_run_can_start_from(
    run, sentences, tmp_path
):
    results, folder = run(WORDS), tmp_path / "out"
    assert results["masked_lm_loss"]["after"] < results["masked_lm_loss"]["before"] - 0.5
    assert json.loads((folder / "results.json").read_text()) == results
    model, loading = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert type(model) is BertForMaskedLM and not loading["missing_keys"] and not loading["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size <= 120
    assert tokenizer.pad_token_id == model.config.pad_token_id
    start = AutoModelForCL.from_pretrained(folder)
    assert start.head_source == "fresh" and start.settings.pooler_type == "cls"
    with refuses("holds an earlier run"):
        run(WORDS)
    more = run_on(sentences, tmp_path / "more", f"{MASKS} --model_name_or_path {folder} --max_steps 1")
    assert more["masked_lm_loss"]["before"] == pytest.approx(results["masked_lm_loss"]["after"], abs=1e-5)


def test_a_new_encoder_has_the_sizes_that_the_help_names(tmp_path):
    args = PretrainingArguments(str(tmp_path), train_tokenizer=True, **QUIET)
    config = make_encoder(args, VOCABULARY)[0].config
    assert config.hidden_size == 256 and config.num_hidden_layers == 4 and config.num_attention_heads == 4
    assert config.max_position_embeddings == 512 and args.max_seq_length == 128


# --- an existing encoder ---


def test_a_contrastive_model_in_half_precision_is_continued_as_a_stock_model_in_float32(
    save_checkpoint, run, tmp_path
):
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg").to(torch.bfloat16))
    run(f"--model_name_or_path {start} --max_steps 1 --max_seq_length 16 --save_strategy no")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "simcse" not in config and config["dtype"] == "float32"
    weights = load_file(tmp_path / "out/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


# --- a resumed run ---

SMALL = "--train_tokenizer true --vocab_size 60 --hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2"
WITH_CHECKPOINTS = f"{SMALL} --max_steps 4 --per_device_train_batch_size 4 --save_steps 2 --save_total_limit 5"


@pytest.mark.parametrize("batches, checkpoint", [(2, "out/checkpoint-2"), (1, "true")])
def test_a_resumed_run_has_the_masks_and_the_tokenizer_of_an_uninterrupted_one(
    batches, checkpoint, run, tmp_path, monkeypatch
):
    """A WordPiece tokenizer that is trained again would have another vocabulary."""
    monkeypatch.chdir(tmp_path)
    words = f"{WITH_CHECKPOINTS} --gradient_accumulation_steps {batches}"
    whole = run(words)
    vocabulary = Path("out/tokenizer.json").read_text()
    again = run(f"{words} --resume_from_checkpoint {checkpoint}")
    assert again["masked_lm_loss"]["after"] == whole["masked_lm_loss"]["after"] and again["steps"] == 4
    assert Path("out/tokenizer.json").read_text() == vocabulary


# --- refusals ---


def test_a_new_encoder_trains_its_tokenizer_and_an_existing_one_keeps_or_extends_it(run):
    for words in ("", "--train_tokenizer --model x", "--train_tokenizer --extend_tokenizer 5"):
        with refuses("make a new one with --train_tokenizer"):
            run(words)


def test_a_column_of_several_can_be_named(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text("anchor,positive\na,b\nc,d\n")
    with refuses("2 sentences are too few"):  # so the column was taken
        run_on(table, tmp_path / "out", "--train_tokenizer --columns anchor")


# --- the recipe and the script ---


def test_the_recipe_gives_what_the_command_line_does_not():
    arguments = pretraining_arguments("pretrain-mlm-small", hidden_size=64)
    assert arguments.hidden_size == 64 and arguments.vocab_size == 16384 and arguments.learning_rate == 5e-4


# --- steps of several batches ---


def one_step(tokenizer, folder, rows, **options):
    """The weights after one step of gradient descent on rows of token ids and labels, and its loss."""
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny_config(dropout=0.0))
    args = PretrainingArguments(
        str(folder),
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=1.0,
        max_steps=1,
        logging_steps=1,
        max_grad_norm=0.0,
        save_strategy="no",
        **QUIET,
        **options,
    )
    data = Dataset.from_list(rows)
    trainer = MaskedLMTrainer(model, args, tokenizer, train_dataset=data)
    trainer.train()
    return model.state_dict(), trainer.state.log_history[0]["loss"]


def rows_with_labels(tokens):
    """Rows of 9 tokens, of which the first `tokens` of each row are to be predicted."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 20, (len(tokens), 9), generator=generator).tolist()
    rows = []
    for row, number in zip(ids, tokens, strict=True):
        rows.append({"input_ids": row, "labels": row[:number] + [-100] * (9 - number)})
    return rows


EIGHT_ROWS = (1, 8, 3, 6, 2, 7, 1, 5)


def assert_same_step(found, expected):
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-5)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)


@pytest.mark.parametrize("tokens", [EIGHT_ROWS, (9, 0, 0, 0, 0, 4, 0, 0), (0,) * 8], ids=str)
def test_a_step_of_several_batches_is_that_of_all_their_rows(tokens, tokenizer, tmp_path):
    rows = rows_with_labels(tokens)
    whole = one_step(tokenizer, tmp_path, rows, per_device_train_batch_size=8)
    for batches in (2, 8):
        options = {"per_device_train_batch_size": 8 // batches, "gradient_accumulation_steps": batches}
        assert_same_step(one_step(tokenizer, tmp_path, rows, **options), whole)


# --- two processes, and the order of rows ---


class Seen(MaskedLMTrainer):
    """A trainer that notes the rows of each step."""

    seen: list

    def training_step(self, model, inputs, *args):
        lengths = inputs["attention_mask"].sum(1).tolist()
        for ids, length in zip(inputs["input_ids"].tolist(), lengths, strict=True):
            self.seen.append(tuple(ids[:length]))
        return super().training_step(model, inputs, *args)


def rows_of_lengths():
    """32 rows of 4 to 12 tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(32):
        length = 4 + number % 9
        ids = torch.randint(5, 20, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "length": length})
    return rows


def train_by_length(tokenizer, folder, resume=None, **options):
    """A trainer after a run that groups rows by their length, as `train mlm` does."""
    torch.manual_seed(0)
    args = PretrainingArguments(
        str(folder),
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        **QUIET | {"save_strategy": "no"} | options,
    )
    model = BertForMaskedLM(tiny_config())
    data = Dataset.from_list(rows_of_lengths())
    trainer = Seen(model, args, tokenizer, train_dataset=data)
    trainer.seen = []
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_run_by_length_is_resumed_in_a_later_epoch_with_the_order_of_that_epoch(tmp_path, tokenizer):
    options = {"max_steps": 7, "save_strategy": "steps", "save_steps": 6}
    whole = train_by_length(tokenizer, tmp_path, **options)
    checkpoint = str(tmp_path / "checkpoint-6")
    again = train_by_length(tokenizer, tmp_path, checkpoint, **options)
    assert_same_weights(whole.model.state_dict(), again.model.state_dict())


def train_in_process(folder, tokenizer):
    """Take a step of several batches, and draw rows by length."""
    step = one_step(
        tokenizer,
        folder,
        rows_with_labels(EIGHT_ROWS),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )
    seen = train_by_length(tokenizer, folder, max_steps=2).seen
    found = {"step": step, "seen": seen}
    torch.save(found, folder / f"{os.environ['RANK']}.pt")


def test_two_processes_take_the_step_of_one_and_draw_each_row_by_length_once(tokenizer, tmp_path):
    launch(train_in_process, tmp_path, tokenizer)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    whole = one_step(tokenizer, tmp_path, rows_with_labels(EIGHT_ROWS), per_device_train_batch_size=8)
    for of_rank in found:
        assert_same_step(of_rank["step"], whole)
    seen = found[0]["seen"] + found[1]["seen"]
    assert len(seen) == len(set(seen)) == 32


# --- words of a domain ---

OF_THE_DOMAIN = "tachycardia the cat sat bradycardia dog".split()


def test_words_of_the_domain_become_tokens_also_in_a_resumed_run(tokenizer, tmp_path):
    lines = []
    for first in range(120):
        lines.append(" ".join(OF_THE_DOMAIN[place % 6] for place in range(first, first + 3 + first % 4)))
    texts = write(tmp_path / "texts.txt", lines)
    encoder = tmp_path / "encoder"
    save_encoder(encoder)
    # Weights of layer normalisation have other names in old checkpoints, such as that of bert-base-uncased.
    weights = load_file(encoder / "model.safetensors")
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): weight for name, weight in weights.items()}
    save_file(renamed, encoder / "model.safetensors", {"format": "pt"})
    line = f"--model {encoder} --extend_tokenizer 5 --max_steps 4 --save_steps 2 --max_seq_length 16"
    whole = run_on(texts, tmp_path / "whole", line)
    assert whole["added_words"] == 2 and whole["vocabulary"] == len(tokenizer) + 2
    saved = AutoTokenizer.from_pretrained(tmp_path / "whole")
    assert len(saved) == whole["vocabulary"] and saved.tokenize("tachycardia") == ["tachycardia"]
    checkpoint = tmp_path / "resumed/checkpoint-2"
    shutil.copytree(tmp_path / "whole/checkpoint-2", checkpoint)
    resumed = run_on(texts, tmp_path / "resumed", f"{line} --resume_from_checkpoint {checkpoint}")
    assert resumed["masked_lm_loss"]["after"] == whole["masked_lm_loss"]["after"]
    assert resumed["added_words"] == 2 and resumed["vocabulary"] == whole["vocabulary"]
