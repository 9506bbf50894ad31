"""Turn the caller's training and evaluation data into the rows of token ids that the collator takes."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from datasets import Dataset, DatasetDict, IterableDataset
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase

from ..data.collator import ContrastiveCollator
from ..data.columns import SAMPLE_ROWS, SCORE, resolve_dataset_columns, resolve_scored_pairs
from ..data.stream import StreamedRows, resolve_stream_columns
from ..data.tokenize import row_tokenizer, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, MASKED_LM_VIEWS, MaskedLMView, make_view, masked_lm_rate
from ..inference.encoding import full_length
from ..models.modeling import ContrastiveModel
from ..objectives import Objective, objective_class
from ..ops.errors import refuse
from .callbacks import default_prompt
from .training_args import SimCSETrainingArguments

#: Rows of token ids, of which a data loader makes batches.
Rows: TypeAlias = Dataset | SeededDataset | StreamedRows
#: torch's `RandomSampler` makes a list of all row numbers, about 40 bytes for each. Up to this number of rows (0.7 GB
#: in each process) training keeps its order; above, the order is that of [`PermutedSampler`].
LARGEST_LISTED = 2**24

_BLOCK = 2**16  # numbers that are turned into Python integers at once


class RowMaker:
    """Turn texts into rows of token ids, as the model of a run reads them.

    Args:
        model (`ContrastiveModel`): Its settings name templates and the prompt put before each text, and its objective
            says whether rows are pairs with a score.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        args (`SimCSETrainingArguments`): The arguments of the run. A stream changes them: its place is restored from
            the checkpoint, so transformers skips no rows, and the training process reads it.
    """

    def __init__(self, model: ContrastiveModel, tokenizer: PreTrainedTokenizerBase, args: SimCSETrainingArguments):
        self.tokenizer, self.args = tokenizer, args
        self.templates, self.prompt = model.settings.templates, default_prompt(model.settings)
        full_length(tokenizer, args.max_seq_length, self.templates, self.prompt)  # refuses a prompt without room
        self.template_edges = model.settings.template_edges
        self.scored = objective_class(model.settings.objective).rows == "scored_pairs"
        self.seed = args.seed if args.data_seed is None else args.data_seed

    def for_training(self, data: Any) -> Rows:
        """Tokenise training data once or, for an augmentation or a stream, whenever a row is read.

        Args:
            data (`Any`): What [`as_text_dataset`] takes, or a `datasets.IterableDataset`.

        Returns:
            `Dataset`, `SeededDataset` or `StreamedRows`: Rows of token ids.

        Raises:
            TypeError: If the data is of a type that contrastive training cannot use.
            ValueError: If an augmentation is combined with rows of several texts, templates or a prompt, or a stream
                with what needs all rows.
        """
        if isinstance(data, IterableDataset):
            return self._of_stream(data)
        if self.args.view in DATASET_VIEWS:
            return self._of_views(as_text_dataset(data, "train_dataset", self.scored))
        return self.tokenized(data, "train_dataset")

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
        texts = as_text_dataset(data, name, self.scored)
        if "input_ids" in texts.column_names:
            return texts
        texts = cast(Dataset, texts)
        if self.prompt:
            texts = texts.map(_put_before, batched=True, fn_kwargs={"prompt": self.prompt})
        args = self.args
        return tokenize_dataset(
            texts, self.tokenizer, args.max_seq_length, args.preprocessing_num_workers, self.templates
        )

    def _of_views(self, texts: Any) -> ViewDataset:
        args = self.args
        refuse(
            {
                f"view {args.view} makes the positive of single sentences, in one column of texts; the training rows "
                f"hold {', '.join(texts.column_names)}": texts.column_names != ["sent0"],
                f"view {args.view} would change the words of the {'templates' if self.templates else 'prompt'} too: "
                "use view identity, or a model without them": self.templates or self.prompt,
            }
        )
        return ViewDataset(
            texts,
            self.tokenizer,
            make_view(cast(str, args.view), args.view_rate),
            args.max_seq_length,
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
                "scored pairs cannot be streamed: load them, or train on pairs without scores": self.scored,
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
        tokenize = row_tokenizer(names, self.tokenizer, args.max_seq_length, self.templates)

        def make_rows(rows: Sequence[dict[str, str]], rngs: Sequence[random.Random]) -> list[dict[str, Any]]:
            if views is not None:
                return views.rows_of([row["sent0"] for row in rows], rngs)
            columns = {name: [self.prompt + row[name] for row in rows] for name in names}
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

    def collator(self, objective: Objective, rows: Rows | None) -> ContrastiveCollator:
        """Make the collator that an objective and the arguments need.

        Args:
            objective (`Objective`): The objective of the run.
            rows (`Dataset`, `SeededDataset` or `StreamedRows`, *optional*): The training rows. A view that repeats
                tokens makes texts longer than `max_seq_length`, to which `pad_to_max_length` pads.

        Returns:
            [`ContrastiveCollator`]: The collator.
        """
        head = rows.head if isinstance(rows, StreamedRows) else rows
        # max_seq_length does not count the tokens of a template.
        longest = getattr(head, "max_length", self.args.max_seq_length) + max(map(sum, self.template_edges), default=0)
        return ContrastiveCollator(
            self.tokenizer,
            pad_to=longest if self.args.pad_to_max_length else None,
            repeat=objective.num_views,
            add_text_ids=objective.needs_text_ids,
            add_scores=self.scored,
            add_lengths=self.args.device.type != "cpu",
        )


def as_text_dataset(data: Any, name: str, scored: bool = False) -> Dataset | SeededDataset:
    """Check the type of a data set, and choose and order its text columns by their names.

    Args:
        data (`Any`): A `datasets.Dataset` of texts or of token ids, a `SeededDataset`, or a list of texts or of rows.
        name (`str`): The argument's name, for messages.
        scored (`bool`, *optional*, defaults to `False`): Whether rows are pairs with a score.

    Returns:
        `Dataset` or `SeededDataset`: Columns `sent0`, `sent1`, ... in the order anchor, positive, hard negatives, and
        `score` if rows are `scored`; or rows of token ids.

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
    return resolve_scored_pairs(data, name) if scored else resolve_dataset_columns(data, name=name)


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
    return data.select_columns(["input_ids"]).map(
        lambda rows: {"input_ids": [[ids] for ids in rows["input_ids"]]}, batched=True
    )


