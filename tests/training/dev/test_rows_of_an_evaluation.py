"""Rows that `evaluate` and `predict` are given: their order, their form, their labels, and several processes."""

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from process_helpers import launch
from torch import nn
from trainer_helpers import (
    EVALUATES,
    SAVES,
    SMALL,
    assert_close_weights,
    assert_same_weights,
    make,
    model_of,
    pairs,
    scored,
    sentences,
    texts,
    train_and_resume,
    weights,
)

from simcse_hf import AutoModelForCL, SimilarityEvalCallback

#: Rows of different lengths, which grouping by length would sort.
ROWS = {"sent0": [" ".join(["the old cat sat"] * (1 + 5 * i % 4)) for i in range(21)], "sent1": sentences(21, 4)}


def test_rows_are_predicted_and_evaluated_in_their_order_however_training_draws_them(tmp_path, tokenizer):
    rows = Dataset.from_dict(ROWS)
    found = []
    for options in ({}, {"train_sampling_strategy": "group_by_length"}):
        trainer = make(tmp_path, tokenizer, texts(32, 2), dev_set=pairs(), per_device_eval_batch_size=4, **options)
        found.append((trainer.predict(rows).predictions, trainer.evaluate(rows)["eval_loss"]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-6)
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


def labelled(rows=21):
    return Dataset.from_dict({"text": ROWS["sent0"][:rows], "label": [i % 3 for i in range(rows)]})


@pytest.mark.parametrize(
    "objective, train, rows, labels",
    [
        ("simcse", texts(32, 2), Dataset.from_dict(ROWS), None),
        ("cosent", scored(32), scored(21), scored(21)["score"]),
        ("class_labels", labelled(), labelled(), labelled()["label"]),
    ],
)
def test_metrics_of_a_caller_see_the_texts_and_their_classes_or_scores(
    tmp_path, tokenizer, objective, train, rows, labels
):
    seen = []
    options = {
        "compute_metrics": lambda found: seen.append(found) or {},
        "include_for_metrics": ["inputs"],
        "per_device_eval_batch_size": 4,
    }
    trainer = make(tmp_path, tokenizer, train, model_of(objective=objective), **options)
    trainer.evaluate(rows)
    [found] = seen
    decoded = tokenizer.batch_decode(found.inputs[:, 0], skip_special_tokens=True)
    assert decoded == rows[rows.column_names[0]][:]
    if labels is None:
        assert len(found.label_ids) == 0
    else:
        assert found.label_ids.tolist() == pytest.approx(list(labels))


@pytest.mark.parametrize("form", ["file", "columns"])
def test_rows_are_evaluated_in_any_form_in_which_they_are_predicted(tmp_path, tokenizer, form):
    rows = Dataset.from_dict(ROWS)
    rows.to_csv(tmp_path / "rows.csv")
    given = {"file": str(tmp_path / "rows.csv"), "columns": ROWS}[form]
    trainer = make(tmp_path, tokenizer, texts(32, 2))
    expected = trainer.predict(rows).metrics["test_loss"]
    assert trainer.predict(given).metrics["test_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.evaluate(given)["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.evaluate(DatasetDict(old=rows))["eval_old_loss"] == pytest.approx(expected, rel=1e-6)


def test_rows_of_a_data_set_are_evaluated_and_predicted_by_its_objective(tmp_path, tokenizer):
    data = {"pairs": texts(32, 2), "scores": scored(32)}
    options = {"datasets": {"scores": {"objective": "cosent"}}, "per_device_train_batch_size": 4}
    trainer = make(tmp_path, tokenizer, data, model_of(pooler_type="avg"), dev_set=pairs(), **options)
    rows = {"pairs": Dataset.from_dict(ROWS), "scores": scored(21)}
    metrics = trainer.evaluate(rows)
    assert [name for name in metrics if "spearman" in name] == ["eval_stsb_spearman"], "the dev set is scored once"
    model = model_of(objective="cosent", pooler_type="avg")
    alone = make(tmp_path, tokenizer, scored(32), model).evaluate(rows["scores"])
    assert metrics["eval_scores_loss"] == pytest.approx(alone["eval_loss"], rel=1e-5)
    for name in rows:
        predicted = trainer.predict({name: rows[name]})
        assert predicted.metrics["test_loss"] == pytest.approx(metrics[f"eval_{name}_loss"], rel=1e-5)
    assert predicted.label_ids.tolist() == pytest.approx(rows["scores"]["score"])
    for refused in (rows["pairs"], rows):
        with pytest.raises(ValueError, match="predict"):
            trainer.predict(refused)


def evaluate_in_process(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, texts(32, 2), per_device_eval_batch_size=4)
    found = trainer.predict(Dataset.from_dict(ROWS))
    if trainer.is_world_process_zero():
        torch.save((found.metrics["test_loss"], found.predictions), tmp_path / f"{trainer.args.world_size}.pt")


def test_the_loss_of_two_processes_is_that_of_one(tmp_path, tokenizer):
    """21 rows: the last batch has one row, which Accelerate repeats for both processes."""
    evaluate_in_process(tmp_path, tokenizer)
    launch(evaluate_in_process, tmp_path, tokenizer)
    (one, first), (two, second) = (torch.load(tmp_path / f"{number}.pt", weights_only=False) for number in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)
    np.testing.assert_allclose(first, second, atol=1e-5)


# --- what the optimizer does with weights ---


def test_weight_decay_leaves_out_norms_also_those_of_a_projector(tmp_path, tokenizer):
    model = model_of(objective="barlow_twins", objective_options=SMALL)
    trainer = make(tmp_path, tokenizer, texts(32, 2), model, weight_decay=0.1)
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

    def train(self):
        self._shift(True)

    def eval(self):
        self._shift(False)

    def step(self, closure=None):
        assert all(group["trains"] for group in self.param_groups)
        return super().step(closure)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_what_is_scored_and_saved_has_the_weights_that_an_optimizer_with_two_modes_gives(
    tmp_path, tokenizer, chunk_size
):
    def trainer():
        own = {"optimizer_cls_and_kwargs": (TwoModes, {"lr": 0.1}), "gradcache_chunk_size": chunk_size}
        return make(tmp_path, tokenizer, texts(32), model_of(), dev_set=pairs(), **own, **SAVES, **EVALUATES)

    whole, _ = train_and_resume(trainer, 2)
    for step in (2, 4):
        state = torch.load(tmp_path / "run" / f"checkpoint-{step}" / "optimizer.pt")
        assert not any(group["trains"] for group in state["param_groups"])
        saved = AutoModelForCL.from_pretrained(tmp_path / "run" / f"checkpoint-{step}")
        score = SimilarityEvalCallback(pairs()).evaluate(saved, tokenizer)["stsb_spearman"]
        found = [entry for entry in whole.state.log_history if entry["step"] == step]
        assert [entry["eval_stsb_spearman"] for entry in found if "eval_stsb_spearman" in entry] == [
            pytest.approx(score)
        ]
    assert_close_weights(weights(whole.model), weights(saved))


def test_the_best_weights_stay_as_they_were_saved_after_a_last_step_that_is_neither_evaluated_nor_saved(
    tmp_path, tokenizer
):
    options = {"optimizer_cls_and_kwargs": (TwoModes, {"lr": 0.1}), "eval_dataset": texts(8, seed=5)}
    options |= SAVES | EVALUATES | {"max_steps": 3, "load_best_model_at_end": True}
    trainer = make(tmp_path, tokenizer, **options)
    trainer.train()
    trainer.save_model(tmp_path / "final")
    final, best = (AutoModelForCL.from_pretrained(tmp_path / name) for name in ("final", "run/checkpoint-2"))
    assert_same_weights(weights(final), weights(best))
