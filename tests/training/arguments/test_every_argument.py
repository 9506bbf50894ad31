"""Every argument of transformers' Trainer changes what it says and nothing else, or is refused.

The tables name each field of `TrainingArguments` and each argument of `Trainer`. A tiny run with the argument is
compared with one without it, in all bits. What cannot run here, offline and on one process of a CPU, has a reason. An
argument that a later version of transformers adds fails the first test until somebody has classified it.
"""

import hashlib
import inspect
from dataclasses import fields

import pytest
import torch
import transformers
from conftest import PAD, tiny_config
from datasets import Dataset
from packaging import version
from trainer_helpers import (
    assert_same_weights,
    make,
    model_of,
    refuses,
    sentences,
    weights,
)
from transformers import (
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

from simcse_hf import AutoModelForCL, SimCSETrainer

#: Rows of different lengths, whose last batch of an epoch is not full.
ROWS = Dataset.from_dict(
    {
        "sent0": [text[: 12 + i] for i, text in enumerate(sentences(30))],
        "sent1": sentences(30, 1),
    }
)
OTHERS = Dataset.from_dict({"sent0": sentences(12, 5), "sent1": sentences(12, 6)})
#: What decides the weights; the losses and the scores after training follow from them.
LEARNS = {"rows", "noise", "rates", "weights"}


class Case:
    """A run with the arguments `given` and `options`. Only the parts `changed` differ from a run with `given` alone.

    With `refused`, it is refused before the first step, with a message that names these words.
    """

    def __init__(self, *changed, given=None, least="5.2", refused="", **options):
        self.changed = set(changed)
        self.refused = refused
        self.given = given or {}
        self.least = least  # the version of transformers that has the value
        self.options = options


EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}
SAVING = {"save_strategy": "steps", "save_steps": 1}
BEST = EVALUATES | SAVING | {"load_best_model_at_end": True}
WORST = BEST | {
    "load_best_model_at_end": False,
    "metric_for_best_model": "loss",
    "greater_is_better": True,
}
WORKER = {"dataloader_num_workers": 1}
RESUMED = {"resumes": True}
PADDED = {"padded": True}
SMALL_BATCHES = {"per_device_eval_batch_size": 4}
MEASURES = {"compute_metrics": lambda found, compute_result=True: {"width": float(found.predictions.shape[-1])}}
READS_LOSS = {"compute_metrics": lambda found: {"given": float(found.losses is not None)}}
READS_LIST = {"compute_metrics": lambda found: {"lists": float(isinstance(found.predictions, list))}}

