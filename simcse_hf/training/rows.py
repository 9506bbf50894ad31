"""Turn the caller's training and evaluation data into the rows of token ids that the collator takes."""

import random
import re
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from torch.utils.data import RandomSampler, Sampler
from transformers import PreTrainedTokenizerBase

from ..data.cache import cached_map
from ..data.class_rows import load_class_rows
from ..data.collator import ContrastiveCollator
from ..data.columns import LABEL, SAMPLE_ROWS, SCORE
from ..data.dataset_columns import resolve_dataset_columns, resolve_scored_pairs
from ..data.documents import SpanDataset
from ..data.mixture import MixedRows, MixtureCollator, MixtureSampler
from ..data.samplers import LARGEST_LISTED, ClassSampler, NeighborSampler, PermutedSampler
from ..data.stream import StreamedRows, resolve_stream_columns
from ..data.tokenize import row_tokenizer, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, MASKED_LM_VIEWS, make_view
from ..inference.encoding import full_length
from ..inference.vectors import RowVectors
from ..models.modeling import ContrastiveModel
from ..objectives import Objective, objective_class
from ..objectives.composed import ByDataset
from ..ops.errors import refuse
from .dev_sets import default_prompt
from .preparation import is_mixture, set_default_view
from .training_args import COLUMNS, SimCSETrainingArguments

#: Rows of token ids, of which a data loader makes batches.
Rows: TypeAlias = Dataset | SeededDataset | StreamedRows


