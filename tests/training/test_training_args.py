"""SimCSETrainingArguments refuses invalid values at construction and has suitable defaults for the device."""

import pickle
import re

import pytest
import torch
from transformers import TrainingArguments

from simcse_hf import SimCSETrainingArguments
from simcse_hf.training import decide, pretraining, training_args
from simcse_hf.training.decide import default_loader_workers


def test_data_parallel_is_refused_and_the_error_shows_the_launch_command(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(SimCSETrainingArguments, "n_gpu", property(lambda self: 4))
    monkeypatch.setattr(
        SimCSETrainingArguments, "device", property(lambda self: torch.device("cpu"))
    )
    monkeypatch.setattr(SimCSETrainingArguments, "world_size", 1)
    with pytest.raises(ValueError, match="accelerate launch --num_processes 4"):
        SimCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True)


@pytest.mark.parametrize("lacks", [True, False])
def test_bf16_is_warned_of_on_a_processor_without_its_instructions(
    tmp_path, monkeypatch, lacks
):
    warned = []
    monkeypatch.setattr(training_args, "lacks_bfloat16", lambda: lacks)
    monkeypatch.setattr(training_args.logger, "warning_once", warned.append)
    SimCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert warned == []
    SimCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=True)
    assert len(warned) == lacks and all(
        re.search(r"takes \d+ times as long as in float32", x) for x in warned
    )


def test_bf16_on_a_machine_without_a_gpu_needs_no_further_option(tmp_path, monkeypatch):
    monkeypatch.setattr(training_args, "has_only_cpu", lambda: True)
    monkeypatch.setattr(pretraining, "has_only_cpu", lambda: True)
    assert (
        SimCSETrainingArguments(output_dir=str(tmp_path), bf16=True).device.type
        == "cpu"
    )
    assert (
        pretraining.pretraining_arguments({"bf16": True, "output_dir": str(tmp_path)})[
            1
        ].device.type
        == "cpu"
    )


def test_the_access_token_is_not_pickled_with_the_arguments(tmp_path):
    arguments = SimCSETrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, hub_token="hf_secret"
    )
    copy = pickle.loads(pickle.dumps(arguments))
    assert copy.hub_token is None and copy.output_dir == str(tmp_path)
    assert arguments.hub_token == "hf_secret"


def test_on_a_gpu_batches_are_pinned_and_copied_without_blocking(tmp_path, monkeypatch):
    directory = str(tmp_path)
    on_cpu = SimCSETrainingArguments(directory, use_cpu=True)
    assert (
        not on_cpu.dataloader_pin_memory and not on_cpu.accelerator_config.non_blocking
    )
    assert (
        not on_cpu.logging_nan_inf_filter
        and on_cpu.optim == TrainingArguments(directory).optim
    )
    monkeypatch.setattr(training_args, "has_only_cpu", lambda: False)
    monkeypatch.setattr(
        SimCSETrainingArguments, "device", property(lambda self: torch.device("cuda"))
    )
    monkeypatch.setattr(SimCSETrainingArguments, "world_size", 1)
    monkeypatch.setattr(SimCSETrainingArguments, "n_gpu", property(lambda self: 1))
    on_gpu = SimCSETrainingArguments(directory)
    assert on_gpu.dataloader_pin_memory and on_gpu.accelerator_config.non_blocking
    blocking = SimCSETrainingArguments(
        directory, accelerator_config={"non_blocking": False}
    )
    assert not blocking.accelerator_config.non_blocking
    assert not SimCSETrainingArguments(
        directory, dataloader_pin_memory=False
    ).accelerator_config.non_blocking


@pytest.mark.parametrize(
    "cores, gpus, workers",
    [(16, 1, 4), (16, 8, 2), (2, 1, 2), (1, 1, 1), (4, 8, 0), (16, 0, 0)],
)
def test_loader_workers_share_the_cores_of_a_machine_with_gpus(
    monkeypatch, cores, gpus, workers
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr(decide, "has_only_cpu", lambda: gpus == 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert default_loader_workers() == workers
