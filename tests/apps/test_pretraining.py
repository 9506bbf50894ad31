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
)

from simcse_hf import AutoModelForCL
from simcse_hf.apps.pretraining import (
    MaskedLMTrainer,
    PretrainingArguments,
    pretrain,
    pretraining_arguments,
)
from simcse_hf.training.parser import WordParser

QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}


def write_sentences(path):
    """Write 120 lines whose words have a fixed order, so that a masked-LM can learn it."""
    words = VOCABULARY[5:21]
    lines = []
    for first in range(120):
        places = range(first, first + 4 + first % 5)
        lines.append(" ".join(words[place % 16] for place in places))
    path.write_text("\n".join(lines) + "\n")
    return path


def run_on(sentences, output, line):
    """Pretrain with these arguments, and return the results."""
    files = f"--train_file {sentences} --output_dir {output}"
    words = f"{files} --use_cpu true --disable_tqdm true --report_to none {line}"
    return pretrain(**WordParser([PretrainingArguments]).read(words.split())).to_dict()


@pytest.fixture
def sentences(tmp_path):
    return write_sentences(tmp_path / "texts.txt")


@pytest.fixture
def run(sentences, tmp_path):
    """`run(line)` pretrains with these arguments in the folder `out` of the test, and returns the results."""
    return lambda line: run_on(sentences, tmp_path / "out", line)


# --- the loss at the masked positions ---


@pytest.fixture
def stock(family):
    """A masked LM of transformers without dropout."""
    config = tiny_config(family, dropout=0.0)
    return AutoModelForMaskedLM.from_config(config)


@pytest.fixture
def trainer(stock, tmp_path, tokenizer):
    args = PretrainingArguments(str(tmp_path), use_cpu=True, mlm_probability=0.3)
    return MaskedLMTrainer(stock, args, tokenizer)


@pytest.fixture
def masked():
    """Five rows, in which some tokens are masked and are to be predicted."""
    batch = with_masked_inputs(random_batch(5, length=9), seed=1)
    return {
        "input_ids": batch["mlm_input_ids"],
        "attention_mask": batch["attention_mask"],
        "labels": batch["mlm_targets"],
    }


@pytest.fixture
def unlabelled(masked):
    """The same rows without a token to predict."""
    return masked | {"labels": torch.full_like(masked["labels"], -100)}


EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@EVERY_FAMILY
def test_the_loss_at_the_masked_positions_is_that_of_the_stock_model(trainer, stock, masked):
    found = trainer.compute_loss(stock, dict(masked))
    torch.testing.assert_close(found, stock(**masked).loss)


@EVERY_FAMILY
def test_the_loss_without_a_masked_position_is_finite(trainer, stock, unlabelled):
    assert trainer.compute_loss(stock, dict(unlabelled)).isfinite()


@EVERY_FAMILY
def test_the_loss_of_the_trainer_leaves_the_model_as_it_was(trainer, stock, masked):
    before = stock(**masked).loss
    trainer.compute_loss(stock, dict(masked))
    assert stock(**masked).loss == before


# --- a new encoder ---

SIZES = "--train_tokenizer --vocab_size 120 --hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2"
MASKS = "--max_seq_length 16 --mlm_probability 0.3 --save_strategy no"
STEPS = "--max_steps 40 --learning_rate 5e-3 --warmup_steps 0 --per_device_train_batch_size 16 --eval_strategy epoch"
WORDS = f"{MASKS} {SIZES} --max_position_embeddings 32 {STEPS}"


class Pretrained:
    """A new encoder with a tokenizer of its own, after 40 steps."""

    def __init__(self, folder):
        self.sentences = write_sentences(folder / "texts.txt")
        self.folder = folder / "out"
        self.results = run_on(self.sentences, self.folder, WORDS)
        self.losses = self.results["masked_lm_loss"]
        self.model, self.loading = AutoModelForMaskedLM.from_pretrained(self.folder, output_loading_info=True)
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return Pretrained(tmp_path_factory.mktemp("pretrained"))


def test_a_run_lowers_the_loss(pretrained):
    assert pretrained.losses["after"] < pretrained.losses["before"] - 0.5


def test_the_results_are_written_into_a_file(pretrained):
    written = json.loads((pretrained.folder / "results.json").read_text())
    assert written == pretrained.results


