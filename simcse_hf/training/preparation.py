"""Prepare what a run trains: the model with the settings of the run, its view, and the masks of its auxiliary loss."""

import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.templates import template_settings
from ..data.views import MASKED_LM_VIEWS, MaskedLMView, masked_lm_rate
from ..models.adapters import add_lora, check_adapter, has_adapter, unwrap
from ..models.auto import AutoModelForCL
from ..models.resolve import Run
from ..models.settings import THRESHOLD
from ..models.tokenizers import check_tokenizer
from ..objectives.masked_lm import mask_tokens

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
        takes_trial = bool(inspect.signature(model_init).parameters)
        model = model_init(trial) if takes_trial else model_init()
    if isinstance(model, (str, os.PathLike)):
        return AutoModelForCL.from_pretrained(model)
    model = unwrap(model)
    if not hasattr(model, "prepare_objective"):
        raise TypeError(
            f"model is a {type(model).__name__}, which has no contrastive objective: load it with "
            "AutoModelForCL.from_pretrained(...), or pass its directory or hub name to SimCSETrainer"
        )
    return model


def prepare_model(model: Any, run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the settings of a run into its model, and make its adapter and its objective.

    Args:
        model (`ContrastiveModel`): The model, which is changed.
        run (`Run`): The run.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the run.

    Raises:
        ValueError: If the tokenizer, the templates or the adapter do not fit the model.
    """
    args = run.arguments
    check_tokenizer(tokenizer, model, model.name_or_path or "the model")
    edges = template_settings(model.settings.templates, tokenizer)
    model.use_settings(replace(model.settings, **run.settings, **edges))
    vars(model.config).pop(THRESHOLD, None)
    lora = args.lora_config()
    if lora is not None and not has_adapter(model):
        add_lora(model, lora)
    model.save_adapter = args.save_adapter
    check_adapter(model)
    if model.objective is None:
        model.prepare_objective()
    if args.neftune_noise_alpha is not None and model.unpadded:
        logger.info(
            "neftune_noise_alpha: the noise depends on the length of the padded batch, so the batches are padded"
        )
        model.unpadded = False


def make_masker(tokenizer: PreTrainedTokenizerBase, probability: float) -> partial[Any]:
    """Return the function that masks token ids for the auxiliary loss."""
    return partial(mask_tokens, masker=DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability))


def make_masked_lm_view(model: Any, tokenizer: PreTrainedTokenizerBase, run: Run) -> MaskedLMView | None:
    """Load the starting checkpoint as the masked language model of the views `mlm` and `crop+mlm`."""
    plan = run.rows
    if plan.view not in MASKED_LM_VIEWS:
        return None
    rate = masked_lm_rate(plan.view, plan.view_rate)
    assert rate is not None
    return MaskedLMView(model.name_or_path, tokenizer, rate).to(run.arguments.device)
