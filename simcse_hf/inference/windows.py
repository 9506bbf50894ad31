"""Long texts as windows of the length that a model reads, whose embeddings are averaged."""

import re
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .encoding import tokenize_texts

#: What happens to texts that are longer than the model reads.
LONG_TEXTS = ("cut", "mean")
# A full stop, question or exclamation mark with the quotes and brackets that close after it, and the end of a line.
_SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？]["”’」』）]*|\n""")
_WORD_END = re.compile(r"\S(?=\s)")


def check_long_texts(long_texts: str) -> str:
    """Return the setting if it is one of `LONG_TEXTS`; otherwise raise a ValueError."""
    if long_texts not in LONG_TEXTS:
        raise ValueError(f"long_texts must be one of {', '.join(LONG_TEXTS)}, got {long_texts!r}")
    return long_texts


def tokenize_windows(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int | None,
    templates: Sequence[str],
    prefix: str,
    full: int,
) -> list[list[list[int]]]:
    """Tokenize texts, each in windows that hold all its words.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer, a fast one.
        texts (`Sequence[str]`): The texts.
        max_length (`int`, *optional*): As in [`tokenize_texts`].
        templates (`Sequence[str]`): The model's templates.
        prefix (`str`): What is put before each window.
        full (`int`): The tokens of a full window, prompt, template and special tokens included.

    Returns:
        `list[list[list[int]]]`: The token ids of each window of each text, special tokens included.

    Raises:
        ValueError: If the tokenizer does not say where its tokens lie in a text.
    """
    if not tokenizer.is_fast:
        raise ValueError('long_texts="mean" needs a fast tokenizer, which says where each token lies in the text')
    room = full - len(tokenize_texts(tokenizer, [prefix], None, templates)[0])
    windows = [[text] for text in texts]
    # A text has at most as many tokens as bytes.
    long = [i for i, text in enumerate(texts) if len(text.encode("utf-8", "surrogatepass")) > room]
    if long:
        batch = [texts[i] for i in long]
        encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for i, offsets in zip(long, encoded["offset_mapping"], strict=True):
            windows[i] = split_text(texts[i], [end for _, end in offsets], room)
    token_ids = iter(tokenize_texts(tokenizer, [prefix + x for x in chain(*windows)], max_length, templates))
    return [[next(token_ids) for _ in parts] for parts in windows]


def split_text(text: str, ends: Sequence[int], room: int) -> list[str]:
    """Split a text into windows of at most `room` tokens.

    A window ends at the last end of a sentence that it holds; without one, at the last end of a word; without one,
    anywhere. "One two. Three four five." has seven tokens and makes, with room for four, "One two." and " Three four
    five.".

    Args:
        text (`str`): The text.
        ends (`Sequence[int]`): Where each token ends in the text, as a number of characters.
        room (`int`): Tokens in a window.

    Returns:
        `list[str]`: The windows. Joined, they are the text.
    """
    # How many tokens lie before each end of a sentence, and before each end of a word.
    breaks = [
        np.searchsorted(ends, [match.end() for match in kind.finditer(text)], side="right")
        for kind in (_SENTENCE_END, _WORD_END)
    ]
    starts = [0]
    while len(ends) - starts[-1] > room:
        first, last = starts[-1], starts[-1] + room
        inside = [x[(x > first) & (x <= last)] for x in breaks]
        starts.append(next((int(x[-1]) for x in inside if len(x)), last))
    return [text[a:b] for a, b in pairwise([0, *(ends[start - 1] for start in starts[1:]), len(text)])]


def mean_of_windows(embeddings: torch.Tensor, lengths: Sequence[Sequence[int]]) -> torch.Tensor:
    """Average the embeddings of each text's windows, weighted by their tokens.

    Args:
        embeddings (`torch.Tensor`): Embeddings of all windows, of shape `(windows, dim)`.
        lengths (`Sequence[Sequence[int]]`): The number of tokens of each window of each text.

    Returns:
        `torch.Tensor`: Of shape `(texts, dim)`. A text of one window keeps its embedding, bit by bit.
    """
    shares = torch.tensor([length / sum(row) for row in lengths for length in row])
    text = torch.arange(len(lengths)).repeat_interleave(torch.tensor([len(row) for row in lengths]))
    return embeddings.new_zeros(len(lengths), embeddings.shape[1]).index_add_(0, text, embeddings * shares[:, None])
