"""Where the memory does not suffice, one message says for what, and what would fit."""

import re

import pytest
import torch
from conftest import save_encoder
from trainer_helpers import make, model_of, sentences, texts

from simcse_hf import SimCSE, SimCSETrainer
from simcse_hf.apps.pretraining import MaskedLMTrainer
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


EVERY_ERROR = pytest.mark.parametrize("error", ERRORS, ids=["GPU", "CPU", "Python"], scope="module")
OF_ONE_BATCH = {"per_device_train_batch_size": 16, "max_seq_length": 12}


@pytest.fixture(scope="module")
def raised(error, tmp_path_factory, tokenizer):
    """The error of a run in whose first step the memory does not suffice."""
    folder = tmp_path_factory.mktemp("step")
    trainer = make(folder, tokenizer, texts(24, 3), **OF_ONE_BATCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimCSETrainer, "training_step", fails_with(error))
        with pytest.raises(torch.OutOfMemoryError) as found:
            trainer.train()
    return found.value


@EVERY_ERROR
def test_a_step_says_its_size_and_what_takes_less_in_one_line(raised, error):
    words = "16 rows with 3 texts of up to 12 tokens .* of cpu: set gradcache_chunk_size to 4, .* max_seq_length to 6,"
    assert re.search(words, str(raised))
    assert "\n" not in str(raised)
    assert raised.__cause__ is error


def test_an_objective_that_needs_the_model_is_told_to_take_smaller_batches(tmp_path, tokenizer, monkeypatch):
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
    monkeypatch.setattr(SimCSETrainer, "training_step", fails_with(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="^something else$"):
        make(tmp_path, tokenizer).train()


@pytest.fixture(scope="module")
def raised_by_encoding(error, tmp_path_factory):
    """The error of encoding six texts where the memory does not suffice."""
    folder = tmp_path_factory.mktemp("encoding")
    save_encoder(folder)
    model = SimCSE(folder, pooler_type="avg", device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContrastiveModel, "forward", fails_with(error))
        with pytest.raises(torch.OutOfMemoryError) as found:
            model.encode(sentences(6))
    return found.value


@EVERY_ERROR
def test_encoding_says_its_batch_and_half_its_tokens(raised_by_encoding, error):
    assert re.search("6 texts of up to 8 tokens .* token_budget to 24", str(raised_by_encoding))
    assert raised_by_encoding.__cause__ is error


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
    rows = [f"the man {number},a woman" for number in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["anchor,positive", *rows]))
    (tmp_path / "texts.txt").write_text("the man sat\n" * 40)
    file = "texts.txt" if method == "mlm" else "rows.csv"
    monkeypatch.setattr(trainer_class, "training_step", fails_with(ERRORS[0]))
    steps = "--max_steps 2 --max_seq_length 16 --per_device_train_batch_size 8"
    words = f"train {method} --model encoder --train_file {file} --output_dir out {steps} --use_cpu"
    assert main(words.split()) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(f"simcse-hf train: error: {says}", last_line)
