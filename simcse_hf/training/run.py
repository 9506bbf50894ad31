"""Training runs from a command line to results.json: `simcse-hf train unsup` and `simcse-hf train sup`."""

import logging as python_logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ..data.sample import sample_files
from .callbacks import warn_of_overlap
from .loading import load_model, load_training_texts
from .output_dir import SEEDS, prepare_output_dir
from .results import write_results
from .script_arguments import DataArguments, ModelArguments, parse_arguments
from .seeds import RunArguments, runs_by_seed
from .trainer import SimCSETrainer
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

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
# The tiny sample encoder learns faster than BERT, and from larger batches.
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
    for arguments in prepare_runs(argv, supervised):
        _train_once(*arguments, supervised)
    return 0


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
    texts = load_training_texts(model_args, data_args, training_args, supervised)
    model, tokenizer = load_model(model_args, training_args.seed)
    trainer = SimCSETrainer(
        model,
        training_args,
        train_dataset=texts,
        dev_set=data_args.dev_file,
        processing_class=tokenizer,
        dev_tasks=data_args.dev_task,
    )
    warn_of_overlap(texts, trainer.dev_sets)
    return trainer


def _train_once(
    model_args: ModelArguments, data_args: DataArguments, training_args: SimCSETrainingArguments, supervised: bool
) -> None:
    trainer = make_trainer(model_args, data_args, training_args, supervised)
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()
    write_results(trainer, data_args.train_file or data_args.dataset_name)
    if training_args.push_to_hub:
        trainer.push_to_hub()


def prepare_runs(argv: Sequence[str] | None, supervised: bool) -> Iterator[RunArguments]:
    """Parse the arguments, check the output directory, and yield the runs.

    There is one run, or with `--seeds` one for each seed that is not finished. The caller trains a run before it takes
    the next one; after the last, the best of several seeds is published (see [`runs_by_seed`]).

    Args:
        argv (`Sequence[str]`, *optional*): Command line without the program's name.
        supervised (`bool`): Whether the defaults are those of supervised training.

    Yields:
        `RunArguments`: The arguments of a run.

    Raises:
        ValueError: If arguments contradict each other, or `output_dir` holds another run.
    """
    set_up_logging()
    defaults, sample = (SUP_DEFAULTS, SUP_SAMPLE) if supervised else (UNSUP_DEFAULTS, UNSUP_SAMPLE)
    argv = sys.argv[1:] if argv is None else argv
    model_args, data_args, training_args = parse_arguments(argv, defaults, sample)
    if model_args.model_name_or_path == sample["model_name_or_path"]:
        logger.info("Neither a model nor texts are named: this run trains offline on the sample of the package.")
        # The default output directory of the sample belongs to it: nothing else is lost there.
        continues = data_args.seeds is not None and Path(str(training_args.output_dir), SEEDS).exists()
        data_args.overwrite_output_dir |= training_args.output_dir == sample["output_dir"] and not continues
    if data_args.dev_file is None and not data_args.dev_task:
        logger.warning(
            "No --dev_file and no --dev_task: nothing is evaluated during training, and the last weights are saved."
        )
        training_args.eval_strategy = IntervalStrategy.NO
        training_args.load_best_model_at_end = False
    else:
        training_args.eval_on_start = True
    if data_args.seeds is not None:
        yield from runs_by_seed(model_args, data_args, training_args)
        return
    prepare_output_dir(training_args, data_args.overwrite_output_dir)
    yield model_args, data_args, training_args


def set_up_logging() -> None:
    """Show this package's messages on the first process, and its warnings on all."""
    handler = python_logging.StreamHandler()
    handler.setFormatter(python_logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    package = python_logging.getLogger("simcse_hf")
    package.handlers = [handler]
    package.propagate = False
    is_first = int(os.environ.get("RANK", "0")) == 0
    package.setLevel(python_logging.INFO if is_first else python_logging.WARNING)
