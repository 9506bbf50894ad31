"""The Trainer of contrastive models."""

import inspect
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput
from transformers.utils import logging

from ..data.collator import Batch, ContrastiveCollator, PackingCollator
from ..data.view_dataset import SeededDataset
from ..data.views import VIEW_CLASSES, MaskedLMView, view_rate
from ..encoding.batching import BatchEncoder
from ..encoding.probes import probe_embedding
from ..evaluation.bootstrap import Scores
from ..evaluation.metrics import find_metric
from ..evaluation.tasks import Task
from ..kernels.cpu import keep_freed_memory
from ..kernels.memory import explain_full_memory
from ..kernels.unpadded import avoid_cudnn_attention
from ..models.adapters import (
    TRAINED_WEIGHTS,
    add_lora,
    check_adapter,
    load_trained_weights,
    save_trained_weights,
)
from ..models.checkpoint import (
    OBJECTIVE_FILE,
    check_tokenizer,
    load_objective_state,
    reload_model,
)
from ..models.gradcache import CachedBatch, check_gradcache
from ..models.modeling import AutoModelForCL, ContrastiveModel
from ..models.settings import SPACE, THRESHOLD, ContrastiveSettings, Values, dropout_rates
from ..objectives import OBJECTIVES, Objective, described_objective
from ..objectives.base import is_defined_again
from ..objectives.masked_lm import mask_batch, mask_tokens
from ..publishing.card import CARD, check_languages, check_license, is_written_by_hand, write_card
from ..runtime.distributed import on_first_process
from ..runtime.errors import DataError, ModelError, SettingError, changes, did_you_mean
from ..runtime.files import StrPath, folder_problem, write_arrays, write_json
from ..runtime.loading import full_name, load_pretrained
from .arguments import SimCSETrainingArguments, check_learning
from .checkpoints import DEV_SCORES, CheckpointName, WholeCheckpointTrainer
from .decide import FOLLOW_METRIC, best_by, decide_run, with_values
from .dev_sets import (
    DevSetCallback,
    SimilarityEvalCallback,
    check_dev_sets,
    make_dev_sets,
    warn_of_overlap,
)
from .rows import (
    EpochOfRows,
    Mixed,
    Rows,
    has_names,
    is_streamed,
    read_evaluation_rows,
    read_mixture,
    read_rows,
)
from .run_results import (
    SETTINGS,
    Results,
    changed_arguments,
    compare_settings,
    last_logged,
    make_results,
    run_settings,
)
from .watch import RunWatch

logger = logging.get_logger(__name__)

#: Model outputs that are losses.
_PARTS_OF_THE_LOSS = ("contrastive_loss", "mlm_loss", "parts")
#: Steps of a run below which their number is reported.
_FEW_STEPS = 50
#: What rows are read, a run is decided and a Trainer is made with, before a trial of `hyperparameter_search` can
#: change it. The last line is about the way a run is resumed or evaluated, which no trial has of its own.
_DECIDED_BEFORE = frozenset(
    "batch_sampler data_seed dataset_shares datasets greater_is_better guide max_seq_length metric_for_best_model "
    "mlm_probability prompts teacher view view_both view_rate accelerator_config bf16 ddp_backend ddp_timeout debug "
    "deepspeed disable_tqdm enable_jit_checkpoint fp16 fsdp fsdp_config hub_model_id hub_private_repo label_names "
    "local_rank log_level log_level_replica neftune_noise_alpha parallelism_config push_to_hub "
    "remove_unused_columns report_to skip_memory_metrics tf32 torch_compile torch_compile_backend torch_compile_mode "
    "use_cache use_cpu "
    "bf16_full_eval fp16_full_eval resume_from_checkpoint".split()
)
#: Settings with which rows become batches, beside those that a run writes into its model.
_SETTINGS_OF_BATCHES = frozenset(("do_mlm", "objective"))
#: What rows are read for: the facts of an objective, which its options may change.
_FACTS_OF_BATCHES = ("rows", "view", "similarity", "num_views", "needs_text_ids", "vectors")
#: Training texts by which a student is compared with its teacher, at most.
_COMPARED_TEXTS = 256
#: Characters of a text that a card shows as an example, at most.
_WIDGET_LENGTH = 200


