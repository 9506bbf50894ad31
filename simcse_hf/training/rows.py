"""Training rows of a run: read by their kind, tokenized, ordered, batched, checked and described.

What a row holds depends on its kind (`data.kinds`). [`Rows`] are tokenized once, drawn whenever they are read (such as
random views of a sentence and spans of a document), or read from a stream while training. [`Mixed`] rows come from
several data sets, each batch from one.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, TypedDict, TypeGuard

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from ..data.collator import ContrastiveCollator
from ..data.columns import LABEL, NO_TEXT, SAMPLE_ROWS
from ..data.documents import SpanDataset
from ..data.kinds import ROW_KINDS, Source, check_neighbours, read_stream
from ..data.mixture import MixedRows, MixtureCollator
from ..data.read import TextSource, find_paths, is_column, is_columns, open_source
from ..data.samplers import (
    LARGEST_LISTED,
    ClassSampler,
    MixtureSampler,
    NoDuplicatesSampler,
    PermutedSampler,
)
from ..data.stream import WholeStream
from ..data.token_ids import check_known
from ..data.tokenize import RowTokenizer, as_sentences, number_texts, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset, ViewDescription
from ..data.views import make_view, view_class
from ..encoding.batching import full_length
from ..encoding.vectors import RowVectors
from ..models.settings import ContrastiveSettings
from ..objectives import Objective, TrainingRows
from ..runtime.identity import digest_rows
from .arguments import SimCSETrainingArguments
from .decide import COLUMNS, RowPlan, Run

logger = logging.get_logger(__name__)

#: Rows of a stream that are read and shuffled together.
SHUFFLE_BUFFER = 10_000
#: Share of the training rows above which repetitions are reported.
DUPLICATE_SHARE = 0.05
#: Options of an objective that say how spans are drawn.
_OF_SPANS = ("anchors", "positives", "max_span", "min_span")
#: Rows whose tokens are compared with the vocabulary.
_SAMPLE_ROWS = 500
#: What a row holds by the number of its texts, where the kind does not say; see `data.contents`.
_SAYS = {0: None, 1: "sentences", 2: "pairs"}


@dataclass(frozen=True)
class Reader:
    """What all rows of a run are read with.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        settings (`ContrastiveSettings`): The settings of the model, with its templates.
        args (`SimCSETrainingArguments`): The arguments of the run.
    """

    tokenizer: PreTrainedTokenizerBase
    settings: ContrastiveSettings
    args: SimCSETrainingArguments


class RowFacts(TypedDict, total=False):
    """What `results.json` says about the rows of a run.

    Args:
        train_rows (`int`, *optional*): Their number; `None` for a stream.
        num_sentences (`int`): Texts of the first row.
        rows (`str`, *optional*): What a row holds, one of `data.contents.CONTENTS`.
        view (`ViewDescription`, *optional*): The view of single sentences.
        datasets (`dict[str, int]`): The rows of each of several data sets.
    """

    train_rows: int | None
    num_sentences: int
    rows: str | None
    view: ViewDescription | None
    datasets: dict[str, int]


@dataclass(eq=False)
class Rows:
    """Training rows of one data set, however they are drawn.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        plan (`RowPlan`): How these rows are read.
        source (`Source`): Where they come from.
        known (`Dataset` or `SeededDataset`): The rows of token ids; of a stream the first ones, for checks and the
            description.
        says (`str`, *optional*): What a row holds, one of `data.contents.CONTENTS`. By default its texts are counted.
        texts (`Sequence[Dataset]`, *optional*, defaults to `()`): The texts of the rows, where they are known.
        stream (`WholeStream`, *optional*): The rows of token ids, if they are read while training.
        max_length (`int`, *optional*): The most tokens of a text. Defaults to that of the plan.

    Attributes:
        tokens (`Dataset`, `SeededDataset` or `WholeStream`): What a data loader reads.
        kind (`Kind`): The kind of the rows.
        callbacks (`list[TrainerCallback]`): The callbacks that a run on the rows needs.
        num_sentences (`int`): Texts of the first row.
        longest (`int`): The most tokens of a text, with those of its template.
        vectors (`dict[str, RowVectors]`): The vectors of frozen models, by their names in a batch.

    Raises:
        ValueError: If a teacher or guide is named for rows that hold no texts, or a guide for single sentences.
    """

    reader: Reader
    plan: RowPlan
    source: Source
    known: Dataset | SeededDataset
    says: str | None = None
    texts: Sequence[Dataset] = ()
    stream: WholeStream | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        self.kind = ROW_KINDS[self.plan.kind]
        self.vectors: dict[str, RowVectors] = {}
        if self.plan.frozen:
            self._find_vectors()
        self.tokens = self.known if self.stream is None else self.stream
        self.callbacks: list[TrainerCallback] = []
        if self.stream is None and isinstance(self.known, SeededDataset):
            self.callbacks.append(EpochOfRows(self.known))
        self.num_sentences = len(self.known[0]["input_ids"]) if len(self.known) else 0
        length = max(self.plan.lengths) if self.max_length is None else self.max_length
        self.longest = length + max(map(sum, self.reader.settings.template_edges), default=0)

    def _find_vectors(self) -> None:
        """Find the vectors that each teacher and guide gives the texts."""
        frozen = self.plan.frozen
        read = self.texts[0] if self.texts else self.known
        columns = [column for column in read.column_names if re.fullmatch(r"sent\d+", column)]
        if not columns:
            found = f"{self.source.name} has no texts, only {', '.join(read.column_names)}"
            raise ValueError(f"a {' and '.join(frozen)} reads the texts of training rows, but {found}: pass texts")
        if "guide" in frozen and len(columns) == 1:
            raise ValueError("a guide reads an anchor and its positive, but a row holds one text: give pairs")
        assert isinstance(read, Dataset) and isinstance(self.known, Dataset)
        for model, words in frozen.items():
            self.vectors[model] = RowVectors(words, read.select_columns(columns), self.reader.args.device)
        # The collator finds vectors by the numbers of the rows.
        self.known = self.known.add_column("row", np.arange(len(self.known)))

    def order(self, batch_size: int) -> PermutedSampler | None:
        """Choose the sampler, which keeps equal texts apart or texts of a class together.

        Args:
            batch_size (`int`): Rows of a batch of one process.

        Returns:
            `PermutedSampler`, *optional*: The order; `None` if any random order serves.

        Raises:
            ValueError: If equal texts cannot be kept apart.
        """
        args = self.reader.args
        number = len(self.known)
        has_classes = LABEL in self.kind.numbers and LABEL in self.known.column_names
        if args.batch_sampler == "no_duplicates":
            if self.text_numbers is None or has_classes:
                kind = "its rows are drawn by class" if has_classes else "its texts are drawn anew in each epoch"
                raise ValueError(
                    f"batch_sampler = 'no_duplicates' does not work with {self.plan.source}, because {kind}: leave "
                    "batch_sampler out"
                )
            return NoDuplicatesSampler(self.text_numbers, batch_size * args.world_size, args.rows_seed)
        if has_classes and isinstance(self.known, Dataset) and not self.vectors:
            return ClassSampler(self.known.with_format(None)[LABEL][:], args.rows_seed)
        return PermutedSampler(number, args.rows_seed) if number > LARGEST_LISTED else None

    @cached_property
    def text_numbers(self) -> np.ndarray | None:
        """Numbers of the texts of each row; see [`number_texts`]. `None` for rows that are not known beforehand."""
        return number_texts(self.known) if isinstance(self.tokens, Dataset) else None

    def collator(self, objective: Objective) -> ContrastiveCollator | MixtureCollator:
        """Make the collator that an objective needs.

        Args:
            objective (`Objective`): The objective that learns from the rows.

        Returns:
            [`ContrastiveCollator`]: The collator.

        Raises:
            ValueError: If the objective needs a teacher and none is given, or one is given that it does not use.
        """
        unread = " and ".join(sorted(self.plan.frozen.keys() - set(objective.vectors)))
        if unread:
            advice = f"leave {unread} out, or use objective 'distill' with a teacher and 'simcse' with a guide"
            raise ValueError(f"objective {objective.name!r} reads no {unread}: {advice}")
        if "teacher" in objective.vectors and "teacher" not in self.plan.frozen:
            advice = "name a model, or the folder of its vectors that `simcse-hf encode` wrote, as teacher (--teacher)"
            raise ValueError(f"objective {objective.name!r} learns from a teacher: {advice}")
        shared = make_collator(self.reader, objective)
        return replace(shared, columns=self.kind.numbers, vectors=self.vectors)

    def check(self, objective: Objective, batch_size: int) -> list[Mapping]:
        """Check that an objective can learn from the rows.

        Args:
            objective (`Objective`): The objective.
            batch_size (`int`): Rows of a batch of one process.

        Returns:
            `list[Mapping[str, Any]]`: The first row of each data set of single sentences without augmentation, for the
            check of dropout.

        Raises:
            ValueError: If it cannot. The message says what to change.
        """
        args = self.reader.args
        rows = self.known
        number = self.num_sentences
        # 1. Refuse rows that the view, the model, the objective or the order of the run cannot read.
        if not number:
            raise ValueError(f"{self.source.name} is empty: give a training file with at least one batch of texts")
        if self.plan.view == "fixed_mask" and number > 1:
            raise ValueError(f"view fixed_mask is for single sentences; the training rows hold {number} texts")
        sample = []
        for place in range(min(_SAMPLE_ROWS, len(rows))):
            sample += rows[place]["input_ids"]
        check_known(sample, self.reader.tokenizer, self.source.name)
        numbers = None if args.process_index else self.text_numbers  # the first process warns of equal texts
        meeting = numbers if args.batch_sampler != "no_duplicates" else None
        objective.check(TrainingRows(number, batch_size * args.world_size, rows.column_names, rows, meeting))
        lengths = args.length_column_name
        if args.train_sampling_strategy == "group_by_length" and lengths not in rows.column_names:
            # transformers would take the number of texts for the length
            found = f"train_dataset, a {type(rows).__name__}, has {', '.join(rows.column_names)}"
            advice = "add it, train on texts with view='identity', or use train_sampling_strategy='random'"
            raise ValueError(f"'group_by_length' reads the lengths in the column {lengths!r}, and {found}: {advice}")
        if number < 3 and self.stream is None and not objective.reconstructs:
            check_texts_differ(self.texts[0] if self.texts else rows, self.source)

        # 2. Warn of what has no effect or weakens the batches.
        weights = [value for name, value in self.plan.options.items() if name.endswith("hard_negative_weight")]
        if any(weights) and number < 3:
            logger.warning("hard_negative_weight has no effect on rows without hard negatives.")
        repeated = 0 if numbers is None else len(rows) - len(np.unique(numbers, axis=0))
        if repeated > DUPLICATE_SHARE * len(rows):
            logger.warning(
                f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
                "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove "
                "them, unless that is intended."
            )
        is_single = number == 1 and objective.num_views != 1 and self.plan.view == "identity"
        return [rows[0]] if is_single else []

    def digests(self) -> dict[str, str | None]:
        """Return the digests of the training data, by their names in the settings of the run.

        Returns:
            `dict[str, str]`: That of the rows in their order (the first ones of a stream; of rows that are drawn anew
            that of their texts, `None` without texts), and those of the vectors of frozen models.
        """
        known = self.known
        digests = {"training texts": known.digest() if isinstance(known, SeededDataset) else digest_rows(known)}
        for name, vectors in self.vectors.items():
            digests[f"{self.plan.source}: vectors of the {name}"] = vectors.digest
        return digests

    def names(self) -> tuple[str | None, list[str]]:
        """Return the name of the file or data set that the texts were read from, and those that are on the hub."""
        if self.source.path is None:
            return None, []
        name = str(self.source.path)
        return name, [] if find_paths(name) else [name.partition(":")[0]]

    def describe(self, num_views: int) -> RowFacts:
        """Describe the rows for `results.json` and the card.

        Args:
            num_views (`int`): Columns that the objective makes of a single sentence.

        Returns:
            `RowFacts`: The number of rows, and what they hold.
        """
        says = self.says or _SAYS.get(self.num_sentences, "hard negatives")
        view: ViewDescription | None = None
        if says == "sentences" and num_views != 1:
            view = {"name": self.plan.view, "rate": None, "both": False}
            if isinstance(self.tokens, SeededDataset):
                view |= self.tokens.describe_view()
        return {
            "train_rows": None if self.stream is not None else len(self.known),
            "num_sentences": self.num_sentences,
            "rows": says,
            "view": view,
        }


@dataclass(eq=False)
class Mixed(Rows):
    """Several data sets; each batch comes from one. `plan` applies to rows of none of them, as in an evaluation.

    Args:
        parts (`Mapping[str, Rows]`): The rows of each data set.
    """

    known: MixedRows
    parts: Mapping[str, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = [texts for part in self.parts.values() for texts in part.texts]
        self.longest = max(part.longest for part in self.parts.values())
        for part in self.parts.values():
            self.vectors |= part.vectors

    def order(self, batch_size: int) -> MixtureSampler:
        """Choose an order in which each batch comes from one data set; see [`Rows.order`]."""
        args = self.reader.args
        orders = {}
        for name, part in self.parts.items():
            with named(name):
                own = part.order(batch_size)
            orders[name] = PermutedSampler(len(part.known), args.rows_seed) if own is None else own
        shares = [part.plan.share for part in self.parts.values() if part.plan.share is not None]
        block = batch_size * args.world_size
        return MixtureSampler(orders, self.known.starts, shares or args.dataset_shares, block, args.rows_seed)

    def collator(self, objective: Objective) -> MixtureCollator:
        """Make the collators of all data sets; see [`Rows.collator`]."""
        if getattr(self.reader.args.accelerator_config, "dispatch_batches", False):
            advice = "unset it in accelerator_config"
            raise ValueError(f"dispatch_batches does not work with several data sets: {advice}")
        collators = []
        for number, part in enumerate(self.parts.values()):
            collators.append(part.collator(objective.of_dataset(number)))
        return MixtureCollator(collators, make_collator(self.reader, objective))

    def check(self, objective: Objective, batch_size: int) -> list[Mapping]:
        """Check the rows of every data set with its objective; see [`Rows.check`]."""
        singles: list[Mapping] = []
        for number, (name, part) in enumerate(self.parts.items()):
            with named(name):
                found = part.check(objective.of_dataset(number), batch_size)
            singles += [{**row, "dataset": number} for row in found]
        return singles

    def digests(self) -> dict[str, str | None]:
        """Return the digests of all data sets; see [`Rows.digests`]."""
        digests: dict[str, str | None] = {}
        texts = []
        for name, part in self.parts.items():
            own = part.digests()
            texts.append(f"{name}:{own['training texts']}")
            digests |= own
        return digests | {"training texts": "+".join(texts)}

    def names(self) -> tuple[None, list[str]]:
        """Return the names of the data sets that are on the hub; see [`Rows.names`]."""
        return None, [name for part in self.parts.values() for name in part.names()[1]]

    def describe(self, num_views: int) -> RowFacts:
        """Describe the rows, with the size of each data set; see [`Rows.describe`]."""
        return {
            "train_rows": len(self.known),
            "num_sentences": self.num_sentences,
            "datasets": {name: len(part.known) for name, part in self.parts.items()},
        }


@contextmanager
def named(dataset: str) -> Iterator[None]:
    """Name one of several data sets in front of each error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"data set {dataset!r}: {error}") from None


