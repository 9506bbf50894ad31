"""Kinds of training rows: how each is loaded, tokenized, ordered, batched, checked and described.

A kind is a class with the interface of [`Rows`], so that nothing else asks what it has:

| class | a row is |
|---|---|
| [`TextRows`] | a sentence, a pair, or a pair with hard negatives |
| [`ViewRows`] | a sentence and a random view of it, drawn whenever the row is read |
| [`DocumentRows`] | two neighbouring sentences of a document |
| [`NLIRows`] | a premise and its labelled hypotheses |
| [`ScoredRows`] | two sentences and a score |
| [`ClassRows`] | a text and its class label, or an anchor and a list of positives |
| [`TokenRows`] | token ids that the caller made |
| [`SpanRows`] | spans of a document, drawn whenever the row is read |
| [`StreamRows`] | a sentence, a pair, or a pair with hard negatives, read from a stream |
| [`MixtureRows`] | a row of one of several data sets |
"""

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging

from ..data.collator import (
    LARGEST_LISTED,
    ClassSampler,
    ContrastiveCollator,
    NeighborSampler,
    PermutedSampler,
)
from ..data.columns import LABEL, SAMPLE_ROWS, SCORE
from ..data.documents import SpanDataset, next_sentence_pairs, read_documents
from ..data.mixture import MixedRows, MixtureCollator, MixtureSampler
from ..data.nli_pairs import build_nli_groups
from ..data.read import (
    apply_transform,
    cached_map,
    load_class_rows,
    load_text_dataset,
)
from ..data.scored_pairs import read_scored_pairs, resolve_scored_pairs
from ..data.stream import StreamedRows, load_text_stream
from ..data.tokenize import RowTokenizer, check_known, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, make_view, view_rate
from ..inference.encoding import full_length
from ..inference.vectors import RowVectors
from ..models.resolve import COLUMNS, RowPlan, Run
from ..models.settings import ContrastiveSettings
from ..objectives import Objective, TrainingRows

logger = logging.get_logger(__name__)

#: Rows of a stream that are read and shuffled together.
SHUFFLE_BUFFER = 10_000


@dataclass(frozen=True)
class Source:
    """Where the training texts of a command are, and which of them it takes.

    Args:
        path (`str`): A file, or the name of a data set on the hub.
        is_file (`bool`): Whether it was named as a file.
        columns (`Sequence[str]`, *optional*): The text columns.
        limit (`int`, *optional*): Take the first rows only.
        supervised (`bool`, *optional*): Whether a row holds an anchor and a positive (`True`), a single sentence
            (`False`), or either of them (`None`).
    """

    path: str
    is_file: bool = True
    columns: Sequence[str] | None = None
    limit: int | None = None
    supervised: bool | None = None


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
    args: Any


