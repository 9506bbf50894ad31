"""A training run from parsed arguments to results.json, as the scripts in examples/ string it together."""

import itertools
import json
import logging as stdlib_logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import accelerate
import datasets
import torch
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from .. import __version__
from ..data.documents import next_sentence_pairs, read_documents
from ..data.nli_groups import build_nli_groups
from ..data.readers import load_text_dataset
from ..data.sample import sample_files
from ..data.spans import SpanDataset
from ..data.views import DOCUMENT_VIEWS
from ..models.auto import AutoModelForCL
from ..models.modeling import ContrastiveModel
from ..objectives import objective_class
from .record import describe_run
from .script_arguments import DataArguments, ModelArguments, dropout_settings, parse_arguments
from .trainer import SimCSETrainer
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)

RESULTS = "results.json"
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")  # of access to the hub
PROCESS_GROUP_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def parse_or_sample(
    argv: Sequence[str], defaults: dict, sample: dict, train_file: str
) -> tuple[ModelArguments, DataArguments, SimCSETrainingArguments]:
    """The arguments of a script; where they name neither a model nor texts, those of its offline run on the sample.

    The sample corpus and the encoder warmed up on it are made in `outputs/sample` at the first such run (see
    `simcse_hf.data.sample`), and used again by later ones.

    Args:
        argv: command line.
        defaults: of the script.
        sample: values that differ in the offline run, its own `output_dir` among them.
        train_file: which of the sample's files to train on: `train_sentences` or `train_triplets`.
    """
    parsed = parse_arguments(argv, defaults)
    model_args, data_args, training_args = parsed
    set_up_logging(training_args)
    if model_args.model_name_or_path or data_args.train_file or data_args.dataset_name:
        return parsed
    directory = Path("outputs", "sample")
    corpus, encoder = sample_files(directory)
    defaults = {**defaults, **sample, "dev_file": str(corpus.dev)}
    parsed = model_args, data_args, training_args = parse_arguments(argv, defaults)
    logger.info("No model and no texts are named: an offline run on a generated sample corpus.")
    with training_args.main_process_first(desc="making the sample"):
        if training_args.local_process_index == 0:
            # In a process of its own: its Trainer must not find the process group of this run.
            alone = {name: value for name, value in os.environ.items() if name not in PROCESS_GROUP_VARIABLES}
            command = [sys.executable, "-m", "simcse_hf.training.sample_encoder", str(directory)]
            subprocess.run(command, check=True, env=alone)
    model_args.model_name_or_path = str(encoder)
    data_args.train_file = str(getattr(corpus, train_file))
    if training_args.output_dir == sample["output_dir"]:  # a place of its own, where nothing else is lost
        data_args.overwrite_output_dir = True
    return parsed


