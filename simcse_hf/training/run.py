"""Training runs from a command line to results.json: `simcse-hf train unsup` and `simcse-hf train sup`."""

import itertools
import logging as python_logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from datasets import Dataset, Features, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ..data.class_rows import load_class_rows
from ..data.columns import SCORE
from ..data.documents import SpanDataset, SpanOptions, next_sentence_pairs, read_documents
from ..data.nli_pairs import build_nli_groups
from ..data.read import load_text_dataset
from ..data.sample import sample_files
from ..data.stream import load_text_stream
from ..data.views import DOCUMENT_VIEWS
from ..evaluation.sts import load_hub_pairs, read_scored_pairs
from ..inference.simcse import SimCSE
from ..models.auto import AutoModelForCL
from ..models.modeling import ContrastiveModel
from ..models.pooling import POOLER_TYPES
from ..objectives import objective_class
from ..ops.distributed import hold_together, on_first_process
from ..ops.errors import refuse
from ..ops.loading import load_pretrained
from ..search import SentenceIndex
from .dev_sets import make_dev_sets, warn_of_overlap
from .parser import check_files
from .run_record import SEEDS, check_output_dir, clear_output_dir, write_results
from .script_arguments import DataArguments, ModelArguments, parse_arguments
from .seeds import inputs_of, prepare_seeds, publish_best, release, seed_folder, seed_list
from .trainer import SimCSETrainer
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

#: What the table of a data set says about its file, as the arguments of the same names.
_OF_FILES = ("train_file", "dataset_name", "dataset_split", "columns", "max_train_samples", "nli_sampling")

RunArguments = tuple[ModelArguments, DataArguments, SimCSETrainingArguments]

# Optimizer and schedule are the reference implementation's: AdamW without weight decay, linear decay without warm-up,
# gradients clipped at 1. The batch is that of all processes together.
_COMMON = {
    "logging_steps": 25,
    "eval_strategy": "steps",
    "eval_steps": 125,
    "save_steps": 125,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
}
# BERT-base in Table A.1 and section 6.3 of SimCSE.
UNSUP_DEFAULTS = _COMMON | {
    "output_dir": "outputs/unsup",
    "mlp_only_train": True,
    "learning_rate": 3e-5,
    "per_device_train_batch_size": 64,
    "num_train_epochs": 1,
}
# BERT-base in Table A.1 of SimCSE.
SUP_DEFAULTS = _COMMON | {
    "output_dir": "outputs/sup",
    "mlp_only_train": False,
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 512,
    "num_train_epochs": 3,
}
_CORPUS, _ENCODER = sample_files()
_SAMPLE = {"model_name_or_path": str(_ENCODER), "dev_file": str(_CORPUS.dev), "max_seq_length": 32}
#: A sentence of the sample's test set, which is searched before and after training.
_QUERY = "The exhausted percussionist lost the lute at the auditorium."
# The tiny sample encoder needs a higher learning rate than BERT.
UNSUP_SAMPLE = _SAMPLE | {
    "train_file": str(_CORPUS.train_sentences),
    "output_dir": "outputs/sample-unsup",
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 256,
    "max_steps": 60,
    "logging_steps": 10,
    "eval_steps": 20,
    "save_steps": 20,
}
SUP_SAMPLE = _SAMPLE | {
    "train_file": str(_CORPUS.train_triplets),
    "output_dir": "outputs/sample-sup",
    "learning_rate": 3e-3,
    "per_device_train_batch_size": 64,
    "max_steps": 200,
    "eval_steps": 25,
    "save_steps": 25,
}


def train_unsup(argv: Sequence[str] | None = None) -> int:
    """Run unsupervised training: a sentence predicts itself under another dropout mask (SimCSE, section 3).

    Args:
        argv (`Sequence[str]`, *optional*): Command line without the program's name, by default that of this process.
            A first argument that ends in .yaml or .yml is a recipe. Without a model and texts, the run trains offline
            on the sample of the package.

    Returns:
        `int`: Exit code 0.

    Raises:
        ValueError: If the arguments or the texts are invalid.
    """
    return _train(argv, supervised=False)


def train_sup(argv: Sequence[str] | None = None) -> int:
    """Run supervised training: entailed hypotheses are positives, contradictions hard negatives (SimCSE, section 4).

    Rows of a text and a class label train the objective `class_labels`, if the arguments name no other.

    Args:
        argv (`Sequence[str]`, *optional*): Command line without the program's name, by default that of this process.
            A first argument that ends in .yaml or .yml is a recipe. Without a model and texts, the run trains offline
            on the sample of the package.

    Returns:
        `int`: Exit code 0.

    Raises:
        ValueError: If the arguments or the texts are invalid.
    """
    return _train(argv, supervised=True)


