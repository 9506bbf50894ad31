"""Trainers on tiny encoders, and for each objective one with rows of the kind that it learns from."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_config
from datasets import Dataset
from transformers import TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments, SimilarityEvalCallback
from simcse_hf.data.documents import SpanDataset
from simcse_hf.encoding.files import write_vectors
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.objectives import OBJECTIVES, described_objective
from simcse_hf.runtime.files import LOCK
from simcse_hf.training.recipe import Recipe

WORDS = VOCABULARY[5:25]
SMALL = {"projector_dim": 16}
TEMPLATES = ["the {text} [MASK] .", "a {text} [MASK] ."]
#: Model settings for each objective, none for one that is not named here. `rows_for` makes the training rows.
SETTINGS = dict.fromkeys(OBJECTIVES, {}) | {
    "simcse": {"objective_options": {"symmetric": True, "mask_duplicates": True}},
    "softmax": {"pooler_type": "avg_no_cls"},
    "supcon": {"pooler_type": "avg_no_cls"},
    "softmax:0.7+supcon:0.3": {"pooler_type": "avg_no_cls"},
    "barlow_twins": {"objective_options": SMALL},
    "vicreg": {"objective_options": SMALL},
    "contrastive_tension": {"objective_options": {"negatives_per_positive": 3}},
    "is_bert": {"pooler_type": "avg"},
    "declutr": {"pooler_type": "avg", "do_mlm": True, "mlm_weight": 1.0},
    "esimcse": {"objective_options": {"queue_size": 8}},
    "promptbert": {"pooler_type": "mask", "templates": TEMPLATES},
    "tsdae": {"pooler_type": "cls_before_pooler"},
    "cosent": {"pooler_type": "cls_before_pooler"},
    "class_labels": {"pooler_type": "avg"},
    "angle": {"pooler_type": "avg", "objective_options": {"positive_score": 3.0}},
    "distill": {"pooler_type": "avg", "objective_options": {"loss": "listnet"}},
}


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


def scored_by(model, tokenizer, rows=40):
    """A dev set on which a model is perfect, and no other one."""
    dev_set = SimilarityEvalCallback(pairs(rows))
    dev_set.evaluate(model, tokenizer)
    gold = dev_set.scores["stsb_spearman"]["pairs"]["predicted"].tolist()
    return ScoredPairs("stsb", dev_set.pairs.sentences1, dev_set.pairs.sentences2, gold)


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
    """End a run at the begin of a step: by an error, or by SIGTERM, after which this step is finished and saved."""

    def __init__(self, step, error=KeyboardInterrupt):
        self.step = step
        self.error = error

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step - 1 and self.error is None:
            os.kill(os.getpid(), signal.SIGTERM)
        elif state.global_step == self.step - 1:
            raise self.error


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
    resumed.train(resume_from_checkpoint=str(Path(whole.args.output_dir, f"checkpoint-{step}")))
    assert_same_weights(weights(whole.model), weights(resumed.model))
    return whole, resumed


def files_of(path, *but):
    """The content of a file, or of each file in a folder by its name, without the lock and the names left out."""
    files = [each for each in (path, *path.rglob("*")) if each.is_file() and each.name not in (LOCK, *but)]
    return {each.relative_to(path): each.read_bytes() for each in files}


@contextmanager
def refuses(words, kinds=ValueError):
    """Expect an error that names each of some words."""
    with pytest.raises(kinds) as raised:
        yield
    assert [word for word in words.split() if word not in str(raised.value)] == [], raised.value


def logged(trainer, name):
    """What the trainer logged under a name, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def rows_for(objective, tokenizer):
    row_type = described_objective(objective).rows
    if row_type == "spans":
        return SpanDataset([sentences(6, seed=i) for i in range(16)], tokenizer, 12)
    if row_type == "nli":
        texts = [[s, *sentences(2 + i % 2, seed=50 + i)] for i, s in enumerate(sentences(16))]
        return Dataset.from_dict({"texts": texts, "relations": [[0, 2, 1][: len(row) - 1] for row in texts]})
    if row_type == "scored_pairs":
        return scored(16, seed=0)
    if row_type == "classes":
        return Dataset.from_dict({"text": sentences(16), "label": [i % 5 for i in range(16)]})
    return Dataset.from_dict({"sent0": sentences(16)})


def vectors_of(folder, rows, dim=8, seed=0):
    """A folder with random vectors of the texts of rows, as a teacher or a guide."""
    if not folder.exists():
        vectors = np.random.default_rng(seed).normal(size=(*rows.shape, dim))
        write_vectors(folder, rows, vectors, "random", 5)
    return str(folder)


def trainer_of(start, tmp_path, tokenizer, objective, settings=None, **changes):
    torch.manual_seed(1)
    settings = SETTINGS[objective] if settings is None else settings
    options = dict(settings.get("objective_options", {}))
    if objective == "diffcse":
        options["generator"] = str(start)
    model = AutoModelForCL.from_pretrained(
        start,
        head="fresh",
        **{"do_mlm": False, "objective": objective} | settings | {"objective_options": options},
    )
    rows = rows_for(objective, tokenizer)
    values = SAVES | EVALUATES | {"per_device_train_batch_size": 4, "max_steps": 6, "max_seq_length": 16}
    values |= {"logging_steps": 1, "save_steps": 3, "eval_steps": 6}
    if objective == "distill":
        values["teacher"] = vectors_of(tmp_path / "teacher", rows)
    return make(tmp_path, tokenizer, rows, model, dev_set=pairs(6), **values | changes)


def train_command(method, words):
    """Train as `simcse-hf train METHOD` does with these words, in one string or a list."""
    return Recipe.read(method, words.split() if isinstance(words, str) else words).train()