#: Values that change nothing of what is compared.
INERT = {
    "average_tokens_across_devices": False,
    "full_determinism": True,
    "remove_unused_columns": True,
    "tf32": False,
    "use_cache": True,
    "torch_empty_cache_steps": 1,
    "dataloader_pin_memory": False,
    "log_on_each_node": False,
    "logging_nan_inf_filter": True,
    "log_level": "error",
    "log_level_replica": "error",
    "disable_tqdm": False,
    "run_name": "a name",
    "enable_jit_checkpoint": True,
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
}
#: What cannot run here, and why.
ABSENT = {
    "shards over several devices": "parallelism_config fsdp fsdp_config deepspeed",
    "needs several processes, as in test_equal_runs.py and test_launch.py": "ddp_find_unused_parameters "
    "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout local_rank",
    "names the run in a tracker": "report_to logging_dir project trackio_space_id trackio_bucket_id "
    "trackio_static_space_id",
    "needs a hub, as in tests/publishing/test_hub.py": "push_to_hub hub_token hub_private_repo hub_model_id "
    "hub_strategy hub_always_push hub_revision",
    "takes seconds; test_trainer.py compiles": "torch_compile torch_compile_backend torch_compile_mode",
    "needs its package and a GPU": "use_liger_kernel liger_kernel_config",
    "is for GaLore and APOLLO, whose packages the tests do not install": "optim_target_modules",
    "is always set on a machine without a GPU": "use_cpu",
    "is where every run of this file writes": "output_dir",
    "fails in transformers itself at the boolean masks of its encoders": "debug",
    "takes seconds, and adds the use of memory to what is logged": "skip_memory_metrics",
    "every run of this file has one": "model args train_dataset processing_class",
    "test_a_run_with_model_init_is_that_with_its_model": "model_init",
    "test_transformers_arguments.py and test_metrics_that_decide.py give some": "optimizers",
}
#: The parts that an argument changes alone, and its value.
ALONE = {
    "per_device_train_batch_size": ("rows weights", 4),
    "learning_rate": ("rates weights", 1e-4),
    "lr_scheduler_type": ("rates weights", "cosine"),
    "warmup_ratio": ("rates weights", 0.4),  # until transformers 5.2
    "optim": ("weights", "sgd"),
    "weight_decay": ("weights", 0.5),
    "adam_beta1": ("weights", 0.5),
    "adam_beta2": ("weights", 0.5),
    "adam_epsilon": ("weights", 1e-2),
    "gradient_accumulation_steps": ("rows noise weights log", 2),
    "max_grad_norm": ("weights", 0.01),
    "neftune_noise_alpha": ("noise weights", 5.0),
    "seed": ("rows noise weights", 1),
    "data_seed": ("rows weights", 1),
    "bf16": ("weights", True),
    "logging_strategy": ("log", "no"),
    "logging_steps": ("log", 2),
    "include_num_input_tokens_seen": ("log", "all"),
    "per_device_eval_batch_size": ("scores", 4),
    "eval_on_start": ("log", True),
    "label_names": ("log scores", ["labels"]),
}
#: Other values, and those that need further arguments.
ARGUMENTS = {
    # what is learned
    "num_train_epochs": [
        Case(num_train_epochs=7),  # `max_steps` counts
        Case(
            *LEARNS,
            "log",
            num_train_epochs=2,
            given={"max_steps": -1, "num_train_epochs": 1},
        ),
    ],
    "max_steps": Case(*LEARNS, "log", max_steps=4),
    "lr_scheduler_kwargs": Case(
        *("rates", "weights"),
        lr_scheduler_kwargs={"num_cycles": 2},
        given={"lr_scheduler_type": "cosine_with_restarts"},
    ),
    "warmup_steps": [
        Case("rates", "weights", warmup_steps=2),
        Case("rates", "weights", warmup_steps=0.4),
    ],
    "optim_args": Case("weights", optim_args="momentum=0.9", given={"optim": "sgd"}, least="5.23"),
    "label_smoothing_factor": Case(refused="label_smoothing_factor", label_smoothing_factor=0.1),
    "train_sampling_strategy": [
        Case("rows", "weights", train_sampling_strategy="sequential"),
        Case("rows", "weights", train_sampling_strategy="group_by_length"),
        Case(
            refused="'batch_rebalance' 'group_by_length'",
            train_sampling_strategy="batch_rebalance",
        ),
    ],
    "length_column_name": [
        Case(length_column_name="width"),
        Case(
            refused="'width'",
            length_column_name="width",
            given={"train_sampling_strategy": "group_by_length"},
        ),
    ],
    # The geometry of a small batch is not logged.
    "dataloader_drop_last": Case("rows", "weights", "log", dataloader_drop_last=True, given={"max_steps": 4}),
    "ignore_data_skip": Case("rows", "weights", ignore_data_skip=True, given=RESUMED),
    # precision, memory and speed
    "fp16": Case(refused="fp16 CPU", fp16=True),
    "resume_from_checkpoint": Case(refused="absent", resume_from_checkpoint="absent"),
    "bf16_full_eval": Case(refused="bf16_full_eval", bf16_full_eval=True),
    "fp16_full_eval": Case(refused="fp16_full_eval", fp16_full_eval=True),
    # A run without padding pads with it, and then draws the noise of padded batches.
    "activation_checkpointing": Case(activation_checkpointing=True, given=PADDED),
    "activation_checkpointing_kwargs": Case(
        activation_checkpointing_kwargs={"use_reentrant": False},
        given={"activation_checkpointing": True},
    ),
    "gradient_checkpointing": Case(gradient_checkpointing=True, given=PADDED),
    "gradient_checkpointing_kwargs": Case(
        gradient_checkpointing_kwargs={"use_reentrant": False},
        given={"gradient_checkpointing": True},
    ),
    "auto_find_batch_size": Case(refused="gradcache_chunk_size", auto_find_batch_size=True),
    "accelerator_config": [
        Case(accelerator_config={"split_batches": True}),
        Case(accelerator_config={"dispatch_batches": True}),
        Case("rows", "weights", accelerator_config={"use_seedable_sampler": False}),
    ],
    "dataloader_num_workers": Case(**WORKER),
    "dataloader_persistent_workers": Case(dataloader_persistent_workers=True, given=WORKER),
    "dataloader_prefetch_factor": Case(dataloader_prefetch_factor=1, given=WORKER),
    "dataloader_multiprocessing_context": Case(dataloader_multiprocessing_context="fork", given=WORKER),
    "dataloader_in_order": Case(dataloader_in_order=False, given=WORKER),
    # what is logged
    "logging_first_step": Case("log", logging_first_step=True, given={"logging_steps": 2}),
    # evaluation
    "eval_strategy": Case("log", **EVALUATES),
    "eval_steps": Case("log", eval_steps=2, given=EVALUATES),
    "eval_delay": Case("log", eval_delay=2, given=EVALUATES),
    "prediction_loss_only": Case("scores", "log", prediction_loss_only=True, given=MEASURES),
    "eval_do_concat_batches": Case("scores", eval_do_concat_batches=False, given=READS_LIST | SMALL_BATCHES),
    "eval_use_gather_object": Case(eval_use_gather_object=True, given=MEASURES),
    "eval_accumulation_steps": Case(eval_accumulation_steps=1, given=MEASURES | SMALL_BATCHES),
    "include_for_metrics": Case("scores", include_for_metrics=["loss"], given=READS_LOSS),
    "batch_eval_metrics": Case(batch_eval_metrics=True, given=MEASURES | SMALL_BATCHES),
    "load_best_model_at_end": Case("weights", load_best_model_at_end=True, given=WORST),
    "metric_for_best_model": [
        Case(metric_for_best_model="loss", given=BEST),
        Case(
            "weights",
            metric_for_best_model="width",
            greater_is_better=True,
            given=BEST | MEASURES,
        ),
    ],
    "greater_is_better": Case("weights", greater_is_better=True, given=BEST),
    # what is saved
    "save_strategy": [
        Case("files", **SAVING),
        Case("files", save_strategy="best", given=EVALUATES),
    ],
    "save_steps": Case("files", save_steps=2, given=SAVING),
    "save_total_limit": Case("files", save_total_limit=1, given=SAVING),
    "save_only_model": Case("files", save_only_model=True, given=SAVING),
    "save_on_each_node": Case(save_on_each_node=True, given=SAVING),
    "restore_callback_states_from_checkpoint": Case(restore_callback_states_from_checkpoint=True, given=RESUMED),
    # words for programs
}