def _train(argv: Sequence[str] | None, supervised: bool) -> int:
    set_up_logging()
    words = sys.argv[1:] if argv is None else argv
    defaults, sample = (SUP_DEFAULTS, SUP_SAMPLE) if supervised else (UNSUP_DEFAULTS, UNSUP_SAMPLE)

    def arguments(**fixed: Any) -> RunArguments:
        return _with_evaluation(*parse_arguments(words, defaults, sample, supervised, **fixed))

    model_args, data_args, args = arguments()
    directory = Path(str(args.output_dir))
    inputs = inputs_of(model_args, data_args)
    own_files = {f"datasets, {name}:": own.get("train_file") for name, own in cast(dict, args.datasets or {}).items()}
    check_files(inputs | own_files)
    model_args.load_options()  # finds the model
    named = {"model_name_or_path": model_args.model_name_or_path, "train_file": data_args.train_file}
    is_sample = named == {name: sample[name] for name in named}
    if is_sample:
        logger.info("Neither a model nor texts are named: this run trains offline on the sample of the package.")
        # The default output directory of the sample belongs to it: nothing else is lost there.
        continues = data_args.seeds is not None and (directory / SEEDS).exists()
        data_args.overwrite_output_dir |= args.output_dir == sample["output_dir"] and not continues

    with hold_together(directory):
        if data_args.seeds is None:
            check_output_dir(args, data_args.overwrite_output_dir, inputs)
            trainer = make_trainer(model_args, data_args, args, supervised)
            clear_output_dir(args)  # now that nothing is wrong with the new run
            train_and_save(trainer, data_args)
            if is_sample and trainer.is_world_process_zero():
                _show_neighbours(directory)
            if args.push_to_hub:
                trainer.push_to_hub()
            return 0

        seeds = seed_list(data_args.seeds, args.seed)
        states = on_first_process(lambda: prepare_seeds(seeds, model_args, data_args, args))
        for number, seed in enumerate(seeds, start=1):
            folder = seed_folder(directory, seed)
            if states[seed] == "finished":
                logger.info(f"{folder} is finished and not repeated.")
                continue
            logger.info(f"Seed {seed} ({number} of {len(seeds)}) in {folder}")
            own = {"seed": seed, "output_dir": str(folder), "seeds": None, "push_to_hub": False}
            own["resume_from_checkpoint"] = "true" if states[seed] == "interrupted" else None
            own["run_name"] = None if args.run_name is None else f"{args.run_name}-seed-{seed}"
            run = arguments(**own)
            train_and_save(make_trainer(*run, supervised), run[1])
            release(run[-1])
        on_first_process(lambda: publish_best(directory, seeds))
        if args.push_to_hub and args.process_index == 0:
            _push(directory, args)
    return 0


def _with_evaluation(
    model_args: ModelArguments, data_args: DataArguments, args: SimCSETrainingArguments
) -> RunArguments:
    """Evaluate the start as well, or nothing if there is no dev set."""
    if data_args.dev_file is None and not data_args.dev_task:
        logger.warning(
            "No --dev_file and no --dev_task: nothing is evaluated during training, and the last weights are saved."
        )
        args.eval_strategy = IntervalStrategy.NO
    else:
        args.eval_on_start = True
    return model_args, data_args, args


def train_and_save(trainer: SimCSETrainer, data_args: DataArguments) -> None:
    """Train one model, and save it with its results."""
    args = trainer.args
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    names = [data_args.dataset_name, *(own.get("dataset_name") for own in cast(dict, args.datasets or {}).values())]
    hub_datasets = [name.partition(":")[0] for name in names if name]
    write_results(trainer, data_args.train_file or data_args.dataset_name, hub_datasets)


def _show_neighbours(directory: Path) -> None:
    """Show the sentences nearest to one of the sample before and after training, and the next commands."""
    trained = SimCSE(directory, device="cpu")
    if trained.pooler_type not in POOLER_TYPES:  # the start has no templates and no filters
        return
    # The sample's encoder has no head of its own.
    pooler = "cls_before_pooler" if trained.pooler_type == "cls" else trained.pooler_type
    start = SimCSE(_ENCODER, pooler_type=pooler, device="cpu")
    texts = list(dict.fromkeys(read_scored_pairs(_CORPUS.test).texts))
    for when, model in (("before", start), ("after", trained)):
        print(f"\nNearest to {_QUERY!r} {when} training, of {len(texts) - 1:,} sentences:")
        matches = SentenceIndex.build(model, [text for text in texts if text != _QUERY]).search([_QUERY], top_k=3)
        print("\n".join(f"  {match.score:.4f}  {match.sentence}" for match in cast(list, matches)[0]))
    print(
        "\nNext, search your own sentences, or train on them:\n"
        f"  simcse-hf index --model {directory} --input sentences.txt --output my-index\n"
        "  simcse-hf search --index my-index\n"
        "  simcse-hf train unsup --model bert-base-uncased --train_file sentences.txt"
    )


