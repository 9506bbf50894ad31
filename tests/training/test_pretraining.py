"""Masked-LM pretraining has the loss of the stock model and saves a checkpoint that SimCSE can start from."""

import json
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import MASK, PAD, VOCABULARY, random_batch, tiny_config, with_masked_inputs
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    RobertaConfig,
    Trainer,
    TrainingArguments,
)

from simcse_hf import AutoModelForCL
from simcse_hf.models.auto import contrastive_class
from simcse_hf.training.masking import TokenMasker
from simcse_hf.training.pretraining import (
    MaskedLMTrainer,
    PretrainingArguments,
    make_tokenizer,
    parse_pretraining_arguments,
    pretrain,
    pretraining_class,
    read_sentences,
    save_stock,
    tokenize,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sentences(tmp_path):
    """Write 120 lines whose words have a fixed order, so that a masked-LM can learn it."""
    words = VOCABULARY[5:21]
    lines = [" ".join(words[(i + j) % 16] for j in range(4 + i % 5)) for i in range(120)]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.txt"


def parse(*words):
    return parse_pretraining_arguments(list(map(str, words)))


@pytest.mark.parametrize("model_type, config_class", [("bert", BertConfig), ("roberta", RobertaConfig)])
@pytest.mark.parametrize("seed, length", [(0, 9), (1, 14)])
def test_loss_and_gradients_equal_those_of_the_stock_model(model_type, config_class, seed, length):
    config = tiny_config(model_type, dropout=0.0)
    model = pretraining_class(contrastive_class(config_class))(config, do_mlm=True).double()
    stock = AutoModelForMaskedLM.from_config(config).double()
    stock.load_state_dict({name: model.state_dict()[name] for name in stock.state_dict()})
    batch = with_masked_inputs(random_batch(5, length=length, seed=seed), seed=seed)
    ids, labels, mask = batch["mlm_input_ids"], batch["mlm_targets"], batch["attention_mask"]
    loss = model(input_ids=ids, attention_mask=mask, labels=labels)["loss"]
    logits = stock(input_ids=ids, attention_mask=mask).logits
    terms = [
        -torch.log_softmax(logits[i, j], 0)[labels[i, j]]
        for i in range(5)
        for j in range(length)
        if labels[i, j] != -100
    ]
    wanted = sum(terms) / len(terms)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=1e-6)  # the loss itself is taken in float32
    loss.backward()
    wanted.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, p in stock.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-4, atol=1e-6)


