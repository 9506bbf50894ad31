"""The arms of an adaptation: what is done to which model, and how it is trained by the training commands."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from ... import Recipe, SimCSE
from ...encoding.fitting import fit_transform
from ...runtime.files import write_atomically
from ...runtime.messages import errors_only
from ...training.run_results import Results
from ..pretraining import MaskedLMResults, pretrain
from ..study.runs import Trainable

logger = logging.get_logger(__name__)

START, LABELS, CONTROL = "present", "labels", "pretrained-labels"
MASKED_LM = "mlm"
SPANS = "spans"
#: Learning rates from a pre-trained encoder, which are those of the papers for BERT-base or near them, ...
RATES = {MASKED_LM: 5e-5, "tsdae": 3e-5, "simcse": 3e-5, SPANS: 3e-5, LABELS: 5e-5}
#: ... and from a finished sentence encoder, which loses more by large steps than it gains.
PRESENT_RATES = {"simcse": 1e-5, SPANS: 1e-5, LABELS: 2e-5}
#: Share of its steps that an arm spends on the text of the domain before it turns to the labels.
TEXT_SHARE = 0.75
#: Poolers that are tried beside the present model's own.
OTHER_POOLERS = ("avg", "cls_before_pooler", "avg_first_last")
UNTRAINED = "untrained"
#: What `--arms` names; those that train are in the order in which they get a part of the budget.
ARM_NAMES = (
    UNTRAINED,
    LABELS,
    CONTROL,
    "mlm-labels",
    "tsdae-labels",
    "simcse-labels",
    "spans-labels",
    "simcse",
    SPANS,
)
#: Standard output belongs to the result of the adaptation.
_BAR_ONLY = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none"}
_HELD_OUT = 64  # texts whose masked-LM loss `train mlm` measures


@dataclass(frozen=True)
class Stage:
    """One training run.

    Args:
        method (`str`): `"mlm"`, `"tsdae"`, `"simcse"` or `"spans"`, which read the text of the domain, or `"labels"`.
        file (`Path`): The training rows.
        objective (`str`): The objective; masked-LM has none of its own, and its name stands here.
        learning_rate (`float`): Learning rate.
        steps (`int`): Optimizer steps.
    """

    method: str
    file: Path
    objective: str
    learning_rate: float
    steps: int


@dataclass(frozen=True)
class Arm(Trainable):
    """One way to get a model.

    Args:
        name (`str`): Its name in the report.
        model (`str`): Folder or hub name of the model that it starts from.
        pooler (`str`, *optional*): Pooler of the embeddings; by default the model's own.
        whitening (`Path`, *optional*): The text of the domain, if a whitening that is fitted on it follows.
        stages (`Sequence[Stage]`, *optional*, defaults to `()`): The training runs, one after the other.
        control (`str`, *optional*): Name of the arm without the text of the domain; empty if this one reads none.
        options (`Mapping[str, Any]`, *optional*): Further options of the training commands, such as `max_seq_length`;
            `extend_tokenizer` is for masked-LM only.
    """

    name: str
    model: str
    pooler: str | None = None
    whitening: Path | None = None
    stages: Sequence[Stage] = ()
    control: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def learns_from(self) -> dict[str, Any]:
        """Return what tells the arm from others. The texts and models of an adaptation are always the same."""
        return asdict(self)

    def train(self, seed: int, folder: Path) -> dict[str, Any]:
        """Train each stage from the model of the one before, in folders within that of the run, or go on there."""
        logger.info(f"Training the arm {self.name} with seed {seed}.")
        began = time.monotonic()
        model = self.model
        for number, stage in enumerate(self.stages, start=1):
            stage_folder = folder / f"stage{number}"
            if not stage_folder.is_dir():
                with write_atomically(stage_folder) as temporary:
                    self.train_stage(stage, model, seed, temporary)
            model = str(stage_folder)
        return {"train_seconds": time.monotonic() - began}

    def train_stage(self, stage: Stage, model: str, seed: int, output: Path) -> Results | MaskedLMResults:
        """Train as `simcse-hf train mlm`, `train unsup` or `train sup` does.

        Args:
            stage (`Stage`): Method, rows and steps.
            model (`str`): Folder or hub name of the model to start from.
            seed (`int`): Seed of the order of rows, dropout and masks.
            output (`Path`): Folder for the model.

        Returns:
            [`Results`] or [`MaskedLMResults`]: The results.
        """
        values = {
            "model_name_or_path": model,
            "train_file": str(stage.file),
            "output_dir": str(output),
            "max_steps": stage.steps,
            "learning_rate": stage.learning_rate,
            "seed": seed,
            "use_cpu": not torch.cuda.is_available(),
            **_BAR_ONLY,
            **self.options,
        }
        with errors_only():
            if stage.method == MASKED_LM:
                return pretrain(**values, held_out=_HELD_OUT)
            del values["extend_tokenizer"]
            recipe = Recipe("sup" if stage.method in (LABELS, SPANS) else "unsup", values)
            return recipe.but(objective=stage.objective, eval_strategy="no", pooler_type=self.pooler).train()

    def open(self, folder: Path) -> SimCSE:
        """Load the model of the last stage, or that of an arm that does not train; not the present model as it is."""
        if self.stages:
            return SimCSE(folder / f"stage{len(self.stages)}")
        model = SimCSE(self.model, pooler_type=self.pooler, postprocess=False)
        if self.whitening is not None:
            # Some models' embeddings vary in fewer directions than they have dimensions.
            fit_transform(model, "whitening", self.whitening, dim=3 * model.dim // 4)
        return model


def make_arms(
    model: str,
    own: str,
    pooler: str | None,
    pretrained: str | None,
    text: Path,
    spans: Path | None,
    whitening: Path,
    labels: Mapping[Path, str],
    steps: int,
    options: Mapping[str, Any],
) -> list[Arm]:
    """List the arms, the simplest first. All that train take the same number of steps.

    Args:
        model (`str`): The present model.
        own (`str`): The pooler that it is used with.
        pooler (`str`, *optional*): The same, if that is not the one that it names.
        pretrained (`str`, *optional*): An encoder that is not yet a sentence encoder.
        text (`Path`): File with the text of the domain.
        spans (`Path`, *optional*): File with pairs of neighbouring spans of its documents.
        whitening (`Path`): File with the part of the text that a whitening is fitted on.
        labels (`Mapping[Path, str]`): Files with labels, and the objective that learns from each.
        steps (`int`): Steps of an arm.
        options (`Mapping[str, Any]`): Those of an [`Arm`].

    Returns:
        `list[Arm]`: The arms. The first one is the present model as it is.
    """

    def from_labels(rates: Mapping[str, float], steps: int) -> list[Stage]:
        stages = []
        for number, (file, objective) in enumerate(labels.items()):
            share = steps * (number + 1) // len(labels) - steps * number // len(labels)
            stages.append(Stage(LABELS, file, objective, rates[LABELS], share))
        return stages

    arms = [Arm(START, model, pooler)]
    for name in dict.fromkeys([own, *OTHER_POOLERS]):
        if name != own:
            arms.append(Arm(name, model, name))
        arms.append(Arm(f"{name}, whitening", model, name, whitening=whitening))
    if labels:
        arms.append(Arm(LABELS, model, pooler, stages=from_labels(PRESENT_RATES, steps)))
    simcse = Stage("simcse", text, "simcse", PRESENT_RATES["simcse"], steps)
    arms.append(Arm("simcse", model, pooler, stages=[simcse], control=START))
    if spans is not None:
        pairs = Stage(SPANS, spans, "simcse", PRESENT_RATES[SPANS], steps)
        arms.append(Arm(SPANS, model, pooler, stages=[pairs], control=START))
    if labels and pretrained is not None:
        arms.append(Arm(CONTROL, pretrained, "avg", stages=from_labels(RATES, steps)))
        first = round(TEXT_SHARE * steps)
        firsts = [Stage(method, text, method, RATES[method], first) for method in (MASKED_LM, "tsdae", "simcse")]
        if spans is not None:
            firsts.append(Stage(SPANS, spans, "simcse", RATES[SPANS], first))
        for stage in firsts:
            stages = [stage, *from_labels(RATES, steps - first)]
            arms.append(Arm(f"{stage.method}-labels", pretrained, "avg", stages=stages, control=CONTROL))
    return [replace(arm, options=options) for arm in arms]
