"""Load what a training run starts from: the model, its tokenizer and the texts."""

import itertools
from typing import cast

from datasets import Dataset, Features, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..data.columns import SCORE
from ..data.documents import SpanDataset, SpanOptions, next_sentence_pairs, read_documents
from ..data.nli import build_nli_groups
from ..data.read import load_text_dataset
from ..data.stream import load_text_stream
from ..data.views import DOCUMENT_VIEWS
from ..evaluation.sts import read_scored_pairs
from ..models.auto import AutoModelForCL
from ..models.modeling import ContrastiveModel
from ..objectives import objective_class
from .script_arguments import DataArguments, ModelArguments
from .training_args import SimCSETrainingArguments


def load_model(model_args: ModelArguments, seed: int) -> tuple[ContrastiveModel, PreTrainedTokenizerBase]:
    """Load the contrastive model and its tokenizer.

    Args:
        model_args (`ModelArguments`): Names the model and its settings.
        seed (`int`): Seed of a fresh head.

    Returns:
        `tuple[ContrastiveModel, PreTrainedTokenizerBase]`: The model and its tokenizer.

    Raises:
        ValueError: If no model is named, there is none under that name, or a setting is invalid.
    """
    options = model_args.load_options()
    set_seed(seed)
    model = AutoModelForCL.from_pretrained(cast(str, model_args.model_name_or_path), **options)
    return model, load_tokenizer(model_args)


def load_tokenizer(model_args: ModelArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, or else the model's own."""
    name = model_args.tokenizer_name or model_args.model_name_or_path
    return AutoTokenizer.from_pretrained(name, revision=model_args.model_revision)


def load_training_texts(
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: SimCSETrainingArguments,
    supervised: bool,
) -> Dataset | SpanDataset | IterableDataset:
    """Load the training texts in the form that the objective and the view read.

    Most objectives read what [`load_text_dataset`] returns. Some read labelled NLI pairs grouped by premise, pairs
    with a score, or spans or neighbouring sentences of documents.

    Args:
        model_args (`ModelArguments`): Names the objective.
        data_args (`DataArguments`): Names the texts.
        training_args (`SimCSETrainingArguments`): Names the view.
        supervised (`bool`): Whether a row holds an anchor, a positive and any number of hard negatives, instead of a
            single sentence.

    Returns:
        `Dataset`, `SpanDataset` or `IterableDataset`: The training rows, a stream with `--streaming`.

    Raises:
        ValueError: If not exactly one source of texts is named, or its rows do not fit.
    """
    if (data_args.train_file is None) == (data_args.dataset_name is None):
        raise ValueError("name the training texts with either --train_file or --dataset_name")
    if data_args.streaming:
        return _open_stream(model_args, data_args, training_args, supervised)
    if objective_class(model_args.objective).rows != "texts" or training_args.view in DOCUMENT_VIEWS:
        if data_args.train_file is None:
            raise ValueError(
                f"--objective {model_args.objective} and --view {training_args.view} read a file: name it with "
                "--train_file instead of --dataset_name"
            )
        return _load_structured_rows(model_args, data_args, training_args)
    source = data_args.train_file or data_args.dataset_name
    texts = load_text_dataset(
        source,
        split=data_args.dataset_split,
        columns=data_args.columns,
        max_rows=data_args.max_train_samples,
        expected_columns=None if supervised else 1,
    )
    _check_width(texts.column_names, source, supervised)
    return texts


def _check_width(columns: list[str], source: str | None, supervised: bool) -> None:
    if supervised and len(columns) == 1:
        raise ValueError(
            f"{source} holds one text in a row, and supervised training needs an anchor, a positive and any number "
            "of hard negatives. Add the columns, or train without labels (simcse-hf train unsup)."
        )


def _open_stream(
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: SimCSETrainingArguments,
    supervised: bool,
) -> IterableDataset:
    """Open the training texts as a stream, for objectives and views that take one row at a time."""
    for reason, needs_all_rows in (
        (f"--objective {model_args.objective}", objective_class(model_args.objective).rows != "texts"),
        (f"--view {training_args.view}", training_args.view in DOCUMENT_VIEWS),
        ("--max_train_samples", data_args.max_train_samples is not None),
    ):
        if needs_all_rows:
            raise ValueError(f"--streaming does not work with {reason}: leave one of the two out")
    if training_args.max_steps < 1:
        raise ValueError("--streaming needs --max_steps, because the length of a stream is not known: add it")
    source = data_args.train_file or data_args.dataset_name
    texts = load_text_stream(
        cast(str, source),
        split=data_args.dataset_split,
        columns=data_args.columns,
        expected_columns=None if supervised else 1,
    )
    _check_width(list(cast(Features, texts.features)), source, supervised)
    return texts


def _load_structured_rows(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments
) -> Dataset | SpanDataset:
    """Load labelled NLI pairs grouped by premise, pairs with a score, or spans or sentences of documents."""
    path, limit = str(data_args.train_file), data_args.max_train_samples
    row_type = objective_class(model_args.objective).rows
    if row_type == "spans":
        options = model_args.objective_options
        names = getattr(objective_class(model_args.objective), "span_options", ())
        span_options = SpanOptions(**{name: options[name] for name in names if name in options})
        documents = itertools.islice(read_documents(path), limit)
        return SpanDataset(
            documents, load_tokenizer(model_args), training_args.max_seq_length, training_args.seed, span_options
        )
    if row_type == "scored_pairs":
        rows = _load_scored_pairs(path, data_args)
    elif row_type == "nli":
        rows = build_nli_groups(path, sampling=data_args.nli_sampling or "pairs")
    else:
        rows = next_sentence_pairs(path, 3 if training_args.view == "next_three_sentences" else 1, training_args.seed)
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def _load_scored_pairs(path: str, data_args: DataArguments) -> Dataset:
    """Load pairs with a score, from the formats of a dev set."""
    if data_args.columns is not None:
        raise ValueError(
            "--columns does not apply to pairs with a score: leave it out, and name the columns of "
            f"{path} sentence1, sentence2 and score"
        )
    pairs = read_scored_pairs(path)
    return Dataset.from_dict({"sent0": pairs.sentences1, "sent1": pairs.sentences2, SCORE: pairs.scores})
