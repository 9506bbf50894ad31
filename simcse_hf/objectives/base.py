"""The interface of an objective: the model that it trains, the batch that it sees, and its loss."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..kernels.packing import Packing
from ..runtime.errors import DataError, SettingError

logger = logging.get_logger(__name__)

#: What a batch holds of each text.
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: What a batch may hold for the objective beside token ids and masks; see [`EncodedBatch`].
ROW_INPUTS = ("relations", "text_ids", "scores", "labels", "teacher", "guide", "dataset")
#: Rows of a batch with the anchor or the positive of a row, on average, above which they are reported.
MET = 0.01
#: The relations of the texts of a row to its first one: those of a positive, of a hard negative, and where a row has
#: fewer texts than the widest.
POSITIVE = 0
NEGATIVE = 2
ABSENT = -100


class TrainedModel(Protocol):
    """What an objective may ask of the model that it trains.

    `simcse_hf.models.ContrastiveModel` satisfies this protocol. Objectives depend on the protocol and not on that
    class, so the model can import the objectives and not the other way round.
    """

    config: PreTrainedConfig
    #: The model's `ContrastiveSettings`.
    settings: Any
    name_or_path: str | None
    #: The stock encoder, without the head.
    base_model: PreTrainedModel

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def contrastive_head(self) -> nn.Module:
        """The dense + tanh head of pooler `cls`."""

    def embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Encode token ids of shape `(n, length)` into embeddings `(n, dim)`."""

    @property
    def teacher_dim(self) -> int | None:
        """The size of the vectors of the run's teacher, `None` without one."""

    def copy_encoder(self) -> Self:
        """Return an independent copy of the encoder, its head and its pooler."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the names and parameters of the model."""

    def get_submodule(self, target: str) -> nn.Module:
        """Return a layer by its name, such as `ngram_head` of the pooler `ngrams`."""


class _MissingModel:
    """Stands for the model of a batch that was encoded elsewhere, and explains itself when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for these
            raise AttributeError(name)
        raise SettingError(
            f"the objective asks for batch.model.{name}, but GradCache gives no model. Set supports_gradcache = False "
            "in the objective's class, and train without gradcache_chunk_size"
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
            for equal texts, `scores` of pairs and `labels` of classes, of shape `(batch,)`, or
            `(batch, most labels)` with -100 where a text has fewer than others, `dataset`, numbers on the host that
            say which data set of several the rows come from, and `teacher` and `guide`, the unit vectors of frozen
            models, of shape `(batch, num_sentences, dim of the frozen models)`.
        model (`TrainedModel`): For objectives that run the encoder themselves (`batch.model.embed`). GradCache gives
            no model: an objective that needs one sets `supports_gradcache = False`.
        hidden_states (`torch.Tensor`, *optional*): Last hidden states of shape `(batch, num_sentences, length, dim)`.
            They are present only if the objective sets `needs_hidden_states`.
        packing (`Packing`, *optional*): Where the tokens of all texts lie in a row without padding, if the collator
            packed them.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch
        >>> triplets = torch.zeros(16, 3, 64)
        >>> batch = EncodedBatch(triplets, {"text_ids": torch.arange(48).view(16, 3)})
        >>> batch.embeddings[:, 0].shape  # the anchors
        torch.Size([16, 64])
        >>> batch.text_ids.shape
        torch.Size([16, 3])
    """

    embeddings: Tensor
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    model: TrainedModel = cast(TrainedModel, _MissingModel())
    hidden_states: Tensor | None = None
    packing: Packing | None = None

    def token_index(self, column: int, first: int = 0) -> Tensor:
        """Find the tokens of a column of texts.

        If the collator packed the texts, the host knows their lengths, and does not wait for an accelerator to find
        the tokens.

        Args:
            column (`int`): The column.
            first (`int`, *optional*, defaults to `0`): The position from which tokens count.

        Returns:
            `torch.Tensor`: The flat index of each token in a tensor of shape `(batch, length - first)`, in ascending
                order, of shape `(tokens,)`.
        """
        mask = self.inputs["attention_mask"][:, column, first:]
        if self.packing is None or self.packing.lengths_of_rows is None:
            return mask.flatten().nonzero()[:, 0]
        lengths = self.packing.lengths_of_rows.reshape(len(mask), -1)[:, column] - first
        return Packing.from_lengths(lengths, mask.shape[1], in_order=True).to(mask.device).token_index

    @property
    def text_ids(self) -> Tensor:
        """The integers `(batch, num_sentences)` that are equal for equal texts.

        Raises:
            DataError: If the collator did not add them.
        """
        if "text_ids" not in self.inputs:
            raise DataError(
                "the batch has no text_ids, by which equal texts are recognized: make the collator with "
                "ContrastiveCollator(tokenizer, add_text_ids=True)"
            )
        return self.inputs["text_ids"]


