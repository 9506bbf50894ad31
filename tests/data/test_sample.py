"""The sample that the package ships is what `tools/make_sample.py` writes, and its scores follow from its words."""

import gzip
import sys
from pathlib import Path

from transformers import AutoModelForMaskedLM, AutoTokenizer

from simcse_hf import sample_files

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import make_sample  # noqa: E402

CORPUS, ENCODER = sample_files()


def read(path):
    return gzip.decompress(path.read_bytes()).decode()


def test_the_tool_writes_what_is_shipped(tmp_path):
    """The first rows do not depend on how many are asked for."""
    make_sample.write_corpus(tmp_path, num_sentences=300, num_triplets=100, num_pairs=100)
    assert all(read(path).startswith(read(tmp_path / path.name)) for path in CORPUS)


def test_plain_transformers_loads_the_encoder_which_knows_the_words_of_the_corpus():
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    _, report = AutoModelForMaskedLM.from_pretrained(ENCODER, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids = tokenizer(read(CORPUS.train_sentences).splitlines()[:4000])["input_ids"]
    assert tokenizer.unk_token_id not in {token for row in ids for token in row}
