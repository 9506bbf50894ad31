"""A terminal shows a line of losses and dev scores for each step that logs some, and no dictionaries."""

import pytest
from trainer_helpers import pairs, texts
from transformers import TrainerCallback

from simcse_hf import SimilarityEvalCallback

_RUN = {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}


def lines_of(capsys):
    """The lines about steps."""
    printed = capsys.readouterr()
    assert "{" not in printed.out + printed.err
    lines = printed.err.replace("\r", "\n").splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("step ")]


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_a_line_has_the_step_the_losses_and_the_score_of_each_dev_set(trained, disable_tqdm, capsys):
    more = {}
    if disable_tqdm:  # the bar of an evaluation set ends in a line of its own
        more = {"callbacks": [SimilarityEvalCallback(pairs(20), "news")], "eval_dataset": texts(8)}
    trainer = trained(texts(24), dev_set=pairs(), **more, **_RUN, disable_tqdm=disable_tqdm)
    steps = {}
    for entry in trainer.state.log_history:
        for name in ("loss", "eval_loss", "eval_news_spearman", "eval_stsb_spearman"):
            if name in entry:
                steps[entry["step"]] = steps.get(entry["step"], "") + f" {name} {entry[name]:#.4g}"
    assert lines_of(capsys) == [f"step {step}{numbers}" for step, numbers in steps.items()]
    assert list(steps) == [0, 1, 2, 3, 4]


def test_what_a_callback_logs_is_shown(make, capsys):
    class Logs(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            trainer.log({"temperature": 0.25, "note": "a text"})

    trainer = make(texts(24), callbacks=[Logs()], max_steps=1, logging_steps=5)
    trainer.train()
    assert lines_of(capsys) == ["step 1 temperature 0.2500"]


def test_a_notebook_keeps_the_table_of_transformers(make, monkeypatch):
    class OfANotebook(TrainerCallback):
        pass

    monkeypatch.setattr("transformers.trainer.DEFAULT_PROGRESS_CALLBACK", OfANotebook)
    trainer = make(disable_tqdm=False)
    assert isinstance(trainer.callback_handler.callbacks[-1], OfANotebook)
