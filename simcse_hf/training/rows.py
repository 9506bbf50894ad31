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
| [`SpanRows`] | spans of a document |
| [`TokenRows`] | token ids that the caller made |
| [`StreamRows`] | a sentence, a pair, or a pair with hard negatives, read from a stream |
| [`MixtureRows`] | a row of one of several data sets |
"""

import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from torch.utils.data import RandomSampler, Sampler
from transformers import PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging

from ..data.class_rows import load_class_rows
from ..data.collator import (
    LARGEST_LISTED,
    ClassSampler,
    ContrastiveCollator,
    NeighborSampler,
    PermutedSampler,
)
from ..data.columns import LABEL, SAMPLE_ROWS, SCORE
from ..data.documents import SpanDataset, SpanOptions, next_sentence_pairs, read_documents
from ..data.mixture import MixedRows, MixtureCollator, MixtureSampler
from ..data.nli_pairs import build_nli_groups
from ..data.read import (
    apply_transform,
    cached_map,
    load_text_dataset,
    resolve_dataset_columns,
    resolve_scored_pairs,
)
from ..data.stream import StreamedRows, load_text_stream, resolve_stream_columns
from ..data.tokenize import RowTokenizer, check_known, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, DOCUMENT_VIEWS, MASKED_LM_VIEWS, make_view, view_rate
from ..evaluation.sts import read_pairs_argument
from ..inference.encoding import full_length
from ..inference.vectors import RowVectors
from ..models.resolve import COLUMNS, RowPlan, Run
from ..models.settings import ContrastiveSettings
from ..objectives import Objective, TrainingRows

logger = logging.get_logger(__name__)

#: Rows of a stream that are read and shuffled together.
SHUFFLE_BUFFER = 10_000
#: Rows that are compared to tell single sentences in several templates from pairs.
_COMPARED_ROWS = 8


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

    def check_room(self, plan: RowPlan) -> None:
        """Raise a `ValueError` that names the column if a prompt or a template leaves no room for a text."""
        for column, length, prompt in zip(COLUMNS, plan.lengths, plan.prompts, strict=True):
            try:
                full_length(self.tokenizer, length, self.settings.templates, prompt)
            except ValueError as error:
                raise ValueError(f"{plan.source}, column {column}: {error}") from None


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
        vectors: The vectors of frozen models, by their names in a batch.
    """

    is_stream: ClassVar[bool] = False
    tokens: Any

    def __init__(self, reader: Reader, plan: RowPlan, data: Any, name: str):
        if reader.settings.templates or any(plan.prompts):
            reader.check_room(plan)
        self.reader = reader
        self.plan = plan
        self.name = name
        self.vectors: dict[str, RowVectors] = {}
        self.tokens = self.tokenize(data)
        self.known = self.tokens.head if self.is_stream else self.tokens
        self.num_sentences = len(self.known[0]["input_ids"]) if len(self.known) else 0

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

    def refuse_frozen(self, columns: Sequence[str]) -> None:
        """Raise a `ValueError` if a teacher or a guide is named for rows that have other columns than texts."""
        if self.plan.frozen:
            found = ", ".join(columns)
            raise ValueError(
                f"a {self.frozen} reads the texts of training rows, and {self.name} has {found}: pass texts"
            )

    @property
    def frozen(self) -> str:
        """The frozen models that are named, in words."""
        return " and ".join(self.plan.frozen)

    # The rows of a run

    @property
    def batch_multiple(self) -> int:
        """What the size of a batch must be a multiple of: the texts of a class are drawn in pairs."""
        return 2 if self.plan.kind == "classes" else 1

    @property
    def longest(self) -> int:
        """The most tokens of a text, with those of its template."""
        edges = [sum(edge) for edge in self.reader.settings.template_edges]
        return getattr(self.known, "max_length", max(self.plan.lengths)) + max(edges, default=0)

    def order(self) -> PermutedSampler:
        """Return a random order of the rows."""
        args = self.reader.args
        if args.batch_neighbors and self.vectors:
            # Twice as many, because some were drawn before; and the row itself is among them.
            vectors = next(iter(self.vectors.values()))
            neighbors = vectors.neighbors(2 * args.batch_neighbors + 1)
            return NeighborSampler(neighbors, args.batch_neighbors, args.rows_seed)
        if self.plan.kind == "classes" and LABEL in self.tokens.column_names and not self.vectors:
            return ClassSampler(self.tokens.with_format("numpy")[LABEL][:], args.rows_seed)
        return PermutedSampler(len(self.tokens), args.rows_seed)

    def sampler(self, default: Sampler | None, batch_size: int) -> Sampler | None:
        """Choose the order of the rows.

        Args:
            default (`Sampler`, *optional*): transformers' choice, by `train_sampling_strategy`.
            batch_size (`int`): Rows of a batch of one process.

        Returns:
            `Sampler`: That sampler; in place of a random order one that keeps texts of a class or neighbours together,
                or that needs less memory for many rows.
        """
        if not isinstance(default, RandomSampler):
            return default
        order = self.order()
        if len(default) <= LARGEST_LISTED and type(order) is PermutedSampler:
            return default
        return order

    def go_to(self, checkpoint: str | None, batch_size: int) -> None:
        """Let a stream read on after the last batch of a checkpoint, or from its first row, in batches of a size.

        Args:
            checkpoint (`str`, *optional*): The checkpoint.
            batch_size (`int`): Rows of a batch of one process.
        """
        raise NotImplementedError

    def save_place(self, folder: Path) -> None:
        """Write how far a stream was read into the folder of a checkpoint.

        Args:
            folder (`Path`): The folder.
        """
        raise NotImplementedError

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
        columns = NUMBERS.get(self.plan.kind, ())
        return make_collator(self.reader, objective, self.longest, columns, self.vectors)

    def check(self, objective: Objective) -> None:
        """Check that an objective can learn from the rows.

        Args:
            objective (`Objective`): The objective.

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
        if args.train_sampling_strategy == "group_by_length":
            check_lengths(args.length_column_name, rows)
        if isinstance(rows, Dataset) and args.process_index == 0:
            warn_of_repeated_rows(rows)

    def check_batches(self, objective: Objective, rows: int | None) -> None:
        """Check that the rows fill the batches, and say what weakens them.

        Args:
            objective (`Objective`): The objective. If it does not compare the rows of a batch, small batches weaken
                nothing.
            rows (`int`, *optional*): Rows that are drawn in an epoch, `None` for a stream.

        Raises:
            ValueError: If there are fewer rows than a batch needs.
        """
        args = self.reader.args
        compares_rows = not objective.reconstructs
        batch = args.train_batch_size * args.world_size
        if compares_rows and args.gradient_accumulation_steps > 1:
            logger.warning(
                f"gradient_accumulation_steps = {args.gradient_accumulation_steps} adds no negatives: every forward "
                f"pass contrasts its own {batch} texts. A larger batch, more processes, or gradcache_chunk_size "
                "adds some."
            )
        if rows is None:
            return
        few = f"train_dataset has {rows} rows, fewer than one batch of {batch}"
        if rows < batch and args.dataloader_drop_last:
            raise ValueError(
                f"{few}, and dataloader_drop_last drops it: lower per_device_train_batch_size or unset "
                "dataloader_drop_last"
            )
        if rows < batch and args.world_size > 1:
            raise ValueError(
                f"{few} over {args.world_size} processes. Accelerate would repeat rows to fill it, and a repeated "
                "text would be its own negative: lower per_device_train_batch_size or use fewer processes"
            )
        if compares_rows and not args.dataloader_drop_last and rows % batch == 1 and self.num_sentences < 3:
            logger.warning(
                f"The last batch of an epoch ({rows} rows, {batch} in a batch) is a single text: 1 row in an epoch "
                "has no negatives and teaches nothing. dataloader_drop_last=True leaves it out."
            )
        in_step = batch * args.gradient_accumulation_steps
        in_epoch = -(-rows // in_step)
        steps = math.ceil(in_epoch * args.num_train_epochs)
        if args.max_steps <= 0 and steps < FEW_STEPS:
            logger.warning(
                f"{rows} rows in batches of {in_step} make {in_epoch} step(s) in an epoch and {steps} in all, which "
                "is little to learn from. A smaller per_device_train_batch_size or more num_train_epochs gives more "
                "steps."
            )

    def single_sentences(self, objective: Objective) -> list[Mapping[str, Any]]:
        """Return a row of single sentences whose views differ by dropout alone, for each data set that has some."""
        if self.num_sentences != 1 or objective.num_views == 1 or self.plan.view != "identity":
            return []
        return [self.known[0]]

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks that a run on the rows needs."""
        return [EpochOfRows(self.tokens)] if isinstance(self.tokens, SeededDataset) else []

    def digest(self) -> str | None:
        """Return a digest of the rows in their order, the first ones of a stream.

        Returns:
            `str`, *optional*: The digest; of rows that are drawn anew that of their texts, `None` without texts.
        """
        rows = getattr(self.known, "texts", self.known)
        if not isinstance(rows, Dataset):
            return None
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
        return total.hexdigest()

    # Words for results and card

    @property
    def kind(self) -> str | None:
        """What a row holds, in words of the card."""
        names = self.known.column_names
        if "relations" in names and self.plan.kind != "texts":
            return "nli"
        if SCORE in names:
            return "scored pairs"
        width = self.num_sentences
        if not width:
            return None
        if width == 1 or self._holds_one_text():
            return "sentences"
        return "pairs" if width == 2 else "hard negatives"

    def _holds_one_text(self) -> bool:
        """Return whether the columns of a row are one text in several templates."""
        edges = self.reader.settings.template_edges
        if len(edges) != self.num_sentences:
            return False
        for number in range(min(_COMPARED_ROWS, len(self.known))):
            columns = self.known[number]["input_ids"]
            texts = []
            for ids, (before, after) in zip(columns, edges, strict=True):
                texts.append(ids[before : len(ids) - after])
            shortest = min(map(len, texts))  # a longer template may truncate the text
            for text in texts:
                if text[:shortest] != texts[0][:shortest]:
                    return False
        return True

    def view(self, num_views: int) -> dict[str, Any] | None:
        """Describe the positives of single sentences; `None` for other rows or an objective without positives."""
        if num_views == 1 or self.kind != "sentences":
            return None
        return {"name": self.plan.view, "rate": None, "both": False}

    def describe(self, num_views: int) -> dict[str, Any]:
        """Describe the rows for `results.json` and the card.

        Args:
            num_views (`int`): Columns that the objective makes of a single sentence.

        Returns:
            `dict[str, Any]`: `train_rows`, `num_sentences`, `rows` (their kind), `view` and `datasets`.
        """
        return {
            "train_rows": None if self.is_stream else len(self.tokens),
            "num_sentences": self.num_sentences,
            "rows": self.kind,
            "view": self.view(num_views),
            "datasets": None,
        }

    def vector_digests(self) -> dict[str, str]:
        """Return the digests of the vectors of frozen models."""
        digests = {}
        for name, vectors in self.vectors.items():
            digests[f"{self.plan.source}: vectors of the {name}"] = vectors.digest
        return digests


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
        """Choose and order the text columns of a data set by their names."""
        return resolve_dataset_columns(data, name=self.name)

    def tokenize(self, data: Dataset) -> Dataset:
        """Tokenize texts; with a teacher or guide, number the rows, so that the collator finds their vectors."""
        texts = self.texts(data)
        if self.plan.frozen:
            self.read_vectors(texts)
        templates = self.reader.settings.templates
        lengths, prompts = self.plan.lengths, self.plan.prompts
        rows = tokenize_dataset(texts, self.reader.tokenizer, lengths, templates=templates, prompts=prompts)
        if self.plan.frozen:
            rows = rows.add_column("row", np.arange(len(rows)))
        return rows

    def read_vectors(self, texts: Dataset) -> None:
        """Read or make the vectors of the teacher and the guide for the rows.

        Args:
            texts (`Dataset`): The columns of the rows.

        Raises:
            ValueError: If the rows hold no texts, or single sentences for a guide.
        """
        columns = [name for name in texts.column_names if re.fullmatch(r"sent\d+", name)]
        if not columns:
            self.refuse_frozen(texts.column_names)
        if len(columns) == 1 and "guide" in self.plan.frozen:
            raise ValueError(
                "a guide compares candidates with the positive, which is the sentence itself in rows of one text: "
                "give rows of an anchor and a positive"
            )
        for name, words in self.plan.frozen.items():
            self.vectors[name] = RowVectors(words, texts.select_columns(columns), self.reader.args.device)


