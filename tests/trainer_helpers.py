"""Trainers on tiny encoders, and for each objective rows of the kind that it learns from."""

import os
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_config, tiny_tokenizer
from datasets import Dataset
from transformers import TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.data.documents import SpanDataset
from simcse_hf.encoding.files import write_vectors
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.objectives import described_objective
from simcse_hf.runtime.files import LOCK
from simcse_hf.training.checkpoints import checkpoints
from simcse_hf.training.recipe import Recipe

WORDS = VOCABULARY[5:25]


def sentences(rows, seed=0, words=6):
    generator = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (words,), generator=generator)) for _ in range(rows)]


def texts(rows, columns=1, seed=0):
    """Rows of random sentences."""
    return Dataset.from_dict({f"sent{c}": sentences(rows, seed + 100 * c) for c in range(columns)})


def scored(rows=19, seed=3):
    """Rows of pairs with a score."""
    pairs = {"sentence1": sentences(rows, seed), "sentence2": sentences(rows, seed + 1)}
    return Dataset.from_dict(pairs | {"score": [i % 6 / 1.25 for i in range(rows)]})


def pairs(rows=12):
    """A dev set of random sentences."""
    return ScoredPairs(
        "stsb",
        sentences(rows, 9),
        sentences(rows, 10),
        [float(i % 6) for i in range(rows)],
    )


def model_of(model_type="bert", dropout=None, **settings):
    """Make a model whose weights are large enough for clearly different embeddings of random sentences."""
    torch.manual_seed(1)
    return AutoModelForCL.from_config(tiny_config(model_type, dropout=dropout, initializer_range=0.2), **settings)


def arguments(tmp_path, **changes):
    values = {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 8,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    return SimCSETrainingArguments(**(values | changes))


class End(TrainerCallback):
    """End a run by an error at the begin of a step."""

    def __init__(self, step, error=KeyboardInterrupt):
        self.step = step
        self.error = error

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step - 1:
            raise self.error


class Signal(TrainerCallback):
    """Send a signal to this process during a step."""

    def __init__(self, number, step, rank=0):
        self.number = number
        self.step = step
        self.rank = rank

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step - 1 and args.process_index == self.rank:
            os.kill(os.getpid(), self.number)


class Rates(TrainerCallback):
    """Note the learning rates of each step."""

    def __init__(self):
        self.used = []

    def on_pre_optimizer_step(self, args, state, control, optimizer, **_):
        self.used.append([group["lr"] for group in optimizer.param_groups])


#: Arguments that evaluate, and those that also save and load the best model at the end.
EVALUATES = {"eval_strategy": "steps", "eval_steps": 2}
SAVES = {"save_strategy": "steps", "save_steps": 2}
KEEPS_BEST = EVALUATES | SAVES | {"load_best_model_at_end": True}
_OF_THE_TRAINER = {
    *"dev_set dev_tasks general eval_dataset callbacks data_collator model_init optimizers compute_loss_func".split(),
    *"optimizer_cls_and_kwargs compute_metrics preprocess_logits_for_metrics".split(),
}


def make(tmp_path, tokenizer, data=None, model=None, trainer_class=SimCSETrainer, **options):
    """A trainer of 4 steps; options are those of the trainer or of its arguments."""
    own = {name: options.pop(name) for name in _OF_THE_TRAINER & options.keys()}
    if model is None and "model_init" not in own:
        model = model_of()
    data = texts(32) if data is None else data
    return trainer_class(model, arguments(tmp_path, **options), data, processing_class=tokenizer, **own)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def assert_close_weights(one, other, but="no such name", **tolerance):
    """Compare all weights but those with a word in their name, such as "key.bias".

    Its gradient is zero up to rounding, which Adam amplifies.
    """
    for name, tensor in one.items():
        if but not in name:
            torch.testing.assert_close(tensor, other[name], **tolerance)


def train_and_resume(trainer, step):
    """Train a new trainer, and another one from a checkpoint of it, which ends with the same bits; return both."""
    whole = trainer()
    whole.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=Path(whole.args.output_dir, f"checkpoint-{step}"))
    assert_same_weights(weights(whole.model), weights(resumed.model))
    return whole, resumed


def saved_steps(folder):
    """The steps of the checkpoints in a folder, from the newest one on."""
    return [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(folder)]


def files_of(path, *but):
    """The content of a file, or of each file in a folder by its name, without the lock and the names left out."""
    files = [each for each in (path, *path.rglob("*")) if each.is_file() and each.name not in (LOCK, *but)]
    return {each.relative_to(path): each.read_bytes() for each in files}


@contextmanager
def refuses(words, kinds=ValueError):
    """Expect an error that names some words in their order."""
    with pytest.raises(kinds) as raised:
        yield
    assert re.search(".*".join(map(re.escape, words.split())), str(raised.value), re.DOTALL), raised.value


def without_times(value):
    """The entries of nested dictionaries and lists that do not depend on the clock."""
    if isinstance(value, dict):
        kept = {name: without_times(inner) for name, inner in value.items()}
        return {name: inner for name, inner in kept.items() if not re.search("runtime|seconds|per_second", name)}
    if isinstance(value, list):
        return [without_times(inner) for inner in value]
    return value


def logged(trainer, name):
    """What the trainer logged under a name, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def rows_for(objective):
    """Rows of the kind that an objective learns from."""
    row_type = described_objective(objective).rows
    if row_type == "spans":
        return SpanDataset([sentences(6, seed=i) for i in range(16)], tiny_tokenizer(), 12)
    if row_type == "nli":
        texts = [[s, *sentences(2 + i % 2, seed=50 + i)] for i, s in enumerate(sentences(16))]
        return Dataset.from_dict({"texts": texts, "relations": [[0, 2, 1][: len(row) - 1] for row in texts]})
    if row_type == "scored_pairs":
        return scored(16, seed=0)
    if row_type == "classes":
        return Dataset.from_dict({"text": sentences(16), "label": [i % 5 for i in range(16)]})
    return Dataset.from_dict({"sent0": sentences(16)})


def vectors_of(folder, rows, seed=0):
    """A folder with random vectors of the texts of rows, as a teacher or a guide."""
    if not folder.exists():
        vectors = np.random.default_rng(seed).normal(size=(*rows.shape, 8))
        write_vectors(folder, rows, vectors, "random", 5)
    return str(folder)


def train_command(method, words):
    """Train as `simcse-hf train METHOD` does with these words, in one string or a list."""
    return Recipe.read(method, words.split() if isinstance(words, str) else words).train()
