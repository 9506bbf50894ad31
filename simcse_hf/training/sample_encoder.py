"""A tiny BERT, warmed up on the sample corpus by masked language modelling, for runs without any download."""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from accelerate.state import AcceleratorState
from torch import nn
from transformers import BertTokenizer, TrainingArguments, set_seed
from transformers.utils import logging

from ..data.sample import SampleCorpus, sample_files, write_sample_corpus
from ..data.tokenize import to_token_ids
from .masking import TokenMasker
from .pretraining import MaskedLMTrainer, PretrainingArguments, make_model, save_stock

logger = logging.get_logger(__name__)

MARKER = "sample_encoder.json"
MAX_LENGTH = 32
PROCESS_GROUP_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class SampleEncoderSettings:
    """Size and warm-up of the sample encoder.

    Args:
        hidden_size (`int`, *optional*, defaults to `64`): Width; the feed-forward layers are four times as wide.
        num_layers (`int`, *optional*, defaults to `2`): Number of transformer layers.
        num_heads (`int`, *optional*, defaults to `4`): Number of attention heads.
        steps (`int`, *optional*, defaults to `700`): Optimizer steps of masked language modelling.
        batch_size (`int`, *optional*, defaults to `64`): Sentences in a step.
        learning_rate (`float`, *optional*, defaults to `0.002`): Peak learning rate, reached after a linear warm-up
            over the first tenth of the steps; it then decays linearly to 0.
        mlm_probability (`float`, *optional*, defaults to `0.3`): Share of the tokens to predict.
        dropout (`float`, *optional*, defaults to `0.0`): Dropout rate of the warm-up, in which an encoder of this size
            does not overfit; without dropout, a step takes three quarters of the time. The saved config has BERT's
            rates, for the contrastive training that follows.
    """

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    steps: int = 700
    batch_size: int = 64
    learning_rate: float = 2e-3
    mlm_probability: float = 0.3
    dropout: float = 0.0


def prepare_sample(directory: str | Path, args: TrainingArguments) -> tuple[SampleCorpus, Path]:
    """Make the sample corpus and encoder for a run, on the first local process while the others wait.

    Args:
        directory (`str` or `Path`): Where the sample is kept; an up-to-date sample there is used again.
        args (`TrainingArguments`): The arguments of the run.

    Returns:
        `tuple[SampleCorpus, Path]`: The corpus and the directory of the encoder.
    """
    logger.info(f"Neither a model nor texts are named: this run trains offline on the sample in {directory}.")
    corpus, encoder = sample_files(directory)
    with args.main_process_first(desc="making the sample"):
        if args.local_process_index == 0 and args.world_size == 1:
            make_sample(directory, use_cpu=args.use_cpu)
            # The warm-up's Trainer left its precision and device here; the run's Trainer sets its own.
            AcceleratorState._reset_state()
        elif args.local_process_index == 0:
            # In a process of its own, because the warm-up's Trainer must not join the process group of this run.
            environment = {name: value for name, value in os.environ.items() if name not in PROCESS_GROUP_VARIABLES}
            command = [sys.executable, "-m", "simcse_hf.training.sample_encoder", str(directory)]
            subprocess.run(command, check=True, env=environment)
    return corpus, encoder


def make_sample(directory: str | Path, use_cpu: bool = False) -> None:
    """Write the sample corpus and the sample encoder into a directory, unless they are up to date there."""
    _, encoder = sample_files(directory)
    build_sample_encoder(encoder, write_sample_corpus(Path(directory, "corpus")), use_cpu=use_cpu)


