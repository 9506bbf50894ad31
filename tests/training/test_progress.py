"""A terminal shows a table of steps, losses and dev scores, and no dictionaries."""

import pytest
from trainer_helpers import make, pairs, texts
from transformers import TrainerCallback

from simcse_hf import SimilarityEvalCallback

_RUN = {"max_steps": 4, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}


def rows_of(capsys):
    """The rows of the table, in words."""
    printed = capsys.readouterr()
    assert "{" not in printed.out + printed.err
    lines = [line.split() for line in printed.err.replace("\r", "\n").splitlines() if "it/s" not in line]
    return [words for words in lines if words and (words[0] == "step" or words[0].isdigit())]


@pytest.mark.parametrize("disable_tqdm", [True, False])
def test_a_row_has_the_step_the_loss_and_the_score_that_runs_are_compared_by(
    disable_tqdm, tmp_path, tokenizer, capsys
):
    trainer = make(tmp_path, tokenizer, texts(24), dev_set=pairs(), **_RUN, disable_tqdm=disable_tqdm)
    trainer.train()
    log = {}
    for entry in trainer.state.log_history:
        row = log.setdefault(entry["step"], {})
        row |= {name: entry[name] for name in ("loss", "eval_stsb_spearman") if name in entry}
    expected = [["step", "loss", "stsb_spearman"]]
    for step, row in log.items():
        cells = [f"{row['loss']:.4f}"] if "loss" in row else []
        cells += [f"{row['eval_stsb_spearman']:.2f}"] if "eval_stsb_spearman" in row else []
        expected.append([str(step), *cells])
    assert rows_of(capsys) == expected


def test_several_dev_sets_and_an_evaluation_loss_have_columns_of_their_own(tmp_path, tokenizer, capsys):
    more = [SimilarityEvalCallback(pairs(20), "news")]
    trainer = make(tmp_path, tokenizer, texts(24), dev_set=pairs(), callbacks=more, eval_dataset=texts(8), **_RUN)
    trainer.train()
    header, *rows = rows_of(capsys)
    assert header == ["step", "loss", "eval_loss", "news_spearman", "stsb_spearman"]
    assert [len(row) for row in rows] == [4, 2, 5, 2, 5]


def test_what_a_callback_logs_is_shown(tmp_path, tokenizer, capsys):
    class Logs(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            trainer.log({"temperature": 0.25})

    trainer = make(tmp_path, tokenizer, texts(24), callbacks=[Logs()], max_steps=1, logging_steps=5)
    trainer.train()
    assert rows_of(capsys) == [["step", "loss", "temperature"], ["1", "0.2500"]]


def test_a_notebook_keeps_the_table_of_transformers(tmp_path, tokenizer, monkeypatch):
    class OfANotebook(TrainerCallback):
        pass

    monkeypatch.setattr("transformers.trainer.DEFAULT_PROGRESS_CALLBACK", OfANotebook)
    trainer = make(tmp_path, tokenizer, disable_tqdm=False)
    assert isinstance(trainer.callback_handler.callbacks[-1], OfANotebook)
