"""Masked-LM pretraining on plain sentences: the Trainer, the masks and what a run of it saves."""

import copy
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from ..data.readers import load_text_dataset
from ..data.sample import write_sample_corpus
from ..models.auto import contrastive_class
from ..models.configuration import SECTION, check_max_length
from ..models.modeling import ContrastiveModel
from ..objectives.masked_lm import IGNORED, mask_tokens
from .run import RESULTS
from .script_arguments import parse_over, read_yaml


@dataclass
class PretrainingArguments:
    """The encoder, its tokenizer and the sentences."""

    train_file: str | None = field(default=None, metadata={"help": "Sentences: txt, csv, tsv, jsonl or parquet, .gz."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first rows only."})
    held_out: int = field(default=1000, metadata={"help": "Last rows, kept for evaluation; at most a tenth of all."})
    model_name_or_path: str | None = field(default=None, metadata={"help": "Encoder to go on with; else a new BERT."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer of a new encoder."})
    train_tokenizer: bool = field(default=False, metadata={"help": "Train a WordPiece tokenizer on the sentences."})
    vocab_size: int = field(default=30522, metadata={"help": "Of the tokenizer to train."})
    cased: bool = field(default=False, metadata={"help": "The tokenizer to train keeps capitals and accents."})
    hidden_size: int = field(default=256, metadata={"help": "Width of a new encoder."})
    num_hidden_layers: int = field(default=4, metadata={"help": "Layers of a new encoder."})
    num_attention_heads: int = field(default=4, metadata={"help": "Attention heads of a new encoder."})
    intermediate_size: int | None = field(default=None, metadata={"help": "Feed-forward width; default: 4 x hidden."})
    max_position_embeddings: int = field(default=512, metadata={"help": "Positions of a new encoder."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens a sentence is cut to."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to predict."})


@cache
def pretraining_class(kind: type[ContrastiveModel]) -> type[ContrastiveModel]:
    """The contrastive class of an encoder with the masked-LM loss alone as its forward."""

    def forward(self, input_ids, attention_mask, labels):
        """Mean cross-entropy at the masked positions of (n, length) inputs; `labels` are -100 elsewhere."""
        return {"loss": self._masked_lm_loss(input_ids, attention_mask, None, labels)}

    return type(kind.__name__.replace("ForCL", "ForPretraining"), (kind,), {"forward": forward})


class Collator:
    """Pads token ids; what is masked already keeps its labels."""

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        length = max(len(row["input_ids"]) for row in rows)

        def pad(name: str, value: int) -> torch.Tensor:
            return torch.tensor([[*row[name], *[value] * (length - len(row[name]))] for row in rows])

        batch = {"input_ids": pad("input_ids", self.pad_token_id)}
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        batch["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
        if "labels" in rows[0]:
            batch["labels"] = pad("labels", IGNORED)
        return batch


class PretrainingTrainer(Trainer):
    """transformers' Trainer; masks are drawn in the step, from dropout's generator: a resumed run sees its own."""

    def __init__(self, *args, masker: DataCollatorForLanguageModeling, **others):
        super().__init__(*args, **others)
        self.masker = masker

    def compute_loss(self, model, inputs, *args, **kwargs):
        if "labels" not in inputs:
            masked, labels = mask_tokens(inputs["input_ids"], self.masker)
            inputs = {**inputs, "input_ids": masked, "labels": labels}
        return super().compute_loss(model, inputs, *args, **kwargs)


def parse_pretraining_arguments(
    argv: Sequence[str], defaults: dict, sample: dict
) -> tuple[PretrainingArguments, TrainingArguments]:
    """The command line over a YAML file over `defaults`.

    Args:
        argv: a first argument that ends in .yaml or .yml names a file of argument names and values.
        defaults: of the script.
        sample: values that differ where no sentences are named: an offline run on the generated sample corpus, which
            is written to `outputs/sample/corpus`.

    Raises:
        ValueError: a file with arguments that are not known.
    """
    kinds = (PretrainingArguments, TrainingArguments)
    rest, from_file = list(argv), {}
    if rest and rest[0].endswith((".yaml", ".yml")):
        from_file = read_yaml(rest.pop(0), kinds)
    parsed = parse_over(defaults | from_file, kinds, rest)
    if parsed[0].train_file:
        return parsed
    options, args = parse_over(defaults | sample | from_file, kinds, rest)
    with args.main_process_first(desc="writing the sample corpus"):
        options.train_file = str(write_sample_corpus(Path("outputs", "sample", "corpus")).train_sentences)
    return options, args


def read_sentences(options: PretrainingArguments) -> tuple[list[str], list[str]]:
    """The sentences to train on, and those held out, the last of the file.

    Raises:
        ValueError: none to hold out.
    """
    texts = load_text_dataset(options.train_file, max_rows=options.max_train_samples, expected_columns=1)["sent0"]
    texts = list(texts)
    held_out = min(options.held_out, len(texts) // 10)
    if held_out < 1:
        raise ValueError(f"{options.train_file}: {len(texts)} sentences are too few: a tenth of them is held out")
    return texts[:-held_out], texts[-held_out:]


def make_tokenizer(options: PretrainingArguments, texts: list[str]) -> PreTrainedTokenizerBase:
    """The encoder's own, the one that is named, or a new WordPiece tokenizer.

    Raises:
        ValueError: none of the three is asked for, or two.
    """
    if options.model_name_or_path and (options.train_tokenizer or options.tokenizer_name):
        raise ValueError("an encoder to go on with keeps its tokenizer: drop --train_tokenizer and --tokenizer_name")
    if options.train_tokenizer == bool(options.tokenizer_name or options.model_name_or_path):
        raise ValueError("a new encoder needs one of --train_tokenizer and --tokenizer_name")
    if not options.train_tokenizer:
        return AutoTokenizer.from_pretrained(options.model_name_or_path or options.tokenizer_name)
    blank = BertTokenizer(do_lower_case=not options.cased)
    parts = (texts[i : i + 1000] for i in range(0, len(texts), 1000))
    tokenizer = blank.train_new_from_iterator(parts, options.vocab_size, show_progress=False)
    tokenizer.model_max_length = options.max_position_embeddings
    return tokenizer


def make_model(options: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> ContrastiveModel:
    """An encoder with the stock masked-LM head: a new BERT of the shape asked for, or the one to go on with."""
    settings = {"do_mlm": True, "pooler_type": "cls_before_pooler"}  # no pooler: no loss reaches it here
    if options.model_name_or_path:
        config = AutoConfig.from_pretrained(options.model_name_or_path)
        kind = pretraining_class(contrastive_class(type(config)))
        return kind.from_pretrained(options.model_name_or_path, config=config, **settings)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.num_hidden_layers,
        num_attention_heads=options.num_attention_heads,
        intermediate_size=options.intermediate_size or 4 * options.hidden_size,
        max_position_embeddings=options.max_position_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        # 0.02 is for a width of 768: narrower layers need larger weights for the same output.
        initializer_range=0.02 * (768 / options.hidden_size) ** 0.5,
    )
    return pretraining_class(contrastive_class(BertConfig))(config, **settings)


def tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Columns `input_ids` and `length`."""
    ids = tokenizer(texts, truncation=True, max_length=max_length, return_attention_mask=False)["input_ids"]
    return Dataset.from_dict({"input_ids": ids, "length": [len(row) for row in ids]})


def mask_once(dataset: Dataset, masker: DataCollatorForLanguageModeling, seed: int) -> Dataset:
    """Held-out sentences with masks that stay the same in every evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rows = [mask_tokens(torch.tensor([ids]), masker) for ids in dataset["input_ids"]]
    masked, labels = ([row[i][0].tolist() for row in rows] for i in (0, 1))
    return Dataset.from_dict({"input_ids": masked, "labels": labels})


def save_stock(model: ContrastiveModel, tokenizer: PreTrainedTokenizerBase, directory: str | os.PathLike) -> None:
    """Writes the stock masked-LM model: without pooler and settings, so that training draws a fresh head."""
    config = copy.deepcopy(model.config)
    delattr(config, SECTION)
    stock = AutoModelForMaskedLM.from_config(config)
    trained = model.state_dict()
    stock.load_state_dict({name: trained[name] for name in stock.state_dict()})
    stock.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def pretrain(options: PretrainingArguments, args: TrainingArguments) -> dict:
    """Trains, saves the stock masked-LM model into `output_dir` and writes `results.json` beside it.

    Returns:
        What stands in `results.json`: `masked_lm_loss` (in nats a masked token, the mean over the batches of the
        held-out sentences) and `perplexity` (its exponential), each before and after, and how the run was made.

    Raises:
        ValueError: `output_dir` holds a model; no sentences to hold out; no tokenizer, or two; a length beyond the
            encoder's positions.
    """
    directory = Path(args.output_dir)
    if (directory / RESULTS).exists() and args.resume_from_checkpoint is None:
        raise ValueError(f"{directory} holds an earlier run: choose another --output_dir, or remove it")
    set_seed(args.seed)
    texts, held_out = read_sentences(options)
    tokenizer = make_tokenizer(options, texts)
    model = make_model(options, tokenizer)
    check_max_length(options.max_seq_length, model.config)
    masker = DataCollatorForLanguageModeling(tokenizer, mlm_probability=options.mlm_probability)
    args.remove_unused_columns = False
    trainer = PretrainingTrainer(
        model,
        args,
        train_dataset=tokenize(texts, tokenizer, options.max_seq_length),
        eval_dataset=mask_once(tokenize(held_out, tokenizer, options.max_seq_length), masker, args.seed),
        data_collator=Collator(tokenizer.pad_token_id),
        masker=masker,
    )
    before = trainer.evaluate()["eval_loss"]
    outcome = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = trainer.evaluate()["eval_loss"]
    results = {
        "held_out_sentences": len(held_out),
        "masked_lm_loss": {"before": before, "after": after},
        "perplexity": {"before": math.exp(before), "after": math.exp(after)},
        "steps": trainer.state.global_step,
        "train_seconds": outcome.metrics["train_runtime"],
        "vocabulary": len(tokenizer),
        "parameters": model.num_parameters(),
    }
    if trainer.is_world_process_zero():
        save_stock(trainer.accelerator.unwrap_model(trainer.model), tokenizer, directory)
        (directory / RESULTS).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        print(f"\nMasked-LM loss of {len(held_out)} held-out sentences (perplexity of masked tokens)")
        print(f"  before   {before:6.3f}   ({math.exp(before):.1f})")
        print(f"  after    {after:6.3f}   ({math.exp(after):.1f})")
        print(f"The encoder is saved in {directory}; its figures are in {directory / RESULTS}.")
    return results
