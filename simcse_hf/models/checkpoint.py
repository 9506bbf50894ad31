"""What a checkpoint holds besides the weights of its encoder: find it, load it and save it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_utils import load_state_dict
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    logging,
)
from transformers.utils.hub import extract_commit_hash

from ..names import BACKENDS
from ..postprocessing.transform import FOLDER as TRANSFORM_FOLDER
from ..postprocessing.transform import TRANSFORM_FILE, VectorTransform
from ..runtime.errors import ModelError
from ..runtime.files import StrPath, digest, read_json, replace_files, write_json
from ..runtime.identity import digest_weights
from ..runtime.loading import (
    ADAPTER_CONFIG,
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    MODULES,
    HubArguments,
    adapter_base,
    find_file,
    load_base,
    load_pretrained,
    select_hub_arguments,
)
from .parts import AUXILIARY_MODULES, PRETRAINING_HEADS, SEPARATE_MODULES, ContrastiveBase
from .pooling import HEAD_FOLDER, POOLER_FOLDERS, TANH, WEIGHTS, StateDict, load_layer, save_layer
from .sentence_transformers import (
    DENSE_FOLDER,
    LIBRARY,
    NAMES,
    SentenceTransformersFiles,
    read_sentence_transformers_files,
    save_sentence_transformers_files,
)
from .settings import (
    SECTION,
    ContrastiveSettings,
    PoolingSettings,
    Values,
    length_limit,
    read_section,
    resolve_settings,
)

logger = logging.get_logger(__name__)

_SAVE_TOKENIZER = "Save the model's own tokenizer into the model's folder (tokenizer.save_pretrained)"
#: A weight of the training output of the reference implementation, and of no other model.
REFERENCE_HEAD = "mlp.dense.weight"
HEAD_CHOICES = ("auto", "keep", "fresh", "pooler", "dense")

# The state of what is trained beside the encoder and is not part of the embedding: the objective and a second encoder.
# Only a run that continues needs it. In the main weights it would be unexpected keys for AutoModel. Files whose name
# begins with an underscore are not pushed to the hub.
OBJECTIVE_FILE = "_objective.safetensors"
#: Exported graphs, which lie beside the weights in some folders.
GRAPH_FILES = [f"{backend}/*model*" for backend in BACKENDS[1:]]
#: Options that change the loss and not the state of an objective, which continues when they change.
STATELESS_OPTIONS = ("temperature", "similarity", "hard_negative_weight")
#: The file with the digests of the weights, beside them, so that a comparison loads no model.
RECORD = "weights.json"
#: The files of weights that an embedding goes through.
_FILES = (
    "model*.safetensors",
    f"{HEAD_FOLDER}/{WEIGHTS}",
    f"{DENSE_FOLDER}/*/{WEIGHTS}",
    *(f"{folder}/{WEIGHTS}" for folder in POOLER_FOLDERS.values()),
    f"{TRANSFORM_FOLDER}/{WEIGHTS}",
)


@dataclass
class Checkpoint:
    """What was found in a checkpoint before its weights are loaded.

    Args:
        name (`str` or `os.PathLike`): The local directory or the name on the hub that was asked for.
        arguments (`dict`): The arguments that locate its files, for `from_pretrained` of transformers.
        config (`PreTrainedConfig`): The config of its encoder.
        source (`str` or `os.PathLike`): Where its settings and layers are: `name` or, if this is an adapter of another
            program, the model that the adapter belongs to.
        hub (`HubArguments`): The arguments that locate the files of `source`.
        section (`dict`): Its settings in the form of the section `simcse` of `config.json`, from this section and the
            files of sentence-transformers.
        saved (`ContrastiveSettings`, *optional*): The settings that it was saved with, if it has that section.
        files (`SentenceTransformersFiles`): What the files of sentence-transformers say.
        tokenizer_limit (`int`, *optional*): The `model_max_length` of its tokenizer, if that is a number.
        base (`str`, *optional*): If it is an adapter of peft, the model that it belongs to.
        commit (`str`, *optional*): Its commit on the hub.
    """

    name: StrPath
    arguments: Values
    config: PreTrainedConfig
    source: StrPath
    hub: HubArguments
    section: Values
    saved: ContrastiveSettings | None
    files: SentenceTransformersFiles
    tokenizer_limit: int | None
    base: str | None = None
    commit: str | None = None

    @classmethod
    def find(
        cls,
        name: StrPath,
        config: PreTrainedConfig | StrPath | None = None,
        config_class: type[AutoConfig] | type[PreTrainedConfig] = AutoConfig,
        **arguments: Any,
    ) -> "Checkpoint":
        """Look at the files of a checkpoint, but for its weights.

        Args:
            name (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
            config (`PreTrainedConfig`, `str` or `os.PathLike`, *optional*): As in transformers: a config, or a
                checkpoint that has it, in place of the own one.
            config_class (`type`, *optional*): What reads the config. By default its `model_type` decides.
            **arguments (`Any`): Arguments of `from_pretrained`. Only `variant` and those that locate files are used.

        Returns:
            `Checkpoint`: What was found.

        Raises:
            ValueError: If there is no such model, the hub cannot be reached, a file is damaged, or custom code is
                asked for or needed.
        """
        hub = select_hub_arguments(arguments)
        located = {**hub, "variant": arguments.get("variant")}
        base = adapter_base(name, **hub)
        modules = find_file(name, MODULES, **hub)
        if base and not modules and not find_file(name, ADAPTER_SETTINGS, **hub):
            # Another program saved this adapter, so it has no settings of the embedding.
            of_base = load_base(cls.find, name, base, config, config_class, **arguments)
            return replace(of_base, name=name, arguments=located, base=base)
        if isinstance(config, PreTrainedConfig):
            own_config = config
            located["config"] = config
        else:
            code = {"trust_remote_code": arguments.get("trust_remote_code")}
            reader = AutoConfig if base else config_class  # which knows the config of an adapter's model
            own_config = load_pretrained(reader.from_pretrained, config or name, **code, **hub)
        section = getattr(own_config, SECTION, None)
        read_section(section)  # refuses one that is damaged
        files = SentenceTransformersFiles()
        if modules or find_file(name, LIBRARY, **hub):
            files = read_sentence_transformers_files(name, **hub)
        limit = None
        path = find_file(name, "tokenizer_config.json", **hub)
        if path is not None:
            length = read_json(path).get("model_max_length")
            limit = length if isinstance(length, int) else None
        saved = None
        if section is None:
            section = {"pooling": files.pooling}
        else:
            # Other tools change some settings in the files of sentence-transformers alone. There, a model without a
            # length of its own has the tokenizer's.
            pooling = dict(section.get("pooling", {}))
            length = files.pooling.get("max_length")
            is_tokenizers = pooling.get("max_length") is None and limit in (None, length)
            for setting in ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim"):
                if setting in files.pooling:
                    pooling[setting] = files.pooling[setting]
            if not is_tokenizers and (length is not None or "pooler_type" in files.pooling):
                pooling["max_length"] = length
            section = {**section, "pooling": pooling}
            saved = resolve_settings(section)
        commit = extract_commit_hash(path, None)
        return cls(name, located, own_config, name, hub, section, saved, files, limit, base, commit)

    @cached_property
    def weight_names(self) -> frozenset[str]:
        """The names of the weights.

        Raises:
            ModelError: If there is no file of weights.
        """
        names = [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME]
        variant = self.arguments.get("variant")
        if variant is not None:  # model.fp16.safetensors
            names = [f".{variant}.".join(name.rsplit(".", 1)) for name in names]
        for name in (*names, ADAPTER_WEIGHTS):
            path = find_file(self.source, name, **self.hub)
            if path is None:
                continue
            if name.endswith(".json"):
                return frozenset(read_json(path, "weight_map")["weight_map"])
            return frozenset(load_state_dict(path, map_location="meta"))
        raise ModelError(
            f"{self.source} has no file of weights that can be read here ({', '.join(names)}). Weights of a variant, "
            'such as model.fp16.safetensors, are loaded with AutoModelForCL.from_pretrained(..., variant="fp16"). For '
            "SimCSE and the commands, save the model with save_pretrained without a variant."
        )

    def resolve(self, given: Values) -> ContrastiveSettings:
        """Decide the settings of a model that is loaded from the checkpoint.

        Args:
            given (`dict`): The settings that the caller has chosen.

        Returns:
            [`ContrastiveSettings`]: The settings; see [`resolve_settings`].

        Raises:
            ModelError: If a setting is not valid, or the checkpoint's pooling is unknown or described in two ways.
        """
        files, saved = self.files, self.saved
        pooler_type = given.get("pooler_type")
        modules = (files.pooling.get("pooler_type"), len(files.dense_folders))
        # 1. Refuse a pooling that cannot be reproduced here.
        problem = files.refused or (files.unsupported if saved is None else "")
        if problem and pooler_type is None:
            raise ModelError(
                f"{problem}. Load it with sentence_transformers, or pass pooler_type to use its encoder alone."
            )
        # 2. Without our section, the files of sentence-transformers count, unless the caller names another pooler.
        if saved is None:
            section = self.section
            if pooler_type not in (None, modules[0]):
                replaced = ("pooler_type", "dense_layers", "normalize")
                section = {"pooling": {name: x for name, x in files.pooling.items() if name not in replaced}}
            return resolve_settings(section, **given)
        # 3. sentence-transformers may have changed the modules after the checkpoint was saved here.
        decisive = ("pooler_type", "mlp_only_train", "dense_layers")
        is_saved = all(given.get(name, getattr(saved, name)) == getattr(saved, name) for name in decisive)
        expected = (saved.inference_pooler, len(saved.dense_layers))
        if saved.inference_pooler == "cls":  # the head is the first dense layer
            expected = ("cls_before_pooler", expected[1] + 1)
        if is_saved and modules[0] is not None and modules != expected:
            raise ModelError(
                f"{self.source} describes its pooling twice, and the two differ: modules.json has {modules[0]!r} and "
                f"{modules[1]} dense layers, and the section {SECTION!r} of config.json {expected[0]!r} and "
                f"{expected[1]}. Remove that section if sentence-transformers changed the model, or pass pooler_type."
            )
        return resolve_settings(self.section, **given)


def load_own_layers(model: ContrastiveBase, found: Checkpoint, head: str, info: Values) -> None:
    """Load the layers beside the encoder, and keep the dense + tanh head of a checkpoint or draw a new one.

    Args:
        model (`ContrastiveModel`): The model, whose encoder is loaded. It is changed in place.
        found (`Checkpoint`): Its checkpoint.
        head (`str`): One of `HEAD_CHOICES`.
        info (`Mapping[str, Any]`): transformers' loading info.

    Raises:
        ModelError: If the checkpoint lacks a layer or the head that is to be kept, or has two different heads.
    """
    settings = model.settings
    saved = found.saved
    model.tokenizer_limit = found.tokenizer_limit
    with torch.no_grad():
        for name in info["missing_keys"]:
            if name.endswith("bias"):  # which transformers before 5.7 leaves as the memory was
                model.get_parameter(name).zero_()
    # 1. Dense layers, and those of a pooler of our own, which are drawn if the checkpoint has another pooler.
    is_other = saved is None or (saved.pooler_type, saved.denoising) != (settings.pooler_type, settings.denoising)
    _load_layers(model, found.source, found.files.dense_folders, is_other, **found.hub)
    # 2. The head. Without our section, 2_Dense is a layer of some sentence-transformers model's own.
    if model.has_own_pooler:
        has_head = any(name == REFERENCE_HEAD or ".pooler." in f".{name}" for name in found.weight_names)
    elif saved is None or head == "pooler":
        has_head = False
    else:
        has_head = load_layer(model.sentence_head[0], found.source, HEAD_FOLDER, "linear.", **found.hub)
    keeps = head != "fresh"
    if head == "auto" and saved is not None:
        keeps = has_head and saved.pooler_type == "cls"
    elif head == "auto":
        # Was it trained as a head of embeddings? Published SimCSE models are bare encoders with a pooler; masked-LMs
        # have more.
        modules = {name.split(".")[0] for name in found.weight_names}
        others = [name for name in modules.intersection(PRETRAINING_HEADS) if not hasattr(model.base_model, name)]
        others += [name for name in info["unexpected_keys"] if not name.endswith("position_ids")]
        keeps = has_head and (REFERENCE_HEAD in found.weight_names or not others)
    if keeps and not has_head:
        raise ModelError(f"head={head!r}, but {found.source} holds no dense + tanh head. Use head='fresh' or 'auto'.")
    if not keeps:
        std = getattr(model.config, "initializer_range", 0.02)
        for part in model.contrastive_head.modules():
            if isinstance(part, nn.Linear):  # as BERT draws it
                nn.init.normal_(part.weight, std=std)
                nn.init.zeros_(part.bias)
    elif model.has_own_pooler:
        _settle_head(model, found, head)
    model.head_source = "kept" if keeps else "fresh"
    model.names_pooler = keeps or saved is not None or "pooler_type" in found.files.pooling
    if settings.pooler_type == "cls":
        logger.info(f"{found.source}: the dense + tanh head is {model.head_source}.")


def _settle_head(model: ContrastiveBase, found: Checkpoint, head: str) -> None:
    """Compare the encoder's pooler with its copy in `2_Dense`, and take the one that was asked for.

    sentence-transformers trains the copy only. Other tools may change the pooler only.

    Raises:
        ModelError: If the two differ and `head` does not choose, or `head` chooses a copy that is not there.
    """
    linear = next(module for module in model.contrastive_head.modules() if isinstance(module, nn.Linear))
    copy = nn.Linear(linear.in_features, linear.out_features)
    folders = found.files.dense_folders
    is_ours = found.saved is not None and found.saved.inference_pooler == "cls"
    is_listed = is_ours and folders and found.files.pooling.get("pooler_type") == "cls_before_pooler"
    if not is_listed or not load_layer(copy, found.source, folders[0], "linear.", **found.hub):
        if head == "dense":
            raise ModelError(f"head='dense', but {found.source} has no head in 2_Dense. Use head='keep'.")
        return
    if head == "pooler" or linear.weight.is_meta:
        return
    copy = copy.to(linear.weight)
    if head == "dense":
        linear.load_state_dict(copy.state_dict())
        return
    pairs = zip(copy.parameters(), linear.parameters(), strict=True)
    difference = max((x - y).abs().max().item() for x, y in pairs)
    # The copy is stored in float32, so a model in float64 differs from it by rounding.
    tolerance = torch.finfo(torch.float32).eps * linear.weight.abs().max().item()
    if difference > tolerance and model.settings.inference_pooler == "cls":
        raise ModelError(
            f"{found.source} holds two different heads: the encoder's pooler and {folders[0]} differ by up to "
            f"{difference:.2g}. Pass head='dense' if sentence-transformers trained it further, or head='pooler'."
        )


def _load_layers(
    model: ContrastiveBase,
    source: StrPath,
    dense_folders: list[str],
    draws_pooler: bool = False,
    **hub: Unpack[HubArguments],
) -> None:
    """Load the dense layers, and those of a pooler of our own, which begins anew if the checkpoint has another.

    Raises:
        ModelError: If the checkpoint lacks a layer.
    """
    # sentence-transformers chooses other folders when it saves. The first may be the head's.
    count = len(model.dense_layers)
    if len(dense_folders) < count:
        dense_folders = [f"{DENSE_FOLDER}/{number}" for number in range(count)]
    own_folders = dense_folders[len(dense_folders) - count :]
    saved = [(layer, folder, "dense layer") for layer, folder in zip(model.dense_layers, own_folders, strict=True)]
    for attribute, folder in POOLER_FOLDERS.items():
        layer = getattr(model, attribute)
        if layer is not None and draws_pooler:
            layer.start(source, **hub)
        elif layer is not None:
            saved.append((layer, folder, f"pooler {model.settings.pooler_type!r}"))
    for layer, folder, name in saved:
        if not load_layer(layer, source, folder, **hub):
            raise ModelError(
                f"{source} lacks the weights of its {name} ({folder}/{WEIGHTS}). Download or save the model again."
            )


def reload_model(model: ContrastiveBase, directory: StrPath) -> None:
    """Load all weights of a checkpoint of this very model: the encoder, our layers and the objective's state.

    Args:
        model (`ContrastiveModel`): The model. It is changed in place.
        directory (`str` or `os.PathLike`): A checkpoint of a model with the same settings.

    Raises:
        ModelError: If the checkpoint holds no weights, or those of another model.
    """
    weights: StateDict = {}
    for path in sorted(Path(directory).glob("model*.safetensors")):
        weights |= load_file(path)
    if not weights:
        raise ModelError(f"{directory} holds no weights (model.safetensors): name another checkpoint")
    own = {name for name in model.state_dict() if name.split(".")[0] not in SEPARATE_MODULES}
    tied = model.all_tied_weights_keys.keys()  # which are saved once
    wrong = sorted((own - tied) ^ weights.keys())
    if wrong:
        listed = ", ".join(wrong[:3])
        raise ModelError(f"{directory} holds the weights of another model ({listed}): name another checkpoint")
    model.load_state_dict(weights, strict=False)
    if not model.has_own_pooler:
        load_layer(model.sentence_head[0], directory, HEAD_FOLDER, "linear.")
    _load_layers(model, directory, [])
    load_objective_state(model, Path(directory, OBJECTIVE_FILE))


def load_objective_state(model: ContrastiveBase, path: StrPath, saved: ContrastiveSettings | None = None) -> None:
    """Load the state of the objective and of the second encoder, if the file exists.

    Args:
        model (`ContrastiveModel`): A model whose objective is prepared. It is changed in place.
        path (`str` or `os.PathLike`): The file `OBJECTIVE_FILE` of a checkpoint.
        saved (`ContrastiveSettings`, *optional*): The settings that it was saved with, if they may differ from those
            of the model. Nothing is loaded if some data set had another objective then, whatever its temperature.

    Raises:
        ModelError: If the file does not fit the model's objective.
    """
    saved = saved or model.settings
    stateful = []
    for settings in (saved, model.settings):
        losses = {}
        for dataset, (objective, options) in settings.losses().items():
            kept = {name: x for name, x in options.items() if name.rpartition(".")[2] not in STATELESS_OPTIONS}
            losses[dataset] = (objective, kept)
        stateful.append(losses)
    if stateful[0] != stateful[1] or not Path(path).exists():
        return
    tensors = load_file(path)
    own = model.state_dict()
    expected = {name: x.shape for name, x in own.items() if name.split(".")[0] in AUXILIARY_MODULES}
    if expected != {name: x.shape for name, x in tensors.items()}:
        raise ModelError(
            f"{path} holds the state of another objective or of other options. Use those it was saved with, or remove "
            "the file to start the objective anew."
        )
    model.load_state_dict(tensors, strict=False)
    logger.info(f"The objective continues from {path}.")


@contextmanager
def replace_model(directory: StrPath, adapter: bool = False, writes: bool = True) -> Iterator[Path]:
    """Yield a folder to save a model in, which replaces the model in a directory if the block ends without an error.

    So the directory never holds the weights of one model with the settings of another. A whitening or flow and the
    graphs of the earlier model are removed, because they were made from its weights.

    Args:
        directory (`str` or `os.PathLike`): The directory. It is created if necessary.
        adapter (`bool`, *optional*, defaults to `False`): Whether the new model is the adapter of another one.
        writes (`bool`, *optional*, defaults to `True`): Whether this process writes, of several that save together.

    Yields:
        `Path`: The folder.

    Raises:
        OSError: If the disk is full. The earlier model is then untouched.
    """
    directory = Path(directory).expanduser()
    made = [*GRAPH_FILES]
    if (directory / TRANSFORM_FOLDER / TRANSFORM_FILE).exists():
        made.append(TRANSFORM_FOLDER)
    earlier = [path for name in made for path in directory.glob(name)]
    patterns = ["config.json", "model*.safetensors*", OBJECTIVE_FILE, RECORD, *NAMES, *made]
    patterns += [ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTER_SETTINGS]
    last = ADAPTER_CONFIG if adapter else "config.json"
    with replace_files(directory, last, patterns, writes) as folder:
        yield folder
        for path in earlier:
            # This may be the end of a long run. An error would lose it, and a transform or a graph can be made again.
            if writes and not (folder / path.relative_to(directory)).exists():
                logger.warning(
                    f"{path} is removed, because it was made from the weights that are replaced now. Make it again "
                    "with simcse-hf postprocess fit or simcse-hf export."
                )


def save_own_files(model: ContrastiveBase, directory: StrPath, state_dict: StateDict) -> None:
    """Write everything of a checkpoint but the weights of the encoder and its config.

    Args:
        model (`ContrastiveModel`): The model.
        directory (`str` or `os.PathLike`): An existing folder without an earlier checkpoint.
        state_dict (`dict[str, torch.Tensor]`): The weights of the whole model.
    """
    directory = Path(directory)
    settings = model.settings
    auxiliary = {name: x.contiguous() for name, x in state_dict.items() if name.split(".")[0] in AUXILIARY_MODULES}
    if auxiliary:
        save_file(auxiliary, directory / OBJECTIVE_FILE, metadata={"format": "pt"})
    for attribute, folder in POOLER_FOLDERS.items():
        weights = _weights_of(f"{attribute}.", state_dict)
        if weights:
            save_layer(directory / folder, weights)
    head_name = f"{model.base_model_prefix}.pooler" if model.has_own_pooler else "sentence_head"
    weights = _weights_of(f"{head_name}.", state_dict)
    head = {f"linear.{name.rpartition('.')[2]}": x for name, x in weights.items()}
    is_dense = len(weights) == 2 and head.keys() == {"linear.weight", "linear.bias"}
    # With mlp_only_train, modules.json does not name a head that the encoder holds.
    is_named = not (model.has_own_pooler and settings.mlp_only_train)
    if settings.pooler_type == "cls" and is_dense and is_named:
        outputs, inputs = head["linear.weight"].shape
        layer = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": TANH}
        save_layer(directory / HEAD_FOLDER, head, layer)
    for number, layer in enumerate(settings.dense_layers):
        weights = _weights_of(f"dense_layers.{number}.", state_dict)
        save_layer(directory / DENSE_FOLDER / str(number), weights, layer)
    save_sentence_transformers_files(model, directory)


def _weights_of(prefix: str, state_dict: StateDict) -> StateDict:
    """Return the weights whose names begin with a prefix, and cut the prefix off their names."""
    return {name.removeprefix(prefix): x for name, x in state_dict.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class WeightDigests:
    """Digests of the weights of a model.

    Args:
        weights (`str`): That of all weights that an embedding goes through, as in `Identity`.
        encoder (`str`): That of the encoder alone, by which the record of a run knows its model.
    """

    weights: str
    encoder: str

    @classmethod
    def of(
        cls,
        model: ContrastiveBase,
        weights: StateDict,
        transform: VectorTransform | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "WeightDigests":
        """Compute the digests that a model has when it is saved and loaded for inference.

        Args:
            model (`ContrastiveModel`): The model, in training or not.
            weights (`dict[str, torch.Tensor]`): Its weights, with an adapter merged.
            transform (`VectorTransform`, *optional*): The whitening or flow that is saved with it.
            dtype (`torch.dtype`, *optional*, defaults to `torch.float32`): The data type that it is loaded in.

        Returns:
            `WeightDigests`: The digests.
        """
        prefix = f"{model.base_model_prefix}."
        head = f"{prefix}pooler." if model.has_own_pooler else "sentence_head."
        layers = (prefix, "sentence_head.", "dense_layers.", *(f"{name}." for name in POOLER_FOLDERS))
        buffers = dict(model.named_buffers())
        tied = model.all_tied_weights_keys  # which are saved once
        used = []
        for name, x in sorted(weights.items()):
            is_unused_head = name.startswith(head) and model.settings.inference_pooler != "cls"
            if name.startswith(layers) and not is_unused_head and name not in buffers and name not in tied:
                used.append((name, x.to(dtype)))
        if transform is not None:
            used += transform.state_dict().items()
        return cls(digest_weights(used, reads_all=True), digest_encoder(model, weights))

    @classmethod
    def read(cls, folder: Path) -> "WeightDigests | None":
        """Return the digests in a folder; `None` without them, or if a file of weights is not as it was then."""
        path = folder / RECORD
        if not path.exists():
            return None
        saved = read_json(path, "files", "weights", "encoder", advice="Remove the file.")
        if saved.pop("files") != _digests_of_files(folder):
            return None
        return cls(saved["weights"], saved["encoder"])

    def write(self, folder: Path) -> None:
        """Write the digests into a folder in which every file of weights is already written."""
        write_json(folder / RECORD, asdict(self) | {"files": _digests_of_files(folder)})


def digest_encoder(model: ContrastiveBase, weights: StateDict) -> str:
    """Return a digest of the weights of the encoder alone, of which large ones are read in part."""
    prefix = f"{model.base_model_prefix}."
    own = [(name, x) for name, x in weights.items() if name.startswith(prefix) and ".pooler." not in name]
    return digest_weights(sorted(own))


def _digests_of_files(folder: Path) -> dict[str, str]:
    files = {}
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            files[path.relative_to(folder).as_posix()] = digest(path)
    return files


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, model: Any, source: StrPath) -> None:
    """Refuse a tokenizer that has no words, no number as its longest text, or ids that the encoder does not know.

    From a model folder that lacks files of its tokenizer, transformers loads another tokenizer, or an empty one.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        model (`PreTrainedModel`): The model.
        source (`str` or `os.PathLike`): Where the model comes from, for the message.

    Raises:
        ModelError: If the tokenizer has special tokens only, no padding token, or an id that is not below the number
            of embeddings, or if its `model_max_length` is not a number.
    """
    kind = type(tokenizer).__name__
    if not isinstance(longest := tokenizer.model_max_length, (int, float)):
        raise ModelError(
            f"{source}: model_max_length in tokenizer_config.json must be a number of tokens, got {longest!r:.80}"
        )
    if tokenizer.pad_token is None:
        raise ModelError(f"{source}: the tokenizer has no padding token. Set one, such as its eos_token.")
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # an encoder that reads characters has no table of tokens
        return
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ModelError(
            f"{source}: the tokenizer ({kind}) knows {len(tokenizer)} special tokens and no words, because its files "
            f"are missing. {_SAVE_TOKENIZER}."
        )
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if rows is not None and largest >= rows:
        raise ModelError(
            f"{source}: the tokenizer ({kind}) has ids up to {largest}, and the encoder only the ids below {rows}. "
            f"{_SAVE_TOKENIZER}; or, if you added tokens, call model.resize_token_embeddings(len(tokenizer))."
        )


def save_tokenizer(tokenizer: Any, folder: StrPath, model: Any) -> None:
    """Save the tokenizer of a model so that it is read alike by every program.

    Texts are padded on the right, as here: on the left, other programs would count wrong positions. What the caller
    has set as an attribute is saved, too. A tokenizer of the library `tokenizers` keeps the truncation and the padding
    of its last call, and programs that read `tokenizer.json` alone would cut texts there. It gets the length of
    inference. The class of a tokenizer without one of its own has a name that transformers 4 does not know; it gets
    the one that both know.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        folder (`str` or `os.PathLike`): An existing folder.
        model (`PreTrainedModel`): The model.
    """
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        limit = length_limit(model.config, getattr(model, "settings", PoolingSettings()), tokenizer.model_max_length)
        if limit is not None:
            backend.enable_truncation(limit, direction=tokenizer.truncation_side)
    tokenizer.save_pretrained(folder)
    path = Path(folder, "tokenizer_config.json")
    config = read_json(path)
    for name in ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of"):
        config.pop(name, None)
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["padding_side"] = "right"
    for name in ("truncation_side", "split_special_tokens"):
        config[name] = getattr(tokenizer, name)
    write_json(path, config)
