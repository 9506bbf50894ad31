"""The interface of an objective, and the registry that maps names to objectives."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

logger = logging.get_logger(__name__)

#: The default temperature of each similarity. SimCSE, Table D.1: 0.05 for the cosine; "N/A" is a dot product as it is.
DEFAULT_TEMPERATURES = {"cosine": 0.05, "dot": 1.0}
SIMILARITIES = tuple(DEFAULT_TEMPERATURES)
#: What a batch may hold for the objective beside token ids and masks; see [`EncodedBatch`].
ROW_INPUTS = ("relations", "text_ids", "scores", "labels", "teacher", "guide", "dataset")


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
            `(batch, num_sentences - 1)` (how a sentence after the first relates to it: 0 entailment, 1 neutral,
            2 contradiction, -100 if the row has fewer sentences), `text_ids` of shape `(batch, num_sentences)`, equal
            for equal texts, `scores` of pairs and `labels` of classes, of shape `(batch,)`, `dataset`, numbers on the
            host that say which data set of several the rows come from, and `teacher` and `guide`, the unit vectors of
            frozen models, of shape `(batch, num_sentences, dim of the frozen models)`.
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
    model setting, such as `temperature`, receives that setting, if it is not `None`.

    The parameters and buffers of an objective are trained with the model and saved beside it in a file of their own
    (`_objective.safetensors`). `AutoModel` does not load them.

    The class attributes describe the objective to the rest of the package:

    - `summary` completes the sentence "This model was trained with ..." of a model card.
    - `papers` lists entries of `publishing/papers.bib`. The first one is the paper of the method itself.
    - `defaults` maps names of training-script arguments to the paper's values, such as
      `{"pooler_type": "avg", "learning_rate": 2e-5}`. The scripts use them where neither the command line nor the
      YAML file sets the argument, and log which ones they used. They override the script's own defaults. `similarity`
      is also the default of the constructor. The defaults of other options stand in the constructor.
    - `supports_gradcache` says whether the loss can be computed from all embeddings of a batch at once. Set it to
      `False` if `forward` uses `batch.model` or `batch.hidden_states`.
    - `encoders` is the number of independent encoders. With 2, the first encodes column 0 and the second the rest.
    - `num_views` is the number of columns that the collator makes of a single sentence: 2 views, or 1 without views.
    - `rows` says what the training rows are made of: `"texts"`, `"nli"` (premises with labelled hypotheses),
      `"spans"` (of documents), `"scored_pairs"` (two sentences and a score) or `"classes"` (texts with a class label,
      or anchors with a list of positives).
    - `view` is the default view of single sentences with its rate, `None` for the view's own.
    - `reconstructs` says that column 0 is the target of a reconstruction: the model embeds the other columns only, and
      the loss of a row does not depend on the other rows.
    - `vectors` says which vectors of frozen models `forward` reads, where a run has them: `"teacher"` or `"guide"`.
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
    vectors: tuple[str, ...] = ()
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
    def options(cls) -> dict[str, Any]:
        """Return the options with their defaults. Settings of the model that the constructor takes are among them."""
        parameters = inspect.signature(cls).parameters.values()
        return {parameter.name: parameter.default for parameter in parameters if parameter.name != "dim"}

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


def comparable(embeddings: torch.Tensor, similarity: str) -> torch.Tensor:
    """Return embeddings whose dot product is the similarity, `"cosine"` or `"dot"`, in full precision."""
    embeddings = as_full_precision(embeddings)
    return F.normalize(embeddings, dim=-1) if similarity == "cosine" else embeddings


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


def named_losses(loss: torch.Tensor | dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the named parts of what an objective returned; a single loss is called `loss`."""
    return loss if isinstance(loss, dict) else {"loss": loss}


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


def find_objective(name: str) -> type[Objective] | None:
    """Return the class of an objective by its name, or `None` if it is not registered or not a sum of such."""
    if name in OBJECTIVES or not {"+", ":"} & set(name):
        return OBJECTIVES.get(name)
    return _sum_of(name) if all(term.partition(":")[0] in OBJECTIVES for term in name.split("+")) else None


def objective_class(name: str) -> type[Objective]:
    """Look up the class of an objective.

    Args:
        name (`str`): The name that it was registered under, or a sum of such names with their weights (see [`Sum`]).

    Returns:
        `type[Objective]`: The class.

    Raises:
        ValueError: If no objective has this name, or the parts of a sum do not fit together.
    """
    found = find_objective(name)
    if found is None:
        raise ValueError(
            f"objective must be one of {', '.join(OBJECTIVES)}, or a sum such as simcse+barlow_twins:0.1, got {name!r}"
        )
    return found


