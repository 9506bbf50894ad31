"""Add the words of a domain to a tokenizer and to the embeddings of an encoder."""

import re
from collections import Counter
from collections.abc import Iterable

import torch
from tokenizers import AddedToken
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.token_ids import to_token_ids
from ..runtime.errors import ModelError, SettingError

_WORD = re.compile(r"\w*[^\W\d_]\w*")  # with a letter, because the pieces of a number say more than the number itself
#: A word must occur so often to become a token: an embedding that is hardly ever seen stays the mean of its pieces.
LEAST_COUNT = 5


def extend_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], number: int
) -> int:
    """Add the most frequent words that a tokenizer splits or does not know, as whole tokens.

    The embedding of a new token, also in the output layer, is the mean of those of the pieces that it replaces. It
    matches whole words only: if `cough` is new, `coughing` keeps its pieces. Words that occur fewer than five times
    are not added.

    Args:
        model (`PreTrainedModel`): A masked-LM model, which is changed.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer, which is changed.
        texts (`Iterable[str]`): Texts of the domain.
        number (`int`): The largest number of words to add.

    Returns:
        `int`: The number of words that were added.

    Raises:
        ModelError: If the tokenizer is written in Python.
        SettingError: If no word is frequent enough and split.
    """
    if not tokenizer.is_fast:
        name = type(tokenizer).__name__
        raise ModelError(f"{name} is written in Python: words can be added to fast tokenizers only.")
    normalizer = tokenizer.backend_tokenizer.normalizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(normalizer.normalize_str(text) if normalizer else text))
    frequent = sorted(word for word, count in counts.items() if count >= LEAST_COUNT)
    frequent.sort(key=lambda word: -counts[word])
    split: dict[str, list[int]] = {}
    pieces = to_token_ids(tokenizer, [f" {word}" for word in frequent], add_special_tokens=False)
    for word, ids in zip(frequent, pieces, strict=True):
        is_split = len(ids) > 1 or tokenizer.unk_token_id in ids
        if is_split and len(split) < number:
            split[word] = ids
    if not split:
        raise SettingError(
            f"the tokenizer knows every word that occurs {LEAST_COUNT} times or more: leave --extend_tokenizer out."
        )
    # `lstrip` takes the space before the word as well, which tokenizers such as RoBERTa's count among the word.
    new = [AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in split]
    tokenizer.add_tokens(new)
    words = model.get_input_embeddings().get_parameter("weight")
    if len(tokenizer) > len(words):  # some have rows to spare
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for table in layer.parameters(recurse=False):
                for word, ids in split.items():
                    new_id = tokenizer.convert_tokens_to_ids(word)
                    table[new_id] = table[ids].mean(0)
    return len(split)
