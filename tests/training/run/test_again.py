"""A program that trains: the seed decides its head, a kill loses nothing, and train() may be called again."""

import pytest
import torch
from conftest import tiny_config
from trainer_helpers import EVALUATES, SAVES, End, assert_same_weights, logged, pairs, texts, weights
from transformers import BertForMaskedLM

ROWS = texts(32)


@pytest.fixture
def program(make, save_checkpoint, tmp_path):
    """`program(folder)` makes the trainer of a script that names its model, in a process with some random state."""
    start = save_checkpoint(BertForMaskedLM(tiny_config()), "start")  # whose head nobody has trained

    def program(folder="run", noise=0, **options):
        torch.manual_seed(noise)
        return make(ROWS, start, output_dir=str(tmp_path / folder), **SAVES | options)

    return program


# --- the head ---


def test_two_programs_with_one_seed_train_equal_models_and_one_that_was_killed_continues_to_them(program, tmp_path):
    one, other = (program(f"run-{noise}", noise) for noise in (1, 2))
    one.train()
    end = End(3, KeyboardInterrupt)
    other.add_callback(end)
    with pytest.raises(KeyboardInterrupt):
        other.train()
    other.remove_callback(end)
    again = program("run-2", noise=3)
    for trainer in (again, other):  # also in the process in which the run was interrupted
        trainer.train(resume_from_checkpoint=tmp_path / "run-2" / "checkpoint-2")
        assert_same_weights(weights(one.model), weights(trainer.model))
    head = program(seed=2).model.contrastive_head.dense.weight
    assert not torch.equal(head, program(seed=1).model.contrastive_head.dense.weight)


# --- a further call ---


def test_a_further_call_has_the_rates_of_a_new_run_with_the_present_arguments(program):
    trainer = program(logging_steps=1)
    trainer.train()
    first = logged(trainer, "learning_rate")
    trainer.train()
    assert logged(trainer, "learning_rate") == first
    trainer.args.learning_rate *= 2
    trainer.train()
    assert logged(trainer, "learning_rate") == pytest.approx([2 * rate for rate in first])


def test_a_longer_run_in_the_same_process_trains_as_one_in_a_new_process(program):
    options = {"logging_steps": 1, "allow_changes": True}
    trainer = program("here", **options)
    trainer.train()
    trainer.args.max_steps = 7
    trainer.train(resume_from_checkpoint=True)
    program("there", **options).train()
    other = program("there", **options | {"max_steps": 7})
    other.train(resume_from_checkpoint=True)
    rates, expected = (logged(each, "learning_rate") for each in (trainer, other))
    assert rates == expected and rates[-3:] != [0, 0, 0]
    assert_same_weights(weights(trainer.model), weights(other.model))


def test_the_record_of_a_further_run_says_how_often_the_model_was_trained_before(trained, program, tmp_path):
    trainer = program()
    trainer.train()
    assert trainer.results.run["earlier_steps"] == 0
    for resumed in (None, True):
        trainer.train(resume_from_checkpoint=resumed)
        assert trainer.results.run["earlier_steps"] == 4
    trainer.save_model()
    trainer.create_model_card()
    assert "took 4 steps before, 8 in all" in (tmp_path / "run" / "README.md").read_text()
    other = trained(ROWS, trainer.model, output_dir=str(tmp_path / "other"))
    assert other.results.run["earlier_steps"] == 8


# --- what a run says ---


def test_a_run_with_a_dev_set_says_its_verdict_unless_it_is_silent(trained, capsys):
    options = {"dev_set": pairs(), "max_steps": 2} | EVALUATES
    trained(**options)
    assert "before training" in capsys.readouterr().out
    trainer = trained(**options, logging_strategy="no", eval_on_start=False)
    assert capsys.readouterr().out == ""
    assert trainer.results.initial["step"] == 2
