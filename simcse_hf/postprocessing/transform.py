"""Transforms of embeddings and their files beside a model, in the folder `postprocessing`; whitening is one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..runtime.errors import DataError, ModelError, check_finite, check_values
from ..runtime.files import StrPath, read_json, write_atomically, write_json
from ..runtime.loading import MODULES, HubArguments, find_file

#: The classes of transforms by their names.
TRANSFORMS: dict[str, type["VectorTransform"]] = {}

FOLDER = "postprocessing"
TRANSFORM_FILE = "postprocessing.json"
WEIGHTS = "model.safetensors"

#: Embeddings are float32. Rounding alone gives a constant coordinate of size x a standard deviation of about 6e-8 x.
#: A direction that varies less than 16 times that is noise, and dividing by its deviation would blow the noise up.
NOISE = 1e-6


class VectorTransform(nn.Module, ABC):
    """A map of embeddings that was fitted on unlabelled ones. Its state dict is what is saved.

    Attributes:
        method (`str`): The name by which it is chosen and saved.
        input_dim (`int`): Size of the encoder's embeddings.
        output_dim (`int`): Size of the transformed embeddings.
        options (`dict[str, int]`): The keyword arguments that create a transform of this shape.
    """

    method: str
    input_dim: int
    output_dim: int
    options: dict[str, int]

    def __init_subclass__(cls) -> None:
        TRANSFORMS[cls.method] = cls

    @abstractmethod
    def _apply_to(self, embeddings: Tensor) -> Tensor:
        """Transform embeddings of shape `(n, input_dim)` that have the transform's own dtype."""

    @torch.no_grad()
    def transform(self, embeddings: Tensor) -> Tensor:
        """Transform embeddings.

        Args:
            embeddings (`torch.Tensor`): Pooled embeddings of shape `(n, input_dim)`, not normalized.

        Returns:
            `torch.Tensor`: Float32 embeddings of shape `(n, output_dim)`, not normalized.

        Raises:
            ModelError: If the embeddings have another shape.
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.input_dim:
            shape = tuple(embeddings.shape)
            raise ModelError(f"a {self.method} fitted on embeddings of {self.input_dim} dimensions got shape {shape}")
        weight = next(iter(self.state_dict().values()))
        transformed = self._apply_to(embeddings.to(weight.device, weight.dtype))
        return transformed.float().to(embeddings.device)


def check_embeddings(embeddings: Tensor) -> None:
    """Raise a `ValueError` unless there is at least one embedding and all values are finite."""
    if embeddings.dim() != 2 or not len(embeddings):
        raise DataError(f"embeddings to fit on must have shape (n, dim), got {tuple(embeddings.shape)}")
    check_finite(embeddings, lambda number: f"sentence {number + 1} of those to fit on")


@dataclass(frozen=True)
class Fit:
    """The record of what a transform was fitted on; saved with it.

    Args:
        pooler (`str`): The pooler whose embeddings the transform takes.
        max_length (`int`, *optional*): Number of tokens that a text was truncated to. `None` for no limit.
        file (`str`): Name of the file of sentences.
        columns (`list[str]`): The columns of that file.
        sentences (`int`): Number of sentences.
        settings (`dict`): Arguments of the method.
        log_likelihood (`list[float]`, *optional*): For a flow, the mean log-likelihood of the sentences in nats per
            dimension, before training and after each epoch.
        probe (`list[float]`, *optional*): The embedding of a sentence by the model, by which other weights are known.
    """

    pooler: str
    max_length: int | None
    file: str
    columns: list[str]
    sentences: int
    settings: dict[str, Any]
    log_likelihood: list[float] | None = None
    probe: list[float] | None = None


def save_transform(directory: StrPath, transform: VectorTransform, fit: Fit) -> None:
    """Write a transform into a model directory, replacing an earlier one.

    The folder `postprocessing` holds `postprocessing.json` (method, shape and [`Fit`]) and `model.safetensors`. If the
    directory has sentence-transformers' `modules.json`, the folder becomes one of its modules, before a `Normalize`. A
    whitening becomes a `Dense` without activation, which gives the same embeddings. A flow is named by our class:
    sentence-transformers refuses to load it, and does not silently give the embeddings without the flow.

    Args:
        directory (`str` or `os.PathLike`): The model directory.
        transform (`VectorTransform`): The transform.
        fit (`Fit`): What it was fitted on.
    """
    directory = Path(directory)
    description = {
        "method": transform.method,
        "options": transform.options,
        "input_dim": transform.input_dim,
        "output_dim": transform.output_dim,
        "fit": asdict(fit),
    }
    tensors = {name: tensor.contiguous() for name, tensor in transform.state_dict().items()}
    module_type = f"{type(transform).__module__}.{type(transform).__name__}"
    with write_atomically(directory / FOLDER) as folder:
        folder.mkdir()
        write_json(folder / TRANSFORM_FILE, description)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        if transform.method == "whitening":
            module_type = "sentence_transformers.models.Dense"
            dense = {
                "in_features": transform.input_dim,
                "out_features": transform.output_dim,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
            write_json(folder / "config.json", dense)
    if (directory / MODULES).exists():
        modules = [module for module in read_json(directory / MODULES, kind=list) if module["path"] != FOLDER]
        types = [module["type"].rpartition(".")[2] for module in modules]
        place = types.index("Normalize") if "Normalize" in types else len(types)
        modules.insert(place, {"path": FOLDER, "type": module_type})
        for number, module in enumerate(modules):
            module |= {"idx": number, "name": str(number)}
        write_json(directory / MODULES, modules)


def find_transform(name_or_path: StrPath, hub: HubArguments) -> tuple[VectorTransform | None, Fit | None]:
    """Load the transform saved beside a model.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of the model.
        hub (`HubArguments`): Where the files are.

    Returns:
        `tuple[VectorTransform, Fit]`: The transform and what it was fitted on; twice `None` if there is none.

    Raises:
        ModelError: If a file is damaged or missing. The message names it.
    """
    path = find_file(name_or_path, f"{FOLDER}/{TRANSFORM_FILE}", **hub)
    if path is None:
        return None, None
    description = read_json(path, "method", "options", "fit", advice="Fit the transform again.")
    method = description["method"]
    if str(method) not in TRANSFORMS:
        raise ModelError(f"{path}: unknown method {method!r}; known are {', '.join(TRANSFORMS)}. Fit again.")
    weights = find_file(name_or_path, f"{FOLDER}/{WEIGHTS}", **hub)
    if weights is None:
        raise ModelError(f"{Path(path).with_name(WEIGHTS)} is missing: fit the transform again.")
    where = path
    try:
        fit = Fit(**description["fit"])
        with torch.device("meta"):  # without memory, whatever the sizes are: the weights come from the file
            transform = TRANSFORMS[method](**description["options"])
        where = weights
        transform.load_state_dict(load_file(weights), assign=True)
        transform.requires_grad_(False).eval()
        transformed = transform.transform(torch.zeros(1, transform.input_dim))
        if not transformed.isfinite().all():
            raise ModelError("it holds values that are not finite")
    except Exception as error:  # its type depends on what is wrong, and on the library that reads the file
        reason = " ".join(str(error).split())
        raise ModelError(f"{where}: damaged ({type(error).__name__}: {reason}); fit the transform again.") from error
    return transform, fit


class Whitening(VectorTransform):
    """The map y = (x - mean) W as one float64 linear layer, named like sentence-transformers' `Dense`.

    Args:
        input_dim (`int`): Size of the encoder's embeddings.
        output_dim (`int`): Number of leading principal directions to keep.
    """

    method = "whitening"

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.options = {"input_dim": input_dim, "output_dim": output_dim}
        self.linear = nn.Linear(input_dim, output_dim, dtype=torch.float64).requires_grad_(False)

    def _apply_to(self, embeddings: Tensor) -> Tensor:
        return self.linear(embeddings)


def fit_whitening(parts: Iterable[Tensor], dim: int | None = None) -> Whitening:
    """Fit a whitening (Su et al. 2021, arXiv:2103.15316, eq. 5 to 9; Huang et al. 2021, arXiv:2104.01767).

    With the covariance U diag(s) U^T and s in descending order, W = U diag(1 / sqrt(s)). With `dim`, only the first
    columns of W are kept, which are the directions of largest variance. The covariance of the transformed embeddings
    is the identity.

    Args:
        parts (`Iterable[torch.Tensor]`): Embeddings of shape `(n, input_dim)`, one part after the other. Only one part
            is in memory at a time.
        dim (`int`, *optional*): Number of columns of W to keep. The default is all, or all but one: the output of a
            layer normalization lies in a hyperplane, and so does what is pooled from one layer alone (`avg`,
            `cls_before_pooler`).

    Returns:
        `Whitening`: The transform.

    Raises:
        DataError: If there are no embeddings, `dim` exceeds their size, or they vary in fewer directions (beyond the
            rounding of float32) than are to be kept, because there are too few sentences or too many equal ones.

    Examples:
        >>> import torch
        >>> from simcse_hf.postprocessing import fit_whitening
        >>> embeddings = torch.randn(100, 8) * torch.arange(1, 9) + 5
        >>> white = fit_whitening([embeddings], dim=2).transform(embeddings)
        >>> white.T.cov(correction=0).round(decimals=2).abs()
        tensor([[1., 0.],
                [0., 1.]])
    """
    # 1. Mean and covariance in float64. The parts are joined by the pairwise update of Chan, Golub and LeVeque (1979),
    # which loses no digits where the mean is large compared with the deviations, as it is for embeddings of encoders.
    count = 0
    mean = scatter = torch.zeros(())
    for embeddings in parts:
        check_embeddings(embeddings)
        part = embeddings.double()
        part_mean = part.mean(dim=0)
        centred = part - part_mean
        step = part_mean - mean
        total = count + len(part)
        scatter = scatter + (centred.T @ centred + torch.outer(step, step) * (count * len(part) / total))
        mean = mean + step * (len(part) / total)
        count = total
    if count == 0:
        raise DataError("there are no embeddings to fit a whitening on: give sentences")
    covariance = scatter / count

    # 2. How many directions are kept
    input_dim = len(mean)
    check_values(range(1, input_dim + 1), dim=dim)
    directions, variances, _ = torch.linalg.svd(covariance)
    largest = (mean.square() + covariance.diagonal()).max()
    is_above_noise = variances > NOISE**2 * largest
    rank = min(int(is_above_noise.sum()), count - 1)
    kept = dim or input_dim
    if dim is None and rank == input_dim - 1 < count - 1:  # a hyperplane
        kept = rank
    if kept > rank:
        raise DataError(
            f"a whitening to {kept} dimensions needs embeddings that vary in as many; these {count} vary in {rank}: "
            f"give at least {kept + 1} different sentences, better ten times as many, or a dim of at most {rank}"
        )

    # 3. The map
    weight = (directions[:, :kept] / variances[:kept].sqrt()).T
    whitening = Whitening(input_dim, kept)
    whitening.linear.weight.copy_(weight)
    whitening.linear.bias.copy_(-weight @ mean)
    return whitening
