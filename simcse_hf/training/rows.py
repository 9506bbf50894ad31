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
from functools import cached_property, partial
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import TrainerCallback
from transformers.utils import logging

from ..data.collator import ContrastiveCollator, MixtureCollator
from ..data.columns import LABEL, NO_TEXT, SAMPLE_ROWS, find_parts, part_of
from ..data.documents import SpanDataset
from ..data.kinds import NUMBERS, SAYS, Source, check_width, read_source, read_stream
from ..data.read import find_paths, open_source
from ..data.samplers import LARGEST_LISTED, ClassSampler, MixtureSampler, NoDuplicatesSampler, PermutedSampler
from ..data.stream import WholeStream
from ..data.table import is_column
from ..data.token_ids import check_known
from ..data.tokenize import RowTokenizer, as_sentences, number_texts, tokenize_dataset
from ..data.view_dataset import MixedRows, SeededDataset, ViewDataset
from ..data.views import VIEW_CLASSES, make_view
from ..encoding.batching import full_length
from ..encoding.vectors import RowVectors
from ..models.settings import Values
from ..objectives import Objective, TrainingRows, described_objective
from ..runtime.errors import DataError, SettingError
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
_BY_NUMBER = {0: None, 1: "sentences", 2: "pairs"}


@dataclass(eq=False)
class Rows:
    """Training rows of one data set, however they are drawn.

    Args:
        run (`Run`): The run, with its tokenizer and its arguments.
        plan (`RowPlan`): How these rows are read.
        source (`Source`): Where they come from.
        known (`Dataset` or `SeededDataset`): The rows of token ids; of a stream the first ones, for checks and the
            description.
        says (`str`, *optional*): What a row holds, one of `data.contents.CONTENTS`. By default its texts are counted.
        texts (`Sequence[Dataset]`, *optional*, defaults to `()`): The texts of the rows, where they are known.
        stream (`WholeStream`, *optional*): The rows of token ids, if they are read while training.

    Attributes:
        tokens (`Dataset`, `SeededDataset` or `WholeStream`): What a data loader reads.
        num_sentences (`int`): Texts of the first row.
        longest (`int`): The most tokens of a text, with those of its template.
        vectors (`dict[str, RowVectors]`): The vectors of frozen models, by their names in a batch.

    Raises:
        ValueError: If a teacher or guide is named that the objective does not read, or for rows that hold no texts, a
            guide for single sentences, or a prompt or template for spans.
    """

    run: Run
    plan: RowPlan
    source: Source
    known: Dataset | SeededDataset
    says: str | None = None
    texts: Sequence[Dataset] = ()
    stream: WholeStream | None = None

    def __post_init__(self) -> None:
        run = self.run
        length = max(self.plan.lengths)
        # 1. Rows that draw themselves.
        if isinstance(self.known, SpanDataset) and (run.settings["templates"] or any(self.plan.prompts)):
            raise DataError(
                f"{self.source.name} holds token ids of spans, to which no prompt or template can be added, as "
                "inference would do: train on texts, or leave both out"
            )
        if isinstance(self.known, SeededDataset):
            self.says = self.known.says
            length = self.known.max_length or length

        # 2. The vectors that each teacher and guide gives the texts.
        frozen = self.plan.frozen
        self.vectors: dict[str, RowVectors] = {}
        if frozen:
            read = self.texts[0] if self.texts else self.known
            columns = [column for column in read.column_names if re.fullmatch(r"sent\d+", column)]
            if not columns:
                raise DataError(
                    f"a {' and '.join(frozen)} reads the texts of training rows, but {self.source.name} has no texts, "
                    f"only {', '.join(read.column_names)}: pass texts"
                )
            objective = described_objective(self.plan.objective, self.plan.options)
            unread = " and ".join(sorted(frozen.keys() - set(objective.vectors)))
            if unread:
                advice = f"leave {unread} out, or use objective 'distill' with a teacher and 'simcse' with a guide"
                raise SettingError(f"objective {objective.name!r} reads no {unread}: {advice}")
            if "guide" in frozen and len(columns) == 1:
                raise DataError("a guide reads an anchor and its positive, but a row holds one text: give pairs")
            assert isinstance(read, Dataset) and isinstance(self.known, Dataset)
            for model, words in frozen.items():
                self.vectors[model] = RowVectors(words, read.select_columns(columns), run.arguments.device)
            self.known = self.known.add_column("row", np.arange(len(self.known)))
        self.tokens = self.known if self.stream is None else self.stream
        if frozen and isinstance(self.known, Dataset):
            self.tokens = self.known.with_transform(partial(add_vectors, self.vectors))
        self.num_sentences = len(self.known[0]["input_ids"]) if len(self.known) else 0
        self.longest = length + max(map(sum, run.settings.get("template_edges", ())), default=0)

    def order(self) -> PermutedSampler | None:
        """Choose the sampler, which keeps equal texts apart or texts of a class together.

        Returns:
            `PermutedSampler`, *optional*: The order; `None` if any random order serves.

        Raises:
            SettingError: If equal texts cannot be kept apart.
        """
        args = self.run.arguments
        number = len(self.known)
        has_classes = self.plan.kind == "classes" and LABEL in self.known.column_names
        if args.batch_sampler == "no_duplicates":
            if self.text_numbers is None or has_classes:
                kind = "its rows are drawn by class" if has_classes else "its texts are drawn anew in each epoch"
                raise SettingError(
                    f"batch_sampler = 'no_duplicates' does not work with {self.plan.source}, because {kind}: leave "
                    "batch_sampler out"
                )
            return NoDuplicatesSampler(self.text_numbers, args.train_batch_size * args.world_size, args.rows_seed)
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
            SettingError: If the objective needs a teacher and none is given.
        """
        if "teacher" in objective.vectors and "teacher" not in self.plan.frozen:
            advice = "name a model, or the folder of its vectors that `simcse-hf encode` wrote, as teacher (--teacher)"
            raise SettingError(f"objective {objective.name!r} learns from a teacher: {advice}")
        columns = NUMBERS.get(self.plan.kind, ())
        return ContrastiveCollator(self.run.tokenizer, objective.num_views, objective.needs_text_ids, columns)

    def check(self, objective: Objective) -> list[Mapping]:
        """Check that an objective can learn from the rows.

        Args:
            objective (`Objective`): The objective.

        Returns:
            `list[Mapping[str, Any]]`: The first row of each data set of single sentences without augmentation, for the
            check of dropout.

        Raises:
            DataError: If it cannot. The message says what to change.
        """
        args = self.run.arguments
        rows = self.known
        number = self.num_sentences
        # 1. Refuse rows that the view, the model, the objective or the order of the run cannot read.
        if not number:
            raise DataError(f"{self.source.name} is empty: give a training file with at least one batch of texts")
        if self.plan.view == "fixed_mask" and number > 1:
            raise DataError(f"view fixed_mask is for single sentences; the training rows hold {number} texts")
        sample = []
        for place in range(min(_SAMPLE_ROWS, len(rows))):
            sample += rows[place]["input_ids"]
        check_known(sample, self.run.tokenizer, self.source.name)
        numbers = None if args.process_index else self.text_numbers  # the first process warns of equal texts
        meeting = numbers if args.batch_sampler != "no_duplicates" else None
        objective.check(
            TrainingRows(number, args.train_batch_size * args.world_size, rows.column_names, rows, meeting)
        )
        lengths = args.length_column_name
        if args.train_sampling_strategy == "group_by_length" and lengths not in rows.column_names:
            # transformers would take the number of texts for the length
            raise DataError(
                f"'group_by_length' reads the lengths in the column {lengths!r}, and train_dataset, a "
                f"{type(rows).__name__}, has {', '.join(rows.column_names)}: add it, train on texts with "
                "view='identity', or use train_sampling_strategy='random'"
            )
        texts = self.texts[0] if self.texts else rows
        if number < 3 and self.stream is None and not objective.reconstructs and isinstance(texts, Dataset):
            texts = texts.remove_columns([column for column in NO_TEXT if column in texts.column_names])
            first = texts[0]
            if all(row == first for row in texts):  # the first row that differs ends the search
                name = self.source.data if isinstance(self.source.data, str) else self.source.name
                raise DataError(
                    f"{name}: all {len(rows)} training row(s) are alike, so no text can be told from another: add "
                    "other texts"
                )

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

    def describe(self, num_views: int) -> Values:
        """Describe the rows for `results.json` and the card.

        Args:
            num_views (`int`): Columns that the objective makes of a single sentence.

        Returns:
            `Values`: `train_rows`, their number, `None` for a stream; `num_sentences`, the texts of the first
            row; `rows`, what a row holds, one of `data.contents.CONTENTS`; `view`, that of single sentences;
            `train_texts`, the file or data set that they were read from; and `hub_datasets`, those on the hub.
        """
        says = self.says or _BY_NUMBER.get(self.num_sentences, "hard negatives")
        view: Values | None = None
        if says == "sentences" and num_views != 1:
            view = {"name": self.plan.view, "rate": None, "both": False}
            if isinstance(self.known, ViewDataset):
                own = self.known.view
                view = {"name": own.name or type(own).__name__, "rate": own.rate, "both": self.known.both}
        path = None if self.source.path is None else str(self.source.path)
        hub_datasets = [path.partition(":")[0]] if path is not None and not find_paths(path) else []
        return {
            "train_rows": None if self.stream is not None else len(self.known),
            "num_sentences": self.num_sentences,
            "rows": says,
            "view": view,
            "train_texts": path,
            "hub_datasets": hub_datasets,
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

    def order(self) -> MixtureSampler:
        """Choose an order in which each batch comes from one data set; see [`Rows.order`]."""
        args = self.run.arguments
        orders = {}
        for name, part in self.parts.items():
            own = part.order()
            orders[name] = PermutedSampler(len(part.known), args.rows_seed) if own is None else own
        shares = [part.plan.share for part in self.parts.values() if part.plan.share is not None]
        block = args.train_batch_size * args.world_size
        return MixtureSampler(orders, self.known.starts, shares or args.dataset_shares, block, args.rows_seed)

    def collator(self, objective: Objective) -> MixtureCollator:
        """Make the collators of all data sets; see [`Rows.collator`]."""
        collators = []
        for number, part in enumerate(self.parts.values()):
            collators.append(part.collator(objective.of_dataset(number)))
        of_none = ContrastiveCollator(self.run.tokenizer, objective.num_views, objective.needs_text_ids)
        return MixtureCollator(collators, of_none)

    def check(self, objective: Objective) -> list[Mapping]:
        """Check the rows of every data set with its objective; see [`Rows.check`]."""
        singles: list[Mapping] = []
        for number, (name, part) in enumerate(self.parts.items()):
            with named(f"data set {name!r}"):
                found = part.check(objective.of_dataset(number))
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

    def describe(self, num_views: int) -> Values:
        """Describe the rows, with the size of each data set; see [`Rows.describe`]."""
        hub_datasets = []
        for part in self.parts.values():
            hub_datasets += part.describe(num_views)["hub_datasets"]
        return {
            "train_rows": len(self.known),
            "num_sentences": self.num_sentences,
            "datasets": {name: len(part.known) for name, part in self.parts.items()},
            "hub_datasets": hub_datasets,
        }


def add_vectors(vectors: Mapping[str, RowVectors], columns: dict[str, list]) -> dict[str, list]:
    """Add the vectors of frozen models to rows when they are read, by the numbers of the rows."""
    numbers = np.array(columns["row"])
    return columns | {model: list(look_up(numbers)) for model, look_up in vectors.items()}


@contextmanager
def named(where: str) -> Iterator[None]:
    """Put what an error is about in front of it, such as one of several data sets."""
    try:
        yield
    except ValueError as error:
        raise SettingError(f"{where}: {error}") from None


# Reading rows -------------------------------------------------------------------------------------------------------


def has_names(data: Any) -> bool:
    """Say whether data is of several data sets by their names; a `DatasetDict` is one in several splits."""
    if not isinstance(data, dict) or isinstance(data, DatasetDict):
        return False
    # Columns such as `text` and `label` are one data set too.
    is_named_so = find_parts(data, ("text", "label", "score")) or not {"input_ids", "texts"}.isdisjoint(data)
    has_columns = is_named_so or any(part_of(name) != 1 for name in data)
    return not (has_columns and all(map(is_column, data.values())))


def is_streamed(data: Any) -> bool:
    """Say whether the rows of a single data set are read while training."""
    if isinstance(data, Source):
        return data.streams or is_streamed(data.data)
    return isinstance(data, IterableDataset)


def read_mixture(run: Run, data: Mapping[str, Any]) -> Mixed:
    """Read the training rows of several data sets.

    Args:
        run (`Run`): The run, with a plan for each of several data sets.
        data (`Mapping[str, Any]`): The rows of each; see [`read_rows`].

    Returns:
        [`Mixed`]: The rows.

    Raises:
        SettingError: If the data is of a type that contrastive training cannot use, it cannot be read, or one of the
            data sets is a stream.
    """
    # 1. Refuse what may be columns, and what is for one data set.
    names = ", ".join(map(repr, data))
    texts = [rows for rows in data.values() if is_column(rows) and find_paths(rows) is None]
    is_unclear = len(texts) == len(data) and all(isinstance(next(iter(rows), None), str) for rows in texts)
    if is_unclear and not run.arguments.datasets:
        raise SettingError(
            f"train_dataset: {names} may be columns or data sets: pass columns as a datasets.Dataset, and name data "
            "sets in the arguments, datasets={name: {}}"
        )
    strategy = run.arguments.train_sampling_strategy
    if strategy != "random":
        raise SettingError(f"train_sampling_strategy = {strategy!r} is for one data set: leave it out for several")
    streams = ", ".join(name for name, rows in data.items() if is_streamed(rows))
    if streams:
        raise SettingError(f"the data sets {streams} are streams, which cannot be mixed: load them")
    unread = ", ".join(run.rows.frozen.keys() - {model for plan in run.datasets.values() for model in plan.frozen})
    if unread:
        raise SettingError(f"no objective of the data sets reads a {unread}: leave {unread} out")

    # 2. Read each.
    parts = {}
    for name, plan in run.datasets.items():
        with named(f"data set {name!r}"):
            parts[name] = read_rows(run, plan, data[name], plan.source)
    tokens = MixedRows([part.tokens for part in parts.values()])
    return Mixed(run, replace(run.rows, frozen={}), Source(list(parts)), tokens, parts=parts)


def read_evaluation_rows(run: Run, data: Any, name: str = "eval_dataset") -> Any:
    """Tokenize evaluation data; rows with the name of a data set of training are read as that is."""
    if isinstance(data, DatasetDict):  # several sets, as in transformers
        data = dict(data)
    if not has_names(data):
        return read_rows(run, run.rows, data, name, with_views=False).tokens
    tokenized = {}
    for part, rows in data.items():
        tokens = read_rows(run, run.datasets.get(part, run.rows), rows, name, with_views=False).tokens
        if part in run.datasets:
            tokens = MixedRows([tokens], first=list(run.datasets).index(part))
        tokenized[part] = tokens
    return tokenized


def read_rows(run: Run, plan: RowPlan, data: Any, name: str, with_views: bool = True) -> Rows:
    """Read the rows of one data set.

    Args:
        run (`Run`): The run, with its tokenizer and its arguments.
        plan (`RowPlan`): How the rows are read.
        data (`Any`): Texts or token ids as [`load_text_dataset`] takes them, a data set that draws its rows anew, a
            `datasets.IterableDataset`, or one of these as a [`Source`].
        name (`str`): What messages call the data.
        with_views (`bool`, *optional*, defaults to `True`): Whether an augmentation changes the texts, as in training.

    Returns:
        [`Rows`]: The rows.

    Raises:
        SettingError: If the data is of a type that contrastive training cannot use, it cannot be read, its columns are
            unclear, or it is not what the view or the objective needs.
    """
    args = run.arguments
    templates = run.settings["templates"]
    # 1. Templates and prompts leave room for a text.
    if templates or any(plan.prompts):
        for column, length, prompt in zip(COLUMNS, plan.lengths, plan.prompts, strict=True):
            with named(f"{plan.source}, column {column}"):
                full_length(run.tokenizer, length, templates, prompt)
    if isinstance(data, SeededDataset):
        return Rows(run, plan, Source((), name=name), data)

    # 2. The source, and what the view and the objective need of it.
    view = VIEW_CLASSES[plan.view if with_views else "identity"]
    kind = "documents" if plan.kind == "texts" and view.window else plan.kind
    # Those that have a value, without the names of the parts of a sum
    options = {name.rpartition(".")[2]: value for name, value in plan.options.items() if value is not None}
    source = replace(
        data if isinstance(data, Source) else Source(data),
        name=name,
        window=view.window,
        seed=args.rows_seed,
        nli_sampling=options.get("nli_sampling", "pairs"),
    )
    is_stream = with_views and is_streamed(source)
    if is_stream:
        check_stream(source, plan, args)
    readers = {"templates": templates, "prompt": any(plan.prompts), **plan.frozen}
    kept = " and ".join(name for name, is_there in readers.items() if is_there)
    if view.is_drawn and kept:
        raise SettingError(f"view {plan.view} changes texts, but {kept} must meet them unchanged: use view identity")

    # 3. The texts; of a stream the first ones.
    if is_stream:
        stream = read_stream(source)
        batch = args.train_batch_size * args.world_size
        texts = Dataset.from_list(list(stream.take(max(SAMPLE_ROWS, batch))))
        if len(texts) < batch:
            raise SettingError(
                f"{name} ends after {len(texts)} rows, fewer than a batch of {batch} over all processes: lower "
                "per_device_train_batch_size"
            )
        logger.info(
            f"train_dataset is a stream: its first {len(texts)} rows are checked now, and the others when they are "
            "read. Texts that are cut to max_seq_length are not counted."
        )
    else:
        if source.path is None and find_paths(source.data) is None:
            [table] = open_source(source.data, split=None, name=name)
            source = replace(source, data=table)
            if isinstance(table.source, Dataset) and "input_ids" in table.columns:
                sentences = as_sentences(table.source, run.tokenizer, name)
                rows = Rows(run, plan, source, sentences, SAYS.get(kind))
                check_width(source, rows.num_sentences)
                return rows
        texts = read_source(kind, source)
    if not isinstance(texts, Dataset):
        of_spans = {option: value for option, value in options.items() if option in _OF_SPANS}
        spans = SpanDataset(texts, run.tokenizer, max(plan.lengths), source.seed, **of_spans)
        return Rows(run, plan, source, spans)
    names = texts.column_names
    if [column for column in names if column not in NO_TEXT] == ["sent0"] and not templates:
        anchor, positive, _ = plan.prompts
        if positive not in ("", anchor) or plan.lengths[0] != plan.lengths[1]:
            raise SettingError(
                f"{name} holds single sentences, and the anchor and the positive of one are the same tokens: give "
                "prompts and max_seq_length one value for all columns"
            )

    # 4. The token ids, or how they are drawn.
    tokens: Dataset | ViewDataset
    how = (run.tokenizer, plan.lengths, templates, plan.prompts)
    if view.is_drawn:
        drawn = make_view(plan.view, plan.view_rate)
        length = plan.lengths[0]
        tokens = ViewDataset(texts, run.tokenizer, drawn, length, args.rows_seed, args.view_both)
    else:
        tokens = tokenize_dataset(texts, *how)
    # One text in several templates is a sentence, however often it stands.
    says = "sentences" if templates and len(names) == 1 else SAYS.get(kind)
    if not is_stream:
        return Rows(run, plan, source, tokens, says, [texts])
    tokenize = RowTokenizer(names, *how)

    def make_rows(columns: dict[str, list], numbers: list[int]) -> dict[str, list]:
        if not isinstance(tokens, ViewDataset):
            return tokenize(columns)
        rngs = [random.Random(f"{args.rows_seed} {number}") for number in numbers]
        rows = tokens.rows_of(columns["sent0"], rngs)
        return {name: [row[name] for row in rows] for name in rows[0]}

    # A shuffle of what is repeated would mix the passes, and a row could come twice before another one.
    shuffled = stream.shuffle(args.rows_seed, buffer_size=SHUFFLE_BUFFER)
    numbered = shuffled.map(lambda _, numbers: {WholeStream.NUMBER: numbers}, with_indices=True, batched=True)
    made = numbered.repeat(None).map(make_rows, with_indices=True, batched=True, remove_columns=names)
    return Rows(run, plan, source, tokens, says, stream=WholeStream(made))


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
            raise SettingError(f"{what} does not work with a stream (--streaming): leave one of the two out")
    if args.max_steps < 1:
        raise SettingError("a stream (--streaming) has no known length: set max_steps (--max_steps)")
    if getattr(source.data, "_distributed", None) is not None:
        raise SettingError(
            "train_dataset is a part of a stream: pass the whole stream, and each process takes its rows"
        )


class EpochOfRows(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins."""

    def on_epoch_begin(self, args, state, control, train_dataloader, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        train_dataloader.dataset.set_epoch(int((state.epoch or 0.0) + 1e-6))