def set_up_logging(training_args: SimCSETrainingArguments) -> None:
    """Shows this package's messages on the first process, and warnings on all."""
    log_to_stderr = stdlib_logging.StreamHandler()
    log_to_stderr.setFormatter(stdlib_logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    package = stdlib_logging.getLogger("simcse_hf")
    package.handlers = [log_to_stderr]
    package.propagate = False
    package.setLevel(stdlib_logging.INFO if training_args.process_index == 0 else stdlib_logging.WARNING)


def load_model(model_args: ModelArguments, seed: int) -> tuple[ContrastiveModel, PreTrainedTokenizerBase]:
    """The contrastive model and its tokenizer; `seed` decides a fresh head (the Trainer seeds only later)."""
    set_seed(seed)
    if model_args.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: name the encoder to start from")
    hub = {"cache_dir": model_args.cache_dir, "revision": model_args.model_revision}
    try:
        config = AutoConfig.from_pretrained(model_args.model_name_or_path, **hub)
    except OSError as error:
        raise ValueError(f"--model_name_or_path {model_args.model_name_or_path}: no model there. {error}") from error
    dropout = dropout_settings(config, model_args.dropout)
    model = AutoModelForCL.from_pretrained(model_args.model_name_or_path, **model_args.settings(), **dropout, **hub)
    name = model_args.tokenizer_name or model_args.model_name_or_path
    return model, AutoTokenizer.from_pretrained(name, **hub)


def load_training_texts(
    model_args: ModelArguments,
    data_args: DataArguments,
    training_args: SimCSETrainingArguments,
    supervised: bool,
) -> datasets.Dataset | SpanDataset:
    """The training texts, in the form that the objective and the view take.

    Args:
        model_args: names the objective.
        data_args: names the texts.
        training_args: names the view.
        supervised: rows hold an anchor, a positive and any number of hard negatives; else single sentences.

    Raises:
        ValueError: none or two sources are named, or their texts do not fit (see `load_text_dataset`).
    """
    if (data_args.train_file is None) == (data_args.dataset_name is None):
        raise ValueError("name the training texts by one of --train_file and --dataset_name")
    source = data_args.train_file or data_args.dataset_name
    kind = objective_class(model_args.objective).rows
    if kind != "texts" or training_args.view in DOCUMENT_VIEWS:
        if data_args.train_file is None:
            raise ValueError(f"--objective {model_args.objective} and --view {training_args.view} read --train_file")
        return _load_rows_of(kind, model_args, data_args, training_args)
    texts = load_text_dataset(
        source,
        split=data_args.dataset_split,
        columns=data_args.columns,
        max_rows=data_args.max_train_samples,
        expected_columns=None if supervised else 1,
    )
    if supervised and len(texts.column_names) == 1:
        raise ValueError(
            f"{source} holds single texts; supervised training needs an anchor and a positive in a row, and any "
            "number of hard negatives. For single texts there is unsupervised training."
        )
    return texts


def _load_rows_of(kind, model_args, data_args, training_args) -> datasets.Dataset | SpanDataset:
    """Labelled NLI pairs by premise, or what is made of documents."""
    path, most = data_args.train_file, data_args.max_train_samples
    if kind == "spans":
        hub = {"cache_dir": model_args.cache_dir, "revision": model_args.model_revision}
        tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path, **hub)
        options = model_args.settings()["objective_options"]
        names = getattr(objective_class(model_args.objective), "span_options", ())
        span_options = {name: options[name] for name in names if name in options}
        documents = itertools.islice(read_documents(path), most)
        return SpanDataset(documents, tokenizer, training_args.max_seq_length, training_args.seed, **span_options)
    if kind == "nli":
        sampling = data_args.nli_sampling or ("pairs" if model_args.objective == "softmax" else "allpalln")
        rows = build_nli_groups(path, sampling=sampling, seed=training_args.seed)
    else:
        rows = next_sentence_pairs(path, 3 if training_args.view == "next_three_sentences" else 1, training_args.seed)
    return rows if most is None else rows.select(range(min(most, len(rows))))


def prepare_output_dir(training_args: SimCSETrainingArguments, overwrite: bool) -> None:
    """Sees to it that a run neither mixes with an earlier one nor silently continues or replaces it.

    `--resume_from_checkpoint true` becomes the last checkpoint of `output_dir`.

    Raises:
        ValueError: `output_dir` holds a run, and neither resuming nor overwriting was asked for; nothing to resume.
    """
    directory = Path(training_args.output_dir)
    resume = training_args.resume_from_checkpoint
    if str(resume).lower() == "true":
        training_args.resume_from_checkpoint = last_checkpoint(directory)
        if training_args.resume_from_checkpoint is None:
            raise ValueError(f"{directory} holds no checkpoint to resume from; leave out --resume_from_checkpoint")
    elif resume is not None and not Path(resume).is_dir():
        raise ValueError(f"--resume_from_checkpoint {resume}: there is no such checkpoint directory")
    if training_args.resume_from_checkpoint is None and training_args.process_index == 0 and directory.is_dir():
        checkpoints = sorted(directory.glob("checkpoint-*"))
        if not overwrite and (checkpoints or (directory / RESULTS).exists() or (directory / "config.json").exists()):
            raise ValueError(
                f"{directory} holds an earlier run. Continue it with --resume_from_checkpoint true, start anew with "
                "--overwrite_output_dir, or choose another --output_dir."
            )
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint)
        (directory / RESULTS).unlink(missing_ok=True)


