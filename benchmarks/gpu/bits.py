"""Runs whose weights should be equal in all bits: two alike, with graphs and without, killed and resumed."""

import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer, TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments

from ..contestants import TEMPERATURE, common
from .attention import LENGTH
from .graphs import GraphTrainer

STEPS, SAVED, KILLED = 12, 6, 8


class _Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == KILLED:
            raise InterruptedError


def compare_runs(model: Path, rows: Dataset, batch: int, bf16: bool) -> dict[str, Any]:
    """Train runs of twelve steps with dropout, and compare their weights."""
    with tempfile.TemporaryDirectory() as folder:
        make = _Runs(model, rows, batch, bf16, Path(folder))
        first, losses = make.run("first")
        again, _ = make.run("again")
        eager, losses_eager = make.run("eager", by_graph=False)
        other, _ = make.run("other", seed=43)
        try:
            make.run("killed", (_Kill(),))
        except InterruptedError:
            pass
        resumed, _ = make.run("killed", resume=True)
    return {
        "two runs are equal": _difference(first, again) == 0,
        "graphs equal no graphs": _difference(first, eager) == 0,
        "largest difference to no graphs": _difference(first, eager),
        "another seed differs": _difference(first, other) > 0,
        "killed and resumed equals uninterrupted": _difference(first, resumed) == 0,
        "largest difference after the resume": _difference(first, resumed),
        "losses": losses,
        "losses without graphs": losses_eager,
        "graphs": make.graphs,
    }


def _difference(weights: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max((x - others[name]).abs().max().item() for name, x in weights.items())


class _Runs:
    def __init__(self, model: Path, rows: Dataset, batch: int, bf16: bool, folder: Path):
        self.model, self.rows, self.batch, self.bf16, self.folder = model, rows, batch, bf16, folder
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.graphs: dict[str, int] = {}

    def run(
        self,
        name: str,
        callbacks: tuple[TrainerCallback, ...] = (),
        resume: bool = False,
        by_graph: bool = True,
        **changes: Any,
    ) -> tuple[dict[str, Tensor], list[float]]:
        """Train, and return the weights and the losses."""
        arguments = common() | {
            "max_steps": STEPS,
            "save_strategy": "steps",
            "save_steps": SAVED,
            "save_only_model": False,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "per_device_train_batch_size": self.batch,
            "max_seq_length": LENGTH,
            "bf16": self.bf16,
        }
        model = AutoModelForCL.from_pretrained(self.model, pooler_type="cls_before_pooler", temperature=TEMPERATURE)
        args = SimCSETrainingArguments(str(self.folder / name), **(arguments | changes))
        make = GraphTrainer if by_graph else SimCSETrainer
        trainer = make(model, args, self.rows, processing_class=self.tokenizer, callbacks=list(callbacks))
        trainer.train(resume_from_checkpoint=resume or None)
        if isinstance(trainer, GraphTrainer) and trainer.graphs is not None:
            self.graphs[name] = len(trainer.graphs.captured)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        return {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}, losses
