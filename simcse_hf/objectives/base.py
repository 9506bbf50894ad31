"""The interface of an objective, and the registry that maps names to objectives."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: The default temperature of each similarity. SimCSE, Table D.1: 0.05 for the cosine; "N/A" is a dot product as it is.
DEFAULT_TEMPERATURES = {"cosine": 0.05, "dot": 1.0}
SIMILARITIES = tuple(DEFAULT_TEMPERATURES)


class Encoder(Protocol):
    """What an objective may ask of the model that it trains.

    `simcse_hf.models.ContrastiveModel` satisfies this protocol. Objectives depend on the protocol and not on that
    class, so the model can import the objectives and not the other way round.
    """

    config: PreTrainedConfig
    #: The model's `ContrastiveSettings`.
    settings: Any
    name_or_path: str

    @property
    def base_model(self) -> nn.Module:
        """The stock encoder, without the head."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def contrastive_head(self) -> nn.Module:
        """The dense + tanh head of pooler `cls`."""

    def embed(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        lengths: np.ndarray | None = None,
    ) -> torch.Tensor:
        """Encode token ids of shape `(n, length)`, with `lengths` of shape `(n,)`, into embeddings `(n, dim)`."""

    def copy_encoder(self) -> Self:
        """Return an independent copy of the encoder, its head and its pooler."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the names and parameters of the model."""


