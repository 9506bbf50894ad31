"""Text to vectors: length-sorted, token-budget batches through a contrastive model; and the `SimCSE` class."""

import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.templates import read_template
from ..models.auto import AutoModelForCL
from ..models.configuration import SECTION, ContrastiveSettings, check_max_length, max_positions
from ..models.poolers import POOLER_TYPES
from ..ops.distributed import world
from ..ops.files import find_file
from ..ops.memory import keep_freed_memory
from ..postprocessing import VectorTransform
from ..postprocessing.files import Fit, find_transform
from ..search import SentenceIndex
from .quantization import check_precision, check_truncate_dim, quantize

logger = logging.get_logger(__name__)

UNLIMITED = 1 << 30  # tokenizers without a limit of their own name a far larger number


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int | None = None,
    templates: Sequence[str] = (),
) -> list[list[int]]:
    """Token ids of each text, special tokens included, cut to `max_length` (None: as long as they are).

    `templates` are a model's setting; its first, where there is one, is put around each text and never cut.
    """
    if templates:
        return read_template(templates[0], tokenizer).tokenize(tokenizer, texts, max_length)
    if not texts:
        return []
    return tokenizer(
        list(texts), truncation=max_length is not None, max_length=max_length, return_attention_mask=False
    )["input_ids"]


def length_sorted_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Batches of indices, longest first, each of at most `token_budget` tokens when padded (or of a single text)."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for index in order:
        longest = lengths[batches[-1][0]] if batches else 0
        if batches and (len(batches[-1]) + 1) * longest <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def default_token_budget(model: nn.Module, device: torch.device) -> int:
    """Tokens of a batch where none are asked for: on a CPU larger ones leave the caches, others want long kernels."""
    if device.type != "cpu":
        return 32_768
    return 4096 if getattr(getattr(model, "module", model), "runs_unpadded", False) else 1024


