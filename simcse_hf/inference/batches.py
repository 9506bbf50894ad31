"""Token ids to embeddings: batches sorted by length, each within a token budget."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.collator import pad
from ..data.templates import read_template
from ..data.tokenize import to_token_ids
from ..models.settings import max_positions
from ..ops.distributed import world
from ..ops.invariance import is_batch_invariant, padded_width
from ..ops.memory import keep_freed_memory
from .background import prefetched

# A fast tokenizer keeps the truncation of its last call as state, which a call from another thread would change.
_TOKENIZER_LOCK = threading.Lock()
_BATCHES_AHEAD = 4  # padded batches that wait for the device


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
    with _TOKENIZER_LOCK, _unchanged(tokenizer):
        if templates:
            return read_template(templates[0], tokenizer).tokenize(tokenizer, texts, max_length)
        if not texts:
            return []
        return to_token_ids(tokenizer, list(texts), truncation=max_length is not None, max_length=max_length)


@contextmanager
def _unchanged(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the truncation and padding that a fast tokenizer keeps from its last call."""
    if not getattr(tokenizer, "is_fast", False):
        yield
        return
    backend = tokenizer.backend_tokenizer
    truncation, padding = backend.truncation, backend.padding
    try:
        yield
    finally:
        if truncation is None:
            backend.no_truncation()
        else:
            backend.enable_truncation(**truncation)
        if padding is None:
            backend.no_padding()
        else:
            backend.enable_padding(**padding)


def length_sorted_batches(
    lengths: Sequence[int] | np.ndarray, token_budget: int | None, batch_size: int | None = None
) -> list[list[int]]:
    """Group texts of similar length into batches, the longest first.

    Args:
        lengths (`Sequence[int]` or `np.ndarray`): The number of tokens of each text.
        token_budget (`int`, *optional*): The most tokens of a padded batch. A longer text gets a batch of its own.
        batch_size (`int`, *optional*): The most texts of a batch.

    Returns:
        `list[list[int]]`: The indices of the texts of each batch.
    """
    most_texts = batch_size or len(lengths)
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable").tolist()
    batches: list[list[int]] = []
    for index in order:
        batch = batches[-1] if batches else []
        padded = (len(batch) + 1) * lengths[batch[0]] if batch else 0
        if batch and len(batch) < most_texts and (token_budget is None or padded <= token_budget):
            batch.append(index)
        else:
            batches.append([index])
    return batches


def default_token_budget(model: nn.Module, device: torch.device) -> int:
    """Choose the default token budget: small enough for CPU caches, large enough to keep a GPU busy.

    Args:
        model (`nn.Module`): The model. On a CPU it gets larger batches if it does not compute padding.
        device (`torch.device`): The device that the model runs on.

    Returns:
        `int`: The number of tokens of a padded batch.
    """
    if device.type != "cpu":
        return 32_768
    return 4096 if getattr(getattr(model, "module", model), "runs_unpadded", False) else 1024


@dataclass(frozen=True)
class BatchPlan:
    """The batches of some texts.

    Args:
        batches (`list[list[int]]`): The indices of the texts of each batch.
        widths (`list[int]`, *optional*): The number of tokens to which each batch is padded. The default is the length
            of its longest text.
    """

    batches: list[list[int]]
    widths: list[int] | None = None


def plan_batches(
    token_ids: Sequence[Sequence[int]], token_budget: int | None, batch_size: int | None, batch_invariant: bool
) -> BatchPlan:
    """Plan the batches of tokenized texts.

    Args:
        token_ids (`Sequence[Sequence[int]]`): The token ids of each text.
        token_budget (`int`, *optional*): The most tokens of a padded batch.
        batch_size (`int`, *optional*): The most texts of a batch.
        batch_invariant (`bool`): Whether the width to which a text is padded must depend on its own length only.

    Returns:
        `BatchPlan`: The batches.
    """
    lengths = list(map(len, token_ids))
    if not batch_invariant:
        return BatchPlan(length_sorted_batches(lengths, token_budget, batch_size))
    lengths = list(map(padded_width, lengths))
    mixed = length_sorted_batches(lengths, token_budget, batch_size)
    batches = [list(part) for batch in mixed for _, part in groupby(batch, key=lengths.__getitem__)]
    return BatchPlan(batches, [lengths[batch[0]] for batch in batches])


