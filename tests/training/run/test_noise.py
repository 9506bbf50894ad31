"""The noise of training: the processes of a run draw dropout masks of their own, and a resume draws them again."""

import pytest
import torch
from conftest import CLS, SEP, tiny_tokenizer
from datasets import Dataset
from process_helpers import launch
from torch import nn
from trainer_helpers import SAVES, assert_same_weights, make, model_of, weights

#: Texts of one length, so that the batches of all processes have the same shape. They come in pairs, because the check
#: of dropout for single sentences draws masks that are equal in all processes.
ROWS = {"input_ids": [[[CLS, 5 + i % 20, word, 7 + i % 11, 12, SEP] for word in (9, 10)] for i in range(32)]}
CHUNK_SIZES = [None, 2]


def train(folder, name, chunk_size):
    """Train 4 steps. Write the dropout masks, the rows that the encoder read, and the trained weights into a file."""
    model = model_of(dropout=0.1)
    masks, seen = [], []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, x, y: masks.append((y == 0).flatten()[:2000].float()))
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True)
    trainer = make(
        folder / name,
        tiny_tokenizer(),
        Dataset.from_dict(ROWS),
        model,
        per_device_train_batch_size=4,
        gradcache_chunk_size=chunk_size,
        ddp_backend="gloo",
        **SAVES,
    )
    checkpoint = folder / "whole" / "run" / "checkpoint-2" if name == "resumed" else None
    trainer.train(resume_from_checkpoint=checkpoint)
    found = {"masks": masks, "rows": torch.cat(seen), "weights": weights(trainer.model)}
    torch.save(found, folder / f"{name}-{torch.distributed.get_rank()}.pt")


def train_in_process(folder):
    for chunk_size in CHUNK_SIZES:
        for name in ("whole", "resumed"):
            train(folder / str(chunk_size), name, chunk_size)


@pytest.fixture(scope="module")
def folder(module_path):
    """The folder of what two processes have found with each size of chunks."""
    launch(train_in_process, module_path)
    return module_path


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
def test_two_processes_draw_different_masks_for_different_rows_and_a_resume_has_equal_bits(folder, chunk_size):
    found = folder / str(chunk_size)
    first, second, resumed = (torch.load(found / f"{run}.pt") for run in ("whole-0", "whole-1", "resumed-1"))
    masks = torch.stack([torch.cat(first["masks"]), torch.cat(second["masks"])])
    assert abs(torch.corrcoef(masks)[0, 1]) < 4 / masks.shape[1] ** 0.5 < 0.03  # 4 standard errors
    rows = torch.cat([first["rows"], second["rows"]])
    assert len(rows.flatten(0, -2).unique(dim=0)) == 2 * len(ROWS["input_ids"])  # an epoch: each row in one process
    assert_same_weights(resumed["weights"], second["weights"])
