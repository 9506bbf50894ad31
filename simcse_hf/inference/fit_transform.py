"""Fit a whitening or a flow of a model's embeddings and save it beside the model."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tqdm.auto import tqdm

from ..data.columns import resolve_columns
from ..data.files import open_table
from ..data.texts import stream_texts, text_column
from ..postprocessing.files import METHODS, MODULES, Fit, save_transform
from ..postprocessing.flow import fit_flow
from ..postprocessing.interface import VectorTransform
from ..postprocessing.whitening import fit_whitening
from .simcse import SimCSE

_WINDOW = 10_000  # texts that are tokenised and sorted by length together


def fit_transform(
    model: SimCSE,
    method: str,
    sentences: str | Path,
    output_dir: str | Path,
    *,
    columns: list[str] | None = None,
    token_budget: int | None = None,
    show_progress: bool = False,
    **settings,
) -> tuple[VectorTransform, Fit]:
    """Fits a transform of `model`'s vectors, not normalised, and saves it with the model.

    Args:
        model: loaded with `postprocess=False`.
        method: `"whitening"` or `"flow"`.
        sentences: a txt, csv, tsv, json, jsonl or parquet file, or one gzipped.
        output_dir: gets model, tokenizer and transform; must be new or empty. Or the model's own directory, to which
            only the transform is added.
        columns: of sentences, where the file has several.
        token_budget: tokens of a padded batch; None: the default of [`SimCSE.encode`].
        show_progress: progress bars.
        settings: of [`fit_whitening`] or [`fit_flow`].

    Raises:
        ValueError: an unknown method, bad input, settings or place; what the fits raise.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if model.postprocessing is not None:
        raise ValueError("the model applies a transform already: load it with postprocess=False")
    output_dir = Path(output_dir).expanduser()
    own = output_dir.exists() and Path(model.name_or_path).exists() and output_dir.samefile(model.name_or_path)
    if own:
        _check_own_directory(model, output_dir)
    elif output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise ValueError(f"{output_dir} is no empty directory: name another, or the model's own")
    columns = _check_columns(sentences, columns)
    parts = _encoded(model, sentences, columns, token_budget, show_progress)
    counted = 0

    def counting() -> Iterator[torch.Tensor]:
        nonlocal counted
        for part in parts:
            counted += len(part)
            yield part

    history = None
    try:
        if method == "whitening":
            transform = fit_whitening(counting(), **settings)
        else:
            vectors = list(counting())
            if not vectors:
                raise ValueError("there are no vectors to fit a flow on")
            transform, history = fit_flow(torch.cat(vectors).to(model.device), show_progress=show_progress, **settings)
    except ValueError as error:
        raise ValueError(f"{sentences}: {error}") from error
    if not own:
        if model.max_length is not None:
            model.tokenizer.model_max_length = model.max_length
        model.model.save_pretrained(output_dir)
        model.tokenizer.save_pretrained(output_dir)
    fit = Fit(model.pooler_type, model.max_length, Path(sentences).name, columns, counted, settings, history)
    save_transform(output_dir, transform, fit)
    return transform, fit


def _check_own_directory(model: SimCSE, directory: Path) -> None:
    """sentence-transformers' files there pool as the checkpoint says, and would be wrong for another pooler."""
    if not (directory / MODULES).exists():
        return
    named = SimCSE(directory, device="cpu", postprocess=False).pooler_type
    if named != model.pooler_type:
        raise ValueError(
            f"{directory} names pooler {named!r} in its files, and the transform is for {model.pooler_type!r}: name "
            "another directory for the output"
        )


def _check_columns(sentences: str | Path, columns: list[str] | None) -> list[str]:
    if columns is None:
        return [text_column(sentences)[1]]
    table = open_table(Path(sentences))
    resolve_columns(table.columns, name=table.name, columns=columns)
    return columns


def _encoded(model: SimCSE, sentences, columns: list[str], token_budget: int | None, show_progress: bool):
    """(n, dim) vectors, `_WINDOW` texts at a time."""
    with tqdm(desc="Encoding", unit="text", disable=not show_progress) as bar:
        for column in columns:
            texts = (text for _, text in stream_texts(sentences, column))
            while window := list(islice(texts, _WINDOW)):
                yield model.encode(window, normalize=False, token_budget=token_budget)
                bar.update(len(window))
