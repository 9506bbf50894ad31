"""The order of rows in runs that are too large for a list of all row numbers."""

import pytest
import torch
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from torch.utils.data import RandomSampler

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.samplers import PermutedSampler
from simcse_hf.training import rows as rows_module


@pytest.fixture
def trainer_of(tmp_path, tokenizer):
    def make(name, **changes):
        torch.manual_seed(1)
        model = AutoModelForCL.from_config(tiny_config("bert", initializer_range=0.2))
        words = VOCABULARY[5:25]
        rows = Dataset.from_dict({"sent0": [f"{words[i % 20]} {words[i // 20]}" for i in range(40)]})
        values = {"max_steps": 8, "save_strategy": "steps", "save_steps": 3, "seed": 3, "learning_rate": 1e-3}
        arguments = SimCSETrainingArguments(
            output_dir=str(tmp_path / name),
            per_device_train_batch_size=8,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            **(values | changes),
        )
        return SimCSETrainer(model, arguments, rows, processing_class=tokenizer)

    return make


def test_only_runs_above_the_limit_have_a_computed_order(trainer_of, monkeypatch):
    trainer = trainer_of("run")
    assert type(trainer._get_train_sampler()) is RandomSampler
    monkeypatch.setattr(rows_module, "LARGEST_LISTED", 40)
    assert type(trainer._get_train_sampler()) is RandomSampler
    monkeypatch.setattr(rows_module, "LARGEST_LISTED", 39)
    sampler = trainer._get_train_sampler()
    assert type(sampler) is PermutedSampler and list(sampler) == list(PermutedSampler(40, seed=3))
    sampler = trainer_of("other", data_seed=5)._get_train_sampler()
    assert list(sampler) == list(PermutedSampler(40, seed=5))


def test_a_large_run_that_is_resumed_in_its_second_epoch_ends_with_equal_weights(trainer_of, monkeypatch):
    monkeypatch.setattr(rows_module, "LARGEST_LISTED", 10)
    whole = trainer_of("whole")
    whole.train()
    resumed = trainer_of("whole")
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-6")
    for (name, ours), theirs in zip(
        resumed.model.state_dict().items(), whole.model.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs), name
