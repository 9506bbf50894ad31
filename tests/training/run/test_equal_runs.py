"""A batch that is split into chunks or over two processes gives the weights and scores of the whole batch."""

import pytest
import torch
from conftest import NEEDS_PEFT, tiny_tokenizer
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
if not NEEDS_PEFT.args[0]:
    RUNS["LoRA"] = ({}, TRIPLETS, lambda folder: {"lora_r": 4})


def trained(folder, name, **changes):
    """The trainer of a run that has taken 4 steps."""
    settings, rows, arguments = RUNS[name]
    vectors_of(folder / "of-sentences", SENTENCES)
    values = EVALUATES | {"max_seq_length": 16, "logging_steps": 1} | arguments(folder)
    values |= {"dev_set": pairs(), "dev_tasks": [f"classification={folder / 'labelled.csv'}"]}
    model = model_of(dropout=0.0, **{"pooler_type": "avg"} | settings)
    trainer = make(folder, TOKENIZER, rows, model, **values | changes)
    trainer.train()
    return trainer


@pytest.fixture
def folder(tmp_path):
    """A folder with a task; the vectors come there with the first run."""
    rows = [f"{text},{i % 3}" for i, text in enumerate(dict.fromkeys(sentences(40, seed=9)))]
    (tmp_path / "labelled.csv").write_text("\n".join(["text,label", *rows]))
    return tmp_path


@pytest.mark.parametrize("name", RUNS)
def test_gradcache_equals_the_whole_batch(name, folder):
    plain, cached = (weights(trained(folder, name, gradcache_chunk_size=size).model) for size in (None, 3))
    assert_close_weights(plain, cached, but="key.bias", rtol=0, atol=2e-5)


def train_in_process(folder, processes):
    found = {}
    for name in RUNS:
        batch = {"per_device_train_batch_size": 8 // processes, "ddp_backend": "gloo"}
        trainer = trained(folder, name, **batch)
        found[name] = (weights(trainer.model), trainer.state.log_history)
        if name == "triplets":  # of the last batch of 21 rows, Accelerate repeats the one row for both processes
            predicted = trainer.predict(texts(21, 3))
            found["predicted"] = (torch.from_numpy(predicted.predictions), predicted.metrics["test_loss"])
    if processes == 1 or torch.distributed.get_rank() == 0:
        torch.save(found, folder / f"of-{processes}.pt")


def test_two_processes_give_the_weights_scores_and_predictions_of_one_with_the_whole_batch(folder):
    vectors_of(folder / "of-triplets", TRIPLETS)
    vectors_of(folder / "of-sentences", SENTENCES)
    for processes in (1, 2):
        launch(train_in_process, folder, processes, processes=processes)
    one, two = (torch.load(folder / f"of-{processes}.pt") for processes in (1, 2))
    for name in RUNS:
        assert_close_weights(one[name][0], two[name][0], but="key.bias", rtol=0, atol=2e-5)
        tolerances = dict.fromkeys(("loss", "contrastive_loss", "grad_norm"), {"rel": 1e-3})
        for metric in ("stsb_spearman", "classification_accuracy", "classification_knn_accuracy"):
            tolerances[f"eval_{metric}"] = {"abs": 1e-6}
        for metric, tolerance in tolerances.items():
            found = [[entry[metric] for entry in run[name][1] if metric in entry] for run in (one, two)]
            assert found[0] and found[0] == pytest.approx(found[1], **tolerance), (name, metric)
    torch.testing.assert_close(one["predicted"], two["predicted"], atol=1e-4, rtol=1e-4)
