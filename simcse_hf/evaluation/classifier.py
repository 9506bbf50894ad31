"""SentEval's logistic regression, fitted for all l2 weights of its grid at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor
from torch.optim import Optimizer

L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2)
SEED = 1111
MAX_EPOCH = 200
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
HELD_OUT = 0.05  # fraction of the training examples for early stopping, if the protocol has no dev split


@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of SentEval's classifier; the defaults are those of published scores.

    Args:
        optimizer (`str`, *optional*, defaults to `"adam"`): `"adam"` (learning rate 0.001) or `"rmsprop"` (0.01), with
            torch's defaults.
        batch_size (`int`, *optional*, defaults to `64`): Examples per step.
        tenacity (`int`, *optional*, defaults to `5`): Number of scorings without improvement, in total and not in a
            row, that are tolerated.
        epoch_size (`int`, *optional*, defaults to `4`): Epochs between two scorings.
        folds (`int`, *optional*, defaults to `10`): Folds of the cross-validation.
    """

    optimizer: str = "adam"
    batch_size: int = 64
    tenacity: int = 5
    epoch_size: int = 4
    folds: int = 10


_FAST = ClassifierConfig("rmsprop", batch_size=128, tenacity=3, epoch_size=2, folds=5)
#: The settings by the mode of a protocol.
CLASSIFIER_CONFIGS = {"test": ClassifierConfig(), "dev": _FAST, "fasttest": _FAST}


@dataclass
class LogisticRegressionGrid:
    """Logistic regressions that differ only in their l2 weight, fitted side by side.

    SentEval fits them one after another with the same seed, and so from the same start and with the same batches. Side
    by side they need one matrix product, and each step is the one of the separate fit, because the optimizers work
    element by element. SentEval's protocol is kept: start and order follow the seed, l2 is applied to weights and bias
    through the gradient, and fitting stops early by the accuracy on held-out examples.

    Args:
        classes (`int`): Number of classes.
        config (`ClassifierConfig`): Settings.
        l2 (`tuple[float, ...]`, *optional*, defaults to `L2_GRID`): l2 weights.
        seed (`int`, *optional*, defaults to `1111`): Seed of the start and the order.
        device (`str`, *optional*, defaults to `"cpu"`): Where to compute.
    """

    classes: int
    config: ClassifierConfig
    l2: tuple = L2_GRID
    seed: int = SEED
    device: str = "cpu"

    def fit(self, x: ndarray, y: ndarray, held_out: tuple | None = None) -> ndarray:
        """Fit all regressions.

        Args:
            x (`numpy.ndarray`): Features of shape `(n, dim)`.
            y (`numpy.ndarray`): Classes from 0, of shape `(n,)`.
            held_out (`tuple[numpy.ndarray, numpy.ndarray]`, *optional*): Features and classes for early stopping.
                Defaults to 5% of the training examples.

        Returns:
            `numpy.ndarray`: The best accuracy on the held-out examples in [0, 1] for each l2 weight.
        """
        random = np.random.RandomState(self.seed)
        if held_out is None:
            order = random.permutation(len(x))
            held, kept = np.split(order, [int(HELD_OUT * len(x))])
            held_out = x[held], y[held]
            x = x[kept]
            y = y[kept]
        features = self._features(x)
        labels = torch.as_tensor(y, device=self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            linear = torch.nn.Linear(x.shape[1], self.classes)
        start = torch.cat([linear.weight, linear.bias[:, None]], dim=1).detach()
        self.weight = start.repeat(len(self.l2), 1).to(self.device)
        decays = torch.tensor(self.l2, device=self.device)
        decay = decays.repeat_interleave(self.classes)[:, None]
        optimizer = OPTIMIZERS[self.config.optimizer]([self.weight])

        best = np.full(len(self.l2), -1.0)
        best_weight = self.weight.clone()
        misses = np.zeros(len(self.l2), dtype=int)
        running = misses == 0
        epoch = 0
        while running.any() and epoch <= MAX_EPOCH:
            for _ in range(self.config.epoch_size):
                shuffled = torch.as_tensor(random.permutation(len(x)), device=self.device)
                for rows in shuffled.split(self.config.batch_size):
                    batch = features[rows]
                    # The gradient of the mean cross-entropy is (softmax - one-hot) / n, times the features.
                    error = self._logits(batch).softmax(dim=-1)
                    error[torch.arange(len(rows), device=self.device), :, labels[rows]] -= 1
                    gradient = error.flatten(1).T @ batch / len(rows)
                    self.weight.grad = gradient + decay * self.weight
                    optimizer.step()
            epoch += self.config.epoch_size
            accuracy = self.correct(*held_out).mean(axis=0)
            better = running & (accuracy > best)
            best[better] = accuracy[better]
            improved = torch.as_tensor(better.repeat(self.classes), device=self.device)
            best_weight[improved] = self.weight[improved]
            misses += running & ~better
            running = misses <= self.config.tenacity
        self.weight = best_weight
        return best

    def correct(self, x: ndarray, y: ndarray) -> ndarray:
        """Return whether each example is classified correctly, as booleans of shape `(n, len(l2))`."""
        predicted = self._logits(self._features(x)).argmax(dim=-1).cpu().numpy()
        return predicted == y[:, None]

    def _features(self, x: ndarray) -> Tensor:
        features = torch.as_tensor(x, dtype=torch.float32, device=self.device)
        constant = features.new_ones(len(features), 1)  # its weight is the bias
        return torch.cat([features, constant], dim=1)

    def _logits(self, features: Tensor) -> Tensor:
        """Return the logits of all regressions, of shape `(n, len(l2), classes)`."""
        return (features @ self.weight.T).view(len(features), -1, self.classes)
