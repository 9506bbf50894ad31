"""Prepare what a run trains: the model with the settings of the run, its view, and the masks of its auxiliary loss."""

import inspect
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.templates import template_settings
from ..data.views import MASKED_LM_VIEWS, MaskedLMView, masked_lm_rate
from ..models.adapters import add_lora, check_adapter, has_adapter, unwrap
from ..models.auto import AutoModelForCL
from ..models.modeling import ContrastiveModel
from ..models.settings import THRESHOLD, ContrastiveSettings, check_max_length
from ..models.tokenizers import check_tokenizer
from ..objectives import Objective, objective_class
from ..objectives.masked_lm import mask_tokens
from ..ops.errors import refuse
from .dev_sets import DevSetCallback
from .training_args import SimCSETrainingArguments

logger = logging.get_logger(__name__)


def load_model(model: Any, model_init: Callable[..., Any] | None = None, trial: Any = None) -> Any:
    """Return the model of a run.

    Args:
        model (`str`, `os.PathLike` or `ContrastiveModel`, *optional*): A model, or its directory or hub name.
        model_init (`Callable`, *optional*): Makes the model or returns its directory or name, if `model` is `None`.
        trial (`Any`, *optional*): The trial of a search, for a `model_init` that takes one.

    Returns:
        `ContrastiveModel`: The model.

    Raises:
        TypeError: If it has no contrastive objective.
    """
    if model is None:
        assert model_init is not None
        model = model_init(trial) if inspect.signature(model_init).parameters else model_init()
    if isinstance(model, (str, os.PathLike)):
        return AutoModelForCL.from_pretrained(model)
    model = unwrap(model)
    if not hasattr(model, "prepare_objective"):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no contrastive objective: load it with "
            "AutoModelForCL.from_pretrained(...), or pass its directory or hub name to SimCSETrainer"
        )
    return model


#: What `args.datasets` may say about a data set.
DATASET_SETTINGS = ("objective", "objective_options", "prompts", "max_seq_length", "share")


def set_defaults(args: SimCSETrainingArguments, settings: ContrastiveSettings, train_dataset: Any) -> None:
    """Set what the caller left open: the length, the view, and the settings of the data sets.

    Args:
        args (`SimCSETrainingArguments`): The arguments of the run, which are changed.
        settings (`ContrastiveSettings`): The settings of the model.
        train_dataset (`Any`): The training data; a dictionary holds several data sets by name.

    Raises:
        ValueError: If `args.datasets` does not fit the training data.
    """
    if args.length_is_default:
        args.max_seq_length = settings.max_seq_length
    tables = cast(dict, args.datasets or {})
    names = [str(name) for name in train_dataset] if is_mixture(train_dataset) else []
    unknown = [key for own in tables.values() for key in own if key not in DATASET_SETTINGS]
    shares = [own["share"] for own in tables.values() if "share" in own]
    refuse(
        {
            f"datasets has {', '.join(map(repr, tables))}, and train_dataset {', '.join(map(repr, names)) or 'is one'}"
            ": pass train_dataset={name: rows} with these names": tables.keys() - set(names),
            f"datasets: {', '.join(unknown)} is not known; a data set has {', '.join(DATASET_SETTINGS)}": unknown,
            f"datasets: {len(shares)} of {len(names)} data sets have a share, a number above 0: give all of them one, "
            "or none": shares and (len(shares) < len(names) or not all(_is_share(share) for share in shares)),
            f"train_sampling_strategy = {args.train_sampling_strategy!r} is for one data set; the rows of several are "
            "drawn at random: leave it out": names and args.train_sampling_strategy != "random",
        }
    )
    if names:
        args.datasets = {name: dict(tables.get(name, {})) for name in names}
    set_default_view(args, objective_class(settings.objective))


def is_mixture(data: Any) -> bool:
    """Say whether training data is several data sets by name, which a `DatasetDict` is not."""
    return isinstance(data, dict) and not hasattr(data, "column_names")


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def set_default_view(args: SimCSETrainingArguments, objective: type[Objective]) -> None:
    """Let the objective choose the view and its rate, where the arguments leave them open."""
    view, rate = objective.view
    args.view = args.view or view
    if args.view == view and args.view_rate is None:
        args.view_rate = rate
    masked_lm_rate(args.view, args.view_rate)  # refuses a rate that the view does not take