def test_a_run_saves_a_stock_model(pretrained):
    assert type(pretrained.model) is BertForMaskedLM


@pytest.mark.parametrize("keys", ["missing_keys", "unexpected_keys"])
def test_a_stock_model_has_all_weights_and_no_others(pretrained, keys):
    assert not pretrained.loading[keys]


def test_a_tokenizer_that_was_trained_has_the_vocabulary_of_the_model(pretrained):
    assert len(pretrained.tokenizer) == pretrained.model.config.vocab_size <= 120


def test_a_tokenizer_that_was_trained_has_the_padding_of_the_model(pretrained):
    assert pretrained.tokenizer.pad_token_id == pretrained.model.config.pad_token_id


@pytest.mark.parametrize(("name", "value"), [("head_source", "fresh"), ("pooler_type", "cls")])
def test_simcse_can_start_from_a_saved_model(pretrained, name, value):
    start = AutoModelForCL.from_pretrained(pretrained.folder)
    found = getattr(start, name, None) or getattr(start.settings, name)
    assert found == value


def test_a_run_does_not_replace_an_earlier_one(pretrained):
    with pytest.raises(ValueError, match="holds an earlier run"):
        run_on(pretrained.sentences, pretrained.folder, WORDS)


def test_a_run_that_continues_a_saved_model_starts_at_its_loss(pretrained, tmp_path):
    line = f"{MASKS} --model_name_or_path {pretrained.folder} --max_steps 1"
    more = run_on(pretrained.sentences, tmp_path / "more", line)
    before = more["masked_lm_loss"]["before"]
    assert before == pytest.approx(pretrained.losses["after"], abs=1e-5)


# --- an existing encoder ---


def test_a_contrastive_model_is_continued_as_a_stock_model(save_checkpoint, run, tmp_path):
    contrastive = AutoModelForCL.from_config(tiny_config(), pooler_type="avg")
    start = save_checkpoint(contrastive)
    run(f"--model_name_or_path {start} --max_steps 1 --max_seq_length 16 --save_strategy no")
    assert "simcse" not in json.loads((tmp_path / "out/config.json").read_text())


HALF_PRECISION = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], scope="module")


@pytest.fixture(scope="module")
def from_half_precision(dtype, tokenizer, tmp_path_factory):
    """The folder of a run from an encoder that is stored in half precision."""
    folder = tmp_path_factory.mktemp("half")
    BertForMaskedLM(tiny_config()).to(dtype).save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")
    steps = "--max_steps 1 --max_seq_length 16 --save_strategy no --learning_rate 1e-6"
    sentences = write_sentences(folder / "texts.txt")
    run_on(sentences, folder / "out", f"--model {folder / 'start'} {steps}")
    return folder / "out"