class Rows:
    """Training rows of one kind.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        plan (`RowPlan`): How these rows are read.
        data (`Any`): Texts or token ids of the caller.
        name (`str`): What messages call the data.

    Attributes:
        tokens: The rows of token ids, of which a data loader makes batches.
        known: The rows by which a run is checked and described: all of them, or the first ones of a stream.
        num_sentences: Sentences of the first row.
        longest: The most tokens of a text, with those of its template.
        vectors: The vectors of frozen models, by their names in a batch.
        frozen: The frozen models that are named, in words.
    """

    #: Whether the rows are read while training, so that their number is not known.
    is_stream: ClassVar[bool] = False
    #: What a row holds, in words of the card; `None` where its columns tell.
    holds: str | None = None
    tokens: Any

    def __init__(self, reader: Reader, plan: RowPlan, data: Any, name: str):
        templates = reader.settings.templates
        if templates or any(plan.prompts):
            for column, length, prompt in zip(COLUMNS, plan.lengths, plan.prompts, strict=True):
                try:
                    full_length(reader.tokenizer, length, templates, prompt)  # is there room for a text?
                except ValueError as error:
                    raise ValueError(f"{plan.source}, column {column}: {error}") from None
        self.reader = reader
        self.plan = plan
        self.name = name
        self.vectors: dict[str, RowVectors] = {}
        self.frozen = " and ".join(plan.frozen)
        self.tokens = self.tokenize(data)
        if self.frozen and not self.vectors:
            found = ", ".join(data.column_names)
            raise ValueError(
                f"a {self.frozen} reads the texts of training rows, and {self.name} has {found}: pass texts"
            )
        self.known = self.tokens.head if self.is_stream else self.tokens
        self.num_sentences = len(self.known[0]["input_ids"]) if len(self.known) else 0
        edges = [sum(edge) for edge in reader.settings.template_edges]
        self.longest = getattr(self.known, "max_length", max(plan.lengths)) + max(edges, default=0)

    # Making rows

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Any:
        """Load the texts of a command.

        Args:
            source (`Source`): Where they are.
            plan (`RowPlan`): How they are read.
            reader (`Reader`): What all rows of the run are read with.

        Returns:
            `Any`: The texts, which the Trainer takes as `train_dataset`.

        Raises:
            ValueError: If the source cannot be read as rows of this kind.
        """
        raise NotImplementedError

    def tokenize(self, data: Any) -> Any:
        """Turn the caller's data into rows of token ids."""
        raise NotImplementedError

    # The rows of a run

    @property
    def batch_multiple(self) -> int:
        """What the size of a batch must be a multiple of: the texts of a class are drawn in pairs."""
        return 2 if self.plan.kind == "classes" else 1

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks that a run on the rows needs: none, if they are the same in every epoch."""
        return [] if isinstance(self.tokens, Dataset) else [EpochOfRows(self)]

    def sampler(self, batch_size: int, default: Sampler) -> Any:
        """Choose an order that keeps neighbours or texts of a class together, or needs little memory for many rows.

        Args:
            batch_size (`int`): Rows of a batch of one process.
            default (`Sampler`): An order that serves any rows.

        Returns:
            `Sampler`: The order.
        """
        args = self.reader.args
        if args.batch_neighbors and self.vectors:
            # Twice as many, because some were drawn before; and the row itself is among them.
            vectors = next(iter(self.vectors.values()))
            neighbors = vectors.neighbors(2 * args.batch_neighbors + 1)
            return NeighborSampler(neighbors, args.batch_neighbors, args.rows_seed)
        if self.plan.kind == "classes" and LABEL in self.tokens.column_names and not self.vectors:
            return ClassSampler(self.tokens.with_format("numpy")[LABEL][:], args.rows_seed)
        if len(self.tokens) > LARGEST_LISTED:
            return PermutedSampler(len(self.tokens), args.rows_seed)
        return default

    def collator(self, objective: Objective) -> Any:
        """Make the collator that an objective needs.

        Args:
            objective (`Objective`): The objective that learns from the rows.

        Returns:
            [`ContrastiveCollator`]: The collator.

        Raises:
            ValueError: If the objective needs a teacher that nobody names, or does not read one that is named.
        """
        frozen = self.plan.frozen
        unread = " and ".join(sorted(frozen.keys() - set(objective.vectors)))
        if unread:
            raise ValueError(
                f"objective {objective.name!r} reads no {unread}: leave {unread} out, or learn from a teacher with "
                "objective 'distill' and by a guide with 'simcse'"
            )
        if "teacher" in objective.vectors and "teacher" not in frozen:
            raise ValueError(
                f"objective {objective.name!r} learns from a teacher: name a model, or the folder of its vectors that "
                "`simcse-hf encode` wrote, with --teacher (SimCSETrainingArguments(teacher=...))"
            )
        shared = make_collator(self.reader, objective, self.longest)
        return replace(shared, columns=NUMBERS.get(self.plan.kind, ()), vectors=self.vectors)

    def check(self, objective: Objective) -> list[Mapping[str, Any]]:
        """Check that an objective can learn from the rows.

        Args:
            objective (`Objective`): The objective.

        Returns:
            `list[Mapping[str, Any]]`: A row of single sentences whose views differ by dropout alone, for each data set
            that has some.

        Raises:
            ValueError: If it cannot. The message says what to change.
        """
        args = self.reader.args
        rows = self.known
        num_sentences = self.num_sentences
        if not num_sentences:
            raise ValueError(f"{self.name} is empty: give a training file with at least one batch of texts")
        if self.plan.options.get("hard_negative_weight") and num_sentences < 3:
            logger.warning("hard_negative_weight has no effect on rows without hard negatives.")
        if self.plan.view == "fixed_mask" and num_sentences > 1:
            raise ValueError(f"view fixed_mask is for single sentences; the training rows hold {num_sentences} texts")
        sample = []
        for number in range(min(_SAMPLE_ROWS, len(rows))):
            sample += rows[number]["input_ids"]
        check_known(sample, self.reader.tokenizer, self.name)
        global_batch = args.train_batch_size * args.world_size
        objective.check(TrainingRows(num_sentences, global_batch, rows.column_names, rows))
        # Without the lengths, transformers takes the number of texts in a row for its length: all are equally long.
        column = args.length_column_name
        if args.train_sampling_strategy == "group_by_length" and column not in rows.column_names:
            raise ValueError(
                "train_sampling_strategy='group_by_length' needs the number of tokens of each training row in the "
                f"column {column!r}, and train_dataset, a {type(rows).__name__}, has {', '.join(rows.column_names)}: "
                "train on texts with view='identity', add the column to token ids, or use "
                "train_sampling_strategy='random'"
            )
        repeated = 0
        if isinstance(rows, Dataset) and args.process_index == 0:
            repeated = count_repeated_rows(rows)
        if repeated > DUPLICATE_SHARE * len(rows):
            logger.warning(
                f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
                "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove "
                "them, unless that is intended."
            )
        if num_sentences == 1 and objective.num_views != 1 and self.plan.view == "identity":
            return [rows[0]]
        return []

    def digests(self) -> dict[str, str | None]:
        """Return digests of what a run reads, by their names in its settings.

        Returns:
            `dict[str, str]`: That of the rows in their order (the first ones of a stream; of rows that are drawn anew
            that of their texts, `None` without texts), and those of the vectors of frozen models.
        """
        digests: dict[str, str | None] = {"training texts": None}
        for name, vectors in self.vectors.items():
            digests[f"{self.plan.source}: vectors of the {name}"] = vectors.digest
        rows = getattr(self.known, "texts", self.known)
        if not isinstance(rows, Dataset):
            return digests
        total = blake2b(digest_size=16)
        for batch in rows.with_format("arrow").iter(batch_size=_BATCH):
            for column in batch.columns:
                values = column.combine_chunks()
                while hasattr(values, "value_lengths"):
                    total.update(values.value_lengths().to_numpy(zero_copy_only=False).tobytes())
                    values = values.flatten()
                numbers = values.to_numpy(zero_copy_only=False)
                if numbers.dtype == object:
                    total.update(repr(numbers.tolist()).encode())
                else:
                    total.update(numbers.tobytes())
        digests["training texts"] = total.hexdigest()
        return digests

    # Words for results and card

    def describe(self, num_views: int) -> dict[str, Any]:
        """Describe the rows for `results.json` and the card.

        Args:
            num_views (`int`): Columns that the objective makes of a single sentence.

        Returns:
            `dict[str, Any]`: `train_rows` (`None` for a stream) and `num_sentences`; of one data set also `rows` (what
            they hold) and `view` (how the positives of single sentences are made), which differ between several.
        """
        holds = self.holds
        if holds is None and "relations" in self.known.column_names and self.plan.kind != "texts":
            holds = "nli"
        elif holds is None and SCORE in self.known.column_names:
            holds = "scored pairs"
        elif holds is None and self.num_sentences:
            holds = {1: "sentences", 2: "pairs"}.get(self.num_sentences, "hard negatives")
        view: dict[str, Any] | None = None
        if holds == "sentences" and num_views != 1:
            view = {"name": self.plan.view, "rate": None, "both": False}
        if view is not None and isinstance(self.tokens, ViewDataset):
            view |= {"rate": vars(self.tokens.view).get("rate"), "both": self.tokens.both}
            if self.plan.view in MASKED_LM_VIEWS:
                view["rate"] = view_rate(self.plan.view, self.plan.view_rate)
            elif self.plan.view not in DATASET_VIEWS:  # The caller made the data set.
                view["name"] = type(self.tokens.view).__name__
        return {
            "train_rows": None if self.is_stream else len(self.tokens),
            "num_sentences": self.num_sentences,
            "rows": holds,
            "view": view,
        }


class TextRows(Rows):
    """Rows of texts that are tokenized once: a sentence, a pair, or a pair with hard negatives."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load the texts of a command; see [`Rows.load`]."""
        expected = 1 if source.supervised is False else None
        texts = load_text_dataset(
            source.path, columns=source.columns, expected_columns=expected, max_rows=source.limit
        )
        check_supervised(source, len(texts.column_names))
        return texts

    def texts(self, data: Dataset) -> Dataset:
        """Choose and order the columns of a data set by their names."""
        return load_text_dataset(data, name=self.name)

    def tokenize(self, data: Dataset) -> Dataset:
        """Tokenize texts; with a teacher or guide, make their vectors, which the collator finds by the rows' numbers.

        Args:
            data (`datasets.Dataset`): The texts.

        Returns:
            `datasets.Dataset`: The rows.

        Raises:
            ValueError: If a teacher or guide is named for rows that hold no texts, or a guide for single sentences.
        """
        texts = self.texts(data)
        templates = self.reader.settings.templates
        if templates and len(texts.column_names) == 1:  # one text in several templates
            self.holds = "sentences"
        rows = tokenize_dataset(texts, self.reader.tokenizer, self.plan.lengths, templates, self.plan.prompts)
        columns = [name for name in texts.column_names if re.fullmatch(r"sent\d+", name)]
        if not self.frozen or not columns:
            return rows
        if len(columns) == 1 and "guide" in self.plan.frozen:
            raise ValueError(
                "a guide compares candidates with the positive, which is the sentence itself in rows of one text: "
                "give rows of an anchor and a positive"
            )
        for name, words in self.plan.frozen.items():
            self.vectors[name] = RowVectors(words, texts.select_columns(columns), self.reader.args.device)
        return rows.add_column("row", np.arange(len(rows)))