# Reading rows -------------------------------------------------------------------------------------------------------

#: Rows of one data set as a caller names or makes them.
Data: TypeAlias = TextSource | SeededDataset | Source


def has_names(data: Data | Mapping[str, Data] | None) -> TypeGuard[Mapping[str, Data]]:
    """Say whether data is of several data sets by their names; a `DatasetDict` is one in several splits."""
    return isinstance(data, dict) and not isinstance(data, DatasetDict) and not is_columns(data)


def is_streamed(data: Data | Mapping[str, Data] | None) -> bool:
    """Say whether the rows of a single data set are read while training."""
    if isinstance(data, Source):
        return data.streams or is_streamed(data.data)
    return isinstance(data, IterableDataset)


def read_training_rows(reader: Reader, run: Run, data: Data | Mapping[str, Data]) -> Rows:
    """Read the training rows of a run.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        run (`Run`): The run, with a plan for each of several data sets.
        data (`Data` or `Mapping[str, Data]`): The rows; see [`read_rows`].

    Returns:
        [`Rows`]: The rows.

    Raises:
        ValueError: If the data is of a type that contrastive training cannot use, it cannot be read, or one of several
            data sets is a stream.
    """
    if not has_names(data):
        return read_rows(reader, run.rows, data, "train_dataset")
    check_names(reader, data)
    strategy = reader.args.train_sampling_strategy
    if strategy != "random":
        raise ValueError(f"train_sampling_strategy = {strategy!r} is for one data set: leave it out for several")
    streams = ", ".join(name for name, rows in data.items() if is_streamed(rows))
    if streams:
        raise ValueError(f"the data sets {streams} are streams, which cannot be mixed: load them")
    unread = ", ".join(run.rows.frozen.keys() - {model for plan in run.datasets.values() for model in plan.frozen})
    if unread:
        raise ValueError(f"no objective of the data sets reads a {unread}: leave {unread} out")
    parts = {}
    for name, plan in run.datasets.items():
        with named(name):
            parts[name] = read_rows(reader, plan, data[name], plan.source)
    tokens = MixedRows([part.known for part in parts.values()])
    return Mixed(reader, replace(run.rows, frozen={}), Source(list(parts)), tokens, parts=parts)


