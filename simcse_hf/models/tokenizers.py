"""Which tokenizer fits a model."""

import os
from typing import Any

from transformers import PreTrainedTokenizerBase

_SAVE_TOKENIZER = "Save the model's own tokenizer into the model's folder (tokenizer.save_pretrained)"


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: Any, source: str | os.PathLike) -> None:
    """Refuse a tokenizer that has no words, no number as its longest text, or ids that the encoder does not know.

    From a model folder that lacks files of its tokenizer, transformers loads another tokenizer, or an empty one.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        model (`PreTrainedModel`): The model.
        source (`str` or `os.PathLike`): Where the model comes from, for the message.

    Raises:
        ValueError: If the tokenizer has special tokens only, no padding token, or an id that is not below the number
            of embeddings, or if its `model_max_length` is not a number.
    """
    if not isinstance(longest := tokenizer.model_max_length, (int, float)):
        raise ValueError(
            f"{source}: model_max_length in tokenizer_config.json must be a number of tokens, got {longest!r:.80}"
        )
    if tokenizer.pad_token is None:
        raise ValueError(
            f"{source}: the tokenizer has no padding token. Set one, for example tokenizer.pad_token = "
            "tokenizer.eos_token."
        )
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # an encoder that reads characters has no table of tokens
        return
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{source}: the tokenizer ({type(tokenizer).__name__}) knows {len(tokenizer)} special tokens and no "
            f"words, because its files are missing. {_SAVE_TOKENIZER}."
        )
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if rows is not None and largest >= rows:
        raise ValueError(
            f"{source}: the tokenizer ({type(tokenizer).__name__}) has ids up to {largest}, but the encoder has "
            f"{rows} embeddings, for the ids below {rows}. The tokenizer belongs to another model, or its files are "
            f"incomplete. {_SAVE_TOKENIZER}; or, if you added tokens, call "
            "model.resize_token_embeddings(len(tokenizer)) before training."
        )