class ViewRows(TextRows):
    """Sentences with random views of them, which are drawn whenever a row is read."""

    def tokenize(self, data: Dataset | ViewDataset) -> ViewDataset:
        """Make the data set that draws the views, unless the caller has made one."""
        if isinstance(data, ViewDataset):
            return data
        if self.plan.frozen:
            raise ValueError(
                f"view {self.plan.view} changes texts, of which the {self.frozen} knows the original only: use view "
                "identity"
            )
        return view_dataset(self.texts(data), self.plan, self.reader)

    @property
    def kind(self) -> str:
        """What a row holds."""
        return "sentences"

    def view(self, num_views: int) -> dict[str, Any] | None:
        """Describe the view of the rows."""
        if num_views == 1:
            return None
        name = self.plan.view
        if name not in DATASET_VIEWS:  # The caller made the data set.
            name = type(self.tokens.view).__name__
        rate = vars(self.tokens.view).get("rate")
        if name in MASKED_LM_VIEWS:
            rate = view_rate(name, self.plan.view_rate)
        return {"name": name, "rate": rate, "both": self.tokens.both}


class DocumentRows(TextRows):
    """Pairs of neighbouring sentences of documents (SimCSE, Table 2)."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load documents and draw the pairs; see [`Rows.load`]."""
        check_structured(source, plan, "documents")
        window = 3 if plan.view == "next_three_sentences" else 1
        return first_rows(next_sentence_pairs(source.path, window, reader.args.rows_seed), source.limit)

    @property
    def kind(self) -> str:
        """What a row holds."""
        return "documents"


