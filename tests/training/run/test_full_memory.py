"""Where the memory does not suffice, one message says for what, and what would fit."""

import re

import pytest
import torch
from conftest import save_encoder
from evaluation_helpers import write
from trainer_helpers import model_of, sentences, texts

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.cli.main import main
from simcse_hf.models.modeling import ContrastiveModel

#: What torch raises on a GPU and on a CPU, and what Python raises.
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nA second line"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    MemoryError(),
]


def fails_with(error):
    def fail(*args, **options):
        raise error

    return fail


EVERY_ERROR = pytest.mark.parametrize("error", ERRORS, ids=["GPU", "CPU", "Python"])


@EVERY_ERROR
def test_a_step_says_its_size_and_what_takes_less_in_one_line(make, error, monkeypatch):
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(error))
    trainer = make(texts(24, 3), per_device_train_batch_size=16, max_seq_length=12)
    words = "16 rows with 3 texts of up to 12 tokens .* of cpu: set gradcache_chunk_size to 4, .* max_seq_length to 6,"
    with pytest.raises(torch.OutOfMemoryError, match=words) as raised:
        trainer.train()
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is error


def test_an_objective_that_needs_the_model_is_told_to_take_smaller_batches(make, monkeypatch):
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(ERRORS[0]))
    with pytest.raises(torch.OutOfMemoryError, match="set per_device_train_batch_size to 2 or max_seq_length"):
        make(model=model_of(objective="tsdae")).train()
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="^something else$"):  # which passes through
        make().train()


@EVERY_ERROR
def test_encoding_says_its_batch_and_half_its_tokens(error, tmp_path, monkeypatch):
    save_encoder(tmp_path)
    model = SimCSE(tmp_path, pooler_type="avg", device="cpu")
    monkeypatch.setattr(ContrastiveModel, "forward", fails_with(error))
    with pytest.raises(torch.OutOfMemoryError, match="6 texts of up to 8 tokens .* token_budget to 24") as raised:
        model.encode(sentences(6))
    assert raised.value.__cause__ is error


def test_the_command_prints_one_line_and_ends_with_status_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "encoder")
    rows = [f"the man {number},a woman" for number in range(20)]
    write(tmp_path / "rows.csv", ["anchor,positive", *rows])
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(ERRORS[0]))
    words = (
        "train sup --model encoder --train_file rows.csv --output_dir out --max_steps 2 --max_seq_length 16 --use_cpu"
    )
    assert main([*words.split(), "--per_device_train_batch_size", "8"]) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert re.match("simcse-hf train: error: a step of 8 rows .*CUDA", last_line)
