"""A model with its tokenizer: texts, each with a prompt before it, become token ids and then embeddings."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Unpack

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..models.settings import ContrastiveSettings, check_max_length, length_limit
from ..names import LONG_TEXTS
from ..retrieval.indexes.description import Role
from ..runtime.errors import check_values
from .encoding import Batching, encode_token_ids, full_length, tokenize_texts
from .windows import mean_of_windows, split_long

logger = logging.get_logger(__name__)


class Encoder:
    """How a contrastive model reads texts, in inference and on the dev sets of training.

    Args:
        model (`nn.Module`): A contrastive model, as wrapped for training or not, or an exported graph.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        max_length (`int`, *optional*): Truncate each text to this many tokens. The default is the limit that the model
            names, at most the number of the encoder's positions.
        long_texts (`str`, *optional*, defaults to `"cut"`): `"cut"` or `"mean"`, as in [`SimCSE`].

    Attributes:
        settings (`ContrastiveSettings`): The settings of the model.
        prompts (`dict[str, str]`): Its prompts by name; `query` and `document` are always there.
        default_prompt_name (`str`, *optional*): The prompt that is used if none is named.
    """

    model: Any
    name_or_path = "the model"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int | None = None,
        long_texts: str = "cut",
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        check_values(LONG_TEXTS, long_texts=long_texts)
        self.long_texts = long_texts
        self.max_length = max_length
        self.prompts: dict[str, str] = {"query": "", "document": ""} | self.settings.prompts
        self.default_prompt_name = self.settings.default_prompt_name

    @property
    def bare(self) -> Any:
        """Return the model without what it is wrapped in for training."""
        return getattr(self.model, "module", self.model)

    @property
    def max_length(self) -> int | None:
        """Return the number of tokens to which a text is cut, or `None` for no limit. `None` sets the model's own."""
        return self._max_length

    @max_length.setter
    def max_length(self, length: int | None) -> None:
        if length is None:
            length = length_limit(self.bare.config, self.settings, self.tokenizer)
        else:
            check_max_length(length, self.bare.config)
            length = int(length)  # also one of numpy, which no config takes
        self._max_length = length

    @property
    def settings(self) -> ContrastiveSettings:
        """Return the settings of the model."""
        return self.bare.settings

    def resolve_prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """Return the text that stands before each text to encode, `""` for none.

        Args:
            prompt (`str`, *optional*): The text itself.
            prompt_name (`str`, *optional*): Its name. The default is the model's default prompt, if it has one.

        Returns:
            `str`: The text.

        Raises:
            ValueError: If the model has no prompt of that name.
        """
        if prompt is not None:
            if prompt_name is not None:
                logger.warning(f"prompt_name {prompt_name!r} is ignored, because prompt is given too: give only one.")
            return prompt
        if prompt_name is None:
            prompt_name = self.default_prompt_name
        if prompt_name is None:
            return ""
        if prompt_name not in self.prompts:
            raise ValueError(
                f"{self.name_or_path} has no prompt named {prompt_name!r}; its prompts are {', '.join(self.prompts)}. "
                "Add it to model.prompts, or give the text itself as prompt."
            )
        return self.prompts[prompt_name]

    def role_prompt(self, role: Role) -> str:
        """Return the text that stands before each query, document or other text, as in sentence-transformers.

        Args:
            role (`str`, *optional*): `"query"`, `"document"`, or `None` for texts that are neither, which get the
                default prompt. Queries and documents never get it.

        Returns:
            `str`: The text, `""` for none.
        """
        prompt = self.resolve_prompt(prompt_name=role)
        near = ["passage", "corpus"] if role == "document" else []
        for name in (*near, self.default_prompt_name):
            if role is not None and not prompt and self.prompts.get(name or ""):
                logger.warning_once(
                    f"{self.name_or_path} has no prompt {role!r}, so a {role} is encoded without a prompt, as in "
                    f"sentence-transformers. To use its prompt {name!r}, set model.prompts[{role!r}] = "
                    f"model.prompts[{name!r}]."
                )
        return prompt

    def column_prompts(self, number: int) -> list[str]:
        """Return what stands before the texts of each column of training rows.

        Args:
            number (`int`): How many columns there are.

        Returns:
            `list[str]`: The prompt of queries for anchors, and that of documents for all others. A model that has
            neither reads them with its default prompt.
        """
        if not (self.prompts.get("query") or self.prompts.get("document")):
            return [self.role_prompt(None)] * number
        return [self.role_prompt("query")] + [self.role_prompt("document")] * (number - 1)

    def reading(self, *prefixes: str) -> tuple[object, ...]:
        """Return what decides the token ids of texts with these prompts: the same ones, if it is the same."""
        return self.tokenizer, self.max_length, self.long_texts, self.settings.templates, prefixes

    def tokenize(
        self,
        texts: Sequence[str],
        prefix: str = "",
        max_length: int | None = None,
        long_texts: str | None = None,
    ) -> list[Any]:
        """Tokenize texts with a prompt before each.

        Args:
            texts (`Sequence[str]`): The texts.
            prefix (`str`, *optional*, defaults to `""`): The prompt.
            max_length (`int`, *optional*): Truncate each text to this many tokens. The default is the model's limit.
            long_texts (`str`, *optional*): `"cut"` or `"mean"`. The default is the model's.

        Returns:
            `list[list[int]]` or `list[list[list[int]]]`: The token ids of each text or, with `long_texts="mean"`, of
            each window of each text.

        Raises:
            ValueError: If the prompt leaves no room for a text, or an argument is invalid.
        """
        long_texts = long_texts or self.long_texts
        check_values(LONG_TEXTS, long_texts=long_texts)
        if max_length is None:
            max_length = self.max_length
        else:
            check_max_length(max_length, self.bare.config)
        templates = self.settings.templates
        full = full_length(self.tokenizer, max_length, templates, prefix)
        prompted = [prefix + text for text in texts]
        rows = tokenize_texts(self.tokenizer, prompted, max_length, templates)
        if long_texts == "mean":
            windows = split_long(self.tokenizer, prompted, rows, full, templates, prefix)
            self._inspect(texts, chain.from_iterable(windows))
            return windows
        self._inspect(texts, rows, full)
        return rows

    def _inspect(self, texts: Sequence[str], rows: Iterable[list[int]], full: int | None = None) -> None:
        """Look at the token ids of texts, which may fill the length of a text that is cut."""

    def embed(
        self, token_ids: Sequence[Any], long_texts: str | None = None, **batching: Unpack[Batching]
    ) -> torch.Tensor:
        """Compute the embeddings of tokenized texts.

        Args:
            token_ids (`Sequence`): What [`tokenize`] returned.
            long_texts (`str`, *optional*): `"cut"` or `"mean"`, as the texts were tokenized.
            **batching (`Batching`): See [`encode_token_ids`].

        Returns:
            `torch.Tensor`: Float32 embeddings of shape `(texts, dim)` as the pooler gives them, on the model's device,
            or on the CPU with `long_texts="mean"`. They may hold NaN or infinity.
        """
        pad = self.tokenizer.pad_token_id
        if (long_texts or self.long_texts) == "cut":
            return encode_token_ids(self.model, token_ids, pad, **batching)
        windows = list(chain.from_iterable(token_ids))
        return mean_of_windows(encode_token_ids(self.model, windows, pad, **batching).cpu(), token_ids)