@HALF_PRECISION
def test_an_encoder_that_is_stored_in_half_precision_is_trained_in_float32(
    from_half_precision,
):
    weights = load_file(from_half_precision / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


@HALF_PRECISION
def test_a_model_that_was_trained_in_float32_says_so(from_half_precision):
    config = json.loads((from_half_precision / "config.json").read_text())
    assert config["dtype"] == "float32"


# --- a resumed run ---

SMALL = "--train_tokenizer true --vocab_size 60 --hidden_size 16 --num_hidden_layers 1 --num_attention_heads 2"
WITH_CHECKPOINTS = f"{SMALL} --max_steps 4 --per_device_train_batch_size 4 --save_steps 2 --save_total_limit 5"


class Resumed:
    """A run, and its results after it was resumed from a checkpoint, or from the last one."""

    def __init__(self, folder, batches, checkpoint):
        sentences = write_sentences(folder / "texts.txt")
        out = folder / "out"
        words = f"{WITH_CHECKPOINTS} --gradient_accumulation_steps {batches}"
        self.whole = run_on(sentences, out, words)
        self.vocabulary = (out / "tokenizer.json").read_text()
        if checkpoint == "checkpoint-2":
            checkpoint = out / checkpoint
        again = f"{words} --resume_from_checkpoint {checkpoint}"
        self.again = run_on(sentences, out, again)
        self.vocabulary_again = (out / "tokenizer.json").read_text()


@pytest.fixture(
    scope="module",
    params=[(1, "checkpoint-2"), (2, "checkpoint-2"), (1, "true")],
    ids=["in the middle", "in the middle of several batches", "finished"],
)
def resumed(request, tmp_path_factory):
    return Resumed(tmp_path_factory.mktemp("resumed"), *request.param)


def test_a_resumed_run_draws_the_masks_of_an_uninterrupted_one(resumed):
    """And a finished one takes no step."""
    after = resumed.again["masked_lm_loss"]["after"]
    assert after == resumed.whole["masked_lm_loss"]["after"]


def test_a_resumed_run_ends_at_its_last_step(resumed):
    assert resumed.again["steps"] == 4


def test_a_resumed_run_keeps_the_tokenizer_that_it_has_trained(resumed):
    """A WordPiece tokenizer that is trained again would have another vocabulary."""
    assert resumed.vocabulary_again == resumed.vocabulary


# --- refusals ---


@pytest.mark.parametrize(
    "words, option",
    [
        ("", "--train_tokenizer"),
        ("--train_tokenizer --model x", "--train_tokenizer"),
        ("--train_tokenizer --extend_tokenizer 5", "--extend_tokenizer"),
    ],
)
def test_a_new_encoder_trains_its_tokenizer_and_an_existing_one_keeps_or_extends_it(words, option, run):
    with pytest.raises(ValueError, match=option):
        run(words)


def test_a_length_by_column_is_refused_before_anything_is_read():
    words = ["--train_tokenizer", "--max_seq_length", "anchor=32"]
    with pytest.raises(ValueError, match="max_seq_length.*'anchor=32'"):
        WordParser([PretrainingArguments]).read(words)


def test_too_few_sentences_are_refused(run, sentences):
    sentences.write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="texts.txt: 2 sentences are too few"):
        run("--train_tokenizer")


def test_a_column_of_several_can_be_named(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text("anchor,positive\na,b\nc,d\n")
    words = "2 sentences are too few"  # so the column was taken
    with pytest.raises(ValueError, match=words):
        run_on(table, tmp_path / "out", "--train_tokenizer --columns anchor")


# --- the recipe and the script ---


@pytest.fixture
def of_recipe():
    """The arguments of the recipe with another size."""
    return pretraining_arguments("pretrain-mlm-small", hidden_size=64)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 64), ("vocab_size", 16384), ("train_tokenizer", True)],
)
def test_the_recipe_gives_the_sizes_that_the_command_line_does_not(of_recipe, name, value):
    assert getattr(of_recipe, name) == value


def test_the_recipe_gives_the_learning_rate(of_recipe):
    assert of_recipe.learning_rate == 5e-4


def test_the_script_reports_a_missing_file_in_one_line(monkeypatch, capsys):
    script = str(Path(__file__).parents[2] / "examples" / "pretrain_mlm.py")
    words = [script, "--train_file", "absent.txt", "--use_cpu"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path(script, run_name="__main__")
    error = capsys.readouterr().err
    assert "absent.txt" in error
    assert "Traceback" not in error


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


def assert_close_weights(found, expected):
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-6, rtol=1e-5)


