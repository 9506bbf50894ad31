"""Digests of a model's weights: they stand in a file beside the weights, so that a comparison loads no model."""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..postprocessing.transform import FOLDER as TRANSFORM_FOLDER
from ..postprocessing.transform import VectorTransform
from ..runtime.files import digest, read_json_object, write_json
from ..runtime.identity import digest_weights
from .parts import ContrastiveBase
from .pooling import HEAD_FOLDER, POOLER_FOLDERS, WEIGHTS, StateDict
from .sentence_transformers import DENSE_FOLDER

#: The file with the digests.
RECORD = "weights.json"
#: The files of weights that an embedding goes through.
_FILES = (
    "model*.safetensors",
    f"{HEAD_FOLDER}/{WEIGHTS}",
    f"{DENSE_FOLDER}/*/{WEIGHTS}",
    *(f"{folder}/{WEIGHTS}" for folder in POOLER_FOLDERS.values()),
    f"{TRANSFORM_FOLDER}/{WEIGHTS}",
)


@dataclass(frozen=True)
class WeightDigests:
    """Digests of the weights of a model.

    Args:
        weights (`str`): That of all weights that an embedding goes through, as in `Identity`.
        encoder (`str`): That of the encoder alone, by which the record of a run knows its model.
    """

    weights: str
    encoder: str

    @classmethod
    def of(
        cls,
        model: ContrastiveBase,
        weights: StateDict,
        transform: VectorTransform | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "WeightDigests":
        """Compute the digests that a model has when it is saved and loaded for inference.

        Args:
            model (`ContrastiveModel`): The model, in training or not.
            weights (`dict[str, torch.Tensor]`): Its weights, with an adapter merged.
            transform (`VectorTransform`, *optional*): The whitening or flow that is saved with it.
            dtype (`torch.dtype`, *optional*, defaults to `torch.float32`): The data type that it is loaded in.

        Returns:
            `WeightDigests`: The digests.
        """
        prefix = f"{model.base_model_prefix}."
        head = f"{prefix}pooler." if model.has_own_pooler else "sentence_head."
        layers = (prefix, "sentence_head.", "dense_layers.", *(f"{name}." for name in POOLER_FOLDERS))
        buffers = dict(model.named_buffers())
        tied = getattr(model, "all_tied_weights_keys", {})  # which are saved once
        used = []
        for name, x in sorted(weights.items()):
            is_unused_head = name.startswith(head) and model.settings.inference_pooler != "cls"
            if name.startswith(layers) and not is_unused_head and name not in buffers and name not in tied:
                used.append((name, x.to(dtype)))
        if transform is not None:
            used += transform.state_dict().items()
        return cls(digest_weights(used, reads_all=True), digest_encoder(model, weights))

    @classmethod
    def read(cls, folder: Path) -> "WeightDigests | None":
        """Return the digests in a folder; `None` without them, or if a file of weights is not as it was then."""
        path = folder / RECORD
        if not path.exists():
            return None
        saved = read_json_object(path, "files", "weights", "encoder", advice="Remove the file.")
        if saved.pop("files") != _digests_of_files(folder):
            return None
        return cls(saved["weights"], saved["encoder"])

    def write(self, folder: Path) -> None:
        """Write the digests into a folder in which every file of weights is already written."""
        write_json(folder / RECORD, asdict(self) | {"files": _digests_of_files(folder)})


def digest_encoder(model: ContrastiveBase, weights: StateDict) -> str:
    """Return a digest of the weights of the encoder alone, of which large ones are read in part."""
    prefix = f"{model.base_model_prefix}."
    own = [(name, x) for name, x in weights.items() if name.startswith(prefix) and ".pooler." not in name]
    return digest_weights(sorted(own))


def _digests_of_files(folder: Path) -> dict[str, str]:
    files = {}
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            files[path.relative_to(folder).as_posix()] = digest(path)
    return files