class NLIRows(TextRows):
    """Premises with their labelled hypotheses, whose number differs from row to row."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load labelled NLI pairs and group them by premise; see [`Rows.load`]."""
        check_structured(source, plan, "labelled NLI pairs (columns premise, hypothesis, label)")
        for name, sampling in plan.options.items():
            if name.rpartition(".")[2] == "nli_sampling":
                return first_rows(build_nli_groups(source.path, sampling=sampling), source.limit)
        return first_rows(build_nli_groups(source.path), source.limit)


class ScoredRows(TextRows):
    """Pairs of sentences with a score."""

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> Dataset:
        """Load scored pairs; see [`Rows.load`]."""
        form = "pairs with a score (columns sentence1, sentence2, score)"
        check_structured(source, plan, form, needs_file=False)
        pairs = read_pairs_argument(source.path)
        columns = {"sent0": pairs.sentences1, "sent1": pairs.sentences2, SCORE: pairs.scores}
        return first_rows(Dataset.from_dict(columns), source.limit)

    def texts(self, data: Dataset) -> Dataset:
        """Choose the two sentences and the score."""
        return resolve_scored_pairs(data, self.name)


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
        self.refuse_frozen(data.column_names)
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

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> SpanDataset:
        """Load documents; see [`Rows.load`]."""
        check_structured(source, plan, "documents")
        names = asdict(SpanOptions())
        given = {}
        for name, value in plan.options.items():
            option = name.rpartition(".")[2]
            if option in names and value is not None:
                given[option] = value
        documents = itertools.islice(read_documents(source.path), source.limit)
        length = max(plan.lengths)
        return SpanDataset(documents, reader.tokenizer, length, reader.args.rows_seed, SpanOptions(**given))

    def tokenize(self, data: SpanDataset) -> SpanDataset:
        """Return the spans as they are, unless inference would add a prompt or a template, which they do not get."""
        if self.reader.settings.templates or any(self.plan.prompts):
            raise ValueError(
                f"{self.name} holds token ids of spans, which get no prompt and no template, but inference would add "
                "them: train on texts, or leave both out"
            )
        return super().tokenize(data)

    def digest(self) -> str | None:
        """Return a digest of the documents."""
        return blake2b(np.asarray(self.tokens._tokens).tobytes(), digest_size=16).hexdigest()

    @property
    def kind(self) -> str:
        """What a row holds."""
        return "spans"


