"""One training run of the evidence: its curve on STS-B dev, and the test sets after it."""

import shutil
import time
from collections.abc import Collection
from typing import Any

from transformers import AutoConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.apps.pretraining import pretrain
from simcse_hf.evaluation.report import spread
from simcse_hf.models.modeling import ContrastiveModel
from simcse_hf.training.arguments import dropout_settings
from simcse_hf.training.parser import DEFAULTS

from ..harness import STS_TASKS, Report, markdown
from .workbench import Workbench

CURVE = {"eval_stsb_spearman": "dev", "eval_stsb_alignment": "alignment", "eval_stsb_uniformity": "uniformity"}
STEPS_TO_EVALUATE = (10, 25, 50, 100, 200, 300, 400, 500, 750, 1000)
LENGTH = 32
SAVE_STEPS = 100
Spec = dict[str, Any]


class EvaluateAt(TrainerCallback):
    """Evaluate after the given steps and after the last one: often at the start, where the scores change quickly."""

    def __init__(self, steps: Collection[int]):
        self.steps = steps

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Request an evaluation."""
        control.should_evaluate |= state.global_step in self.steps or state.global_step == state.max_steps


def train(
    bench: Workbench, spec: Spec, seed: int, *, evaluate: bool = True
) -> tuple[ContrastiveModel, dict[str, Any]]:
    """Train an encoder once, on different rows in every step, and evaluate STS-B dev at `STEPS_TO_EVALUATE`.

    Args:
        bench (`Workbench`): The encoders, texts and sets.
        spec (`dict[str, Any]`): `start` (name of the encoder), `text`, `settings` (of the model), `arguments` (of the
            run) with `max_steps` and `per_device_train_batch_size`), and `dropout` if it is not the encoder's own.
        seed (`int`): The seed of the run.
        evaluate (`bool`, *optional*, defaults to `True`): Whether to evaluate STS-B dev.

    Returns:
        `tuple[ContrastiveModel, dict[str, Any]]`: The trained model; and `curve`, the dev scores by step, with the
        seconds of training and evaluation.
    """
    start = bench.encoder(spec["start"])
    steps, batch = (spec["arguments"][name] for name in ("max_steps", "per_device_train_batch_size"))
    dropout = dropout_settings(AutoConfig.from_pretrained(start), spec.get("dropout"))
    set_seed(seed)
    model = AutoModelForCL.from_pretrained(start, **spec["settings"], **dropout)
    args = SimCSETrainingArguments(
        output_dir=str(bench.work_dir / "run"),
        seed=seed,
        max_seq_length=LENGTH,
        weight_decay=0.0,
        bf16=bench.bf16,
        eval_on_start=evaluate,
        eval_strategy="no",
        save_strategy="no",
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **spec["arguments"],
    )
    trainer = SimCSETrainer(
        model,
        args,
        bench.rows(spec["text"], steps * batch),
        dev_set=bench.dev if evaluate else None,
        processing_class=bench.tokenizer(spec["start"]),
        callbacks=[EvaluateAt(STEPS_TO_EVALUATE)] if evaluate else [],
    )
    started = time.perf_counter()
    trainer.train()
    seconds = round(time.perf_counter() - started)
    return model, {"curve": curve(trainer.state.log_history), "train_seconds": seconds}


def train_and_test(bench: Workbench, spec: Spec, seed: int) -> dict[str, Any]:
    """Train an encoder once, and add `sts`, its scores on the test sets, to those of [`train`]."""
    model, result = train(bench, spec, seed)
    tasks = spec.get("tasks", STS_TASKS)
    return result | {"sts": bench.test(model, bench.tokenizer(spec["start"]), tasks=tasks)}


def curve(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return step, dev correlation, alignment and uniformity of each evaluation in the log of a run."""
    points = {}
    for entry in history:
        if "eval_stsb_spearman" in entry:
            figures = {short: round(entry[name], 4) for name, short in CURVE.items()}
            points[entry["step"]] = {"step": entry["step"]} | figures
    return list(points.values())


def continue_masked_lm(
    bench: Workbench, start: str, name: str, text: str = "wiki", **arguments: Any
) -> dict[str, Any]:
    """Continue an encoder by masked-LM, and save it in `work_dir`. A killed run goes on.

    Args:
        bench (`Workbench`): The encoders and texts.
        start (`str`): Name of the encoder to start from.
        name (`str`): Name of the folder in `work_dir`.
        text (`str`, *optional*, defaults to `"wiki"`): The training text.
        arguments (`Any`): Arguments of the run, such as `max_steps`.

    Returns:
        `dict[str, Any]`: What `simcse_hf.apps.pretraining.pretrain` writes to `results.json`.
    """
    folder, path = bench.work_dir / name, bench.work_dir / f"{name}.txt"
    settings = {"output_dir": str(folder), "save_steps": SAVE_STEPS} | arguments
    # A tenth of the sentences is held out.
    batch = (DEFAULTS["mlm"] | settings)["per_device_train_batch_size"]
    sentences = bench.rows(text, settings["max_steps"] * batch * 10 // 9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(sentences["sent0"]) + "\n", encoding="utf-8")
    was_killed = any(folder.glob("checkpoint-*/trainer_state.json"))
    if not was_killed:
        shutil.rmtree(folder, ignore_errors=True)
    own = {
        "train_file": str(path),
        "model_name_or_path": str(bench.encoder(start)),
        "max_seq_length": LENGTH,
        "bf16": bench.bf16,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "resume_from_checkpoint": "true" if was_killed else None,
    }
    return pretrain(settings | own).to_dict()


def run_missing(report: Report, specs: dict[str, Spec], seeds: list[int], run: Any) -> None:
    """Run what the report lacks, one seed of all runs before the next, and write each result when it is there.

    Args:
        report (`Report`): Holds `runs[name]`, with the `settings` of a run and its results by seed in `seeds`.
        specs (`dict[str, dict]`): The settings of each run by its name. `seeds` limits the seeds of a run.
        seeds (`list[int]`): The seeds.
        run (`Callable`): Takes settings and a seed, and returns the result.
    """
    runs = report.results.setdefault("runs", {})
    for position, seed in enumerate(seeds):
        for name, spec in specs.items():
            if position >= spec.get("number_of_seeds", len(seeds)):
                continue
            entry = runs.setdefault(name, {"settings": spec, "seeds": {}})
            if str(seed) not in entry["seeds"]:
                entry["seeds"][str(seed)] = run(spec, seed)
                report.save()
                print(name, seed, entry["seeds"][str(seed)], flush=True)


def sts_table(runs: dict[str, dict]) -> str:
    """Format the scores of runs on the test sets, as mean and standard deviation over the seeds."""
    results = {name: [result for result in run["seeds"].values() if "sts" in result] for name, run in runs.items()}
    tasks = list(next(each[0]["sts"] for each in results.values() if each))
    rows = [
        [name, *(spread([result["sts"][task] for result in each]) for task in tasks), len(each)]
        for name, each in results.items()
        if each
    ]
    return markdown(["run", *tasks, "seeds"], rows)
