"""The class `SimCSE`: a trained model for encoding, comparing and searching texts."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

from ..models.auto import AutoModelForCL
from ..models.configuration import SECTION, ContrastiveSettings, check_max_length, max_positions
from ..models.poolers import POOLER_TYPES
from ..ops.files import HUB_ARGUMENTS, find_file
from ..postprocessing import VectorTransform
from ..postprocessing.files import Fit, find_transform
from ..search import SentenceIndex
from ..search.sentences import Results
from .batches import encode_token_ids, tokenize_texts
from .quantization import check_precision, check_truncate_dim, quantize

_UNLIMITED = 1 << 30  # a tokenizer without a length limit reports a far larger number

Texts = str | Sequence[str]
Embeddings = torch.Tensor | np.ndarray


class SimCSE:
    """Encode texts with a trained model, compare them with `similarity` and find them with `search`.

    The pooler is read from the checkpoint's config or from its sentence-transformers files, never guessed from its
    name. A model whose head was not trained is refused rather than used with a random head. A whitening or flow that
    was fitted for the model (`simcse-hf postprocess fit`) and is saved beside it is applied to its embeddings.

    Args:
        name_or_path (`str` or `os.PathLike`): Directory or hub name of one of our checkpoints, a published SimCSE
            model, a sentence-transformers model, or any encoder together with `pooler_type`.
        pooler_type (`str`, *optional*): One of `POOLER_TYPES`, in place of the checkpoint's own.
        device (`str` or `torch.device`, *optional*): The default is a GPU if there is one.
        dtype (`torch.dtype`, *optional*): Data type of the weights. The default is float32.
        max_length (`int`, *optional*): Truncate each text to this many tokens. The default is the limit that the
            checkpoint names, at most the number of the encoder's positions.
        postprocess (`bool`, *optional*, defaults to `True`): Apply the whitening or flow saved beside the model.
        **hub_arguments (`Any`): `revision`, `token`, `cache_dir`, `force_download`, `local_files_only`, `subfolder`.

    Raises:
        TypeError: If there is an unknown argument.
        ValueError: If the checkpoint does not say which pooler it needs, its head is not trained, or the transform
            beside it is damaged or was fitted on the embeddings of another pooler.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike,
        *,
        pooler_type: str | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        max_length: int | None = None,
        postprocess: bool = True,
        **hub_arguments: Any,
    ) -> None:
        _check_hub_arguments(hub_arguments)
        config = AutoConfig.from_pretrained(name_or_path, **hub_arguments)
        saved = find_transform(name_or_path, hub_arguments)
        if saved is not None and pooler_type is not None and postprocess and pooler_type != saved[1].pooler:
            raise ValueError(
                f"{name_or_path} has a {saved[0].method} that was fitted on embeddings of pooler_type "
                f"{saved[1].pooler!r}, not {pooler_type!r}. Leave out pooler_type, fit another transform, or load the "
                "model with postprocess=False."
            )
        if saved is not None and pooler_type is None and saved[1].pooler != _section_pooler(config):
            pooler_type = saved[1].pooler  # without the transform too: no other file may name it
        settings, saved_length = _inference_settings(name_or_path, config, pooler_type, hub_arguments)
        self.postprocessing: VectorTransform | None = saved[0] if saved and postprocess else None
        self.postprocessing_fit: Fit | None = saved[1] if saved and postprocess else None
        self.model = AutoModelForCL.from_pretrained(
            name_or_path, dtype=dtype or torch.float32, **settings, **hub_arguments
        )
        self.pooler_type = self.model.settings.inference_pooler
        if self.pooler_type == "cls" and self.model.head_source != "kept":
            raise ValueError(
                f"{name_or_path} has no trained head for pooler_type 'cls': its dense + tanh layer would be random. "
                f"Choose another pooler_type ({', '.join(POOLER_TYPES[1:])}) or train the model first."
            )
        self.tokenizer = AutoTokenizer.from_pretrained(name_or_path, **hub_arguments)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model.to(self.device).eval()
        if max_length is not None:
            check_max_length(max_length, config)
        limits = (
            max_positions(config),
            saved_length,
            saved[1].max_length if saved else None,
            max_length,
            getattr(self.tokenizer, "model_max_length", None),
        )
        self.max_length = min((limit for limit in limits if limit is not None and limit < _UNLIMITED), default=None)
        self.name_or_path = str(name_or_path)
        self.revision = getattr(self.model.config, "_commit_hash", None)
        self.index: SentenceIndex | None = None

    @property
    def dim(self) -> int:
        """Return the embedding size, after the whitening or flow if the model has one."""
        return self.model.config.hidden_size if self.postprocessing is None else self.postprocessing.output_dim

    def encode(
        self,
        sentences: Texts,
        *,
        normalize: bool = True,
        convert_to: str = "tensor",
        token_budget: int | None = None,
        max_length: int | None = None,
        show_progress: bool = False,
        truncate_dim: int | None = None,
        precision: str = "float32",
        ranges: np.ndarray | None = None,
        split_over_processes: bool = True,
    ) -> torch.Tensor | np.ndarray:
        """Compute embeddings.

        Args:
            sentences (`str` or `Sequence[str]`): One text or several.
            normalize (`bool`, *optional*, defaults to `True`): Scale embeddings to unit length, so that a dot product
                is a cosine.
            convert_to (`str`, *optional*, defaults to `"tensor"`): `"tensor"` (on the CPU) or `"numpy"`.
            token_budget (`int`, *optional*): Tokens of a padded batch. The default is `default_token_budget`.
            max_length (`int`, *optional*): Truncate each text to this many tokens. The default is the model's.
            show_progress (`bool`, *optional*, defaults to `False`): Show a progress bar.
            truncate_dim (`int`, *optional*): Keep only the leading dimensions (of a Matryoshka model), after a
                whitening or flow and before `normalize`.
            precision (`str`, *optional*, defaults to `"float32"`): One of `quantization.PRECISIONS`.
            ranges (`np.ndarray`, *optional*): For int8, see `quantization.calibrate_ranges`.
            split_over_processes (`bool`, *optional*, defaults to `True`): Under several processes, encode a part of
                the texts in each. Set to `False` if each process has texts of its own.

        Returns:
            `torch.Tensor` or `np.ndarray`: Float32 embeddings or codes, of shape `(dim,)` for one text and
            `(texts, dim)` for a sequence.

        Raises:
            ValueError: If an item is not a text, or `convert_to`, `precision`, `truncate_dim` or `ranges` is invalid.
        """
        check_precision(precision)
        check_truncate_dim(truncate_dim, self.dim)
        if convert_to not in ("tensor", "numpy"):
            raise ValueError(f"convert_to must be 'tensor' or 'numpy', got {convert_to!r}")
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"sentence {position} is not a text but {type(text).__name__}: {text!r}")
        if max_length is not None:
            check_max_length(max_length, self.model.config)
        token_ids = tokenize_texts(self.tokenizer, texts, max_length or self.max_length, self.model.settings.templates)
        embeddings = encode_token_ids(
            self.model,
            token_ids,
            self.tokenizer.pad_token_id,
            token_budget=token_budget,
            show_progress=show_progress,
            split_over_processes=split_over_processes,
        )
        if not texts:
            embeddings = torch.zeros(0, self.dim)
        elif self.postprocessing is not None:
            embeddings = self.postprocessing.transform(embeddings)
        embeddings = embeddings[:, :truncate_dim]
        if normalize:
            embeddings = F.normalize(embeddings, dim=-1)
        if precision != "float32":
            embeddings = torch.from_numpy(quantize(embeddings.numpy(), precision, ranges))
        embeddings = embeddings[0] if single else embeddings
        return embeddings.numpy() if convert_to == "numpy" else embeddings

    def similarity(self, a: Texts | Embeddings, b: Texts | Embeddings) -> float | torch.Tensor:
        """Compute the cosine of each pair of an item of `a` and an item of `b`.

        Args:
            a (`str`, `Sequence[str]`, `torch.Tensor` or `np.ndarray`): Texts, or embeddings of any length.
            b (`str`, `Sequence[str]`, `torch.Tensor` or `np.ndarray`): Texts, or embeddings of any length.

        Returns:
            `float` or `torch.Tensor`: A number for two single items, a vector of shape `(m,)` for one against `m`
            items, else a matrix of shape `(n, m)`.
        """
        x, y = self._unit_embeddings(a), self._unit_embeddings(b)
        cosines = torch.atleast_2d(x) @ torch.atleast_2d(y).T
        if x.dim() == 1 and y.dim() == 1:
            return cosines.item()
        return cosines[0] if x.dim() == 1 else cosines

    def build_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options: Any) -> None:
        """Index sentences, or those of a file, as `self.index`; arguments as in `SentenceIndex.build`."""
        self.index = SentenceIndex.build(self, sentences_or_file_path, **options)

    def add_to_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options: Any) -> None:
        """Add sentences to the index; arguments as in `SentenceIndex.add`."""
        self._existing_index().add(sentences_or_file_path, **options)

    def save_index(self, folder: str | os.PathLike) -> None:
        """Save the index in a folder, as `SentenceIndex.save` does."""
        self._existing_index().save(folder)

    def load_index(self, folder: str | os.PathLike, **options: Any) -> None:
        """Open a saved index as `self.index`; arguments as in `SentenceIndex.load`."""
        self.index = SentenceIndex.load(folder, self, **options)

    def search(self, queries: Texts, *, top_k: int = 5, threshold: float | None = 0.6) -> Results | list[Results]:
        """Find the sentences of the index that are most similar to each query, as `SentenceIndex.search` does."""
        return self._existing_index().search(queries, top_k=top_k, threshold=threshold)

    def _existing_index(self) -> SentenceIndex:
        if self.index is None:
            raise ValueError("the model has no index yet: call build_index or load_index first")
        return self.index

    def _unit_embeddings(self, items: Texts | Embeddings) -> torch.Tensor:
        if isinstance(items, (torch.Tensor, np.ndarray)):
            return F.normalize(torch.as_tensor(items, dtype=torch.float32), dim=-1)
        return torch.as_tensor(self.encode(items))