def prepare_model(
    model: Any,
    args: SimCSETrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    dev_sets: Sequence[DevSetCallback] = (),
) -> None:
    """Write the settings of the run into the model, make its objective, and tell the dev sets its prompts.

    Args:
        model (`ContrastiveModel`): The model, which is changed.
        args (`SimCSETrainingArguments`): The arguments of the run.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the run.
        dev_sets (`Sequence[DevSetCallback]`, *optional*, defaults to `()`): The dev sets of the run.

    Raises:
        ValueError: If the length, the tokenizer or the templates do not fit the model.
    """
    everything = [args, *args.of_datasets().values()]
    max_seq_length = max(length for each in everything for length in each.by_column(each.max_seq_length))
    check_max_length(max_seq_length, model.config)
    check_tokenizer(tokenizer, model, model.name_or_path or "the model")
    model.update_settings(
        max_seq_length=max_seq_length,
        fixed_mask=args.view == "fixed_mask",
        **_prompt_settings(model.settings, everything),
        **_dataset_objectives(model.settings, args),
        **template_settings(model.settings.templates, tokenizer),
    )
    for dev_set in dev_sets:
        dev_set.use_prompts(model.settings)
    vars(model.config).pop(THRESHOLD, None)
    if args.lora_r is not None and not has_adapter(model):
        add_lora(model, args.lora_r, args.lora_alpha, args.lora_dropout, args.lora_targets)
    model.save_adapter = args.save_adapter
    check_adapter(model)
    if model.objective is None:
        model.prepare_objective()
    if args.neftune_noise_alpha is not None and model.unpadded:
        logger.info(
            "neftune_noise_alpha: the noise depends on the length of the padded batch, so the batches are padded"
        )
        model.unpadded = False


def _dataset_objectives(settings: ContrastiveSettings, args: SimCSETrainingArguments) -> dict[str, Any]:
    """Return the settings that name the objectives of several data sets, or none if it is the model's for all."""
    tables = {
        name: {key: own[key] for key in ("objective", "objective_options") if key in own}
        for name, own in cast(dict, args.datasets or {}).items()
    }
    if not any(tables.values()):
        return {"dataset_objectives": {}}
    for name, own in tables.items():
        refuse({f"data set {name!r} has objective_options, but no objective": own and "objective" not in own})
    main = {}
    if all(tables.values()):  # the model's own objective is then that of the first data set
        first = next(iter(tables))
        main = {"objective_options": {}, **tables[first]}
        tables[first] = {}
    return {"dataset_objectives": tables, **main}


def _prompt_settings(settings: ContrastiveSettings, everything: Sequence[SimCSETrainingArguments]) -> dict[str, Any]:
    """Return the prompts that are saved with the model: those of training, in place of its own of the same name.

    They are those of the run or, if it has none, of the first data set that has some.
    """
    known = {name: text for name, text in settings.prompts.items() if text}
    args = next((each for each in everything if each.prompts is not None), None)
    if args is None:
        if known and settings.default_prompt_name is None:
            logger.info(
                f"The model has the prompts {known}, which are kept. Training puts none of them before a text unless "
                "prompts (--prompts anchor=... positive=...) names it."
            )
        return {}
    query, document, _ = args.by_column(args.prompts)
    # A text that stands before all texts in training also stands before texts that are neither query nor document.
    default = "query" if query == document else settings.default_prompt_name
    return {
        "prompts": {**settings.prompts, "query": query, "document": document},
        "default_prompt_name": default,
    }


def make_masker(tokenizer: PreTrainedTokenizerBase, probability: float) -> partial[Any]:
    """Return the function that masks token ids for the auxiliary loss."""
    return partial(mask_tokens, masker=DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability))


def make_masked_lm_view(
    model: ContrastiveModel, tokenizer: PreTrainedTokenizerBase, args: SimCSETrainingArguments
) -> MaskedLMView | None:
    """Load the masked language model that makes views on the device, if `args.view` is such a view."""
    if args.view not in MASKED_LM_VIEWS:
        return None
    rate = cast(float, masked_lm_rate(args.view, args.view_rate))
    return MaskedLMView(args.view_model or cast(str, model.name_or_path), tokenizer, rate).to(args.device)
