"""Long texts as windows of the length that a model reads, whose embeddings are averaged."""

import re
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..data.token_ids import locked, parse_template, special_tokens

# A full stop, question or exclamation mark with the quotes and brackets that close after it, and the end of a line.
_SENTENCE_END = re.compile(r"""[.!?…]["'”’)\]]*(?=\s)|[。！？]["”’」』）]*|\n""")
_WORD_END = re.compile(r"\S(?=\s)")


def split_sentences(text: str) -> list[str]:
    """Split a text after each full stop, question or exclamation mark before white space, and at the ends of lines."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    parts = [text[first:last].strip() for first, last in pairwise([0, *ends, len(text)])]
    return [part for part in parts if part]


def split_long(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    token_ids: Sequence[list[int]],
    full: int | None,
    templates: Sequence[str] = (),
    prompt: str = "",
) -> list[list[list[int]]]:
    """Split the token ids of long texts into windows. Threads may call this at the same time.

    Each window has the special tokens, the template and the prompt around its part of the text's own tokens.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer, a fast one.
        texts (`Sequence[str]`): The texts, each with the prompt before it.
        token_ids (`Sequence[list[int]]`): What [`tokenize_texts`] returned for them.
        full (`int`, *optional*): The length of a text that may have been cut, from [`full_length`].
        templates (`Sequence[str]`, *optional*, defaults to `()`): The model's templates.
        prompt (`str`, *optional*, defaults to `""`): The prompt.

    Returns:
        `list[list[list[int]]]`: The token ids of each window of each text. A text that was not cut is one window.
    """
    windows = [[row] for row in token_ids]
    if full is None:
        return windows
    long = {number: texts[number] for number, row in enumerate(token_ids) if len(row) >= full}
    if not long:
        return windows
    with locked(tokenizer):
        around = parse_template(templates[0], tokenizer) if templates else special_tokens(tokenizer)
        lead = " " if around.space else ""
        batch = [lead + text for text in long.values()]
        encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    room = full - around.num_tokens
    for place, number in enumerate(long):
        ids = encoded["input_ids"][place]
        if templates:
            ids = [tokenizer.unk_token_id if token == tokenizer.mask_token_id else token for token in ids]
        offsets = encoded["offset_mapping"][place]
        ends = np.maximum.accumulate([end for _, end in offsets])
        first = 0
        if prompt:  # a token of the prompt's last space and the text's first word belongs to the text
            of_prompt = np.searchsorted(ends, len(lead + prompt), side="right")
            first = min(int(of_prompt), room - 1)
        before = around.before + ids[:first]
        own = ids[first:]
        bounds = split_tokens(batch[place], ends[first:], room - first)
        bounds.append(len(own))
        windows[number] = []
        for start, end in pairwise(bounds):
            windows[number].append(before + own[start:end] + around.after)
    return windows


def split_tokens(text: str, ends: Sequence[int] | np.ndarray, room: int) -> list[int]:
    """Split the tokens of a text into windows of at most `room` tokens.

    A window ends at the last end of a sentence that it holds; without one, at the last end of a word; without one,
    anywhere. "One two. Three four five." has seven tokens and makes, with room for four, "One two." and "Three four
    five.", which start at the tokens 0 and 3.

    Args:
        text (`str`): The text.
        ends (`Sequence[int]`): Where each token ends in the text, as a number of characters, in ascending order.
        room (`int`): Tokens in a window.

    Returns:
        `list[int]`: The number of the first token of each window.
    """
    # How many tokens lie before each end of a sentence, and before each end of a word.
    breaks = []
    for kind in (_SENTENCE_END, _WORD_END):
        places = [match.end() for match in kind.finditer(text)]
        breaks.append(np.searchsorted(ends, places, side="right"))
    starts = [0]
    while len(ends) - starts[-1] > room:
        start = starts[-1]
        following = start + room
        for numbers in breaks:
            inside = numbers[(numbers > start) & (numbers <= start + room)]
            if len(inside):
                following = int(inside[-1])
                break
        starts.append(following)
    return starts


def mean_of_windows(embeddings: torch.Tensor, texts: Sequence[Sequence[list[int]]]) -> torch.Tensor:
    """Average the embeddings of each text's windows, weighted by their tokens.

    Args:
        embeddings (`torch.Tensor`): Embeddings of all windows, of shape `(windows, dim)`.
        texts (`Sequence[Sequence[list[int]]]`): The token ids of each window of each text.

    Returns:
        `torch.Tensor`: Of shape `(texts, dim)`. A text of one window keeps its embedding, bit by bit.
    """
    numbers = torch.tensor([len(windows) for windows in texts])
    tokens = torch.tensor([float(len(window)) for window in chain.from_iterable(texts)])
    totals = torch.segment_reduce(tokens, "sum", lengths=numbers)
    shares = tokens / totals.repeat_interleave(numbers)
    return torch.segment_reduce(embeddings * shares[:, None], "sum", lengths=numbers)