def _check_hub_arguments(arguments: dict[str, Any]) -> None:
    unknown = sorted(arguments.keys() - set(HUB_ARGUMENTS))
    if not unknown:
        return
    advice = "the pooler is chosen by pooler_type" if "pooler" in unknown else f"known are {', '.join(HUB_ARGUMENTS)}"
    raise TypeError(f"SimCSE got the unknown argument(s) {', '.join(unknown)}: {advice}")


def _section_pooler(config: PreTrainedConfig) -> str | None:
    section = getattr(config, SECTION, None)
    return None if section is None else ContrastiveSettings.from_config(config).inference_pooler


def _inference_settings(
    name_or_path: str | os.PathLike, config: PreTrainedConfig, pooler_type: str | None, hub: dict[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """Return the settings that load a checkpoint for inference, and the maximum length that its files name."""
    section = getattr(config, SECTION, None)
    settings: dict[str, Any] = {"do_mlm": False}  # the masked-LM head serves training only
    length = None
    if pooler_type is None and section is None:
        pooler_type, length = _sentence_transformers_pooler(name_or_path, hub)
    if pooler_type is not None:
        if pooler_type not in POOLER_TYPES:
            raise ValueError(f"pooler_type must be one of {', '.join(POOLER_TYPES)}, got {pooler_type!r}")
        settings |= {"pooler_type": pooler_type, "mlp_only_train": False, "templates": []}
    elif section is not None:
        settings["mlp_only_train"] = ContrastiveSettings.from_config(config).mlp_only_train
    return settings, length


_POOLING_MODES = {"pooling_mode_cls_token": "cls_before_pooler", "pooling_mode_mean_tokens": "avg"}
_POOLING_NAMES = {"cls": "cls_before_pooler", "mean": "avg"}


def _sentence_transformers_pooler(
    name_or_path: str | os.PathLike, hub: dict[str, Any]
) -> tuple[str | None, int | None]:
    """Read pooler and maximum length from sentence-transformers' files; `(None, None)` if there are none."""
    modules = _read_json(name_or_path, "modules.json", hub)
    if modules is None:
        return None, None
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if not set(kinds) <= {"Transformer", "Pooling", "Normalize"} or "Pooling" not in kinds:
        raise ValueError(
            f"{name_or_path} is a sentence-transformers model of {' + '.join(kinds)}, and only transformer + pooling "
            "can be loaded here. Load it with sentence_transformers, or give pooler_type to use its encoder alone."
        )
    pooling = _read_json(name_or_path, f"{modules[kinds.index('Pooling')]['path']}/config.json", hub) or {}
    named = pooling.get("pooling_mode")
    active = [named] if named else [mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on]
    poolers = [(_POOLING_NAMES if named else _POOLING_MODES).get(mode) for mode in active]
    if len(poolers) != 1 or poolers[0] is None:
        raise ValueError(
            f"{name_or_path} pools by {', '.join(active) or 'nothing'}, which no pooler here does; give pooler_type."
        )
    limits = _read_json(name_or_path, "sentence_bert_config.json", hub) or {}
    return poolers[0], limits.get("max_seq_length")


def _read_json(name_or_path: str | os.PathLike, filename: str, hub: dict[str, Any]) -> Any:
    path = find_file(name_or_path, filename, **hub)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
