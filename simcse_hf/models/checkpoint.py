"""Save and load contrastive models: which file holds what, and whether a checkpoint's head is kept."""

import os
import shutil
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import logging

from ..ops.files import find_file, select_hub_arguments
from ..postprocessing.files import DESCRIPTION, FOLDER
from .head import (
    POOLER_FOLDERS,
    WEIGHTS,
    DenseLayer,
    NGramHead,
    SentenceHead,
    TemplateHead,
    load_dense,
    load_head,
    load_pooler_layer,
    save_pooler_layers,
)
from .objective import (
    AUXILIARY_MODULES,
    OBJECTIVE_FILE,
    ModelWithObjective,
    load_auxiliary_state,
    save_auxiliary_state,
)
from .sentence_transformers import (
    DENSE_FOLDER,
    NAMES,
    SentenceTransformersSettings,
    read_sentence_transformers_settings,
    save_sentence_transformers_files,
)
from .settings import SECTION, SETTING_NAMES, ContrastiveSettings, drop_unchosen

logger = logging.get_logger(__name__)

HEAD_CHOICES = ("auto", "keep", "fresh", "pooler", "dense")

#: Layers of the embedding that the stock encoder lacks. They are saved in files of their own: as `Dense` modules of
#: sentence-transformers, and the layers of our own poolers in folders of their own.
OWN_LAYERS = ("sentence_head", "dense_layers", *POOLER_FOLDERS)

#: Modules of the stock classes for pretraining, which predict words, sentence pairs or replaced tokens.
_PRETRAINING_HEADS = (
    *("cls", "lm_head", "head", "decoder", "predictions", "sop_classifier", "pred_layer", "lm_predictions"),
    *("mask_predictions", "vocab_transform", "vocab_layer_norm", "vocab_projector"),
    *("generator_predictions", "generator_lm_head", "discriminator_predictions"),
)


