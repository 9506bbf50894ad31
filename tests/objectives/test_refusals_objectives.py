"""What objectives refuse: options out of range, and training rows or batches that they cannot learn from."""

import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from relation_helpers import training_rows

from simcse_hf.objectives import (
    OBJECTIVES,
    EncodedBatch,
    InfoNCE,
    Objective,
    TrainingRows,
    build_objective,
    register,
)
from simcse_hf.objectives.base import add_up

# --- options ---

#: For each objective, its options and values out of their range.
OUT_OF_RANGE = {
    "simcse": {
        "symmetric": ["no"],
        "mask_duplicates": [1],
        "bidirectional": ["yes"],
        "negatives": ["none"],
        "false_negative_margin": [True, "1", math.nan],
        "matryoshka_dims": [[0], [9], [4.0], ["4"], [True], [4, 4]],
    },
    "supcon": {
        "nli_sampling": ["all"],
        "max_positives": [0],
        "max_negatives": [0],
    },
    "softmax": {
        "augment": ["yes"],
        "max_positives": [3],
        "layers": [3],
        "hidden_dim": [0, -1, 2.5],
    },
    "angle": {
        "angle_temperature": [-1.0],
        "cosine_weight": [-1.0],
        "positive_score": ["4"],
    },
    "declutr": {
        "temperature": [0],
        "anchors": [0],
        "positives": [0],
        "max_span": [0],
        "min_span": [0],
    },
    "barlow_twins": {
        "off_diagonal_weight": [-0.1, math.nan],
        "projector_dim": [0, 1.5, True, "8192"],
    },
    "vicreg": {
        "invariance_weight": [-0.1],
        "variance_weight": [-0.1],
        "covariance_weight": [-0.1],
    },
    "contrastive_tension": {
        "negatives_per_positive": [0, 2.0, True, "7"],
    },
    "esimcse": {
        "momentum": [1.0, -0.1, "0.9"],
        "queue_size": [0, 2.5],
    },
    "diffcse": {
        "mask_ratio": [1.0, 0.0, "0.3"],
        "projector": ["no"],
        "replaced_weight": [0.0],
    },
    "promptbert": {
        "denoise": ["False"],
        "head": ["False"],
    },
    "distill": {
        "loss": ["ranks"],
        "keep_projection": ["no"],
        "student_temperature": [0],
        "consistency_weight": [-1],
    },
    "is_bert": {"dropout": [1]},
    "tsdae": {"encoders": [2]},
    "simcse+vicreg": {"simcse.projector_dim": [3]},  # which simcse does not have
    "simcse+esimcse": {"matryoshka_dims": [[4]]},
    "simcse+diffcse": {"matryoshka_dims": [[4]]},
    "simcse+promptbert": {"matryoshka_dims": [[4]]},
}


#: Options that make an objective small; the papers' projectors take more than a second.
SMALL = {"barlow_twins": {"projector_dim": 4}, "vicreg": {"projector_dim": 4}}


def values_out_of_range():
    found = []
    for name, options in OUT_OF_RANGE.items():
        for option, values in options.items():
            found += [(name, option, value) for value in values]
    return found


@pytest.mark.parametrize("name, option, value", values_out_of_range())
def test_an_option_out_of_range_is_refused_by_name(name, option, value):
    options = SMALL.get(name, {}) | {option: value}
    with pytest.raises(ValueError, match=option):
        build_objective(name, 8, options)


