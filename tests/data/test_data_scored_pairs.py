"""Rows of two sentences and a score, from a data set in memory to a batch."""

import logging
import math

import pytest
import torch
from datasets import Dataset

from simcse_hf.data.collator import ContrastiveCollator
from simcse_hf.data.columns import resolve_scored_pairs
from simcse_hf.data.tokenize import tokenize_dataset

ROWS = {"id": [1, 2, 3], "sentence1": ["a cat", "a dog", ""], "sentence2": ["the cat", "a bird", "it"]}


def test_texts_and_scores_are_selected_and_empty_rows_dropped_together(caplog):
    with caplog.at_level(logging.INFO, "simcse_hf"):
        pairs = resolve_scored_pairs(Dataset.from_dict(ROWS | {"score": [4, 1, 2]}))
    assert pairs.to_dict() == {"sent0": ["a cat", "a dog"], "sent1": ["the cat", "a bird"], "score": [4.0, 1.0]}
    assert "dropped 1 of 3 rows for an empty cell: row 3" in caplog.text
    assert "Every row counts as a positive pair" not in caplog.text


def test_scores_may_be_written_as_text():
    assert resolve_scored_pairs(Dataset.from_dict(ROWS | {"score": ["0.5", "1", "2"]}))["score"][:] == [0.5, 1.0]


@pytest.mark.parametrize("score", [math.nan, None, math.inf])
def test_a_score_that_is_no_finite_number_is_refused_with_its_row(score):
    with pytest.raises(ValueError, match=f"pairs, row 2: the score {score} is not a finite number. Correct or remove"):
        resolve_scored_pairs(Dataset.from_dict(ROWS | {"score": [4.0, score, 1.0]}), "pairs")


def test_a_missing_column_of_scores_is_refused():
    with pytest.raises(ValueError, match="pairs: there is no column 'score'.*; the columns are 'id', 'sentence1'"):
        resolve_scored_pairs(Dataset.from_dict(ROWS), "pairs")


def test_a_list_of_texts_is_refused():
    lists = {"sentence1": ["a"], "sentence2": [["b", "c"]], "score": [1.0]}
    with pytest.raises(ValueError, match="column 'sentence2' holds List.*, not strings"):
        resolve_scored_pairs(Dataset.from_dict(lists))


def test_scores_reach_the_batch_beside_their_pair(tokenizer):
    pairs = resolve_scored_pairs(Dataset.from_dict(ROWS | {"score": [4, 1, 2]}))
    rows = tokenize_dataset(pairs, tokenizer, 8)
    batch = ContrastiveCollator(tokenizer, add_scores=True)([rows[1], rows[0]])
    assert torch.equal(batch["scores"], torch.tensor([1.0, 4.0]))
    assert batch["input_ids"][1, 0].tolist()[:4] == tokenizer("a cat")["input_ids"]
    assert "scores" not in ContrastiveCollator(tokenizer)([rows[0]])