class ContrastiveCheckpoint(ModelWithObjective):
    """`save_pretrained` and `from_pretrained` of [`~modeling.ContrastiveModel`], on top of those of transformers."""

    base_class: type[nn.Module]
    sentence_head: SentenceHead
    dense_layers: nn.ModuleList
    ngram_head: NGramHead | None
    template_head: TemplateHead | None
    _explained_keys: tuple[set[str], set[str]] = (set(), set())

    def save_pretrained(  # type: ignore[override]  # kwargs are the other arguments of transformers
        self, save_directory: str | os.PathLike, *, state_dict: dict[str, torch.Tensor] | None = None, **kwargs: Any
    ) -> None:
        """Save the model as transformers does, with the files of sentence-transformers beside the weights.

        If the encoder has no pooler of its own, our head is among those files and not in the weights. A whitening or
        flow in the directory (`simcse-hf postprocess fit`) is removed, because it was fitted on the embeddings of the
        weights that are replaced.

        Args:
            save_directory (`str` or `os.PathLike`): The directory. It is created if necessary.
            state_dict (`dict[str, torch.Tensor]`, *optional*): The weights to save. Defaults to the model's own.
            kwargs (`Any`): The other arguments of transformers' `save_pretrained`.
        """
        state_dict = dict(self.state_dict() if state_dict is None else state_dict)
        head = self._head_state(state_dict)
        dense_layers = [
            {name: state_dict[f"dense_layers.{number}.{name}"] for name in layer.state_dict()}
            for number, layer in enumerate(self.dense_layers)
        ]
        separate = (*AUXILIARY_MODULES, *OWN_LAYERS)
        main = {name: tensor for name, tensor in state_dict.items() if name.split(".")[0] not in separate}
        if kwargs.get("is_main_process", True):
            _remove_transform(save_directory)
            save_auxiliary_state(save_directory, state_dict)
            save_pooler_layers(save_directory, state_dict)
            save_sentence_transformers_files(save_directory, self.config, self.settings, head, dense_layers)
        super().save_pretrained(save_directory, state_dict=main, **kwargs)
        if kwargs.get("is_main_process", True):
            self._save_stock_architecture(save_directory)

    def _head_state(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return weight and bias of the head under their names in `state_dict`, or nothing if it has other layers."""
        prefix = next(name for name, module in self.named_modules() if module is self.contrastive_head)
        names = [name for name in state_dict if name.startswith(f"{prefix}.")]
        is_dense = sorted(name.rpartition(".")[2] for name in names) == ["bias", "weight"]
        return {name: state_dict[name] for name in names} if is_dense else {}

    def _save_stock_architecture(self, directory: str | os.PathLike) -> None:
        # transformers has written the name of our class, which converters and inference servers do not know. Our class
        # is found by the section `simcse`.
        self.config.architectures = [self.base_class.__name__]
        self.config.save_pretrained(directory)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # `save_pretrained(push_to_hub=True)` uploads what is not in this list. Ours were written just before.
        stamps = super()._get_files_timestamps(working_dir)
        return {name: stamp for name, stamp in stamps.items() if name not in NAMES}

    def _upload_modified_files(self, working_dir: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        self._save_stock_architecture(working_dir)
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # kwargs are the other arguments of transformers
        cls, name_or_path: str | os.PathLike, *args: Any, head: str = "auto", **kwargs: Any
    ) -> Self:
        """Load a model as transformers does, with the contrastive settings as further keyword arguments.

        Weights are loaded in float32 unless `dtype` is given.

        Args:
            name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub: a checkpoint of
                this package, a published SimCSE model (an encoder with its pooler and nothing else), the training
                output of the reference implementation (`mlp.*`), or a masked-LM checkpoint.
            args (`Any`): The positional arguments of transformers' `from_pretrained`.
            head (`str`, *optional*, defaults to `"auto"`): `"keep"` the checkpoint's dense + tanh head, draw a
                `"fresh"` one, or `"auto"`: keep it if `config.json` has our section (with the pooler `cls`), or if the
                checkpoint is a bare encoder with a pooler and without masked-LM head, as the published models are.
                The choice is logged and stands in `model.head_source`. A checkpoint may hold the head twice, in the
                encoder's own pooler and in `2_Dense`, from which sentence-transformers reads it. If the two differ,
                `"pooler"` or `"dense"` says which one to keep.
            kwargs (`Any`): Settings ([`ContrastiveSettings`]), config values such as `hidden_dropout_prob=0.2`, and
                the other arguments of transformers' `from_pretrained`.

        Returns:
            [`ContrastiveModel`]: The model in evaluation mode. With `output_loading_info=True`, a tuple of the model
            and the loading info.

        Raises:
            ValueError: If `head` is unknown, the checkpoint does not have that head, it has two different heads and
                `head` does not choose, or a setting is not valid.
        """
        if head not in HEAD_CHOICES:
            raise ValueError(f"head must be one of {', '.join(HEAD_CHOICES)}, got {head!r}")
        # As one argument under a name of ours: transformers moves an argument that is also a key of config.json into
        # the config, and some configs have a `pooler_type` of their own.
        settings = drop_unchosen({name: kwargs.pop(name) for name in list(kwargs) if name in SETTING_NAMES})
        files = read_sentence_transformers_settings(name_or_path, **select_hub_arguments(kwargs))
        kwargs["_settings"] = _combine_settings(name_or_path, files, settings, kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        if "torch_dtype" not in kwargs:
            kwargs.setdefault("dtype", torch.float32)

        def load(**more: Any) -> Any:
            loader: Any = super(ContrastiveCheckpoint, cls).from_pretrained
            result: Any = loader(name_or_path, *args, output_loading_info=True, **kwargs, **more)
            for name, keys in zip(("missing_keys", "unexpected_keys"), result[0]._explained_keys, strict=True):
                result[1][name] = result[1][name] | keys
            return result

        model, info = load()
        has_reference_head = "mlp.dense.weight" in info["unexpected_keys"] and model.has_own_pooler
        if has_reference_head:
            renames = {r"^mlp\.": f"{cls.base_model_prefix}.pooler.", **(kwargs.pop("key_mapping", None) or {})}
            if cls.base_model_prefix == "bert":  # the reference calls BERT's masked-LM head like RoBERTa's
                renames[r"^lm_head\."] = "cls.predictions."
            model, info = load(key_mapping=renames)
        has_head = model._load_or_find_head(name_or_path, head, info, kwargs)
        model._load_dense_layers(name_or_path, files.dense_folders, kwargs)
        pooling = [model._saved.get(name, "none") == getattr(model.settings, name) for name in _POOLING_SETTINGS]
        model._load_pooler_layers(name_or_path, kwargs, has_them=all(pooling))
        keeps = head in ("keep", "pooler", "dense") or (
            head == "auto" and has_head and (has_reference_head or model._is_trained(info))
        )
        if keeps and not has_head:
            raise ValueError(
                f"head={head!r}, but {name_or_path} holds no dense + tanh head. Use head='fresh' or 'auto'."
            )
        if not keeps:
            model.reset_head()
        elif model.has_own_pooler:
            model._settle_head(name_or_path, head, files, kwargs)
        model._freeze_unused_parameters()  # loading has replaced the parameters
        model.head_source = "kept" if keeps else "fresh"
        if model.settings.pooler_type == "cls":
            logger.info(f"{name_or_path}: the dense + tanh head is {model.head_source}.")
        unused = sorted({key.split(".")[0] for key in model._explained_keys[1]})
        if unused:
            logger.info(f"{name_or_path}: embeddings do not use its pretraining head ({', '.join(unused)}).")
        if model.has_section:
            model._objective_file = find_file(name_or_path, OBJECTIVE_FILE, **select_hub_arguments(kwargs))
        loaded: Any = (model, info) if wants_info else model
        return loaded

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        """Take the keys that [`from_pretrained`] explains itself out of transformers' report on loading.

        They are the encoder's own pooler, which is drawn anew if it is missing, the heads of pretraining, and the
        reference implementation's head, which a second load renames. All other keys stay in the report.
        """
        super()._adjust_missing_and_unexpected_keys(loading_info)
        missing = {key for key in loading_info.missing_keys if self.has_own_pooler and ".pooler." in f".{key}"}
        heads = {name for name in _PRETRAINING_HEADS if not hasattr(self.base_model, name)}
        if self.has_own_pooler:
            heads.add("mlp")
        unexpected = {key for key in loading_info.unexpected_keys if key.split(".")[0] in heads}
        self._explained_keys = (missing, unexpected)
        loading_info.missing_keys = loading_info.missing_keys - missing
        loading_info.unexpected_keys = loading_info.unexpected_keys - unexpected

    @torch.no_grad()
    def reset_head(self) -> None:
        """Draw new weights for the head from N(0, `initializer_range`), as BERT does, and set its biases to 0."""
        for module in self.contrastive_head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=getattr(self.config, "initializer_range", 0.02))
                nn.init.zeros_(module.bias)

    def _load_or_find_head(
        self, name_or_path: str | os.PathLike, head: str, info: dict[str, Any], kwargs: dict[str, Any]
    ) -> bool:
        if self.has_own_pooler:
            return not any(".pooler." in f".{key}" for key in info["missing_keys"])
        # Without our section, a dense layer beside the weights is some sentence-transformers model's own.
        is_ours = self.has_section and head != "pooler"
        return is_ours and load_head(self.sentence_head, name_or_path, kwargs)

    def _settle_head(
        self,
        name_or_path: str | os.PathLike,
        head: str,
        files: SentenceTransformersSettings,
        kwargs: dict[str, Any],
    ) -> None:
        """Compare the encoder's pooler with the copy in `2_Dense`, and take the one that was asked for.

        sentence-transformers trains the copy only. Other tools may change the pooler only.

        Raises:
            ValueError: If the two differ and `head` does not choose, or `head` chooses a copy that is not there.
        """
        linear = next(module for module in self.contrastive_head.modules() if isinstance(module, nn.Linear))
        dense = nn.Linear(linear.in_features, linear.out_features)
        uses_head = self._saved.get("pooler_type") == "cls" and not self._saved["mlp_only_train"]
        is_listed = uses_head and files.pooler_type == "cls_before_pooler" and files.dense_folders
        if not is_listed or not load_dense(dense, name_or_path, files.dense_folders[0], kwargs):
            if head == "dense":
                raise ValueError(f"head='dense', but {name_or_path} has no head in 2_Dense. Use head='keep'.")
            return
        if head == "pooler" or linear.weight.is_meta:
            return
        dense = dense.to(linear.weight)
        pairs = ((dense.weight, linear.weight), (dense.bias, linear.bias))
        with torch.no_grad():
            difference = max((x - y).abs().max().item() for x, y in pairs)
            # The copy is stored in float32, so a model in float64 differs from it by rounding.
            tolerance = torch.finfo(torch.float32).eps * linear.weight.abs().max().item()
            if head == "dense":
                for x, y in pairs:
                    y.copy_(x)
            elif difference > tolerance and self.settings.inference_pooler == "cls":
                raise ValueError(
                    f"{name_or_path} holds two different heads: the encoder's pooler and {files.dense_folders[0]}, "
                    f"from which sentence-transformers reads it, differ by up to {difference:.2g}. Pass head='dense' "
                    "if the model was trained further with sentence-transformers, or head='pooler' if it was trained "
                    "further otherwise."
                )

    def _load_dense_layers(self, name_or_path: str | os.PathLike, folders: list[str], kwargs: dict[str, Any]) -> None:
        # sentence-transformers chooses other folders when it saves. The first may be the head's.
        count = len(self.dense_layers)
        if len(folders) < count:
            folders = [f"{DENSE_FOLDER}/{number}" for number in range(count)]
        for layer, folder in zip(self.dense_layers, folders[len(folders) - count :], strict=True):
            if not load_dense(cast(DenseLayer, layer).linear, name_or_path, folder, kwargs):
                raise ValueError(
                    f"{name_or_path} lacks the weights of its dense layer {folder}. Download or save the model again."
                )

    def _load_pooler_layers(self, name_or_path: str | os.PathLike, kwargs: dict[str, Any], has_them: bool) -> None:
        """Load the layers of our own poolers from a checkpoint that has them, or give them their first weights."""
        for attribute, folder in POOLER_FOLDERS.items():
            layer = getattr(self, attribute)
            if layer is not None and not has_them:
                layer.start(name_or_path, **select_hub_arguments(kwargs))
            elif layer is not None and not load_pooler_layer(layer, name_or_path, folder, kwargs):
                raise ValueError(
                    f"{name_or_path} lacks the weights of its pooler {self.settings.pooler_type!r} "
                    f"({folder}/{WEIGHTS}). Download or save the model again."
                )

    def load_own_files(self, directory: str | os.PathLike) -> None:
        """Load what a checkpoint of this model holds beside the weights: our layers and the objective's state.

        Args:
            directory (`str` or `os.PathLike`): A checkpoint of a model with the same settings.
        """
        if not self.has_own_pooler:
            load_head(self.sentence_head, directory, {})
        self._load_dense_layers(directory, [], {})
        self._load_pooler_layers(directory, {}, has_them=True)
        load_auxiliary_state(self, directory)

    def _is_trained(self, info: dict) -> bool:
        """Return whether the head of the checkpoint was trained as a head of embeddings."""
        if self.has_section:
            return self._saved["pooler_type"] == "cls"
        unexpected = [key for key in info["unexpected_keys"] if not key.endswith("position_ids")]
        mlm_names = self._stock_mlm_head.modules if self.settings.do_mlm else ()
        mlm_missing = all(any(key.startswith(f"{n}.") for key in info["missing_keys"]) for n in mlm_names)
        return not unexpected and mlm_missing


#: Settings that decide which layers of our own poolers there are.
_POOLING_SETTINGS = ("pooler_type", "denoising")
#: Settings that decide which modules sentence-transformers' files list.
_LAYOUT_SETTINGS = ("pooler_type", "mlp_only_train", "dense_layers")


def _combine_settings(
    name_or_path: str | os.PathLike,
    files: SentenceTransformersSettings,
    settings: dict[str, Any],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the given settings and, for those not given, what sentence-transformers' files say."""
    config = kwargs.get("config")
    if isinstance(config, PreTrainedConfig):
        section = getattr(config, SECTION, None)
    else:
        hub = select_hub_arguments(kwargs)
        section = PreTrainedConfig.get_config_dict(config or name_or_path, **hub)[0].get(SECTION)
    # Prompts stand in a file that other tools edit: it wins over the section.
    read: dict[str, Any] = {}
    if files.prompts:
        read = {"prompts": files.prompts, "default_prompt_name": files.default_prompt_name}
    if section is not None:
        saved = ContrastiveSettings.resolve(section)
        layout = {name: settings[name] for name in settings if name in _LAYOUT_SETTINGS}
        if files.pooler_type and all(getattr(saved, name) == value for name, value in layout.items()):
            _check_modules(name_or_path, files, saved)
        return read | settings
    if files.max_seq_length:
        read["max_length"] = files.max_seq_length
    pooler_type = settings.get("pooler_type")
    if pooler_type is None and files.unsupported:
        raise ValueError(
            f"{files.unsupported}. Load it with sentence_transformers, or pass pooler_type to use its encoder alone."
        )
    if files.pooler_type and pooler_type in (None, files.pooler_type):
        read |= {name: getattr(files, name) for name in ("pooler_type", "dense_layers", "normalize")}
    elif files.pooler_type or files.unsupported:
        modules = files.unsupported or " + ".join([str(files.pooler_type), *["dense"] * len(files.dense_layers)])
        logger.warning(
            f"{name_or_path}: pooler_type {pooler_type!r} replaces the pooling of modules.json ({modules})."
        )
    return read | settings


def _check_modules(
    name_or_path: str | os.PathLike, files: SentenceTransformersSettings, saved: ContrastiveSettings
) -> None:
    """Refuse a checkpoint whose modules were changed in sentence-transformers after it was saved here."""
    has_head = saved.inference_pooler == "cls"
    pooler = "cls_before_pooler" if has_head else saved.inference_pooler
    if (files.pooler_type, len(files.dense_folders)) != (pooler, len(saved.dense_layers) + has_head):
        raise ValueError(
            f"{name_or_path} describes its pooling twice, and the two differ: modules.json has {files.pooler_type!r} "
            f"and {len(files.dense_folders)} dense layers, and the section {SECTION!r} of config.json has {pooler!r} "
            f"and {len(saved.dense_layers) + has_head}. If the model was changed in sentence-transformers, remove "
            "that section. Otherwise pass pooler_type."
        )


def _remove_transform(directory: str | os.PathLike) -> None:
    # This may be the end of a long run. An error would lose it, and a transform can be fitted again.
    if Path(directory, FOLDER, DESCRIPTION).exists():
        logger.warning(
            f"{Path(directory, FOLDER)} is removed, because it was fitted on the embeddings of the weights that are "
            "replaced now. Fit it again with simcse-hf postprocess fit."
        )
        shutil.rmtree(Path(directory, FOLDER))
