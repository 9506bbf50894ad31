"""Turn the caller's training and evaluation data into the rows that the collator takes."""

import random
from collections.abc import Sequence
from typing import Any, cast

import torch
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedTokenizerBase

from ..data.collator import ContrastiveCollator
from ..data.columns import SAMPLE_ROWS, SCORE, resolve_dataset_columns, resolve_scored_pairs
from ..data.stream import MakeRows, StreamedRows, resolve_stream_columns
from ..data.tokenize import row_tokenizer, tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, MASKED_LM_VIEWS, MaskedLMView, make_view, masked_lm_rate
from ..models.modeling import ContrastiveModel
from ..objectives import objective_class
from .base import prepared_objective
from .training_args import SimCSETrainingArguments

_HOW = "pass a datasets.Dataset, for example load_text_dataset(file), or a list of texts or of rows"


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
    if isinstance(data, DatasetDict):
        splits = ", ".join(map(repr, data))
        raise TypeError(f"{name} is a DatasetDict: pass one of its splits ({splits}), such as data['train']")
    if isinstance(data, (IterableDataset, torch.utils.data.IterableDataset)):
        raise TypeError(
            f"{name} is an IterableDataset, which has no length and no order to shuffle. As train_dataset, use a "
            "datasets.IterableDataset (load_text_stream makes one); otherwise read it into a datasets.Dataset"
        )
    if isinstance(data, list):
        if not data or not isinstance(data[0], (str, dict)):
            description = f"a list of {type(data[0]).__name__}" if data else "an empty list"
            raise TypeError(f"{name} is {description}: {_HOW}")
        data = Dataset.from_list(data) if isinstance(data[0], dict) else Dataset.from_dict({"sent0": data})
    if isinstance(data, SeededDataset):
        return data
    if not isinstance(data, Dataset):
        raise TypeError(f"{name} is a {type(data).__name__}: {_HOW}")
    if "input_ids" in data.column_names:
        return _nested_token_ids(data)
    return resolve_scored_pairs(data, name) if scored else resolve_dataset_columns(data, name=name)


def _nested_token_ids(data: Dataset) -> Dataset:
    """Return rows of sentences, each a list of token ids; a flat row of token ids is one sentence."""
    inner = getattr(data.features["input_ids"], "feature", None)
    if len(data) == 0 or not hasattr(inner, "dtype"):  # A list of lists has no dtype.
        return data
    return data.select_columns(["input_ids"]).map(
        lambda rows: {"input_ids": [[ids] for ids in rows["input_ids"]]}, batched=True
    )


def training_rows(
    data: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: SimCSETrainingArguments,
    templates: Sequence[str] = (),
    prompt: str = "",
    scored: bool = False,
) -> Dataset | SeededDataset | StreamedRows:
    """Tokenise training data once or, for an augmentation, whenever a row is read.

    Args:
        data (`Any`): What [`as_text_dataset`] takes.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        args (`SimCSETrainingArguments`): Gives `max_seq_length`, the view, its rate, and the seed of views.
        templates (`Sequence[str]`, *optional*): See `tokenize_dataset`.
        prompt (`str`, *optional*): Put before each text, as sentence-transformers does.
        scored (`bool`, *optional*, defaults to `False`): Whether rows are pairs with a score.

    Returns:
        `Dataset`, `SeededDataset` or `StreamedRows`: Rows of token ids.

    Raises:
        TypeError: If the data is of a type that contrastive training cannot use.
        ValueError: If an augmentation is combined with rows of several texts, templates or a prompt, or a stream with
            what needs all rows.
    """
    if isinstance(data, IterableDataset):
        if scored:
            raise ValueError("scored pairs cannot be streamed: load them, or train on pairs without scores")
        return _streamed_rows(data, tokenizer, args, templates, prompt)
    if args.view not in DATASET_VIEWS:
        return tokenized_rows(data, tokenizer, args, templates, prompt, scored, "train_dataset")
    return _view_rows(as_text_dataset(data, "train_dataset", scored), tokenizer, args, templates, prompt)


def _view_rows(
    dataset: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: SimCSETrainingArguments,
    templates: Sequence[str],
    prompt: str,
) -> ViewDataset:
    if dataset.column_names != ["sent0"]:
        raise ValueError(
            f"view {args.view} makes the positive of single sentences, in one column of texts; the training rows hold "
            f"{', '.join(dataset.column_names)}"
        )
    if templates or prompt:
        raise ValueError(
            f"view {args.view} would change the words of the {'templates' if templates else 'prompt'} too: use view "
            "identity, or a model without them"
        )
    return ViewDataset(
        dataset,
        tokenizer,
        make_view(cast(str, args.view), args.view_rate),
        args.max_seq_length,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        both=args.view_both,
        with_view_seed=args.view in MASKED_LM_VIEWS,
    )


