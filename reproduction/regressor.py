"""SentEval's relatedness regressor for STS-B and SICK-R, trained on frozen embeddings."""

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from simcse_hf.data.scored_pairs import connected_groups
from simcse_hf.evaluation.bootstrap import Parts
from simcse_hf.evaluation.classifier import SEED
from simcse_hf.evaluation.embeddings import SentenceEmbeddings
from simcse_hf.evaluation.metrics import spearman
from simcse_hf.evaluation.tasks.base import TaskResult
from simcse_hf.evaluation.tasks.senteval import ScoredPairsTask, pair_features, score_parts
from simcse_hf.runtime.errors import DataError

RATINGS = np.arange(1, 6)
BATCH_SIZE = 64
EPOCHS_PER_SCORING = 50
TENACITY = 3
MAX_EPOCH = 1000


def rating_distribution(scores: np.ndarray) -> np.ndarray:
    """Spread each gold score over the two ratings around it, so that their mean is the score.

    See Tai, Socher and Manning (2015), section 4.2. A score of 3.3 gives rating 3 the weight 0.7 and rating 4 the
    weight 0.3. SentEval also uses this for STS-B's scores from 0 to 5, where the weights of a score below 1 add up to
    less than 1 (to 0 for a score of 0). That is kept.

    Args:
        scores (`numpy.ndarray`): Gold scores in [0, 5], of shape `(n,)`.

    Returns:
        `numpy.ndarray`: Weights of the ratings 1 to 5, of shape `(n, 5)`.
    """
    floor = np.floor(scores)[:, None]
    part = np.asarray(scores)[:, None] - floor
    return np.where(floor + 1 == RATINGS, part, np.where(floor == RATINGS, 1 - part, 0.0)).astype(np.float32)


class RegressorTask(ScoredPairsTask):
    """Predict the scores of pairs by a regressor, which is trained on the train split and stopped by the dev split.

    The regressor is a linear layer and a softmax over five ratings. Its features are [|a - b|, a * b], and its loss is
    the mean squared error to [`rating_distribution`]. Adam trains it with batches of 64. Every 50 epochs it is scored
    on dev by Spearman's correlation, as in the reference's SentEval (the original uses Pearson's), until the fourth
    scoring without improvement. The splits are `test`, which decides, `dev` and `train`.
    """

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Train the regressor, and correlate what it predicts with the gold scores; see [`Task.score`].

        Returns:
            [`TaskResult`]: In the document `splits` of dev and test (`pairs`; `spearman` and `pearson` times 100;
            `mse` for test); the arrays `predicted`, `gold` and `group` of the test pairs, of shape `(n,)`.

        Raises:
            DataError: If a split is missing, or if the predictions or gold scores of a split are constant.
        """
        splits = self.parts | self.shared
        absent = [split for split in ("train", "dev", "test") if split not in splits]
        if absent:
            raise DataError(
                f"{self.name}: the regressor needs the splits train, dev and test, but {', '.join(absent)} is "
                "missing. Add the file, or evaluate without the regressor."
            )
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x = {}
        gold = {}
        order = {}
        for split, pairs in splits.items():
            # SentEval sorts the pairs by length, and so its batches depend on this order.
            rows = zip(pairs.sentences1, pairs.sentences2, pairs.scores, strict=True)
            key = [(len(a.split()), len(b.split()), score) for a, b, score in rows]
            order[split] = sorted(range(len(pairs)), key=key.__getitem__)
            features = pair_features(embeddings(pairs.sentences1), embeddings(pairs.sentences2))
            x[split] = torch.as_tensor(features[order[split]], dtype=torch.float32, device=device)
            gold[split] = np.asarray(pairs.scores)[order[split]]
        model = _fit(self.name, x["train"], gold["train"], x["dev"], gold["dev"])
        scores: Parts = {}
        for split in ("dev", "test"):
            pairs = splits[split]
            group = connected_groups(list(zip(pairs.sentences1, pairs.sentences2, strict=True)))[order[split]]
            scores[split] = {"predicted": _predict(model, x[split]), "gold": gold[split], "group": group}
        document = score_parts(self.name, scores)
        document["test"]["mse"] = float(np.mean((scores["test"]["predicted"] - gold["test"]) ** 2))
        return TaskResult({}, {"test": scores["test"]}, {"splits": document})


def _predict(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(x).cpu().numpy() @ RATINGS


def _fit(task: str, x: torch.Tensor, gold: np.ndarray, dev_x: torch.Tensor, dev_gold: np.ndarray) -> nn.Module:
    random = np.random.RandomState(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        linear = nn.Linear(x.shape[1], len(RATINGS))
    model = nn.Sequential(linear, nn.Softmax(dim=-1)).to(x.device)
    target = torch.as_tensor(rating_distribution(gold), device=x.device)
    optimizer = torch.optim.Adam(model.parameters())
    loss_function = nn.MSELoss()

    best, misses, epoch = -1.0, 0, 0
    best_state: dict[str, torch.Tensor] = {}
    progress = tqdm(desc=f"{task} regressor", unit="epoch", leave=False)
    while epoch <= MAX_EPOCH:
        for _ in range(EPOCHS_PER_SCORING):
            order = torch.as_tensor(random.permutation(len(x)), device=x.device)
            for rows in order.split(BATCH_SIZE):
                optimizer.zero_grad()
                loss_function(model(x[rows]), target[rows]).backward()
                optimizer.step()
            progress.update()
        epoch += EPOCHS_PER_SCORING
        score = spearman(_predict(model, dev_x), dev_gold)
        if score > best:
            best, best_state = score, {name: value.clone() for name, value in model.state_dict().items()}
        elif misses >= TENACITY:
            break
        else:
            misses += 1
    progress.close()
    model.load_state_dict(best_state)
    return model
