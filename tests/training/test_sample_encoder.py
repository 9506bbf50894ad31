"""The sample encoder is loaded by plain transformers, has learned from masked-LM, and is built only once."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from simcse_hf.data.sample.corpus import write_sample_corpus
from simcse_hf.training.sample_encoder import MARKER, SampleEncoderSettings, build_sample_encoder

TINY = SampleEncoderSettings(hidden_size=16, num_layers=1, num_heads=2, steps=20, batch_size=8, learning_rate=1e-2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_sample_corpus(tmp_path_factory.mktemp("corpus"), num_sentences=400, num_triplets=20, num_pairs=20)


@pytest.fixture(scope="module")
def directory(corpus, tmp_path_factory):
    return build_sample_encoder(tmp_path_factory.mktemp("encoder"), corpus, settings=TINY)


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


def test_auto_classes_load_the_encoder_and_its_vocabulary_covers_the_corpus(directory, corpus):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model, report = AutoModelForMaskedLM.from_pretrained(directory, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.config.model_type == "bert"
    lines = corpus.train_sentences.read_text(encoding="utf-8").splitlines()
    ids = tokenizer(lines)["input_ids"]
    assert tokenizer.unk_token_id not in {token for row in ids for token in row}
    assert tokenizer.tokenize("The physician") == ["the", "physician"]
    assert tokenizer.tokenize("dockdock") == ["dock", "##d", "##o", "##c", "##k"]
    assert tokenizer.convert_ids_to_tokens(0) == "[PAD]" and tokenizer.pad_token_id == model.config.pad_token_id
    assert all(row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id for row in ids)
    assert len(tokenizer) == model.config.vocab_size


def test_masked_words_are_predicted_better_than_by_chance(directory):
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModelForMaskedLM.from_pretrained(directory)
    batch = tokenizer("[MASK] doctor lost the pill.", return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch).logits[0, 1].softmax(-1)
    assert probabilities[tokenizer.convert_tokens_to_ids("the")] > 5 / len(tokenizer)


def test_the_warm_up_has_no_dropout_but_the_saved_encoder_has_berts(directory, corpus, tmp_path):
    config = AutoModelForMaskedLM.from_pretrained(directory).config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    assert TINY.dropout == 0.0
    with_dropout = build_sample_encoder(tmp_path / "encoder", corpus, settings=replace(TINY, dropout=0.1))
    assert weights(with_dropout) != weights(directory)


def test_an_encoder_is_rebuilt_only_if_the_settings_change(directory, corpus, tmp_path):
    copy = build_sample_encoder(tmp_path / "encoder", corpus, settings=TINY)
    assert weights(copy) == weights(directory)
    (copy / "proof").touch()
    build_sample_encoder(copy, corpus, settings=TINY)
    assert (copy / "proof").is_file()
    build_sample_encoder(copy, corpus, seed=1, settings=TINY)
    assert not (copy / "proof").exists()
    assert weights(copy) != weights(directory)
    assert json.loads((copy / MARKER).read_text(encoding="utf-8"))["seed"] == 1


def test_an_interrupted_build_is_repeated(directory, corpus, tmp_path):
    copy = tmp_path / "encoder"
    copy.mkdir()
    (copy / MARKER).write_text("null", encoding="utf-8")
    build_sample_encoder(copy, corpus, settings=TINY)
    assert weights(copy) == weights(directory)


def test_a_folder_with_other_files_is_refused_and_kept(corpus, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(ValueError, match="holds files but no sample encoder"):
        build_sample_encoder(tmp_path, corpus, settings=TINY)
    assert (tmp_path / "thesis.tex").is_file()


def test_the_error_names_a_missing_corpus_file(corpus, tmp_path):
    corpus = type(corpus)(tmp_path / "gone.txt", *[corpus.dev] * 3)
    with pytest.raises(FileNotFoundError, match=r"gone\.txt is not there"):
        build_sample_encoder(tmp_path / "encoder", corpus, settings=TINY)