class StreamRows(Rows):
    """Rows of texts that are read from a stream while training."""

    is_stream = True

    @classmethod
    def load(cls, source: Source, plan: RowPlan, reader: Reader) -> IterableDataset:
        """Open the texts of a command as a stream; see [`Rows.load`]."""
        conflicts = []
        if plan.kind != "texts":
            conflicts.append(f"--objective {plan.objective}")
        if plan.view in DOCUMENT_VIEWS:
            conflicts.append(f"--view {plan.view}")
        if source.limit is not None:
            conflicts.append("--max_train_samples")
        if conflicts:
            raise ValueError(f"--streaming does not work with {conflicts[0]}: leave one of the two out")
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
        if plan.frozen:
            raise ValueError(
                f"a {self.frozen} needs all training rows, and a stream has none but the next: leave out --streaming"
            )
        if plan.kind in ("scored_pairs", "classes"):
            raise ValueError("pairs with a score and texts with a label cannot be streamed: load them")
        if args.max_steps < 1:
            raise ValueError(
                "a stream of training rows (--streaming) has no known length, so the run needs max_steps "
                "(--max_steps): set it to the number of training steps"
            )
        if args.dataloader_num_workers:
            raise ValueError(
                f"dataloader_num_workers = {args.dataloader_num_workers} does not work with a stream, which is read "
                "in the training process so that it can be resumed at the same row: set it to 0"
            )
        if args.train_sampling_strategy != "random":
            raise ValueError(
                f"train_sampling_strategy = {args.train_sampling_strategy!r} needs all training rows, and a stream "
                "has none but the next: leave it out"
            )
        texts = resolve_stream_columns(data, name="train_dataset")
        head: Any = Dataset.from_list(list(texts.take(SAMPLE_ROWS)))
        names = head.column_names
        tokenize = RowTokenizer(names, reader.tokenizer, plan.lengths, reader.settings.templates, plan.prompts)
        views = None
        if plan.view in DATASET_VIEWS:
            views = head = view_dataset(head, plan, reader)
        else:
            head = tokenize_dataset(
                head, reader.tokenizer, plan.lengths, templates=reader.settings.templates, prompts=plan.prompts
            )

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

    def callbacks(self) -> list[TrainerCallback]:
        """Return the callbacks that a run on the rows needs."""
        return [EpochOfStream()]

    def go_to(self, checkpoint: str | None, batch_size: int) -> None:
        """Go to a row; see [`Rows.go_to`]."""
        self.tokens.batch_size = batch_size
        self.tokens.forget()
        if checkpoint is not None:
            self.tokens.load_state(checkpoint)

    def save_place(self, folder: Path) -> None:
        """Write the place; see [`Rows.save_place`]."""
        self.tokens.save_state(str(folder))

    def check(self, objective: Objective) -> None:
        """Check the first rows; see [`Rows.check`]."""
        logger.info(
            f"train_dataset is a stream: its first {len(self.known)} rows were checked. The others are checked when "
            "they are read, and texts that are cut to max_seq_length are not counted."
        )
        super().check(objective)


