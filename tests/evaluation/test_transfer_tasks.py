"""The transfer tasks: SentEval's folders, the three protocols, and the classifier against single plain fits."""

import copy

import numpy as np
import pytest
import torch
from evaluation_helpers import SHARED, BagOfWords, write_transfer
from sklearn.metrics import f1_score
from torch.nn.functional import cross_entropy

from simcse_hf.evaluation.classifier import CLASSIFIER_CONFIGS, SEED, LogisticRegressionGrid
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.tasks.senteval import TRANSFER_EXAMPLES, TransferTask, read_transfer_task

# --- the real sets ---


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")
@pytest.mark.parametrize("task", ["MR", "SUBJ", "SST2", "SST5", "TREC", "MRPC"])
def test_the_real_sets_have_their_published_sizes(task):
    splits = read_transfer_task(task, SHARED / "data/senteval/downstream")
    sizes = {split: len(examples) for split, examples in splits.items()}
    assert sizes == TRANSFER_EXAMPLES[task]
    for examples in splits.values():
        assert all(text for texts, _ in examples for text in texts)


# --- scores of small sets ---


@pytest.mark.parametrize("task, tested", [("MR", 120), ("SST2", 60), ("TREC", 72), ("MRPC", 60)])
def test_a_task_is_scored_by_the_share_of_correct_examples(task, tested, tmp_path):
    """The folds of nested cross-validation are of one size here, so their mean is the mean over examples."""
    write_transfer(tmp_path)
    made = TransferTask.of(task, read_transfer_task(task, tmp_path), str(tmp_path), Protocol("fasttest"), "cpu")
    result = made.score(embed_all(BagOfWords(), made.roles))
    scored = result.scores[task]
    correct, gold = scored["correct"], scored["gold"]
    assert len(gold) == len(correct) == tested <= sum(result.details["examples"].values())
    assert result.details["accuracy"] == pytest.approx(100 * correct.mean())
    assert 100 * np.bincount(gold).max() / tested < result.details["accuracy"] <= 100
    assert ("f1" in result.details) == (task == "MRPC")
    if task == "MRPC":
        assert result.details["f1"] == pytest.approx(100 * f1_score(gold, np.where(correct, gold, 1 - gold)))
        assert result.details["f1"] > 0


# --- the classifier ---


def examples(number, classes, seed, noise=2.0):
    """Vectors around the centre of their class, and the classes."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, classes, number)
    centres = np.random.RandomState(7).randn(classes, 5)
    vectors = centres[labels] + noise * random.randn(number, 5)
    return vectors.astype(np.float32), labels


def accuracy(model, vectors, labels):
    predicted = model(torch.as_tensor(vectors).double()).argmax(1).numpy()
    return (predicted == labels).mean()


def hold_out(vectors, labels, random):
    """Divide into 95% to train on and 5% to stop by."""
    order = random.permutation(len(vectors))
    cut = int(0.05 * len(vectors))
    held, kept = order[:cut], order[cut:]
    return (vectors[kept], labels[kept]), (vectors[held], labels[held])


def train_epoch(model, optimizer, vectors, labels, batch_size, random):
    order = random.permutation(len(vectors))
    for start in range(0, len(vectors), batch_size):
        rows = order[start : start + batch_size]
        logits = model(torch.as_tensor(vectors[rows]).double())
        loss = cross_entropy(logits, torch.as_tensor(labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def slow_fit(train, held_out, classes, config, l2):
    """One fit like SentEval's, with torch's layer, loss and optimizer in float64; the best accuracy and its model."""
    random = np.random.RandomState(SEED)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(train[0].shape[1], classes).double()
    if held_out is None:
        train, held_out = hold_out(*train, random)
    optimizers = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    optimizer = optimizers[config.optimizer](model.parameters(), weight_decay=l2)
    best = -1
    best_model = None
    not_better = 0
    for _ in range(0, 201, config.epoch_size):
        for _ in range(config.epoch_size):
            train_epoch(model, optimizer, *train, config.batch_size, random)
        found = accuracy(model, *held_out)
        if found > best:
            best = found
            best_model = copy.deepcopy(model)
        elif not_better == config.tenacity:
            break
        else:
            not_better += 1
    return best, best_model


L2 = (1e-5, 1e-2, 1.0)


@pytest.mark.parametrize("mode", ["test", "fasttest"])
@pytest.mark.parametrize("classes, has_dev_set", [(2, True), (5, True), (3, False)])
def test_the_fits_of_the_grid_are_separate_fits(classes, has_dev_set, mode):
    config = CLASSIFIER_CONFIGS[mode]
    train = examples(300, classes, seed=0)
    held_out = examples(100, classes, seed=1) if has_dev_set else None
    grid = LogisticRegressionGrid(classes, config, L2)
    accuracies = grid.fit(*train, held_out)
    weights = grid.weight.view(len(L2), classes, -1)
    test = examples(200, classes, seed=2)
    correct = grid.correct(*test)
    assert correct.shape == (200, len(L2))
    for number, l2 in enumerate(L2):
        best, model = slow_fit(train, held_out, classes, config, l2)
        assert accuracies[number] == pytest.approx(best, abs=1e-9)
        expected = torch.cat([model.weight, model.bias[:, None]], dim=1).float()
        torch.testing.assert_close(weights[number], expected, rtol=0, atol=1e-4)
        assert correct[:, number].mean() == pytest.approx(accuracy(model, *test), abs=0.006)
