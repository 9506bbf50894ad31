"""The classifier grid against one plain fit after another, and the folds against scikit-learn's."""

import copy

import numpy as np
import pytest
import torch

from simcse_hf.evaluation import classifier
from simcse_hf.evaluation.classifier import FAST_CONFIG, SEED, TEST_CONFIG, ClassifierConfig, LogisticRegressionGrid


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


def test_early_stopping_counts_scorings_without_improvement_in_total(monkeypatch):
    # With batches as large as the data and no noise, accuracy is 1 at once: every later scoring is a miss.
    x, y = np.float32([[-9.0], [9.0]] * 20), np.array([0, 1] * 20)
    config = ClassifierConfig("rmsprop", 40, tenacity=3, epoch_size=2, folds=2)
    steps = []

    class Counting(torch.optim.RMSprop):
        def step(self):
            steps.append(1)
            super().step()

    monkeypatch.setitem(classifier.OPTIMIZERS, "rmsprop", Counting)
    assert LogisticRegressionGrid(2, config, (1e-5,), seed=0).fit(x, y, (x, y)) == [1.0]
    assert len(steps) == 2 * (1 + 4)
