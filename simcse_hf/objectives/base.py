"""The interface of an objective, and the registry that maps names to objectives."""

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig


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
            sentences than the widest row is filled up with zeros. If the objective limits `embedded_columns`, there
            are only those.
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


class Objective(nn.Module):
    """Base class of objectives: embeddings in, a loss out.

    A new objective is a subclass with a `forward` and a name from [`register`]. The keyword arguments of its
    constructor after `dim` are its options, which `objective_options` of a run sets. An argument with the name of a
    model setting (`temperature`, `similarity`, `hard_negative_weight`) receives that setting.

    The parameters and buffers of an objective are trained with the model and saved beside it in a file of their own
    (`_objective.safetensors`). `AutoModel` does not load them.

    The class attributes describe the objective to the rest of the package:

    - `summary` completes the sentence "This model was trained with ..." of a model card.
    - `papers` lists keys of `simcse_hf.publishing.card_training`. The first key is the paper of the method itself.
    - `defaults` maps names of training-script arguments to the paper's values, such as
      `{"pooler_type": "avg", "learning_rate": 2e-5}`. The scripts use them where neither the command line nor the
      YAML file sets the argument, and log which ones they used. They override the script's own defaults. Options of
      the objective do not belong here: their defaults stand in the constructor.
    - `supervised_defaults` replaces some of these values in supervised runs, where the paper has two kinds of runs.
    - `supports_gradcache` says whether the loss can be computed from all embeddings of a batch at once. Set it to
      `False` if `forward` uses `batch.model` or `batch.hidden_states`.
    - `encoders` is the number of independent encoders. With 2, the first encodes column 0 and the second the rest.
    - `num_views` is the number of columns that the collator makes of a single sentence: 2 views, or 1 without views.
    - `rows` says what the training rows are made of: `"texts"`, `"nli"` (premises with labelled hypotheses),
      `"spans"` (of documents) or `"scored_pairs"` (two sentences and a score).
    - `view` is the default view of single sentences, and `view_rate` its default rate, if that differs from the
      view's own.
    - `embedded_columns` are the columns of a row that the model embeds, by default all. The objective reads the tokens
      of the others from `inputs`.
    - `contrasts_rows` says whether the loss of a row depends on the other rows of its batch.
    - `shares_encoder_weights` says whether modules of the objective hold weights of the encoder. FSDP cannot shard
      such a model.
    - `needs_hidden_states` and `needs_text_ids` ask for `EncodedBatch.hidden_states` and for `inputs["text_ids"]`. An
      instance may set the latter.

    Args:
        dim (`int`): Embedding size.
    """

    summary: ClassVar[str] = ""
    papers: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    supervised_defaults: ClassVar[dict[str, Any]] = {}
    supports_gradcache: bool = True
    encoders: int = 1
    num_views: int = 2
    rows: ClassVar[str] = "texts"
    view: ClassVar[str] = "identity"
    view_rate: ClassVar[float | None] = None
    embedded_columns: ClassVar[slice] = slice(None)
    contrasts_rows: ClassVar[bool] = True
    shares_encoder_weights: ClassVar[bool] = False
    needs_hidden_states: bool = False
    needs_text_ids: bool = False

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    @property
    def name(self) -> str:
        """The name that the class is registered under, or the name of the class."""
        return next((name for name, cls in OBJECTIVES.items() if cls is type(self)), type(self).__name__)

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


def check_weight(name: str, value: float) -> None:
    """Raise a `ValueError` that names the option unless the weight of a loss is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be finite and 0 or more, got {value}")


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
    if OBJECTIVES.setdefault(name, objective) is not objective:
        raise ValueError(
            f"objective {name!r} is already registered: {OBJECTIVES[name].__name__}. Choose another name for "
            f"{objective.__name__}"
        )


def objective_class(name: str) -> type[Objective]:
    """Look up the class of a registered objective.

    Args:
        name (`str`): The name that it was registered under.

    Returns:
        `type[Objective]`: The class.

    Raises:
        ValueError: If no objective has this name.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {name!r}")
    return OBJECTIVES[name]


def make_objective(name: str, dim: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Objective:
    """Build an objective.

    Args:
        name (`str`): The name that it was registered under.
        dim (`int`): Embedding size.
        settings (`Mapping[str, Any]`): Settings of the model. The constructor receives those that it has an argument
            for.
        options (`Mapping[str, Any]`): Options of the objective. They override the settings.

    Returns:
        `Objective`: The objective.

    Raises:
        ValueError: If the name or an option is unknown, or if a value is not valid.
    """
    cls = objective_class(name)
    arguments = [argument for argument in inspect.signature(cls).parameters if argument != "dim"]
    unknown = sorted(set(options) - set(arguments))
    if unknown:
        known = ", ".join(arguments) or "none"
        raise ValueError(f"objective {name!r} has no option {', '.join(unknown)}; its options are: {known}")
    return cls(dim, **{argument: settings[argument] for argument in arguments if argument in settings} | dict(options))
