"""What objectives refuse: options out of range, and training rows or batches that they cannot learn from."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from relation_helpers import training_rows

from simcse_hf.objectives import EncodedBatch, InfoNCE, TrainingRows, build_objective

#: Objective, options, and the option that the message must name (by default that of the options).
OPTIONS = [
    ("simcse", {"symmetric": "no"}),
    ("simcse", {"mask_duplicates": 1}),
    ("simcse", {"bidirectional": "yes"}),
    ("simcse", {"bidirectional": True, "symmetric": True}),
    *[("simcse", {"false_negative_margin": x}) for x in (True, "1", math.nan)],
    ("supcon", {"nli_sampling": "all"}),
    *[("supcon", {name: 0}) for name in ("max_positives", "max_negatives")],
    ("softmax", {"max_negatives": 2.5, "augment": True}),
    ("softmax", {"augment": "yes"}),
    ("softmax", {"max_positives": 3}),
    ("softmax", {"layers": 3}),
    *[("softmax", {"hidden_dim": x}) for x in (0, -1, 2.5)],
    ("softmax", {"hidden_dim": 8, "layers": 1}),
    ("angle", {"angle_temperature": -1.0}),
    ("angle", {"cosine_weight": -1.0}),
    ("angle", {"positive_score": "4"}),
    *[("declutr", {name: 0}) for name in ("temperature", "anchors", "positives", "max_span", "min_span")],
    *[("barlow_twins", {"off_diagonal_weight": x}) for x in (-0.1, math.nan)],
    *[("barlow_twins", {"projector_dim": x}) for x in (0, 1.5, True, "8192")],
    *[("vicreg", {f"{name}_weight": -0.1}) for name in ("invariance", "variance", "covariance")],
    *[("contrastive_tension", {"negatives_per_positive": x}) for x in (0, 2.0, True, "7")],
    *[("esimcse", {"momentum": x}) for x in (1.0, -0.1, "0.9")],
    *[("esimcse", {"queue_size": x}) for x in (0, 2.5)],
    *[("diffcse", {"mask_ratio": x}) for x in (1.0, 0.0, "0.3")],
    ("diffcse", {"projector": "no"}),
    ("diffcse", {"replaced_weight": 0.0}),
    *[("promptbert", {name: "False"}) for name in ("denoise", "head")],
    ("distill", {"loss": "ranks"}),
    ("distill", {"teacher_dim": 4}),
    ("distill", {"keep_projection": False}),
    ("distill", {"keep_projection": "no", "loss": "vectors"}),
    ("distill", {"student_temperature": 0}),
    ("distill", {"consistency_weight": -1}),
    ("is_bert", {"dropout": 1}),
    ("simcse+vicreg", {"simcse.projector_dim": 3}),
    ("tsdae", {"encoders": 2}),
    *[("simcse", {"matryoshka_dims": dims}) for dims in ([0], [9], [4.0], ["4"], [True], [4, 4])],
    *[(f"simcse+{name}", {"matryoshka_dims": [4]}) for name in ("esimcse", "diffcse", "promptbert")],
]
NAMES = [
    ("simsce", "simcse, .*'simsce'$"),
    ("simcse+nothing", "objective must be one of .*simcse"),
    ("simcse+", "objective must be one of .*simcse"),
    ("my.losses:MyLoss", "the module my.losses, import it first"),
    ("simcse:0", "the weight of simcse must be above 0, got '0'"),
    ("simcse+vicreg:much", "vicreg:much"),
    ("simcse+simcse:2", "names simcse twice"),
    ("simcse+cosent", "cosent reads other training rows or columns"),
    ("simcse+tsdae", "tsdae reads other training rows or columns"),
    ("angle", "got 7"),
]


def rows_of(scores, num_sentences=2, global_batch=4):
    table = {"input_ids": [[[2, 5, 3]] * num_sentences] * len(scores), "score": scores}
    return TrainingRows(num_sentences, global_batch, table, Dataset.from_dict(table))


def classes(global_batch):
    return TrainingRows(1, global_batch, ["input_ids", "label"])


RELATED = training_rows([[1]])
SELECTED = training_rows([[0], [1, 7], [2]])
SELECTED.dataset = SELECTED.dataset.select([2, 1])
ALONE = "raise per_device_train_batch_size"
#: Objective, options, rows, and the message, which is None where the rows fit.
ROWS = [
    ("simcse", {}, TrainingRows(2, 1), ALONE),
    ("simcse", {}, TrainingRows(3, 1), None),
    ("simcse", {}, TrainingRows(1, 2), None),
    ("simcse", {}, training_rows([[0, 2, 1], [0]]), None),
    ("simcse", {}, training_rows([[0, 0]]), "relations"),
    ("simcse", {}, RELATED, "relations, which objective 'simcse' does not read"),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 31), None),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 32), "queue_size to 32 or more.* 80"),
    ("barlow_twins", {"projector_dim": 4}, TrainingRows(2, 2), None),
    ("barlow_twins", {"projector_dim": 4}, TrainingRows(3, 8), "rows with 3 sentences, but this objective"),
    ("vicreg", {"projector_dim": 4}, RELATED, "rows with relations"),
    ("contrastive_tension", {}, TrainingRows(1, 8), None),
    ("contrastive_tension", {}, TrainingRows(2, 7), "a batch of 7 has only 6 other rows.*negatives_per_positive"),
    ("is_bert", {}, TrainingRows(2, 8), "rows with 2 sentences.*give one text column"),
    ("is_bert", {}, TrainingRows(1, 1), f"{ALONE} to at least 2"),
    ("tsdae", {}, TrainingRows(3, 4), "rows with 3 sentences, but objective 'tsdae' reconstructs single sentences"),
    ("tsdae", {}, TrainingRows(2, 4, dataset=SimpleNamespace(both=True)), "unset view_both"),
    ("declutr", {"anchors": 2}, TrainingRows(6, 1), None),
    *[("declutr", {"anchors": a}, TrainingRows(c, 8), f"hold {c} texts") for a, c in [(1, 1), (2, 3), (2, 5)]],
    ("declutr", {"positives": 2}, TrainingRows(2, 8), r"an anchor and 2 positive\(s\).* rows hold 2 texts"),
    ("declutr", {}, TrainingRows(2, 1), "one anchor has no negatives"),
    ("softmax", {}, training_rows([[0, 2], [1]], global_batch=1), None),
    ("softmax", {}, TrainingRows(2, 4), r"softmax.* need a column `relations`.*build_nli_groups makes them.*SNLI"),
    ("softmax", {}, training_rows([[0, 2], [1, 3]]), r"training row 2 has the relations \[1, 3\]"),
    ("softmax", {}, SELECTED, r"training row 2 has the relations \[1, 7\]"),
    ("softmax", {}, training_rows([[0, 2], [1]], sentences=[3, 3]), r"row 2 has 3 texts and 1 relation\(s\)"),
    ("supcon", {}, training_rows([[0]], global_batch=2), None),
    ("supcon", {}, training_rows([[1], [1, 2]]), "none of the 2 training rows has an entailed hypothesis.*check the"),
    ("supcon", {}, training_rows([[0, 2], [0]], global_batch=1), f"row 2: a batch of one premise.*{ALONE}"),
    ("softmax:0.7+supcon:0.3", {}, training_rows([[2], [1]]), "entailed hypothesis"),
    ("angle", {}, rows_of([0.1, 0.9]), "positive_score = 1 or more .the highest is 0.9.*lower positive_score"),
    ("angle", {"positive_score": 0.5}, rows_of([0.1, 0.9]), None),
    ("cosent", {}, rows_of([0.0, 1.0], num_sentences=1), "holds 1 sentence.* columns sentence1, sentence2 and score"),
    ("cosent", {}, TrainingRows(2, 4), "needs a score for each pair, but the training rows have no column 'score'"),
    ("cosent", {}, rows_of([0.0, 1.0, math.nan]), "training row 3: the score nan is not a finite number"),
    ("angle", {}, rows_of([0.0, math.inf]), "training row 2: the score inf is not a finite number"),
    ("angle", {}, rows_of([1.0, 1.0, 1.0]), "all 3 training pairs have the score 1"),
    ("distill", {}, TrainingRows(3, 1), None),
    *[("distill", {"loss": x}, TrainingRows(n, 1), ALONE) for x, n in (("similarities", 1), ("listnet", 2))],
    ("class_labels", {}, TrainingRows(1, 8), "text and label"),
    *[("class_labels", {}, classes(size), "even number of rows") for size in (7, 2, 9)],
    ("class_labels", {}, classes(6), None),
    ("class_labels", {}, training_rows([[0, 0]] * 4, global_batch=5), None),
    ("cosent", {}, rows_of([0.0, 1.0], global_batch=1), f"a batch of 1 has none to compare: {ALONE}"),
]


@pytest.mark.parametrize("name, options", OPTIONS)
def test_an_option_out_of_range_is_refused_by_name(name, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        build_objective(name, 8, options)


@pytest.mark.parametrize("name, message", NAMES)
def test_names_and_sums_that_cannot_be_built_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 7)


@pytest.mark.parametrize("name, options, rows, message", ROWS)
def test_rows_and_batches_are_checked_before_training(name, options, rows, message):
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        build_objective(name, 8, options).check(rows)


def test_text_ids_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="text_ids"):
        InfoNCE()(torch.ones(4, 2, 3), text_ids=torch.ones(4, 3))


@pytest.mark.parametrize(
    "name, options, message",
    [
        *[(name, {}, "text_ids") for name in ("supcon", "angle")],
        ("simcse", {"mask_duplicates": True}, "text_ids"),
        *[("distill", {"loss": loss}, "no vectors of a teacher.*--teacher") for loss in ("similarities", "listnet")],
    ],
)
def test_a_batch_without_what_an_objective_reads_is_refused(name, options, message):
    inputs = {"relations": torch.tensor([[0]]), "scores": torch.ones(1)}
    with pytest.raises(ValueError, match=message):
        build_objective(name, 4, options)(EncodedBatch(torch.ones(1, 2, 4), inputs))
