"""Which tokenizer fits a model, and how it is saved."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..ops.files import StrPath, read_json_object, write_json
from .settings import PoolingSettings, length_limit

_SAVE_TOKENIZER = "Save the model's own tokenizer into the model's folder (tokenizer.save_pretrained)"


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: Any, source: StrPath) -> None:
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


def save_tokenizer(tokenizer: Any, folder: StrPath, model: Any) -> None:
    """Save the tokenizer of a model so that it is read alike by every program.

    A tokenizer of the library `tokenizers` keeps the truncation and the padding of its last call, and programs that
    read `tokenizer.json` alone would cut texts there. It gets the length of inference. The class of a tokenizer
    without one of its own has a name that transformers 4 does not know; it gets the one that both know.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        folder (`str` or `os.PathLike`): An existing folder.
        model (`PreTrainedModel`): The model.
    """
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        limit = length_limit(model.config, getattr(model, "settings", PoolingSettings()), tokenizer)
        if limit is not None:
            backend.enable_truncation(limit)
    tokenizer.save_pretrained(folder)
    path = Path(folder, "tokenizer_config.json")
    config = read_json_object(path)
    for name in ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of"):
        config.pop(name, None)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(path, config)
