"""Every argument of transformers' Trainer changes what it says and nothing else, or is refused.

The tables name each field of `TrainingArguments` and each argument of `Trainer`. A tiny run with the argument is
compared with one without it, in all bits. What cannot run here, offline and on one process of a CPU, has a reason. An
argument that a later version of transformers adds fails the first test until somebody has classified it.
"""

from dataclasses import fields
from inspect import signature

import pytest
import torch
import transformers
from conftest import PAD, save_encoder, tiny_config
from datasets import Dataset
from packaging import version
from trainer_helpers import Rates, assert_same_weights, make, refuses, sentences, weights
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

from simcse_hf import AutoModelForCL, SimCSETrainer

#: Rows of different lengths, whose last batch of an epoch is not full.
ROWS = Dataset.from_dict(
    {"sent0": [text[: 12 + i] for i, text in enumerate(sentences(30))], "sent1": sentences(30, 1)}
)
OTHERS = Dataset.from_dict({"sent0": sentences(12, 5), "sent1": sentences(12, 6)})
EVALUATES = {"eval_strategy": "steps", "eval_steps": 1}
SAVING = {"save_strategy": "steps", "save_steps": 1}
BEST = EVALUATES | SAVING | {"load_best_model_at_end": True}
WORST = BEST | {"load_best_model_at_end": False, "metric_for_best_model": "loss", "greater_is_better": True}
WORKER = {"dataloader_num_workers": 1}
RESUMED = {"resumes": True}
PADDED = {"padded": True}
SMALL_BATCHES = {"per_device_eval_batch_size": 4}


def measures(found, compute_result=True):
    return {"width": float(found.predictions.shape[-1])}


MEASURES = {"compute_metrics": measures}
READS_LOSS = {"compute_metrics": lambda found: {"given": float(found.losses is not None)}}
READS_LIST = {"compute_metrics": lambda found: {"lists": float(isinstance(found.predictions, list))}}

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
    "test_trainer_promises.py gives some": "optimizers",
}


class Kept(TrainerCallback):
    """A callback that changes nothing."""


def as_they_are(predictions, labels):
    return predictions


def twice(output, labels, num_items_in_batch=None):
    return 2 * output.loss


def collated(rows):
    """The batch of the trainer's own collator without its mask, for rows of two columns of token ids."""
    width = max(len(ids) for row in rows for ids in row["input_ids"])
    ids = torch.tensor([[text + [PAD] * (width - len(text)) for text in row["input_ids"]] for row in rows])
    return {"input_ids": ids}