def _put_before(rows: dict[str, list[Any]], prompt: str) -> dict[str, list[Any]]:
    """Put a prompt before each text of a batch of rows; `texts` holds a list of texts in each row."""
    if "texts" in rows:
        return {**rows, "texts": [[prompt + text for text in texts] for texts in rows["texts"]]}
    return {name: x if name == SCORE else [prompt + text for text in x] for name, x in rows.items()}


def make_masked_lm_view(
    model: ContrastiveModel, tokenizer: PreTrainedTokenizerBase, args: SimCSETrainingArguments
) -> MaskedLMView | None:
    """Load the masked language model that makes views on the device, if `args.view` is such a view."""
    if args.view not in MASKED_LM_VIEWS:
        return None
    rate = cast(float, masked_lm_rate(args.view, args.view_rate))
    return MaskedLMView(args.view_model or cast(str, model.name_or_path), tokenizer, rate).to(args.device)


class PermutedSampler(Sampler[int]):
    """Draw each row number once, in an order that depends on the number of rows, the seed and the epoch only.

    So every process has the same order, for any number of processes, and a resumed run continues it. The order takes
    4 bytes for each row (8 bytes from 2^32 rows on).

    Args:
        num_rows (`int`): The number of rows.
        seed (`int`): Chooses the orders.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows, self.seed, self.epoch = num_rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def __iter__(self) -> Iterator[int]:
        """Yield the row numbers; the next pass is that of the next epoch, as with Accelerate's sampler."""
        epoch = self.epoch
        order = np.arange(self.num_rows, dtype=np.uint32 if self.num_rows <= 2**32 else np.uint64)
        np.random.default_rng((self.seed, epoch)).shuffle(order)
        for start in range(0, self.num_rows, _BLOCK):
            yield from order[start : start + _BLOCK].tolist()
        self.set_epoch(epoch + 1)