class ViewRows(TextRows):
    """Sentences with random views of them, which are drawn whenever a row is read."""

    holds = "sentences"

    def tokenize(self, data: Dataset | ViewDataset) -> ViewDataset:
        """Make the data set that draws the views, unless the caller has made one."""
        if isinstance(data, ViewDataset):
            return data
        if self.frozen:
            raise ValueError(
                f"view {self.plan.view} changes texts, of which the {self.frozen} knows the original only: use view "
                "identity"
            )
        return view_dataset(self.texts(data), self.plan, self.reader)


class DocumentRows(TextRows):
    """Pairs of neighbouring sentences of documents (SimCSE, Table 2)."""

    holds = "documents"

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load documents and draw the pairs; see [`Rows.load`]."""
        check_structured(source, plan, "documents")
        window = 3 if plan.view == "next_three_sentences" else 1
        return first_rows(next_sentence_pairs(source.path, window, reader.args.rows_seed), source.limit)


class NLIRows(TextRows):
    """Premises with their labelled hypotheses, whose number differs from row to row."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load labelled NLI pairs and group them by premise; see [`Rows.load`]."""
        check_structured(source, plan, "labelled NLI pairs (columns premise, hypothesis, label)")
        sampling = options_of(plan).get("nli_sampling", "pairs")
        return first_rows(build_nli_groups(source.path, sampling=sampling), source.limit)