class MixtureRows(Rows):
    """Several data sets, of which each batch takes one.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        plan (`RowPlan`): How rows of no data set are read, such as those of an evaluation.
        parts (`Mapping[str, Rows]`): The rows of each data set by its name.
    """

    def __init__(self, reader: Reader, plan: RowPlan, parts: Mapping[str, Rows]):
        self.reader = reader
        self.plan = plan
        self.name = "train_dataset"
        self.vectors = {}
        self.parts = dict(parts)
        self.tokens = MixedRows({name: part.tokens for name, part in self.parts.items()})
        self.known = self.tokens
        self.num_sentences = next(iter(self.parts.values())).num_sentences

    def sampler(self, default: Sampler | None, batch_size: int) -> Sampler | None:
        """Choose an order in which each batch comes from one data set; see [`Rows.sampler`]."""
        if not isinstance(default, RandomSampler):
            return default
        args = self.reader.args
        orders = {name: part.order() for name, part in self.parts.items()}
        shares = [part.plan.share for part in self.parts.values() if part.plan.share is not None]
        starts = self.tokens.starts[:-1].tolist()
        block = batch_size * args.world_size
        return MixtureSampler(orders, starts, shares or args.dataset_shares, block, args.rows_seed)

    def collator(self, objective: Objective) -> MixtureCollator:
        """Make the collators of all data sets; see [`Rows.collator`]."""
        read = {name for part in self.parts.values() for name in part.plan.frozen}
        unread = ", ".join(self.plan.frozen.keys() - read)
        if unread:
            raise ValueError(f"no objective of the data sets reads a {unread}: leave {unread} out")
        collators = []
        for number, part in enumerate(self.parts.values()):
            collators.append(part.collator(objective.of_dataset(number)))
        longest = max(part.longest for part in self.parts.values())
        return MixtureCollator(collators, make_collator(self.reader, objective, longest))

    def check(self, objective: Objective) -> None:
        """Check the rows of every data set with its objective; see [`Rows.check`]."""
        for number, (name, part) in enumerate(self.parts.items()):
            try:
                part.check(objective.of_dataset(number))
            except ValueError as error:
                raise ValueError(f"data set {name!r}: {error}") from None

    def single_sentences(self, objective: Objective) -> list[Mapping[str, Any]]:
        """Return a row of every data set of single sentences."""
        rows: list[Mapping[str, Any]] = []
        for number, part in enumerate(self.parts.values()):
            for row in part.single_sentences(objective.of_dataset(number)):
                rows.append({**row, "dataset": number})
        return rows

    def digest(self) -> str:
        """Return the digests of all data sets."""
        return "+".join(f"{name}:{part.digest()}" for name, part in self.parts.items())

    @property
    def kind(self) -> None:
        """What a row holds differs between the data sets."""
        return None

    def describe(self, num_views: int) -> dict[str, Any]:
        """Describe the rows, with the size of each data set."""
        sizes = {name: len(part.tokens) for name, part in self.parts.items()}
        return {**super().describe(num_views), "view": None, "datasets": sizes}

    def vector_digests(self) -> dict[str, str]:
        """Return the digests of the vectors of all data sets."""
        digests = {}
        for part in self.parts.values():
            digests.update(part.vector_digests())
        return digests


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
        raise TypeError(f"{name} is {_describe_type(data)}")
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


