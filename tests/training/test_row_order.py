"""The order of rows does not depend on workers, on the size of a run or on a resume."""

import pytest
from trainer_helpers import logged, make, texts, train_and_resume

from simcse_hf.training import rows as rows_module


@pytest.mark.parametrize(
    "changes",
    [
        {},  # a computed order
        {"view": "crop", "view_rate": 0.3, "dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    ],
    ids=["a large run", "workers that stay"],
)
def test_a_run_that_is_resumed_in_its_second_epoch_ends_with_equal_weights(tmp_path, tokenizer, monkeypatch, changes):
    monkeypatch.setattr(rows_module, "LARGEST_LISTED", 10)
    options = changes | {"max_steps": 8, "save_strategy": "steps", "save_steps": 6, "logging_steps": 1}
    whole, _ = train_and_resume(lambda: make(tmp_path, tokenizer, texts(40), **options), 6)
    if changes:
        alone = make(tmp_path / "alone", tokenizer, texts(40), **options | {"dataloader_num_workers": 0}
                     | {"dataloader_persistent_workers": False})  # fmt: skip
        alone.train()
        assert logged(alone, "loss") == logged(whole, "loss")
