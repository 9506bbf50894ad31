"""Data loader workers do not change rows or losses, even after a run is resumed."""

import pytest
from conftest import WORDS, tiny_config
from datasets import Dataset
from transformers import set_seed

from simcse_hf import BertForCL, SimCSETrainer, SimCSETrainingArguments


@pytest.fixture
def losses(tmp_path, tokenizer):
    words = WORDS.split()[:18]
    texts = Dataset.from_dict(
        {"sent0": [" ".join(words[(5 * i + k) % 18] for k in range(4 + i % 5)) for i in range(8)]}
    )

    def train(name, resume=None, **options):
        set_seed(0)
        arguments = SimCSETrainingArguments(
            tmp_path / name, view="crop", view_rate=0.3, per_device_train_batch_size=4, num_train_epochs=3,
            logging_steps=1, save_steps=3, report_to=[], use_cpu=True, disable_tqdm=True, **options,
        )  # fmt: skip
        trainer = SimCSETrainer(BertForCL(tiny_config()), arguments, train_dataset=texts, processing_class=tokenizer)
        trainer.train(resume_from_checkpoint=resume and tmp_path / name / resume)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return train


def test_persistent_workers_do_not_change_the_losses_even_after_a_resume(losses):
    persistent = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    alone = losses("alone")
    assert len(alone) == 6 and losses("workers", **persistent) == alone
    assert losses("workers", resume="checkpoint-3", **persistent) == alone