class ScoredRows(TextRows):
    """Pairs of sentences with a score."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load scored pairs; see [`Rows.load`]."""
        form = "pairs with a score (columns sentence1, sentence2, score)"
        check_structured(source, plan, form, needs_file=False)
        return first_rows(read_scored_pairs(source.path).to_dataset(), source.limit)

    def texts(self, data: Dataset) -> Dataset:
        """Choose the two sentences and the score."""
        return resolve_scored_pairs(data, name=self.name)


class ClassRows(TextRows):
    """Texts with a class label, or anchors with a list of positives."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load texts with class labels; see [`Rows.load`]."""
        return load_class_rows(source.path, columns=source.columns, max_rows=source.limit)

    def texts(self, data: Dataset) -> Dataset:
        """Choose the text and its label, or the anchor and its positives."""
        return load_class_rows(data, name=self.name)


class TokenRows(Rows):
    """Rows of token ids that the caller made: a `datasets.Dataset`, or a data set that draws its rows anew."""

    def tokenize(self, data: Any) -> Any:
        """Return the rows as they are; a flat row of token ids is one sentence."""
        if isinstance(data, SeededDataset):
            return data
        inner = getattr(data.features["input_ids"], "feature", None)
        if len(data) == 0 or not hasattr(inner, "dtype"):  # A list of lists has no dtype.
            return data

        def nested(rows: Any) -> dict[str, Any]:
            return {"input_ids": [[ids] for ids in rows["input_ids"]]}

        return cached_map(data.select_columns(["input_ids"]), nested, ["nested"])


