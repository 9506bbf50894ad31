"""What objectives refuse: options out of range, and training rows or batches that they cannot learn from."""

import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from relation_helpers import training_rows

from simcse_hf.objectives import EncodedBatch, InfoNCE, TrainingRows, build_objective
from simcse_hf.objectives.checks import check_options
from simcse_hf.objectives.info_nce import SimCSEObjective

COUNT, RATE, WEIGHT = "must be an integer above 0", "must be a number above 0", "must be a number of 0 or more"
OPTIONS = [
    *[("simcse", {"temperature": x}, f"temperature {RATE}, got {x}") for x in (0.0, -0.05, math.nan, math.inf)],
    ("simcse", {"similarity": "euclidean"}, "similarity must be one of cosine, dot, got 'euclidean'"),
    ("simcse", {"symmetric": "no"}, "symmetric must be true or false, got 'no'"),
    ("simcse", {"mask_duplicates": 1}, "mask_duplicates must be true or false, got 1"),
    *[("simcse", {"false_negative_margin": x}, "false_negative_margin must be a fin") for x in (True, "1", math.nan)],
    ("supcon", {"temperature": 0.0}, "temperature"),
    ("supcon", {"similarity": "euclidean"}, "similarity must be one of"),
    *[("supcon", {name: 0}, f"{name} {COUNT}, got 0") for name in ("max_positives", "max_negatives")],
    ("softmax", {"augment": True, "max_negatives": 2.5}, f"max_negatives {COUNT}, got 2.5"),
    ("softmax", {"augment": "yes"}, "augment must be true or false, got 'yes'"),
    ("softmax", {"max_positives": 3}, "set augment to true"),
    ("softmax", {"layers": 3}, "layers must be one of 1, 2, got 3"),
    ("softmax", {"layers": 1, "hidden_dim": 8}, "hidden_dim is the width between two layers"),
    *[("softmax", {"hidden_dim": x}, f"hidden_dim {COUNT}, got {x}") for x in (0, -1, 2.5)],
    ("cosent", {"temperature": 0}, f"temperature {RATE}, got 0"),
    ("angle", {"angle_temperature": -1.0}, f"angle_temperature {RATE}, got -1.0"),
    ("angle", {"cosine_weight": -1.0}, f"cosine_weight {WEIGHT}, got -1.0"),
    ("angle", {"in_batch_weight": math.inf}, f"in_batch_weight {WEIGHT}, got inf"),
    ("declutr", {"temperature": 0}, f"temperature {RATE}, got 0"),
    *[("declutr", {x: 0}, f"{x} {COUNT}, got 0") for x in ("anchors", "positives", "max_span", "min_span")],
    *[("barlow_twins", {"off_diagonal_weight": x}, f"off_diagonal_weight {WEIGHT}") for x in (-0.1, math.nan)],
    *[("barlow_twins", {"projector_dim": x}, f"projector_dim {COUNT}") for x in (0, 1.5, True, "8192")],
    *[("vicreg", {f"{x}_weight": -0.1}, f"{x}_weight {WEIGHT}") for x in ("invariance", "variance", "covariance")],
    *[("contrastive_tension", {"negatives_per_positive": x}, COUNT) for x in (0, 2.0, True, "7")],
    ("esimcse", {"momentum": 1.0}, "momentum must be at least 0 and below 1"),
    *[("esimcse", {"momentum": x}, f"momentum {WEIGHT}") for x in (-0.1, "0.9")],
    *[("esimcse", {"queue_size": x}, f"queue_size {COUNT}") for x in (0, 2.5)],
    ("diffcse", {"mask_ratio": 1.0}, "mask_ratio must lie between 0 and 1"),
    *[("diffcse", {"mask_ratio": x}, f"mask_ratio {RATE}") for x in (0.0, "0.3")],
    ("diffcse", {"projector": "no"}, "projector must be true or false, got 'no'"),
    *[("promptbert", {x: "False"}, f"{x} must be true or f") for x in ("denoise", "head")],
    ("angle", {"positive_score": "4"}, "positive_score must be a finite number, got '4'"),
    ("diffcse", {"replaced_weight": 0.0}, f"replaced_weight {RATE}"),
    ("is_bert", {"dropout": 1}, "objective 'is_bert' has no option dropout; its options are: matryoshka_dims"),
]


