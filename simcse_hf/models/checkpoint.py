"""How contrastive models are saved and loaded: which file holds what, and whether a checkpoint's head is kept."""

import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import logging

from ..ops.files import find_file
from ..postprocessing.files import DESCRIPTION, FOLDER
from .configuration import SETTING_NAMES
from .head import load_head
from .sentence_transformers import NAMES as SENTENCE_TRANSFORMERS_NAMES
from .sentence_transformers import save_sentence_transformers_files

logger = logging.get_logger(__name__)

HEAD_CHOICES = ("auto", "keep", "fresh")

# Only continuing a run needs it: in the main weights it would be unexpected keys for AutoModel, and names with an
# underscore are left out of what is pushed to a hub.
OBJECTIVE_FILE = "_objective.safetensors"
AUXILIARY_MODULES = ("objective", "second_encoder")


class ContrastiveCheckpoint:
    """`save_pretrained` and `from_pretrained` of [`~modeling.ContrastiveModel`], before those of transformers."""

    def save_pretrained(self, save_directory: str | os.PathLike, *, state_dict: dict | None = None, **kwargs) -> None:
        """As in transformers, with the files of sentence-transformers beside the weights.

        Our head, where the encoder has none, is among those files and not in the weights. A whitening or flow that is
        there (`simcse-hf postprocess fit`) was fitted on the vectors of the weights that are replaced, and is removed.
        """
        state_dict = dict(self.state_dict() if state_dict is None else state_dict)
        head = self._head_state(state_dict)
        apart = AUXILIARY_MODULES if self.has_own_pooler else (*AUXILIARY_MODULES, "sentence_head")
        main = {name: tensor for name, tensor in state_dict.items() if name.split(".")[0] not in apart}
        if kwargs.get("is_main_process", True):
            _remove_transform(save_directory)
            save_auxiliary_state(save_directory, state_dict)
            save_sentence_transformers_files(save_directory, self.config, self.settings.inference_pooler, head)
        super().save_pretrained(save_directory, state_dict=main, **kwargs)

    def _head_state(self, state_dict: dict) -> dict:
        """Weight and bias of the head by their names in `state_dict`; empty where it is no single dense layer."""
        head = [name for name, module in self.named_modules() if module is self.contrastive_head]
        names = [name for name in state_dict if name.startswith(f"{head[0]}.")]
        kinds = sorted(name.rpartition(".")[2] for name in names)
        return {name: state_dict[name] for name in names} if kinds == ["bias", "weight"] else {}

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # `save_pretrained(push_to_hub=True)` uploads what is not in this list; ours was written just before.
        stamps = super()._get_files_timestamps(working_dir)
        return {name: stamp for name, stamp in stamps.items() if name not in SENTENCE_TRANSFORMERS_NAMES}

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, *args, head: str = "auto", **kwargs):
        """As in transformers, with the head's settings as further keyword arguments, in float32 unless told otherwise.

        Args:
            name_or_path: a directory or hub name: one of our checkpoints, a published SimCSE model (an encoder with
                its pooler, nothing else), the reference's own training output (`mlp.*`), or a masked-LM checkpoint.
            head: `"keep"` the checkpoint's dense + tanh head, draw a `"fresh"` one, or `"auto"`: keep it where
                config.json has our section (with a `cls` pooler) or the checkpoint is a bare encoder with a pooler
                and no masked-LM head, as the published models are; else draw it. Which was done is logged and stands
                in `model.head_source`.
            kwargs: settings ([`ContrastiveSettings`]), config values (`hidden_dropout_prob=0.2`) and transformers'
                own arguments.

        Raises:
            ValueError: unknown `head`; `"keep"` where the checkpoint has none; a setting that is not valid.
        """
        if head not in HEAD_CHOICES:
            raise ValueError(f"head must be one of {', '.join(HEAD_CHOICES)}, got {head!r}")
        settings = {name: kwargs.pop(name) for name in list(kwargs) if name in SETTING_NAMES}
        wants_info = kwargs.pop("output_loading_info", False)
        if "torch_dtype" not in kwargs:
            kwargs.setdefault("dtype", torch.float32)
        load = super().from_pretrained
        model, info = load(name_or_path, *args, output_loading_info=True, **settings, **kwargs)
        reference_head = "mlp.dense.weight" in info["unexpected_keys"] and model.has_own_pooler
        if reference_head:
            renames = {r"^mlp\.": f"{cls.base_model_prefix}.pooler.", **(kwargs.pop("key_mapping", None) or {})}
            if cls.base_model_prefix == "bert":  # the reference calls BERT's masked-LM head like RoBERTa's
                renames[r"^lm_head\."] = "cls.predictions."
            model, info = load(
                name_or_path, *args, output_loading_info=True, key_mapping=renames, **settings, **kwargs
            )
        found = model._find_head(name_or_path, info, kwargs)
        keep = head == "keep" or (head == "auto" and found and (reference_head or model._is_trained_head(info)))
        if keep and not found:
            raise ValueError(
                f"head='keep', but {name_or_path} holds no dense + tanh head. Use head='fresh' or 'auto'."
            )
        if not keep:
            model.reset_head()
        model._freeze_unused_head()  # loading put new parameters in its place
        model.head_source = "kept" if keep else "fresh"
        if model.settings.pooler_type == "cls":
            logger.info(f"{name_or_path}: the dense + tanh head is {model.head_source}.")
        return (model, info) if wants_info else model

    def _find_head(self, name_or_path, info, kwargs) -> bool:
        if not self.has_own_pooler:
            # Without our section, a dense layer beside the weights is some sentence-transformers model's own.
            return self._saved_section is not None and load_head(self.sentence_head, name_or_path, kwargs)
        return not any(".pooler." in f".{key}" for key in info["missing_keys"])

    def _is_trained_head(self, info) -> bool:
        section = self._saved_section
        if section is not None:
            return section.get("pooler_type", "cls") == "cls"
        extra = [key for key in info["unexpected_keys"] if not key.endswith("position_ids")]
        mlm_names = self._stock_mlm_head.modules if self.settings.do_mlm else ()
        mlm_missing = all(any(key.startswith(f"{n}.") for key in info["missing_keys"]) for n in mlm_names)
        return not extra and mlm_missing