def _push(directory: Path, args: SimCSETrainingArguments) -> None:
    """Push the published model of several seeds with its card."""
    from ..publishing import CARD, is_written_by_hand, write_card
    from ..publishing.hub import push_model

    if not is_written_by_hand(directory / CARD):
        write_card(directory, repo_id=args.hub_model_id)
    name = args.hub_model_id or directory.resolve().name
    push_model(directory, name, private=args.hub_private_repo, token=args.hub_token)


def make_trainer(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments, supervised: bool
) -> SimCSETrainer:
    """Load the model and the texts of a run, and make its trainer.

    Args:
        model_args (`ModelArguments`): Names the model and its objective.
        data_args (`DataArguments`): Names the texts and the dev sets.
        training_args (`SimCSETrainingArguments`): The arguments of the trainer.
        supervised (`bool`): Whether a row holds an anchor, a positive and any number of hard negatives.

    Returns:
        [`SimCSETrainer`]: The trainer, before training.

    Raises:
        ValueError: If the model or the texts do not fit the arguments.
    """
    dev_sets = make_dev_sets(data_args.dev_file, data_args.dev_task)
    if training_args.datasets is None:
        texts: Any = load_training_texts(model_args, data_args, training_args, supervised)
    else:
        texts, training_args = load_datasets(model_args, data_args, training_args)
    model, tokenizer = load_model(model_args, training_args.seed)
    trainer = SimCSETrainer(
        model,
        training_args,
        train_dataset=texts,
        processing_class=tokenizer,
        callbacks=[*dev_sets],
    )
    for rows in texts.values() if isinstance(texts, dict) else [texts]:
        warn_of_overlap(rows, trainer.dev_sets)
    return trainer


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
    name = model_args.tokenizer_name or cast(str, model_args.model_name_or_path)
    return load_pretrained(AutoTokenizer.from_pretrained, name, revision=model_args.model_revision)


def load_datasets(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments
) -> tuple[dict[str, Any], SimCSETrainingArguments]:
    """Load several data sets, each as its own table in `datasets` describes it.

    Args:
        model_args (`ModelArguments`): Names the objective of data sets that name none.
        data_args (`DataArguments`): What the tables leave open, without texts.
        training_args (`SimCSETrainingArguments`): Holds the tables.

    Returns:
        `tuple[dict, SimCSETrainingArguments]`: The texts of each data set by its name, and the arguments without what
        concerns the files.

    Raises:
        ValueError: If a table is not valid, or its rows do not fit.
    """
    refuse(
        {
            "datasets is empty: name train_file or dataset_name of each data set": not training_args.datasets,
            "datasets names the training texts: leave out --train_file, --dataset_name, --columns and --streaming": (
                data_args.train_file or data_args.dataset_name or data_args.columns or data_args.streaming
            ),
        }
    )
    texts, tables = {}, {}
    for name, own in cast(dict, training_args.datasets).items():
        files = {key: own[key] for key in own if key in _OF_FILES}
        settings = {key: own[key] for key in ("objective", "objective_options") if key in own}
        tables[name] = {key: own[key] for key in own if key not in files}
        args = training_args.copy()
        args.max_seq_length = own.get("max_seq_length", args.max_seq_length)
        try:
            texts[name] = load_training_texts(
                replace(model_args, **settings), replace(data_args, **files), args, supervised=None
            )
        except ValueError as error:
            raise ValueError(f"data set {name!r}: {error}") from error
    training_args = training_args.copy()
    training_args.datasets = tables
    return texts, training_args


# Rows that are read by their structure, and the form of their files.
_STRUCTURED = {
    "scored_pairs": "pairs with a score (columns sentence1, sentence2, score)",
    "nli": "labelled NLI pairs (columns premise, hypothesis, label)",
}