def test_batches_are_padded_and_labels_are_ignored_at_padding(tokenizer, tmp_path):
    """The Trainer's own batches, with the column `length` and without."""
    from datasets import Dataset

    rows = Dataset.from_dict({"input_ids": [[2, 7, 3], [2, 3]], "length": [3, 2]})
    held_out = Dataset.from_dict({"input_ids": [[2, 7, 3], [2, 3]], "labels": [[-100, 5, -100], [9, 9]]})
    args = TrainingArguments(str(tmp_path), use_cpu=True, train_sampling_strategy="sequential")
    model = pretraining_class(contrastive_class(BertConfig))(tiny_config(), do_mlm=True)
    trainer = MaskedLMTrainer(
        model, args, tokenizer, TokenMasker(tokenizer, 0.5), train_dataset=rows, eval_dataset=held_out
    )
    (batch,), (masked,) = trainer.get_train_dataloader(), trainer.get_eval_dataloader()
    assert batch.keys() == {"input_ids", "attention_mask"}
    assert batch["input_ids"].tolist() == masked["input_ids"].tolist() == [[2, 7, 3], [2, 3, PAD]]
    assert batch["attention_mask"].tolist() == masked["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert masked["labels"].tolist() == [[-100, 5, -100], [9, 9, -100]]


def test_the_parameters_are_counted_once_for_the_operations_of_all_steps(tokenizer, tmp_path):
    model = pretraining_class(contrastive_class(BertConfig))(tiny_config(), do_mlm=True)
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = MaskedLMTrainer(model, args, tokenizer, TokenMasker(tokenizer, 0.3))
    inputs = {"input_ids": torch.zeros(3, 7)}
    expected = Trainer.floating_point_ops(trainer, inputs)
    with mock.patch.object(type(model), "num_parameters", side_effect=model.num_parameters) as count:
        assert [trainer.floating_point_ops(inputs) for _ in range(3)] == [expected] * 3
    assert count.call_count == 1


def test_held_out_masks_are_fixed_and_do_not_change_the_random_state(tokenizer, sentences):
    options, _ = parse("--train_file", sentences)
    texts, held_out = read_sentences(options)
    assert len(texts) == 108 and len(held_out) == 12 and texts + held_out == sentences.read_text().splitlines()
    masker = TokenMasker(tokenizer, 0.5)
    rows = tokenize(held_out, tokenizer, 8)
    assert rows["length"] == [len(ids) for ids in rows["input_ids"]] and max(rows["length"]) == 8
    state = torch.get_rng_state()
    first, second = (masker.mask_once(rows, seed=3) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state()) and first.to_dict() == second.to_dict()
    kept, masked = 0, 0
    for ids, seen, labels in zip(rows["input_ids"], first["input_ids"], first["labels"], strict=True):
        for original, shown, label in zip(ids, seen, labels, strict=True):
            assert label in (-100, original) and (label != -100 or shown == original)
            masked += shown == MASK
            kept += label == -100
    assert masked > 5 and kept > 24


def test_a_run_lowers_the_loss_and_saves_a_stock_model_that_simcse_can_start_from(sentences, tmp_path):
    out = tmp_path / "out"
    options, args = parse(
        *f"--train_file {sentences} --train_tokenizer --vocab_size 120 --hidden_size 32 --num_hidden_layers 1".split(),
        *f"--num_attention_heads 2 --max_position_embeddings 32 --max_seq_length 16 --output_dir {out}".split(),
        *"--learning_rate 5e-3 --warmup_steps 0".split(),
        *"--max_steps 40 --per_device_train_batch_size 16 --use_cpu --report_to none --save_strategy no".split(),
        *"--mlm_probability 0.3 --train_sampling_strategy group_by_length --disable_tqdm true".split(),
    )
    results = pretrain(options, args)
    assert results == json.loads((out / "results.json").read_text())
    losses = results["masked_lm_loss"]
    assert losses["after"] < losses["before"] - 0.5
    model, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert type(model) is BertForMaskedLM and not info["missing_keys"] and not info["unexpected_keys"]
    assert "simcse" not in json.loads((out / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == model.config.vocab_size <= 120 and tokenizer.pad_token_id == model.config.pad_token_id
    start = AutoModelForCL.from_pretrained(out)
    assert start.head_source == "fresh" and start.settings.pooler_type == "cls"
    with pytest.raises(ValueError, match="holds an earlier run"):
        pretrain(options, args)

    options, args = parse(
        *f"--train_file {sentences} --model_name_or_path {out} --output_dir {tmp_path / 'more'} --max_steps 1".split(),
        *"--max_seq_length 16 --mlm_probability 0.3 --use_cpu --report_to none --save_strategy no".split(),
        *"--train_sampling_strategy group_by_length".split(),  # this also sets the order of the held-out sentences
    )
    assert pretrain(options, args)["masked_lm_loss"]["before"] == pytest.approx(losses["after"], abs=1e-5)


def test_saving_does_not_change_the_model_in_memory(tokenizer, tmp_path):
    model = pretraining_class(contrastive_class(BertConfig))(tiny_config(), do_mlm=True)
    save_stock(model, tokenizer, tmp_path)
    assert model.config.simcse["training"]["do_mlm"] is True
    saved = AutoModelForMaskedLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in saved.items())


@pytest.mark.parametrize(
    "words, message",
    [
        ("", "one of --train_tokenizer and --tokenizer_name"),
        ("--train_tokenizer --tokenizer_name x", "one of --train_tokenizer and --tokenizer_name"),
        ("--train_tokenizer --model_name_or_path x", "keeps its tokenizer"),
    ],
)
def test_exactly_one_source_of_the_tokenizer_is_required(words, message, sentences):
    options, _ = parse("--train_file", sentences, *words.split())
    with pytest.raises(ValueError, match=message):
        make_tokenizer(options, ["a text"])


def test_bad_input_is_refused(tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(ValueError, match="few.txt: 2 sentences are too few"):
        read_sentences(PretrainingArguments(train_file=str(tmp_path / "few.txt")))
    (tmp_path / "wrong.yaml").write_text("hidden_sizes: 3\n")
    with pytest.raises(ValueError, match="wrong.yaml: unknown argument.*hidden_sizes"):
        parse(tmp_path / "wrong.yaml")


def test_the_script_reads_the_recipe_and_reports_a_missing_file_in_one_line(tmp_path, monkeypatch, capsys):
    options, args = parse(ROOT / "examples" / "recipes" / "pretrain-mlm-small.yaml", "--hidden_size", 64)
    assert (options.hidden_size, options.vocab_size, options.train_tokenizer) == (64, 16384, True)
    assert args.learning_rate == 5e-4
    script = str(ROOT / "examples" / "pretrain_mlm.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, "--train_file", "absent.txt", "--use_cpu"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "absent.txt" in error and "Traceback" not in error