def _streamed_rows(
    data: IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    args: SimCSETrainingArguments,
    templates: Sequence[str],
    prompt: str,
) -> StreamedRows:
    """Tokenise a stream batch by batch, with the first rows as a data set by which the run is checked."""
    if args.max_steps < 1:
        raise ValueError(
            "a stream of training rows has no known length, so the run needs max_steps: set it to the number of "
            "training steps"
        )
    if args.loader_workers_are_default:
        args.dataloader_num_workers = 0
    if args.dataloader_num_workers:
        raise ValueError(
            f"dataloader_num_workers = {args.dataloader_num_workers} does not work with a stream, which is read in "
            "the training process so that it can be resumed at the same row: set it to 0"
        )
    if args.train_sampling_strategy != "random":
        raise ValueError(
            f"train_sampling_strategy = {args.train_sampling_strategy!r} needs all training rows, and a stream has "
            "none but the next: leave it out"
        )
    texts = resolve_stream_columns(data, name="train_dataset")
    head = Dataset.from_list(list(texts.take(SAMPLE_ROWS)))
    make_rows: MakeRows
    first: Dataset | SeededDataset
    if args.view in DATASET_VIEWS:
        views = first = _view_rows(head, tokenizer, args, templates, prompt)

        def make_rows(rows: Sequence[dict[str, str]], rngs: Sequence[random.Random]) -> list[dict[str, Any]]:
            return views.rows_of([row["sent0"] for row in rows], rngs)
    else:
        first = cast(Dataset, tokenized_rows(head, tokenizer, args, templates, prompt, name="train_dataset"))
        tokenize = row_tokenizer(head.column_names, tokenizer, args.max_seq_length, templates)

        def make_rows(rows: Sequence[dict[str, str]], rngs: Sequence[random.Random]) -> list[dict[str, Any]]:
            columns = {name: [prompt + row[name] for row in rows] for name in head.column_names}
            return [{"input_ids": ids} for ids in tokenize(columns)["input_ids"]]

    args.ignore_data_skip = True  # The stream itself continues at the right row.
    return StreamedRows(
        texts,
        first,
        make_rows,
        batch_size=args.train_batch_size,
        shuffle_buffer=args.shuffle_buffer,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        rank=args.process_index,
        processes=args.world_size,
    )


def padded_length(
    dataset: Dataset | SeededDataset | None,
    args: SimCSETrainingArguments,
    template_edges: Sequence[Sequence[int]] = (),
) -> int:
    """Return the largest number of tokens of a training text, which `pad_to_max_length` pads to.

    Args:
        dataset (`Dataset` or `SeededDataset`, *optional*): The training rows. A view that repeats tokens makes texts
            longer than `max_seq_length`.
        args (`SimCSETrainingArguments`): For `max_seq_length`.
        template_edges (`Sequence[Sequence[int]]`, *optional*, defaults to `()`): Numbers of tokens before and after
            the text in each template. `max_seq_length` does not count them.

    Returns:
        `int`: The number of tokens, including special tokens and template.
    """
    longest = getattr(dataset, "max_length", args.max_seq_length)
    return longest + max((sum(edges) for edges in template_edges), default=0)


def tokenized_rows(
    data: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: SimCSETrainingArguments,
    templates: Sequence[str] = (),
    prompt: str = "",
    scored: bool = False,
    name: str = "eval_dataset",
) -> Dataset | SeededDataset:
    """Tokenise texts without augmenting them.

    Args:
        data (`Any`): What [`as_text_dataset`] takes; token ids are left as they are.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        args (`SimCSETrainingArguments`): Gives `max_seq_length`.
        templates (`Sequence[str]`, *optional*): See `tokenize_dataset`.
        prompt (`str`, *optional*): Put before each text.
        scored (`bool`, *optional*, defaults to `False`): Whether rows are pairs with a score.
        name (`str`, *optional*, defaults to `"eval_dataset"`): The argument's name, for messages.

    Returns:
        `Dataset` or `SeededDataset`: Rows of token ids.

    Raises:
        TypeError: If the data is of a type that contrastive training cannot use.
        ValueError: If the columns are unclear or hold no texts.
    """
    dataset = as_text_dataset(data, name, scored)
    if "input_ids" in dataset.column_names:
        return dataset
    if prompt:
        dataset = cast(Dataset, dataset).map(_put_before, batched=True, fn_kwargs={"prompt": prompt})
    return tokenize_dataset(dataset, tokenizer, args.max_seq_length, args.preprocessing_num_workers, templates)


def _put_before(rows: dict[str, list[Any]], prompt: str) -> dict[str, list[Any]]:
    """Put a prompt before each text of a batch of rows; `texts` holds a list of texts in each row."""
    if "texts" in rows:
        return {**rows, "texts": [[prompt + text for text in texts] for texts in rows["texts"]]}
    return {name: x if name == SCORE else [prompt + text for text in x] for name, x in rows.items()}


def make_collator(
    model: ContrastiveModel,
    tokenizer: PreTrainedTokenizerBase,
    args: SimCSETrainingArguments,
    train_dataset: Dataset | SeededDataset | StreamedRows | None,
) -> ContrastiveCollator:
    """Make the collator that the model's objective and the arguments need."""
    objective = prepared_objective(model)
    rows = train_dataset.head if isinstance(train_dataset, StreamedRows) else train_dataset
    longest = padded_length(rows, args, model.settings.template_edges)
    return ContrastiveCollator(
        tokenizer,
        pad_to=longest if args.pad_to_max_length else None,
        repeat=objective.num_views,
        add_text_ids=objective.needs_text_ids,
        add_scores=reads_scores(model),
        add_lengths=args.device.type != "cpu",
    )


def reads_scores(model: ContrastiveModel) -> bool:
    """Return whether the objective of a model learns from the scores of pairs."""
    return objective_class(model.settings.objective).rows == "scored_pairs"


def make_masked_lm_view(
    model: ContrastiveModel, tokenizer: PreTrainedTokenizerBase, args: SimCSETrainingArguments
) -> MaskedLMView | None:
    """Load the masked language model that makes views on the device, if `args.view` is such a view."""
    if args.view not in MASKED_LM_VIEWS:
        return None
    rate = masked_lm_rate(args.view, args.view_rate)
    assert rate is not None
    return MaskedLMView(args.view_model or cast(str, model.name_or_path), tokenizer, rate).to(args.device)
