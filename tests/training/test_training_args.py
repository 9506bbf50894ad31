"""SimCSETrainingArguments refuses invalid values at construction and has suitable defaults for the device."""

import pickle

import pytest
import torch

from simcse_hf import SimCSETrainingArguments


@pytest.mark.parametrize(
    "values, message",
    [
        ({"view": "mirror"}, "view must be one of identity, fixed_mask"),
        ({"mlm_probability": 0.0}, "mlm_probability must lie between 0 and 1"),
        ({"max_seq_length": 2}, "max_seq_length must be at least 3"),
        ({"fp16": True, "use_cpu": True}, "fp16 does nothing on a CPU"),
    ],
)
def test_invalid_values_are_refused(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        SimCSETrainingArguments(output_dir=str(tmp_path), **values)


def test_data_parallel_is_refused_and_the_error_shows_the_launch_command(tmp_path, monkeypatch):
    monkeypatch.setattr(SimCSETrainingArguments, "n_gpu", property(lambda self: 4))
    monkeypatch.setattr(SimCSETrainingArguments, "device", property(lambda self: torch.device("cpu")))
    with pytest.raises(ValueError, match="accelerate launch --num_processes 4"):
        SimCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True)


def test_the_access_token_is_not_pickled_with_the_arguments(tmp_path):
    arguments = SimCSETrainingArguments(output_dir=str(tmp_path), use_cpu=True, hub_token="hf_secret")
    copy = pickle.loads(pickle.dumps(arguments))
    assert copy.hub_token is None and copy.output_dir == str(tmp_path)
    assert arguments.hub_token == "hf_secret"


def test_on_a_gpu_batches_are_pinned_and_copied_without_blocking(tmp_path, monkeypatch):
    directory = str(tmp_path)
    on_cpu = SimCSETrainingArguments(directory, use_cpu=True)
    assert not on_cpu.dataloader_pin_memory and not on_cpu.accelerator_config.non_blocking
    assert not on_cpu.logging_nan_inf_filter and on_cpu.optim == "adamw_torch_fused"
    monkeypatch.setattr(SimCSETrainingArguments, "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(SimCSETrainingArguments, "n_gpu", property(lambda self: 1))
    on_gpu = SimCSETrainingArguments(directory)
    assert on_gpu.dataloader_pin_memory and on_gpu.accelerator_config.non_blocking
    blocking = SimCSETrainingArguments(directory, accelerator_config={"non_blocking": False})
    assert not blocking.accelerator_config.non_blocking
    assert not SimCSETrainingArguments(directory, dataloader_pin_memory=False).accelerator_config.non_blocking
