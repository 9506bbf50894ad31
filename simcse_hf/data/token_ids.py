"""Texts as token ids, in training and in inference, also between the tokens of a template.

Nothing here imports datasets, which takes half a second.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from ..runtime.errors import DataError, SettingError

logger = logging.get_logger(__name__)

#: A fast tokenizer keeps the truncation of its last call as state, which a call from another thread would change.
_LOCK = threading.Lock()
_SAMPLE = 2_000  # texts whose tokens are counted
_TOO_FEW_TO_TELL = 20  # say nothing about the language of a text
_HARD_TO_READ = 0.05  # share of unknown tokens that is reported
_UNREADABLE = 0.5  # share of unknown tokens that is refused

TEXT = "{text}"
MASK = "[MASK]"


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
        DataError: If more than half of the tokens are unknown.
    """
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    tokens = []
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
        raise DataError(message)
    logger.warning(message)
    return True


@dataclass(frozen=True)
class Template:
    """A tokenized template.

    Args:
        before (`list[int]`): Token ids before the text, including the tokenizer's leading special tokens.
        after (`list[int]`): Token ids after the text, including the trailing special tokens.
        space (`bool`, *optional*, defaults to `False`): Whether white space precedes the text. Some tokenizers make it
            part of the text's first token.
    """

    before: list[int]
    after: list[int]
    space: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the template, without the text."""
        return len(self.before) + len(self.after)

    def tokenize(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int | None = None
    ) -> list[list[int]]:
        """Put each text into the template and return its token ids.

        Like the authors of PromptBERT, we cut the text to `max_length` tokens and then add the template, which is not
        counted. A template is never cut: where the whole would be longer than the tokenizer's `model_max_length`, the
        text is cut further. A mask token that a text itself contains becomes the unknown token, because the pooler
        reads the one of the template.

        Args:
            tokenizer (`PreTrainedTokenizerBase`): The tokenizer that the template was read with.
            texts (`Sequence[str]`): Texts to put into the template.
            max_length (`int`, *optional*): Maximum number of tokens of a text, without the template.

        Returns:
            `list[list[int]]`: Token ids of each text in the template.

        Raises:
            ValueError: If the template leaves no room for a text.
        """
        room = self.full_length(tokenizer, max_length) - self.num_tokens
        if not texts:
            return []
        spaced = [" " + text for text in texts] if self.space else list(texts)
        encoded = tokenizer(spaced, add_special_tokens=False, return_attention_mask=False, verbose=False)
        replaced = {tokenizer.mask_token_id: tokenizer.unk_token_id}
        tokenized = []
        for ids in encoded["input_ids"]:
            text = [replaced.get(token, token) for token in ids[:room]]
            tokenized.append(self.put_around(text))
        return tokenized

    def put_around(self, ids: Sequence[int]) -> list[int]:
        """Return the token ids of a text with those of the template."""
        return [*self.before, *ids, *self.after]

    def full_length(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> int:
        """Return how many tokens a text and its template have together when the text is too long and is cut.

        Args:
            tokenizer (`PreTrainedTokenizerBase`): The tokenizer that the template was read with.
            max_length (`int`, *optional*): Maximum number of tokens of a text, without the template.

        Returns:
            `int`: The number, template included.

        Raises:
            SettingError: If the template leaves no room for a text.
        """
        longest = int(tokenizer.model_max_length)
        if longest <= self.num_tokens:
            raise SettingError(
                f"the template has {self.num_tokens} tokens, and the tokenizer allows {longest} (model_max_length), "
                "so there is no room for a text: shorten the template"
            )
        return longest if max_length is None else min(max_length + self.num_tokens, longest)


def parse_template(template: str, tokenizer: PreTrainedTokenizerBase) -> Template:
    """Tokenize a template.

    Args:
        template (`str`): A text that contains `{text}` once and `[MASK]` once, whatever the tokenizer's own mask token
            looks like.
        tokenizer (`PreTrainedTokenizerBase`): Adds its special tokens around the template.

    Returns:
        `Template`: The token ids before and after the text.

    Raises:
        SettingError: If the template does not contain both once, or the tokenizer has no mask token.
    """
    if tokenizer.mask_token is None:
        raise SettingError(f"the template {template!r} needs a mask token, but this tokenizer has none")
    if template.count(TEXT) != 1 or template.count(MASK) != 1:
        raise SettingError(f"a template must contain {TEXT} once and {MASK} once, got {template!r}")
    before, after = template.replace(MASK, tokenizer.mask_token).split(TEXT)
    around = special_tokens(tokenizer)
    # White space before the text belongs to the text: the first token of a byte-level tokenizer depends on it.
    stripped = before.rstrip()
    ids_before, ids_after = tokenizer([stripped, after], add_special_tokens=False)["input_ids"]
    if [*ids_before, *ids_after].count(tokenizer.mask_token_id) != 1:
        raise SettingError(f"the tokenizer does not recognise the mask token in the template {template!r}")
    return Template(around.before + ids_before, ids_after + around.after, space=before != stripped)


def template_settings(templates: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict:
    """Return the model settings that follow from its templates and tokenizer.

    Args:
        templates (`Sequence[str]`): Templates of a model.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.

    Returns:
        `dict[str, Any]`: The settings `mask_token_id` and `template_edges`.

    Raises:
        ValueError: If a template is not valid (see [`parse_template`]).
    """
    tokenized = [parse_template(template, tokenizer) for template in templates]
    edges = [[len(template.before), len(template.after)] for template in tokenized]
    return {"mask_token_id": tokenizer.mask_token_id, "template_edges": edges}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> Template:
    """Return the token ids that the tokenizer puts before and after a text, as a template."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    start = 0
    while full[start : start + len(bare)] != bare:
        start += 1
    return Template(full[:start], full[start + len(bare) :])
