"""Masked-LM pretraining on sentences: `simcse-hf train mlm`."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import AddedToken
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from .. import DataError, SettingError, WholeCheckpointTrainer, load_text_dataset, sample_files
from ..data.token_ids import check_known, to_token_ids
from ..kernels.cpu import has_only_cpu
from ..models.settings import SECTION, check_max_length
from ..objectives.masked_lm import IGNORED, mask_tokens
from ..runtime.distributed import lock_together, on_first_process
from ..runtime.files import StrPath, write_json
from ..runtime.loading import load_pretrained, load_weights
from ..runtime.messages import check_together
from ..runtime.outputs import Result
from ..training.arguments import check_learning, check_packages
from ..training.checkpoints import RESULTS, check_foreign, check_output_dir, clear_output_dir, resolve_checkpoint
from ..training.parser import DEFAULTS, WordParser, check_files, option

_WORD = re.compile(r"\w*[^\W\d_]\w*")  # with a letter, because the pieces of a number say more than the number itself
#: A word must occur so often to become a token: an embedding that is hardly ever seen stays the mean of its pieces.
LEAST_COUNT = 5


@dataclass(repr=False)  # that of transformers hides tokens
class PretrainingArguments(TrainingArguments):
    """transformers' TrainingArguments with the encoder, its tokenizer and the sentences."""

    _argument_group_name = "encoder and sentences"

    train_file: str | None = option(None, "File of sentences: txt, csv, tsv, jsonl or parquet, also .gz.")
    columns: list[str] | None = option(None, "Column of the sentences, if the file has several.")
    max_train_samples: int | None = option(None, "Train on the first rows only.")
    held_out: int = option(1000, "Number of sentences at the end of the file kept for evaluation (at most 10%).")
    model_name_or_path: str | None = option(
        None, "Encoder to continue training; also --model; default: a new BERT.", aliases=["--model"]
    )
    train_tokenizer: bool = option(False, "Train a WordPiece tokenizer on the sentences, for a new encoder.")
    vocab_size: int = option(30522, "Vocabulary size of the tokenizer to train.")
    extend_tokenizer: int | None = option(
        None,
        "Add this many words to the tokenizer of --model: the most frequent ones that it splits.",
    )
    cased: bool = option(False, "Train a tokenizer that keeps capitals and accents.")
    hidden_size: int = option(256, "Width of a new encoder.")
    num_hidden_layers: int = option(4, "Number of layers of a new encoder.")
    num_attention_heads: int = option(4, "Number of attention heads of a new encoder.")
    max_position_embeddings: int = option(512, "Number of positions of a new encoder.")
    max_seq_length: int = option(128, "Number of tokens to which longer sentences are cut.")
    mlm_probability: float = option(0.15, "Share of the tokens to predict.")
    overwrite_output_dir: bool = option(
        False, "Delete the earlier run in --output_dir and start again; also --overwrite.", aliases=["--overwrite"]
    )

    def __post_init__(self) -> None:
        """Let transformers check its arguments, also bf16 on a machine without a GPU."""
        self.use_cpu = self.use_cpu or has_only_cpu()
        check_packages(self)
        super().__post_init__()
        check_learning(self)


