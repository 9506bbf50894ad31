"""Training runs from a command line to results.json: `simcse-hf train unsup` and `simcse-hf train sup`."""

import logging as python_logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, set_seed
from transformers.utils import logging

from ..data.sample import sample_files
from ..evaluation.sts import read_scored_pairs
from ..inference.simcse import SimCSE
from ..models.modeling import AutoModelForCL
from ..models.resolve import with_values
from ..names import POOLER_TYPES
from ..ops.distributed import hold_together, on_first_process
from ..ops.loading import load_pretrained
from ..search import SentenceIndex
from .dev_sets import make_dev_sets, warn_of_overlap
from .output_folder import SEEDS, check_output_dir, clear_output_dir
from .parser import DEFAULTS, check_files
from .rows import Source
from .script_arguments import CommandArguments, parse_arguments
from .seeds import inputs_of, prepare_seeds, publish_best, release, seed_folder, seed_list
from .trainer import SimCSETrainer

logger = logging.get_logger(__name__)

#: What the table of a data set says about its file, as the arguments of the same names.
_OF_FILES = ("train_file", "dataset_name", "columns", "max_train_samples")

UNSUP_DEFAULTS = DEFAULTS["unsup"]
SUP_DEFAULTS = DEFAULTS["sup"]
_CORPUS, _ENCODER = sample_files()
_SAMPLE = {"model_name_or_path": str(_ENCODER), "dev_file": str(_CORPUS.dev)}
UNSUP_SAMPLE = _SAMPLE | DEFAULTS["unsup sample"] | {"train_file": str(_CORPUS.train_sentences)}
SUP_SAMPLE = _SAMPLE | DEFAULTS["sup sample"] | {"train_file": str(_CORPUS.train_triplets)}
#: A sentence of the sample's test set, which is searched before and after training.
_QUERY = "The exhausted percussionist lost the lute at the auditorium."


def train_unsup(argv: Sequence[str] | None = None) -> int:
    """Run unsupervised training: a sentence predicts itself under another dropout mask (SimCSE, section 3).

    Args:
        argv (`Sequence[str]`, *optional*): Command line without the program's name, by default that of this process.
            A first argument without `--` is a recipe: a YAML file, or the name of one of the package. Without a model
            and texts, the run trains offline on the sample of the package.

    Returns:
        `int`: Exit code 0.

    Raises:
        ValueError: If the arguments or the texts are invalid.
    """
    return _train(argv, UNSUP_DEFAULTS, UNSUP_SAMPLE, supervised=False)


def train_sup(argv: Sequence[str] | None = None) -> int:
    """Run supervised training: entailed hypotheses are positives, contradictions hard negatives (SimCSE, section 4).

    Rows of a text and a class label train the objective `class_labels`, if the arguments name no other.

    Args:
        argv (`Sequence[str]`, *optional*): Command line without the program's name, by default that of this process.
            A first argument without `--` is a recipe: a YAML file, or the name of one of the package. Without a model
            and texts, the run trains offline on the sample of the package.

    Returns:
        `int`: Exit code 0.

    Raises:
        ValueError: If the arguments or the texts are invalid.
    """
    return _train(argv, SUP_DEFAULTS, SUP_SAMPLE, supervised=True)


def _train(argv: Sequence[str] | None, defaults: dict[str, Any], sample: dict[str, Any], supervised: bool) -> int:
    set_up_logging()
    words = sys.argv[1:] if argv is None else argv
    parse = partial(parse_arguments, words, defaults, sample, supervised)

    # 1. Words become arguments, and each argument is decided.
    arguments = parse()
    data = arguments.data
    args = arguments.training
    if data.dev_file is None and not data.dev_task:
        logger.warning(
            "No --dev_file and no --dev_task: nothing is evaluated during training, and the last weights are saved."
        )

    # 2. What is named must be there before anything is deleted or loaded.
    directory = Path(str(args.output_dir))
    inputs = inputs_of(arguments)
    check_files(inputs)
    arguments.load_options()  # finds the model
    is_sample = (
        arguments.model.model_name_or_path == sample["model_name_or_path"] and data.train_file == sample["train_file"]
    )
    overwrites = data.overwrite_output_dir
    if is_sample:
        logger.info("Neither a model nor texts are named: this run trains offline on the sample of the package.")
        # The default output directory of the sample belongs to it: nothing else is lost there.
        continues = data.seeds is not None and (directory / SEEDS).exists()
        overwrites |= args.output_dir == sample["output_dir"] and not continues

    # 3. One run, or one for each seed.
    with hold_together(directory):
        if data.seeds is not None:
            _train_seeds(arguments, parse, supervised, overwrites)
            return 0
        check_output_dir(args, overwrites, inputs)
        trainer = make_trainer(arguments, supervised)
        clear_output_dir(args)  # now that nothing is wrong with the new run
        train_and_save(trainer, arguments)
        if is_sample and args.world_size == 1:
            _show_neighbours(directory)
        if args.push_to_hub:
            trainer.push_to_hub()
    return 0