def read_training_rows(reader: Reader, run: Run, data: Any) -> Rows:
    """Make the rows of a run from the data of its caller, which may be several data sets by name.

    Args:
        reader (`Reader`): What all rows of the run are read with.
        run (`Run`): The run.
        data (`Any`): See [`read_rows`].

    Returns:
        [`Rows`]: The rows.

    Raises:
        ValueError: If one of several data sets is a stream.
    """
    if not is_mixture(data):
        return read_rows(reader, run.rows, data, "train_dataset")
    if reader.args.train_sampling_strategy != "random":
        raise ValueError(
            f"train_sampling_strategy = {reader.args.train_sampling_strategy!r} is for one data set; the rows of "
            "several are drawn at random: leave it out"
        )
    streams = [name for name, rows in data.items() if isinstance(rows, IterableDataset)]
    if streams:
        raise ValueError(f"the data sets {', '.join(streams)} are streams, which cannot be mixed: load them")
    parts = {}
    for name, plan in run.datasets.items():
        parts[name] = read_rows(reader, plan, data[name], plan.source)
    return MixtureRows(reader, run.rows, parts)


def read_evaluation_rows(reader: Reader, run: Run, data: Any) -> Any:
    """Tokenize evaluation data; rows with the name of a data set of training are read as that is."""
    if not is_mixture(data):
        return read_rows(reader, run.rows, data, "eval_dataset", with_views=False).tokens
    tokenized = {}
    for name, rows in data.items():
        plan = run.datasets.get(name, run.rows)
        tokens = read_rows(reader, plan, rows, "eval_dataset", with_views=False).tokens
        if name in run.datasets:
            tokens = MixedRows({name: tokens}, first=list(run.datasets).index(name))
        tokenized[name] = tokens
    return tokenized


