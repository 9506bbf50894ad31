"""A tiny BERT warmed up on the sample corpus by masked language modelling: the start for the offline examples."""

import argparse
import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from ..data.sample import SampleCorpus, sample_files, write_sample_corpus

logger = logging.get_logger(__name__)

MARKER = "sample_encoder.json"
MAX_LENGTH = 32


@dataclass(frozen=True)
class SampleEncoderSettings:
    """Size and warm-up of the sample encoder.

    Attributes:
        hidden_size (`int`): width; the feed-forward layers are four times as wide.
        num_layers (`int`): transformer layers.
        num_heads (`int`): attention heads.
        steps (`int`): optimizer steps of masked language modelling.
        batch_size (`int`): sentences a step.
        learning_rate (`float`): peak, after a linear warm-up over the first tenth; linear decay to 0 after it.
        mlm_probability (`float`): share of the tokens to predict.
    """

    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    steps: int = 2000
    batch_size: int = 64
    learning_rate: float = 1e-3
    mlm_probability: float = 0.3


def build_sample_encoder(
    directory: str | Path,
    corpus: SampleCorpus,
    seed: int = 42,
    settings: SampleEncoderSettings | None = None,
) -> Path:
    """Trains a tokenizer and a `BertForMaskedLM` on the corpus's training sentences, and saves both.

    Masked language modelling only: no pair, triplet or score is read. A directory that already holds an encoder of the
    same settings, seed and sentences is left as it is; one that holds another sample encoder is rebuilt. Sets the
    global random seeds when it builds.

    Args:
        directory (`str` or `Path`): where to save; `AutoModel`, `AutoModelForMaskedLM` and `AutoTokenizer` load it.
        corpus (`SampleCorpus`): what `write_sample_corpus` returned.
        seed (`int`): of the weights, the masks, the dropout and the order of the sentences.
        settings (`SampleEncoderSettings`, *optional*): size and warm-up.

    Returns:
        `Path`: `directory`.

    Raises:
        FileNotFoundError: if the corpus has no file of training sentences.
        ValueError: if `directory` holds files but no sample encoder: they are not this function's to replace.
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

    set_seed(seed)
    lines = text.splitlines()
    tokenizer = _train_tokenizer(lines)
    model = _warm_up(lines, tokenizer, seed, settings)
    if directory.is_dir():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    # First, so that a build cut off while saving can be rebuilt; emptied of its meaning until the weights are there.
    (directory / MARKER).write_text("null", encoding="utf-8")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    return directory


def _train_tokenizer(lines: list[str]) -> BertTokenizer:
    """An uncased WordPiece tokenizer whose vocabulary is the words of `lines`, and their letters for any other word.

    The trainer of the tokenizers library would do, but breaks ties differently from one run to the next.
    """
    blank = BertTokenizer()
    words: set[str] = set()
    for line in lines:
        normalized = blank.backend_tokenizer.normalizer.normalize_str(line)
        words.update(word for word, _ in blank.backend_tokenizer.pre_tokenizer.pre_tokenize_str(normalized))
    special = [blank.pad_token, blank.unk_token, blank.cls_token, blank.sep_token, blank.mask_token]
    letters = sorted(set("".join(words)))
    tokens = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words)])
    return BertTokenizer(vocab={token: row for row, token in enumerate(tokens)}, model_max_length=MAX_LENGTH)


def _warm_up(
    lines: list[str], tokenizer: BertTokenizer, seed: int, settings: SampleEncoderSettings
) -> BertForMaskedLM:
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            num_hidden_layers=settings.num_layers,
            num_attention_heads=settings.num_heads,
            intermediate_size=4 * settings.hidden_size,
            max_position_embeddings=2 * MAX_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.02 * (768 / settings.hidden_size) ** 0.5,
        )
    )
    encodings = tokenizer(lines, truncation=True, return_special_tokens_mask=True, return_token_type_ids=False)
    examples = [{name: encodings[name][row] for name in encodings} for row in range(len(lines))]
    with TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=settings.steps,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
                warmup_steps=0.1,
                logging_steps=max(1, settings.steps // 5),
                save_strategy="no",
                report_to="none",
                seed=seed,
            ),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=settings.mlm_probability),
            train_dataset=examples,
        )
        trainer.train()
    return model.cpu()


def main() -> None:
    """Write the sample corpus and the sample encoder into a directory that is named on the command line."""
    parser = argparse.ArgumentParser(description="Write the sample corpus and warm the sample encoder up on it.")
    parser.add_argument("directory", type=Path, help="an encoder already there is kept if it was made like this")
    directory = parser.parse_args().directory
    _, encoder = sample_files(directory)
    build_sample_encoder(encoder, write_sample_corpus(directory / "corpus"))


if __name__ == "__main__":
    main()