#: The values of arguments by the parts of a run that they change, all others staying as they are. If the weights
#: change, so do the losses and the scores after training.
ALONE = {
    "": {
        "num_train_epochs": 7,  # `max_steps` counts
        "length_column_name": "width",
        "data_collator": collated,
        "accelerator_config": {"split_batches": True},
        "dataloader_num_workers": 1,
        "callbacks": [Kept()],
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
    },
    "weights": {
        "optim": "sgd",
        "weight_decay": 0.5,
        "adam_beta1": 0.5,
        "adam_beta2": 0.5,
        "adam_epsilon": 1e-2,
        "max_grad_norm": 0.01,
        "bf16": True,
    },
    "rates weights": {
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.4,  # until transformers 5.2
        "warmup_steps": 2,
        "optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1}),
    },
    "rows weights": {
        "per_device_train_batch_size": 4,
        "data_seed": 1,
        "train_sampling_strategy": "sequential",
        "accelerator_config": {"use_seedable_sampler": False},
    },
    "log": {
        "logging_strategy": "no",
        "logging_steps": 2,
        "include_num_input_tokens_seen": "all",
        "eval_on_start": True,
    },
    "scores": {"eval_dataset": OTHERS.select(range(8)), "per_device_eval_batch_size": 4},
    "rows noise rates weights log": {"max_steps": 4},
    "rows noise weights log": {"gradient_accumulation_steps": 2},
    "noise weights": {"neftune_noise_alpha": 5.0},
    "rows noise weights": {"seed": 1},
    "scores log": {"label_names": ["labels"], "compute_metrics": measures},
}
#: Further values: an argument, the parts, the value, and what is given in both runs.
ARGUMENTS = [
    *((name, changed, value) for changed, values in ALONE.items() for name, value in values.items()),
    ("num_train_epochs", "rows noise rates weights log", 2, {"max_steps": -1, "num_train_epochs": 1}),
    ("lr_scheduler_kwargs", "rates weights", {"num_cycles": 2}, {"lr_scheduler_type": "cosine_with_restarts"}),
    ("warmup_steps", "rates weights", 0.4),
    ("optim_args", "weights", "momentum=0.9", {"optim": "sgd"}),
    ("compute_loss_func", "weights", twice, {"optim": "sgd", "max_grad_norm": 0.0}),
    ("train_sampling_strategy", "rows weights", "group_by_length"),
    ("dataloader_drop_last", "rows weights log", True, {"max_steps": 4}),  # a small batch has no geometry in the log
    ("ignore_data_skip", "rows weights", True, RESUMED),
    ("accelerator_config", "", {"dispatch_batches": True}),
    # A run without padding pads with it, and then draws the noise of padded batches.
    ("activation_checkpointing", "", True, PADDED),
    ("activation_checkpointing_kwargs", "", {"use_reentrant": False}, {"activation_checkpointing": True}),
    ("gradient_checkpointing", "", True, PADDED),
    ("gradient_checkpointing_kwargs", "", {"use_reentrant": False}, {"gradient_checkpointing": True}),
    ("dataloader_persistent_workers", "", True, WORKER),
    ("dataloader_prefetch_factor", "", 1, WORKER),
    ("dataloader_multiprocessing_context", "", "fork", WORKER),
    ("dataloader_in_order", "", False, WORKER),
    ("logging_first_step", "log", True, {"logging_steps": 2}),
    ("eval_strategy", "log", "steps", {"eval_steps": 1}),
    ("eval_steps", "log", 2, EVALUATES),
    ("eval_delay", "log", 2, EVALUATES),
    ("preprocess_logits_for_metrics", "", as_they_are, MEASURES),
    ("prediction_loss_only", "scores log", True, MEASURES),
    ("eval_do_concat_batches", "scores", False, READS_LIST | SMALL_BATCHES),
    ("eval_use_gather_object", "", True, MEASURES),
    ("eval_accumulation_steps", "", 1, MEASURES | SMALL_BATCHES),
    ("include_for_metrics", "scores", ["loss"], READS_LOSS),
    ("batch_eval_metrics", "", True, MEASURES | SMALL_BATCHES),
    ("load_best_model_at_end", "weights", True, WORST),
    ("metric_for_best_model", "", "loss", BEST),
    ("metric_for_best_model", "weights", "width", BEST | MEASURES),
    ("greater_is_better", "weights", True, BEST),
    ("save_strategy", "files", "steps", {"save_steps": 1}),
    ("save_strategy", "files", "best", EVALUATES),
    ("save_steps", "files", 2, SAVING),
    ("save_total_limit", "files", 1, SAVING),
    ("save_only_model", "files", True, SAVING),
    ("save_on_each_node", "", True, SAVING),
    ("restore_callback_states_from_checkpoint", "", True, RESUMED),
]
#: Values that are refused before the first step with a message that names the words.
REFUSED = [
    ("label_smoothing_factor", "label_smoothing_factor", 0.1),
    ("train_sampling_strategy", "'batch_rebalance' 'group_by_length'", "batch_rebalance"),
    ("length_column_name", "'width'", "width", {"train_sampling_strategy": "group_by_length"}),
    ("fp16", "fp16 CPU", True),
    ("resume_from_checkpoint", "absent", "absent"),
    ("bf16_full_eval", "bf16_full_eval", True),
    ("fp16_full_eval", "fp16_full_eval", True),
    ("auto_find_batch_size", "gradcache_chunk_size", True),
]
KNOWN = {field.name for field in fields(TrainingArguments)} | signature(Trainer.__init__).parameters.keys()
#: The version of transformers that has a value.
LEAST = {"optim_args": "5.23"}


def cases(table):
    """The rows of a table that this version of transformers has."""
    found = []
    for name, words, value, *given in table:
        is_old = version.parse(transformers.__version__) < version.parse(LEAST.get(name, "5.2"))
        if name in KNOWN and not is_old:
            found.append(pytest.param(name, words, value, dict(*given), id=f"{name}-{words}"))
    return found