#: Options of objectives, and settings of papers, by their names.
Options = dict[str, Any]
#: The loss of an objective: a scalar, or named scalars whose sum is the loss.
Loss = Tensor | dict[str, Tensor]


@dataclass
class TrainingRows:
    """The training data as [`Objective.check`] sees it.

    Args:
        num_sentences (`int`): Sentences in a row. A row of one sentence is its own positive.
        global_batch (`int`): Rows in a batch of all processes.
        columns (`Collection[str]`, *optional*): The columns of the rows: `input_ids` and possibly `relations`, how
            each hypothesis relates to its premise, `label` or `score`.
        dataset (`Dataset`, *optional*): The rows.
        text_numbers (`np.ndarray`, *optional*): Numbers of the texts of each row, of shape `(rows, texts)`, equal for
            equal texts, in the process that warns of these; `None` where they never meet in a batch.
    """

    num_sentences: int
    global_batch: int
    columns: Collection[str] = ()
    dataset: Any = None
    text_numbers: np.ndarray | None = None

    def column(self, name: str) -> list:
        """Return the cells of a column."""
        return self.dataset.with_format(None)[name][:]

    def check_width(self, most: int, advice: str) -> None:
        """Check that no row has relations or too many sentences.

        Args:
            most (`int`): The most sentences of a row that the objective reads.
            advice (`str`): The rest of the message: why it reads no more, and what to give.

        Raises:
            DataError: If a row has relations or more sentences.
        """
        has_relations = "relations" in self.columns
        if has_relations or self.num_sentences > most:
            found = "relations" if has_relations else f"{self.num_sentences} sentences"
            raise DataError(f"the training data has rows with {found}, but {advice}")

    def check_batch(self, alone: str) -> None:
        """Check that a batch has several rows.

        Args:
            alone (`str`): The problem of a batch of one row.

        Raises:
            SettingError: If a batch has one row.
        """
        if self.global_batch == 1:
            raise SettingError(f"{alone}: raise per_device_train_batch_size to at least 2")

    def warn_of_equal_texts(self, cures: str) -> None:
        """Warn of anchors and positives that stand in several rows of a batch, where their partners are negatives.

        Args:
            cures (`str`): The rest of the message: how to avoid it.
        """
        if self.text_numbers is None or self.num_sentences < 2:
            return
        pairs = np.unique(self.text_numbers[:, :2], axis=0)
        met = 0.0
        for column in pairs.T:
            _, counts = np.unique(column, return_counts=True)
            met += (counts**2).mean() / counts.mean() - 1  # a text in 3 rows meets 2 others from each of them
        met *= min(1.0, (self.global_batch - 1) / len(pairs))
        if met > MET:
            self.text_numbers = None  # a part of a sum has said so for all
            logger.warning(
                f"Anchors or positives are repeated: in a batch of {self.global_batch}, a row meets on average "
                f"{met:.2g} others with the same one, whose texts count as negatives although they fit: {cures}"
            )

    def check_relations(self, name: str) -> None:
        """Check that relations are those of one positive and of hard negatives, some of which may be absent.

        Args:
            name (`str`): The objective.

        Raises:
            SettingError: If a row has other relations.
        """
        if "relations" not in self.columns:
            return
        for relations in self.column("relations"):
            if relations[:1] != [POSITIVE] or POSITIVE in relations[1:]:
                raise SettingError(
                    f"rows have relations, which objective {name!r} does not read: give single texts, pairs, or rows "
                    "of sent0, sent1 and hard negatives (simcse-hf build-nli)"
                )


