"""The transfer tasks: SentEval's folders, the three protocols, and the classifier against single plain fits."""

import copy

import numpy as np
import pytest
import torch
from evaluation_helpers import SHARED, BagOfWords, write_transfer
from torch.nn.functional import cross_entropy

from simcse_hf.evaluation.classifier import (
    CLASSIFIER_CONFIGS,
    SEED,
    LogisticRegressionGrid,
)
from simcse_hf.evaluation.embeddings import embed_all
from simcse_hf.evaluation.protocol import Protocol
from simcse_hf.evaluation.tasks.senteval import (
    TRANSFER_EXAMPLES,
    TransferTask,
    read_transfer_task,
)

# --- the real sets ---

REAL = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the evaluation data of ../shared")
REAL_TASKS = pytest.mark.parametrize("task", ["MR", "SUBJ", "SST2", "SST5", "TREC", "MRPC"])


@REAL
@REAL_TASKS
def test_the_real_sets_have_their_published_sizes(task):
    splits = read_transfer_task(task, SHARED / "data/senteval/downstream")
    sizes = {split: len(examples) for split, examples in splits.items()}
    assert sizes == TRANSFER_EXAMPLES[task]


@REAL
@REAL_TASKS
def test_no_text_of_the_real_sets_is_empty(task):
    for examples in read_transfer_task(task, SHARED / "data/senteval/downstream").values():
        assert all(text for texts, _ in examples for text in texts)


# --- scores of small sets ---


@pytest.fixture(scope="module")
def score(tmp_path_factory):
    """`score(task)` gives the result of a task and the scores of its test examples, once for each task."""
    folder = tmp_path_factory.mktemp("downstream")
    write_transfer(folder)
    scored = {}

    def score(task):
        if task not in scored:
            splits = read_transfer_task(task, folder)
            made = TransferTask.of(task, splits, str(folder), Protocol("fasttest"), "cpu")
            result = made.score(embed_all(BagOfWords(), {None: made.texts}))
            scored[task] = result.details, result.scores[task]
        return scored[task]

    return score


TASKS = pytest.mark.parametrize("task, tested", [("MR", 120), ("SST2", 60), ("TREC", 72), ("MRPC", 60)])


@TASKS
def test_every_test_example_is_scored(score, task, tested):
    _, scored = score(task)
    assert len(scored["gold"]) == tested
    assert len(scored["correct"]) == tested


@TASKS
def test_the_accuracy_is_the_share_of_correct_examples(score, task, tested):
    """The folds of nested cross-validation are of one size here, so their mean is the mean over examples."""
    result, scored = score(task)
    assert result["accuracy"] == pytest.approx(100 * scored["correct"].mean())


@TASKS
def test_a_classifier_is_better_than_the_most_frequent_class(score, task, tested):
    result, scored = score(task)
    most_frequent = 100 * np.bincount(scored["gold"]).max() / tested
    assert most_frequent < result["accuracy"] <= 100


@TASKS
def test_a_result_says_how_many_examples_there_were(score, task, tested):
    result, _ = score(task)
    assert sum(result["examples"].values()) >= tested


@pytest.mark.parametrize("task", ["MR", "SST2", "TREC"])
def test_only_mrpc_has_an_f1(score, task):
    assert "f1" not in score(task)[0]


def test_the_f1_of_mrpc_equals_its_definition(score):
    result, scored = score("MRPC")
    found_pairs = (scored["correct"] & (scored["gold"] == 1)).sum()
    errors = (~scored["correct"]).sum()
    assert found_pairs > 0
    assert result["f1"] == pytest.approx(100 * 2 * found_pairs / (2 * found_pairs + errors))


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


@pytest.fixture(scope="module", params=["test", "fasttest"])
def config(request):
    return CLASSIFIER_CONFIGS[request.param]


@pytest.fixture(
    scope="module",
    params=[(2, True), (5, True), (3, False)],
    ids=["2 classes", "5 classes", "3 classes, no dev set"],
)
def problem(request):
    """The number of classes, the training examples, and those to stop by, which may be missing."""
    classes, has_dev_set = request.param
    held_out = examples(100, classes, seed=1) if has_dev_set else None
    return classes, examples(300, classes, seed=0), held_out


@pytest.fixture(scope="module")
def grid(problem, config):
    """The fitted grid, and its accuracies."""
    classes, train, held_out = problem
    grid = LogisticRegressionGrid(classes, config, L2)
    accuracies = grid.fit(*train, held_out)
    return grid, accuracies


@pytest.fixture(scope="module")
def slow_fits(problem, config):
    """The accuracy and the model of each regularization."""
    classes, train, held_out = problem
    return [slow_fit(train, held_out, classes, config, weight) for weight in L2]


EACH_FIT = pytest.mark.parametrize("number", range(len(L2)), ids=[f"l2 {weight}" for weight in L2])


@EACH_FIT
def test_a_fit_of_the_grid_has_the_accuracy_of_a_separate_fit(grid, slow_fits, number):
    _, accuracies = grid
    expected, _ = slow_fits[number]
    assert accuracies[number] == pytest.approx(expected, abs=1e-9)


@EACH_FIT
def test_a_fit_of_the_grid_has_the_weights_of_a_separate_fit(grid, slow_fits, problem, number):
    classes, *_ = problem
    found = grid[0].weight.view(len(L2), classes, -1)[number]
    _, model = slow_fits[number]
    expected = torch.cat([model.weight, model.bias[:, None]], dim=1).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@EACH_FIT
def test_a_fit_of_the_grid_answers_as_a_separate_fit(grid, slow_fits, problem, number):
    classes, *_ = problem
    test = examples(200, classes, seed=2)
    correct = grid[0].correct(*test)
    assert correct.shape == (200, len(L2))
    _, model = slow_fits[number]
    assert correct[:, number].mean() == pytest.approx(accuracy(model, *test), abs=0.006)