class SpanRows(TokenRows):
    """Spans of documents (DeCLUTR), which are drawn whenever a row is read."""

    holds = "spans"

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> SpanDataset:
        """Load documents; see [`Rows.load`]."""
        check_structured(source, plan, "documents")
        names = ("anchors", "positives", "max_span", "min_span")
        given = {name: value for name, value in options_of(plan).items() if name in names}
        documents = itertools.islice(read_documents(source.path), source.limit)
        length = max(plan.lengths)
        return SpanDataset(documents, reader.tokenizer, length, reader.args.rows_seed, **given)

    def tokenize(self, data: SpanDataset) -> SpanDataset:
        """Return the spans as they are, unless inference would add a prompt or a template, which they do not get."""
        if self.reader.settings.templates or any(self.plan.prompts):
            raise ValueError(
                f"{self.name} holds token ids of spans, which get no prompt and no template, but inference would add "
                "them: train on texts, or leave both out"
            )
        return data

    def digests(self) -> dict[str, str | None]:
        """Return a digest of the documents; see [`Rows.digests`]."""
        documents = np.asarray(self.tokens._tokens).tobytes()
        return {**super().digests(), "training texts": blake2b(documents, digest_size=16).hexdigest()}


class StreamRows(Rows):
    """Rows of texts that are read from a stream while training."""

    is_stream = True

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> IterableDataset:
        """Open the texts of a command as a stream; see [`Rows.load`]."""
        conflicts = {
            f"--objective {plan.objective}": plan.kind != "texts",
            f"--view {plan.view}": plan.view in DOCUMENT_VIEWS,
            "--max_train_samples": source.limit is not None,
        }
        for option, is_there in conflicts.items():
            if is_there:
                raise ValueError(f"--streaming does not work with {option}: leave one of the two out")
        expected = 1 if source.supervised is False else None
        stream = load_text_stream(source.path, columns=source.columns, expected_columns=expected)
        check_supervised(source, len(stream.features or {}))
        return stream

    def tokenize(self, data: IterableDataset) -> StreamedRows:
        """Tokenize a stream batch by batch, with the first rows as a data set by which the run is checked.

        Args:
            data (`datasets.IterableDataset`): The texts.

        Returns:
            `StreamedRows`: The batches.

        Raises:
            ValueError: If the run needs all rows at once, or the number of steps is not known.
        """
        reader = self.reader
        args = reader.args
        plan = self.plan
        conflicts = {
            f"a {self.frozen}": bool(self.frozen),
            f"objective {plan.objective!r}": plan.kind in ("scored_pairs", "classes"),
            f"train_sampling_strategy = {args.train_sampling_strategy!r}": args.train_sampling_strategy != "random",
            f"dataloader_num_workers = {args.dataloader_num_workers}": bool(args.dataloader_num_workers),
        }
        for what, is_there in conflicts.items():
            if is_there:
                raise ValueError(
                    f"{what} does not work with a stream (--streaming), of which the training process has one row "
                    "after the other and can be resumed at each: leave one of the two out"
                )
        if args.max_steps < 1:
            raise ValueError(
                "a stream of training rows (--streaming) has no known length, so the run needs max_steps "
                "(--max_steps): set it to the number of training steps"
            )
        texts = load_text_stream(data, name="train_dataset")
        head: Any = Dataset.from_list(list(texts.take(SAMPLE_ROWS)))
        names = head.column_names
        logger.info(
            f"train_dataset is a stream: its first {len(head)} rows are checked now, and the others when they are "
            "read. Texts that are cut to max_seq_length are not counted."
        )
        if reader.settings.templates and len(names) == 1:  # one text in several templates
            self.holds = "sentences"
        tokenize = RowTokenizer(names, reader.tokenizer, plan.lengths, reader.settings.templates, plan.prompts)
        views = None
        if plan.view in DATASET_VIEWS:
            views = head = view_dataset(head, plan, reader)
        else:
            head = tokenize_dataset(head, reader.tokenizer, plan.lengths, reader.settings.templates, plan.prompts)

        def make_rows(rows: Sequence[dict[str, str]], rngs: Sequence[random.Random]) -> list[dict[str, Any]]:
            if views is not None:
                return views.rows_of([row["sent0"] for row in rows], rngs)
            columns = tokenize({name: [row[name] for row in rows] for name in names})
            return [{name: values[place] for name, values in columns.items()} for place in range(len(rows))]

        return StreamedRows(
            texts,
            head,
            make_rows,
            batch_size=args.train_batch_size,
            shuffle_buffer=SHUFFLE_BUFFER,
            seed=args.rows_seed,
            rank=args.process_index,
            processes=args.world_size,
        )


