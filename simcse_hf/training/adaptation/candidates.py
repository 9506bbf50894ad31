"""Train a candidate of the search: one or two stages from the start model, in a given number of steps."""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from ...inference.simcse import SimCSE
from ...ops.loading import load_pretrained, load_weights
from ..pretraining import MaskedLMTrainer, tokenize
from ..run import UNSUP_DEFAULTS, load_model
from ..script_arguments import parse_arguments
from ..trainer import SimCSETrainer
from .plan import Candidate, Stage

MLM_BATCH = 32
_MLM_PROBABILITY = 0.15
#: Objectives of SimCSE's family train [CLS] through a head that is dropped afterwards (SimCSE, Table 6).
_WITH_TRAINING_HEAD = ("simcse", "esimcse")


@dataclass(frozen=True)
class TrainingOptions:
    """What the runs of a search have in common.

    Args:
        texts (`Sequence[str]`): The training texts.
        pooler (`str`): The pooler of the embeddings that are trained.
        max_length (`int`): Tokens to which a text is cut.
        bf16 (`bool`): Whether to train in bfloat16.
        on_step (`Callable`): Called after each step; returns whether the time is up and training has to stop.
    """

    texts: Sequence[str]
    pooler: str
    max_length: int
    bf16: bool
    on_step: Callable[[], bool]


class _Clock(TrainerCallback):
    """Measure the time of steps, and end training when the budget is spent."""

    def __init__(self, on_step: Callable[[], bool]):
        self._on_step = on_step
        self.times: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.times.append(time.monotonic())
        if self._on_step():
            control.should_training_stop = True


@dataclass(frozen=True)
class StageResult:
    """What a stage of training took.

    Args:
        steps (`int`): Steps taken.
        step_seconds (`float`): Mean time of a step, without the first one, which is slower.
    """

    steps: int
    step_seconds: float


def train_candidate(
    start: str, candidate: Candidate, steps: Sequence[int], seed: int, output: Path, options: TrainingOptions
) -> list[StageResult]:
    """Train the stages of a candidate one after the other, and save the last model.

    Args:
        start (`str`): The model to start from.
        candidate (`Candidate`): The stages.
        steps (`Sequence[int]`): Steps of each stage.
        seed (`int`): Seed of the order of the texts, dropout and masks.
        output (`Path`): Directory for the model. What it holds is replaced.
        options (`TrainingOptions`): The texts and what else the runs have in common.

    Returns:
        `list[StageResult]`: What each stage took.
    """
    shutil.rmtree(output, ignore_errors=True)
    results, model = [], start
    for number, (stage, count) in enumerate(zip(candidate, steps, strict=True)):
        is_last = number == len(candidate) - 1
        directory = output if is_last else output.with_name(f"{output.name}.stage{number}")
        train = _train_masked_lm if stage.method == "mlm" else _train_objective
        results.append(train(model, stage, count, seed, directory, options))
        if model != start:
            shutil.rmtree(model)
        model = str(directory)
    return results


def _train_objective(
    start: str, stage: Stage, steps: int, seed: int, output: Path, options: TrainingOptions
) -> StageResult:
    has_head = options.pooler == "cls_before_pooler" and stage.method in _WITH_TRAINING_HEAD
    words = {
        "model_name_or_path": start,
        "objective": stage.method,
        "pooler_type": "cls" if has_head else options.pooler,
        "mlp_only_train": has_head,
        "max_seq_length": options.max_length,
        **_common_arguments(stage, steps, seed, output, options),
    }
    defaults = UNSUP_DEFAULTS | {"eval_strategy": "no", "load_best_model_at_end": False}
    argv = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    model_args, _, training_args = parse_arguments(argv, defaults)
    model, tokenizer = load_model(model_args, seed)
    batch = training_args.per_device_train_batch_size
    trainer = SimCSETrainer(
        model,
        training_args,
        train_dataset=_draw(options.texts, steps * batch, seed),
        processing_class=tokenizer,
    )
    result = _run(trainer, options)
    trainer.save_model()
    return result


def _train_masked_lm(
    start: str, stage: Stage, steps: int, seed: int, output: Path, options: TrainingOptions
) -> StageResult:
    """Train the encoder by masked-LM, and save it with the pooler, the prompts and the layers that the model had."""
    tokenizer = load_pretrained(AutoTokenizer.from_pretrained, start)
    set_seed(seed)
    model, _ = load_weights(AutoModelForMaskedLM.from_pretrained, start)
    arguments = _common_arguments(stage, steps, seed, output, options)
    arguments |= {"per_device_train_batch_size": MLM_BATCH, "weight_decay": 0.01, "dataloader_pin_memory": False}
    texts = _draw(options.texts, steps * MLM_BATCH, seed)
    trainer = MaskedLMTrainer(
        model,
        TrainingArguments(**arguments),
        tokenizer,
        _MLM_PROBABILITY,
        train_dataset=tokenize(texts, tokenizer, options.max_length),
    )
    result = _run(trainer, options)
    trained = cast(Any, trainer.model).base_model.state_dict()
    sentence_model = SimCSE(start, pooler_type=options.pooler, device="cpu", postprocess=False)
    sentence_model.model.base_model.load_state_dict({name: x.cpu() for name, x in trained.items()}, strict=False)
    sentence_model.save_pretrained(output)
    return result


def _common_arguments(stage: Stage, steps: int, seed: int, output: Path, options: TrainingOptions) -> dict[str, Any]:
    return {
        "output_dir": str(output),
        "max_steps": steps,
        "learning_rate": stage.learning_rate,
        "seed": seed,
        "bf16": options.bf16,
        "use_cpu": not torch.cuda.is_available(),  # otherwise transformers refuses bfloat16 on a CPU
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _draw(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Draw the texts that a run reads in one epoch, so that no others are tokenised."""
    return list(texts) if count >= len(texts) else random.Random(seed).sample(list(texts), count)


def _run(trainer: Trainer, options: TrainingOptions) -> StageResult:
    clock = _Clock(options.on_step)
    trainer.add_callback(clock)
    trainer.remove_callback(PrinterCallback)  # standard output belongs to the command's result
    trainer.train()
    times = clock.times
    return StageResult(len(times), (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0)