class RowMaker:
    """Turn texts into rows of token ids, as the model of a run reads them.

    Args:
        model (`ContrastiveModel`): Its settings name templates and the prompt put before each text where the arguments
            name none, and its objective says whether rows are pairs with a score.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        args (`SimCSETrainingArguments`): The arguments of the run. A stream sets two of them: `ignore_data_skip`,
            because it finds its own place in the checkpoint, and `dataloader_num_workers=0`, because the training
            process reads it.
        dataset (`str`, *optional*): The data set of several whose rows are made, with the arguments that are its own.
            Without one, `datasets` holds the makers of all of them.
    """

    def __init__(
        self,
        model: ContrastiveModel,
        tokenizer: PreTrainedTokenizerBase,
        args: SimCSETrainingArguments,
        dataset: str | None = None,
    ):
        own = {} if dataset is None else cast(dict, args.datasets)[dataset]
        objective = own.get("objective", model.settings.objective)
        self.datasets: dict[str, RowMaker] = {}
        if dataset is None:
            self.datasets = {name: RowMaker(model, tokenizer, args, name) for name in args.datasets or ()}
        else:
            args = args.of_datasets()[dataset]
            if args.view_is_default:
                args.view = args.view_rate = None
                set_default_view(args, objective_class(objective))
        self.source = "train_dataset" if dataset is None else f"train_dataset[{dataset!r}]"
        self.tokenizer, self.args = tokenizer, args
        self.templates, self.lengths = model.settings.templates, args.by_column(args.max_seq_length)
        self.prompts = args.by_column(default_prompt(model.settings) if args.prompts is None else args.prompts)
        for column, length, prompt in zip(COLUMNS, self.lengths, self.prompts, strict=True):
            try:
                full_length(tokenizer, length, self.templates, prompt)  # refuses a prompt without room
            except ValueError as error:
                raise ValueError(f"{self.source}, column {column}: {error}") from None
        self.template_edges = model.settings.template_edges
        self.kind = objective_class(objective).rows
        self.seed = args.rows_seed
        #: The frozen models, and the vectors that they give the training rows, by their names in a batch.
        frozen = {"teacher": args.teacher, "guide": args.guide}
        reads = frozen if dataset is None else objective_class(objective).vectors  # one of several data sets may not
        self.frozen = {k: [x] if isinstance(x, str) else x for k, x in frozen.items() if x and k in reads}
        self.vectors: dict[str, RowVectors] = {}
        finds_neighbors = (args.teacher or args.guide) and args.train_sampling_strategy == "random"
        refuse(
            {
                f"batch_neighbors = {args.batch_neighbors} must be 0 or more, which a teacher or guide finds, and "
                "chooses the order of the rows: name a teacher or guide, and leave out train_sampling_strategy": (
                    args.batch_neighbors < 0 or (args.batch_neighbors and not finds_neighbors)
                )
            }
        )

    def for_training(self, data: Any) -> Rows:
        """Tokenise training data once or, for an augmentation or a stream, whenever a row is read.

        Args:
            data (`Any`): What [`as_text_dataset`] takes, a `datasets.IterableDataset`, or several data sets by name.

        Returns:
            `Dataset`, `SeededDataset` or `StreamedRows`: Rows of token ids, [`MixedRows`] of several data sets.

        Raises:
            TypeError: If the data is of a type that contrastive training cannot use.
            ValueError: If an augmentation is combined with rows of several texts, templates or a prompt, or a stream
                with what needs all rows.
        """
        if is_mixture(data):
            streams = [name for name, rows in data.items() if isinstance(rows, IterableDataset)]
            refuse({f"the data sets {', '.join(streams)} are streams, which cannot be mixed: load them": streams})
            parts = {name: maker.for_training(data[name]) for name, maker in self.datasets.items()}
            return MixedRows(cast(dict, parts))
        if self.frozen:
            return self._with_vectors(data)
        if isinstance(data, IterableDataset):
            return self._of_stream(data)
        if self.args.view in DATASET_VIEWS:
            return self._of_views(as_text_dataset(data, self.source, self.kind))
        return self.tokenized(data, self.source)

    def for_evaluation(self, name: str, data: Any) -> Dataset | SeededDataset:
        """Tokenise evaluation data with a name, as the data set of training with that name, if there is one.

        Args:
            name (`str`): The name.
            data (`Any`): What [`as_text_dataset`] takes.

        Returns:
            `Dataset` or `SeededDataset`: Rows of token ids.
        """
        if name not in self.datasets:
            return self.tokenized(data)
        return MixedRows({name: self.datasets[name].tokenized(data)}, first=list(self.datasets).index(name))

    def _with_vectors(self, data: Any) -> Dataset:
        """Tokenise rows and number them, so that the collator finds the vectors of their texts."""
        named, view = " and ".join(self.frozen), self.args.view
        refuse(
            {
                f"a {named} needs all training rows, and a stream has none but the next: leave out --streaming": (
                    isinstance(data, IterableDataset)
                ),
                f"view {view} changes texts, of which the {named} knows the original only: use view identity": (
                    view in DATASET_VIEWS
                ),
            }
        )
        texts = as_text_dataset(data, self.source, self.kind)
        columns = [name for name in texts.column_names if re.fullmatch(r"sent\d+", name)]
        refuse(
            {
                f"a {named} reads the texts of training rows, and {self.source} has {', '.join(texts.column_names)}: "
                "pass texts": not columns,
                "a guide compares candidates with the positive, which is the sentence itself in rows of one text: "
                "give rows of an anchor and a positive": len(columns) == 1 and "guide" in self.frozen,
            }
        )
        columns_only = cast(Dataset, texts).select_columns(columns)
        self.vectors = {x: RowVectors(words, columns_only, self.args.device) for x, words in self.frozen.items()}
        rows = cast(Dataset, self.tokenized(texts, self.source))
        return rows.add_column("row", np.arange(len(rows)))

    def tokenized(self, data: Any, name: str = "eval_dataset") -> Dataset | SeededDataset:
        """Tokenise texts without augmenting them.

        Args:
            data (`Any`): What [`as_text_dataset`] takes; token ids are left as they are.
            name (`str`, *optional*, defaults to `"eval_dataset"`): The argument's name, for messages.

        Returns:
            `Dataset` or `SeededDataset`: Rows of token ids.

        Raises:
            TypeError: If the data is of a type that contrastive training cannot use.
            ValueError: If the columns are unclear or hold no texts.
        """
        texts = as_text_dataset(data, name, self.kind)
        if "input_ids" in texts.column_names:
            unseen = f"{name} holds token ids of spans, which get no prompt and no template, but inference would add"
            added = self.templates or any(self.prompts)
            refuse({f"{unseen} them: train on texts, or leave both out": added and isinstance(texts, SpanDataset)})
            return texts
        workers = self.args.preprocessing_num_workers
        return tokenize_dataset(
            cast(Dataset, texts), self.tokenizer, self.lengths, workers, self.templates, self.prompts
        )

    def _of_views(self, texts: Any) -> ViewDataset:
        args = self.args
        refuse(
            {
                f"view {args.view} would change the words of the {'templates' if self.templates else 'prompt'} too: "
                "use view identity, or a model without them": self.templates or self.prompts[0],
            }
        )
        return ViewDataset(
            texts,
            self.tokenizer,
            make_view(cast(str, args.view), args.view_rate),
            self.lengths[0],
            seed=self.seed,
            both=args.view_both,
            with_view_seed=args.view in MASKED_LM_VIEWS,
        )

    def _of_stream(self, stream: IterableDataset) -> StreamedRows:
        """Tokenise a stream batch by batch, with the first rows as a data set by which the run is checked."""
        args = self.args
        strategy, workers = args.train_sampling_strategy, args.dataloader_num_workers
        refuse(
            {
                "pairs with a score and texts with a label cannot be streamed: load them": (
                    self.kind in ("scored_pairs", "classes")
                ),
                "a stream of training rows has no known length, so the run needs max_steps: set it to the number of "
                "training steps": args.max_steps < 1,
                f"dataloader_num_workers = {workers} does not work with a stream, which is read in the training "
                "process so that it can be resumed at the same row: set it to 0": (
                    workers and not args.loader_workers_are_default
                ),
                f"train_sampling_strategy = {strategy!r} needs all training rows, and a stream has none but the "
                "next: leave it out": strategy != "random",
            }
        )
        args.dataloader_num_workers = 0
        args.ignore_data_skip = True
        texts = resolve_stream_columns(stream, name="train_dataset")
        head = Dataset.from_list(list(texts.take(SAMPLE_ROWS)))
        names = head.column_names
        views = self._of_views(head) if args.view in DATASET_VIEWS else None
        tokenize = row_tokenizer(names, self.tokenizer, self.lengths, self.templates, self.prompts)

        def make_rows(rows: Sequence[dict[str, str]], rngs: Sequence[random.Random]) -> list[dict[str, Any]]:
            if views is not None:
                return views.rows_of([row["sent0"] for row in rows], rngs)
            columns = {name: [row[name] for row in rows] for name in names}
            return [{"input_ids": ids} for ids in tokenize(columns)["input_ids"]]

        return StreamedRows(
            texts,
            views or self.tokenized(head, "train_dataset"),
            make_rows,
            batch_size=args.train_batch_size,
            shuffle_buffer=args.shuffle_buffer,
            seed=self.seed,
            rank=args.process_index,
            processes=args.world_size,
        )

    def sampler(self, default: Sampler | None, batch_size: int) -> Sampler | None:
        """Choose the order of the training rows.

        Args:
            default (`Sampler`, *optional*): transformers' choice, by `train_sampling_strategy`.
            batch_size (`int`): Rows of a batch of one process.

        Returns:
            `Sampler`: That sampler; or in place of a random order one that keeps texts of a class or neighbours
                together, or that needs less memory for many rows.
        """
        if not isinstance(default, RandomSampler):
            return default
        rows = default.data_source
        if isinstance(rows, MixedRows):
            parts = {name: maker._order(rows.parts[name]) for name, maker in self.datasets.items()}
            shares = [own["share"] for own in cast(dict, self.args.datasets).values() if "share" in own]
            block = batch_size * self.args.world_size
            return MixtureSampler(
                parts, rows.starts[:-1].tolist(), shares or self.args.dataset_shares, block, self.seed
            )
        order = self._order(rows)
        if len(default) <= LARGEST_LISTED and type(order) is PermutedSampler:
            return default
        return order

    def _order(self, rows: Any) -> PermutedSampler:
        """Return a random order of the rows of a data set, in which texts of a class or neighbours stand together."""
        if self.args.batch_neighbors and self.vectors:
            # Twice as many, because some were drawn before; and the row itself is among them.
            number, vectors = self.args.batch_neighbors, next(iter(self.vectors.values()))
            return NeighborSampler(vectors.neighbors(2 * number + 1), number, self.seed)
        if self.kind == "classes" and LABEL in rows.column_names:
            return ClassSampler(rows.with_format("numpy")[LABEL][:], self.seed)
        return PermutedSampler(len(rows), self.seed)

    def collator(self, objective: Objective, rows: Rows | None) -> ContrastiveCollator | MixtureCollator:
        """Make the collator that an objective and the arguments need.

        Args:
            objective (`Objective`): The objective of the run.
            rows (`Dataset`, `SeededDataset` or `StreamedRows`, *optional*): The training rows. A view that repeats
                tokens makes texts longer than `max_seq_length`, to which `pad_to_max_length` pads.

        Returns:
            [`ContrastiveCollator`] or [`MixtureCollator`]: The collator.

        Raises:
            ValueError: If the objective needs a teacher that the arguments do not name, or does not read one of them.
        """
        if isinstance(rows, MixedRows):
            makers, parts = self.datasets.values(), rows.parts.values()
            unread = ", ".join(self.frozen.keys() - {name for maker in makers for name in maker.frozen})
            refuse({f"no objective of the data sets reads a {unread}: leave {unread} out": unread})
            collators = [
                maker.collator(objective.of_dataset(number) if isinstance(objective, ByDataset) else objective, part)
                for number, (maker, part) in enumerate(zip(makers, parts, strict=True))
            ]
            return MixtureCollator(cast(list, collators), cast(ContrastiveCollator, self.collator(objective, None)))
        reads = set(self.frozen if rows is None else objective.vectors)
        unread = " and ".join(sorted(self.frozen.keys() - reads))
        refuse(
            {
                f"objective {objective.name!r} reads no {unread}: leave {unread} out, or learn from a teacher with "
                "objective 'distill' and by a guide with 'simcse'": unread,
                f"objective {objective.name!r} learns from a teacher: name a model, or the folder of its vectors that "
                "`simcse-hf encode` wrote, with --teacher (SimCSETrainingArguments(teacher=...))": (
                    "teacher" in reads - self.frozen.keys()
                ),
            }
        )
        head = rows.head if isinstance(rows, StreamedRows) else rows
        # max_seq_length does not count the tokens of a template.
        longest = getattr(head, "max_length", max(self.lengths)) + max(map(sum, self.template_edges), default=0)
        return ContrastiveCollator(
            self.tokenizer,
            pad_to=longest if self.args.pad_to_max_length else None,
            repeat=objective.num_views,
            add_text_ids=objective.needs_text_ids,
            columns={"scored_pairs": (SCORE,), "classes": (LABEL,)}.get(self.kind, ()),
            add_lengths=self.args.device.type != "cpu",
            vectors=self.vectors,
        )