class _MissingEncoder:
    """Stands for the model of a batch that was encoded elsewhere, and explains itself when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for these
            raise AttributeError(name)
        raise ValueError(
            f"the objective asks for batch.model.{name}, but this batch comes without a model, as under GradCache. "
            "Set supports_gradcache = False in the objective's class, and train without gradcache_chunk_size"
        )


@dataclass
class EncodedBatch:
    """A batch after the encoder pass: everything that an objective may read.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`, not normalized. Column 0 holds
            the anchors, column 1 the positives, further columns the other sentences of each row. A row with fewer
            sentences than the widest row is filled up with zeros. If the objective `reconstructs`, column 0 is
            missing.
        inputs (`Mapping[str, torch.Tensor]`): The batch as it went into the model: `input_ids` and `attention_mask` of
            shape `(batch, num_sentences, length)`, and, if the collator adds them, `relations` of shape
            `(batch, num_sentences - 1)`, `text_ids` of shape `(batch, num_sentences)` and `scores` of shape
            `(batch,)`.
        model (`Encoder`): For objectives that run the encoder themselves (`batch.model.embed`). GradCache gives no
            model: an objective that needs one sets `supports_gradcache = False`.
        hidden_states (`torch.Tensor`, *optional*): Last hidden states of shape `(batch, num_sentences, length, dim)`.
            They are present only if the objective sets `needs_hidden_states`.
        lengths (`np.ndarray`, *optional*): The number of tokens of each text, of shape `(batch, num_sentences)`, if
            the collator counted them. All padding is then on the right. An objective that selects by it instead of by
            `attention_mask` does not make the host wait for an accelerator.
    """

    embeddings: torch.Tensor
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    model: Encoder = cast(Encoder, _MissingEncoder())
    hidden_states: torch.Tensor | None = None
    lengths: np.ndarray | None = None

    @property
    def text_ids(self) -> torch.Tensor:
        """The integers `(batch, num_sentences)` that are equal for equal texts.

        Raises:
            ValueError: If the collator did not add them.
        """
        if "text_ids" not in self.inputs:
            raise ValueError(
                "the batch has no text_ids, by which equal texts are recognized: make the collator with "
                "ContrastiveCollator(tokenizer, add_text_ids=True)"
            )
        return self.inputs["text_ids"]


@dataclass
class TrainingRows:
    """The training data as [`Objective.check`] sees it.

    Args:
        num_sentences (`int`): Sentences in a row. A row of one sentence is its own positive.
        batch_size (`int`): Rows in a batch of one process.
        processes (`int`, *optional*, defaults to `1`): Number of processes.
        dataset (`Dataset`, *optional*): The rows, with the column `input_ids` and possibly `relations`.
    """

    num_sentences: int
    batch_size: int
    processes: int = 1
    dataset: Dataset | None = None

    @property
    def has_relations(self) -> bool:
        """Whether the rows say how each hypothesis relates to its premise."""
        return self.dataset is not None and "relations" in self.dataset.column_names

    @property
    def global_batch(self) -> int:
        """Rows in a batch of all processes."""
        return self.batch_size * self.processes


class Objective(nn.Module):
    """Base class of objectives: embeddings in, a loss out.

    A new objective is a subclass with a `forward` and a name from [`register`]. The keyword arguments of its
    constructor after `dim` are its options, which `objective_options` of a run sets. An argument with the name of a
    model setting (`temperature`, `similarity`, `hard_negative_weight`) receives that setting, if it is not `None`.

    The parameters and buffers of an objective are trained with the model and saved beside it in a file of their own
    (`_objective.safetensors`). `AutoModel` does not load them.

    The class attributes describe the objective to the rest of the package:

    - `summary` completes the sentence "This model was trained with ..." of a model card.
    - `papers` lists keys of `simcse_hf.publishing.card_training`. The first key is the paper of the method itself.
    - `defaults` maps names of training-script arguments to the paper's values, such as
      `{"pooler_type": "avg", "learning_rate": 2e-5}`. The scripts use them where neither the command line nor the
      YAML file sets the argument, and log which ones they used. They override the script's own defaults. `similarity`
      is also the default of the constructor. The defaults of other options stand in the constructor.
    - `supports_gradcache` says whether the loss can be computed from all embeddings of a batch at once. Set it to
      `False` if `forward` uses `batch.model` or `batch.hidden_states`.
    - `encoders` is the number of independent encoders. With 2, the first encodes column 0 and the second the rest.
    - `num_views` is the number of columns that the collator makes of a single sentence: 2 views, or 1 without views.
    - `rows` says what the training rows are made of: `"texts"`, `"nli"` (premises with labelled hypotheses),
      `"spans"` (of documents) or `"scored_pairs"` (two sentences and a score).
    - `view` is the default view of single sentences with its rate, `None` for the view's own.
    - `reconstructs` says that column 0 is the target of a reconstruction: the model embeds the other columns only, and
      the loss of a row does not depend on the other rows.
    - `needs_hidden_states` and `needs_text_ids` ask for `EncodedBatch.hidden_states` and for `inputs["text_ids"]`. An
      instance may set the latter.

    Args:
        dim (`int`): Embedding size.
    """

    summary: ClassVar[str] = ""
    papers: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    supports_gradcache: bool = True
    encoders: int = 1
    num_views: int = 2
    rows: ClassVar[str] = "texts"
    view: ClassVar[tuple[str, float | None]] = ("identity", None)
    reconstructs: ClassVar[bool] = False
    needs_hidden_states: bool = False
    needs_text_ids: bool = False

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    @property
    def name(self) -> str:
        """The name that the class is registered under, or the name of the class."""
        return next((name for name, cls in OBJECTIVES.items() if cls is type(self)), type(self).__name__)

    @classmethod
    def default_similarity(cls) -> str:
        """Return the similarity that the objective uses where none is set."""
        return cls.defaults.get("similarity", "cosine")

    def attach(self, model: Encoder) -> None:
        """Take what the objective needs of the model, such as a momentum copy of the encoder.

        The model calls it once, before training.

        Args:
            model (`Encoder`): The model to be trained.
        """

    def check(self, rows: TrainingRows) -> None:
        """Check that the objective can learn from the training data. The Trainer calls it before the first step.

        Args:
            rows (`TrainingRows`): The training data.

        Raises:
            ValueError: If the objective cannot use the rows or the batch size. The message says what to change.
        """

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Say where the auxiliary masked-LM loss is taken, for models with `do_mlm`.

        Args:
            num_sentences (`int`): Sentences in a row.

        Returns:
            `list[int]` or `None`: Columns that are masked before the objective's own encoder pass, whose hidden states
                then give the masked-LM loss. The objective sets `needs_hidden_states` in that case. `None` stands for
                a second pass over all columns with their tokens masked, as in SimCSE.
        """
        return None

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        """Compute the loss.

        In training mode this is the loss of one process. It is scaled so that its mean over the processes, and so the
        gradient that DistributedDataParallel averages, is that of the whole batch. Rows of other processes come from
        the functions of `simcse_hf.ops.distributed`. In evaluation mode each process uses its own rows only.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `torch.Tensor` or `dict[str, torch.Tensor]`: A scalar in float32 or wider, or named scalars whose sum is
                the loss.
        """
        raise NotImplementedError


def as_full_precision(embeddings: torch.Tensor) -> torch.Tensor:
    """Cast half precision to float32: at temperature 0.05 a bfloat16 logit is off by up to 0.03."""
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def require(condition: object, message: str) -> None:
    """Raise a ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "true or false": lambda value: isinstance(value, bool),
    "an integer above 0": lambda value: isinstance(value, int) and value >= 1,
    "a number above 0": lambda value: 0 < value < math.inf,
    "a number of 0 or more": lambda value: 0 <= value < math.inf,
    "a finite number": lambda value: math.isfinite(value),
}


def check_options(kind: str, **options: Any) -> None:
    """Check that options of an objective have values of some kind.

    Args:
        kind (`str`): What they must be: one of `_KINDS`.
        **options (`Any`): The options. `None` stands for an option that is not set.

    Raises:
        ValueError: If one is something else. The message names the option.
    """
    for name, value in options.items():
        is_number = isinstance(value, (int, float)) and isinstance(value, bool) == (kind == "true or false")
        require(value is None or (is_number and _KINDS[kind](value)), f"{name} must be {kind}, got {value!r}")


def check_similarity(similarity: str, temperature: float | None) -> tuple[str, float]:
    """Check a similarity and a temperature, and fill in the default temperature of the similarity.

    Args:
        similarity (`str`): `"cosine"` or `"dot"`.
        temperature (`float`, *optional*): The temperature, or `None` for `DEFAULT_TEMPERATURES[similarity]`.

    Returns:
        `tuple[str, float]`: The similarity and the temperature.

    Raises:
        ValueError: If the similarity is unknown, or the temperature is not a finite number above 0.
    """
    require(similarity in SIMILARITIES, f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
    if temperature is None:
        temperature = DEFAULT_TEMPERATURES[similarity]
        if similarity != "cosine":
            logger.info(f"The temperature is {temperature}, the default for similarity {similarity!r}.")
    check_options("a number above 0", temperature=temperature)
    return similarity, temperature


def check_rows(rows: TrainingRows, most: int, advice: str, alone: str = "") -> None:
    """Refuse training rows with relations or with too many sentences, and batches of a single row.

    Args:
        rows (`TrainingRows`): The training data.
        most (`int`): The most sentences of a row that the objective reads.
        advice (`str`): The rest of the message: why it reads no more, and what to give.
        alone (`str`, *optional*): The problem of a batch of one row. By default such batches are accepted.

    Raises:
        ValueError: If a row has relations or more sentences, or a batch is too small.
    """
    found = "relations" if rows.has_relations else f"{rows.num_sentences} sentences"
    fits = rows.num_sentences <= most and not rows.has_relations
    require(fits, f"the training data has rows with {found}, but {advice}")
    require(not alone or rows.global_batch > 1, f"{alone}: raise per_device_train_batch_size to at least 2")


def total_and_parts(
    loss: torch.Tensor | dict[str, torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor] | None]:
    """Split what an objective returned into the loss and its named parts.

    Args:
        loss (`torch.Tensor` or `dict[str, torch.Tensor]`): What [`Objective.forward`] returned.

    Returns:
        `tuple[torch.Tensor, dict[str, torch.Tensor] | None]`: The loss, and its parts if it has named ones.
    """
    if isinstance(loss, dict):
        return cast(torch.Tensor, sum(loss.values())), loss
    return loss, None


OBJECTIVES: dict[str, type[Objective]] = {}


def register(name: str, objective: type[Objective]) -> None:
    """Register an objective under the name that `--objective` and `objective=` take.

    Args:
        name (`str`): The name.
        objective (`type[Objective]`): The class.

    Raises:
        ValueError: If another class has the name.
    """
    known = OBJECTIVES.setdefault(name, objective)
    require(known is objective, f"objective {name!r} is already registered: {known.__name__}. Choose another name")


def objective_class(name: str) -> type[Objective]:
    """Look up the class of a registered objective.

    Args:
        name (`str`): The name that it was registered under.

    Returns:
        `type[Objective]`: The class.

    Raises:
        ValueError: If no objective has this name.
    """
    require(name in OBJECTIVES, f"objective must be one of {', '.join(OBJECTIVES)}, got {name!r}")
    return OBJECTIVES[name]


def make_objective(name: str, dim: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Objective:
    """Build an objective.

    Args:
        name (`str`): The name that it was registered under.
        dim (`int`): Embedding size.
        settings (`Mapping[str, Any]`): Settings of the model. The constructor receives those that it has an argument
            for and that are not `None`.
        options (`Mapping[str, Any]`): Options of the objective. They override the settings.

    Returns:
        `Objective`: The objective.

    Raises:
        ValueError: If the name or an option is unknown, or if a value is not valid.
    """
    cls = objective_class(name)
    arguments = [argument for argument in inspect.signature(cls).parameters if argument != "dim"]
    unknown = ", ".join(sorted(set(options) - set(arguments)))
    known = ", ".join(arguments) or "none"
    require(not unknown, f"objective {name!r} has no option {unknown}; its options are: {known}")
    given = {argument: settings[argument] for argument in arguments if settings.get(argument) is not None}
    return cls(dim, **given | dict(options))
