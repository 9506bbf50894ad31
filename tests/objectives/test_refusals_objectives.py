"""What objectives refuse: options out of range, and training rows or batches that they cannot learn from."""

import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from relation_helpers import training_rows
from trainer_helpers import refuses

from simcse_hf.objectives import OBJECTIVES, EncodedBatch, InfoNCE, Objective, TrainingRows, build_objective, register
from simcse_hf.objectives.base import add_up

# --- options ---

#: For each objective, its options with a value out of their range.
OUT_OF_RANGE = {
    "simcse": {"symmetric": "no", "mask_duplicates": 1, "negatives": "none", "matryoshka_dims": [9]},
    "supcon": {"nli_sampling": "all", "max_positives": 0},
    "softmax": {"augment": "yes", "max_positives": 3, "layers": 3, "hidden_dim": 2.5},
    "angle": {"angle_temperature": -1.0, "cosine_weight": -1.0, "positive_score": "4"},
    "declutr": {"temperature": 0, "anchors": 0},
    "barlow_twins": {"off_diagonal_weight": -0.1, "projector_dim": 0},
    "vicreg": {"invariance_weight": -0.1},
    "contrastive_tension": {"negatives_per_positive": 2.0},
    "esimcse": {"momentum": 1.0, "queue_size": 0},
    "diffcse": {"mask_ratio": 0.0, "projector": "no", "replaced_weight": 0.0},
    "promptbert": {"denoise": "False"},
    "distill": {"loss": "ranks", "keep_projection": "no", "student_temperature": 0, "consistency_weight": -1},
    "simcse+vicreg": {"simcse.projector_dim": 3},  # which simcse does not have
    "simcse+esimcse": {"matryoshka_dims": [4]},
}


#: Options that make an objective small; the papers' projectors take more than a second.
SMALL = {"barlow_twins": {"projector_dim": 4}, "vicreg": {"projector_dim": 4}}
REFUSED_OPTIONS = []
for name, options in OUT_OF_RANGE.items():
    REFUSED_OPTIONS += [(name, {option: value}, option) for option, value in options.items()]
REFUSED_OPTIONS += [
    ("simcse", {"negatives": "own", "symmetric": True}, "negatives"),
    ("diffcse", {"mask_ratio": 1.0}, "mask_ratio"),
    ("simsce", {}, "did you mean simcse"),
    ("simcse+vicreg:much", {}, "vicreg:much"),
    ("simcse+cosent", {}, "cosent"),
]


@pytest.mark.parametrize("name, options, named", REFUSED_OPTIONS)
def test_names_and_options_that_do_not_fit_are_refused(name, options, named):
    with refuses(named):
        build_objective(name, 8, SMALL.get(name, {}) | options)


def test_angle_refuses_an_odd_size_and_info_nce_text_ids_of_another_shape():
    with refuses("7"):
        build_objective("angle", 7)
    with refuses("text_ids"):
        InfoNCE()(torch.ones(4, 2, 3), text_ids=torch.ones(4, 3))


# --- training rows ---


def scored_rows(scores):
    """Pairs with a score."""
    table = {"input_ids": [[[2, 5, 3]] * 2] * len(scores), "score": scores}
    return TrainingRows(2, 4, table, Dataset.from_dict(table))


#: Rows that an objective takes, and then rows that it refuses, with what the message names.
FIT = [
    ("simcse", {}, TrainingRows(3, 1)),
    ("simcse", {"negatives": "own"}, TrainingRows(3, 1)),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 31)),
    ("supcon", {}, training_rows([[0]], global_batch=2)),
    ("angle", {"positive_score": 0.5}, scored_rows([0.1, 0.9])),
]
BATCH = "per_device_train_batch_size"
UNFIT = [
    ("simcse", {}, TrainingRows(2, 1), BATCH),
    ("supcon", {}, training_rows([[0, 2], [0]], global_batch=1), f"row 2 {BATCH}"),
    ("distill", {"loss": "listnet"}, TrainingRows(2, 1), BATCH),
    ("class_labels", {}, TrainingRows(1, 9, ["label"]), BATCH),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 32), "queue_size"),
    ("contrastive_tension", {}, TrainingRows(2, 7), "negatives_per_positive"),
    ("simcse", {"negatives": "own"}, training_rows([[0, 2], [0, -100]]), "row 2 negatives=own"),
    ("tsdae", {}, TrainingRows(3, 4), "rows with 3 sentences"),
    ("tsdae", {}, TrainingRows(2, 4, dataset=SimpleNamespace(both=True)), "view_both"),
    ("declutr", {"anchors": 2}, TrainingRows(5, 8), "hold 5 texts"),
    ("simcse", {}, training_rows([[1]]), "relations"),
    ("softmax", {}, training_rows([[0, 2], [1, 3]]), "row 2 [1, 3]"),
    ("softmax:0.7+supcon:0.3", {}, training_rows([[2], [1]]), "entailed"),
    ("class_labels", {}, TrainingRows(1, 8), "text and label"),
    ("angle", {}, scored_rows([0.1, 0.9]), "positive_score"),
    ("cosent", {}, TrainingRows(2, 4), "sentence1, sentence2 and score"),
    ("cosent", {}, scored_rows([0.0, 1.0, math.nan]), "row 3"),
    ("cosent", {}, scored_rows([1.0, 1.0, 1.0]), "all 3"),
]


@pytest.mark.parametrize("name, options, rows", FIT)
def test_rows_that_fit_are_taken(name, options, rows):
    build_objective(name, 8, options).check(rows)


@pytest.mark.parametrize("name, options, rows, named", UNFIT)
def test_rows_and_batches_that_do_not_fit_are_refused(name, options, rows, named):
    with refuses(named):
        build_objective(name, 8, SMALL.get(name, {}) | options).check(rows)


# --- batches ---


@pytest.mark.parametrize("name, named", [("supcon", "text_ids"), ("distill", "teacher")])
def test_a_batch_without_what_an_objective_reads_is_refused(name, named):
    batch = EncodedBatch(torch.ones(1, 2, 4), {"relations": torch.tensor([[0]])})
    with refuses(named):
        build_objective(name, 4)(batch)


class WithoutSize(Objective):
    def __init__(self, margin=1.0):
        super().__init__(8)


def test_a_class_whose_constructor_takes_no_size_is_refused():
    with refuses("WithoutSize.__init__ must take dim"):
        register("without_size", WithoutSize)
    assert "without_size" not in OBJECTIVES


@pytest.mark.parametrize("loss", [{"first": torch.zeros(()), "second": torch.zeros(4)}, None])
def test_a_loss_that_is_no_scalar_is_refused(loss):
    with refuses("forward"):
        add_up(loss)


def test_an_objective_without_forward_says_so():
    with refuses("has no forward", NotImplementedError):
        Objective(4)(EncodedBatch(torch.zeros(2, 2, 4)))
