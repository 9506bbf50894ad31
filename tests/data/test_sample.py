"""The sample that the package ships is what `tools/make_sample.py` writes, and its scores follow from its words."""

import csv
import gzip
import re
import sys
from pathlib import Path

import torch
from scipy.stats import spearmanr
from transformers import AutoModelForMaskedLM, AutoTokenizer

from simcse_hf.data.sample import sample_files

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import make_sample  # noqa: E402
from make_sample import FORMS, PARENT  # noqa: E402

CORPUS, ENCODER = sample_files()


def read(path):
    return gzip.decompress(path.read_bytes()).decode()


def rows(path, delimiter):
    return list(csv.reader(read(path).splitlines(), delimiter=delimiter))


def test_the_tool_writes_what_is_shipped(tmp_path):
    """The first rows do not depend on how many are asked for."""
    make_sample.write_corpus(tmp_path, num_sentences=300, num_triplets=100, num_pairs=100)
    assert all(read(path).startswith(read(tmp_path / path.name)) for path in CORPUS)


def test_files_have_their_headers_rows_and_scores_that_word_overlap_does_not_give():
    assert len(set(read(CORPUS.train_sentences).splitlines())) == 20_000
    header, *triplets = rows(CORPUS.train_triplets, ",")
    assert header == ["sent0", "sent1", "hard_neg"] and len(triplets) == 10_000
    for path in (CORPUS.dev, CORPUS.test):
        header, *pairs = rows(path, "\t")
        assert header == ["sentence1", "sentence2", "score"] and len(pairs) == 1_000
        scores = [float(score) for *_, score in pairs]
        assert all(sum(low <= score <= low + 1 for score in scores) >= 50 for low in range(5))
        words = [[set(re.findall(r"\w+", text.lower())) for text in pair[:2]] for pair in pairs]
        assert 0.55 < spearmanr([len(a & b) / len(a | b) for a, b in words], scores).statistic < 0.75


def test_plain_transformers_loads_the_encoder_which_knows_the_words_of_the_corpus():
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model, report = AutoModelForMaskedLM.from_pretrained(ENCODER, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.1
    ids = tokenizer(read(CORPUS.train_sentences).splitlines()[:4000])["input_ids"]
    assert tokenizer.unk_token_id not in {token for row in ids for token in row}
    assert len(tokenizer) == model.config.vocab_size and tokenizer.pad_token_id == model.config.pad_token_id == 0
    batch = tokenizer("The doctor lost the [MASK].", return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch).logits[0, 5].softmax(-1)
    medicaments = [word for name, parent in PARENT.items() if parent == "medicament" for word in FORMS[name]]
    share = probabilities[tokenizer.convert_tokens_to_ids(medicaments)].sum()
    assert share > 3 * len(medicaments) / len(tokenizer)
