"""Texts as token ids, in training and in inference. Nothing here imports datasets, which takes half a second."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: A fast tokenizer keeps the truncation of its last call as state, which a call from another thread would change.
_LOCK = threading.Lock()
_SAMPLE = 2_000  # texts whose tokens are counted
_TOO_FEW_TO_TELL = 20  # say nothing about the language of a text
_HARD_TO_READ = 0.05  # share of unknown tokens that is reported
_UNREADABLE = 0.5  # share of unknown tokens that is refused


def number_of(token_ids: Sequence[int]) -> int:
    """Return a hash of token ids that is the same in all processes; 0 for an absent text."""
    # Python salts the hashes of strings but not those of integers.
    return hash(tuple(token_ids)) if token_ids else 0


@contextmanager
def locked(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Keep other threads from a tokenizer, and restore what a fast one keeps of its last call and would save."""
    with _LOCK:
        if not tokenizer.is_fast:
            yield
            return
        backend = tokenizer.backend_tokenizer
        truncation = backend.truncation
        padding = backend.padding
        try:
            yield
        finally:
            backend.no_truncation()
            backend.no_padding()
            if truncation is not None:
                backend.enable_truncation(**truncation)
            if padding is not None:
                backend.enable_padding(**padding)


def to_token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], **options: Any) -> list[list[int]]:
    """Return `tokenizer(texts, **options)["input_ids"]`, without the objects around them where that is possible.

    A fast tokenizer also computes offsets, and wraps each text in Python objects under the interpreter's lock, for
    which a thread that feeds a device has to wait. The call for the first text sets up its backend, which then
    tokenizes all texts directly.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        texts (`list[str]`): The texts.
        **options (`Any`): Further arguments of the tokenizer's call, without padding.

    Returns:
        `list[list[int]]`: The token ids of each text.
    """
    if not texts:
        return []
    first = tokenizer(texts[:1], return_attention_mask=False, **options)["input_ids"]
    if getattr(type(tokenizer), "_encode_plus", None) is PreTrainedTokenizerFast._encode_plus:
        ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts)]
        if ids[:1] == first:
            return ids
    return tokenizer(texts, return_attention_mask=False, **options)["input_ids"]


def check_known(
    token_ids: Iterable[Sequence[int]], tokenizer: PreTrainedTokenizerBase, name: str, refuses: bool = True
) -> bool:
    """Measure in a sample of texts whether the tokenizer knows their words, as it does not in a foreign script.

    Args:
        token_ids (`Iterable[Sequence[int]]`): The token ids of the texts; the first 2,000 are read.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer that made them.
        name (`str`): What messages call the texts.
        refuses (`bool`, *optional*, defaults to `True`): Whether to raise if more than half of the tokens are unknown.

    Returns:
        `bool`: Whether more than 5% of the tokens are unknown, which gives a warning.

    Raises:
        ValueError: If more than half of the tokens are unknown.
    """
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    tokens: list[int] = []
    for ids in islice(token_ids, _SAMPLE):
        tokens += [token for token in ids if token not in special]
    share = tokens.count(unknown) / max(1, len(tokens))
    if share <= _HARD_TO_READ or len(tokens) < _TOO_FEW_TO_TELL or unknown == tokenizer.eos_token_id:
        return False
    message = (
        f"{name}: {share:.0%} of the tokens are unknown to the model's tokenizer, so the model cannot tell these "
        "words apart. Use an encoder that knows the language and its script, such as a multilingual one, or train one "
        "with `simcse-hf train mlm --train_tokenizer true`."
    )
    if refuses and share > _UNREADABLE:
        raise ValueError(message)
    logger.warning(message)
    return True