def read_evaluation_rows(reader: Reader, run: Run, data: Data | Mapping[str, Data], name: str = "eval_dataset") -> Any:
    """Tokenize evaluation data; rows with the name of a data set of training are read as that is."""
    if not has_names(data):
        return read_rows(reader, run.rows, data, name, with_views=False).tokens
    tokenized = {}
    for part, rows in data.items():
        tokens = read_rows(reader, run.datasets.get(part, run.rows), rows, name, with_views=False).tokens
        if part in run.datasets:
            tokens = MixedRows([tokens], first=list(run.datasets).index(part))
        tokenized[part] = tokens
    return tokenized


def read_rows(reader: Reader, plan: RowPlan, data: Data, name: str, with_views: bool = True) -> Rows:
    """Read the rows of one data set.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        plan (`RowPlan`): How the rows are read.
        data (`Data`): Texts or token ids as [`load_text_dataset`] takes them, a data set that draws its rows anew, a
            `datasets.IterableDataset`, or one of these as a [`Source`].
        name (`str`): What messages call the data.
        with_views (`bool`, *optional*, defaults to `True`): Whether an augmentation changes the texts, as in training.

    Returns:
        [`Rows`]: The rows.

    Raises:
        ValueError: If the data is of a type that contrastive training cannot use, it cannot be read, its columns are
            unclear, or it is not what the view or the objective needs.
    """
    check_room(reader, plan)
    if isinstance(data, SeededDataset):
        return _drawn(reader, plan, Source((), name=name), data)
    view = view_class(plan.view if with_views else "identity")
    kind = ROW_KINDS["documents" if plan.kind == "texts" and view.window else plan.kind]
    # Those that have a value, without the names of the parts of a sum
    options = {name.rpartition(".")[2]: value for name, value in plan.options.items() if value is not None}
    samplings = {value for name, value in plan.options.items() if name.endswith("nli_sampling")}
    if len(samplings) > 1:
        raise ValueError(f"the parts of objective {plan.objective!r} read the same rows: give them one nli_sampling")
    source = replace(
        data if isinstance(data, Source) else Source(data),
        name=name,
        window=view.window,
        seed=reader.args.rows_seed,
        nli_sampling=options.get("nli_sampling", "pairs"),
    )
    if with_views and is_streamed(source):
        return _streamed(reader, plan, source)
    if view.is_drawn:
        check_view(reader, plan)
    if find_paths(source.data) is None and source.path is None:
        [table] = open_source(source.data, split=None, name=name)
        source = replace(source, data=table)
        if isinstance(table.source, Dataset) and "input_ids" in table.columns:
            rows = Rows(reader, plan, source, as_sentences(table.source, reader.tokenizer, name), kind.says)
            check_neighbours(source, rows.num_sentences)
            return rows
    texts = kind.read(source)
    if not isinstance(texts, Dataset):
        of_spans = {option: value for option, value in options.items() if option in _OF_SPANS}
        spans = SpanDataset(texts, reader.tokenizer, max(plan.lengths), source.seed, **of_spans)
        return _drawn(reader, plan, source, spans)
    names = texts.column_names
    check_one_prompt(reader, plan, names, name)
    if view.is_drawn:
        return _drawn(reader, plan, source, view_dataset(texts, plan, reader), [texts])
    tokens = tokenize_dataset(texts, reader.tokenizer, plan.lengths, reader.settings.templates, plan.prompts)
    # One text in several templates is a sentence, however often it stands.
    says = "sentences" if reader.settings.templates and len(names) == 1 else kind.says
    return Rows(reader, plan, source, tokens, says, [texts])