# --- the runs ---


class Noted(SimCSETrainer):
    """A trainer that notes for each batch its rows, the random state before it and its loss."""

    def training_step(self, model, inputs, *args):
        self.notes["rows"].append(inputs["input_ids"].tolist())
        self.notes["noise"].append(torch.get_rng_state().tolist())
        loss = super().training_step(model, inputs, *args)
        self.notes["loss"].append(loss.item())
        return loss


_TIMES = ("runtime", "per_second", "preparation_time", "epoch", "step", "tokens_seen")


def one_layer():
    torch.manual_seed(1)
    return AutoModelForCL.from_config(tiny_config(initializer_range=0.2, num_hidden_layers=1))


def trained(folder, tokenizer, options):
    """What a run has done that evaluates, takes three steps, or the last two of them, and evaluates again."""
    options = {"max_steps": 3, "logging_steps": 1, "eval_dataset": OTHERS, "per_device_eval_batch_size": 12} | options
    checkpoint = None
    if options.pop("resumes", False):
        make(folder / "first", tokenizer, ROWS, one_layer(), max_steps=3, **SAVING).train()
        checkpoint = folder / "first/run/checkpoint-1"
    model = one_layer()
    model.unpadded = not options.pop("padded", False)
    rates = Rates()
    options["callbacks"] = [rates, *options.get("callbacks", [])]
    trainer = make(folder, tokenizer, ROWS, model, trainer_class=Noted, **options)
    trainer.notes = {"rows": [], "noise": [], "loss": []}
    scores = [trainer.evaluate()]
    trainer.train(resume_from_checkpoint=checkpoint)
    scores.append(trainer.evaluate())
    return {
        **trainer.notes,
        "rates": rates.used,
        "weights": {name: (x.dtype, x.tolist()) for name, x in trainer.model.state_dict().items()},
        "scores": [{name: value for name, value in each.items() if not name.endswith(_TIMES)} for each in scores],
        "log": [(entry["step"], sorted(entry)) for entry in trainer.state.log_history],
        "files": sorted(str(path.relative_to(folder)) for path in (folder / "run").rglob("*") if path.is_file()),
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
    found = {name for name, *_ in ARGUMENTS + REFUSED} | set(" ".join(ABSENT.values()).split())
    assert KNOWN - found == {"self"}


@pytest.mark.parametrize("name, changed, value, given", cases(ARGUMENTS))
def test_an_argument_changes_what_it_says_and_nothing_else(
    name, changed, value, given, tmp_path, tokenizer, undone, monkeypatch
):
    for variable in ("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING"):
        monkeypatch.setenv(variable, "")  # so that it is as it was afterwards
    key = repr(given)
    if key not in _PLAIN:
        _PLAIN[key] = trained(tmp_path / "plain", tokenizer, given)
    plain = _PLAIN[key]
    found = trained(tmp_path / "with", tokenizer, given | {name: value})
    differs = {part for part in plain if plain[part] != found[part]}
    if "weights" in changed:  # from which these follow
        differs -= {"loss", "scores"}
    assert differs == set(changed.split())


@pytest.mark.parametrize("name, words, value, given", cases(REFUSED))
def test_a_value_that_does_not_work_is_refused(name, words, value, given, tmp_path, tokenizer):
    with refuses(words):
        trained(tmp_path, tokenizer, given | {name: value})


def test_a_run_with_model_init_is_that_with_its_model(tmp_path, tokenizer):
    save_encoder(tmp_path / "start")
    settings = {"objective": "vicreg", "objective_options": {"projector_dim": 8}, "pooler_type": "cls"}

    def load():
        return AutoModelForCL.from_pretrained(tmp_path / "start", **settings)

    runs = []
    set_seed(42)  # as a Trainer does before it calls `model_init`
    for given in ({"model": load()}, {"model_init": load}):
        trainer = make(tmp_path / str(len(runs)), tokenizer, ROWS, max_steps=3, **given)
        trainer.train()
        runs.append(weights(trainer.model))
    assert_same_weights(*runs)
