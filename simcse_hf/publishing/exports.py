"""Writes a model in the form that another library or runtime reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from ..apps.int8 import INT8_EXPORTS, Checks, Form, describe_form, export_int8
from ..encoding.simcse import SimCSE, load_model
from ..names import Export, Instructions, ModelOptions, WeightOptions
from ..runtime.files import StrPath
from ..runtime.outputs import Result, output_folder
from .export import EXPORTS


@dataclass(frozen=True)
class Exported(Result):
    """A model that was exported.

    Args:
        output (`Path`): The folder, or the graph in it.
        to (`str`): The form.
        pooler_type (`str`): The pooler of its embeddings.
        measured (`Form`): What int8 loses and gains; empty for another form.
    """

    output: Path
    to: str
    pooler_type: str
    measured: Form

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with those of `measured` among them."""
        fields = super().to_dict()
        return fields | fields.pop("measured")

    def __str__(self) -> str:
        line = f"{self.output}: embeddings of pooler {self.pooler_type!r}"
        return f"{line}\n{describe_form(self.measured)}" if self.measured else line


def export(
    model: StrPath | SimCSE,
    output: StrPath,
    *,
    to: Export,
    texts: StrPath | None = None,
    data_dir: StrPath | None = None,
    calibrate: StrPath | None = None,
    max_loss: float = 0.5,
    allow_slow: bool = False,
    instructions: Instructions | None = None,
    overwrite: bool = False,
    postprocess: bool = True,
    **loading: Unpack[WeightOptions],
) -> Exported:
    """Write a model for sentence-transformers, ONNX Runtime or OpenVINO, also in int8.

    int8 is measured against float32 before anything is written.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder of a model, or its name on the Hugging Face hub.
        output (`str` or `os.PathLike`): Folder to write.
        to (`str`): Form to write, where int8 is the faster of onnx-int8 and openvino-int8.
        texts (`str` or `os.PathLike`, *optional*): For int8, a file of texts: a line each, or csv, tsv, json, jsonl
            or parquet; the first 1,000 are encoded.
        data_dir (`str` or `os.PathLike`, *optional*): For int8, SentEval's downstream folder, to compare STS scores.
        calibrate (`str` or `os.PathLike`, *optional*): For int8, a file of texts like yours, of which the first 300
            give the ranges of activations. The default is texts of `texts`.
        max_loss (`float`, *optional*, defaults to `0.5`): For int8, the largest loss: points of the STS average or,
            without `data_dir`, 100 * (1 - mean cosine).
        allow_slow (`bool`, *optional*, defaults to `False`): Write int8 even if it is not 1.2 times as fast as
            float32.
        instructions (`str`, *optional*): Processor instructions to export int8 for. The default is those of this
            processor.
        overwrite (`bool`, *optional*, defaults to `False`): Replace `output` if it exists.
        postprocess (`bool`, *optional*, defaults to `True`): Apply the whitening or flow saved beside the model.
        **loading (`WeightOptions`): How the model is loaded; on the CPU, unless `device` says otherwise.

    Returns:
        `Exported`: Where the model is, and what int8 loses and gains.

    Raises:
        ImportError: If the extra of the runtime is not installed.
        ValueError: If options do not fit `to`, the form cannot express the model, or int8 loses too much or is slow.

    Examples:
        >>> from sentence_transformers import SentenceTransformer
        >>> from simcse_hf import export
        >>> print(export("outputs/my-model", "outputs/exported", to="sentence-transformers"))
        outputs/exported: embeddings of pooler 'avg'
        >>> SentenceTransformer("outputs/exported", device="cpu").encode("The chef cooked the soup.").shape
        (64,)
    """
    # 1. Refuse options that do not fit together.
    of_int8 = {
        "texts": texts,
        "data_dir": data_dir,
        "calibrate": calibrate,
        "max_loss": max_loss != 0.5,
        "allow_slow": allow_slow,
        "instructions": instructions,
    }
    unused = [name for name, value in of_int8.items() if value]
    if to not in INT8_EXPORTS and unused:
        raise ValueError(f"{', '.join(unused)}: only for exports to {', '.join(INT8_EXPORTS)}")
    if to in INT8_EXPORTS and texts is None and data_dir is None:
        raise ValueError(f"an export to {to} measures what is lost: give texts, data_dir or both")

    # 2. Export the model.
    options: ModelOptions = {**loading}
    if not postprocess:
        options["postprocess"] = False
    if not isinstance(model, SimCSE):
        options.setdefault("device", "cpu")
    source = model.name_or_path if isinstance(model, SimCSE) else model
    measured: Form = {}
    with output_folder(output, overwrite, "config.json", [source]) as new:
        loaded = load_model(model, **options)
        if to in INT8_EXPORTS:
            path, measured = export_int8(
                loaded,
                new,
                to,
                Checks(texts, data_dir, calibrate),
                max_loss=max_loss,
                allow_slow=allow_slow,
                instructions=instructions,
            )
        else:
            path = EXPORTS[to](loaded, new)
    return Exported(Path(output).expanduser() / path.relative_to(new), to, loaded.pooler_type, measured)