def is_mixture(data: Any) -> bool:
    """Say whether training data is several data sets by name, which a `DatasetDict` is not."""
    return isinstance(data, dict) and not hasattr(data, "column_names")


# Steps that several kinds share -------------------------------------------------------------------------------------


def make_collator(
    reader: Reader,
    objective: Objective,
    longest: int,
    columns: Sequence[str] = (),
    vectors: Mapping[str, RowVectors] | None = None,
) -> ContrastiveCollator:
    """Make the collator of rows that an objective learns from."""
    args = reader.args
    return ContrastiveCollator(
        reader.tokenizer,
        pad_to=longest if args.pad_to_max_length else None,
        repeat=objective.num_views,
        add_text_ids=objective.needs_text_ids,
        columns=columns,
        add_lengths=args.device.type != "cpu",
        vectors=vectors or {},
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


def _describe_type(data: Any) -> str:
    """Return the end of an error about data of a type that cannot be used: the type, and what to pass."""
    if isinstance(data, DatasetDict):
        return f"a DatasetDict: pass one of its splits ({', '.join(map(repr, data))}), such as data['train']"
    if isinstance(data, (IterableDataset, torch.utils.data.IterableDataset)):
        return (
            "an IterableDataset, which has no length and no order to shuffle. As train_dataset, use a "
            "datasets.IterableDataset (load_text_stream makes one); otherwise read it into a datasets.Dataset"
        )
    described = f"a {type(data).__name__}"
    if isinstance(data, list):
        described = f"a list of {type(data[0]).__name__}" if data else "an empty list"
    return f"{described}: pass a datasets.Dataset, for example load_text_dataset(file), or a list of texts or of rows"


#: Steps of a run below which their number is reported.
FEW_STEPS = 50
#: Share of the training rows above which repetitions are reported.
DUPLICATE_SHARE = 0.05
#: Rows whose tokens are compared with the vocabulary.
_SAMPLE_ROWS = 500
_BATCH = 10_000


def check_lengths(column: str, rows: Any) -> None:
    """Refuse to group rows by their length where no column holds it.

    Without the column, transformers takes the number of texts in a row for its length, so all rows are equally long.

    Args:
        column (`str`): The column of the lengths.
        rows (`Any`): The training rows.

    Raises:
        ValueError: If the rows are drawn anew when they are read, or have no such column.
    """
    if column in rows.column_names:
        return
    problem = f"train_dataset has {', '.join(rows.column_names)}"
    advice = "add the column, pass texts in place of ids"
    if isinstance(rows, SeededDataset):
        problem = f"the rows of a {type(rows).__name__} are drawn anew in every epoch"
        advice = "train on texts with view='identity'"
    raise ValueError(
        "train_sampling_strategy='group_by_length' needs the number of tokens of each training row in the column "
        f"{column!r}, and {problem}: {advice}, or use train_sampling_strategy='random'"
    )


def warn_of_repeated_rows(rows: Dataset) -> None:
    """Count the rows that repeat an earlier one, and say so if there are many."""
    repeated = count_repeated_rows(rows)
    if repeated > DUPLICATE_SHARE * len(rows):
        logger.warning(
            f"{repeated:,} of {len(rows):,} training rows ({repeated / len(rows):.0%}) repeat an earlier row. "
            "Repeated texts are seen more often than the others and leave fewer negatives in a batch: remove them, "
            "unless that is intended."
        )


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
    """Tell rows that are drawn anew in every epoch which epoch begins.

    Args:
        rows (`SeededDataset`): The rows.
    """

    def __init__(self, rows: SeededDataset):
        self.rows = rows

    def on_epoch_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the rows; after a resume, `state.epoch` is a fraction inside the epoch."""
        self.rows.set_epoch(int((state.epoch or 0.0) + 1e-6))


class EpochOfStream(TrainerCallback):
    """Count the epochs of a stream, whose length is unknown, as the share of the run that is done.

    After a resume transformers would count them from 0 again.
    """

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        """Set the epoch of the run."""
        state.epoch = state.global_step / state.max_steps
