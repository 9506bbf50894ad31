"""Texts, each with a prompt before it, become token ids and then embeddings, in batches of similar length."""

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.collator import length_sorted_batches, pad
from ..data.columns import check_text
from ..data.token_ids import locked, parse_template, to_token_ids
from ..kernels.cpu import MKL_IS_SLOW, FastLinear, keep_freed_memory
from ..kernels.memory import explain_full_memory
from ..kernels.packing import Packing, send
from ..models.settings import ContrastiveSettings, check_max_length, length_limit
from ..names import LONG_TEXTS
from ..runtime.distributed import world
from ..runtime.encoders import Role
from ..runtime.errors import SettingError, check_values
from .windows import mean_of_windows, split_long

T = TypeVar("T")
#: During training, the bar vanishes with the evaluation, and a short one shows none.
_BAR: Any = {"leave": None, "delay": 1}
_FEW_TOKENS = 64  # a batch for which a context takes longer than it saves


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int | None = None,
    templates: Sequence[str] = (),
) -> list[list[int]]:
    """Tokenize texts for inference. Threads may call this at the same time, and the tokenizer is left as it was.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        texts (`Sequence[str]`): The texts.
        max_length (`int`, *optional*): Truncate each text to this many tokens, special tokens included. By default
            nothing is truncated.
        templates (`Sequence[str]`, *optional*, defaults to `()`): The model's templates. The first one is put around
            each text and is never truncated.

    Returns:
        `list[list[int]]`: The token ids of each text, special tokens included.
    """
    with locked(tokenizer):
        if templates:
            return parse_template(templates[0], tokenizer).tokenize(tokenizer, texts, max_length)
        return to_token_ids(tokenizer, list(texts), truncation=max_length is not None, max_length=max_length)


def full_length(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, templates: Sequence[str] = (), prompt: str = ""
) -> int | None:
    """Return how many tokens a text that is cut has, with its prompt and template, or `None` if none is cut.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        max_length (`int`, *optional*): The length that [`tokenize_texts`] cuts to.
        templates (`Sequence[str]`, *optional*, defaults to `()`): The model's templates.
        prompt (`str`, *optional*, defaults to `""`): What is put before each text.

    Returns:
        `int`: The number of tokens, special tokens included.

    Raises:
        SettingError: If the prompt leaves no room for a text. All texts would then be the same.
    """
    check_text(prompt, "the prompt")
    length = max_length
    if templates:
        length = parse_template(templates[0], tokenizer).full_length(tokenizer, max_length)
    if prompt and length is not None:
        needed = len(tokenize_texts(tokenizer, [prompt], None, templates)[0])
        if needed >= length:
            raise SettingError(
                f"the prompt {prompt[:60]!r} takes {needed} of the {length} tokens of a text, so no room is left for "
                "the text itself: shorten it, or raise the maximum length."
            )
    return length