def _remove_transform(directory: str | os.PathLike) -> None:
    # It may be the end of a long run: a refusal here would lose it, and a transform can be fitted again.
    if Path(directory, FOLDER, DESCRIPTION).exists():
        logger.warning(
            f"{Path(directory, FOLDER)} is removed: it was fitted on the vectors of the weights that these replace. "
            "simcse-hf postprocess fit makes it anew."
        )
        shutil.rmtree(Path(directory, FOLDER))


def save_auxiliary_state(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Writes the tensors of [`AUXILIARY_MODULES`] of a model's state; without any, an earlier file is removed."""
    tensors = {name: x.contiguous() for name, x in state_dict.items() if name.split(".")[0] in AUXILIARY_MODULES}
    path = Path(directory, OBJECTIVE_FILE)
    if tensors:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"format": "pt"})
    else:
        path.unlink(missing_ok=True)


def load_auxiliary_state(model: nn.Module, name_or_path: str | os.PathLike) -> bool:
    """Fills the auxiliary modules of a model from a directory or hub name, where it has them.

    Returns:
        Whether there was a file.

    Raises:
        ValueError: the file does not fit the model's objective.
    """
    path = find_file(name_or_path, OBJECTIVE_FILE)
    if not path:
        return False
    tensors = load_file(path)
    own = {name: x for name, x in model.state_dict().items() if name.split(".")[0] in AUXILIARY_MODULES}
    if {n: x.shape for n, x in own.items()} != {n: x.shape for n, x in tensors.items()}:
        raise ValueError(
            f"{path} holds the state of another objective or of other options than this model's. Give the objective "
            "it was saved with, or remove the file to start the objective anew."
        )
    model.load_state_dict(tensors, strict=False)
    logger.info(f"The objective goes on from {path}.")
    return True