class MixtureRows(Rows):
    """Several data sets, of which each batch takes one.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        run (`Run`): The run, with a plan for each data set.
        data (`Mapping[str, Any]`): The data of the caller by the names of the data sets; see [`read_rows`].

    Raises:
        ValueError: If one of the data sets is a stream, or the rows would not be drawn at random.
    """

    def __init__(self, reader: Reader, run: Run, data: Mapping[str, Any]):
        strategy = reader.args.train_sampling_strategy
        if strategy != "random":
            raise ValueError(
                f"train_sampling_strategy = {strategy!r} is for one data set; the rows of several are drawn at "
                "random: leave it out"
            )
        streams = [name for name, rows in data.items() if isinstance(rows, IterableDataset)]
        if streams:
            raise ValueError(f"the data sets {', '.join(streams)} are streams, which cannot be mixed: load them")
        self.reader = reader
        self.plan = run.rows  # of rows of no data set, such as those of an evaluation
        self.name = "train_dataset"
        self.parts = {name: read_rows(reader, plan, data[name], plan.source) for name, plan in run.datasets.items()}
        self.tokens = MixedRows([part.tokens for part in self.parts.values()])
        self.known = self.tokens
        self.num_sentences = next(iter(self.parts.values())).num_sentences
        self.longest = max(part.longest for part in self.parts.values())

    def sampler(self, batch_size: int, default: Sampler) -> MixtureSampler:
        """Choose an order in which each batch comes from one data set; see [`Rows.sampler`]."""
        args = self.reader.args
        orders = {}
        for name, part in self.parts.items():
            orders[name] = part.sampler(batch_size, PermutedSampler(len(part.tokens), args.rows_seed))
        shares = [part.plan.share for part in self.parts.values() if part.plan.share is not None]
        block = batch_size * args.world_size
        return MixtureSampler(orders, self.tokens.starts, shares or args.dataset_shares, block, args.rows_seed)

    def collator(self, objective: Objective) -> MixtureCollator:
        """Make the collators of all data sets; see [`Rows.collator`]."""
        read = {name for part in self.parts.values() for name in part.plan.frozen}
        unread = ", ".join(self.plan.frozen.keys() - read)
        if unread:
            raise ValueError(f"no objective of the data sets reads a {unread}: leave {unread} out")
        collators = []
        for number, part in enumerate(self.parts.values()):
            collators.append(part.collator(objective.of_dataset(number)))
        default = make_collator(self.reader, objective, self.longest)
        return MixtureCollator(collators, default)

    def check(self, objective: Objective) -> list[Mapping[str, Any]]:
        """Check the rows of every data set with its objective; see [`Rows.check`]."""
        singles: list[Mapping[str, Any]] = []
        for number, (name, part) in enumerate(self.parts.items()):
            try:
                found = part.check(objective.of_dataset(number))
            except ValueError as error:
                raise ValueError(f"data set {name!r}: {error}") from None
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

    def describe(self, num_views: int) -> dict[str, Any]:
        """Describe the rows, with the size of each data set; see [`Rows.describe`]."""
        return {
            "train_rows": len(self.tokens),
            "num_sentences": self.num_sentences,
            "datasets": {name: len(part.tokens) for name, part in self.parts.items()},
        }


