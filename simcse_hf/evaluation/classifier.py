"""Logistic regression by SentEval's recipe, for a whole grid of l2 weights at once."""

from dataclasses import dataclass

import numpy as np
import torch

L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2)
SEED = 1111
MAX_EPOCH = 200
HELD_OUT = 0.05  # of the training examples, for early stopping where the protocol has no dev split


@dataclass(frozen=True)
class ClassifierConfig:
    """Settings of SentEval's classifier.

    Args:
        optimizer (`str`): `adam` (learning rate 0.001) or `rmsprop` (0.01), torch's defaults.
        batch_size (`int`): Examples per step.
        tenacity (`int`): Scorings without a new best that are let pass in total, not in a row, before stopping.
        epoch_size (`int`): Passes over the training examples between two scorings.
        folds (`int`): Folds of the cross-validations.
    """

    optimizer: str
    batch_size: int
    tenacity: int
    epoch_size: int
    folds: int


TEST_CONFIG = ClassifierConfig(optimizer="adam", batch_size=64, tenacity=5, epoch_size=4, folds=10)
FAST_CONFIG = ClassifierConfig(optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2, folds=5)


def stratified_folds(labels: np.ndarray, folds: int, seed: int = SEED) -> list[tuple[np.ndarray, np.ndarray]]:
    """Shuffled folds in which every class has its share: scikit-learn's `StratifiedKFold`, example by example.

    Args:
        labels (`array` of shape `(n,)`): Classes.
        folds (`int`): Number of folds.
        seed (`int`, *optional*, defaults to 1111): Seed of the shuffle.

    Returns:
        `list[tuple[array, array]]`: Per fold the rows to train on and the rows held out, both ascending.

    Raises:
        ValueError: If a class has fewer examples than there are folds.
    """
    labels = np.asarray(labels)
    _, first_rows, classes = np.unique(labels, return_index=True, return_inverse=True)
    classes = np.argsort(np.argsort(first_rows))[classes]  # number classes by first occurrence
    sizes = np.bincount(classes)
    if sizes.min() < folds:
        raise ValueError(f"a class has {sizes.min()} examples, fewer than the {folds} folds.")
    # Dealing the sorted labels out like cards gives each fold its number of examples of each class.
    dealt = np.sort(classes)
    share = np.stack([np.bincount(dealt[fold::folds], minlength=len(sizes)) for fold in range(folds)])
    random = np.random.RandomState(seed)
    fold_of = np.empty(len(labels), dtype=np.int64)
    for label in range(len(sizes)):
        order = np.repeat(np.arange(folds), share[:, label])
        random.shuffle(order)
        fold_of[classes == label] = order
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(folds)]


class LogisticRegressionGrid:
    """Logistic regressions that differ in their l2 weight only, fitted side by side.

    SentEval fits one after another with the same seed, hence the same start and the same batches. Side by side they
    are one matrix product, and every step is the one the separate fit would take: the optimizers work element by
    element. What SentEval's protocol fixes is kept: start and order from the seed, l2 on weights and bias through the
    gradient, early stopping by accuracy on held-out examples.

    Args:
        classes (`int`): Number of classes.
        config ([`ClassifierConfig`]): Settings.
        l2 (`tuple[float]`, *optional*): l2 weights, by default SentEval's grid.
        seed (`int`, *optional*, defaults to 1111): Seed of the start and the order.
        device (`str`, *optional*, defaults to `"cpu"`): Where to compute.
    """

    def __init__(self, classes: int, config: ClassifierConfig, l2=L2_GRID, seed: int = SEED, device: str = "cpu"):
        self.classes = classes
        self.config = config
        self.l2 = tuple(l2)
        self.seed = seed
        self.device = torch.device(device)
        self.weight: torch.Tensor | None = None

    def fit(self, x: np.ndarray, y: np.ndarray, held_out: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
        """Fits all regressions.

        Args:
            x (`array` of shape `(n, dim)`): Features.
            y (`array` of shape `(n,)`): Classes from 0.
            held_out (`tuple[array, array]`, *optional*): Features and classes for early stopping; 5% of the training
                examples by default.

        Returns:
            `array` of shape `(len(l2),)`: The best accuracy on the held-out examples, in [0, 1], per l2 weight.
        """
        random = np.random.RandomState(self.seed)
        if held_out is None:
            order = random.permutation(len(x))
            cut = int(HELD_OUT * len(x))
            held_out = x[order[:cut]], y[order[:cut]]
            x, y = x[order[cut:]], y[order[cut:]]
        x, y = self._features(x), torch.as_tensor(y, device=self.device)
        held_x, held_y = self._features(held_out[0]), torch.as_tensor(held_out[1], device=self.device)

        weight = self._start(x.shape[1] - 1).requires_grad_()
        optimizer = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[self.config.optimizer]([weight])
        decay = torch.tensor(self.l2, device=self.device).repeat_interleave(self.classes)[:, None]

        best = np.full(len(self.l2), -1.0)
        best_weight = weight.detach().clone().view(len(self.l2), self.classes, -1)
        misses = np.zeros(len(self.l2), dtype=int)
        running = np.ones(len(self.l2), dtype=bool)
        epoch = 0
        while running.any() and epoch <= MAX_EPOCH:
            for _ in range(self.config.epoch_size):
                self._epoch(weight, optimizer, decay, x, y, random)
            epoch += self.config.epoch_size
            accuracy = self._correct(weight.detach(), held_x, held_y).mean(axis=0)
            better = running & (accuracy > best)
            best[better] = accuracy[better]
            chosen = torch.as_tensor(better, device=self.device)
            best_weight[chosen] = weight.detach().view_as(best_weight)[chosen]
            missed = running & ~better
            running &= ~(missed & (misses >= self.config.tenacity))
            misses += missed
        self.weight = best_weight.flatten(0, 1)
        return best

    def correct(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether each example is classified right: bool of shape `(n, len(l2))`."""
        return self._correct(self.weight, self._features(x), torch.as_tensor(y, device=self.device))

    def _features(self, x: np.ndarray) -> torch.Tensor:
        x = torch.as_tensor(x, dtype=torch.float32, device=self.device)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)  # the bias is the weight of a constant feature

    def _start(self, dim: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            linear = torch.nn.Linear(dim, self.classes)
        weight = torch.cat([linear.weight, linear.bias[:, None]], dim=1).detach()
        return weight.repeat(len(self.l2), 1).to(self.device)

    def _epoch(self, weight, optimizer, decay, x, y, random) -> None:
        order = torch.as_tensor(random.permutation(len(x)), device=self.device)
        x, y = x[order], y[order]
        for start in range(0, len(x), self.config.batch_size):
            features = x[start : start + self.config.batch_size]
            labels = y[start : start + self.config.batch_size]
            with torch.no_grad():
                logits = (features @ weight.T).view(len(features), -1, self.classes)
                # Gradient of the mean cross entropy: (softmax - one-hot) / n, times the features.
                error = logits.softmax(dim=-1)
                error[torch.arange(len(labels), device=self.device), :, labels] -= 1
                weight.grad = error.flatten(1).T @ features / len(features) + decay * weight
            optimizer.step()

    def _correct(self, weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        predicted = (x @ weight.T).view(len(x), -1, self.classes).argmax(dim=-1)
        return (predicted == y[:, None]).cpu().numpy()
