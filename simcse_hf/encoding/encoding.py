"""Texts to token ids to embeddings: batches of similar length, each within a token budget."""

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.collator import length_sorted_batches, pad
from ..data.templates import read_template
from ..data.token_ids import to_token_ids
from ..kernels.cpu import FastLinear, keep_freed_memory
from ..kernels.memory import explain_full_memory
from ..kernels.packing import Packing, send
from ..runtime.distributed import world
from ..runtime.errors import check_values

T = TypeVar("T")
#: A fast tokenizer keeps the truncation of its last call as state, which a call from another thread would change.
TOKENIZER_LOCK = threading.Lock()
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
    with TOKENIZER_LOCK, unchanged(tokenizer):
        if templates:
            return read_template(templates[0], tokenizer).tokenize(tokenizer, texts, max_length)
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
        ValueError: If the prompt leaves no room for a text. All texts would then be the same.
    """
    length = max_length
    if templates:
        length = read_template(templates[0], tokenizer).full_length(tokenizer, max_length)
    if prompt and length is not None:
        needed = len(tokenize_texts(tokenizer, [prompt], None, templates)[0])
        if needed >= length:
            taken = f"takes {needed} of the {length} tokens of a text, so no room is left for the text itself"
            raise ValueError(f"the prompt {prompt[:60]!r} {taken}: shorten it, or raise the maximum length.")
    return length


@contextmanager
def unchanged(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the truncation and padding that a fast tokenizer keeps from its last call, and would save."""
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


class Batching(TypedDict, total=False):
    """The arguments of [`encode_token_ids`] that change no embedding, but how long it takes."""

    token_budget: int | None
    batch_size: int | None
    show_progress_bar: bool
    split_over_processes: bool


@torch.no_grad()
def encode_token_ids(
    model: nn.Module,
    token_ids: Sequence[Sequence[int]],
    pad_token_id: int,
    *,
    token_budget: int | None = None,
    batch_size: int | None = None,
    show_progress_bar: bool = False,
    split_over_processes: bool = True,
) -> torch.Tensor:
    """Compute the embeddings of tokenized texts in evaluation mode.

    Under several processes each process encodes every W-th batch, and all processes return all embeddings.

    Args:
        model (`nn.Module`): Called with `input_ids` and `attention_mask` of shape `(batch, length)`, and on an
            accelerator with their `packing` where it runs without padding; returns an output with
            `sentence_embeddings`.
        token_ids (`Sequence[Sequence[int]]`): The token ids of each text.
        pad_token_id (`int`): The id that pads the batches.
        token_budget (`int`, *optional*): Tokens of a padded batch. By default there is no limit if `batch_size` is
            given; otherwise it is small enough for the caches of a CPU, or large enough to keep a GPU busy.
        batch_size (`int`, *optional*): Texts of a batch.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process.
        split_over_processes (`bool`, *optional*, defaults to `True`): Set to `False` if each process has texts of its
            own: it then encodes all of them itself.

    Returns:
        `torch.Tensor`: Float32 embeddings of shape `(texts, dim)`, on the model's device, in the order of the texts.

    Raises:
        ValueError: If `token_budget` or `batch_size` is below 1.
    """
    check_values("an integer above 0", token_budget=token_budget, batch_size=batch_size)
    device = next(model.parameters()).device
    on_cpu = device.type == "cpu"
    if on_cpu:
        keep_freed_memory()
    if token_budget is None and batch_size is None:
        # On a CPU more where padding is not computed and takes no time.
        bare = getattr(model, "module", model)
        usual = 4096 if getattr(bare, "runs_unpadded", False) else 1024
        token_budget = getattr(bare, "token_budget", usual) if on_cpu else 32_768
    lengths = np.array([len(ids) for ids in token_ids])
    batches = length_sorted_batches(lengths, token_budget, batch_size)
    rank, processes = world() if split_over_processes else (0, 1)
    # A sharded model's forward pass is collective, so every process has to call it equally often: a process without a
    # batch of its own in the last round encodes another one and drops the result.
    rounds = math.ceil(len(batches) / processes)

    def compute(step: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        number = step * processes + rank
        rows = batches[number % len(batches)]
        ids, mask = pad([token_ids[row] for row in rows], pad_token_id)
        places = torch.tensor(rows)
        with explain_full_memory(partial(_describe_batch, ids, device)):
            if on_cpu:
                with FastLinear() if ids.numel() > _FEW_TOKENS else nullcontext():
                    output = model(input_ids=ids, attention_mask=mask)
            else:
                ids, mask, places = send([ids, mask, places], device)
                output = model(input_ids=ids, attention_mask=mask, **packing_for(model, lengths[rows], device))
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
                    embeddings = output.new_zeros(len(token_ids), output.shape[-1])
                if number < len(batches):
                    embeddings.index_copy_(0, places, output)
    finally:
        if was_training:
            model.train()
    if embeddings is None:
        return torch.zeros(0, 0)
    if processes > 1:
        dist.all_reduce(embeddings)  # each row was filled by one process and is zero in the others
    return embeddings


def packing_for(model: torch.nn.Module, lengths: np.ndarray, device: torch.device) -> dict[str, Packing]:
    """Return the packing of a batch, with which a model that runs without padding does not wait for the device."""
    if not getattr(getattr(model, "module", model), "runs_unpadded", False):
        return {}
    return {"packing": Packing.from_lengths(lengths, in_order=True).to(device)}


def _describe_batch(ids: torch.Tensor, device: torch.device) -> str:
    """Say how large a batch is, and what takes less memory."""
    return (
        f"a batch of {ids.shape[0]} texts of up to {ids.shape[1]} tokens does not fit into the memory of {device}: "
        f"lower token_budget to {ids.numel() // 2}, shorten the texts with max_length, or encode in bfloat16"
    )


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