def rows_of(scores, num_sentences=2, batch_size=4):
    table = {"input_ids": [[[2, 5, 3]] * num_sentences] * len(scores), "score": scores}
    return TrainingRows(num_sentences, batch_size, dataset=Dataset.from_dict(table))


RELATED = TrainingRows(2, 64, dataset=Dataset.from_dict({"input_ids": [[[2], [3]]], "relations": [[1]]}))
NEGATIVES = TrainingRows(
    4, 64, dataset=Dataset.from_dict({"input_ids": [[[2]] * 4, [[2]] * 2], "relations": [[0, 2, 1], [0]]})
)
SELECTED = training_rows([[0], [1, 7], [2]])
SELECTED.dataset = SELECTED.dataset.select([2, 1])
ALONE = "raise per_device_train_batch_size"
#: Objective, options, rows, and the message, which is None where the rows fit.
ROWS = [
    ("simcse", {}, TrainingRows(2, 1), ALONE),
    ("simcse", {}, TrainingRows(3, 1), None),
    ("simcse", {}, TrainingRows(1, 1, processes=2), None),
    ("simcse", {}, training_rows([[0, 2, 1], [0]]), None),
    ("simcse", {}, training_rows([[0, 0]]), "relations"),
    ("simcse", {}, RELATED, "relations, which objective 'simcse' does not read"),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 31), None),
    ("esimcse", {"queue_size": 31}, TrainingRows(1, 16, processes=2), "queue_size to 32 or more.* 80"),
    ("esimcse", {}, RELATED, "relations"),
    ("barlow_twins", {"projector_dim": 4}, TrainingRows(2, 1, processes=2), None),
    ("barlow_twins", {"projector_dim": 4}, TrainingRows(3, 8), "rows with 3 sentences, but this objective"),
    ("vicreg", {"projector_dim": 4}, RELATED, "rows with relations"),
    ("vicreg", {"projector_dim": 4}, TrainingRows(2, 1), f"{ALONE} to at least 2"),
    ("contrastive_tension", {}, TrainingRows(1, 4, processes=2), None),
    ("contrastive_tension", {}, TrainingRows(2, 7), "a batch of 7 has only 6 other rows.*negatives_per_positive"),
    ("contrastive_tension", {}, TrainingRows(3, 64), "rows with 3 sentences"),
    ("is_bert", {}, TrainingRows(1, 1, processes=2), None),
    ("is_bert", {}, TrainingRows(2, 8), "rows with 2 sentences.*give one text column"),
    ("is_bert", {}, TrainingRows(1, 1), f"{ALONE} to at least 2"),
    ("tsdae", {}, TrainingRows(2, 1), None),
    ("tsdae", {}, TrainingRows(3, 4), "rows with 3 sentences, but objective 'tsdae' reconstructs single sentences"),
    ("tsdae", {}, TrainingRows(2, 4, dataset=SimpleNamespace(both=True, column_names=[])), "unset view_both"),
    ("declutr", {"anchors": 2}, TrainingRows(6, 1), None),
    *[("declutr", {"anchors": a}, TrainingRows(c, 8), f"hold {c} texts") for a, c in [(1, 1), (2, 3), (2, 5)]],
    ("declutr", {"positives": 2}, TrainingRows(2, 8), r"an anchor and 2 positive\(s\).* rows hold 2 texts"),
    ("declutr", {}, TrainingRows(2, 1), "one anchor has no negatives"),
    ("softmax", {}, training_rows([[0, 2], [1]], batch_size=1), None),
    ("softmax", {}, TrainingRows(2, 4), r"softmax.* need a column `relations`.*build_nli_groups makes them.*SNLI"),
    ("softmax", {}, rows_of([0.0]), "need a column `relations`"),
    ("softmax", {}, training_rows([[0, 2], [1, 3]]), r"training row 2 has the relations \[1, 3\]"),
    ("softmax", {}, training_rows([[-100]]), r"training row 1 has the relations \[-100\]"),
    ("softmax", {}, SELECTED, r"training row 2 has the relations \[1, 7\]"),
    ("softmax", {}, training_rows([[0, 2], [1]], sentences=[3, 3]), r"row 2 has 3 texts and 1 relation\(s\)"),
    ("softmax", {}, training_rows([[], [1]]), r"training row 1 has 1 texts and 0 relation\(s\)"),
    ("supcon", {}, training_rows([[0]], batch_size=1, processes=2), None),
    ("supcon", {}, training_rows([[0, 2], [1, 2]]), None),
    ("supcon", {}, training_rows([[1], [1, 2]]), "none of the 2 training rows has an entailed hypothesis.*check the"),
    ("supcon", {}, training_rows([[0, 2], [0]], batch_size=1), f"row 2: a batch of one premise.*{ALONE}"),
    (
        "softmax:0.7+supcon:0.3",
        {},
        training_rows([[2], [1]]),
        "none of the 2 training rows has an entailed hypothesis",
    ),
    ("angle", {}, rows_of([0.1, 0.9]), "positive_score = 1 or more .the highest is 0.9.*lower positive_score"),
    ("angle", {"positive_score": 0.5}, rows_of([0.1, 0.9]), None),
    ("angle", {"in_batch_weight": 0.0}, rows_of([0.1, 0.9]), None),
    ("cosent", {}, rows_of([0.0, 1.0], num_sentences=1), "holds 1 sentence.* columns sentence1, sentence2 and score"),
    ("cosent", {}, TrainingRows(2, 4), "needs a score for each pair, but the training rows have no column 'score'"),
    ("angle", {}, RELATED, "have no column 'score'"),
    ("cosent", {}, rows_of([0.0, 1.0, math.nan]), "training row 3: the score nan is not a finite number"),
    ("cosent", {}, rows_of([0.0, None]), "training row 2: the score nan is not a finite number"),
    ("angle", {}, rows_of([0.0, math.inf]), "training row 2: the score inf is not a finite number"),
    (
        "angle",
        {},
        rows_of([1.0, 1.0, 1.0]),
        "all 3 training pairs have the score 1, so objective 'angle' has",
    ),
    ("cosent", {}, rows_of([0.0, 1.0], batch_size=1), f"a batch of 1 has none to compare: {ALONE}"),
]


