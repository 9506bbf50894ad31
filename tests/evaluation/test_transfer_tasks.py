"""The transfer tasks: SentEval's folders, the three protocols, and the classifier against single plain fits."""

import copy

import numpy as np
import pytest
import torch
from evaluation_helpers import SHARED, BagOfWords, write_transfer

from simcse_hf.evaluation.classifier import FAST_CONFIG, SEED, TEST_CONFIG, LogisticRegressionGrid
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.transfer import TRANSFER_EXAMPLES, read_transfer_task, score_transfer_task


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")
@pytest.mark.parametrize("task", ["MR", "SUBJ", "SST2", "SST5", "TREC", "MRPC"])
def test_the_real_sets_have_their_published_sizes(task):
    splits = read_transfer_task(task, SHARED / "data/senteval/downstream")
    assert {split: len(examples) for split, examples in splits.items()} == TRANSFER_EXAMPLES[task]
    assert all(text for examples in splits.values() for text in examples.texts)


def score(task, folder, mode="fasttest"):
    splits = read_transfer_task(task, folder)
    texts = [text for part in splits.values() for text in part.texts]
    return score_transfer_task(task, splits, SentenceEmbeddings(BagOfWords(), texts), Protocol(mode), device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("downstream")
    write_transfer(folder)
    return folder


@pytest.mark.parametrize("task, tested", [("MR", 120), ("SST2", 60), ("TREC", 72), ("MRPC", 60)])
def test_each_protocol_scores_every_test_example(folder, task, tested):
    result, scored = score(task, folder)
    assert len(scored["gold"]) == len(scored["correct"]) == tested
    # The folds of nested cross-validation are of one size here, so that their mean is the mean over examples.
    assert result["accuracy"] == pytest.approx(100 * scored["correct"].mean())
    assert 100 * np.bincount(scored["gold"]).max() / tested < result["accuracy"] <= 100
    assert ("f1" in result) == (task == "MRPC")
    if task == "MRPC":
        hits = (scored["correct"] & (scored["gold"] == 1)).sum()
        assert hits > 0 and result["f1"] == pytest.approx(100 * 2 * hits / (2 * hits + (~scored["correct"]).sum()))
    assert sum(result["examples"].values()) >= tested


def data(n, classes, seed, noise=2.0):
    random = np.random.RandomState(seed)
    y = random.randint(0, classes, n)
    centres = np.random.RandomState(7).randn(classes, 5)
    return (centres[y] + noise * random.randn(n, 5)).astype(np.float32), y


def slow_fit(x, y, held_out, classes, config, l2):
    """Slow reference: one fit like SentEval's, with torch's layer, loss and optimizer in float64."""
    random = np.random.RandomState(SEED)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(x.shape[1], classes).double()
    if held_out is None:
        order = random.permutation(len(x))
        cut = int(0.05 * len(x))
        held_out, (x, y) = (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])
    x, y, held_x, held_y = (torch.as_tensor(v) for v in (x, y, *held_out))
    kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[config.optimizer]
    optimizer = kind(model.parameters(), weight_decay=l2)
    best, best_model, count, epoch, stop = -1, None, 0, 0, False
    while not stop and epoch <= 200:
        for _ in range(config.epoch_size):
            order = random.permutation(len(x))
            for start in range(0, len(x), config.batch_size):
                rows = order[start : start + config.batch_size]
                loss = torch.nn.functional.cross_entropy(model(x[rows].double()), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += config.epoch_size
        accuracy = (model(held_x.double()).argmax(1) == held_y).double().mean().item()
        if accuracy > best:
            best, best_model = accuracy, copy.deepcopy(model)
        else:
            if count >= config.tenacity:
                stop = True
            count += 1
    return best, best_model


@pytest.mark.parametrize("config", [TEST_CONFIG, FAST_CONFIG])
@pytest.mark.parametrize("classes, held", [(2, True), (5, True), (3, False)])
def test_the_grid_equals_separate_fits(config, classes, held):
    x, y = data(300, classes, seed=0)
    held_out = data(100, classes, seed=1) if held else None
    l2 = (1e-5, 1e-2, 1.0)
    grid = LogisticRegressionGrid(classes, config, l2)
    accuracies = grid.fit(x, y, held_out)
    test_x, test_y = data(200, classes, seed=2)
    correct = grid.correct(test_x, test_y)
    assert correct.shape == (200, 3)
    for column, weight in enumerate(l2):
        best, model = slow_fit(x, y, held_out, classes, config, weight)
        assert accuracies[column] == pytest.approx(best, abs=1e-9)
        expected = torch.cat([model.weight, model.bias[:, None]], dim=1).float()
        assert torch.allclose(grid.weight.view(3, classes, -1)[column], expected, atol=1e-4)
        slow_correct = (model(torch.as_tensor(test_x).double()).argmax(1).numpy() == test_y).mean()
        assert correct[:, column].mean() == pytest.approx(slow_correct, abs=0.006)
