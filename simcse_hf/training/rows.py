"""Training texts of any form become the rows that the collator takes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data.tokenize import tokenize_dataset
from ..data.view_dataset import SeededDataset, ViewDataset
from ..data.views import DATASET_VIEWS, MASKED_LM_VIEWS, make_view

if TYPE_CHECKING:
    from .training_args import SimCSETrainingArguments


def training_rows(
    dataset: Dataset | SeededDataset,
    tokenizer: PreTrainedTokenizerBase,
    args: "SimCSETrainingArguments",
    templates: Sequence[str] = (),
) -> Dataset | SeededDataset:
    """Rows of token ids: tokenised once, or, for an augmentation, anew whenever a row is read.

    Args:
        dataset: texts, or token ids, which are left as they are.
        tokenizer: adds its special tokens.
        args: for `max_seq_length`, the view, its rate, and the seed that views are drawn from.
        templates: see `tokenize_dataset`.

    Raises:
        ValueError: an augmentation for rows that are no single sentences, or together with templates.
    """
    if args.view not in DATASET_VIEWS:
        return tokenized_rows(dataset, tokenizer, args, templates)
    if dataset.column_names != ["sent0"]:
        raise ValueError(
            f"view {args.view} makes the positive of single sentences, in a column sent0; the training rows hold "
            f"{', '.join(dataset.column_names)}"
        )
    if templates:
        raise ValueError(f"view {args.view} changes texts, and templates make the views here: use view identity")
    return ViewDataset(
        dataset,
        tokenizer,
        make_view(args.view, args.view_rate),
        args.max_seq_length,
        seed=args.data_seed if args.data_seed is not None else args.seed,
        both=args.view_both,
        with_view_seed=args.view in MASKED_LM_VIEWS,
    )


def padded_length(
    dataset: Dataset | SeededDataset | None,
    args: "SimCSETrainingArguments",
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
    dataset: Dataset | SeededDataset,
    tokenizer: PreTrainedTokenizerBase,
    args: "SimCSETrainingArguments",
    templates: Sequence[str] = (),
) -> Dataset | SeededDataset:
    """Rows of token ids, of texts as they stand."""
    if "input_ids" in dataset.column_names:
        return dataset
    return tokenize_dataset(dataset, tokenizer, args.max_seq_length, args.preprocessing_num_workers, templates)
