"""A batch that is split into chunks or over two processes gives the weights and scores of the whole batch."""

from functools import cache, partial

import pytest
import torch
from conftest import takes_adapters, tiny_tokenizer
from evaluation_helpers import write
from process_helpers import launch
from trainer_helpers import (
    EVALUATES,
    assert_close_weights,
    make,
    model_of,
    pairs,
    scored,
    sentences,
    texts,
    vectors_of,
    weights,
)

TOKENIZER = tiny_tokenizer()
SENTENCES = texts(24)
TRIPLETS = texts(24, 3)
#: Queries with one to three negatives, and the scores of all candidates.
CANDIDATES = [
    {
        "query": text,
        "pos": sentences(1, i),
        "pos_scores": [3.0],
        "neg": sentences(1 + i % 3, 50 + i),
        "neg_scores": [1.0, 0.5, -1.0][: 1 + i % 3],
    }
    for i, text in enumerate(sentences(24, 5))
]
DATASETS = {
    "sts.b": {"objective": "cosent", "prompts": {"anchor": "the old "}, "max_seq_length": 6},
    "pairs": {"objective": "vicreg", "objective_options": {"projector_dim": 8}},
}
#: Model settings, rows, and arguments of the run, some with the folder of vectors.
RUNS = {
    "triplets": (
        {"pooler_type": "cls"},
        TRIPLETS,
        lambda folder: {"max_grad_norm": 0.5, "per_device_eval_batch_size": 4},
    ),
    "data sets": (
        {},
        {"plain": texts(26, 2), "pairs": texts(17, 2, seed=1), "sts.b": scored()},
        lambda folder: {"datasets": DATASETS, "optim": "sgd"},
    ),
    "teacher": (
        {"objective": "distill"},
        SENTENCES,
        lambda folder: {"teacher": vectors_of(folder / "of-sentences", SENTENCES)},
    ),
    "no duplicates": (
        {"objective_options": {"mask_duplicates": True}},
        texts(24, 3).map(lambda row, i: {"sent0": SENTENCES[i % 12]["sent0"]}, with_indices=True),
        lambda folder: {"batch_sampler": "no_duplicates"},
    ),
    "ranks": (
        {"objective": "simcse+distill:0.5", "objective_options": {"loss": "listmle"}},
        SENTENCES,
        lambda folder: {
            "teacher": [f"{folder / 'of-sentences'}:2", f"{folder / 'of-sentences'}:1"],
            "view": "fixed_mask",  # it lets a run learn from single sentences without dropout
        },
    ),
    "guide and teacher": (
        {"objective": "simcse+distill"},
        TRIPLETS,
        lambda folder: dict.fromkeys(("guide", "teacher"), vectors_of(folder / "of-triplets", TRIPLETS)),
    ),
}
for loss in ("kl", "margin_mse"):
    options = {"objective": "distill", "objective_options": {"loss": loss}}
    RUNS[loss] = (options, CANDIDATES, lambda folder: {})
if takes_adapters():
    RUNS["LoRA"] = ({}, TRIPLETS, lambda folder: {"lora_r": 4})


def trained(folder, name, **changes):
    """The trainer of a run that has taken 4 steps."""
    settings, rows, arguments = RUNS[name]
    values = {"max_seq_length": 16, "logging_steps": 1} | arguments(folder)
    model = model_of(dropout=0.0, **{"pooler_type": "avg"} | settings)
    trainer = make(folder, TOKENIZER, rows, model, **values | changes)
    trainer.train()
    return trainer


def found_by(folder, name, **changes):
    """The weights of a run with a dev set, what it logs and, for the triplets, what it predicts."""
    options = EVALUATES | {"dev_set": pairs()} | changes
    if name == "triplets":
        options["dev_tasks"] = [f"classification={folder / 'labelled.csv'}"]
    trainer = trained(folder, name, **options)
    predicted = None
    if name == "triplets":  # of the last batch of 21 rows, Accelerate repeats the one row for both processes
        output = trainer.predict(texts(21, 3))
        predicted = (torch.from_numpy(output.predictions), output.metrics["test_loss"])
    return weights(trainer.model), trainer.state.log_history, predicted


@pytest.fixture(scope="module")
def folder(module_path):
    """A folder with a task and with vectors."""
    rows = [f"{text},{i % 3}" for i, text in enumerate(dict.fromkeys(sentences(40, seed=9)))]
    write(module_path / "labelled.csv", ["text,label", *rows])
    vectors_of(module_path / "of-triplets", TRIPLETS)
    vectors_of(module_path / "of-sentences", SENTENCES)
    return module_path


@pytest.fixture(scope="module")
def whole(folder):
    """`whole(name)` is what a run of one process with the whole batch finds, which is trained once."""
    return cache(partial(found_by, folder))


@pytest.mark.parametrize("name", RUNS)
def test_gradcache_equals_the_whole_batch(name, folder, whole):
    cached = weights(trained(folder, name, gradcache_chunk_size=3).model)
    assert_close_weights(whole(name)[0], cached, but="key.bias", rtol=0, atol=2e-5)


def train_in_process(folder):
    batch = {"per_device_train_batch_size": 4, "ddp_backend": "gloo"}
    found = {name: found_by(folder, name, **batch) for name in RUNS}
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / "found.pt")


def test_two_processes_give_the_weights_scores_and_predictions_of_one_with_the_whole_batch(folder, whole):
    launch(train_in_process, folder)
    for name, (of_two, log_of_two, predicted_by_two) in torch.load(folder / "found.pt").items():
        of_one, log_of_one, predicted = whole(name)
        assert_close_weights(of_one, of_two, but="key.bias", rtol=0, atol=2e-5)
        tolerances = dict.fromkeys(("loss", "contrastive_loss", "grad_norm"), {"rel": 1e-3})
        tolerances["eval_stsb_spearman"] = {"abs": 1e-6}
        if name == "triplets":
            torch.testing.assert_close(predicted, predicted_by_two, atol=1e-4, rtol=1e-4)
            for metric in ("accuracy", "knn_accuracy"):
                tolerances[f"eval_classification_{metric}"] = {"abs": 1e-6}
        for metric, tolerance in tolerances.items():
            found = [[entry[metric] for entry in log if metric in entry] for log in (log_of_one, log_of_two)]
            assert found[0] and found[0] == pytest.approx(found[1], **tolerance), (name, metric)
