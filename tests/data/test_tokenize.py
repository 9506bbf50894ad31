"""What a user is promised of tokenisation: every text once, cut where told, the cuts counted, positions respected."""

import logging

import pytest
import torch
from conftest import CLS, FAMILIES, SEP, VOCABULARY, tiny_config
from datasets import Dataset
from transformers import AutoModel, T5Config

from simcse_hf.data.tokenize import tokenize_dataset
from simcse_hf.models.configuration import check_max_length, max_positions

TRIPLETS = {
    "sent0": ["a cat sat", "dog", "a cat sat on the mat ."],
    "sent1": ["cat", "a dog", "mat"],
    "sent2": ["a house", "a big tree", "old man"],
}


def ids_of(text):
    return [CLS, *(VOCABULARY.index(word) for word in text.split()), SEP]


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_rows_of_texts_become_rows_of_ids(columns, tokenizer):
    texts = dict(list(TRIPLETS.items())[:columns])
    tokenized = tokenize_dataset(Dataset.from_dict(texts), tokenizer, 32)
    assert tokenized.column_names == ["input_ids"]
    assert tokenized["input_ids"][:] == [[ids_of(text) for text in row] for row in zip(*texts.values(), strict=True)]


def test_the_order_of_the_columns_is_that_of_the_dataset(tokenizer):
    data = Dataset.from_dict(TRIPLETS).select_columns(["sent1", "sent0"])
    assert tokenize_dataset(data, tokenizer, 32)["input_ids"][1] == [ids_of("a dog"), ids_of("dog")]


def test_long_texts_are_cut_and_counted(tokenizer, caplog):
    with caplog.at_level(logging.INFO, "simcse_hf.data.tokenize"):
        tokenized = tokenize_dataset(Dataset.from_dict(TRIPLETS), tokenizer, 6)
    assert tokenized["input_ids"][2][0] == [*ids_of("a cat sat on")[:-1], SEP]
    assert max(len(ids) for row in tokenized["input_ids"] for ids in row) == 6
    assert [m for m in caplog.messages if m.startswith("1 of 9 texts fill max_seq_length = 6 tokens")]


def test_nothing_is_logged_where_nothing_is_cut(tokenizer, caplog):
    with caplog.at_level(logging.INFO, "simcse_hf.data.tokenize"):
        tokenize_dataset(Dataset.from_dict(TRIPLETS), tokenizer, 32)
    assert not caplog.messages


def test_counts_over_several_maps(tokenizer, caplog):
    """The map goes by batches of 1,000 rows, each of which counts its own."""
    data = Dataset.from_dict({"sent0": ["a cat sat on the mat", "dog"] * 1200})
    with caplog.at_level(logging.INFO, "simcse_hf.data.tokenize"):
        tokenize_dataset(data, tokenizer, 5)
    assert [m for m in caplog.messages if m.startswith("1200 of 2400 texts")]


def test_several_processes_give_the_same_rows(tokenizer):
    data = Dataset.from_dict(TRIPLETS)
    alone, shared = (tokenize_dataset(data, tokenizer, 6, num_proc=n)["input_ids"][:] for n in (None, 2))
    assert alone == shared


@pytest.mark.parametrize("family", FAMILIES)
def test_max_positions_are_all_that_the_encoder_takes(family):
    """Tried on the encoder: so many tokens pass, and one more fails where positions are a table."""
    config = tiny_config(family, dropout=0.0)
    encoder = AutoModel.from_config(config).eval()
    positions = max_positions(config)
    assert positions == (38 if family in ("roberta", "xlm-roberta", "mpnet") else 40)
    ids = torch.full((1, positions), 7)
    assert torch.isfinite(encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state).all()
    if family != "modernbert":  # rotary positions go on
        longer = torch.full((1, positions + 1), 7)
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            encoder(input_ids=longer, attention_mask=torch.ones_like(longer))


def test_an_encoder_without_a_table_of_positions_has_no_bound():
    assert max_positions(T5Config()) is None
    check_max_length(10**6, T5Config())


@pytest.mark.parametrize(("family", "positions"), [("bert", 40), ("roberta", 38)])
def test_more_tokens_than_positions_are_refused(family, positions):
    check_max_length(positions, tiny_config(family))
    with pytest.raises(
        ValueError, match=rf"max_seq_length is {positions + 1}, .*\({family}\) has {positions} positions"
    ):
        check_max_length(positions + 1, tiny_config(family))


def test_an_empty_dataset_is_tokenised_or_named(tokenizer):
    try:
        tokenized = tokenize_dataset(Dataset.from_dict({"sent0": []}), tokenizer, 8)
    except ValueError:
        return
    assert tokenized.column_names == ["input_ids"] and len(tokenized) == 0


def test_groups_keep_their_texts_and_relations(tokenizer):
    groups = Dataset.from_dict(
        {"texts": [["the cat", "a dog sat", "cat"], ["a mat", "dog"]], "relations": [[0, 2], [1]]}
    )
    tokenized = tokenize_dataset(groups, tokenizer, 12)
    assert tokenized["relations"][:] == [[0, 2], [1]]
    wanted = [[tokenizer(text)["input_ids"] for text in row] for row in groups["texts"]]
    assert tokenized["input_ids"][:] == wanted