@dataclass(frozen=True)
class Computation:
    """Embeddings that the device may still be computing.

    Args:
        embeddings (`torch.Tensor`): Where they will be, on the CPU.
        finished (`torch.cuda.Event`, *optional*): The event after which they are there.
    """

    embeddings: torch.Tensor
    finished: torch.cuda.Event | None = None

    def result(self) -> torch.Tensor:
        """Wait for the device and return the embeddings."""
        if self.finished is not None:
            self.finished.synchronize()
        return self.embeddings


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
            accelerator with `lengths`, an array of shape `(batch,)`; returns an output with `sentence_embeddings`.
        token_ids (`Sequence[Sequence[int]]`): The token ids of each text.
        pad_token_id (`int`): The id that pads the batches.
        token_budget (`int`, *optional*): Tokens of a padded batch. The default is `default_token_budget`, or no limit
            if `batch_size` is given.
        batch_size (`int`, *optional*): Texts of a batch.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process.
        split_over_processes (`bool`, *optional*, defaults to `True`): Set to `False` if each process has texts of its
            own: it then encodes all of them itself.

    Returns:
        `torch.Tensor`: Float32 embeddings of shape `(texts, dim)`, on the CPU, in the order of the texts.

    Raises:
        ValueError: If `token_budget` or `batch_size` is below 1.
    """
    token_budget = resolve_token_budget(model, token_budget, batch_size)
    plan = plan_batches(token_ids, token_budget, batch_size, is_batch_invariant())
    options = {"show_progress_bar": show_progress_bar, "split_over_processes": split_over_processes}
    return start_encoding(model, token_ids, pad_token_id, plan, **options).result()


def resolve_token_budget(model: nn.Module, token_budget: int | None, batch_size: int | None) -> int | None:
    """Return the token budget of a call of [`encode_token_ids`], `None` for no limit; see there."""
    for name, limit in (("token_budget", token_budget), ("batch_size", batch_size)):
        if limit is not None and limit < 1:
            raise ValueError(f"{name} must be at least 1, got {limit}")
    if token_budget is None and batch_size is None:
        return default_token_budget(model, next(model.parameters()).device)
    return token_budget


@torch.no_grad()
def start_encoding(
    model: nn.Module,
    token_ids: Sequence[Sequence[int]],
    pad_token_id: int,
    plan: BatchPlan,
    *,
    show_progress_bar: bool = False,
    split_over_processes: bool = True,
) -> Computation:
    """Start to compute the embeddings of tokenized texts, without waiting for an accelerator.

    A background thread pads the next batches and puts them into pinned memory. Embeddings stay on the device until
    all batches have been started, and are copied once.

    Args:
        model (`nn.Module`): See [`encode_token_ids`], as for the arguments that are not listed here.
        token_ids (`Sequence[Sequence[int]]`): The token ids of each text.
        pad_token_id (`int`): The id that pads the batches.
        plan (`BatchPlan`): The batches.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar on the first process.
        split_over_processes (`bool`, *optional*, defaults to `True`): Encode a part of the batches in each process.

    Returns:
        `Computation`: The embeddings; on a CPU they have been computed.
    """
    rank, processes = world() if split_over_processes else (0, 1)
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    # A sharded model's forward pass is collective, so every process has to call it equally often: a process
    # without a batch of its own in the last round encodes another one and drops the result.
    rounds = -(-len(plan.batches) // processes)
    config = getattr(model, "config", None)
    positions = max_positions(config) if config is not None else None
    numbers = [step * processes + rank for step in range(rounds)]

    def padded() -> Iterator[tuple[int, list[torch.Tensor], dict[str, np.ndarray]]]:
        for number in numbers:
            chosen = number % len(plan.batches)
            rows, width = plan.batches[chosen], None if plan.widths is None else plan.widths[chosen]
            if width is not None and positions is not None:
                width = min(width, positions)  # rounding up may have passed the limit
            tensors = [torch.tensor(rows), *pad([token_ids[i] for i in rows], pad_token_id, width)]
            if device.type == "cuda":
                tensors = [tensor.pin_memory() for tensor in tensors]
            # With the lengths on the host, the model does not wait for the device to count the tokens of the mask.
            lengths = {} if device.type == "cpu" else {"lengths": np.array([len(token_ids[i]) for i in rows])}
            yield number, tensors, lengths

    embeddings: torch.Tensor | None = None
    was_training = model.training
    if was_training:  # a model in evaluation mode is not touched, so that threads can share it
        model.eval()
    try:
        with prefetched(padded(), _BATCHES_AHEAD if rounds > 1 else 0) as batches:
            bar = tqdm(
                batches, desc="Encoding", total=rounds, unit="batch", disable=not show_progress_bar or rank != 0
            )
            for number, tensors, lengths in bar:
                rows, ids, mask = (tensor.to(device, non_blocking=True) for tensor in tensors)
                output = model(input_ids=ids, attention_mask=mask, **lengths).sentence_embeddings.float()
                if embeddings is None:
                    embeddings = output.new_zeros(len(token_ids), output.shape[-1])
                if number < len(plan.batches):
                    embeddings.index_copy_(0, rows.to(output.device), output)
    finally:
        if was_training:
            model.train()
    if embeddings is None:
        return Computation(torch.zeros(0, 0))
    if processes > 1:
        dist.all_reduce(embeddings)  # each row was filled by one process and is zero in the others
    if embeddings.device.type != "cuda":
        return Computation(embeddings.cpu())
    on_host, finished = embeddings.to("cpu", non_blocking=True), torch.cuda.Event()
    finished.record(torch.cuda.current_stream(embeddings.device))
    return Computation(on_host, finished)