def load_training_texts(
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: SimCSETrainingArguments,
    supervised: bool | None,
) -> Dataset | SpanDataset | IterableDataset:
    """Load the training texts in the form that the objective and the view read.

    Most objectives read what [`load_text_dataset`] returns. Some read texts with class labels, labelled NLI pairs
    grouped by premise, pairs with a score, or spans or neighbouring sentences of documents.

    Args:
        model_args (`ModelArguments`): Names the objective.
        data_args (`DataArguments`): Names the texts.
        training_args (`SimCSETrainingArguments`): Names the view.
        supervised (`bool`, *optional*): Whether a row holds an anchor, a positive and any number of hard negatives,
            instead of a single sentence. With `None` it may be either.

    Returns:
        `Dataset`, `SpanDataset` or `IterableDataset`: The training rows, a stream with `--streaming`.

    Raises:
        ValueError: If not exactly one source of texts is named, or its rows do not fit.
    """
    source, limit = data_args.train_file or data_args.dataset_name, data_args.max_train_samples
    objective, view = objective_class(model_args.objective), training_args.view
    is_structured = objective.rows not in ("texts", "classes") or view in DOCUMENT_VIEWS
    streamed = "--streaming does not work with {}: leave one of the two out"
    conflicts = {
        "name the training texts with either --train_file or --dataset_name": (
            (data_args.train_file is None) == (data_args.dataset_name is None)
        ),
        streamed.format(f"--objective {model_args.objective}"): data_args.streaming and objective.rows != "texts",
        streamed.format(f"--view {view}"): data_args.streaming and view in DOCUMENT_VIEWS,
        streamed.format("--max_train_samples"): data_args.streaming and limit is not None,
        "--streaming needs --max_steps, because the length of a stream is not known: add it": (
            data_args.streaming and training_args.max_steps < 1
        ),
        f"--objective {model_args.objective} and --view {view} read a file: name it with --train_file instead of "
        "--dataset_name": is_structured and objective.rows != "scored_pairs" and data_args.train_file is None,
        f"--columns does not apply to rows of {_STRUCTURED.get(objective.rows, 'documents')}: leave it out, and give "
        f"{source} their form": is_structured and data_args.columns is not None,
        f"--max_train_samples must be at least 1, got {limit}": limit is not None and limit < 1,
    }
    refuse(conflicts)
    if is_structured:
        return _load_structured_rows(str(source), model_args, data_args, training_args)
    options: dict[str, Any] = {"split": data_args.dataset_split, "columns": data_args.columns}
    if objective.rows == "classes":
        return load_class_rows(str(source), max_rows=limit, **options)
    options["expected_columns"] = 1 if supervised is False else None
    texts = (
        load_text_stream(str(source), **options)
        if data_args.streaming
        else load_text_dataset(source, max_rows=limit, **options)
    )
    if supervised and len(cast(Features, texts.features)) == 1:
        raise ValueError(
            f"{source} holds one text in a row, and supervised training needs a class label in a column 'label', or "
            "an anchor, a positive and any number of hard negatives. Add the columns, or train without labels "
            "(simcse-hf train unsup)."
        )
    return texts


def _load_structured_rows(
    path: str, model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments
) -> Dataset | SpanDataset:
    """Load labelled NLI pairs grouped by premise, pairs with a score, or spans or sentences of documents."""
    limit, objective = data_args.max_train_samples, objective_class(model_args.objective)
    if objective.rows == "spans":
        given = model_args.objective_options
        names = getattr(objective, "span_options", ())
        options = SpanOptions(**{name: given[name] for name in names if name in given})
        length = max(training_args.by_column(training_args.max_seq_length))
        documents = itertools.islice(read_documents(path), limit)
        tokenizer = load_tokenizer(model_args)
        return SpanDataset(documents, tokenizer, length, training_args.rows_seed, options)
    if objective.rows == "scored_pairs":
        pairs = (
            read_scored_pairs(path)
            if data_args.dataset_name is None
            else load_hub_pairs(path, data_args.dataset_split, path)
        )
        rows = Dataset.from_dict({"sent0": pairs.sentences1, "sent1": pairs.sentences2, SCORE: pairs.scores})
    elif objective.rows == "nli":
        rows = build_nli_groups(path, sampling=data_args.nli_sampling or "pairs")
    else:
        neighbours = 3 if training_args.view == "next_three_sentences" else 1
        rows = next_sentence_pairs(path, neighbours, training_args.rows_seed)
    return rows if limit is None else rows.select(range(min(limit, len(rows))))


def set_up_logging() -> None:
    """Show this package's messages on the first process, and its warnings on all."""
    handler = python_logging.StreamHandler()
    handler.setFormatter(python_logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    package = python_logging.getLogger("simcse_hf")
    package.handlers = [handler]
    package.propagate = False
    is_first = int(os.environ.get("RANK", "0")) == 0
    package.setLevel(python_logging.INFO if is_first else python_logging.WARNING)
