"""Rows that `evaluate` and `predict` are given: their order, their form and their labels."""

from functools import partialmethod

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from torch import nn
from trainer_helpers import (
    EVALUATES,
    SAVES,
    assert_close_weights,
    assert_same_weights,
    logged,
    model_of,
    pairs,
    refuses,
    scored,
    sentences,
    texts,
    train_and_resume,
    weights,
)

from simcse_hf import AutoModelForCL, SimilarityEvalCallback

#: Rows of different lengths, which grouping by length would sort.
ROWS = {"sent0": [" ".join(["the old cat sat"] * (1 + 5 * i % 4)) for i in range(21)], "sent1": sentences(21, 4)}


def test_rows_are_predicted_and_evaluated_in_their_order_however_training_draws_them(make):
    found = []
    for options in ({}, {"train_sampling_strategy": "group_by_length"}):
        trainer = make(texts(32, 2), dev_set=pairs(), per_device_eval_batch_size=4, **options)
        found.append((trainer.predict(ROWS).predictions, trainer.evaluate(ROWS)["eval_loss"]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


CLASSES = {"text": ROWS["sent0"], "label": [i % 3 for i in range(21)]}


@pytest.mark.parametrize(
    "objective, rows, labels",
    [
        ("simcse", Dataset.from_dict(ROWS), []),
        ("cosent", scored(21), scored(21)["score"]),
        ("class_labels", Dataset.from_dict(CLASSES), CLASSES["label"]),
    ],
)
def test_metrics_of_a_caller_see_the_texts_and_their_classes_or_scores(make, tokenizer, objective, rows, labels):
    seen = []
    options = {"compute_metrics": lambda found: seen.append(found) or {}, "include_for_metrics": ["inputs"]}
    make(rows, model_of(objective=objective), per_device_eval_batch_size=4, **options).evaluate(rows)
    [found] = seen
    decoded = tokenizer.batch_decode(found.inputs[:, 0], skip_special_tokens=True)
    assert decoded == rows[rows.column_names[0]][:]
    assert list(found.label_ids) == pytest.approx(list(labels))


def test_rows_in_any_form_are_evaluated_beside_the_dev_set_and_predicted_without_it(make, tmp_path):
    rows = Dataset.from_dict(ROWS)
    rows.to_csv(tmp_path / "rows.csv")
    trainer = make(texts(32, 2), dev_set=pairs())
    metrics = trainer.predict(rows).metrics
    assert not [name for name in metrics if "stsb" in name]
    expected = pytest.approx(metrics["test_loss"], rel=1e-6)
    for given in (str(tmp_path / "rows.csv"), ROWS):
        assert trainer.predict(given).metrics["test_loss"] == expected
        assert trainer.evaluate(given)["eval_loss"] == expected
    evaluated = trainer.evaluate(DatasetDict(old=rows))
    assert evaluated["eval_old_loss"] == expected and "eval_stsb_spearman" in evaluated
    assert trainer.evaluate(texts(21, 2, seed=6))["eval_loss"] != expected
    assert "eval_loss" not in trainer.evaluate()


def test_rows_of_a_data_set_are_evaluated_and_predicted_by_its_objective(make):
    data = {"pairs": texts(32, 2), "scores": scored(32)}
    options = {"datasets": {"scores": {"objective": "cosent"}}, "per_device_train_batch_size": 4}
    trainer = make(data, model_of(pooler_type="avg"), dev_set=pairs(), **options)
    rows = {"pairs": texts(21, 2), "scores": scored(21)}
    metrics = trainer.evaluate(rows)
    assert [name for name in metrics if "spearman" in name] == ["eval_stsb_spearman"], "the dev set is scored once"
    model = model_of(objective="cosent", pooler_type="avg")
    alone = make(scored(32), model).evaluate(rows["scores"])
    assert metrics["eval_scores_loss"] == pytest.approx(alone["eval_loss"], rel=1e-5)
    for name in rows:
        predicted = trainer.predict({name: rows[name]})
        assert predicted.metrics["test_loss"] == pytest.approx(metrics[f"eval_{name}_loss"], rel=1e-5)
    assert predicted.label_ids.tolist() == pytest.approx(rows["scores"]["score"])
    for refused in (rows["pairs"], rows):
        with refuses("predict"):
            trainer.predict(refused)
    with refuses("none of the data sets pairs, scores: evaluate eval_dataset"):
        trainer.evaluate(rows["pairs"])


# --- what the optimizer does with weights ---


def test_weight_decay_leaves_out_norms_also_those_of_a_projector(make):
    model = model_of(objective="barlow_twins", objective_options={"projector_dim": 16})
    trainer = make(texts(32, 2), model, weight_decay=0.1)
    decays = trainer.get_decay_parameter_names(trainer.model)
    norms = {name for name, module in trainer.model.named_modules() if "Norm" in type(module).__name__}
    assert any(name.startswith("objective.") for name in norms)
    assert not [name for name in decays if name.rpartition(".")[0] in norms]
    linear = [name for name, module in trainer.model.objective.named_modules() if isinstance(module, nn.Linear)]
    assert {f"objective.{name}.weight" for name in linear} <= set(decays)


class TwoModes(torch.optim.SGD):
    """An optimizer that trains other weights than those that are to be used, which are smaller."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["trains"] = True

    @torch.no_grad()
    def _shift(self, trains):
        for group in self.param_groups:
            if group["trains"] != trains:
                group["trains"] = trains
                for parameter in group["params"]:
                    parameter.add_(0.1 if trains else -0.1)

    train = partialmethod(_shift, trains=True)
    eval = partialmethod(_shift, trains=False)

    def step(self, closure=None):
        assert all(group["trains"] for group in self.param_groups)
        return super().step(closure)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_what_is_scored_and_saved_has_the_weights_that_an_optimizer_with_two_modes_gives(
    make, tmp_path, tokenizer, chunk_size
):
    def trainer():
        own = {"optimizer_cls_and_kwargs": (TwoModes, {"lr": 0.1}), "gradcache_chunk_size": chunk_size}
        return make(texts(32), model_of(), dev_set=pairs(), **own, **SAVES, **EVALUATES)

    whole, _ = train_and_resume(trainer, 2)
    scores = logged(whole, "eval_stsb_spearman")
    for step, expected in zip((2, 4), scores[1:], strict=True):
        state = torch.load(tmp_path / "run" / f"checkpoint-{step}" / "optimizer.pt")
        assert not any(group["trains"] for group in state["param_groups"])
        saved = AutoModelForCL.from_pretrained(tmp_path / "run" / f"checkpoint-{step}")
        score = SimilarityEvalCallback(pairs()).evaluate(saved, tokenizer)["stsb_spearman"]
        assert score == pytest.approx(expected)
    assert_close_weights(weights(whole.model), weights(saved))


def test_the_best_weights_stay_as_they_were_saved_after_a_last_step_that_is_neither_evaluated_nor_saved(
    trained, tmp_path
):
    options = {"optimizer_cls_and_kwargs": (TwoModes, {"lr": 0.1}), "eval_dataset": texts(8, seed=5)}
    options |= SAVES | EVALUATES | {"max_steps": 3, "load_best_model_at_end": True}
    trainer = trained(**options)
    trainer.save_model(tmp_path / "final")
    final, best = (AutoModelForCL.from_pretrained(tmp_path / name) for name in ("final", "run/checkpoint-2"))
    assert_same_weights(weights(final), weights(best))