@pytest.mark.parametrize(
    "name, options, named",
    [
        ("simcse", {"bidirectional": True, "symmetric": True}, "bidirectional"),
        ("simcse", {"negatives": "own", "symmetric": True}, "negatives"),
        ("simcse", {"negatives": "own", "bidirectional": True}, "negatives"),
        ("softmax", {"max_negatives": 2.5, "augment": True}, "max_negatives"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(name, options, named):
    with pytest.raises(ValueError, match=named):
        build_objective(name, 8, options)


@pytest.mark.parametrize(
    "name, message",
    [
        ("simsce", r"simcse, .*'simsce' \(did you mean simcse\?\)$"),
        ("simcse+nothing", "objective must be one of .*simcse"),
        ("simcse+", "objective must be one of .*simcse"),
        ("my.losses:MyLoss", "the module my.losses, import it first"),
        ("simcse+vicreg:much", "vicreg:much"),
        ("simcse+simcse:2", "names simcse twice"),
        ("simcse+cosent", "cosent reads other training rows or columns"),
        ("simcse+tsdae", "tsdae reads other training rows or columns"),
        ("angle", "got 7"),
    ],
)
def test_names_and_sums_that_cannot_be_built_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 7)


# --- training rows ---

LARGER_BATCHES = "raise per_device_train_batch_size"


def scored_rows(scores, num_sentences=2, global_batch=4):
    """Rows of sentences with a score."""
    row = [[2, 5, 3]] * num_sentences
    table = {"input_ids": [row] * len(scores), "score": scores}
    return TrainingRows(num_sentences, global_batch, table, Dataset.from_dict(table))


def labelled_rows(global_batch):
    """Rows of a text with a label."""
    return TrainingRows(1, global_batch, ["input_ids", "label"])


def selected_rows():
    """The last and the second of three rows with relations, of which the second has one that does not exist."""
    rows = training_rows([[0], [1, 7], [2]])
    rows.dataset = rows.dataset.select([2, 1])
    return rows


@pytest.mark.parametrize(
    "name, options, rows",
    [
        ("simcse", {}, TrainingRows(3, 1)),
        ("simcse", {}, TrainingRows(1, 2)),
        ("simcse", {}, training_rows([[0, 2, 1], [0]])),
        ("simcse", {"negatives": "own"}, TrainingRows(3, 1)),
        ("esimcse", {"queue_size": 31}, TrainingRows(1, 31)),
        ("barlow_twins", {"projector_dim": 4}, TrainingRows(2, 2)),
        ("contrastive_tension", {}, TrainingRows(1, 8)),
        ("declutr", {"anchors": 2}, TrainingRows(6, 1)),
        ("softmax", {}, training_rows([[0, 2], [1]], global_batch=1)),
        ("supcon", {}, training_rows([[0]], global_batch=2)),
        ("angle", {"positive_score": 0.5}, scored_rows([0.1, 0.9])),
        ("distill", {}, TrainingRows(3, 1)),
        ("class_labels", {}, labelled_rows(6)),
        ("class_labels", {}, training_rows([[0, 0]] * 4, global_batch=5)),
    ],
)
def test_rows_that_fit_are_taken(name, options, rows):
    build_objective(name, 8, options).check(rows)


@pytest.mark.parametrize(
    "name, options, rows, message",
    [
        ("simcse", {}, TrainingRows(2, 1), LARGER_BATCHES),
        (
            "esimcse",
            {"queue_size": 31},
            TrainingRows(1, 32),
            "queue_size to 32 or more.* 80",
        ),
        (
            "contrastive_tension",
            {},
            TrainingRows(2, 7),
            "needs .* other rows in a batch, and a batch of 7 has 6.*negatives_per_positive",
        ),
        ("is_bert", {}, TrainingRows(1, 1), f"{LARGER_BATCHES} to at least 2"),
        ("declutr", {}, TrainingRows(2, 1), "one anchor has no negatives"),
        (
            "supcon",
            {},
            training_rows([[0, 2], [0]], global_batch=1),
            f"row 2: a batch of one premise.*{LARGER_BATCHES}",
        ),
        ("distill", {"loss": "similarities"}, TrainingRows(1, 1), LARGER_BATCHES),
        ("distill", {"loss": "listnet"}, TrainingRows(2, 1), LARGER_BATCHES),
        ("class_labels", {}, labelled_rows(7), "even number of rows"),
        ("class_labels", {}, labelled_rows(2), "even number of rows"),
        ("class_labels", {}, labelled_rows(9), "even number of rows"),
        (
            "cosent",
            {},
            scored_rows([0.0, 1.0], global_batch=1),
            f"a batch of 1 has none to compare: {LARGER_BATCHES}",
        ),
    ],
)
def test_batches_of_a_size_that_does_not_work_are_refused(name, options, rows, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 8, options).check(rows)


@pytest.mark.parametrize(
    "name, options, rows, message",
    [
        (
            "simcse",
            {"negatives": "own"},
            TrainingRows(2, 8),
            "row 1 has no hard negative, and negatives=own.*mine",
        ),
        (
            "simcse",
            {"negatives": "own"},
            training_rows([[0, 2], [0, -100]]),
            "training row 2 has no hard negative",
        ),
        (
            "barlow_twins",
            {"projector_dim": 4},
            TrainingRows(3, 8),
            "rows with 3 sentences, but this objective",
        ),
        (
            "is_bert",
            {},
            TrainingRows(2, 8),
            "rows with 2 sentences.*give one text column",
        ),
        (
            "tsdae",
            {},
            TrainingRows(3, 4),
            "rows with 3 sentences, but objective 'tsdae' reconstructs single sentences",
        ),
        (
            "tsdae",
            {},
            TrainingRows(2, 4, dataset=SimpleNamespace(both=True)),
            "unset view_both",
        ),
        ("declutr", {"anchors": 1}, TrainingRows(1, 8), "hold 1 texts"),
        ("declutr", {"anchors": 2}, TrainingRows(3, 8), "hold 3 texts"),
        ("declutr", {"anchors": 2}, TrainingRows(5, 8), "hold 5 texts"),
        (
            "declutr",
            {"positives": 2},
            TrainingRows(2, 8),
            r"an anchor and 2 positive\(s\).* rows hold 2 texts",
        ),
    ],
)
def test_rows_with_another_number_of_texts_are_refused(name, options, rows, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 8, options).check(rows)


@pytest.mark.parametrize(
    "name, rows, message",
    [
        ("simcse", training_rows([[0, 0]]), "relations"),
        (
            "simcse",
            training_rows([[1]]),
            "relations, which objective 'simcse' does not read",
        ),
        ("vicreg", training_rows([[1]]), "rows with relations"),
        (
            "softmax",
            TrainingRows(2, 4),
            r"softmax.* need a column `relations`.*build_nli_groups makes them.*SNLI",
        ),
        (
            "softmax",
            training_rows([[0, 2], [1, 3]]),
            r"training row 2 has the relations \[1, 3\]",
        ),
        ("softmax", selected_rows(), r"training row 2 has the relations \[1, 7\]"),
        (
            "supcon",
            training_rows([[1], [1, 2]]),
            "none of the 2 training rows has an entailed hypothesis.*check the",
        ),
        ("softmax:0.7+supcon:0.3", training_rows([[2], [1]]), "entailed hypothesis"),
        ("class_labels", TrainingRows(1, 8), "text and label"),
    ],
)
def test_rows_with_unfit_relations_or_without_classes_are_refused(name, rows, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 8, SMALL.get(name, {})).check(rows)


@pytest.mark.parametrize(
    "name, rows, message",
    [
        (
            "angle",
            scored_rows([0.1, 0.9]),
            "positive_score = 1 or more .the highest is 0.9.*lower positive_score",
        ),
        (
            "cosent",
            TrainingRows(2, 4),
            "learns from pairs with a score.* give the columns sentence1, sentence2 and score",
        ),
        (
            "cosent",
            scored_rows([0.0, 1.0, math.nan]),
            "training row 3: the score nan is not a finite number",
        ),
        (
            "angle",
            scored_rows([0.0, math.inf]),
            "training row 2: the score inf is not a finite number",
        ),
        (
            "angle",
            scored_rows([1.0, 1.0, 1.0]),
            "all 3 training pairs have the score 1",
        ),
    ],
)
def test_scores_that_cannot_be_learned_are_refused(name, rows, message):
    with pytest.raises(ValueError, match=message):
        build_objective(name, 8).check(rows)


# --- batches ---


def test_text_ids_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="text_ids"):
        InfoNCE()(torch.ones(4, 2, 3), text_ids=torch.ones(4, 3))


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("supcon", {}, "text_ids"),
        ("angle", {}, "text_ids"),
        ("simcse", {"mask_duplicates": True}, "text_ids"),
        ("distill", {"loss": "similarities"}, "no vectors of a teacher.*--teacher"),
        ("distill", {"loss": "listnet"}, "no vectors of a teacher.*--teacher"),
    ],
)
def test_a_batch_without_what_an_objective_reads_is_refused(name, options, message):
    inputs = {"relations": torch.tensor([[0]]), "scores": torch.ones(1)}
    batch = EncodedBatch(torch.ones(1, 2, 4), inputs)
    with pytest.raises(ValueError, match=message):
        build_objective(name, 4, options)(batch)


class WithoutSize(Objective):
    def __init__(self, margin=1.0):
        super().__init__(8)


def test_a_class_whose_constructor_takes_no_size_is_refused():
    with pytest.raises(ValueError, match="WithoutSize.__init__ must take dim"):
        register("without_size", WithoutSize)
    assert "without_size" not in OBJECTIVES


@pytest.mark.parametrize(
    "loss, got",
    [
        (torch.zeros(4), r"\(4,\)"),
        ({"first": torch.zeros(()), "second": torch.zeros(4)}, r"\(4,\)"),
        (None, "NoneType"),
        (0.5, "float"),
    ],
    ids=["one for each row", "a part for each row", "nothing", "a number"],
)
def test_a_loss_that_is_no_scalar_is_refused(loss, got):
    with pytest.raises(ValueError, match=rf"must return a tensor of shape \(\).*got {got}"):
        add_up(loss)


def test_an_objective_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="has no forward"):
        Objective(4)(EncodedBatch(torch.zeros(2, 2, 4)))
