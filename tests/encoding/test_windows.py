"""A text that is longer than the model reads is encoded with all its words, as the mean of its windows."""

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from conftest import tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from simcse_hf import BertForCL, SimCSE
from simcse_hf.data.token_ids import parse_template
from simcse_hf.encoding.batching import tokenize_texts
from simcse_hf.encoding.windows import split_long, split_tokens

LONG = "a cat sat on the mat . the dog ran in the big house . a bird sang . the old man slept in a small red house"


@pytest.fixture
def make(save_checkpoint):
    """`make(long_texts, **settings)` saves a checkpoint that reads 12 tokens and loads it as `SimCSE`."""

    def make(long_texts="mean", max_length=12, **settings):
        directory = save_checkpoint(BertForCL(tiny_config(), **settings))
        return SimCSE(directory, device="cpu", max_length=max_length, long_texts=long_texts)

    return make


@pytest.mark.parametrize(
    "text, room, windows",
    [
        ("One two. Three four five.", 4, ["One two.", " Three four five."]),
        ("one two three four five", 2, ["one two", " three four", " five"]),
        ("One! Two? Three.\nFour", 4, ["One! Two?", " Three.\nFour"]),
        ('He said "no." Then he left.', 6, ['He said "no."', " Then he left."]),
        ("你好吗。我很好。谢谢", 6, ["你好吗。", "我很好。谢谢"]),
        ("谢谢你好吗", 2, ["谢谢", "你好", "吗"]),
    ],
)
def test_windows_end_with_a_sentence_or_else_with_a_word_or_anywhere(text, room, windows):
    ends = [match.end() for match in re.finditer(r"[a-zA-Z]+|[^\w\s]|\w", text)]
    starts = split_tokens(text, ends, room)
    bounds = [0, *(ends[start - 1] for start in starts[1:]), len(text)]
    assert [text[a:b] for a, b in pairwise(bounds)] == windows


@pytest.fixture(scope="module")
def metaspace():
    """A Unigram tokenizer that puts a token of its own before each text, as those of SentencePiece do."""
    words = [
        (piece, -float(i)) for i, piece in enumerate(["<unk>", "<s>", "</s>", "<pad>", *"▁ab.!?。的", "▁ab", "ab"])
    ]
    backend = Tokenizer(models.Unigram(words, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>")


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="ab .!?\n。的é", max_size=60),
    st.integers(1, 9),
    st.sampled_from(["", "a: ", "b"]),
)
def test_windows_hold_every_token_in_order_and_none_is_longer_than_a_cut_text(metaspace, text, room, prompt):
    (prompted,) = tokenize_texts(metaspace, [prompt])
    full = len(prompted) + room
    cut = tokenize_texts(metaspace, [prompt + text], full)
    (windows,) = split_long(metaspace, [prompt + text], cut, full, prompt=prompt)
    (whole,) = tokenize_texts(metaspace, [prompt + text])
    assert max(map(len, windows)) <= full and windows[0][: len(windows[0]) - 1] == whole[: len(windows[0]) - 1]
    if len(windows) == 1:
        assert windows == cut == [whole]
    repeated = [  # how many leading tokens each window may share with the first one
        n
        for n in range(1, len(prompted))
        if sum((window[n:-1] for window in windows), whole[:n]) == whole[:-1]
        and all(window[:n] == whole[:n] for window in windows)
    ]
    assert repeated
    assert all(window[-1] == 2 for window in windows)


def test_threads_with_long_texts_get_the_windows_of_one_thread_and_leave_the_tokenizer_as_it_was(make):
    simcse = make()
    backend = simcse.tokenizer.backend_tokenizer
    backend.enable_truncation(7, stride=2)
    backend.enable_padding(length=11)
    before = backend.truncation, backend.padding
    texts = [LONG * 20] * 4
    expected = [simcse.tokenize(texts, long_texts=kind) for kind in ("cut", "mean")]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda kind: simcse.tokenize(texts, long_texts=kind), ["cut", "mean"] * 40))
    assert found == expected * 40
    assert (backend.truncation, backend.padding) == before


def test_a_long_text_is_the_mean_of_its_windows_by_tokens(make):
    simcse = make(pooler_type="avg")
    parts = [x.strip() for x in (LONG[:22], LONG[22:53], LONG[53:67], LONG[67:])]
    raw = simcse.encode(parts, normalize_embeddings=False)
    tokens = torch.tensor([len(x) for x in simcse.tokenize(parts, long_texts="cut")], dtype=torch.float)
    whole = simcse.encode(LONG, normalize_embeddings=False)
    torch.testing.assert_close(whole, (raw * tokens[:, None]).sum(0) / tokens.sum(), rtol=0, atol=1e-6)


def test_short_texts_keep_their_embeddings_bit_by_bit(make, tmp_path, caplog):
    texts = ["a cat sat", "", "the dog ran in the big house ."]
    simcse = make()
    assert torch.equal(simcse.encode(texts), simcse.encode(texts, long_texts="cut"))
    simcse.save_pretrained(tmp_path / "saved")
    assert "long_texts='mean' is not saved" in caplog.text


def test_a_text_of_2000_words_is_encoded_with_its_last_word_too(make, caplog):
    simcse = make()
    text = "a cat sat on the mat . " * 285
    one, other = simcse.encode([text + "dog", text + "bird"])
    assert not torch.equal(one, other)
    assert "may be cut" not in caplog.text
    cut = simcse.encode([text + "dog", text + "bird"], long_texts="cut")
    assert torch.equal(cut[0], cut[1]) and "may be cut" in caplog.text


def test_each_window_has_the_prompt_and_the_template(make):
    simcse = make(max_length=None, templates=["the {text} is [MASK] ."], pooler_type="mask")
    simcse.max_length = 8
    windows = simcse.tokenize([LONG])[0]
    template = parse_template("the {text} is [MASK] .", simcse.tokenizer)
    before, after = len(template.before), len(template.after)
    assert len(windows) > 2
    assert len({(*x[:before], *x[-after:]) for x in windows}) == 1
    prompted = make().tokenize([LONG], "the man : ")[0]
    assert len({tuple(x[:4]) for x in prompted}) == 1 and max(map(len, prompted)) <= 12
