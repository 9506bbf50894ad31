"""What an objective is, and the names objectives go by."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig


class Encoder(Protocol):
    """What an objective may ask of the model that it trains.

    `simcse_hf.models.ContrastiveModel` satisfies it. Objectives depend on this protocol and not on that class, so that
    the model can import the objectives and not the other way round.
    """

    config: PreTrainedConfig
    #: The model's `ContrastiveSettings`.
    settings: Any
    name_or_path: str
    base_model: nn.Module

    @property
    def device(self) -> torch.device: ...

    def embed(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embeds token ids of shape (n, length); returns embeddings of shape (n, dim)."""

    def copy_encoder(self) -> Self:
        """Returns an independent copy of the encoder, its head and its pooler."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


@dataclass
class EncodedBatch:
    """A batch after the encoder: what an objective may read.

    Args:
        vectors: (batch, num_sentences, dim), not normalised: anchor, positive, then further sentences of the row.
            Zeros where a row has fewer sentences than the widest.
        inputs: the batch as it went into the model: `input_ids` and `attention_mask`, (batch, num_sentences, length),
            and what else the collator adds: `relations`, `text_ids`, (batch, num_sentences - 1) and (batch,
            num_sentences).
        model: for objectives that make passes of their own through the encoder (`model.embed`).
        hidden_states: (batch, num_sentences, length, dim), the last layer's; None unless the objective's
            `needs_hidden_states` is set.
    """

    vectors: torch.Tensor
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    model: Encoder | None = None
    hidden_states: torch.Tensor | None = None


@dataclass
class TrainingRows:
    """What a run is about to feed an objective, for its `check`.

    Args:
        num_sentences: of a row: 1 is a sentence that becomes its own positive.
        batch_size: rows a process takes a step.
        processes: how many there are.
        dataset: the rows: `input_ids`, and `relations` where there are any.
    """

    num_sentences: int
    batch_size: int
    processes: int = 1
    dataset: Dataset | None = None

    @property
    def has_relations(self) -> bool:
        return self.dataset is not None and "relations" in self.dataset.column_names


class Objective(nn.Module):
    """Sentence vectors → a loss. A subclass is all that a new objective takes; [`register`] gives it its name.

    Keyword arguments of a subclass's constructor (after `dim`) are its options, with their defaults:
    `objective_options` of a run sets them. Those named like a setting of the model (`temperature`, `similarity`,
    `hard_negative_weight`) receive it.

    Parameters and buffers of an objective are trained and saved with the model, in a file of their own
    (`objective.safetensors`), and are no part of what `AutoModel` loads.

    Args:
        dim: of the sentence vectors.
    """

    #: Independent encoders: with 2, the first encodes column 0 and the second the others.
    encoders: int = 1
    #: Rows of the encoder pass that a single sentence becomes: 2 views, or 1 for objectives without views.
    num_views: int = 2
    #: What its training rows are made of: "texts", "nli" (premises with labelled hypotheses) or "spans" of documents.
    rows: str = "texts"
    #: The view of single sentences where none is asked for.
    view: str = "identity"
    #: Whether `EncodedBatch.hidden_states` is read.
    needs_hidden_states: bool = False
    #: Whether `inputs["text_ids"]` is read; an instance may set it.
    needs_text_ids: bool = False

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def attach(self, model: Encoder) -> None:
        """Called once, before training: takes what it needs of the model (a momentum copy of the encoder, say)."""

    def check(self, rows: TrainingRows) -> None:
        """Called before the first step.

        Raises:
            ValueError: rows or a batch this objective cannot use, with what to change.
        """

    def forward(self, batch: EncodedBatch) -> torch.Tensor | dict[str, torch.Tensor]:
        """The loss, a scalar in float32 or wider, or named parts whose sum it is.

        In training mode it is this process's share: the mean over the processes is the loss of the whole batch, and
        what it needs of the others' rows it gathers (see `simcse_hf.ops.distributed`).
        """
        raise NotImplementedError


def total_and_parts(found: torch.Tensor | dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict | None]:
    """The loss and its named parts, if it has any, of what an objective returned."""
    return (sum(found.values()), found) if isinstance(found, dict) else (found, None)


OBJECTIVES: dict[str, type[Objective]] = {}


def register(name: str, objective: type[Objective]) -> None:
    """Gives an objective the name that `--objective` and `objective=` take.

    Raises:
        ValueError: the name is taken by another class.
    """
    if OBJECTIVES.setdefault(name, objective) is not objective:
        raise ValueError(f"objective {name!r} is already registered: {OBJECTIVES[name].__name__}")


def objective_class(name: str) -> type[Objective]:
    """The class of a name.

    Raises:
        ValueError: there is no such objective.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {name!r}")
    return OBJECTIVES[name]


def make_objective(name: str, dim: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> Objective:
    """Builds an objective.

    Args:
        name: a registered one.
        dim: of the sentence vectors.
        settings: of the model: those that the constructor names are passed on.
        options: of this objective.

    Raises:
        ValueError: an unknown name or option, or a value that is not valid.
    """
    kind = objective_class(name)
    names = [n for n in inspect.signature(kind).parameters if n != "dim"]
    unknown = sorted(set(options) - set(names))
    if unknown:
        known = ", ".join(names) or "none"
        raise ValueError(f"objective {name!r} has no option {', '.join(unknown)}; its options are: {known}")
    return kind(dim, **{n: settings[n] for n in names if n in settings} | dict(options))