class Objective(nn.Module):
    """Base class of objectives: embeddings in, a loss out.

    A new objective is a subclass with a `name`, which `--objective` takes, and a `forward`. The keyword arguments of
    its constructor after `dim` are its options, which `objective_options` of a run sets, such as the temperature.

    The parameters and buffers of an objective are trained with the model and saved beside it in a file of their own
    (`_objective.safetensors`). `AutoModel` does not load them.

    The class attributes describe the objective to the rest of the package:

    - `summary` completes the sentence "This model was trained with ..." of a model card.
    - `papers` lists entries of `publishing/papers.bib` by name, or BibTeX entries with a `url`. The first one is the
      paper of the method itself.
    - `defaults` maps names of training-script arguments to the paper's values, such as
      `{"pooler_type": "avg", "learning_rate": 2e-5}`. A command uses them where neither its options, nor a recipe,
      nor the starting checkpoint set the argument, and logs which ones it used. They override the defaults of the
      command (`training/defaults.yaml`). The defaults of options stand in the constructor.
    - `supports_gradcache` says whether the loss can be computed from all embeddings of a batch at once. Set it to
      `False` if `forward` uses `batch.model` or `batch.hidden_states`.
    - `encoders` is the number of independent encoders. With 2, the first encodes column 0 and the second the rest.
    - `num_views` is the number of columns that the collator makes of a single sentence: 2 views, or 1 without views.
    - `rows` says what the training rows are made of: `"texts"`, `"nli"` (premises with labelled hypotheses),
      `"spans"` (of documents), `"scored_pairs"` (two sentences and a score), `"scored_lists"` (a query and a score of
      each candidate) or `"classes"` (texts with a class label, or anchors with a list of positives).
    - `view` is the default view of single sentences with its rate, `None` for the view's own.
    - `reconstructs` says that column 0 is the target of a reconstruction: the model embeds the other columns only, and
      the loss of a row does not depend on the other rows.
    - `similarity` is what the loss compares embeddings by: `"cosine"`, `"dot"`, or `""` if neither.
    - `vectors` says which vectors of frozen models `forward` reads, where a run has them: `"teacher"` or `"guide"`.
    - `enters_space` says that embeddings become the teacher's vectors, so the model gets their size.
    - `needs_hidden_states` and `needs_text_ids` ask for `EncodedBatch.hidden_states` and for `inputs["text_ids"]`.

    An instance may change any of them.

    Args:
        dim (`int`): Embedding size.

    Examples:
        >>> import torch
        >>> from simcse_hf.objectives import EncodedBatch, Objective
        >>> class Near(Objective):
        ...     name = "near"
        ...     summary = "the squared distance of two views"
        ...
        ...     def __init__(self, dim, weight=1.0):
        ...         super().__init__(dim)
        ...         self.weight = weight
        ...
        ...     def forward(self, batch):
        ...         return self.weight * (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()
        >>> row = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
        >>> Near(2, weight=3.0)(EncodedBatch(row))
        tensor(1.5000)
        >>> Near.options
        {'weight': 1.0}
    """

    #: The name of the objective, and its options with their defaults.
    name = ""
    options: Options = {}
    summary = ""
    papers: tuple[str, ...] = ()
    defaults: Options = {}
    supports_gradcache = True
    encoders = 1
    num_views = 2
    rows = "texts"
    view: tuple[str, float | None] = ("identity", None)
    reconstructs = False
    similarity = ""
    vectors: tuple[str, ...] = ()
    enters_space = False
    needs_hidden_states = False
    needs_text_ids = False

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            register(cls.name, cls)

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def of_dataset(self, number: int) -> "Objective":
        """Return the objective of one of several data sets: this one, if they share it."""
        return self

    def attach(self, model: TrainedModel) -> None:
        """Take what the objective needs of the model, such as a momentum copy of the encoder.

        The model calls it once, before training and before it moves the objective to its device.

        Args:
            model (`TrainedModel`): The model to be trained.
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

    def forward(self, batch: EncodedBatch) -> Loss:
        """Compute the loss.

        In training mode this is the loss of one process. It is scaled so that its mean over the processes, and so the
        gradient that DistributedDataParallel averages, is that of the whole batch. Rows of other processes come from
        the functions of `simcse_hf.runtime.distributed`. In evaluation mode each process uses its own rows only.

        Args:
            batch (`EncodedBatch`): The encoded batch.

        Returns:
            `torch.Tensor` or `dict[str, torch.Tensor]`: A scalar in float32 or wider, or named scalars whose sum is
                the loss.
        """
        raise NotImplementedError(f"objective {self.name!r} has no forward, which computes its loss")


#: The class of each objective by its name.
OBJECTIVES: dict[str, type[Objective]] = {}


def is_defined_again(old: type, new: type) -> bool:
    """Say whether a class was defined another time, as by a cell of a notebook that runs again."""
    return old is not new and (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)


def register(name: str, objective: type[Objective]) -> None:
    """Register an objective under the name that `--objective` and `objective=` take.

    A class that is defined again, as in a notebook, takes the place of the earlier one.

    Args:
        name (`str`): The name.
        objective (`type[Objective]`): The class. One with a `name` of its own is registered when it is defined.

    Raises:
        SettingError: If another class has the name, or the constructor does not take `dim`.

    Examples:
        >>> from simcse_hf.objectives import OBJECTIVES, register
        >>> from simcse_hf.objectives.info_nce import SimCSEObjective
        >>> class Warm(SimCSEObjective):
        ...     def __init__(self, dim):
        ...         super().__init__(dim, temperature=0.2)
        >>> register("warm", Warm)
        >>> "warm" in OBJECTIVES
        True
    """
    parameters = inspect.signature(objective).parameters
    if "dim" not in parameters:
        raise SettingError(f"{objective.__name__}.__init__ must take dim, the embedding size, before its options")
    known = OBJECTIVES.get(name, objective)
    if known is not objective and not is_defined_again(known, objective):
        raise SettingError(f"objective {name!r} is already registered: {known.__name__}. Choose another name")
    OBJECTIVES[name] = objective
    objective.name = name
    objective.options = {option: each.default for option, each in parameters.items() if option != "dim"}


def as_full_precision(embeddings: Tensor, normalize: bool = False) -> Tensor:
    """Cast half precision to float32: at temperature 0.05 a bfloat16 logit is off by up to 0.03.

    Args:
        embeddings (`torch.Tensor`): Of shape `(..., dim)`.
        normalize (`bool`, *optional*, defaults to `False`): Scale them to length 1: their dot product is the cosine.

    Returns:
        `torch.Tensor`: Of the same shape, in float32 or wider.
    """
    embeddings = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
    return F.normalize(embeddings, dim=-1) if normalize else embeddings


def no_autocast(tensor: Tensor) -> torch.autocast:
    """Return the context in which the operations on a tensor have the tensor's own precision."""
    return torch.autocast(tensor.device.type, enabled=False)


def add_up(loss: Loss) -> tuple[Tensor, dict[str, Tensor] | None]:
    """Return the sum of what an objective returned, and its named parts if there are several."""
    parts = loss if isinstance(loss, dict) else None
    total = sum(parts.values()) if parts else loss
    if not isinstance(total, Tensor) or total.dim():
        got = tuple(total.shape) if isinstance(total, Tensor) else type(total).__name__
        raise SettingError(f"forward of an objective must return a tensor of shape (), or several by name; got {got}")
    return total, parts


def named_losses(loss: Loss) -> dict[str, Tensor]:
    """Return the named parts of what an objective returned; a single loss is called `loss`."""
    if isinstance(loss, dict):
        return loss
    return {"loss": loss}
