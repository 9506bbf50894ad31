"""Fit a whitening or a flow on a model's embeddings and save it beside the model."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from ..data.columns import resolve_columns
from ..data.read import open_table, stream_texts, text_column
from ..postprocessing.files import METHODS, MODULES, Fit, save_transform
from ..postprocessing.flow import fit_flow
from ..postprocessing.interface import VectorTransform
from ..postprocessing.whitening import fit_whitening
from .encoding import default_window
from .simcse import SimCSE


def fit_transform(
    model: SimCSE,
    method: str,
    sentences: str | Path,
    output_dir: str | Path,
    *,
    columns: list[str] | None = None,
    token_budget: int | None = None,
    show_progress_bar: bool = False,
    **settings: Any,
) -> tuple[VectorTransform, Fit]:
    """Fit a transform on a model's embeddings, before normalization, and save it with the model.

    Args:
        model (`SimCSE`): The model, loaded with `postprocess=False`.
        method (`str`): `"whitening"` or `"flow"`.
        sentences (`str` or `Path`): A txt, csv, tsv, json, jsonl or parquet file, or one of these gzipped.
        output_dir (`str` or `Path`): A new or empty directory, which gets the model, the tokenizer and the transform;
            or the model's own directory, to which only the transform is added.
        columns (`list[str]`, *optional*): The columns of sentences, if the file has several columns.
        token_budget (`int`, *optional*): Tokens of a padded batch. The default is that of [`SimCSE.encode`].
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show progress bars.
        **settings (`Any`): Arguments of [`fit_whitening`] or [`fit_flow`].

    Returns:
        `tuple[VectorTransform, Fit]`: The transform, and the record of what it was fitted on.

    Raises:
        ValueError: If the method, the input, a setting or the directory is invalid.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if model.postprocessing is not None:
        raise ValueError(f"{model.name_or_path} applies a transform already: load it with postprocess=False")
    output_dir = Path(output_dir).expanduser()
    is_own_directory = (
        output_dir.exists() and Path(model.name_or_path).exists() and output_dir.samefile(model.name_or_path)
    )
    if is_own_directory:
        _check_own_directory(model, output_dir)
    elif output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} is not an empty directory: name another one, or the model's own")
    columns = _check_columns(sentences, columns)
    count = 0

    def embeddings() -> Iterator[torch.Tensor]:
        nonlocal count
        for window in _encode_windows(model, sentences, columns, token_budget, show_progress_bar):
            count += len(window)
            yield window

    history = None
    transform: VectorTransform
    try:
        if method == "whitening":
            transform = fit_whitening(embeddings(), **settings)
        else:
            windows = list(embeddings())
            if not windows:
                raise ValueError("there are no sentences to fit a flow on")
            vectors = torch.cat(windows).to(model.device)
            transform, history = fit_flow(vectors, show_progress_bar=show_progress_bar, **settings)
    except ValueError as error:
        raise ValueError(f"{sentences}: {error}") from error
    if not is_own_directory:
        model.save_pretrained(output_dir)
    fit = Fit(model.pooler_type, model.max_length, Path(sentences).name, columns, count, settings, history)
    save_transform(output_dir, transform, fit)
    return transform, fit


def _check_own_directory(model: SimCSE, directory: Path) -> None:
    # sentence-transformers' files there describe the checkpoint's own pooler, and would be wrong for another one.
    if not (directory / MODULES).exists():
        return
    saved_type = SimCSE(directory, device="cpu", postprocess=False).pooler_type
    if saved_type != model.pooler_type:
        raise ValueError(
            f"{directory} names pooler {saved_type!r} in its files, and the transform is for {model.pooler_type!r}: "
            "name another directory for the output"
        )


def _check_columns(sentences: str | Path, columns: list[str] | None) -> list[str]:
    if columns is None:
        return [text_column(sentences)[1]]
    table = open_table(Path(sentences))
    resolve_columns(table.columns, name=table.name, columns=columns)
    return columns


def _encode_windows(
    model: SimCSE, sentences: str | Path, columns: list[str], token_budget: int | None, show_progress_bar: bool
) -> Iterator[torch.Tensor]:
    for column in columns:
        texts = (text for _, text in stream_texts(sentences, column))
        windows = iter(partial(_take, texts, default_window(model.device)), [])
        embedded = model.encode_windows(windows, normalize_embeddings=None, token_budget=token_budget)
        with tqdm(desc="Encoding", unit="text", disable=not show_progress_bar) as bar, closing(embedded):
            for embeddings in embedded:
                yield embeddings
                bar.update(len(embeddings))


def _take(texts: Iterator[str], count: int) -> list[str]:
    return list(islice(texts, count))