class Kept(TrainerCallback):
    """A callback that changes nothing."""


def as_they_are(predictions, labels):
    return predictions


def twice(output, labels, num_items_in_batch=None):
    return 2 * output.loss


def collated(rows):
    """The batch of the trainer's own collator, for rows of two columns of token ids."""
    width = max(len(ids) for row in rows for ids in row["input_ids"])
    ids = torch.tensor([[text + [PAD] * (width - len(text)) for text in row["input_ids"]] for row in rows])
    return {"input_ids": ids}


TRAINER = {
    "data_collator": Case(data_collator=collated),
    "callbacks": Case(callbacks=[Kept()]),
    "eval_dataset": Case("scores", eval_dataset=OTHERS.select(range(8))),
    "compute_loss_func": Case("weights", compute_loss_func=twice, given={"optim": "sgd", "max_grad_norm": 0.0}),
    "compute_metrics": Case("scores", "log", **MEASURES),
    "optimizer_cls_and_kwargs": Case("rates", "weights", optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1})),
    "preprocess_logits_for_metrics": Case(preprocess_logits_for_metrics=as_they_are, given=MEASURES),
}


def cases():
    for name, value in INERT.items():
        yield pytest.param(name, Case(**{name: value}), id=f"{name}-inert")
    for name, (changed, value) in ALONE.items():
        yield pytest.param(name, Case(*changed.split(), **{name: value}), id=name)
    for table in (ARGUMENTS, TRAINER):
        for name, found in table.items():
            for number, case in enumerate(found if isinstance(found, list) else [found]):
                yield pytest.param(name, case, id=f"{name}-{number}")


# --- the runs ---