class SimCSETrainer(WholeCheckpointTrainer):
    """transformers' Trainer for contrastive models.

    It adds the batches of [`ContrastiveCollator`], masked inputs for the auxiliary loss, the parts of the loss in the
    log, evaluation on dev sets by [`SimilarityEvalCallback`], and checks before the first step. Mixed precision,
    several processes and tracking are transformers' own.

    A checkpoint is whole or absent, and resuming compares it with its manifest of digests. Weights that are not finite
    are never saved and end the run with an error. SIGTERM and SIGINT save a checkpoint before they end the run.

    Args:
        model (`str`, `os.PathLike` or `ContrastiveModel`, *optional*): A contrastive model, or a directory or hub name
            for `AutoModelForCL.from_pretrained`. `None` with `model_init`.
        args (`SimCSETrainingArguments`, *optional*): The training arguments. What they leave open is decided in a
            copy, `trainer.args`.
        train_dataset (`str`, `Dataset`, `list`, `dict` or `Any`, *optional*): A file of texts, a data set on the hub,
            or rows in any container that `load_text_dataset` takes, with columns named as there; or token ids as
            `input_ids`, without padding or with an `attention_mask`; or several such data sets by name, each batch
            from one of them (see `datasets` and `dataset_shares` of the arguments).
        eval_dataset (`Dataset`, `list` or `dict`, *optional*): Data of the same form, for `eval_loss`; or several by
            name. The dev set of scored pairs is `dev_set`.
        dev_set (`str`, `os.PathLike`, `ScoredPairs` or `Any`, *optional*): Scored pairs, or their file, for a
            [`SimilarityEvalCallback`]. For several dev sets, pass such callbacks with different names.
        processing_class (`PreTrainedTokenizerBase`, *optional*): The tokenizer; by default the model's own.
        callbacks (`list[TrainerCallback]`, *optional*): As in transformers.
        dev_tasks (`Sequence`, *optional*): Tasks from files as dev sets: `["classification=dev.csv"]`, rows as
            `[("classification", frame)]`, or what `read_task` returns. Their metrics are logged as
            `eval_classification_accuracy` and the like.
        general (`Sequence`, *optional*): General tasks, on which the results say what training forgot: files of scored
            pairs, or tasks as in `dev_tasks`.
        kwargs (`Any`): Further arguments of transformers' Trainer, such as `model_init`.

    Raises:
        TypeError: If the model, the arguments or a data set are of a type that cannot be trained with.
        ValueError: If settings contradict each other.

    Attributes:
        run (`Run`): What was decided for the run.
        rows (`Rows`): The training rows, `None` without any.
        results (`Results`): What the last call of `train` wrote into `results.json`, `None` before.

    Examples:
        >>> from simcse_hf import SimCSE, SimCSETrainer, SimCSETrainingArguments
        >>> args = SimCSETrainingArguments("outputs/new", max_steps=2, learning_rate=3e-5, report_to="none",
        ...                                per_device_train_batch_size=16, disable_tqdm=True)
        >>> trainer = SimCSETrainer("outputs/my-model", args, train_dataset="triplets.csv")
        >>> trainer.train().global_step
        2
        >>> trainer.save_model()
        >>> SimCSE("outputs/new").encode("The chef cooked the soup.").shape
        torch.Size([64])
    """

    model: ContrastiveModel
    args: SimCSETrainingArguments
    processing_class: PreTrainedTokenizerBase

    # --- making a trainer -------------------------------------------------------------------------------------------

    def __init__(
        self,
        model: StrPath | ContrastiveModel | None = None,
        args: SimCSETrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        dev_set: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        dev_tasks: Sequence[Any] | None = None,
        general: Sequence[str | Task] = (),
        **kwargs: Any,
    ):
        # 1. The arguments, which stay as the caller made them.
        if args is None:
            args = SimCSETrainingArguments(output_dir="outputs/simcse")
        if not isinstance(args, SimCSETrainingArguments):
            raise TypeError(
                f"args is a {type(args).__name__}, but SimCSETrainer needs SimCSETrainingArguments: create them with "
                "the same values, SimCSETrainingArguments(output_dir=...)"
            )
        self.given = (args, args.to_dict())

        # 2. The model and its tokenizer.
        set_seed(args.seed)  # A fresh head is drawn when the model is loaded by its name.
        self.model_init: Any = kwargs.get("model_init")
        start = _load_model(model if self.model_init is None else super().call_model_init())
        set_seed(args.seed)  # Loading has drawn a different number of weights than the caller may have.
        tokenizer = processing_class or load_pretrained(AutoTokenizer.from_pretrained, start.name_or_path)
        check_tokenizer(tokenizer, start, start.name_or_path or "the model")

        # 3. The dev sets.
        callbacks = [*(callbacks or ()), *make_dev_sets(dev_set, dev_tasks, general)]
        dev_sets = [callback for callback in callbacks if isinstance(callback, DevSetCallback)]

        self.start_settings = start.settings

        # 4. The run is decided, once: everything below works with what it says.
        self.run = decide_run(
            args,
            start,
            tokenizer,
            dataset_names=list(train_dataset) if has_names(train_dataset) else [],
            headline=dev_sets[0].headline if dev_sets else None,
            is_stream=is_streamed(train_dataset),
        )
        args = self.run.arguments
        check_dev_sets(dev_sets, args)

        # 5. Texts become rows of token ids.
        self.rows: Rows | None = None
        if train_dataset is not None:
            if has_names(train_dataset):
                self.rows = read_mixture(self.run, train_dataset)
            else:
                self.rows = read_rows(self.run, self.run.rows, train_dataset, "train_dataset")
            for texts in self.rows.texts:
                warn_of_overlap(texts, dev_sets)

        # 6. The model gets what it needs to learn from the rows, and rows become batches.
        self.prepare_model(start)
        collator = kwargs.pop("data_collator", None)
        if collator is None and self.rows is not None:
            collator = self.rows.collator(start.objective)
        elif collator is None:  # evaluation only
            objective: Any = start.objective
            collator = ContrastiveCollator(tokenizer, objective.num_views, objective.needs_text_ids)
        self.masked_lm_view: MaskedLMView | None = None
        view = self.run.rows.view
        if VIEW_CLASSES[view].needs_masked_lm:
            rate: Any = view_rate(view, args.view_rate)
            self.masked_lm_view = MaskedLMView(start.name_or_path, tokenizer, rate).to(args.device)
        self.masker: Any = None
        if start.settings.do_mlm:
            collator_of_masks = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mlm_probability)
            self.masker = partial(mask_tokens, masker=collator_of_masks)

        # 7. What watches the run, and what it records of itself.
        self.watch = RunWatch()
        callbacks.append(self.watch)
        if self.rows is not None and isinstance(self.rows.tokens, SeededDataset):
            callbacks.append(EpochOfRows())
        self.results: Results | None = None
        self.settings: Values = {}
        self.changes: list[Values] = []

        # 8. transformers' Trainer, which evaluates dev sets only if it has a data set.
        self.no_rows = Dataset.from_dict({"input_ids": []})
        #: The prefix of the dev sets' metrics in the next evaluation; `None` if they are not scored.
        self.dev_prefix: str | None = None
        #: The rows that the present evaluation has read.
        self.evaluated: list[Any] = []
        if eval_dataset is None and dev_sets:
            eval_dataset = self.no_rows
        super().__init__(
            model=None if model is None else start,
            args=args,
            train_dataset=None if self.rows is None else self.rows.tokens,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            data_collator=collator,
            callbacks=callbacks,
            **kwargs,
        )
        #: Whether the weights are divided among the processes, none of which has the whole model.
        self.is_sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        #: The optimizer and the schedule of the caller, who may have made none: each call of `train` begins with them.
        self.own_optimizers = (self.optimizer, self.lr_scheduler)

    def call_model_init(self, trial: Any = None) -> ContrastiveModel:
        """Call `model_init`, as each trial of `hyperparameter_search` does, and prepare its model for training.

        Args:
            trial (`dict` or `optuna.Trial`, *optional*): The trial.

        Returns:
            `ContrastiveModel`: The model.

        Raises:
            SettingError: If nothing reads a name of the trial, or its model has settings that are decided before.
        """
        model = _load_model(super().call_model_init(trial))
        if trial is not None and self.hp_search_backend is not None:
            self._check_settings_of_trial(trial, model.settings)
        set_seed(self.args.seed)  # The objective is drawn as in a run with a model, and so is the noise.
        self.prepare_model(model)
        set_seed(self.args.seed)
        return model

    def prepare_model(self, model: Any) -> None:
        """Give a model the settings of the run, its adapter, its objective, and the map to its teacher's vectors.

        Args:
            model (`ContrastiveModel`): The model, which is changed.

        Raises:
            SettingError: If the adapter does not fit the model, or its inference would leave out what the teacher
                trains.
        """
        args = self.run.arguments
        model.tokenizer_limit = self.run.tokenizer.model_max_length
        model.use_settings(replace(model.settings, **self.run.settings))
        for name in (THRESHOLD, SPACE):
            vars(model.config).pop(name, None)
        if (args.lora is not None or args.lora_r is not None) and not model.has_adapter():
            given: Any = {"r": args.lora_r} | (args.lora or {})  # type: ignore[operator]
            add_lora(model, {"lora_alpha": 2 * given["r"]} | given)
        model.save_adapter = args.save_adapter
        if model.save_adapter or model.has_adapter():
            check_adapter(model)
        teacher = None if self.rows is None else self.rows.vectors.get("teacher")
        size = None if teacher is None else teacher.dim
        parts = [part for part in model.modules() if isinstance(part, Objective)]
        is_old = any(is_defined_again(type(part), OBJECTIVES.get(part.name, Objective)) for part in parts)
        if model.objective is None or model.teacher_dim != size or is_old:
            model.teacher_dim = size
            model.objective = None
            model.prepare_objective()
        if teacher is not None and model.objective.enters_space:
            # A student, whose vectors get the length 1 of those that it learns, may search an index of its teacher.
            if model.settings.mlp_only_train:
                raise SettingError(
                    "the head learns the teacher's vectors, but inference would leave the head out: unset "
                    "mlp_only_train (--mlp_only_train false), or set objective_options keep_projection=false"
                )
            model.use_settings(replace(model.settings, normalize=True))
            if teacher.model is None:
                logger.warning(
                    "The student searches only its own indexes, because the vectors of the teacher come from several "
                    "models, from a part of the dimensions of one, or from an API."
                )
            else:
                setattr(model.config, SPACE, {"teacher": teacher.model.to_dict()})
        if args.neftune_noise_alpha is not None and model.unpadded:
            logger.info(
                "neftune_noise_alpha: batches are padded, because the noise depends on the length of the padded batch"
            )
            model.unpadded = False

    def hyperparameter_search(
        self,
        hp_space: Any = None,
        compute_objective: Any = None,
        n_trials: int = 20,
        direction: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Search as transformers does, by default for the highest headline metric of the first dev set.

        Returns:
            `BestRun`: The best trial.

        Raises:
            SettingError: If `direction` is not that of the headline, or is left out with a `compute_objective`.
        """
        if compute_objective is not None and direction is None:
            raise SettingError("compute_objective needs a direction, maximize or minimize: which score is the best?")
        if compute_objective is None and self.dev_sets:
            headline = self.dev_sets[0].headline
            best = "maximize" if find_metric(headline).higher_is_better else "minimize"
            if direction not in (None, best):
                raise SettingError(
                    f"direction is {direction!r}, and the best {headline} is found with {best!r}: leave direction "
                    "out, or give the compute_objective that it is for"
                )
            compute_objective = itemgetter(f"eval_{headline}")
            direction = best
        return super().hyperparameter_search(
            hp_space, compute_objective, n_trials, direction or "minimize", *args, **kwargs
        )

    def _values_of(self, trial: Any) -> Values:
        """Return the values of a trial by their names."""
        values = trial if isinstance(trial, dict) else self.hp_space(trial)
        return {name: value for name, value in values.items() if name != "wandb"}

    def _hp_search_setup(self, trial: Any) -> None:
        """Set the arguments of a trial as transformers does, but checked and completed as those of a new run are.

        Raises:
            SettingError: If a name would have no effect.
            ValueError: If a value cannot work.
        """
        if self.hp_search_backend is None or trial is None:
            super()._hp_search_setup(trial)
            return
        names = _names_of_arguments(self.args)
        values = {name: value for name, value in self._values_of(trial).items() if name in names}
        without_effect = values.keys() & _DECIDED_BEFORE
        checked = replace(self.args, **values) if not without_effect else self.args
        # Those that give way to another argument, as gradient_checkpointing in some versions of transformers.
        for name in values.keys() - without_effect:
            if values[name] != getattr(checked, name) == getattr(self.args, name):
                without_effect.add(name)
        if checked.lr_scheduler_type in FOLLOW_METRIC and self.args.lr_scheduler_type not in FOLLOW_METRIC:
            without_effect.add("lr_scheduler_type")
        if without_effect:
            raise SettingError(
                f"hyperparameter_search cannot vary {', '.join(sorted(without_effect))}, which is decided before "
                "the first trial, or by another argument: make a Trainer for each value"
            )
        # Before, because transformers gives a value the type of the one that is there (0.1 warmup_steps become 0), and
        # again, because it sets what was written in place of what follows from it.
        vars(self.args).update(vars(checked))
        super()._hp_search_setup(trial)
        vars(self.args).update(vars(checked))

    def _check_settings_of_trial(self, trial: Any, settings: ContrastiveSettings) -> None:
        """Refuse a name that nothing reads, and settings that the run replaces by its own or that rows were read with.

        Args:
            trial (`dict` or `optuna.Trial`): The trial.
            settings (`ContrastiveSettings`): The settings of the model as `model_init` has made it.

        Raises:
            SettingError: If a value of the trial is not found in them, or they differ from those of the model that the
                Trainer was made with in what is decided before.
        """
        # 1. What is no argument has to be in the model. Names of somebody's own are for model_init alone.
        arguments = _names_of_arguments(self.args)
        of_model = asdict(settings) | settings.objective_options
        of_model["temp"] = of_model.get("temperature")
        known = {*arguments, *of_model}
        takes_trial = bool(inspect.signature(self.model_init).parameters)
        unread = []
        for name, value in self._values_of(trial).items():
            if name in arguments:
                continue
            is_own = takes_trial and not did_you_mean([name], known)
            if not is_own and of_model.get(name) != value:
                unread.append(name)
        if unread:
            raise SettingError(
                f"hyperparameter_search cannot vary {', '.join(unread)}, which is no argument of training and not "
                f"what model_init(trial) has set{did_you_mean(unread, known)}: correct the name, or set what is "
                "the model's in model_init(trial)"
            )

        # 2. What is decided before.
        start = self.start_settings
        changed = {
            name
            for name in _SETTINGS_OF_BATCHES | self.run.settings.keys()
            if getattr(settings, name) != getattr(start, name)
        }
        before, now = (described_objective(each.objective, each.objective_options) for each in (start, settings))
        facts = [fact for fact in _FACTS_OF_BATCHES if getattr(before, fact) != getattr(now, fact)]
        if facts and "objective" not in changed:
            changed |= {f"objective_options ({', '.join(facts)})"}
        if changed:
            raise SettingError(
                f"hyperparameter_search cannot vary {', '.join(sorted(changed))} in model_init, which is decided "
                "before the first trial: make a Trainer for each value"
            )

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback; a [`DevSetCallback`] is evaluated from now on."""
        super().add_callback(callback)
        added = self.callback_handler.callbacks[-1]
        if not isinstance(added, DevSetCallback):
            return
        check_dev_sets(self.dev_sets, self.args)
        if self.eval_dataset is None:
            self.eval_dataset = self.no_rows

    @property
    def eval_dataset(self) -> Any:
        """The evaluation rows, or several sets of them by name. What is set later is read as at first."""
        return self.evaluation

    @eval_dataset.setter
    def eval_dataset(self, data: Any) -> None:
        if data is not None and data is not self.no_rows:
            data = read_evaluation_rows(self.run, data)
        self.evaluation = data

    @property
    def dev_sets(self) -> list[DevSetCallback]:
        """The dev sets, in the order they were added."""
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, DevSetCallback)]

    # --- a run ------------------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: CheckpointName | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Check the run, train as transformers does, and write `results.json` into `output_dir`.

        With a dev set, the first process prints what it scored before and after, with the interval of the change, and
        warns if the saved weights score worse than the start. A further call begins as a new process would: with the
        noise of the seed, and an optimizer and a schedule of the present arguments.

        Args:
            resume_from_checkpoint (`str`, `os.PathLike` or `bool`, *optional*): A checkpoint, or `True` for the newest
                whole checkpoint in `output_dir`. The default is that of the arguments; `False` begins anew.
            trial (`Any`, *optional*): As in transformers.
            ignore_keys_for_eval (`list[str]`, *optional*): As in transformers.

        Returns:
            `TrainOutput`: As in transformers.

        Raises:
            ValueError: If the run cannot train, could not learn anything, or has no whole checkpoint to resume from.
            FloatingPointError: If the loss or a weight is not finite.
            SystemExit: After SIGTERM, with status 143.
            KeyboardInterrupt: After SIGINT.
        """
        # 1. Refuse what cannot work. transformers sets the arguments of a trial after its model is made.
        self._hp_search_setup(trial)
        if trial is not None and self.hp_search_backend is not None:
            self.model = self.call_model_init(trial)
        self.check_run()
        assert self.rows is not None
        self.settings = run_settings(self.args, self.model, self.rows, self.dev_sets)
        self.changes = []

        # 2. Forget an earlier call: draw the noise that a new process draws, with a new optimizer and schedule.
        set_seed(self.args.seed)
        self.optimizer, self.lr_scheduler = self.own_optimizers
        self._train_batch_size = self.args.train_batch_size

        # 3. Train.
        if self.args.device.type == "cpu":
            keep_freed_memory()
        decided = self.args
        with avoid_cudnn_attention(self.args.device), explain_full_memory(self._describe_step):
            try:
                output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
            finally:
                self.args = decided

        # 4. Write the results, and say what the dev set scored.
        if self.hp_search_backend is None:
            weights = None if self.is_sharded or self.model.save_adapter else self.model.digest_encoder()
            self.results = make_results(self.describe_run(), self.args, self.state, self.dev_sets, weights)
            # A run that logs nothing and shows no bar leaves standard output to the program that trains.
            is_silent = self.args.disable_tqdm and self.args.logging_strategy == "no"
            if self.is_world_process_zero() and not is_silent:
                verdict = self.results.verdict()
                with suppress(OSError, ValueError):  # Nobody reads: the model must be saved all the same.
                    print(verdict, end="", flush=True)
            if self.is_world_process_zero() and self.results.is_worse:
                logger.warning(self.results.warning())
            parts = self.rows.parts.values() if isinstance(self.rows, Mixed) else [self.rows]
            for part in parts:
                if "teacher" in part.vectors and not self.is_sharded:
                    self._compare_with_teacher(part)
        return output._replace(training_loss=output.metrics["train_loss"])  # of the whole run, as in the log

    def _compare_with_teacher(self, rows: Rows) -> None:
        """Say for how many training texts a student finds the nearest other text that its teacher finds."""
        texts = {}  # equal ones would be nearest by any model
        for number in range(min(_COMPARED_TEXTS, len(rows.known))):
            texts[tuple(rows.known[number]["input_ids"][0])] = number
        student = BatchEncoder(self.model, self.processing_class).embed(list(texts)).cpu()
        teacher = torch.from_numpy(rows.vectors["teacher"](np.array(list(texts.values()))))[:, 0]
        nearest = []
        for vectors in (student, teacher):
            unit = nn.functional.normalize(vectors, dim=1)
            nearest.append((unit @ unit.T).fill_diagonal_(-math.inf).argmax(1))
        kept = (nearest[0] == nearest[1]).double().mean().item()
        if self.is_world_process_zero():
            logger.info(
                f"The student keeps {kept:.0%} of its teacher: of {len(texts)} training texts, so many have the same "
                "nearest other text by both. Train longer, or on more text, if this is little."
            )

    def _describe_step(self) -> str:
        """Say how large a step is, and what takes less memory."""
        assert self.rows is not None and self.model.objective is not None
        args = self.args
        objective = self.model.objective
        rows = args.train_batch_size
        length = max(self.run.rows.lengths)
        less = f"per_device_train_batch_size to {max(1, rows // 4)}"
        if objective.supports_gradcache:
            chunk = args.gradcache_chunk_size or rows
            less = f"gradcache_chunk_size to {max(1, chunk // 4)}, which trains with the same batch,"
        return (
            f"a step of {rows} rows with {max(self.rows.num_sentences, objective.num_views)} texts of up to {length} "
            f"tokens does not fit into the memory of {args.device}: set {less} or max_seq_length to {length // 2}, or "
            f"train in bfloat16 (bf16). Checkpoints saved earlier are untouched in {args.output_dir}"
        )

    def check_run(self) -> None:
        """Check the rows, the batch, the objective and the sharding of a run, as `train` does.

        Raises:
            DataError: If there are no rows.
            SettingError: If the run cannot train, or could not learn anything.
        """
        # 1. The arguments.
        if self.model is None:  # `hyperparameter_search` drops the model after each trial.
            self.model = self.call_model_init()
        args = self.args
        given, before = self.given
        changed = ", ".join(changes(before, given.to_dict()))
        if changed:
            raise SettingError(
                f"args were changed after the Trainer was made ({changed}), which has a copy of them: change "
                "trainer.args"
            )
        check_learning(args)
        settings = self.model.settings
        objective = self.model.objective
        if self.rows is None or objective is None:
            raise DataError("train_dataset is empty: give a training file with at least one batch of texts")
        if self.train_dataset is not self.rows.tokens:
            raise DataError("train_dataset was replaced: make a new SimCSETrainer with the rows and trainer.model")
        if not settings.do_mlm and (settings.mlm_weight != 0.1 or args.mlm_probability != 0.15):
            logger.warning("mlm_weight and mlm_probability have no effect without do_mlm.")
        if args.view_both and not VIEW_CLASSES[self.run.rows.view].is_drawn:
            logger.warning(f"view_both has no effect with view {args.view}.")
        if args.dataset_shares != "proportional" and not isinstance(self.rows, Mixed):
            logger.warning("dataset_shares has no effect on a single data set.")
        if self.dev_sets and args.eval_strategy == "no" and self.hp_search_backend is None:
            logger.warning(
                "There is a dev set, but eval_strategy is 'no', so nothing is evaluated during training: set it to "
                "'epoch', or to 'steps' with eval_steps, or call trainer.evaluate() afterwards."
            )

        stops_early = any(isinstance(each, EarlyStoppingCallback) for each in self.callback_handler.callbacks)
        if stops_early and args.eval_strategy == "no":
            raise SettingError("EarlyStoppingCallback needs evaluations: set eval_strategy to 'steps' or 'epoch'")
        follows = stops_early or args.load_best_model_at_end or args.save_strategy == "best"
        if follows and args.metric_for_best_model is None:  # as in a trial that asks for it
            headline = self.dev_sets[0].headline if self.dev_sets else None
            vars(args).update(best_by(headline or "loss", headline))

        # 2. The rows, and the dropout that makes the views of single sentences.
        for row in self.rows.check(objective):
            self._check_dropout(row)

        # 3. The batches that they fill.
        batch = args.train_batch_size * args.world_size
        compares_rows = not objective.reconstructs  # otherwise small batches weaken nothing
        if compares_rows and args.gradient_accumulation_steps > 1:
            logger.warning(
                f"gradient_accumulation_steps = {args.gradient_accumulation_steps} adds no negatives: every forward "
                f"pass contrasts its own {batch} texts. A larger batch, more processes, or gradcache_chunk_size "
                "adds some."
            )
        sampler: Any = self._get_train_sampler(self.train_dataset)
        if sampler is not None:  # A stream has none.
            rows = len(sampler)
            if rows < batch and (args.dataloader_drop_last or args.world_size > 1):
                raise SettingError(
                    f"train_dataset has {rows} rows, fewer than one batch of {batch}, and dataloader_drop_last drops "
                    "it, or Accelerate repeats rows to fill it for all processes, where a repeated text would be its "
                    "own negative: lower per_device_train_batch_size, unset dataloader_drop_last, or use fewer "
                    "processes"
                )
            is_single = rows % batch == 1 and self.rows.num_sentences < 3
            if compares_rows and not args.dataloader_drop_last and is_single:
                logger.warning(
                    f"The last batch of an epoch ({rows} rows, {batch} in a batch) is a single text: 1 row in an "
                    "epoch has no negatives and teaches nothing. dataloader_drop_last=True leaves it out."
                )
            in_step = batch * args.gradient_accumulation_steps
            steps = math.ceil(-(-rows // in_step) * args.num_train_epochs)
            if args.max_steps <= 0 and steps < _FEW_STEPS:
                logger.warning(
                    f"{rows} rows in batches of {in_step} make {steps} step(s) in all, which is little to learn from: "
                    f"lower per_device_train_batch_size or raise num_train_epochs, for {_FEW_STEPS} steps or more."
                )

        # 4. Steps in chunks, which leave out what would take the place of a part of a step; and sharding.
        if args.gradcache_chunk_size is not None:
            check_gradcache(objective, args)
            is_own = type(self).compute_loss is not SimCSETrainer.compute_loss
            if is_own or self.compute_loss_func is not None:
                raise SettingError(
                    "compute_loss_func, and a compute_loss of a class of your own, have no effect with "
                    "gradcache_chunk_size: leave one of the two out"
                )
        if self.is_sharded:
            self._check_sharding(objective)

    def _check_sharding(self, objective: Objective) -> None:
        """Check that FSDP and DeepSpeed can shard the model with its objective."""
        encoder = {id(parameter) for parameter in self.model.base_model.parameters()}
        version = getattr(getattr(self.accelerator.state, "fsdp_plugin", None), "fsdp_version", None)
        problem = ""
        if self.model.has_adapter():
            problem = "an adapter does not work with FSDP and DeepSpeed: its checkpoints are merged from whole weights"
        elif self.is_fsdp_enabled and any(id(parameter) in encoder for parameter in objective.parameters()):
            problem = (
                f"objective {objective.name!r} does not work with FSDP, which shards the layers of the encoder that "
                "the objective also uses"
            )
        elif self.is_fsdp_enabled and self.model.settings.do_mlm and version == 2:
            problem = (
                "do_mlm does not work with FSDP2: the masked-LM head shares its weights with the embeddings, and "
                "FSDP2 would put the two into different groups"
            )
        if problem:
            raise SettingError(f"{problem}. Train with DistributedDataParallel (accelerate_configs/multi_gpu.yaml).")

    def _check_dropout(self, row: Mapping[str, Any]) -> None:
        """Check by a row of a single sentence that its two views differ, and that attention weights are dropped.

        With equal views there is nothing to learn from (SimCSE, Table 3, p = 0). With less dropout than the config
        says, another method would be trained without notice: some attention functions accept a rate and ignore it.

        Args:
            row (`Mapping[str, Any]`): The row.

        Raises:
            SettingError: If the views are equal, or the attention implementation ignores its dropout rate.
        """
        model = self.model
        if model.second_encoder is not None:  # which gives a text another embedding without dropout
            return
        # At low rates, one text may be spared by chance.
        batch = self.data_collator([dict(row)] * 8)
        texts = (batch["input_ids"], batch["attention_mask"])
        rates = dict(sorted(dropout_rates(model.config).items()))
        implementation = model.config._attn_implementation
        unpadded = model.unpadded
        if self.args.gradient_checkpointing:  # Training pads, once it is set up.
            model.unpadded = False
        try:
            with self.compute_loss_context_manager():
                are_equal = model.views_are_equal(*texts)
                requested = {name: rate for name, rate in rates.items() if "attention" in name and rate}
                ignores = bool(requested) and model.views_are_equal(*texts, only_attention_dropout=True)
        finally:
            model.unpadded = unpadded
        if are_equal:
            described = ", ".join(f"{name} = {rate}" for name, rate in rates.items()) or "no such setting"
            raise SettingError(
                "both views of a sentence have the same embedding: without effective dropout there is nothing to "
                f"learn from (SimCSE, Table 3). The encoder has {described}; its attention implementation is "
                f"{implementation}. Set dropout above 0 when loading, for example from_pretrained(..., "
                "hidden_dropout_prob=0.1) for BERT, attention_dropout=0.1, embedding_dropout=0.1, mlp_dropout=0.1 for "
                "ModernBERT, or attention_dropout=0.3 for Llama (--dropout on the command line); or train on pairs. "
                "To run Table 3's row p = 0, set view to fixed_mask, which makes equal views on purpose."
            )
        if ignores:
            described = ", ".join(f"{name} = {rate}" for name, rate in requested.items())
            zero = ", ".join(f"{name}=0.0" for name in requested)
            raise SettingError(
                f"the attention implementation {implementation} drops no attention weights, although the config says "
                f"{described}: unsupervised SimCSE learns from dropout, and would lose this part of it. Load the "
                'model with attn_implementation="sdpa", "eager" or "flash_attention_2"; or request no attention '
                f"dropout (from_pretrained(..., {zero})); or train on pairs."
            )

    # --- batches ----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        """Make the data loader of training, with a random generator of its own.

        A loader draws a seed for its workers whenever they start. From the global generator, that would change the
        dropout masks: persistent workers start once, others in every epoch, and all of them once more on a resume.

        Returns:
            `torch.utils.data.DataLoader`: The loader.
        """
        loader = super().get_train_dataloader()
        # Accelerate's loader wraps the one that starts the workers.
        base = getattr(loader, "base_dataloader", loader)
        args = self.args
        base.generator = torch.Generator().manual_seed(args.seed)
        collate: Any = self.data_collator
        base.collate_fn = collate
        # Without padding, where the encoder runs without. One process would cut a batch into those of all processes.
        dispatches = getattr(args.accelerator_config, "dispatch_batches", False)
        if self.model.runs_unpadded and not args.gradient_checkpointing and not dispatches:
            packing = PackingCollator(collate, self.processing_class.pad_token_id, in_order=args.device.type != "cpu")
            if args.torch_compile and self.rows is not None:
                packing.use_few_shapes(2 * self._train_batch_size, self.rows.longest)
            base.collate_fn = packing
        return loader

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        default = super()._get_train_sampler(train_dataset)
        if self.rows is None or default is None or self.args.train_sampling_strategy != "random":
            return default
        order = self.rows.order()
        return default if order is None else order

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Make the data loader of an evaluation: of texts, token ids or a file, or of an evaluation set by name."""
        known = [self.eval_dataset, *self.evaluated]
        if eval_dataset is not None and not self._is_name(eval_dataset) and id(eval_dataset) not in map(id, known):
            eval_dataset = read_evaluation_rows(self.run, eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def _is_name(self, eval_dataset: Any) -> bool:
        """Say whether this is the name of one of several evaluation sets."""
        return (
            isinstance(self.eval_dataset, dict) and isinstance(eval_dataset, str) and eval_dataset in self.eval_dataset
        )

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Make the data loader of a prediction: of texts, token ids or a file, or `{name: rows}` of one data set."""
        rows = read_evaluation_rows(self.run, test_dataset, "test_dataset")
        if isinstance(rows, dict):
            if len(rows) > 1:
                raise SettingError(f"test_dataset has several data sets ({', '.join(rows)}): predict one at a time")
            [rows] = rows.values()
        return super().get_test_dataloader(rows)

    # --- a step -----------------------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> torch.Tensor:
        """Take the gradient of a batch, in one pass or, with `gradcache_chunk_size`, in chunks."""
        if self.args.gradcache_chunk_size is None:
            loss = super().training_step(model, inputs, num_items_in_batch)
        else:
            model.train()
            if hasattr(self.optimizer, "train"):  # Schedule-free optimizers have two modes, as models do.
                self.optimizer.train()  # type: ignore[union-attr]
            inputs = self._prepare_inputs(inputs)
            no_sync: Callable[[], AbstractContextManager] = partial(self.accelerator.no_sync, model)
            factor = 1 / self.current_gradient_accumulation_steps
            with self.compute_loss_context_manager():
                inputs = self._complete_inputs(inputs, training=True)
                chunk_size = self.args.gradcache_chunk_size
                cached = CachedBatch(self.model, inputs, chunk_size, autocast=self.accelerator.autocast)
            with no_sync():  # This gradient goes as far as the embeddings and the objective's parameters.
                self.accelerator.backward(cached.output.loss * factor)
            scale: Any = factor
            if self.accelerator.scaler is not None:
                scale = self.accelerator.scaler.scale(torch.tensor(factor, device=self.args.device))
            often = self.args.torch_empty_cache_steps
            if often is not None and self.state.global_step % often == 0:
                clear_device_cache()
            output = cached.backward(model, no_sync, scale)
            self.watch.add(output)
            loss = output.loss * factor
        # Sum the losses without waiting for the device, in float64: no order of adding changes the sum.
        exact = torch.float32 if loss.device.type == "mps" else torch.float64
        self.watch.run_loss = self.watch.run_loss + loss.detach().to(exact)
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute the loss of a batch, a mean over its rows, and add its parts to the log."""
        inputs.pop("skip_logits", None)  # of use_liger_kernel, for models that make logits
        inputs = self._complete_inputs(inputs, model.training)
        if self.compute_loss_func is None:
            loss, output = super().compute_loss(model, inputs, return_outputs=True)
        else:  # transformers would take the labels away from the objective, and sum the losses of a step's batches
            output = model(**inputs)
            loss = self.compute_loss_func(output, inputs.get("labels"), num_items_in_batch=None)
            if model.training and getattr(self, "loss_is_scaled_for_ga", None) is None:
                loss = loss / self.current_gradient_accumulation_steps
        if model.training:
            self.watch.add(output)
        return (loss, output) if return_outputs else loss

    def _complete_inputs(self, inputs: Batch, training: bool) -> Batch:
        """Add what is drawn on the device: views by a masked language model, and masks of the auxiliary loss."""
        inputs = dict(inputs)
        if "attention_mask" not in inputs:  # A custom collator may omit it.
            inputs["attention_mask"] = (inputs["input_ids"] != self.processing_class.pad_token_id).long()
        if "view_seed" in inputs and self.masked_lm_view is not None:
            seeds = inputs.pop("view_seed")
            columns = list(inputs["input_ids"].unbind(1))
            masks = inputs["attention_mask"].unbind(1)
            first = 0 if self.args.view_both else 1
            for place in range(first, len(columns)):
                columns[place] = self.masked_lm_view(columns[place], masks[place], seeds ^ place)
            inputs["input_ids"] = torch.stack(columns, dim=1)
        if self.args.torch_compile and "packing" in inputs:
            # One graph for any number of tokens, from the first step on.
            torch._dynamo.maybe_mark_dynamic(inputs["packing"].token_index, 0)
        if self.masker is not None and training:
            assert self.model.objective is not None
            masked = self.model.objective.mlm_columns(inputs["input_ids"].shape[1])
            inputs = mask_batch(inputs, self.masker, masked)
        return inputs

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimizer as transformers does, and check it.

        Args:
            args (`Any`): As in transformers.
            kwargs (`Any`): As in transformers.

        Returns:
            `torch.optim.Optimizer`: The optimizer.

        Raises:
            ModelError: If the whole model is frozen, or a weight that is to be trained is not in the optimizer, as one
                that the caller made before the Trainer added an adapter or an objective.
        """
        optimizer = super().create_optimizer(*args, **kwargs)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        trained = {name: x for name, x in self.model.named_parameters() if x.requires_grad}
        if all(name.startswith("objective.") for name in trained):
            raise ModelError(
                "all weights of the model are frozen (requires_grad is False), so no embedding would change: unfreeze "
                "some of them, or load an adapter with is_trainable=True"
            )
        lost = [name for name, x in trained.items() if id(x) not in held]
        # These hold others in the place of the parameters.
        is_wrapped = self.is_sharded or "layerwise" in self.args.optim
        if lost and not is_wrapped:
            raise ModelError(
                f"the optimizer does not hold {len(lost)} of the {len(trained)} tensors that are to be trained (such "
                f"as {lost[0]}), so they would never change: leave optimizers out and name the class with "
                "optimizer_cls_and_kwargs, or make the optimizer of trainer.model after the Trainer is made"
            )
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Name the weights that decay, as transformers does, and leave out every norm, such as that of a projector."""
        decaying = super().get_decay_parameter_names(model)
        if not self.args.weight_decay:  # The order of an optimizer's states stays that of earlier checkpoints.
            return decaying
        norms = set()
        for name, module in model.named_modules():
            if "Norm" in type(module).__name__:
                norms |= {f"{name}.{own}" for own, _ in module.named_parameters(recurse=False)}
        return [name for name in decaying if name not in norms]

    def floating_point_ops(self, inputs: Batch) -> int:
        """Estimate the operations of a step, as transformers does, but count the parameters of a model only once.

        Args:
            inputs (`dict`): A batch.

        Returns:
            `int`: Six operations for each token and parameter, embeddings left out.
        """
        return 6 * inputs["input_ids"].numel() * self.model.counted_parameters

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log metrics, with the parts of the loss beside the loss."""
        if "loss" in logs:
            logs = {**logs, **self.watch.means(), **self.watch.measure_batch()}
        if "train_runtime" in logs:  # transformers gives those of the last part of a resumed run
            whole = self.watch.record()
            steps = max(1, self.state.global_step)
            logs |= {"train_runtime": whole["seconds"], "train_loss": whole["loss"] / steps}
        state: Any = self.state
        shown = state.epoch
        state.epoch = self.count_epochs()
        super().log(logs, start_time)
        state.epoch = shown

    def count_epochs(self) -> float | None:
        """Return the passes over the rows so far; of a stream `None` before its end is known."""
        if self.rows is None or self.rows.stream is None:
            return self.state.epoch
        rows = self.rows.stream.num_rows
        taken = self.state.global_step * self.get_total_train_batch_size(self.args)
        return taken / rows if rows else None

    # --- an evaluation ----------------------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate rows, which may be a file, or several data sets by name; the dev sets are scored once.

        The rows are read in their order. On several processes the loss is that of one process with the same
        `per_device_eval_batch_size`.

        Args:
            eval_dataset (`Any`, *optional*): As in `SimCSETrainer`, whose data is the default. Rows under the name of
                a data set of training are evaluated by its objective.
            ignore_keys (`list[str]`, *optional*): As in transformers.
            metric_key_prefix (`str`, *optional*, defaults to `"eval"`): As in transformers.

        Returns:
            `dict[str, float]`: The metrics.
        """
        if eval_dataset is None or eval_dataset is self.eval_dataset:
            eval_dataset = self.eval_dataset
            if isinstance(eval_dataset, dict):
                eval_dataset = {name: name for name in eval_dataset}
        elif not self._is_name(eval_dataset):
            eval_dataset = read_evaluation_rows(self.run, eval_dataset)
        sets = eval_dataset if isinstance(eval_dataset, dict) else {None: eval_dataset}
        self.dev_prefix = metric_key_prefix
        self.evaluated = list(sets.values())
        metrics: dict[str, float] = {}
        try:
            for name, rows in sets.items():
                prefix = metric_key_prefix if name is None else f"{metric_key_prefix}_{name}"
                metrics |= super().evaluate(rows, ignore_keys, prefix)
        finally:
            self.dev_prefix = None
            self.evaluated = []
        return metrics

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """Predict a batch as transformers does, with its classes or scores as labels.

        Rows that Accelerate repeats, to fill the last batch for all processes, are left out of the loss.

        Args:
            model (`nn.Module`): As in transformers, like the others.
            inputs (`dict`): The batch.
            prediction_loss_only (`bool`): Whether only the loss is wanted.
            ignore_keys (`list[str]`, *optional*): Outputs to leave out.

        Returns:
            `tuple`: The loss, the outputs and the labels.
        """
        if self.args.label_names is None:
            self.label_names = [name for name in ("labels", "scores") if name in inputs]
        loss, *predicted = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        rows = len(inputs["input_ids"])
        state = self.accelerator.gradient_state
        if self.args.world_size > 1 and state.end_of_dataloader and state.remainder > 0:
            own = state.remainder - self.args.process_index * rows
            kept = own if own > 0 else rows  # a loss of repeats alone does not count
            cut = {name: values[:kept] for name, values in inputs.items()}
            with torch.no_grad(), self.compute_loss_context_manager():
                loss = self.compute_loss(model, self._prepare_inputs(cut)).detach()
        if "inputs" in self.args.include_for_metrics:  # transformers joins batches of one length
            plans = [self.run.rows, *self.run.datasets.values()]
            longest = max(length for plan in plans for length in plan.lengths)
            missing = max(0, longest - inputs["input_ids"].shape[-1])
            padding: Any = self.processing_class.pad_token_id
            inputs["input_ids"] = nn.functional.pad(inputs["input_ids"], (0, missing), value=padding)
        return loss, *predicted

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        *args: Any,
        metric_key_prefix: str = "eval",
        **kwargs: Any,
    ) -> EvalLoopOutput:
        """Evaluate the rows of a data loader, if there are any, and the dev sets; a run keeps what they scored."""
        self.use_saved_weights()
        if self.dev_sets and len(dataloader.dataset) == 0:  # type: ignore[arg-type]
            texts = sum(len(dev_set.texts) for dev_set in self.dev_sets)
            output = EvalLoopOutput(predictions=None, label_ids=None, metrics={}, num_samples=texts)  # type: ignore[arg-type]
        else:
            if kwargs.get("ignore_keys") is None:
                kwargs["ignore_keys"] = list(_PARTS_OF_THE_LOSS)
            output = super().evaluation_loop(
                dataloader, description, *args, metric_key_prefix=metric_key_prefix, **kwargs
            )
        # With several evaluation sets, the first evaluation evaluates the dev sets, too, as `eval_stsb_spearman`.
        prefix, self.dev_prefix = self.dev_prefix, None
        if prefix is not None:  # `predict` is about its own data only.
            # A compiled model would compile a second graph for the batches of the dev sets.
            model = getattr(self.model_wrapped, "_orig_mod", self.model_wrapped)
            # An encoder that does not say how its embeddings are made is not compared with its fresh head alone.
            is_plain = self.is_in_train and self.state.global_step == 0 and not self.model.names_pooler
            scores: Scores = {}
            for dev_set in self.dev_sets:
                dev_set.shows_bar = not self.args.disable_tqdm
                with self.compute_loss_context_manager():
                    evaluate = dev_set.evaluate_start if is_plain else dev_set.evaluate
                    metrics = evaluate(model, self.processing_class)
                for name, value in metrics.items():
                    output.metrics[f"{prefix}_{name}"] = value  # type: ignore[index]
                scores |= dev_set.scores
            if scores and self.is_in_train and self.is_world_process_zero():
                path = Path(str(self.args.output_dir), DEV_SCORES, f"step-{self.state.global_step}.npz")
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_arrays(path, scores)
                except OSError as error:  # A run is not lost over them.
                    logger.warning(
                        f"{path}: the dev scores of this step were not written: {error.strerror or error}. Training "
                        "goes on, but its results may have no interval of what was gained. Free space on the disk."
                    )
        return output

    # --- saving and loading -----------------------------------------------------------------------------------------

    def write_model(self, folder: Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Write the model with our own layers, and the space of a student's vectors."""
        # A vector of a student, by which a search knows that nobody has trained it further.
        space = getattr(self.model.config, SPACE, None)
        if space and self.is_sharded:  # which have no whole model here
            delattr(self.model.config, SPACE)
        elif space:
            encoder = BatchEncoder(self.model, self.processing_class)
            space["probe"] = probe_embedding(encoder, None)
        self.model.write_files(folder, state_dict)

    def add_to_checkpoint(self, folder: Path) -> None:
        """Write the trained weights of an adapter, and the settings of the run.

        Args:
            folder (`Path`): The folder of the checkpoint while it is staged.
        """
        states: Any = self.state.stateful_callbacks
        states[RunWatch.RECORD] = self.watch.record()
        if not self.args.should_save:
            return
        if self.model.has_adapter():
            save_trained_weights(self.model, folder)
        write_json(folder / SETTINGS, {"settings": self.settings, "changes": self.changes})

    def continue_from(self, checkpoint: Path) -> None:
        """Compare the settings of a checkpoint with this run's, and leave out the evaluation of the start it has.

        Args:
            checkpoint (`Path`): The folder of a whole checkpoint.

        Raises:
            ValueError: If a setting differs, without `allow_changes`.
        """
        compare = partial(compare_settings, str(checkpoint), self.settings, self.args.allow_changes)
        self.changes = on_first_process(compare)
        super().continue_from(checkpoint)
        if not self.changes:
            self.args = with_values(self.args, eval_on_start=False)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a checkpoint, with our own layers and the state of the objective."""
        if self.model.has_adapter() or Path(resume_from_checkpoint, TRAINED_WEIGHTS).exists():
            load_trained_weights(self.model, resume_from_checkpoint)
            load_objective_state(self.model, Path(resume_from_checkpoint, OBJECTIVE_FILE))
        elif self.is_sharded:  # which load the whole state from a file of theirs
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            reload_model(self.model, resume_from_checkpoint)

    def _load_callback_state(self) -> None:
        """Restore callbacks as transformers does, which would take the record of the run for that of a callback."""
        states: Any = self.state.stateful_callbacks
        record = states.pop(RunWatch.RECORD, {})
        super()._load_callback_state()
        states[RunWatch.RECORD] = record

    def _load_best_model(self) -> None:
        """Load the best checkpoint, if it is still as it was saved."""
        self.use_saved_weights()
        best = self.state.best_model_checkpoint
        problem = on_first_process(lambda: best and folder_problem(best))
        if problem:
            raise ModelError(
                f"the best checkpoint {best} cannot be loaded: {problem}. Nothing was saved as the final model. The "
                f"weights of the last step are in the newest checkpoint in {self.args.output_dir}: to save them, "
                "repeat the command with --resume_from_checkpoint true --load_best_model_at_end false."
            )
        if self.is_sharded:
            super()._load_best_model()
        else:
            self._load_from_checkpoint(str(best))

    # --- the record of a run ----------------------------------------------------------------------------------------

    def describe_run(self) -> Values:
        """Describe how the model was trained, for `results.json` and the card.

        Returns:
            `Values`: `base_model`, and the `earlier_steps` of other runs that trained it before; of the rows
            `train_rows` (`None` for a stream), `num_sentences`, `rows` (see `data.contents`), `view` (with `name`,
            `rate` and `both`), `datasets` (their rows), `train_texts` and `hub_datasets`; `objective` (its `summary`
            and `papers`); the `arguments` that differ from their default and the `settings` of the model; `steps`,
            `epochs`, `train_loss`, `processes`, `hardware` and `seed`; `dev_texts` (one and others to compare it
            with); `tags` of the model; and `changes`, made on purpose when the run was resumed: the `step` of each,
            and `settings` with their earlier and later value.
        """
        args = self.args
        rows: Values = dict.fromkeys(("train_rows", "num_sentences", "rows", "view", "datasets", "train_texts"))
        rows["hub_datasets"] = []
        if self.rows is not None and self.model.objective is not None:
            rows |= self.rows.describe(self.model.objective.num_views)
        processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
        if args.device.type == "cuda":
            processor = torch.cuda.get_device_name(args.device)
        examples = None
        if self.dev_sets:
            dev_set = self.dev_sets[0]
            texts = dev_set.texts
            if isinstance(dev_set, SimilarityEvalCallback):  # The first two are a pair.
                texts = [dev_set.pairs.sentences1[0], *dev_set.pairs.sentences2]
            examples = [text for text in dict.fromkeys(texts) if len(text) <= _WIDGET_LENGTH][:4]
        return {
            "base_model": full_name(self.model.name_or_path),
            "earlier_steps": self.watch.earlier_steps,
            **rows,
            "objective": {name: getattr(self.model.objective, name, None) for name in ("summary", "papers")},
            "arguments": changed_arguments(args),
            "steps": self.state.global_step,
            "epochs": self.count_epochs(),
            "train_loss": last_logged(self.state, "train_loss"),
            "processes": args.world_size,
            "hardware": processor,
            "seed": args.seed,
            "dev_texts": examples,
            "changes": self.changes,
            "settings": asdict(self.model.settings),
            "tags": self.model.model_tags,
        }

    def create_model_card(
        self,
        language: str | list[str] | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        *args: Any,
        dataset: str | list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write this package's model card into `output_dir`, unless there is one written by hand.

        Args:
            language (`str`, *optional*): As in transformers.
            license (`str`, *optional*): As in transformers.
            tags (`str` or `list[str]`, *optional*): As in transformers.
            args (`Any`): Ignored, like `kwargs`: the card is built from the run itself.
            dataset (`str` or `list[str]`, *optional*): As in transformers.
            kwargs (`Any`): Ignored.

        Raises:
            SettingError: If the hub does not know the language or the licence.
        """
        language = check_languages(language)
        if license is not None:
            license = check_license(license)
        card = Path(str(self.args.output_dir), CARD)
        if not self.is_world_process_zero() or is_written_by_hand(card):
            return
        try:
            write_card(
                str(self.args.output_dir),
                repo_id=self.hub_model_id,
                run=self.describe_run(),
                language=language,
                license=license,
                datasets=[dataset] if isinstance(dataset, str) else dataset,
                tags=[tags] if isinstance(tags, str) else tags,
            )
        except ValueError as error:  # A run is not lost over its card.
            logger.warning(f"No model card was written: {error}")
            card.unlink(missing_ok=True)


def _names_of_arguments(args: SimCSETrainingArguments) -> set[str]:
    """Return the names that training arguments are made with."""
    return {field.name for field in fields(args) if field.init}


def _load_model(model: Any) -> Any:
    """Return a contrastive model, which may be given by its directory or hub name, or wrapped by peft.

    Raises:
        TypeError: If it has no contrastive objective.
        ModelError: If it has prompts of peft.
    """
    if isinstance(model, (str, os.PathLike)):
        return AutoModelForCL.from_pretrained(model)
    if hasattr(model, "get_base_model"):  # a `PeftModel`, which shares the weights of the model inside
        if any(config.is_prompt_learning for config in model.peft_config.values()):
            raise ModelError(
                "prompts of peft are not part of the model: use LoRA, or another method that changes weights"
            )
        model = model.get_base_model()
    if not hasattr(model, "prepare_objective"):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no contrastive objective: load it with "
            "AutoModelForCL.from_pretrained(...), or pass its folder or its name on the hub to SimCSETrainer"
        )
    return model