def make_objective(name: str, dim: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Objective:
    """Build an objective.

    Args:
        name (`str`): See [`objective_class`].
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
    arguments = cls.options()
    unknown = ", ".join(sorted(set(options) - set(arguments)))
    known = ", ".join(arguments) or "none"
    require(not unknown, f"objective {name!r} has no option {unknown}; its options are: {known}")
    given = {argument: settings[argument] for argument in arguments if settings.get(argument) is not None}
    return cls(dim, **given | dict(options))


class CombinedObjective(Objective):
    """Base class of objectives that are made of several, its `parts`, which read the same batches."""

    parts: nn.ModuleDict | nn.ModuleList

    @property
    def name(self) -> str:
        """The names of the parts."""
        return ", ".join(dict.fromkeys(part.name for part in self.objectives))

    @property
    def objectives(self) -> list[Objective]:
        """The parts, in their order."""
        parts = self.parts.values() if isinstance(self.parts, nn.ModuleDict) else self.parts
        return cast(list[Objective], list(parts))

    def _follow_parts(self) -> None:
        combined: dict[str, Callable[..., Any]] = {
            "encoders": max,
            "num_views": max,
            "needs_hidden_states": any,
            "needs_text_ids": any,
            "supports_gradcache": all,
        }
        for attribute, combine in combined.items():
            setattr(self, attribute, combine(getattr(part, attribute) for part in self.objectives))

    def attach(self, model: Encoder) -> None:
        """Attach every part; see [`Objective.attach`]."""
        for part in self.objectives:
            part.attach(model)
        self._follow_parts()

    def check(self, rows: TrainingRows) -> None:
        """Check the training data as every part does; see [`Objective.check`]."""
        for part in self.objectives:
            part.check(rows)

    def mlm_columns(self, num_sentences: int) -> list[int] | None:
        """Mask the columns that a part masks; see [`Objective.mlm_columns`]."""
        columns = [part.mlm_columns(num_sentences) for part in self.objectives]
        return next((x for x in columns if x is not None), None)


class Sum(CombinedObjective):
    """A weighted sum of objectives on the same embeddings: `simcse+barlow_twins:0.1`, where 1 is left out.

    [`objective_class`] makes a subclass for each such name. What the parts want decides the attributes of the sum: it
    has as many views and encoders as the most demanding part, and works with GradCache if all parts do. The defaults
    and the view are those of the first part; a default similarity is that of the first part that has one.

    Args:
        dim (`int`): Embedding size.
        options (`Any`): An option goes to every part that has it, and `vicreg.projector_dim` to the part `vicreg`.

    Raises:
        ValueError: If a part refuses an option.
    """

    weights: ClassVar[dict[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle names the class by the objective, because no module holds a class that is made when it is needed.
        return _empty, (self.name,), self.__dict__

    def __init__(self, dim: int, **options: Any):
        super().__init__(dim)
        self.parts = nn.ModuleDict()
        for name in self.weights:
            shared = {option: value for option, value in options.items() if option in OBJECTIVES[name].options()}
            own = {k.removeprefix(f"{name}."): x for k, x in options.items() if k.startswith(f"{name}.")}
            self.parts[name] = make_objective(name, dim, {}, shared | own)
        self._follow_parts()

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the options of the parts, under their own names and after the name of their part."""
        options = {name: OBJECTIVES[name].options() for name in cls.weights}
        shared = {option: default for own in options.values() for option, default in own.items()}
        return shared | {f"{name}.{option}": x for name, own in options.items() for option, x in own.items()}

    def forward(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """Compute the weighted loss of every part.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `dict[str, torch.Tensor]`: `simcse_loss` for the part `simcse`, or `esimcse_info_nce` and the like if the
                part has named parts of its own.
        """
        losses: dict[str, torch.Tensor] = {}
        for (name, weight), part in zip(self.weights.items(), self.objectives, strict=True):
            losses |= {f"{name}_{what}": weight * value for what, value in named_losses(part(batch)).items()}
        return losses


@cache
def _sum_of(name: str) -> type[Sum]:
    """Make the class of a sum such as `simcse+barlow_twins:0.1`."""
    weights: dict[str, float] = {}
    for term in name.split("+"):
        part, colon, word = term.partition(":")
        try:
            weight = float(word) if colon else 1.0
        except ValueError:
            weight = math.nan
        require(0 < weight < math.inf, f"objective {name!r}: the weight of {part} must be above 0, got {word!r}")
        require(part not in weights, f"objective {name!r} names {part} twice")
        weights[part] = weight
    classes = [OBJECTIVES[part] for part in weights]
    for attribute, what in {"rows": "other training rows", "reconstructs": "another column of embeddings"}.items():
        values = [getattr(cls, attribute) for cls in classes]
        other = next((part for part, value in zip(weights, values, strict=True) if value != values[0]), None)
        require(
            other is None,
            f"objective {name!r}: {other} reads {what} than {next(iter(weights))}, so they cannot be summed",
        )
    summaries = [f"{cls.summary} (weight {weights[part]:g})" for part, cls in zip(weights, classes, strict=True)]
    # Of the other parts' defaults only this one counts: it belongs to the loss of the part that reads it.
    similarity = {name: x for cls in reversed(classes) for name, x in cls.defaults.items() if name == "similarity"}
    attributes = {
        "name": name,
        "weights": weights,
        "summary": "the sum of " + "; and ".join(summaries),
        "papers": tuple(dict.fromkeys(paper for cls in classes for paper in cls.papers)),
        "defaults": similarity | classes[0].defaults,
        "vectors": tuple(dict.fromkeys(kind for cls in classes for kind in cls.vectors)),
        "supports_gradcache": all(cls.supports_gradcache for cls in classes),
        **{attribute: max(getattr(cls, attribute) for cls in classes) for attribute in ("encoders", "num_views")},
        **{attribute: getattr(classes[0], attribute) for attribute in ("rows", "view", "reconstructs")},
        "__doc__": Sum.__doc__,
    }
    return type("Sum", (Sum,), attributes)


def _empty(name: str) -> Objective:
    cls = objective_class(name)
    return cls.__new__(cls)