def as_text_dataset(data: Any, name: str, kind: str = "texts") -> Dataset | SeededDataset:
    """Check the type of a data set, and choose and order its text columns by their names.

    Args:
        data (`Any`): A `datasets.Dataset` of texts or of token ids, a `SeededDataset`, or a list of texts or of rows.
        name (`str`): The argument's name, for messages.
        kind (`str`, *optional*, defaults to `"texts"`): What rows are made of; see [`Objective`].

    Returns:
        `Dataset` or `SeededDataset`: Columns `sent0`, `sent1`, ... in the order anchor, positive, hard negatives, and
        the `score` of pairs or the `label` of texts if rows are of that kind; or rows of token ids.

    Raises:
        TypeError: If the data is of a type that contrastive training cannot use.
        ValueError: If the columns are unclear or hold no texts.
    """
    if isinstance(data, list) and data and isinstance(data[0], (str, dict)):
        data = Dataset.from_list(data) if isinstance(data[0], dict) else Dataset.from_dict({"sent0": data})
    if isinstance(data, SeededDataset):
        return data
    if not isinstance(data, Dataset):
        raise TypeError(f"{name} is {_describe_type(data)}")
    if "input_ids" in data.column_names:
        return _nested_token_ids(data)
    if kind == "classes":
        return load_class_rows(data, name=name)
    return resolve_scored_pairs(data, name) if kind == "scored_pairs" else resolve_dataset_columns(data, name=name)


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


def _nested_token_ids(data: Dataset) -> Dataset:
    """Return rows of sentences, each a list of token ids; a flat row of token ids is one sentence."""
    inner = getattr(data.features["input_ids"], "feature", None)
    if len(data) == 0 or not hasattr(inner, "dtype"):  # A list of lists has no dtype.
        return data
    rows = data.select_columns(["input_ids"])
    return cached_map(rows, lambda rows: {"input_ids": [[ids] for ids in rows["input_ids"]]}, ["nested"])
