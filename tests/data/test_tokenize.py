"""Every text is tokenized once and truncated where requested, with a count, and the cache is never stale."""

import pytest
from conftest import CLS, SEP, VOCABULARY
from datasets import Dataset
from transformers import ByT5Tokenizer

from simcse_hf import ContrastiveCollator
from simcse_hf.data.token_ids import check_known
from simcse_hf.data.tokenize import tokenize_dataset

TRIPLETS = {
    "sent0": ["a cat sat", "dog", "a cat sat on the mat ."],
    "sent1": ["cat", "a dog", "mat"],
    "sent2": ["a house", "a big tree", "old man"],
}


def ids_of(text):
    return [CLS, *(VOCABULARY.index(word) for word in text.split()), SEP]


@pytest.mark.parametrize("columns", [1, 3])
def test_rows_of_texts_become_rows_of_ids(columns, tokenizer):
    texts = dict(list(TRIPLETS.items())[:columns])
    tokenized = tokenize_dataset(Dataset.from_dict(texts), tokenizer, 32)
    assert tokenized.column_names == ["input_ids", "length"]
    assert tokenized["length"][:] == [max(len(ids) for ids in row) for row in tokenized["input_ids"]]
    assert tokenized["input_ids"][:] == [[ids_of(text) for text in row] for row in zip(*texts.values(), strict=True)]


def test_rows_with_truncated_texts_are_counted(tokenizer, caplog):
    tokenize_dataset(Dataset.from_dict(TRIPLETS), tokenizer, 32)
    assert not caplog.messages
    tokenized = tokenize_dataset(Dataset.from_dict(TRIPLETS), tokenizer, 6)
    assert tokenized["input_ids"][2][0] == [*ids_of("a cat sat on")[:-1], SEP]
    texts = Dataset.from_dict({"sent0": ["a cat sat on the mat", "dog", "a cat sat", "a dog"]})
    tokenize_dataset(texts, tokenizer, 3, templates=['the "{text}" sat on [MASK] .'] * 2)
    for message, expected in zip(caplog.messages, ("1 of 3", "2 of 4"), strict=True):
        assert message.startswith(f"{expected} rows hold a text that fills max_seq_length")
    assert "(rows 1, 3)" in message


class SlowTokenizer(ByT5Tokenizer):
    """A Python tokenizer, whose rules are not part of its vocabulary."""

    def __init__(self, lower=False, **options):
        self.lower = lower
        super().__init__(**options)

    def _tokenize(self, text):
        return list(text.lower() if self.lower else text)


@pytest.mark.parametrize("options", [{"lower": True}, {"truncation_side": "left"}])
def test_a_slow_tokenizer_with_other_rules_gets_no_stale_rows(options, tmp_path):
    texts = ["a cat"] * 200 + ["The Dog sat on a mat in the house"]
    Dataset.from_dict({"sent0": texts}).save_to_disk(tmp_path / "data")  # only a dataset on the disk has a cache

    def last_row(tokenizer):
        dataset = Dataset.load_from_disk(str(tmp_path / "data"))
        return tokenize_dataset(dataset, tokenizer, 4)[200]["input_ids"][0]

    before, after = SlowTokenizer(), SlowTokenizer(**options)
    assert last_row(before) == before(texts[-1], truncation=True, max_length=4)["input_ids"]
    assert last_row(after) == after(texts[-1], truncation=True, max_length=4)["input_ids"] != last_row(before)


@pytest.mark.parametrize("options", [{"prompts": ("query: ", "passage: ")}, {"max_seq_length": (4, 12)}, {}], ids=str)
def test_equal_texts_are_known_whatever_prompt_or_length_their_columns_have(options, tokenizer):
    texts = {"sent0": ["the big cat sat", "dog"], "sent1": ["a dog", "the big cat sat"], "sent2": ["", "dog"]}
    options = {"max_seq_length": 12} | options
    rows = tokenize_dataset(Dataset.from_dict(texts), tokenizer, **options)
    ids = ContrastiveCollator(tokenizer, add_text_ids=True)(list(rows))["text_ids"]
    assert ids[0, 0] == ids[1, 1] and ids[1, 0] == ids[1, 2] and ids[0, 2] == 0
    assert len(ids.unique()) == 4
    assert list(rows)[0]["input_ids"][2] == [], "an empty text is absent"


FOREIGN = "猫 坐 在 上 狗 跑 了 他".split()


def test_the_share_of_unknown_tokens_is_said_above_5_percent_and_refused_above_half(tokenizer, caplog):
    for known, expected in ((200, None), (20, "29%"), (6, "57%")):
        ids = tokenizer([" ".join(["cat"] * known + FOREIGN)] * 3)["input_ids"]
        caplog.clear()
        assert check_known(ids, tokenizer, "x.txt", refuses=False) == (expected is not None)
        assert expected is None or f"x.txt: {expected} of the tokens are unknown" in caplog.text
    with pytest.raises(ValueError, match=r"x\.txt: 57% of the tokens are unknown.*multilingual"):
        check_known(ids, tokenizer, "x.txt")
    assert not check_known(ids[:1], tokenizer, "x.txt"), "a single text says nothing about the language"
