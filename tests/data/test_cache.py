"""A file is read and tokenized once: a second run takes its rows from the cache."""

from unittest.mock import create_autospec

from simcse_hf import load_text_dataset
from simcse_hf.data import read
from simcse_hf.data.tokenize import tokenize_dataset

TEXTS = [f"the cat {i} sat on the mat" for i in range(40)]


def test_a_second_load_makes_nothing_again(tmp_path, tokenizer, monkeypatch):
    source = tmp_path / "texts.csv"
    source.write_text("text,other\n" + "".join(f"{text},x\n" for text in TEXTS) + ",x\n")
    cache = tmp_path / "cache"

    def load():
        texts = load_text_dataset(source, columns=["text"], cache_dir=cache)
        return list(texts["sent0"]), list(tokenize_dataset(texts, tokenizer, 16)["input_ids"])

    first = load()
    assert first[0] == TEXTS
    files = sorted(path.relative_to(cache) for path in cache.rglob("*") if path.is_file())
    assert [path.suffix for path in files] == [".arrow", ".json", ".arrow"], "token ids, what was dropped, texts"
    monkeypatch.setattr(read, "write_atomically", None)
    encode = create_autospec(type(tokenizer)._encode_plus, side_effect=type(tokenizer)._encode_plus)
    monkeypatch.setattr(type(tokenizer), "_encode_plus", encode)
    assert load() == first
    assert encode.call_count <= 1, "the call that sets the tokenizer's backend up"