def _train_seeds(
    arguments: CommandArguments, parse: Callable[..., CommandArguments], supervised: bool, overwrites: bool
) -> None:
    """Train once for each seed, and publish the model of the best one; `parse` takes what a run has of its own."""
    args = arguments.training
    directory = Path(str(args.output_dir))
    assert arguments.data.seeds is not None
    seeds = seed_list(arguments.data.seeds, args.seed)
    states = on_first_process(lambda: prepare_seeds(seeds, arguments, overwrites))
    for number, seed in enumerate(seeds, start=1):
        folder = seed_folder(directory, seed)
        if states[seed] == "finished":
            logger.info(f"{folder} is finished and not repeated.")
            continue
        logger.info(f"Seed {seed} ({number} of {len(seeds)}) in {folder}")
        run = parse(
            seed=seed,
            seeds=None,
            output_dir=str(folder),
            run_name=None if args.run_name is None else f"{args.run_name}-seed-{seed}",
            resume_from_checkpoint="true" if states[seed] == "interrupted" else None,
            push_to_hub=False,
        )
        train_and_save(make_trainer(run, supervised), run)
        release(run.training)
    on_first_process(lambda: publish_best(directory, seeds))
    if args.push_to_hub and args.process_index == 0:
        from ..publishing import CARD, is_written_by_hand, write_card
        from ..publishing.hub import push_model

        if not is_written_by_hand(directory / CARD):
            write_card(directory, repo_id=args.hub_model_id)
        name = args.hub_model_id or directory.resolve().name
        push_model(directory, name, private=args.hub_private_repo, token=args.hub_token)


def train_and_save(trainer: SimCSETrainer, arguments: CommandArguments) -> None:
    """Train one model, and save it with its results."""
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    trainer.save_model()
    data = arguments.data
    hub_datasets = []
    for named in (vars(data), *arguments.tables.values()):
        if named.get("dataset_name"):
            hub_datasets.append(named["dataset_name"].partition(":")[0])
    trainer.write_results(data.train_file or data.dataset_name, hub_datasets)


def make_trainer(arguments: CommandArguments, supervised: bool) -> SimCSETrainer:
    """Load the model and the texts of a run, and make its trainer.

    Args:
        arguments (`CommandArguments`): The arguments of the command.
        supervised (`bool`): Whether a row holds an anchor, a positive and any number of hard negatives.

    Returns:
        [`SimCSETrainer`]: The trainer, before training.

    Raises:
        ValueError: If the model or the texts do not fit the arguments.
    """
    data = arguments.data
    args = arguments.training
    tables = arguments.tables

    # 1. The training texts are named in one way.
    if args.datasets is not None:
        if not tables:
            raise ValueError("datasets is empty: name train_file or dataset_name of each data set")
        if data.train_file or data.dataset_name or data.columns or data.streaming:
            raise ValueError(
                "datasets names the training texts: leave out --train_file, --dataset_name, --columns and --streaming"
            )
    elif (data.train_file is None) == (data.dataset_name is None):
        raise ValueError("name the training texts with either --train_file or --dataset_name")
    if data.max_train_samples is not None and data.max_train_samples < 1:
        raise ValueError(f"--max_train_samples must be at least 1, got {data.max_train_samples}")

    # 2. The model and its tokenizer.
    name = str(arguments.model.model_name_or_path)
    options = arguments.load_options()
    set_seed(args.seed)  # A fresh head is drawn when the model is loaded.
    model = AutoModelForCL.from_pretrained(name, **options)
    tokenizer = load_pretrained(AutoTokenizer.from_pretrained, name, revision=arguments.model.model_revision)

    # 3. Where the texts are. What the tables of several data sets say about files is not for the Trainer.
    texts: Any = {}
    if tables:
        rest = {}
        for dataset, own in tables.items():
            rest[dataset] = {key: value for key, value in own.items() if key not in _OF_FILES}
            path = own.get("train_file") or own.get("dataset_name")
            if path is None or ("train_file" in own and "dataset_name" in own):
                raise ValueError(
                    f"data set {dataset!r}: name the training texts with either train_file or dataset_name"
                )
            texts[dataset] = Source(path, own.get("columns"), own.get("max_train_samples"))
        args = with_values(args, datasets=rest)
    else:
        path = str(data.train_file or data.dataset_name)
        texts = Source(path, data.columns, data.max_train_samples, supervised, streams=data.streaming)

    # 4. The Trainer.
    trainer = SimCSETrainer(
        model,
        args,
        train_dataset=texts,
        processing_class=tokenizer,
        callbacks=[*make_dev_sets(data.dev_file, data.dev_task)],
    )
    trainer.run = replace(trainer.run, decided_by={**trainer.run.decided_by, **arguments.decided_by})
    assert trainer.rows is not None
    for rows in trainer.rows.texts:
        warn_of_overlap(rows, trainer.dev_sets)
    return trainer


def _show_neighbours(directory: Path) -> None:
    """Show the sentences nearest to one of the sample before and after training, and the next commands."""
    trained = SimCSE(directory, device="cpu")
    if trained.pooler_type not in POOLER_TYPES:  # the start has no templates and no filters
        return
    # The sample's encoder has no head of its own.
    pooler = "cls_before_pooler" if trained.pooler_type == "cls" else trained.pooler_type
    start = SimCSE(_ENCODER, pooler_type=pooler, device="cpu")
    texts = set(read_scored_pairs(_CORPUS.test).texts) - {_QUERY}
    for when, model in (("before", start), ("after", trained)):
        print(f"\nNearest to {_QUERY!r} {when} training, of {len(texts):,} sentences:")
        for match in SentenceIndex.build(model, sorted(texts)).search(_QUERY, top_k=3):
            print(f"  {match.score:.4f}  {match.sentence}")
    print(
        "\nNext, search your own sentences, or train on them:\n"
        f"  simcse-hf index --model {directory} --input sentences.txt --output my-index\n"
        "  simcse-hf search --index my-index\n"
        "  simcse-hf train unsup --model bert-base-uncased --train_file sentences.txt"
    )


def set_up_logging() -> None:
    """Show this package's messages on the first process, and its warnings on all."""
    handler = python_logging.StreamHandler()
    handler.setFormatter(python_logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    package = python_logging.getLogger("simcse_hf")
    package.handlers = [handler]
    package.propagate = False
    is_first = int(os.environ.get("RANK", "0")) == 0
    package.setLevel(python_logging.INFO if is_first else python_logging.WARNING)
