"""The command `simcse-hf postprocess fit`: a whitening or flow of a model, saved beside it."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from tqdm.auto import tqdm

from ..data.table import stream_texts, text_column
from ..models.checkpoint import WeightDigests
from ..names import Transform, WeightOptions
from ..postprocessing.flow import fit_flow
from ..postprocessing.transform import (
    FOLDER,
    TRANSFORM_FILE,
    TRANSFORMS,
    Fit,
    fit_whitening,
    save_transform,
)
from ..runtime.errors import DataError, SettingError, check_values
from ..runtime.files import StrPath
from ..runtime.loading import MODULES
from ..runtime.outputs import Result, output_folder
from .probes import probe_embedding
from .simcse import SimCSE, load_model

#: Texts that are encoded before a whitening reads them: the embeddings of more need not be in memory.
_TOGETHER = 10_000


@dataclass(frozen=True)
class FittedTransform(Result):
    """The whitening or flow that `fit_postprocessing` wrote.

    Args:
        output (`str`): The folder of the model with its transform.
        method (`str`): `"whitening"` or `"flow"`.
        pooler_type (`str`): The pooler whose embeddings it takes.
        input_dim (`int`): Their size.
        output_dim (`int`): The size of the transformed embeddings.
        sentences (`int`): Number of sentences that it was fitted on.
        log_likelihood (`list[float]`, *optional*): For a flow, see [`Fit`].
    """

    output: StrPath
    method: str
    pooler_type: str
    input_dim: int
    output_dim: int
    sentences: int
    log_likelihood: list[float] | None

    def __str__(self) -> str:
        text = (
            f"{self.output}: {self.method} of pooler {self.pooler_type!r}, {self.input_dim} to {self.output_dim} "
            f"dimensions, fitted on {self.sentences} sentences"
        )
        if self.log_likelihood is not None:
            values = " ".join(f"{value:.3f}" for value in self.log_likelihood)
            text += f"\nlog-likelihood per dimension after each epoch, in nats: {values}"
        return text


def fit_postprocessing(
    model: StrPath | SimCSE,
    input: StrPath,
    output: StrPath,
    method: Transform,
    *,
    columns: Sequence[str] | None = None,
    dim: int | None = None,
    blocks: int | None = None,
    width: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    token_budget: int | None = None,
    overwrite: bool = False,
    show_progress_bar: bool = True,
    **loading: Unpack[WeightOptions],
) -> FittedTransform:
    """Fit a whitening or a flow to a model's embeddings of unlabelled texts.

    It is saved beside the model. A transform that the model already has is not applied while fitting.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        input (`str` or `os.PathLike`): File of texts: txt, csv, tsv, json, jsonl or parquet, optionally gzipped; in
            Python also a list or a data frame.
        output (`str` or `os.PathLike`): Folder for the model with its transform; name the folder of `model` to add the
            transform there.
        method (`str`): Kind of transform.
        columns (`Sequence[str]`, *optional*): Columns of texts, if the file has several.
        dim (`int`, *optional*): Of a whitening: number of leading directions to keep. The default is all.
        blocks (`int`, *optional*): Of a flow: number of blocks. The default is 3.
        width (`int`, *optional*): Of a flow: hidden units of a coupling network. The default is 256.
        epochs (`int`, *optional*): Of a flow: passes over the embeddings. The default is 5.
        batch_size (`int`, *optional*): Of a flow: embeddings per step. The default is 256.
        learning_rate (`float`, *optional*): Of a flow: learning rate at the first step. The default is 1e-3.
        seed (`int`, *optional*): Of a flow: seed of the initial weights and the order. The default is 42.
        token_budget (`int`, *optional*): Number of tokens in a padded batch. The default is what suits the device.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        show_progress_bar (`bool`, *optional*, defaults to `True`): Show progress bars.
        **loading (`WeightOptions`): How the model is loaded.

    Returns:
        `FittedTransform`: What was fitted.

    Raises:
        SettingError: If an option belongs to the other method, `output` must not be replaced, the transform would
            stand beside files that name another pooler, or as [`fit_transform`].

    Examples:
        >>> from simcse_hf import SimCSE, fit_postprocessing
        >>> print(fit_postprocessing("outputs/my-model", "sentences.txt", "outputs/whitened", "whitening", dim=16))
        outputs/whitened: whitening of pooler 'avg', 64 to 16 dimensions, fitted on 200 sentences
        >>> SimCSE("outputs/whitened", device="cpu").encode("The chef cooked the soup.").shape
        torch.Size([16])
    """
    given: dict[str, float | None] = {
        "dim": dim,
        "blocks": blocks,
        "width": width,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    for name in settings:
        if (name == "dim") != (method == "whitening"):
            raise SettingError(f"method {method} has no option {name}: leave it out")

    folder = Path(output).expanduser()
    in_place = not isinstance(model, SimCSE) and folder.exists() and Path(model).exists() and folder.samefile(model)
    marker = f"{FOLDER}/{TRANSFORM_FILE}"
    if in_place and (folder / marker).exists() and not overwrite:
        raise SettingError(
            f"output {folder} has a transform already: replace it with overwrite, or name another folder"
        )
    target: AbstractContextManager[Path] = nullcontext(folder)
    if not in_place:
        target = output_folder(folder, overwrite, marker, [] if isinstance(model, SimCSE) else [model])
    with target as written:
        encoder = model if isinstance(model, SimCSE) else load_model(model, postprocess=False, **loading)
        if in_place and (folder / MODULES).exists():
            # sentence-transformers' files there describe the checkpoint's own pooler: they would be wrong for another.
            saved = SimCSE(folder, device="cpu", postprocess=False).pooler_type
            if saved != encoder.pooler_type:
                raise SettingError(
                    f"output {folder} is a model with pooler {saved!r}, and the transform is for pooler "
                    f"{encoder.pooler_type!r}: name another folder."
                )
        fit = fit_transform(
            encoder,
            method,
            input,
            columns=columns,
            token_budget=token_budget,
            show_progress_bar=show_progress_bar,
            **settings,
        )
        transform = encoder.postprocessing
        assert transform is not None
        if in_place:
            save_transform(written, transform, fit)
            if encoder.model.dtype == torch.float32:  # in which the digests are
                WeightDigests.of(encoder.model, encoder.model.state_dict(), transform).write(written)
        else:
            encoder.save_pretrained(written)
    sizes = transform.input_dim, transform.output_dim
    return FittedTransform(output, transform.method, fit.pooler, *sizes, fit.sentences, fit.log_likelihood)


def fit_transform(
    model: SimCSE,
    method: str,
    sentences: Any,
    *,
    columns: Sequence[str] | None = None,
    token_budget: int | None = None,
    show_progress_bar: bool = False,
    **settings: Any,
) -> Fit:
    """Fit a whitening or a flow on the embeddings of texts, which the model applies from now on.

    `save_pretrained` saves it with the model.

    Args:
        model (`SimCSE`): The model, without a transform.
        method (`str`): `"whitening"` or `"flow"`.
        sentences (`str`, `os.PathLike` or `Any`): A txt, csv, tsv, json, jsonl or parquet file, or one of these
            gzipped; or rows in memory.
        columns (`Sequence[str]`, *optional*): The columns of sentences, if the file has several columns.
        token_budget (`int`, *optional*): Tokens of a padded batch. The default is that of [`SimCSE.encode`].
        show_progress_bar (`bool`, *optional*, defaults to `False`): Show progress bars.
        **settings (`Any`): Arguments of [`fit_whitening`] or [`fit_flow`].

    Returns:
        `Fit`: The record of what it was fitted on.

    Raises:
        DataError: If the input is invalid, or cannot be fitted.
        SettingError: If the model has a transform already, or the method or a setting is invalid.
    """
    check_values(TRANSFORMS, method=method)
    if model.postprocessing is not None:
        raise SettingError(f"{model.name_or_path} applies a transform already: load it with postprocess=False")
    if isinstance(sentences, Iterator):  # which is read more than once
        sentences = list(sentences)
    named: Sequence[str | None] = columns or [None]
    opened = [text_column(sentences, column) for column in named]
    source = str(opened[0][0])
    columns = [column for _, column in opened]
    texts = [text for column in columns for _, text in stream_texts(sentences, column)]
    starts = tqdm(range(0, len(texts), _TOGETHER), "Encoding", unit="window", disable=not show_progress_bar)
    embedded = (
        model.encode(texts[start : start + _TOGETHER], normalize_embeddings=None, token_budget=token_budget)
        for start in starts
    )
    probe = probe_embedding(model, model.max_length)
    history = None
    try:
        if method == "whitening":
            model.postprocessing = fit_whitening(embedded, **settings)
        else:
            vectors = torch.cat([torch.zeros(0, model.dim), *embedded]).to(model.device)
            model.postprocessing, history = fit_flow(vectors, show_progress_bar=show_progress_bar, **settings)
    except ValueError as error:
        raise DataError(f"{source}: {error}") from error
    fit = Fit(model.pooler_type, model.max_length, Path(source).name, columns, len(texts), settings, history, probe)
    model.postprocessing_fit = fit
    return fit
