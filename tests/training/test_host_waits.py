"""A step never makes the host wait for the device: on meta tensors, which have no values, every wait is an error."""

from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
from conftest import tiny_config
from trainer_helpers import SETTINGS, trainer_of

from simcse_hf import AutoModelForCL
from simcse_hf.training.gradcache import CachedBatch

#: Why a training step with these objectives waits. What stands before a comma is the objective.
WAITS = {
    "supcon": "selects the premises of the batch that have a positive, and their positives: numbers that vary",
    "softmax+supcon": "contains supcon",
    "simcse, do_mlm": "draws masks on the CPU, and selects the masked tokens",
    "simcse, fixed_mask": "compares the views of a row, which must be the same text",
    "softmax, augment": "selects the pairs that it adds, whose number varies",
    "declutr": "draws the masks of its masked-LM loss on the CPU, and selects the masked tokens",
    "diffcse": "draws masks on the CPU, and its generator is a stock model that looks for padding",
    "promptbert": "checks that each text holds one mask token, and encodes each template once for each length",
}
#: The settings of the model and the arguments of the run, where they are not those of the objective.
OPTIONS = {
    "simcse, do_mlm": {"settings": {"do_mlm": True}},
    "simcse, fixed_mask": {"view": "fixed_mask"},
    "softmax, augment": {"settings": SETTINGS["softmax"] | {"objective_options": {"augment": True}}},
}
CASES = [*SETTINGS, *OPTIONS]


@contextmanager
def no_waits():
    """Refuse what copies to a device and waits, which meta tensors allow; autocast does not know them."""
    make = torch.tensor

    def on_the_cpu(*args, device=None, **kwargs):
        if torch.device("cpu" if device is None else device).type != "cpu":
            raise RuntimeError("torch.tensor copies to the meta device, and waits")
        return make(*args, **kwargs)

    with mock.patch("torch.tensor", on_the_cpu), mock.patch("torch.autocast", lambda *_, **__: nullcontext()):
        yield


@pytest.fixture
def start(save_checkpoint):
    torch.manual_seed(1)
    return save_checkpoint(AutoModelForCL.from_config(tiny_config(initializer_range=0.2), do_mlm=True), "start")


def on_meta(trainer):
    """Move a trainer's model and its first batch to the meta device, as a run on an accelerator would have them."""
    trainer.data_collator.add_lengths = True
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(4)])
    trainer.model.to("meta")
    return {name: x.to("meta") for name, x in batch.items()}


def step(trainer, batch):
    trainer.model.train()
    with no_waits():
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
    assert loss.device.type == "meta" and any(x.grad is not None for x in trainer.model.parameters())


@pytest.mark.parametrize("case", CASES)
def test_a_training_step_waits_only_where_the_list_says_why(start, tmp_path, tokenizer, case):
    trainer = trainer_of(start, tmp_path, tokenizer, case.split(",")[0], **OPTIONS.get(case, {}))
    batch = on_meta(trainer)
    if case not in WAITS:
        step(trainer, batch)
        return
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        step(trainer, batch)


def test_gradcache_waits_for_nothing(monkeypatch):
    with torch.device("meta"):
        model = AutoModelForCL.from_config(tiny_config()).train()
    ids, lengths = meta_batch()
    monkeypatch.setattr("simcse_hf.training.gradcache.preserve_random_state", lambda device: nullcontext())
    model.prepare_objective()
    with no_waits():
        inputs = {"input_ids": ids, "attention_mask": torch.empty_like(ids), "lengths": lengths}
        cached = CachedBatch(model, inputs, chunk_size=2)
        cached.output.loss.backward()
        assert cached.backward().loss.device.type == "meta"
    assert model.base_model.embeddings.word_embeddings.weight.grad is not None


def test_without_the_lengths_a_step_on_an_accelerator_waits_for_the_mask():
    with torch.device("meta"):
        model = AutoModelForCL.from_config(tiny_config()).train()
    ids, _ = meta_batch()
    with no_waits(), pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        model(ids, torch.empty_like(ids))


def meta_batch():
    lengths = torch.tensor([[5, 5], [9, 9], [3, 3], [7, 7]]).numpy()
    return torch.zeros(4, 2, 9, dtype=torch.long, device="meta"), lengths