# Choosing the kind --------------------------------------------------------------------------------------------------

#: Columns of numbers that objectives read in a batch, by `Objective.rows`.
NUMBERS = {"scored_pairs": (SCORE,), "classes": (LABEL,)}
#: The class of the rows that an objective learns from, by `Objective.rows`.
KINDS: dict[str, type[Rows]] = {
    "texts": TextRows,
    "nli": NLIRows,
    "scored_pairs": ScoredRows,
    "classes": ClassRows,
    "spans": SpanRows,
}


def kind_of(plan: RowPlan, is_stream: bool = False) -> type[Rows]:
    """Return the class of the rows that a plan reads from files."""
    if is_stream:
        return StreamRows
    if plan.kind == "texts" and plan.view in DOCUMENT_VIEWS:
        return DocumentRows
    return KINDS[plan.kind]


def read_rows(reader: Reader, plan: RowPlan, data: Any, name: str, with_views: bool = True) -> Rows:
    """Choose the class of the caller's data, and make its rows.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        plan (`RowPlan`): How the rows are read.
        data (`Any`): A `datasets.Dataset` of texts or of token ids, a data set that draws its rows anew, a
            `datasets.IterableDataset`, or a list of texts or of rows.
        name (`str`): What messages call the data.
        with_views (`bool`, *optional*, defaults to `True`): Whether an augmentation changes the texts, as in training.

    Returns:
        [`Rows`]: The rows.

    Raises:
        TypeError: If the data is of a type that contrastive training cannot use.
        ValueError: If the columns are unclear or hold no texts.
    """
    if isinstance(data, list) and data and isinstance(data[0], str):
        data = Dataset.from_dict({"sent0": data})
    elif isinstance(data, list) and data and isinstance(data[0], dict):
        data = Dataset.from_list(data)
    if isinstance(data, IterableDataset) and with_views:
        return StreamRows(reader, plan, data, name)
    if isinstance(data, ViewDataset):
        return ViewRows(reader, plan, data, name)
    if isinstance(data, SpanDataset):
        return SpanRows(reader, plan, data, name)
    if not isinstance(data, (Dataset, SeededDataset)):
        found = type(data).__name__
        if isinstance(data, list):
            found = f"list of {type(data[0]).__name__}" if data else "list without rows, so it is empty"
        raise TypeError(
            f"{name} is a {found}: pass a datasets.Dataset, for example load_text_dataset(file), one split of a "
            "DatasetDict, such as data['train'], or a list of texts or of rows. Training texts may also be a "
            "datasets.IterableDataset, for example load_text_stream(file)."
        )
    if "input_ids" not in data.column_names:
        data = apply_transform(data)
    if "input_ids" in data.column_names:
        return TokenRows(reader, plan, data, name)
    if with_views and plan.view in DATASET_VIEWS:
        return ViewRows(reader, plan, data, name)
    kind = kind_of(plan)
    if kind is SpanRows:  # whose data set draws the spans; these are texts of an evaluation
        kind = TextRows
    return kind(reader, plan, data, name)


def read_evaluation_rows(reader: Reader, run: Run, data: Any, name: str = "eval_dataset") -> Any:
    """Tokenize evaluation data; rows with the name of a data set of training are read as that is."""
    if not isinstance(data, dict) or hasattr(data, "column_names"):  # as a DatasetDict has
        return read_rows(reader, run.rows, data, name, with_views=False).tokens
    tokenized = {}
    for part, rows in data.items():
        tokens = read_rows(reader, run.datasets.get(part, run.rows), rows, name, with_views=False).tokens
        if part in run.datasets:
            tokens = MixedRows([tokens], first=list(run.datasets).index(part))
        tokenized[part] = tokens
    return tokenized


# Steps that several kinds share -------------------------------------------------------------------------------------


def options_of(plan: RowPlan) -> dict[str, Any]:
    """Return the options of the objective that have a value, without the names of the parts of a sum."""
    return {name.rpartition(".")[2]: value for name, value in plan.options.items() if value is not None}