def rows_with_labels(tokens):
    """Rows of 9 tokens, of which the first `tokens` of each row are to be predicted."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 20, (len(tokens), 9), generator=generator).tolist()
    rows = []
    for row, number in zip(ids, tokens, strict=True):
        rows.append({"input_ids": row, "labels": row[:number] + [-100] * (9 - number)})
    return rows


EIGHT_ROWS = (1, 8, 3, 6, 2, 7, 1, 5)
TOKENS_TO_PREDICT = pytest.mark.parametrize(
    "tokens",
    [EIGHT_ROWS, (9, 0, 0, 0, 0, 4, 0, 0), (0,) * 8],
    ids=str,
    scope="module",
)
BATCHES = pytest.mark.parametrize("batches", [2, 4, 8], scope="module")


@pytest.fixture(scope="module")
def in_one_batch(tokens, tokenizer, tmp_path_factory):
    """The weights and the loss of a step of eight rows in one batch."""
    folder = tmp_path_factory.mktemp("whole")
    rows = rows_with_labels(tokens)
    return one_step(tokenizer, folder, rows, per_device_train_batch_size=8)


@pytest.fixture(scope="module")
def in_batches(tokens, batches, tokenizer, tmp_path_factory):
    """The weights and the loss of the same step in several batches."""
    return one_step(
        tokenizer,
        tmp_path_factory.mktemp("batches"),
        rows_with_labels(tokens),
        per_device_train_batch_size=8 // batches,
        gradient_accumulation_steps=batches,
    )


@TOKENS_TO_PREDICT
@BATCHES
def test_a_step_of_several_batches_has_the_loss_of_all_their_rows(in_one_batch, in_batches):
    assert in_batches[1] == pytest.approx(in_one_batch[1], rel=1e-5)


@TOKENS_TO_PREDICT
@BATCHES
def test_a_step_of_several_batches_is_that_of_all_their_rows(in_one_batch, in_batches):
    assert_close_weights(in_batches[0], in_one_batch[0])


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


@pytest.fixture(scope="module")
def two_processes(tokenizer, tmp_path_factory):
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("processes")
    launch(train_in_process, folder, tokenizer)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


EIGHT_ROWS_ONLY = pytest.mark.parametrize("tokens", [EIGHT_ROWS], scope="module")


@EIGHT_ROWS_ONLY
def test_the_loss_of_two_processes_is_that_of_one(two_processes, in_one_batch):
    for found in two_processes:
        _, loss = found["step"]
        assert loss == pytest.approx(in_one_batch[1], rel=1e-5)


@EIGHT_ROWS_ONLY
def test_two_processes_take_the_step_of_one(two_processes, in_one_batch):
    for found in two_processes:
        weights, _ = found["step"]
        assert_close_weights(weights, in_one_batch[0])


def test_two_processes_draw_each_row_by_length_once(two_processes):
    seen = two_processes[0]["seen"] + two_processes[1]["seen"]
    assert len(seen) == len(set(seen)) == 32


# --- words of a domain ---

OF_THE_DOMAIN = ["tachycardia", "the", "cat", "sat", "bradycardia", "dog"]


class Extended:
    """A run that adds words of the domain to a tokenizer, and one that is resumed from its first checkpoint."""

    def __init__(self, folder, tokenizer):
        texts = folder / "texts.txt"
        lines = []
        for first in range(120):
            places = range(first, first + 3 + first % 4)
            lines.append(" ".join(OF_THE_DOMAIN[place % 6] for place in places))
        texts.write_text("\n".join(lines))
        encoder = folder / "encoder"
        BertForMaskedLM(tiny_config()).save_pretrained(encoder)
        tokenizer.save_pretrained(encoder)
        rename_as_in_bert_base_uncased(encoder / "model.safetensors")
        steps = "--max_steps 4 --save_steps 2 --max_seq_length 16 --per_device_train_batch_size 8"
        line = f"--model {encoder} --extend_tokenizer 5 {steps}"
        self.folder = folder / "whole"
        self.whole = run_on(texts, self.folder, line)
        checkpoint = folder / "resumed/checkpoint-2"
        shutil.copytree(self.folder / "checkpoint-2", checkpoint)
        line = f"{line} --resume_from_checkpoint {checkpoint}"
        self.resumed = run_on(texts, folder / "resumed", line)


def rename_as_in_bert_base_uncased(path):
    """Give weights the names of layer normalisation that they have in old checkpoints."""
    renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): weight for name, weight in load_file(path).items()}
    save_file(renamed, path, {"format": "pt"})


@pytest.fixture(scope="module")
def extended(tmp_path_factory, tokenizer):
    return Extended(tmp_path_factory.mktemp("extended"), tokenizer)


def test_words_of_the_domain_become_tokens(extended, tokenizer):
    assert extended.whole["added_words"] == 2
    assert extended.whole["vocabulary"] == len(tokenizer) + 2
    saved = AutoTokenizer.from_pretrained(extended.folder)
    assert len(saved) == extended.whole["vocabulary"]
    assert saved.tokenize("tachycardia") == ["tachycardia"]


def without_times_and_losses(results):
    left_out = {"train_seconds", "masked_lm_loss", "perplexity"}
    return {name: value for name, value in results.items() if name not in left_out}


def test_a_resumed_run_says_the_same_about_the_words_of_a_domain(extended):
    resumed = without_times_and_losses(extended.resumed)
    assert resumed == without_times_and_losses(extended.whole)


def test_a_resumed_run_with_words_of_a_domain_ends_with_the_same_loss(extended):
    after = extended.resumed["masked_lm_loss"]["after"]
    assert after == extended.whole["masked_lm_loss"]["after"]