def _drawn(
    reader: Reader, plan: RowPlan, source: Source, tokens: SeededDataset, texts: Sequence[Dataset] = ()
) -> Rows:
    """Take rows that draw themselves, and refuse spans that would get a prompt or a template."""
    if isinstance(tokens, SpanDataset) and (reader.settings.templates or any(plan.prompts)):
        added = "to which no prompt or template can be added, as inference would do"
        raise ValueError(f"{source.name} holds token ids of spans, {added}: train on texts, or leave both out")
    return Rows(reader, plan, source, tokens, tokens.says, texts, max_length=tokens.max_length)


def _streamed(reader: Reader, plan: RowPlan, source: Source) -> Rows:
    """Open a stream, whose rows are shuffled in a buffer and tokenized when they are read, pass after pass."""
    args = reader.args
    check_stream(source, plan, args)
    texts = read_stream(source)
    batch = args.train_batch_size * args.world_size
    first = Dataset.from_list(list(texts.take(max(SAMPLE_ROWS, batch))))
    if len(first) < batch:
        few = f"{source.name} ends after {len(first)} rows, fewer than a batch of {batch} over all processes"
        raise ValueError(f"{few}: lower per_device_train_batch_size")
    names = first.column_names
    check_one_prompt(reader, plan, names, source.name)
    logger.info(
        f"train_dataset is a stream: its first {len(first)} rows are checked now, and the others when they are "
        "read. Texts that are cut to max_seq_length are not counted."
    )
    views = None
    if view_class(plan.view).is_drawn:
        check_view(reader, plan)
        views = view_dataset(first, plan, reader)
    settings = (reader.tokenizer, plan.lengths, reader.settings.templates, plan.prompts)
    tokenize = RowTokenizer(names, *settings)

    def make_rows(columns: dict[str, list], numbers: list[int]) -> dict[str, list]:
        if views is None:
            return tokenize(columns)
        rngs = [random.Random(f"{args.rows_seed} {number}") for number in numbers]
        rows = views.rows_of(columns["sent0"], rngs)
        return {name: [row[name] for row in rows] for name in rows[0]}

    # A shuffle of what is repeated would mix the passes, and a row could come twice before another one.
    shuffled = texts.shuffle(args.rows_seed, buffer_size=SHUFFLE_BUFFER).repeat(None)
    tokens = shuffled.map(make_rows, with_indices=True, batched=True, remove_columns=names)
    head = tokenize_dataset(first, *settings) if views is None else views
    says = "sentences" if reader.settings.templates and len(names) == 1 else None
    length = None if views is None else views.max_length
    return Rows(reader, plan, source, head, says, stream=WholeStream(tokens), max_length=length)