def last_checkpoint(directory: Path) -> str | None:
    """The newest whole checkpoint of a run; None if there is none.

    `trainer_state.json` is what the Trainer writes last: a checkpoint whose writing was cut off is passed over.
    """
    by_step = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for checkpoint in by_step:
        try:
            json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            logger.warning(f"{checkpoint} was not written to its end and is passed over.")
            continue
        return str(checkpoint)
    return None


def without_dev_set(training_args: SimCSETrainingArguments) -> None:
    """Turns off what needs a dev set: evaluation, and the choice of a best model."""
    logger.warning("No --dev_file: nothing is evaluated during training, and the last weights are saved.")
    training_args.eval_strategy = IntervalStrategy.NO
    training_args.load_best_model_at_end = False


def train_and_report(trainer: SimCSETrainer, source: str) -> dict:
    """Trains, saves the model into `output_dir` and writes `results.json` beside it.

    Args:
        trainer: ready to train.
        source: name of the training texts, for the record.

    Returns:
        What stands in `results.json`: `initial`, `best` and `final` dev metrics (with their step; 0-100 scale for
        correlations), the headline `stsb_spearman` of each, and how the run was made. Without dev set the three are
        None.
    """
    args = trainer.args
    if trainer.similarity_evals:
        args.eval_on_start = True
    outcome = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()
    results = {
        **_dev_results(trainer),
        "model": str(Path(args.output_dir).resolve()),
        **describe_run(trainer),
        "train_seconds": outcome.metrics["train_runtime"],
        "train_texts": source,
        "command": [TOKEN.sub("hf_...", word) for word in sys.argv],
        "settings": trainer.model.settings.to_dict(),
        "versions": {
            "simcse_hf": __version__,
            "python": platform.python_version(),
            **{module.__name__: module.__version__ for module in (torch, transformers, datasets, accelerate)},
        },
    }
    if trainer.is_world_process_zero():
        path = Path(args.output_dir, RESULTS)
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        _print_summary(results, args)
    if args.push_to_hub:
        trainer.push_to_hub()  # again: the card of the first push could not know the results
    return results


def _dev_results(trainer: SimCSETrainer) -> dict:
    if not trainer.similarity_evals:
        return {"dev_set": None, "initial": None, "best": None, "final": None}
    name = f"{trainer.similarity_evals[0].name}_spearman"
    evaluations = [
        {"step": entry["step"], **{k.removeprefix("eval_"): v for k, v in entry.items() if k.startswith("eval_")}}
        for entry in trainer.state.log_history
        if f"eval_{name}" in entry
    ]
    initial, after = evaluations[0], evaluations[1:] or evaluations
    found = {"initial": initial, "best": max(after, key=lambda entry: entry[name]), "final": after[-1]}
    headline = {name: {when: entry[name] for when, entry in found.items()}}
    return {"dev_set": trainer.similarity_evals[0].source, **headline, **found}


def _print_summary(results: dict, args: SimCSETrainingArguments) -> None:
    name = next((key for key in results if key.endswith("_spearman")), None)
    if name is not None:
        print(f"\nDev set {results['dev_set']}, Spearman x 100")
        print(f"  before training   {results[name]['initial']:6.2f}")
        print(f"  best              {results[name]['best']:6.2f}   (step {results['best']['step']})")
        print(f"  last step         {results[name]['final']:6.2f}   (step {results['final']['step']})")
    which = "best" if args.load_best_model_at_end else "last"
    print(f"The {which} model is saved in {args.output_dir}; its figures are in {Path(args.output_dir, RESULTS)}.")