@torch.no_grad()
def encode_token_ids(
    model: nn.Module,
    token_ids: Sequence[Sequence[int]],
    pad_token_id: int,
    *,
    token_budget: int | None = None,
    show_progress: bool = False,
    share: bool = True,
) -> torch.Tensor:
    """Sentence vectors of tokenised texts, in their order, in evaluation mode.

    Under several processes each takes every W-th batch and all end with all vectors, unless `share` is off.

    Args:
        model: called with (n, length) `input_ids` and `attention_mask`, returns an output with `sentence_embeddings`.
        token_ids: one list of ids a text.
        pad_token_id: fills the batches up.
        token_budget: tokens of a padded batch; None: that of [`default_token_budget`].
        show_progress: a progress bar on the first process.
        share: False: the texts are this process's own, and it encodes them all.

    Returns:
        (n, dim) float32 on the CPU.
    """
    was_training = model.training
    model.eval()
    rank, processes = world() if share else (0, 1)
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    if token_budget is None:
        token_budget = default_token_budget(model, device)
    batches = length_sorted_batches([len(ids) for ids in token_ids], token_budget)
    vectors: torch.Tensor | None = None
    # Every process calls the model equally often, if need be for nothing: a sharded model's forward is collective.
    rounds = range(-(-len(batches) // processes))
    for turn in tqdm(rounds, desc="Encoding", unit="batch", disable=not show_progress or rank != 0):
        mine = turn * processes + rank
        rows = batches[mine % len(batches)]
        ids, mask = _pad([token_ids[i] for i in rows], pad_token_id)
        output = model(input_ids=ids.to(device), attention_mask=mask.to(device)).sentence_embeddings.float()
        if vectors is None:
            vectors = torch.zeros(len(token_ids), output.shape[-1], device=output.device if processes > 1 else "cpu")
        if mine < len(batches):
            vectors[torch.tensor(rows, device=vectors.device)] = output.to(vectors.device)
    model.train(was_training)
    if vectors is None:
        return torch.zeros(0, 0)
    if processes > 1:
        dist.all_reduce(vectors)  # each row was filled by one process and is zero elsewhere
    return vectors.cpu()


def _pad(rows: list[Sequence[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, pad_token_id, dtype=torch.long)
    ids[mask] = torch.tensor(list(chain.from_iterable(rows)))
    return ids, mask.long()


class SimCSE:
    """A trained model for use: `encode` texts, compare them with `similarity`, `search` among many.

    The pooler stands in the checkpoint's config (or in its sentence-transformers files); it is never guessed from a
    name. A model whose head was not trained is refused rather than used with a random head. A whitening or flow that
    was fitted for the model and lies beside it (`simcse-hf postprocess fit`) is applied to its vectors.

    Args:
        name_or_path: directory or hub name of one of our checkpoints, a published SimCSE model, a
            sentence-transformers model (transformer + pooling), or any encoder together with `pooler`.
        pooler: overrides what the checkpoint says; one of [`POOLER_TYPES`].
        device: default: a GPU where there is one.
        dtype: default: float32.
        max_length: tokens a text is cut to; default: what the checkpoint names, at most the encoder's positions.
        postprocess: False: leave the transform beside the model aside.
        hub_arguments: `revision`, `token`, `cache_dir`, `local_files_only`.

    Raises:
        ValueError: no pooler is known for the checkpoint, its head is not trained, or the transform beside it is
            damaged or was fitted on vectors of another pooler.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike,
        *,
        pooler: str | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        max_length: int | None = None,
        postprocess: bool = True,
        **hub_arguments,
    ):
        config = AutoConfig.from_pretrained(name_or_path, **hub_arguments)
        found = find_transform(name_or_path, hub_arguments)
        if found is not None and pooler is not None and postprocess and pooler != found[1].pooler:
            raise ValueError(
                f"{name_or_path} has a {found[0].method} that was fitted on vectors of pooler {found[1].pooler!r}, "
                f"not {pooler!r}: leave out the pooler, fit another, or load the model with postprocess=False."
            )
        if found is not None and pooler is None and found[1].pooler != _section_pooler(config):
            pooler = found[1].pooler  # also without the transform: it may be named nowhere else
        settings, named_length = _inference_settings(name_or_path, config, pooler, hub_arguments)
        applied = found if postprocess else None
        self.postprocessing: VectorTransform | None = applied and applied[0]
        self.postprocessing_fit: Fit | None = applied and applied[1]
        self.model = AutoModelForCL.from_pretrained(
            name_or_path, dtype=dtype or torch.float32, **settings, **hub_arguments
        )
        self.pooler = self.model.settings.inference_pooler
        if self.pooler == "cls" and self.model.head_source != "kept":
            raise ValueError(
                f"{name_or_path} has no trained head for pooler 'cls': its dense + tanh layer would be random. "
                f"Name another pooler ({', '.join(POOLER_TYPES[1:])}) or train the model first."
            )
        self.tokenizer = AutoTokenizer.from_pretrained(name_or_path, **hub_arguments)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model.to(self.device).eval()
        if max_length is not None:
            check_max_length(max_length, config)
        fitted_length = found[1].max_length if found else None
        limits = (
            max_positions(config),
            named_length,
            fitted_length,
            max_length,
            getattr(self.tokenizer, "model_max_length", None),
        )
        self.max_length = min((limit for limit in limits if limit is not None and limit < UNLIMITED), default=None)
        self.name_or_path = str(name_or_path)
        self.revision = getattr(self.model.config, "_commit_hash", None)
        self.index: SentenceIndex | None = None

    @property
    def dim(self) -> int:
        """Dimensions of a vector, after the transform that the model may have."""
        return self.model.config.hidden_size if self.postprocessing is None else self.postprocessing.output_dim

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        normalize: bool = True,
        convert_to: str = "tensor",
        token_budget: int | None = None,
        max_length: int | None = None,
        show_progress: bool = False,
        truncate_dim: int | None = None,
        precision: str = "float32",
        ranges: np.ndarray | None = None,
        share: bool = True,
    ) -> torch.Tensor | np.ndarray:
        """Sentence vectors.

        Args:
            sentences: a text or several.
            normalize: to unit length, so that a dot product is a cosine.
            convert_to: `"tensor"` (on the CPU) or `"numpy"`.
            token_budget: tokens of a padded batch; None: that of [`default_token_budget`].
            max_length: tokens a text is cut to; default: the model's.
            show_progress: a progress bar.
            truncate_dim: keep so many leading dimensions (of a Matryoshka model), after the transform that the model
                may have and before `normalize`.
            precision: `"float32"`, or codes in fewer bytes: `"int8"`, `"binary"`, `"ubinary"`; see
                [`~encoding.quantization.quantize`].
            ranges: (2, dim), for int8; see [`~encoding.quantization.calibrate_ranges`].
            share: False: under several processes, each encodes texts of its own.

        Returns:
            float32, or the codes' type; (dim,) for a text, (n, dim) for a sequence.

        Raises:
            ValueError: something that is not a text, with its position; an unknown `convert_to` or `precision`; a
                `truncate_dim` beyond the model's; int8 without `ranges`.
        """
        check_precision(precision)
        check_truncate_dim(truncate_dim, self.dim)
        if convert_to not in ("tensor", "numpy"):
            raise ValueError(f"convert_to must be 'tensor' or 'numpy', got {convert_to!r}")
        single = isinstance(sentences, str)
        texts = [sentences] if single else list(sentences)
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"sentence {position} is no text but {type(text).__name__}: {text!r}")
        if max_length is not None:
            check_max_length(max_length, self.model.config)
        ids = tokenize_texts(self.tokenizer, texts, max_length or self.max_length, self.model.settings.templates)
        vectors = encode_token_ids(
            self.model,
            ids,
            self.tokenizer.pad_token_id,
            token_budget=token_budget,
            show_progress=show_progress,
            share=share,
        )
        if not texts:
            vectors = torch.zeros(0, self.dim)
        elif self.postprocessing is not None:
            vectors = self.postprocessing.transform(vectors)
        vectors = vectors[:, :truncate_dim]
        if normalize:
            vectors = F.normalize(vectors, dim=-1)
        if precision != "float32":
            vectors = torch.from_numpy(quantize(vectors.numpy(), precision, ranges))
        vectors = vectors[0] if single else vectors
        return vectors.numpy() if convert_to == "numpy" else vectors

    def similarity(
        self, a: str | Sequence[str] | torch.Tensor | np.ndarray, b: str | Sequence[str] | torch.Tensor | np.ndarray
    ) -> float | torch.Tensor:
        """Cosine similarities of texts (or vectors): a number for two texts, (m,) for one against m, else (n, m)."""
        x, y = self._vectors(a), self._vectors(b)
        cosines = torch.atleast_2d(x) @ torch.atleast_2d(y).T
        if x.dim() == 1 and y.dim() == 1:
            return cosines.item()
        return cosines[0] if x.dim() == 1 else cosines

    def build_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options) -> None:
        """Makes `self.index` of sentences, or of a file of them; arguments as [`SentenceIndex.build`]."""
        self.index = SentenceIndex.build(self, sentences_or_file_path, **options)

    def add_to_index(self, sentences_or_file_path: str | os.PathLike | Sequence[str], **options) -> None:
        """Adds to the index; arguments as [`SentenceIndex.add`]."""
        self._built_index().add(sentences_or_file_path, **options)

    def save_index(self, folder: str | os.PathLike) -> None:
        """Writes the index to a folder, as [`SentenceIndex.save`]."""
        self._built_index().save(folder)

    def load_index(self, folder: str | os.PathLike, **options) -> None:
        """Opens a saved index as `self.index`; arguments as [`SentenceIndex.load`]."""
        self.index = SentenceIndex.load(folder, self, **options)

    def search(
        self, queries: str | Sequence[str], *, top_k: int = 5, threshold: float | None = 0.6
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """The sentences of the index most similar to each query, as [`SentenceIndex.search`]."""
        return self._built_index().search(queries, top_k=top_k, threshold=threshold)

    def _built_index(self) -> SentenceIndex:
        if self.index is None:
            raise ValueError("there is no index yet: call build_index or load_index first")
        return self.index

    def _vectors(self, given) -> torch.Tensor:
        if isinstance(given, (torch.Tensor, np.ndarray)):
            return F.normalize(torch.as_tensor(given, dtype=torch.float32), dim=-1)
        return self.encode(given)


def _section_pooler(config) -> str | None:
    section = getattr(config, SECTION, None)
    return None if section is None else ContrastiveSettings.from_config(config).inference_pooler


def _inference_settings(name_or_path, config, pooler: str | None, hub: dict) -> tuple[dict, int | None]:
    """The settings to load a checkpoint with for use, and the sequence length its files name."""
    section = getattr(config, SECTION, None)
    # The masked-LM head is a training aid.
    settings: dict = {"do_mlm": False}
    length = None
    if pooler is None and section is None:
        pooler, length = _sentence_transformers_pooler(name_or_path, hub)
    if pooler is not None:
        if pooler not in POOLER_TYPES:
            raise ValueError(f"pooler must be one of {', '.join(POOLER_TYPES)}, got {pooler!r}")
        settings |= {"pooler_type": pooler, "mlp_only_train": False, "templates": []}
    elif section is not None:
        settings["mlp_only_train"] = ContrastiveSettings.from_config(config).mlp_only_train
    return settings, length


_POOLING_MODES = {"pooling_mode_cls_token": "cls_before_pooler", "pooling_mode_mean_tokens": "avg"}
_POOLING_NAMES = {"cls": "cls_before_pooler", "mean": "avg"}


def _sentence_transformers_pooler(name_or_path, hub: dict) -> tuple[str | None, int | None]:
    """Pooler and sequence length from sentence-transformers' files; (None, None) where there are none.

    Raises:
        ValueError: modules or a pooling mode that our poolers do not cover.
    """
    modules = _read_json(name_or_path, "modules.json", hub)
    if modules is None:
        return None, None
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    if not set(kinds) <= {"Transformer", "Pooling", "Normalize"} or "Pooling" not in kinds:
        raise ValueError(
            f"{name_or_path} is a sentence-transformers model of {' + '.join(kinds)}; transformer + pooling can be "
            "loaded here. Load it with sentence_transformers, or name a pooler for its encoder alone."
        )
    pooling = _read_json(name_or_path, f"{modules[kinds.index('Pooling')]['path']}/config.json", hub) or {}
    named = pooling.get("pooling_mode")
    active = [named] if named else [mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on]
    poolers = [(_POOLING_NAMES if named else _POOLING_MODES).get(mode) for mode in active]
    if len(poolers) != 1 or poolers[0] is None:
        raise ValueError(f"{name_or_path} pools by {', '.join(active) or 'nothing'}; name one of our poolers instead")
    limits = _read_json(name_or_path, "sentence_bert_config.json", hub) or {}
    return poolers[0], limits.get("max_seq_length")


def _read_json(name_or_path, filename: str, hub: dict):
    path = find_file(name_or_path, filename, **hub)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