class MaskedLMTrainer(WholeCheckpointTrainer):
    """Train a stock masked-LM model on rows of `input_ids`.

    The masks of a step are drawn by the seed, the step and the process. So a resumed run draws those of an
    uninterrupted one, which masks drawn by the collator ahead of the step would not guarantee.

    Args:
        model (`PreTrainedModel`): A model of `AutoModelForMaskedLM`.
        args (`PretrainingArguments`): The arguments. Of the tokens to predict, 80% become [MASK], 10% a random token,
            and 10% stay.
        tokenizer (`PreTrainedTokenizerBase`): The model's tokenizer.
        eval_dataset (`Dataset`, *optional*): Rows of an evaluation.
        kwargs (`Any`): Further arguments of transformers' Trainer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: PretrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        eval_dataset: Dataset | None = None,
        **kwargs: Any,
    ):
        self.masker = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mlm_probability)
        if eval_dataset is not None:  # its masks are the same in every evaluation
            masked = []
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(args.seed)
                for row in eval_dataset["input_ids"]:
                    ids, labels = mask_tokens(torch.tensor(row), self.masker)
                    masked.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
            eval_dataset = Dataset.from_list(masked)
        # Checkpoints have the names of the model: those of an old one (LayerNorm.gamma) could not be resumed.
        vars(model).pop("_weight_conversions", None)
        collator = DataCollatorForTokenClassification(tokenizer)
        super().__init__(model, args, collator, eval_dataset=eval_dataset, processing_class=tokenizer, **kwargs)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the tokens of a step
        #: The first module that reads the states of the encoder.
        self.head = next(child for child in model.children() if child is not model.base_model)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, *args: object) -> tuple:
        """Take the batches of a step, mask those without labels, and count the tokens to predict."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, *args)
        place = [self.args.seed, self.state.global_step, self.args.process_index]
        (seed,) = np.random.SeedSequence(place).generate_state(1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed))
            for batch in batches:
                if "labels" not in batch:
                    batch["input_ids"], batch["labels"] = mask_tokens(batch["input_ids"], self.masker)
        return batches, self._get_num_items_in_batch(batches, self.args.device)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Compute the mean loss of the tokens of a batch; in a step its part of the mean over all tokens."""
        # The head runs at the masked positions only: over a whole vocabulary, it costs as much as a small encoder.
        labels = inputs["labels"]
        predicted = labels != IGNORED
        number = predicted.sum()
        if not number:  # in a batch of few tokens: the mean over none would not be a number
            predicted[0, 0] = True
            labels[0, 0] = inputs["input_ids"][0, 0]
        inputs = inputs | {"labels": labels[predicted]}
        with self.head.register_forward_pre_hook(lambda _, given: (given[0][predicted], *given[1:])):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training and num_items_in_batch is not None:
            # Processes average their gradients.
            processes = self.args.world_size if self.args.average_tokens_across_devices else 1
            loss = loss * (number * processes / torch.as_tensor(num_items_in_batch).clamp(min=1))
        return (loss, outputs) if return_outputs else loss


def make_encoder(
    args: PretrainingArguments, texts: list[str], checkpoint: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the encoder to continue with its masked-LM head and its tokenizer, or make a new BERT and its tokenizer.

    Training a WordPiece tokenizer twice on the same sentences gives two vocabularies, because ties are broken at
    random. So the first process trains it for all of them, and a resumed run loads that of its checkpoint.

    Args:
        args (`PretrainingArguments`): The arguments.
        texts (`list[str]`): Sentences to train a tokenizer on.
        checkpoint (`str`, *optional*): The checkpoint to resume from.

    Returns:
        `tuple[PreTrainedModel, PreTrainedTokenizerBase]`: The model, without settings of this package, so that
        contrastive training from it draws a fresh head; and the tokenizer.

    Raises:
        SettingError: If not exactly one of the two was requested.
    """
    name = args.model_name_or_path
    if bool(name) == args.train_tokenizer or (args.extend_tokenizer and not name):
        raise SettingError(
            "name an encoder to continue with --model, which keeps its tokenizer or gains words by "
            "--extend_tokenizer, or make a new one with --train_tokenizer and --vocab_size: one of the two"
        )

    # 1. The tokenizer. Words are added to a resumed run's tokenizer anew, which gives those of its checkpoint.
    source = name if args.extend_tokenizer else checkpoint or name
    if source is None:
        blank = BertTokenizer(do_lower_case=not args.cased, model_max_length=args.max_position_embeddings)
        tokenizer = on_first_process(
            lambda: blank.train_new_from_iterator(texts, args.vocab_size, show_progress=False)
        )
    else:
        tokenizer = load_pretrained(AutoTokenizer.from_pretrained, source)

    # 2. The model.
    if name:
        model, _ = load_weights(AutoModelForMaskedLM.from_pretrained, name, dtype=torch.float32)
        if hasattr(model.config, SECTION):
            delattr(model.config, SECTION)
        return model, tokenizer
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_hidden_layers,
        num_attention_heads=args.num_attention_heads,
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=args.max_position_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        # 0.02 suits a width of 768; narrower layers need larger weights for outputs of the same size.
        initializer_range=0.02 * (768 / args.hidden_size) ** 0.5,
    )
    return BertForMaskedLM(config), tokenizer