@pytest.mark.parametrize("name, options, message", OPTIONS)
def test_an_option_out_of_range_is_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 8, options)


@pytest.mark.parametrize("name, options, rows, message", ROWS)
def test_rows_and_batches_are_checked_before_training(name, options, rows, message):
    objective = build_objective(name, 8, options)
    if message is None:
        objective.check(rows)
    else:
        with pytest.raises(ValueError, match=message):
            objective.check(rows)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: InfoNCE(hard_negative_weight=math.nan), "hard_negative_weight must be a finite number, got nan"),
        (
            lambda: InfoNCE()(torch.ones(4, 2, 3), text_ids=torch.ones(4, 3)),
            r"text_ids must be \(4, 2\)",
        ),
        (lambda: build_objective("angle", 7), "its size must be even, got 7"),
        (
            lambda: build_objective("esimcse", 8, {"matryoshka_dims": [4], "queue_size": 8}).check(TrainingRows(1, 9)),
            "queue_size",
        ),
        (lambda: build_objective("simcse", 8, {"matryoshka_dims": [4]}).check(TrainingRows(1, 1)), ALONE),
        *[
            (lambda dims=dims: build_objective("simcse", 768, {"matryoshka_dims": dims}), f"matryoshka_dims.*{named}")
            for dims, named in (([0], "0"), ([769], "769"), ([64.0], "64.0"), (["64"], "'64'"), ([8, 8], "twice"))
        ],
        *[
            (
                lambda name=name: build_objective(f"simcse+{name}", 8, {"matryoshka_dims": [4]}),
                "without matryoshka",
            )
            for name in ("esimcse", "diffcse", "promptbert")
        ],
        (lambda: check_options("an integer above 0", size=True), "size must be an integer above 0, got True"),
    ],
)
def test_other_values_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name, options", [("simcse", {"mask_duplicates": True}), ("supcon", {}), ("angle", {})])
def test_a_batch_without_text_ids_is_refused(name, options):
    inputs = {"relations": torch.tensor([[0]]), "scores": torch.ones(1)}
    with pytest.raises(ValueError, match="no text_ids, by which equal texts are recognized: make the collator with"):
        build_objective(name, 4, options)(EncodedBatch(torch.ones(1, 2, 4), inputs))


def test_a_batch_of_evaluation_is_not_checked():
    assert SimCSEObjective(4).eval()(EncodedBatch(torch.ones(1, 2, 4))).item() == 0
