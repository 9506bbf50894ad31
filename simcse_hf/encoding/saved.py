"""The identity of a model, also of one in a folder: no weights are loaded where their digests stand beside them."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ..models.checkpoint import RECORD, Checkpoint, WeightDigests
from ..models.modeling import AutoModelForCL
from ..models.settings import ContrastiveSettings, Values, layers_of, length_limit
from ..postprocessing.transform import Fit, VectorTransform, find_transform
from ..runtime.identity import Identity, digest_tokenizer, digest_value
from ..runtime.loading import load_pretrained

logger = logging.get_logger(__name__)


def make_identity(
    settings: ContrastiveSettings,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    prompts: dict[str, str],
    **others: Any,
) -> Identity:
    """Return what decides the embeddings of a model.

    Args:
        settings (`ContrastiveSettings`): Its settings.
        config (`PreTrainedConfig`): The config of its encoder.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        prompts (`dict[str, str]`): Its prompts.
        **others (`Any`): The other fields of [`Identity`].

    Returns:
        `Identity`: The identity.
    """
    return Identity(
        pooler=settings.inference_pooler,
        tokenizer=digest_tokenizer(tokenizer),
        templates=list(settings.templates),
        config=digest_value(layers_of(config, settings)),
        prompts={"query": "", "document": ""} | prompts,
        similarity=settings.similarity_fn_name,
        **others,
    )


def settings_of_pooler(pooler_type: str | None, own: str | None) -> Values:
    """Return the settings by which a pooler replaces that of a checkpoint, which is `own` if it names one."""
    if pooler_type is None:
        return {}
    settings = {"pooler_type": pooler_type, "mlp_only_train": False, "templates": [], "denoising": "none"}
    if own and pooler_type != own:
        settings["dense_layers"] = []  # trained on embeddings of the other pooler
    return settings


class SavedModel:
    """A model in a folder, of which only the files are read.

    Args:
        folder (`Path`): The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, WeightDigests] = {}

    @cached_property
    def transform(self) -> tuple[VectorTransform | None, Fit | None]:
        """The transform that is saved beside the model, and what it was fitted on."""
        return find_transform(self.folder, {})

    @cached_property
    def _found(self) -> tuple[Checkpoint, Values]:
        """What the folder holds, and the settings by which the pooler of its transform replaces the own one."""
        found = Checkpoint.find(self.folder)
        own = found.saved.inference_pooler if found.saved else None
        _, fit = self.transform
        return found, settings_of_pooler(fit.pooler, own) if fit and fit.pooler != own else {}

    def identity(self, dtype: str = "float32") -> Identity:
        """Return the identity that `SimCSE(folder).identity()` has in a data type.

        Args:
            dtype (`str`, *optional*, defaults to `"float32"`): The data type that weights are loaded in.

        Returns:
            `Identity`: The identity.
        """
        found, given = self._found
        settings = found.resolve(given)
        transform, fit = self.transform
        tokenizer = load_pretrained(AutoTokenizer.from_pretrained, self.folder)
        return make_identity(
            settings,
            found.config,
            tokenizer,
            settings.prompts,
            name_or_path=str(self.folder),
            max_length=length_limit(
                found.config, settings, tokenizer.model_max_length, fit.max_length if fit else None
            ),
            dtype=dtype,
            saved_as=str(found.config.dtype).removeprefix("torch."),
            weights=self.digests(dtype).weights,
            postprocessing=transform.method if transform else None,
            default_prompt_name=settings.default_prompt_name,
        )

    def digests(self, dtype: str = "float32") -> WeightDigests:
        """Return the digests of the weights in a data type.

        The weights are loaded if the file of digests is missing or about other files, or for a type but float32.

        Args:
            dtype (`str`, *optional*, defaults to `"float32"`): The data type.

        Returns:
            `WeightDigests`: The digests.
        """
        if dtype in self._digests:
            return self._digests[dtype]
        known = WeightDigests.read(self.folder) if dtype == "float32" else None
        if known is None:
            if dtype == "float32":
                logger.warning(
                    f"{self.folder}: the weights are loaded to compare them, because they have no {RECORD} of their "
                    "own. Save the model again to have one."
                )
            found, given = self._found
            kind = getattr(torch, dtype)
            model = AutoModelForCL.from_pretrained(found, do_mlm=False, dtype=kind, **given)
            known = WeightDigests.of(model, model.state_dict(), self.transform[0], kind)
        self._digests[dtype] = known
        return known
