"""SimCSETrainingArguments refuses invalid values at construction and has suitable defaults for the device."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from trainer_helpers import model_of, refuses, sentences
from transformers import TrainingArguments

from simcse_hf import SimCSETrainingArguments
from simcse_hf.apps import pretraining
from simcse_hf.training import arguments as training_args
from simcse_hf.training.decide import decide_run, with_values

EVERY_CLASS = pytest.mark.parametrize("arguments_class", [SimCSETrainingArguments, pretraining.PretrainingArguments])


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
        of_arguments = {
            "device": property(lambda self: torch.device(device)),
            "n_gpu": property(lambda self: gpus),
            "world_size": 1,
        }
        for name, value in of_arguments.items():
            monkeypatch.setattr(SimCSETrainingArguments, name, value)
        monkeypatch.setattr(training_args, "has_only_cpu", lambda: device == "cpu")

    return pretend


def test_data_parallel_is_refused_and_the_error_shows_the_launch_command(arguments, pretend):
    pretend("cpu", gpus=4)
    with refuses("accelerate launch --num_processes 4"):
        arguments(use_cpu=True)


@pytest.mark.parametrize("bf16, lacks, warned", [(False, True, 0), (True, False, 0), (True, True, 1)])
def test_bf16_is_warned_of_on_a_processor_without_its_instructions(arguments, bf16, lacks, warned, monkeypatch):
    warnings = []
    monkeypatch.setattr(training_args, "lacks_bfloat16", lambda: lacks)
    monkeypatch.setattr(training_args.logger, "warning_once", warnings.append)
    arguments(use_cpu=True, bf16=bf16)
    assert len(warnings) == warned


@EVERY_CLASS
@pytest.mark.parametrize(
    "name, value", [("max_steps", 0), ("num_train_epochs", 0), ("learning_rate", math.nan), ("weight_decay", -1.0)]
)
def test_a_run_that_could_not_learn_is_refused(name, value, arguments_class, tmp_path):
    with refuses(name):
        arguments_class(str(tmp_path), **{name: value})


def test_bf16_on_a_machine_without_a_gpu_needs_no_further_option(arguments, tmp_path, monkeypatch):
    for module in (training_args, pretraining):
        monkeypatch.setattr(module, "has_only_cpu", lambda: True)
    assert arguments(bf16=True).device.type == "cpu"
    assert pretraining.pretraining_arguments(bf16=True, output_dir=str(tmp_path)).device.type == "cpu"


def test_the_access_token_is_not_saved_beside_the_model(make, tmp_path):
    trainer = make(sentences(8), hub_token="hf_secret")
    trainer.save_model()
    saved = torch.load(tmp_path / "run/training_args.bin", weights_only=False)
    assert (saved.hub_token, saved.output_dir) == (None, trainer.args.output_dir)
    assert trainer.args.hub_token == "hf_secret"


@EVERY_CLASS
def test_copies_of_arguments_have_the_access_token_and_no_text_of_them_shows_it(arguments_class, tmp_path):
    args = arguments_class(str(tmp_path), hub_token="hf_secret")
    for each in (args, copy.copy(args), copy.deepcopy(args), replace(args, seed=1)):
        assert each.hub_token == "hf_secret"
        texts = (repr(each), str(each), each.to_json_string(), str(each.to_sanitized_dict()))
        assert not any("hf_secret" in text for text in texts)


def test_on_a_cpu_batches_are_copied_as_usual_and_every_loss_is_logged(arguments, tmp_path):
    on_cpu = arguments(use_cpu=True)
    assert not on_cpu.dataloader_pin_memory
    assert not on_cpu.accelerator_config.non_blocking
    assert not on_cpu.logging_nan_inf_filter
    assert on_cpu.optim == TrainingArguments(str(tmp_path)).optim


@pytest.mark.parametrize(
    "values, non_blocking",
    [({}, True), ({"accelerator_config": {"non_blocking": False}}, False), ({"dataloader_pin_memory": False}, False)],
)
def test_on_a_gpu_batches_are_copied_without_blocking_where_they_are_pinned(arguments, pretend, values, non_blocking):
    pretend("cuda", gpus=1)
    args = arguments(**values)
    assert args.dataloader_pin_memory == values.get("dataloader_pin_memory", True)
    assert args.accelerator_config.non_blocking == non_blocking


@pytest.mark.parametrize("cores, gpus, workers", [(16, 1, 4), (16, 8, 2), (4, 8, 0), (16, 0, 0)])
def test_loader_workers_share_the_cores_of_a_machine_with_gpus(arguments, monkeypatch, cores, gpus, workers):
    args = with_values(arguments(use_cpu=True), use_cpu=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert decide_run(args, model_of(), None).arguments.dataloader_num_workers == workers