def extend_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], number: int
) -> int:
    """Add the most frequent words that a tokenizer splits or does not know, as whole tokens.

    The embedding of a new token, also in the output layer, is the mean of those of the pieces that it replaces. It
    matches whole words only: if `cough` is new, `coughing` keeps its pieces. Words that occur fewer than five times
    are not added.

    Args:
        model (`PreTrainedModel`): A masked-LM model, which is changed.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer, which is changed.
        texts (`Sequence[str]`): Texts of the domain.
        number (`int`): The largest number of words to add.

    Returns:
        `int`: The number of words that were added.

    Raises:
        SettingError: If the tokenizer is written in Python, or no word is frequent enough and split.
    """
    if not tokenizer.is_fast:
        name = type(tokenizer).__name__
        raise SettingError(f"{name} is written in Python: words can be added to fast tokenizers only.")
    normalizer = tokenizer.backend_tokenizer.normalizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD.findall(normalizer.normalize_str(text) if normalizer else text))
    frequent = sorted(word for word, count in counts.items() if count >= LEAST_COUNT)
    frequent.sort(key=lambda word: -counts[word])
    split: dict[str, list[int]] = {}
    pieces = to_token_ids(tokenizer, [f" {word}" for word in frequent], add_special_tokens=False)
    for word, ids in zip(frequent, pieces, strict=True):
        is_split = len(ids) > 1 or tokenizer.unk_token_id in ids
        if is_split and len(split) < number:
            split[word] = ids
    if not split:
        raise SettingError(
            f"the tokenizer knows every word that occurs {LEAST_COUNT} times or more: leave --extend_tokenizer out."
        )
    # `lstrip` takes the space before the word as well, which tokenizers such as RoBERTa's count among the word.
    new = [AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in split]
    tokenizer.add_tokens(new)
    words = model.get_input_embeddings().get_parameter("weight")
    if len(tokenizer) > len(words):  # some have rows to spare
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            for table in layer.parameters(recurse=False):
                for word, ids in split.items():
                    new_id = tokenizer.convert_tokens_to_ids(word)
                    table[new_id] = table[ids].mean(0)
    return len(split)


