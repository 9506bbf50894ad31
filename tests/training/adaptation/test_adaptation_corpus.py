"""The corpus of an adaptation: a bounded sample of distinct texts that the evaluation does not use."""

import logging

import pytest
from evaluation_helpers import write

from simcse_hf.training.adaptation import corpus as corpus_module
from simcse_hf.training.adaptation.corpus import MIN_TEXTS, fit_to_tokenizer, read_corpus, without_texts


@pytest.fixture
def texts():
    return [f"the {size} cat {number}" for size in ("big", "small") for number in range(50)]


@pytest.fixture
def logged(caplog, monkeypatch):
    """Records of this package's logger, which other tests may have cut off from the root logger."""
    monkeypatch.setattr(logging.getLogger("simcse_hf"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def test_texts_are_distinct_up_to_case_and_white_space(tmp_path, texts, logged):
    path = write(
        tmp_path / "texts.txt", [*texts, *(text.upper() for text in texts), *texts, *(f"  {t}" for t in texts)]
    )
    corpus = read_corpus(path)
    assert sorted(corpus.texts) == sorted(texts)
    assert (corpus.rows, corpus.duplicates, corpus.complete) == (400, 300, True)
    assert "300 of 400 rows repeat an earlier text" in logged.text


def test_a_large_corpus_is_sampled_evenly_and_the_same_way_each_time(tmp_path):
    path = write(tmp_path / "texts.txt", [f"text {number}" for number in range(4000)])
    corpus = read_corpus(path, max_texts=1000)
    assert corpus == read_corpus(path, max_texts=1000)
    assert len(corpus.texts) == 1000 and corpus.not_drawn == 3000
    early = sum(int(text.split()[1]) < 2000 for text in corpus.texts)
    assert 430 < early < 570


def test_rows_after_the_limit_are_not_read_and_that_is_said(tmp_path, texts, monkeypatch, logged):
    monkeypatch.setattr(corpus_module, "MAX_ROWS", 80)
    path = tmp_path / "texts.csv"
    # The second half is not even valid csv, which reading it would show.
    path.write_text("text\n" + "".join(f"{text}\n" for text in texts) + '"broken')
    corpus = read_corpus(path)
    assert corpus.rows == 80 and not corpus.complete
    assert "only the first 80 rows were read" in logged.text


@pytest.mark.parametrize("lines", [["one line"], ["the same line"] * 1000])
def test_a_corpus_of_too_few_distinct_texts_is_refused(tmp_path, lines):
    path = write(tmp_path / "texts.txt", lines)
    with pytest.raises(ValueError, match=rf"texts.txt: 1 distinct text.*at least {MIN_TEXTS}"):
        read_corpus(path)


def test_a_json_array_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "MAX_ARRAY_BYTES", 10)
    path = tmp_path / "texts.json"
    path.write_text('[{"text": "a cat"}, {"text": "a dog"}]')
    with pytest.raises(ValueError, match=r"texts.json: this .json file .* \.jsonl"):
        read_corpus(path)


def test_texts_of_the_tasks_are_counted_and_removed(tmp_path, texts, logged):
    corpus = read_corpus(write(tmp_path / "texts.txt", texts))
    rest = without_texts(corpus, ["THE  big cat 0", "the small cat 7", "unknown"], keep=False)
    assert rest.overlap == 2 and set(corpus.texts) - set(rest.texts) == {"the big cat 0", "the small cat 7"}
    assert "2 of 100 texts also occur in the tasks. They are removed" in logged.text


def test_a_corpus_that_consists_of_the_tasks_is_refused(tmp_path, texts):
    corpus = read_corpus(write(tmp_path / "texts.txt", texts))
    with pytest.raises(ValueError, match=r"only 10 of 100 texts remain.*--keep_overlap"):
        without_texts(corpus, texts[:90], keep=False)


def test_a_script_that_the_tokenizer_does_not_know_is_refused(tmp_path, tokenizer):
    corpus = read_corpus(write(tmp_path / "texts.txt", [f"это кошка номер {number}" for number in range(80)]))
    with pytest.raises(ValueError, match=r"100% of the tokens are unknown.*multilingual"):
        fit_to_tokenizer(corpus, tokenizer, 32)


def test_some_unknown_tokens_are_reported(tmp_path, tokenizer, logged):
    words = ["cat", "dog", "bird", "man", "woman", "mat", "house", "tree", "red", "big"]
    lines = [f"the {a} sat on the {b} кот" for a in words for b in words]
    corpus = fit_to_tokenizer(read_corpus(write(tmp_path / "texts.txt", lines)), tokenizer, 32)
    assert corpus.unknown_tokens == pytest.approx(1 / 7, abs=1e-3)
    assert "14% of the tokens are unknown" in logged.text


def test_training_length_covers_most_texts_within_the_limit(tmp_path, tokenizer):
    lines = [" ".join(["cat"] * number) for number in range(1, 101)]
    corpus = read_corpus(write(tmp_path / "texts.txt", lines))
    assert fit_to_tokenizer(corpus, tokenizer, 32).max_length == 32
    assert fit_to_tokenizer(corpus, tokenizer, 200).max_length == 97  # 95 words, [CLS] and [SEP]