# Refusals -----------------------------------------------------------------------------------------------------------


def check_names(reader: Reader, data: Mapping[str, Data]) -> None:
    """Refuse lists of texts by names that may be those of columns or of data sets."""
    texts: list[Any] = [rows for rows in data.values() if is_column(rows) and find_paths(rows) is None]
    is_unclear = len(texts) == len(data) and all(isinstance(next(iter(rows), None), str) for rows in texts)
    if is_unclear and not reader.args.tables:
        names = ", ".join(map(repr, data))
        raise ValueError(
            f"train_dataset: {names} may be columns or data sets: pass columns as a datasets.Dataset, and name data "
            "sets in the arguments, datasets={name: {}}"
        )


def check_room(reader: Reader, plan: RowPlan) -> None:
    """Refuse templates and prompts that leave no room for a text."""
    templates = reader.settings.templates
    if not templates and not any(plan.prompts):
        return
    for column, length, prompt in zip(COLUMNS, plan.lengths, plan.prompts, strict=True):
        try:
            full_length(reader.tokenizer, length, templates, prompt)
        except ValueError as error:
            raise ValueError(f"{plan.source}, column {column}: {error}") from None


def check_texts_differ(rows: Dataset | SeededDataset, source: Source) -> None:
    """Refuse rows that are all alike; the first row that differs ends the search."""
    if not isinstance(rows, Dataset):
        return
    texts = rows.select_columns([column for column in rows.column_names if column not in NO_TEXT])
    first = texts[0]
    if all(row == first for row in texts):
        name = source.data if isinstance(source.data, str) else source.name
        alike = f"all {len(rows)} training row(s) are alike, so no text can be told from another"
        raise ValueError(f"{name}: {alike}: add other texts")


