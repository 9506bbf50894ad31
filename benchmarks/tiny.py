"""Tiny training runs of 16 configurations, with steps of milliseconds, for the benchmarks of reliability."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoConfig, BertTokenizer, TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.encoding.files import write_vectors
from simcse_hf.evaluation.tasks.senteval import ScoredPairs
from simcse_hf.runtime.files import MANIFEST

WORDS = "a the cat dog bird man woman sat ran sang slept on in mat house tree red big small old".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ing"]
MAX_STEPS, SAVE_STEPS = 16, 4

#: name: (settings of the model, training arguments, texts in a row). Between them they cover every file of a
#: checkpoint and every state that a step depends on.
CONFIGURATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "dropout as the view": ({}, {}, 1),
    "masked-LM loss": ({"do_mlm": True}, {}, 1),
    "head in its own file": ({"model_type": "distilbert"}, {}, 1),
    "hard negatives": ({}, {"lr_scheduler_type": "cosine", "warmup_steps": 5}, 3),
    "momentum encoder and queue": ({"objective": "esimcse", "objective_options": {"queue_size": 24}}, {}, 1),
    "words deleted at random": ({}, {"view": "delete_words"}, 1),
    "gradient accumulation": ({}, {"gradient_accumulation_steps": 2}, 2),
    "gradient in chunks": ({}, {"gradcache_chunk_size": 4}, 1),
    "two data loader workers": ({}, {"dataloader_num_workers": 2, "view": "repeat_words"}, 1),
    "best of the dev set, one checkpoint kept": (
        {},
        {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True, "save_total_limit": 1},
        1,
    ),
    "bfloat16": ({}, {"bf16": True}, 1),
    "Barlow Twins, Adafactor, saved by epoch": (
        {"objective": "barlow_twins", "objective_options": {"projector_dim": 32}},
        {"optim": "adafactor", "save_strategy": "epoch", "logging_strategy": "epoch"},
        2,
    ),
    "LoRA": ({}, {"lora": {"r": 2, "lora_dropout": 0.1}}, 2),
    "two data sets": (
        {},
        {
            "datasets": {
                "a": {"share": 1},
                "b": {"share": 2, "objective": "vicreg", "objective_options": {"projector_dim": 32}},
            }
        },
        2,
    ),
    "teacher": ({"objective": "distill", "pooler_type": "avg"}, {}, 1),
    "guide": ({}, {}, 3),
}
#: The argument that names vectors of the texts, random ones, which are written before the first run.
VECTORS = {"teacher": "teacher", "guide": "guide"}


def make_trainer(
    name: str, folder: Path, callbacks: tuple[TrainerCallback, ...] = (), **changes: Any
) -> SimCSETrainer:
    """Make the trainer of a configuration, always with the same weights and texts.

    Args:
        name (`str`): One of `CONFIGURATIONS`.
        folder (`Path`): Its `output_dir`.
        callbacks (`tuple[TrainerCallback, ...]`, *optional*): Further callbacks.
        changes (`Any`): Further training arguments.

    Returns:
        `SimCSETrainer`: The trainer.
    """
    settings, arguments, columns = CONFIGURATIONS[name]
    settings = dict(settings)
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=32)
    torch.manual_seed(1)
    model = AutoModelForCL.from_config(_config(settings.pop("model_type", "bert")), **settings)
    values = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "max_steps": MAX_STEPS,
        "learning_rate": 1e-3,
        "logging_steps": 2,
        "save_steps": SAVE_STEPS,
        "save_total_limit": 2,
        "max_seq_length": 16,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    dev_set = ScoredPairs("stsb", sentences(8, 7), sentences(8, 8), [float(i % 5) for i in range(8)])
    size = 48 * arguments.get("gradient_accumulation_steps", 1)
    rows = Dataset.from_dict({f"sent{i}": sentences(size, i) for i in range(columns)})
    if name in VECTORS:
        values[VECTORS[name]] = str(_vectors_of(rows, folder.parent / "vectors"))
    return SimCSETrainer(
        model,
        SimCSETrainingArguments(**(values | arguments | changes)),
        dict.fromkeys(arguments["datasets"], rows) if "datasets" in arguments else rows,
        dev_set=dev_set if "eval_strategy" in arguments | changes else None,
        processing_class=tokenizer,
        callbacks=[*callbacks],
    )


def _config(model_type: str) -> Any:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    if model_type == "distilbert":
        names = ("dim", "n_layers", "n_heads", "hidden_dim")
    sizes = dict(zip(names, (32, 2, 2, 48), strict=True))
    common = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 32, "initializer_range": 0.2}
    return AutoConfig.for_model(model_type, **sizes, **common)


def _vectors_of(rows: Dataset, folder: Path) -> Path:
    """Write random vectors of the texts of rows, unless an earlier run has finished that."""
    if not (folder / MANIFEST).exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_vectors(folder, rows, np.random.default_rng(0).normal(size=(*rows.shape, 8)), "random")
    return folder


def sentences(rows: int, seed: int) -> list[str]:
    """Draw sentences of six words."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(rows):
        numbers = torch.randint(len(WORDS), (6,), generator=generator)
        found.append(" ".join(WORDS[i] for i in numbers))
    return found


def fingerprint(folder: Path) -> dict[str, Any]:
    """Describe the last checkpoint of a finished run bit by bit: weights, optimizer, schedule, random state and log.

    Times are left out, and so is what depends on them.
    """
    step = max(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))
    checkpoint = folder / f"checkpoint-{step}"
    found: dict[str, Any] = {"step": step}
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        if path.suffix == ".safetensors":
            found[name] = _digest(load_file(path))
        elif path.suffix in (".pt", ".pth"):
            found[name] = _digest(torch.load(path, weights_only=False))
        elif path.is_file() and name not in (MANIFEST, "trainer_state.json", "training_args.bin"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    found["log"] = [
        {key: value for key, value in entry.items() if not key.endswith(("_runtime", "_per_second"))}
        for entry in state["log_history"]
    ]
    found["best"] = (state["best_metric"], state["best_global_step"])
    return found


def _digest(value: Any) -> str:
    """Return a digest of nested containers of tensors, arrays and plain values, by their bits."""
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, dict):
            for key in sorted(item, key=str):
                digest.update(str(key).encode())
                add(item[key])
        elif isinstance(item, (list, tuple)):
            digest.update(str(len(item)).encode())
            for part in item:
                add(part)
        elif isinstance(item, torch.Tensor):
            digest.update(f"{item.dtype} {tuple(item.shape)}".encode())
            plain = item.detach().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().tobytes())
        elif hasattr(item, "tobytes"):
            digest.update(item.tobytes())
        else:
            digest.update(repr(item).encode())

    add(value)
    return digest.hexdigest()
