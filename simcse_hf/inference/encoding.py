"""Turn windows of texts into embeddings: the next window is tokenized in the background while one is computed."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

from ..data.read import list_texts
from ..models.modeling import ContrastiveModel
from ..ops.evaluation_view import evaluation_view
from ..ops.finite import check_finite_texts
from ..ops.invariance import batch_invariance
from ..postprocessing import VectorTransform
from .background import prefetched
from .batches import BatchPlan, Computation, plan_batches, resolve_token_budget, start_encoding, tokenize_texts
from .quantization import quantize

# More texts sort into fuller batches and keep an accelerator busy for longer; fewer take less memory.
CPU_WINDOW, ACCELERATOR_WINDOW = 10_000, 65_536


def default_window(device: torch.device) -> int:
    """Return how many texts are tokenized and sorted by length together by default."""
    return CPU_WINDOW if device.type == "cpu" else ACCELERATOR_WINDOW


@dataclass(frozen=True)
class EncodingSettings:
    """How texts become embeddings.

    Args:
        prefix (`str`, *optional*, defaults to `""`): Put this before each text.
        max_length (`int`, *optional*): Truncate each text to this many tokens.
        token_budget (`int`, *optional*): Tokens of a padded batch. The default is `default_token_budget`.
        batch_size (`int`, *optional*): Texts of a batch.
        batch_invariant (`bool`, *optional*, defaults to `False`): See `SimCSE.encode`.
        split_over_processes (`bool`, *optional*, defaults to `True`): See `SimCSE.encode`.
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar for each window.
        normalize_embeddings (`bool`, *optional*, defaults to `True`): Scale embeddings to unit length, after
            truncation.
        normalize_first (`bool`, *optional*, defaults to `False`): Scale them to unit length before truncation too.
        truncate_dim (`int`, *optional*): Keep only the leading dimensions.
        precision (`str`, *optional*, defaults to `"float32"`): One of `quantization.PRECISIONS`.
        ranges (`np.ndarray`, *optional*): For int8 and uint8, of shape `(2, dim)`.
    """

    prefix: str = ""
    max_length: int | None = None
    token_budget: int | None = None
    batch_size: int | None = None
    batch_invariant: bool = False
    split_over_processes: bool = True
    show_progress_bar: bool = False
    normalize_embeddings: bool | None = True
    normalize_first: bool = False
    truncate_dim: int | None = None
    precision: str = "float32"
    ranges: np.ndarray | None = None


class TokenizeError(ValueError):
    """The tokenizer failed on a text.

    Args:
        subject (`str`): What names the text.
        reason (`Exception`): The tokenizer's error.
        position (`int`): The position of the text among all, from 0.
    """

    def __init__(self, subject: str, reason: Exception, position: int) -> None:
        super().__init__(
            f"{subject} cannot be tokenized: {reason or type(reason).__name__}. Change or drop this text."
        )
        self.reason, self.position = reason, position


@dataclass(frozen=True)
class _Window:
    first: int  # the position of its first text among all
    texts: list[str]
    token_ids: list[list[int]]
    plan: BatchPlan


def encode_windows(
    model: ContrastiveModel,
    tokenizer: PreTrainedTokenizerBase,
    transform: VectorTransform | None,
    windows: Iterable[Sequence[str]],
    settings: EncodingSettings,
) -> Generator[torch.Tensor]:
    """Encode windows of texts one after the other.

    A background thread takes the next window from `windows`, tokenizes it and plans its batches, while the device
    computes. On an accelerator the embeddings of a window are finished on the CPU while the device computes the next
    one. A single window in a list needs no thread.

    Args:
        model (`ContrastiveModel`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        transform (`VectorTransform`, *optional*): Apply this whitening or flow.
        windows (`Iterable[Sequence[str]]`): The texts. Texts of one window are sorted by length together.
        settings (`EncodingSettings`): The settings.

    Yields:
        `torch.Tensor`: The embeddings or codes of each window, of shape `(texts, dim)`, on the CPU.

    Raises:
        TokenizeError: If the tokenizer fails on a text. The position counts the texts of all windows.
        NotFiniteError: If an embedding holds NaN or infinity. The position counts the texts of all windows.
        ValueError: If an item is not a text, or `token_budget` or `batch_size` is below 1.
    """
    view = evaluation_view(model)
    token_budget = resolve_token_budget(view, settings.token_budget, settings.batch_size)

    def tokenized() -> Iterator[_Window]:
        first = 0
        for window in windows:
            texts = list_texts(window)
            ids = _tokenize(tokenizer, texts, settings, model.settings.templates, first)
            yield _Window(
                first, texts, ids, plan_batches(ids, token_budget, settings.batch_size, settings.batch_invariant)
            )
            first += len(texts)

    def finish(window: _Window, computation: Computation) -> torch.Tensor:
        embeddings = computation.result()
        if not window.texts:
            embeddings = torch.zeros(0, model.embedding_dim if transform is None else transform.output_dim)
        elif transform is not None:
            with batch_invariance(settings.batch_invariant):
                embeddings = transform.transform(embeddings)
        check_finite_texts(embeddings, window.texts, window.first)
        return shape_embeddings(embeddings, settings)

    finishes_later = next(model.parameters()).device.type != "cpu"
    started: tuple[_Window, Computation] | None = None
    with prefetched(tokenized(), 0 if isinstance(windows, list) and len(windows) == 1 else 1) as prepared:
        for window in prepared:
            with batch_invariance(settings.batch_invariant):
                computation = start_encoding(
                    view,
                    window.token_ids,
                    tokenizer.pad_token_id,
                    window.plan,
                    show_progress_bar=settings.show_progress_bar,
                    split_over_processes=settings.split_over_processes,
                )
            if started is not None:
                yield finish(*started)
            started = window, computation
            if not finishes_later:
                yield finish(*started)
                started = None
        if started is not None:
            yield finish(*started)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    settings: EncodingSettings,
    templates: Sequence[str],
    first: int,
) -> list[list[int]]:
    """Tokenize a window. If the tokenizer fails, look for the text that it fails on."""
    prefixed = [settings.prefix + text for text in texts] if settings.prefix else texts
    try:
        return tokenize_texts(tokenizer, prefixed, settings.max_length, templates)
    except Exception:
        for position, text in enumerate(prefixed):
            try:
                tokenize_texts(tokenizer, [text], settings.max_length, templates)
            except Exception as error:
                subject = f"text {first + position} ({texts[position][:80]!r})"
                raise TokenizeError(subject, error, first + position) from error
        raise


def shape_embeddings(embeddings: torch.Tensor, settings: EncodingSettings) -> torch.Tensor:
    """Normalize, truncate and quantize embeddings.

    Args:
        embeddings (`torch.Tensor`): Finite float32 embeddings on the CPU, of shape `(n, dim)`.
        settings (`EncodingSettings`): What to do.

    Returns:
        `torch.Tensor`: Embeddings or codes, of shape `(n, ...)`.
    """
    if settings.normalize_first:
        embeddings = F.normalize(embeddings, dim=-1)
    embeddings = embeddings[:, : settings.truncate_dim]
    if settings.normalize_embeddings:
        embeddings = F.normalize(embeddings, dim=-1)
    if settings.precision != "float32":
        embeddings = torch.from_numpy(quantize(embeddings.numpy(), settings.precision, settings.ranges))
    return embeddings