def check_view(reader: Reader, plan: RowPlan) -> None:
    """Refuse a view where a teacher, a guide, a template or a prompt reads the texts as they are."""
    frozen = " and ".join(plan.frozen)
    if frozen:
        raise ValueError(f"view {plan.view} changes texts that the {frozen} reads unchanged: use view identity")
    added = "templates" if reader.settings.templates else "prompt"
    if reader.settings.templates or any(plan.prompts):
        raise ValueError(f"view {plan.view} would change the words of the {added} too: use view identity")


def check_one_prompt(reader: Reader, plan: RowPlan, names: Sequence[str], name: str) -> None:
    """Refuse single sentences whose positive would have another prompt or length than the anchor, which it equals."""
    texts = [column for column in names if column not in NO_TEXT]
    if texts != ["sent0"] or reader.settings.templates:
        return
    anchor, positive, _ = plan.prompts
    if positive not in ("", anchor) or plan.lengths[0] != plan.lengths[1]:
        raise ValueError(
            f"{name} holds single sentences, and the anchor and the positive of one are the same tokens: give prompts "
            "and max_seq_length one value for all columns"
        )


def check_stream(source: Source, plan: RowPlan, args: SimCSETrainingArguments) -> None:
    """Refuse a stream for a run that needs all rows at once, or whose number of steps is not known."""
    is_named = source.path is not None
    conflicts = {
        f"--objective {plan.objective}": plan.kind in ("scored_pairs", "scored_lists", "classes")
        or (is_named and plan.kind != "texts"),
        f"--view {plan.view}": is_named and source.window > 0,
        "--max_train_samples": source.limit is not None,
        f"a {' and '.join(plan.frozen)}": bool(plan.frozen),
        f"batch_sampler = {args.batch_sampler!r}": args.batch_sampler == "no_duplicates",
        f"train_sampling_strategy = {args.train_sampling_strategy!r}": args.train_sampling_strategy != "random",
        f"dataloader_num_workers = {args.dataloader_num_workers}": bool(args.dataloader_num_workers),
    }
    for what, is_there in conflicts.items():
        if is_there:
            raise ValueError(f"{what} does not work with a stream (--streaming): leave one of the two out")
    if args.max_steps < 1:
        raise ValueError("a stream (--streaming) has no known length: set max_steps (--max_steps)")
    if getattr(source.data, "_distributed", None) is not None:
        raise ValueError("train_dataset is a part of a stream: pass the whole stream, and each process takes its rows")


# Steps that several ways of drawing share ---------------------------------------------------------------------------


def make_collator(reader: Reader, objective: Objective) -> ContrastiveCollator:
    """Make the collator of an objective."""
    return ContrastiveCollator(
        reader.tokenizer,
        repeat=objective.num_views,
        add_text_ids=objective.needs_text_ids,
    )


def view_dataset(texts: Dataset, plan: RowPlan, reader: Reader) -> ViewDataset:
    """Make the data set that draws the views of a plan."""
    return ViewDataset(
        texts,
        reader.tokenizer,
        make_view(plan.view, plan.view_rate),
        plan.lengths[0],
        seed=reader.args.rows_seed,
        both=reader.args.view_both,
    )


class EpochOfRows(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins.

    Args:
        rows (`SeededDataset`): The rows.
    """

    def __init__(self, rows: SeededDataset):
        self.rows = rows

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        self.rows.set_epoch(int((state.epoch or 0.0) + 1e-6))