def build_sample_encoder(
    directory: str | Path,
    corpus: SampleCorpus,
    seed: int = 42,
    settings: SampleEncoderSettings | None = None,
    use_cpu: bool = False,
) -> Path:
    """Train a tokenizer and a `BertForMaskedLM` on the corpus's training sentences, and save both.

    The encoder sees no pair, triplet or score. A directory that already holds an encoder of the same settings, seed
    and sentences is left as it is; another sample encoder is replaced. Building sets the global random seeds.

    Args:
        directory (`str` or `Path`): Where to save; `AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer` load it.
        corpus (`SampleCorpus`): What `write_sample_corpus` returned.
        seed (`int`, *optional*, defaults to `42`): Seed of the weights, the masks, dropout and the data order.
        settings (`SampleEncoderSettings`, *optional*): Size and warm-up.
        use_cpu (`bool`, *optional*, defaults to `False`): Train on the CPU even where there is a GPU.

    Returns:
        `Path`: `directory`.

    Raises:
        FileNotFoundError: If the corpus has no file of training sentences.
        ValueError: If `directory` holds files but no sample encoder; this function does not replace them.
    """
    directory = Path(directory)
    settings = settings or SampleEncoderSettings()
    if not corpus.train_sentences.is_file():
        raise FileNotFoundError(f"{corpus.train_sentences} is not there; make it with write_sample_corpus.")
    text = corpus.train_sentences.read_text(encoding="utf-8")
    marker = {
        "settings": dataclasses.asdict(settings),
        "seed": seed,
        "sentences_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    if directory.is_dir() and any(directory.iterdir()):
        if not (directory / MARKER).is_file():
            raise ValueError(f"{directory} holds files but no sample encoder; name another directory or empty it.")
        if json.loads((directory / MARKER).read_text(encoding="utf-8")) == marker:
            logger.info(f"The sample encoder in {directory} is up to date.")
            return directory

    logger.info(
        f"Warming up the sample encoder by masked language modelling, {settings.steps} steps. Later runs use it again."
    )
    set_seed(seed)
    texts = text.splitlines()
    tokenizer = _make_tokenizer(texts)
    trainer = _warm_up(texts, tokenizer, seed, settings, use_cpu)
    if directory.is_dir():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    # The marker comes first, so that an interrupted build can be redone, and gets its content last.
    (directory / MARKER).write_text("null", encoding="utf-8")
    save_stock(trainer.model.cpu(), tokenizer, directory)
    (directory / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    return directory


def _make_tokenizer(texts: list[str]) -> BertTokenizer:
    """Make an uncased WordPiece tokenizer whose vocabulary is the words of the texts, and letters for other words."""
    # The trainer of the tokenizers library breaks ties differently from one run to the next.
    blank = BertTokenizer()
    backend = blank.backend_tokenizer
    normalized = backend.normalizer.normalize_str("\n".join(texts))
    # White space and punctuation end a word, so most words are split off once, not once for each text.
    chunks = dict.fromkeys(normalized.split())
    words = {word for chunk in chunks for word, _ in backend.pre_tokenizer.pre_tokenize_str(chunk)}
    special = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]
    letters = sorted(set("".join(words)))
    tokens = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words)])
    return BertTokenizer(vocab={token: row for row, token in enumerate(tokens)}, model_max_length=MAX_LENGTH)


def _warm_up(
    texts: list[str], tokenizer: BertTokenizer, seed: int, settings: SampleEncoderSettings, use_cpu: bool
) -> MaskedLMTrainer:
    options = PretrainingArguments(
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        max_position_embeddings=2 * MAX_LENGTH,
    )
    model = make_model(options, tokenizer)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = settings.dropout
    token_ids = to_token_ids(tokenizer, texts, truncation=True, max_length=MAX_LENGTH)
    with TemporaryDirectory() as scratch:
        args = TrainingArguments(
            output_dir=scratch,
            max_steps=settings.steps,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            warmup_steps=0.1,
            train_sampling_strategy="group_by_length",
            logging_steps=max(1, settings.steps // 5),
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
            use_cpu=use_cpu,
            seed=seed,
        )
        trainer = MaskedLMTrainer(
            model,
            args,
            tokenizer,
            TokenMasker(tokenizer, settings.mlm_probability),
            # A list, because a data set of Arrow decodes a row whenever it is read, here and for its length.
            train_dataset=[{"input_ids": ids} for ids in token_ids],
        )
        trainer.train()
    return trainer


def main() -> None:
    """Write the sample into a directory named on the command line."""
    parser = argparse.ArgumentParser(description="Write the sample corpus and warm up the sample encoder on it.")
    parser.add_argument("directory", type=Path, help="an up-to-date encoder there is kept")
    make_sample(parser.parse_args().directory)


if __name__ == "__main__":
    main()