class Batching(TypedDict, total=False):
    """The arguments of [`BatchEncoder.embed`] that change no embedding, but how long it takes."""

    token_budget: int | None
    batch_size: int | None
    split_over_processes: bool


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield items, of which a background thread produces the next one while the caller works on one.

    A thread and not a process, because the work that is worth it here (reading, tokenizing) releases the
    interpreter's lock most of the time, and its results are shared without a copy.

    Args:
        items (`Iterable`): What to produce. Only the background thread iterates over it.

    Yields:
        The items in their order. An error of `items` is raised where its item would have been.
    """
    iterator = iter(items)

    def produce() -> list[T]:
        return list(islice(iterator, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="simcse-ahead") as thread:
        ahead = thread.submit(produce)
        while produced := ahead.result():
            ahead = thread.submit(produce)
            yield produced[0]


logger = logging.get_logger(__name__)


class BatchEncoder:
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
        #: The model without what it is wrapped in for training.
        self.bare: Any = getattr(model, "module", model)
        self.tokenizer = tokenizer
        check_values(LONG_TEXTS, long_texts=long_texts)
        self.long_texts = long_texts
        self.max_length = max_length
        self.prompts: dict[str, str] = {"query": "", "document": ""} | self.settings.prompts
        self.default_prompt_name = self.settings.default_prompt_name

    @property
    def max_length(self) -> int | None:
        """Return the number of tokens to which a text is cut, or `None` for no limit. `None` sets the model's own."""
        return self._max_length

    @max_length.setter
    def max_length(self, length: int | None) -> None:
        if length is None:
            length = length_limit(self.bare.config, self.settings, self.tokenizer.model_max_length)
        else:
            check_max_length(length, self.bare.config)
            length = int(length)  # also one of numpy, which no config takes
        self._max_length = length

    @property
    def settings(self) -> ContrastiveSettings:
        """Return the settings of the model."""
        return self.bare.settings

    def resolve_prompt(self, prompt: str | None = None, prompt_name: str | None = None, role: Role = None) -> str:
        """Return the text that stands before each text to encode, `""` for none.

        Args:
            prompt (`str`, *optional*): The text itself.
            prompt_name (`str`, *optional*): Its name. The default is the prompt of the role.
            role (`str`, *optional*): `"query"`, `"document"`, or `None` for texts that are neither, which get the
                default prompt, if the model has one. As in sentence-transformers, queries and documents never get it.

        Returns:
            `str`: The text.

        Raises:
            SettingError: If the model has no prompt of that name.
            DataError: If the prompt is no text.
        """
        if prompt is not None:
            if prompt_name is not None:
                logger.warning(f"prompt_name {prompt_name!r} is ignored, because prompt is given too: give only one.")
            return check_text(prompt, "prompt")
        name = prompt_name
        if name is None:
            name = role or self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise SettingError(
                f"{self.name_or_path} has no prompt named {name!r}; its prompts are {', '.join(self.prompts)}. "
                "Add it to model.prompts, or give the text itself as prompt."
            )
        found = self.prompts[name]
        near = ["passage", "corpus"] if role == "document" else []
        for other in (*near, self.default_prompt_name):
            if role is not None and prompt_name is None and not found and self.prompts.get(other or ""):
                logger.warning_once(
                    f"{self.name_or_path} has no prompt {role!r}, so a {role} is encoded without a prompt, as in "
                    f"sentence-transformers. To use its prompt {other!r}, set model.prompts[{role!r}] = "
                    f"model.prompts[{other!r}]."
                )
        return check_text(found, f"the prompt {name!r}")

    def column_prompts(self, number: int) -> list[str]:
        """Return what stands before the texts of each column of training rows.

        Args:
            number (`int`): How many columns there are.

        Returns:
            `list[str]`: The prompt of queries for anchors, and that of documents for all others. A model that has
            neither reads them with its default prompt.
        """
        if not (self.prompts.get("query") or self.prompts.get("document")):
            return [self.resolve_prompt()] * number
        return [self.resolve_prompt(role="query")] + [self.resolve_prompt(role="document")] * (number - 1)

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

    @torch.no_grad()
    def embed(
        self,
        token_ids: Sequence[Any],
        long_texts: str | None = None,
        *,
        token_budget: int | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        split_over_processes: bool = True,
    ) -> torch.Tensor:
        """Compute the embeddings of tokenized texts in evaluation mode.

        Under several processes each process encodes every W-th batch, and all processes return all embeddings.

        Args:
            token_ids (`Sequence`): What [`tokenize`] returned.
            long_texts (`str`, *optional*): `"cut"` or `"mean"`, as the texts were tokenized.
            token_budget (`int`, *optional*): Tokens of a padded batch. By default there is no limit if `batch_size` is
                given; otherwise it is small enough for the caches of a CPU, or large enough to keep a GPU busy.
            batch_size (`int`, *optional*): Texts of a batch.
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process.
            split_over_processes (`bool`, *optional*, defaults to `True`): Set to `False` if each process has texts of
                its own: it then encodes all of them itself.

        Returns:
            `torch.Tensor`: Float32 embeddings of shape `(texts, dim)` as the pooler gives them, on the model's device,
            or on the CPU with `long_texts="mean"`. They may hold NaN or infinity.

        Raises:
            ValueError: If `token_budget` or `batch_size` is below 1.
        """
        has_windows = (long_texts or self.long_texts) == "mean"
        rows_of_ids = list(chain.from_iterable(token_ids)) if has_windows else token_ids
        check_values("an integer above 0", token_budget=token_budget, batch_size=batch_size)
        model = self.model
        device = next(model.parameters()).device
        on_cpu = device.type == "cpu"
        if on_cpu:
            keep_freed_memory()
        runs_unpadded = getattr(self.bare, "runs_unpadded", False)
        if token_budget is None and batch_size is None:
            # On a CPU more where padding is not computed and takes no time.
            usual = 4096 if runs_unpadded else 1024
            token_budget = getattr(self.bare, "token_budget", usual) if on_cpu else 32_768
        lengths = np.array([len(ids) for ids in rows_of_ids])
        batches = length_sorted_batches(lengths, token_budget, batch_size)
        rank, processes = world() if split_over_processes else (0, 1)
        # A sharded model's forward pass is collective, so every process has to call it equally often: a process
        # without a batch of its own in the last round encodes another one and drops the result.
        rounds = math.ceil(len(batches) / processes)

        def compute(step: int) -> tuple[int, torch.Tensor, torch.Tensor]:
            number = step * processes + rank
            rows = batches[number % len(batches)]
            ids, mask = pad([rows_of_ids[row] for row in rows], self.tokenizer.pad_token_id)
            places = torch.tensor(rows)
            what = (
                f"a batch of {len(ids)} texts of up to {ids.shape[1]} tokens does not fit into the memory of {device}:"
                f" lower token_budget to {ids.numel() // 2}, shorten the texts with max_length, or encode in bfloat16"
            )
            with explain_full_memory(lambda: what):
                if on_cpu:
                    with FastLinear() if MKL_IS_SLOW and ids.numel() > _FEW_TOKENS else nullcontext():
                        output = model(input_ids=ids, attention_mask=mask)
                else:
                    ids, mask, places = (send(x, device) for x in (ids, mask, places))
                    packed = {}
                    if runs_unpadded:  # the model would make it, and wait for the device
                        packed["packing"] = Packing.from_lengths(lengths[rows], in_order=True).to(device)
                    output = model(input_ids=ids, attention_mask=mask, **packed)
            return number, places, output.sentence_embeddings.float()

        embeddings: torch.Tensor | None = None
        streams = getattr(model, "streams", 1)
        was_training = model.training
        if was_training:  # a model in evaluation mode is not touched, so that threads can share it
            model.eval()
        try:
            with ThreadPoolExecutor(streams) as pool:
                outputs = pool.map(compute, range(rounds)) if streams > 1 else map(compute, range(rounds))
                hidden = not show_progress_bar or rank != 0
                for number, places, output in tqdm(outputs, "Encoding", rounds, unit="batch", disable=hidden, **_BAR):
                    if embeddings is None:  # on the device, because each copy would wait for it
                        embeddings = output.new_zeros(len(rows_of_ids), output.shape[-1])
                    if number < len(batches):
                        embeddings.index_copy_(0, places, output)
        finally:
            if was_training:
                model.train()
        if embeddings is None:
            return torch.zeros(0, 0)
        if processes > 1:
            dist.all_reduce(embeddings)  # each row was filled by one process and is zero in the others
        return mean_of_windows(embeddings.cpu(), token_ids) if has_windows else embeddings