def check_structured(source: Source, plan: RowPlan, form: str, needs_file: bool = True) -> None:
    """Raise a `ValueError` unless the options name a file that can be read by its structure."""
    if needs_file and not source.is_file:
        raise ValueError(
            f"--objective {plan.objective} and --view {plan.view} read a file: name it with --train_file instead of "
            "--dataset_name"
        )
    if source.columns is not None:
        raise ValueError(
            f"--columns does not apply to rows of {form}: leave it out, and give {source.path} their form"
        )


def check_supervised(source: Source, width: int) -> None:
    """Raise a `ValueError` if supervised training was asked for and a row holds one text."""
    if source.supervised and width == 1:
        raise ValueError(
            f"{source.path} holds one text in a row, and supervised training needs a class label in a column 'label', "
            "or an anchor, a positive and any number of hard negatives. Add the columns, or train without labels "
            "(simcse-hf train unsup)."
        )


def first_rows(rows: Dataset, limit: int | None) -> Dataset:
    """Return the first rows, or all of them without a limit."""
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def make_collator(reader: Reader, objective: Objective, longest: int) -> ContrastiveCollator:
    """Make the collator of rows of texts that an objective learns from, of which none is longer than `longest`."""
    return ContrastiveCollator(
        reader.tokenizer,
        pad_to=longest if reader.args.pad_to_max_length else None,
        repeat=objective.num_views,
        add_text_ids=objective.needs_text_ids,
        add_lengths=reader.args.device.type != "cpu",
    )


def view_dataset(texts: Dataset, plan: RowPlan, reader: Reader) -> ViewDataset:
    """Make the data set that draws the views of a plan."""
    added = "templates" if reader.settings.templates else "prompt"
    if reader.settings.templates or plan.prompts[0]:
        raise ValueError(
            f"view {plan.view} would change the words of the {added} too: use view identity, or a model without them"
        )
    return ViewDataset(
        texts,
        reader.tokenizer,
        make_view(plan.view, plan.view_rate),
        plan.lengths[0],
        seed=reader.args.rows_seed,
        both=reader.args.view_both,
        with_view_seed=plan.view in MASKED_LM_VIEWS,
    )


#: Share of the training rows above which repetitions are reported.
DUPLICATE_SHARE = 0.05
#: Rows whose tokens are compared with the vocabulary.
_SAMPLE_ROWS = 500
_BATCH = 10_000


def count_repeated_rows(rows: Dataset) -> int:
    """Count the rows whose token ids equal those of an earlier row, by digests of 64 bits."""
    digests = bytearray()
    for batch in rows.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=_BATCH):
        # The rows [[5, 6], [7]] and [[8]] are the tokens 5 6 7 8, with the texts' bounds 0 2 3 4 and the rows' 0 2 3.
        lists = batch["input_ids"].combine_chunks()
        texts = lists.flatten()
        row_bounds = lists.offsets.to_numpy().astype(np.int64)
        row_bounds -= row_bounds[0]
        text_bounds = texts.offsets.to_numpy().astype(np.int64)
        text_bounds -= text_bounds[0]
        tokens = texts.flatten().to_numpy(zero_copy_only=False)
        lengths = np.diff(text_bounds)
        for first, last in itertools.pairwise(row_bounds):
            own = tokens[text_bounds[first] : text_bounds[last]].tobytes() + lengths[first:last].tobytes()
            digests += blake2b(own, digest_size=8).digest()
    return len(rows) - len(np.unique(np.frombuffer(bytes(digests), dtype=np.uint64)))


class EpochOfRows(TrainerCallback):
    """Tell rows that are drawn anew in every epoch which epoch begins, and count the epochs of a stream.

    Args:
        rows (`Rows`): The rows.
    """

    def __init__(self, rows: Rows):
        self.rows = rows

    def on_epoch_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        if isinstance(self.rows.tokens, SeededDataset):
            self.rows.tokens.set_epoch(int((state.epoch or 0.0) + 1e-6))

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Count the epochs of a stream, whose length is unknown, as the share of the run that is done.

        After a resume transformers would count them from 0 again.
        """
        if self.rows.is_stream:
            state.epoch = state.global_step / state.max_steps
