"""Where the memory does not suffice, one message says for what, and what would fit."""

import re

import pytest
import torch
from conftest import save_encoder
from trainer_helpers import make, model_of, sentences, texts

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.cli.main import main
from simcse_hf.models.modeling import ContrastiveModel
from simcse_hf.training.pretraining import MaskedLMTrainer

#: What torch raises on a GPU and on a CPU, and what Python raises.
ERRORS = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB.\nA second line"
    ),
    RuntimeError(
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    ),
    MemoryError(),
]


def fails_with(error):
    def fail(*args, **options):
        raise error

    return fail


@pytest.mark.parametrize("error", ERRORS)
def test_a_step_says_its_size_and_a_chunk_that_takes_a_quarter(
    error, tmp_path, tokenizer, monkeypatch
):
    trainer = make(
        tmp_path,
        tokenizer,
        texts(24, 3),
        per_device_train_batch_size=16,
        max_seq_length=12,
    )
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(error))
    with pytest.raises(
        torch.OutOfMemoryError,
        match="16 rows with 3 texts of up to 12 tokens .* memory of cpu",
    ) as found:
        trainer.train()
    assert "gradcache_chunk_size to 4," in str(
        found.value
    ) and "max_seq_length to 6" in str(found.value)
    assert found.value.__cause__ is error and "\n" not in str(found.value)


def test_an_objective_that_needs_the_model_is_told_to_take_smaller_batches(
    tmp_path, tokenizer, monkeypatch
):
    trainer = make(
        tmp_path,
        tokenizer,
        texts(24),
        model_of(objective="tsdae"),
        per_device_train_batch_size=16,
    )
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(ERRORS[0]))
    with pytest.raises(
        torch.OutOfMemoryError,
        match="set per_device_train_batch_size to 4 or max_seq_length",
    ):
        trainer.train()


def test_other_errors_of_a_step_pass_through(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(
        SimCSETrainer, "training_step", fails_with(RuntimeError("something else"))
    )
    with pytest.raises(RuntimeError, match="^something else$"):
        make(tmp_path, tokenizer).train()


@pytest.mark.parametrize("objective, size", [("simcse", "2 rows"), ("tsdae", "1 rows")])
def test_a_search_for_the_batch_size_that_finds_none_says_what_takes_less(
    objective, size, tmp_path, tokenizer, monkeypatch
):
    model = model_of(objective=objective)
    trainer = make(
        tmp_path,
        tokenizer,
        texts(24),
        model,
        auto_find_batch_size=True,
        per_device_train_batch_size=4,
    )
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(ERRORS[1]))
    with pytest.raises(
        torch.OutOfMemoryError, match=f"a step of {size} .* max_seq_length to 16"
    ):
        trainer.train()


@pytest.mark.parametrize("error", ERRORS)
def test_encoding_says_its_batch_and_half_its_tokens(error, tmp_path, monkeypatch):
    save_encoder(tmp_path)
    model = SimCSE(tmp_path, pooler_type="avg", device="cpu")
    monkeypatch.setattr(ContrastiveModel, "forward", fails_with(error))
    with pytest.raises(
        torch.OutOfMemoryError, match="6 texts of up to 8 tokens .* token_budget to 24"
    ) as found:
        model.encode(sentences(6))
    assert found.value.__cause__ is error


@pytest.mark.parametrize(
    "method, trainer_class, says",
    [
        ("sup", SimCSETrainer, "a step of 8 rows .*CUDA"),
        ("mlm", MaskedLMTrainer, "CUDA out of memory. Tried"),
    ],
)
def test_the_command_prints_one_line_and_ends_with_status_1(
    method, trainer_class, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "encoder")
    (tmp_path / "rows.csv").write_text("anchor,positive\n" + "the man,a woman\n" * 20)
    (tmp_path / "texts.txt").write_text("the man sat\n" * 40)
    file = "texts.txt" if method == "mlm" else "rows.csv"
    monkeypatch.setattr(trainer_class, "training_step", fails_with(ERRORS[0]))
    words = f"train {method} --model encoder --train_file {file} --max_steps 2 --max_seq_length 16 --output_dir out"
    assert (
        main([*words.split(), "--per_device_train_batch_size", "8", "--use_cpu"]) == 1
    )
    assert re.match(
        f"simcse-hf train: error: {says}", capsys.readouterr().err.splitlines()[-1]
    )
