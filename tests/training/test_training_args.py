"""SimCSETrainingArguments refuses invalid values at construction and has suitable defaults for the device."""

import pickle

import pytest
import torch
from transformers import TrainingArguments

from simcse_hf import SimCSETrainingArguments
from simcse_hf.apps import pretraining
from simcse_hf.training import arguments as training_args
from simcse_hf.training.decide import default_loader_workers


@pytest.fixture
def arguments(tmp_path):
    """`arguments(**values)` makes the arguments of a run."""

    def make(**values):
        return SimCSETrainingArguments(output_dir=str(tmp_path), **values)

    return make


@pytest.fixture
def pretend(monkeypatch):
    """`pretend(device, gpus)` lets one process see this device and so many GPUs."""

    def pretend(device, gpus):
        def has_only_cpu():
            return device == "cpu"

        of_arguments = {
            "device": property(lambda self: torch.device(device)),
            "n_gpu": property(lambda self: gpus),
            "world_size": 1,
        }
        for name, value in of_arguments.items():
            monkeypatch.setattr(SimCSETrainingArguments, name, value)
        monkeypatch.setattr(training_args, "has_only_cpu", has_only_cpu)

    return pretend


def test_data_parallel_is_refused_and_the_error_shows_the_launch_command(arguments, pretend):
    pretend("cpu", gpus=4)
    with pytest.raises(ValueError, match="accelerate launch --num_processes 4"):
        arguments(use_cpu=True)


# --- half precision ---


@pytest.fixture
def warnings(lacks_bfloat16, monkeypatch):
    """The warnings of a processor with or without the instructions of bfloat16."""
    warnings = []
    monkeypatch.setattr(training_args, "lacks_bfloat16", lambda: lacks_bfloat16)
    monkeypatch.setattr(training_args.logger, "warning_once", warnings.append)
    return warnings


@pytest.mark.parametrize("lacks_bfloat16", [True, False])
def test_float32_is_not_warned_of(arguments, warnings):
    arguments(use_cpu=True)
    assert warnings == []


@pytest.mark.parametrize("lacks_bfloat16", [False])
def test_bf16_is_not_warned_of_on_a_processor_with_its_instructions(arguments, warnings):
    arguments(use_cpu=True, bf16=True)
    assert warnings == []


@pytest.mark.parametrize("lacks_bfloat16", [True])
def test_bf16_is_warned_of_on_a_processor_without_its_instructions(arguments, warnings):
    arguments(use_cpu=True, bf16=True)
    [warning] = warnings
    assert "no bfloat16 instructions" in warning


def test_bf16_on_a_machine_without_a_gpu_needs_no_further_option(arguments, monkeypatch):
    monkeypatch.setattr(training_args, "has_only_cpu", lambda: True)
    assert arguments(bf16=True).device.type == "cpu"


def test_pretraining_in_bf16_on_a_machine_without_a_gpu_needs_no_further_option(tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "has_only_cpu", lambda: True)
    given = {"bf16": True, "output_dir": str(tmp_path)}
    assert pretraining.pretraining_arguments(**given).device.type == "cpu"


# --- the access token ---


@pytest.fixture
def with_token(arguments):
    return arguments(use_cpu=True, hub_token="hf_secret")


@pytest.fixture
def pickled(with_token):
    return pickle.loads(pickle.dumps(with_token))


def test_the_access_token_is_not_pickled_with_the_arguments(pickled):
    assert pickled.hub_token is None


def test_other_arguments_are_pickled(pickled, with_token):
    assert pickled.output_dir == with_token.output_dir


def test_arguments_keep_their_access_token_when_they_are_pickled(pickled, with_token):
    assert with_token.hub_token == "hf_secret"


# --- on a CPU and on a GPU ---


@pytest.fixture
def on_cpu(arguments):
    return arguments(use_cpu=True)


def test_on_a_cpu_batches_are_not_pinned(on_cpu):
    assert not on_cpu.dataloader_pin_memory


def test_on_a_cpu_batches_are_copied_as_usual(on_cpu):
    assert not on_cpu.accelerator_config.non_blocking


def test_a_loss_that_is_not_finite_is_logged(on_cpu):
    assert not on_cpu.logging_nan_inf_filter


def test_on_a_cpu_the_optimizer_is_that_of_the_trainer(on_cpu, tmp_path):
    assert on_cpu.optim == TrainingArguments(str(tmp_path)).optim


@pytest.fixture
def on_gpu(arguments, pretend):
    """`on_gpu(**values)` makes the arguments of a run on one GPU."""
    pretend("cuda", gpus=1)
    return arguments


def test_on_a_gpu_batches_are_pinned(on_gpu):
    assert on_gpu().dataloader_pin_memory


def test_on_a_gpu_batches_are_copied_without_blocking(on_gpu):
    assert on_gpu().accelerator_config.non_blocking


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"accelerator_config": {"non_blocking": False}}, id="as asked for"),
        pytest.param({"dataloader_pin_memory": False}, id="without pinned memory"),
    ],
)
def test_on_a_gpu_batches_may_be_copied_as_usual(on_gpu, values):
    assert not on_gpu(**values).accelerator_config.non_blocking


@pytest.mark.parametrize(
    "cores, gpus, workers",
    [(16, 1, 4), (16, 8, 2), (2, 1, 2), (1, 1, 1), (4, 8, 0), (16, 0, 0)],
)
def test_loader_workers_share_the_cores_of_a_machine_with_gpus(monkeypatch, cores, gpus, workers):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert default_loader_workers() == workers