@dataclass(frozen=True)
class MaskedLMResults(Result):
    """What masked-LM pretraining returns, and writes into results.json beside the model.

    Args:
        model (`str`): The folder of the model.
        held_out_sentences (`int`): The number of held-out sentences.
        masked_lm_loss (`dict[str, float]`): Their loss `before` and `after` training, in nats per masked token,
            averaged over batches.
        steps (`int`): Optimizer steps.
        train_seconds (`float`): How long training took.
        vocabulary (`int`): Tokens of the vocabulary.
        parameters (`int`): Numbers of the model.
        added_words (`int`, *optional*): Words that were made whole tokens.
    """

    model: str
    held_out_sentences: int
    masked_lm_loss: dict[str, float]
    steps: int
    train_seconds: float
    vocabulary: int
    parameters: int
    added_words: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of results.json, with the perplexity, which is the exponential of the loss."""
        content = {name: value for name, value in asdict(self).items() if value is not None and name != "model"}
        content["perplexity"] = {when: math.exp(loss) for when, loss in self.masked_lm_loss.items()}
        return content

    def __str__(self) -> str:
        lines = []
        if self.added_words is not None:
            lines.append(f"\nAdded {self.added_words} words, the split words that occur {LEAST_COUNT} times or more.")
        number = self.held_out_sentences
        lines.append(f"\nMasked-LM loss of {number} held-out sentences (perplexity of masked tokens)")
        for when, loss in self.masked_lm_loss.items():
            lines.append(f"  {when:<9}{loss:6.3f}   ({math.exp(loss):.1f})")
        lines.append(f"The encoder is saved in {self.model}; its metrics are in {Path(self.model, RESULTS)}.")
        return "\n".join(lines)


def pretraining_arguments(recipe: StrPath | Sequence[str] = (), **arguments: Any) -> PretrainingArguments:
    """Return what was given, over the defaults of `simcse-hf train mlm` and those of the sample."""
    parser = WordParser([PretrainingArguments])
    given = parser.read(recipe, arguments)
    values = dict(DEFAULTS["mlm"])
    if given.get("train_file") is None:
        corpus, _ = sample_files()
        values |= DEFAULTS["mlm sample"]
        values["train_file"] = str(corpus.train_sentences)
        values["overwrite_output_dir"] = "output_dir" not in given
    (args,) = parser.fill(values | given)
    return args


def pretrain(recipe: StrPath | Sequence[str] = (), **arguments: Any) -> MaskedLMResults:
    """Train a masked-LM model, save it as a stock model in `output_dir`, and write `results.json` beside it.

    Args:
        recipe (`str`, `os.PathLike` or `Sequence[str]`, *optional*): A YAML file of arguments, the name of a recipe of
            the package, or the words of a command line.
        arguments (`Any`): The options of `simcse-hf train mlm`: the fields of [`PretrainingArguments`], over the
            recipe. Without sentences, it trains on the sample of the package.

    Returns:
        [`MaskedLMResults`]: The results.

    Raises:
        DataError: If there are too few sentences, or the tokenizer does not know their words. Settings that do not fit
            are a SettingError.

    Examples:
        >>> from simcse_hf import pretrain
        >>> results = pretrain(train_file="sentences.txt", train_tokenizer=True, hidden_size=32, num_attention_heads=2,
        ...                    max_steps=2, output_dir="outputs/my-encoder", report_to="none")
        >>> results.steps, results.held_out_sentences
        (2, 20)
    """
    args = pretraining_arguments(recipe, **arguments)
    check_together(args.world_size)
    directory = Path(str(args.output_dir))
    check_foreign(directory)
    with lock_together(directory):
        # 1. Read the sentences, and hold out the last ones for evaluation.
        source: Any = args.train_file
        path = source if isinstance(source, str) else "train_file"
        paths = {"--train_file": source, "--model_name_or_path": args.model_name_or_path}
        inputs = [(option, file) for option, file in paths.items() if isinstance(file, (str, os.PathLike))]
        check_files(inputs)
        check_output_dir(args, args.overwrite_output_dir, inputs)
        set_seed(args.seed)
        dataset = load_text_dataset(source, columns=args.columns, expected_columns=1, max_rows=args.max_train_samples)
        texts = list(dataset["sent0"])
        number = min(args.held_out, len(texts) // 10)
        if number < 1:
            raise DataError(
                f"{path}: {len(texts)} sentences are too few, because a tenth of them is held out for evaluation: "
                "give at least 10 sentences and --held_out of at least 1"
            )
        held_out = texts[-number:]
        texts = texts[:-number]

        # 2. Make the encoder, and tokenize.
        checkpoint = None
        if args.resume_from_checkpoint:
            checkpoint = resolve_checkpoint(args.resume_from_checkpoint, str(directory))
        model, tokenizer = make_encoder(args, texts, checkpoint)
        added_words = None
        if args.extend_tokenizer:
            added_words = extend_vocabulary(model, tokenizer, texts, args.extend_tokenizer)
        check_max_length(args.max_seq_length, model.config)

        def tokenize(sentences: list[str]) -> Dataset:
            ids = to_token_ids(tokenizer, sentences, truncation=True, max_length=args.max_seq_length)
            return Dataset.from_dict({"input_ids": ids, "length": [len(row) for row in ids]})

        rows = tokenize(texts)
        check_known(rows["input_ids"], tokenizer, path)

        # 3. Train.
        trainer = MaskedLMTrainer(model, args, tokenizer, train_dataset=rows, eval_dataset=tokenize(held_out))
        clear_output_dir(args)  # now that nothing is wrong with the new run
        loss = {"before": trainer.evaluate()["eval_loss"]}
        outcome = trainer.train(resume_from_checkpoint=checkpoint)
        loss["after"] = trainer.evaluate()["eval_loss"]
        results = MaskedLMResults(
            model=str(directory),
            held_out_sentences=len(held_out),
            masked_lm_loss=loss,
            steps=trainer.state.global_step,
            train_seconds=outcome.metrics["train_runtime"],
            vocabulary=len(tokenizer),
            parameters=model.num_parameters(),
            added_words=added_words,
        )

        # 4. Save the model.
        trainer.save_model()
        if trainer.is_world_process_zero():
            write_json(directory / RESULTS, results.to_dict())
        return results