class Noted(SimCSETrainer):
    """A trainer that notes for each batch its rows, the random state before it and its loss."""

    def training_step(self, model, inputs, *args):
        self.notes["rows"].append(inputs["input_ids"].tolist())
        self.notes["noise"].append(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
        loss = super().training_step(model, inputs, *args)
        self.notes["loss"].append(loss.item())
        return loss


class Rates(TrainerCallback):
    """The learning rates of each step."""

    def __init__(self):
        self.used = []

    def on_pre_optimizer_step(self, args, state, control, optimizer, **_):
        self.used.append([group["lr"] for group in optimizer.param_groups])


_TIMES = ("runtime", "per_second", "preparation_time", "epoch", "step", "tokens_seen")


def trained(folder, tokenizer, options):
    """What a run has done that evaluates, takes three steps, or the last two of them, and evaluates again."""
    options = dict(options)
    resumes = options.pop("resumes", False)
    checkpoint = None
    if resumes:
        make(
            folder / "first",
            tokenizer,
            ROWS,
            model_of(),
            max_steps=3,
            save_strategy="steps",
            save_steps=1,
        ).train()
        checkpoint = str(folder / "first/run/checkpoint-1")
    model = model_of()
    model.unpadded = not options.pop("padded", False)
    rates = Rates()
    given = {
        "max_steps": 3,
        "logging_steps": 1,
        "eval_dataset": OTHERS,
        "per_device_eval_batch_size": 12,
        **options,
    }
    given["callbacks"] = [rates, *given.get("callbacks", [])]
    trainer = make(folder, tokenizer, ROWS, model, trainer_class=Noted, **given)
    trainer.notes = {"rows": [], "noise": [], "loss": []}
    scores = [trainer.evaluate()]
    trainer.train(resume_from_checkpoint=checkpoint)
    scores.append(trainer.evaluate())
    log = [(entry["step"], sorted(entry)) for entry in trainer.state.log_history]
    scored = [{name: value for name, value in each.items() if not name.endswith(_TIMES)} for each in scores]
    files = sorted(str(path.relative_to(folder)) for path in (folder / "run").rglob("*") if path.is_file())
    state = {name: (str(x.dtype), x.float().sum().item(), x.tolist()) for name, x in weights(trainer.model).items()}
    digests = {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in state.items()}
    return {
        **trainer.notes,
        "rates": rates.used,
        "weights": digests,
        "scores": scored,
        "log": log,
        "files": files,
    }


#: What runs without an argument have done, by what else is given.
_PLAIN = {}


@pytest.fixture
def undone():
    """Switch off what an argument switches on for the process."""
    level = logging.get_verbosity()
    yield
    logging.set_verbosity(level)
    torch.use_deterministic_algorithms(False)


def test_every_argument_is_classified():
    known = {field.name for field in fields(TrainingArguments)} | inspect.signature(Trainer.__init__).parameters.keys()
    absent = " ".join(ABSENT.values()).split()
    assert known - {*ALONE, *ARGUMENTS, *TRAINER, *INERT, *absent} == {"self"}


@pytest.mark.parametrize(("name", "case"), cases())
def test_an_argument_changes_what_it_says_and_nothing_else(name, case, tmp_path, tokenizer, undone, monkeypatch):
    for variable in (
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_LAUNCH_BLOCKING",
        "ASCEND_LAUNCH_BLOCKING",
    ):
        monkeypatch.setenv(variable, "")  # so that it is as it was afterwards
    known = {field.name for field in fields(TrainingArguments)} | TRAINER.keys()
    if name not in known or version.parse(transformers.__version__) < version.parse(case.least):
        pytest.skip(f"this version of transformers has no {name}, or not this value of it")
    if case.refused:
        with refuses(case.refused):
            trained(tmp_path, tokenizer, case.given | case.options)
        return
    key = repr(case.given)
    if key not in _PLAIN:
        _PLAIN[key] = trained(tmp_path / "plain", tokenizer, case.given)
    plain = _PLAIN[key]
    found = trained(tmp_path / "with", tokenizer, case.given | case.options)
    changed = {part for part in plain if plain[part] != found[part]}
    if "weights" in case.changed:  # from which these follow
        changed -= {"loss", "scores"}
    assert changed == case.changed


def test_a_run_with_model_init_is_that_with_its_model(tmp_path, tokenizer, save_checkpoint):
    start = save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)))
    settings = {"objective": "vicreg", "objective_options": {"projector_dim": 8}, "pooler_type": "cls"}

    def load():
        return AutoModelForCL.from_pretrained(start, **settings)

    runs = []
    set_seed(42)  # as a Trainer does before it calls `model_init`
    for given in ({"model": load()}, {"model_init": load}):
        trainer = make(tmp_path / str(len(runs)), tokenizer, ROWS, max_steps=3, **given)
        trainer.train()
        runs.append(weights(trainer.model))
    assert_same_weights(*runs)
