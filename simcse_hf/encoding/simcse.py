"""The class `SimCSE`: a trained model for encoding, comparing and searching texts."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from huggingface_hub import HfApi
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import CONFIG_NAME, logging
from transformers.utils.hub import extract_commit_hash

from ..data.columns import holds_texts, list_texts
from ..data.token_ids import check_known
from ..models.checkpoint import WeightDigests, check_tokenizer, replace_model, save_tokenizer
from ..models.modeling import AutoModelForCL, ContrastiveModel
from ..models.pooling import NGRAM_POOLER, POOLERS, TEMPLATE_POOLER
from ..models.settings import SECTION, SPACE, THRESHOLD, Values, length_limit, settings_of_config
from ..names import KEYWORDS, POOLER_TYPES, PRECISIONS, ModelOptions
from ..postprocessing.transform import FOLDER, Fit, VectorTransform, find_transform, save_transform
from ..retrieval.description import PROBE
from ..retrieval.sentences import Matches, SentenceIndex
from ..runtime.errors import DataError, ModelError, SettingError, check_finite, check_values
from ..runtime.files import StrPath
from ..runtime.identity import Identity, digest_model, digest_value, weights_state
from ..runtime.loading import ADAPTER_CONFIG, HubArguments, find_file, load_pretrained
from ..runtime.messages import join_processes
from ..runtime.similarity import similarity_matrix, similarity_pairs
from ..runtime.upload import commit_folder
from .batching import BatchEncoder, Batching, one_ahead
from .graphs import ExportedModel, refuse_settings
from .probes import PROBES, SERVED, has_weights_of, probe_embedding, threshold_problem
from .quantization import quantize
from .saved import make_identity, settings_of_pooler

logger = logging.get_logger(__name__)

#: Texts that are sorted by length together. More of them sort into fuller batches; fewer take less memory.
_SORTED_TOGETHER = 65_536
_CHOOSE_THRESHOLD = (
    "Choose one on labelled pairs of your own: simcse-hf evaluate --model FOLDER --task pairs=FILE --threshold f1 "
    "--save_threshold"
)
#: The types of weights by their names on the command line.
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
T = TypeVar("T")
Texts = str | Iterable[str]
Embeddings = torch.Tensor | np.ndarray


class SimCSE(BatchEncoder):
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
        head (`str`, *optional*): `"pooler"` or `"dense"`, for a checkpoint that holds its head twice, and the two
            differ: use the encoder's own pooler, or the folder `2_Dense`.
        postprocess (`bool`, *optional*, defaults to `True`): Apply the whitening or flow saved beside the model.
        long_texts (`str`, *optional*, defaults to `"cut"`): What happens to a text of more than `max_length` tokens:
            `"cut"` drops its end; `"mean"` splits it into windows, at ends of sentences where there are any, and
            averages their embeddings, weighted by their tokens.
        backend (`str`, *optional*, defaults to `"torch"`): What computes the embeddings. `"onnx"` and `"openvino"`
            load a folder that `simcse-hf export` wrote for them, and run on the CPU; OpenVINO also with the `dtype`
            `torch.bfloat16`. Commands, and functions such as `evaluate`, call it `model_backend`.
        **hub_arguments (`HubArguments`): `revision`, `token`, `cache_dir`, `force_download`, `local_files_only`,
            `subfolder`.

    Raises:
        TypeError: If there is an unknown argument.
        ValueError: If the checkpoint does not say which pooler it needs, its head is not trained, its tokenizer does
            not fit, or the transform beside it is damaged or was fitted on the embeddings of another pooler.

    Examples:
        >>> from simcse_hf import SimCSE
        >>> model = SimCSE("outputs/my-model", device="cpu")
        >>> model.build_index(["The chef cooked the soup.", "The old mariner found the horse."])
        >>> best = model.search("The elderly sailor discovered the horse.", top_k=1)
        >>> best[0].sentence
        'The old mariner found the horse.'
    """

    index: SentenceIndex | None = None
    postprocessing: VectorTransform | None = None
    postprocessing_fit: Fit | None = None
    _fitted_state: list[object] | None = None
    _threshold_of: tuple[dict, Identity] | None = None
    _warned_of_length: int | None = None
    _warned_of_unknown = False

    def __init__(
        self,
        name_or_path: StrPath,
        *,
        pooler_type: str | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        max_length: int | None = None,
        head: str | None = None,
        postprocess: bool = True,
        long_texts: str = "cut",
        backend: str = "torch",
        **hub_arguments: Unpack[HubArguments],
    ) -> None:
        unknown = sorted(hub_arguments.keys() - HubArguments.__annotations__.keys())
        if unknown:
            raise TypeError(f"SimCSE got the unknown argument(s) {', '.join(unknown)}; see help(SimCSE).")
        refuse_settings(device=backend != "torch" and str(device or "cpu") != "cpu")
        if hub_arguments.get("subfolder") and os.path.isdir(name_or_path):
            name_or_path = os.path.join(name_or_path, hub_arguments.pop("subfolder"))
        found = find_file(name_or_path, CONFIG_NAME, **hub_arguments)
        found = found or find_file(name_or_path, ADAPTER_CONFIG, **hub_arguments)
        self.revision = extract_commit_hash(found, None)
        if self.revision is not None:  # all files are of this commit, even if the branch moves meanwhile
            hub_arguments["revision"] = self.revision

        # 1. What the files say, and which pooler is meant: a transform is of one.
        if pooler_type is not None and backend == "torch":
            plain = [name for name in POOLERS if name not in (TEMPLATE_POOLER, NGRAM_POOLER)]
            check_values(plain, pooler_type=pooler_type)
        config = load_pretrained(AutoConfig.from_pretrained, name_or_path, **hub_arguments)
        tokenizer = load_pretrained(AutoTokenizer.from_pretrained, name_or_path, **hub_arguments)
        own = settings_of_config(config).inference_pooler if hasattr(config, SECTION) else None
        transform, fit = find_transform(name_or_path, hub_arguments)
        if transform and fit:
            if postprocess and pooler_type not in (None, fit.pooler):
                raise SettingError(
                    f"{name_or_path} has a {transform.method} for embeddings of pooler_type {fit.pooler!r}, not "
                    f"{pooler_type!r}. Leave out pooler_type, or load the model with postprocess=False."
                )
            if pooler_type is None and fit.pooler != own:
                pooler_type = fit.pooler  # without the transform too: no other file may name it

        # 2. The model, of which nothing may be random.
        model: ContrastiveModel | ExportedModel
        if backend == "torch":
            # The head of masked language modelling is for training only.
            loading: Values = {"do_mlm": False, "dtype": dtype or torch.float32}
            if head is not None:
                loading["head"] = head
            loading |= settings_of_pooler(pooler_type, own)
            model = AutoModelForCL.from_pretrained(name_or_path, **loading, **hub_arguments)
        else:
            can_round = backend == "openvino" and dtype == torch.bfloat16
            refuse_settings(
                pooler_type=pooler_type not in (None, own),
                dtype=dtype not in (None, torch.float32) and not can_round,
                head=head,
            )
            model = ExportedModel(name_or_path, backend, config, dtype or torch.float32, **hub_arguments)
        check_tokenizer(tokenizer, model, name_or_path)
        if model.settings.inference_pooler == "cls" and model.head_source != "kept":
            raise SettingError(
                f"{name_or_path} has no trained head for pooler_type 'cls': its dense + tanh layer would be random. "
                f"Train the model first, or choose another pooler_type, mostly avg: {', '.join(POOLER_TYPES[1:])}."
            )
        if max_length is None:
            max_length = length_limit(
                config, model.settings, tokenizer.model_max_length, fit.max_length if fit else None
            )
        super().__init__(model.eval(), tokenizer, max_length, long_texts)
        self.name_or_path = "/".join(filter(None, [str(name_or_path), hub_arguments.get("subfolder")]))
        self.backend = backend
        self.saved_as = str(config.dtype).removeprefix("torch.")
        if device is None:
            device = "cuda" if torch.cuda.is_available() and backend == "torch" else "cpu"
        self.to(device)
        if backend != "torch" and any(Path(name_or_path).glob("model*.safetensors")):
            weights = SimCSE(name_or_path, device="cpu", postprocess=False)
            if not has_weights_of(self, probe_embedding(weights, self.max_length), self.max_length):
                raise ModelError(
                    f"{self.model.files[0]} is the graph of other weights than those beside it: export the model "
                    "again, or move the graph into a folder of its own."
                )
        if fit and postprocess:
            self.postprocessing = transform
            self.postprocessing_fit = fit
            self._check_fit()

    def __repr__(self) -> str:
        return (
            f"SimCSE({self.name_or_path!r}, pooler_type={self.pooler_type!r}, dim={self.dim}, "
            f"max_length={self.max_length}, dtype={self.model.dtype}, device={str(self.device)!r})"
        )

    @property
    def dim(self) -> int:
        """Return the embedding size, after the whitening or flow if the model has one, and as the model cuts it."""
        size = self.postprocessing.output_dim if self.postprocessing else self.model.embedding_dim
        return min(size, self.settings.truncate_dim or size)

    @property
    def pooler_type(self) -> str:
        """Return how token states become one embedding."""
        return self.settings.inference_pooler

    @property
    def max_seq_length(self) -> int | None:
        """Return `max_length`, which sentence-transformers calls so."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self.max_length = length

    @property
    def similarity_fn_name(self) -> str:
        """Return how the model compares embeddings: `"cosine"`, `"dot"`, `"euclidean"` or `"manhattan"`."""
        return self.settings.similarity_fn_name

    def identity(self) -> Identity:
        """Return what decides the embeddings, as it is in memory now.

        The digest of the weights is computed again when a weight or the transform has changed.

        Returns:
            `Identity`: With the name of the model and its commit. A model that [`save_pretrained`] saved is the same
            one when it is loaded again.
        """
        transform = self.postprocessing.state_dict() if self.postprocessing else {}
        if self.backend == "torch":
            # A checkpoint without a head loads with a random one; a pooler that does not use it must not depend on it.
            unused = self.model.contrastive_head.parameters() if self.pooler_type != "cls" else ()
            weights = digest_model(self.model, [*unused], transform)
        else:
            weights = digest_value([digest_model(self.model, beside=transform), *self.model.digests])
        return make_identity(
            self.settings,
            self.model.config,
            self.tokenizer,
            self.prompts,
            name_or_path=self.name_or_path,
            revision=self.revision,
            max_length=self.max_length,
            long_texts=self.long_texts,
            backend=self.backend,
            dtype=str(self.model.dtype).removeprefix("torch."),
            saved_as=self.saved_as,
            weights=weights,
            postprocessing=self.postprocessing.method if self.postprocessing else None,
            default_prompt_name=self.default_prompt_name,
        )

    def taught_by(self) -> Identity | None:
        """Return the teacher whose vectors the model has learned, if it still gives the vectors that it gave then."""
        saved = getattr(self.model.config, SPACE, None)
        if saved is None or self.postprocessing is not None or not has_weights_of(self, saved["probe"], None):
            return None
        return Identity.from_dict(saved["teacher"])

    def _check_fit(self) -> None:
        """Refuse to go on with a whitening or flow after the weights that it was fitted for have changed."""
        state = weights_state(self.model.parameters())
        fit = self.postprocessing_fit
        if fit is None or state == self._fitted_state:
            return
        if fit.probe is not None and not has_weights_of(self, fit.probe, fit.max_length):
            raise ModelError(
                f"the files in {self.name_or_path}/{FOLDER} were fitted on the embeddings of other weights: fit them "
                "again, or load the model with postprocess=False."
            )
        self._fitted_state = state

    def encode(
        self,
        sentences: Texts,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_length: int | None = None,
        long_texts: str | None = None,
        show_progress_bar: bool = False,
        normalize_embeddings: bool | str | None = "auto",
        truncate_dim: int | None = None,
        precision: str = "float32",
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = False,
        device: str | torch.device | None = None,
        **batching: Unpack[Batching],
    ) -> Any:
        """Compute embeddings. The arguments that `SentenceTransformer.encode` has too mean the same there.

        Threads may call this at the same time.

        Args:
            sentences (`str` or `Sequence[str]`): One text or several.
            prompt (`str`, *optional*): Put this before each text.
            prompt_name (`str`, *optional*): Put this prompt of `self.prompts` before each text. The default is the
                prompt named by the model's `default_prompt_name`, if it names one.
            max_length (`int`, *optional*): Truncate each text to this many tokens. The default is the model's.
            long_texts (`str`, *optional*): `"cut"` or `"mean"`, as in [`SimCSE`]. The default is the model's.
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.
            normalize_embeddings (`bool`, *optional*): Scale embeddings to unit length, so that a dot product is a
                cosine. By default (`"auto"`) this is done if the model compares by the cosine. With `False`, a
                sentence-transformers model that ends in `Normalize` gives unit vectors all the same; with `None`, none
                does.
            truncate_dim (`int`, *optional*): Keep only the leading dimensions (of a Matryoshka model), after a
                whitening or flow and before the scaling to unit length.
            precision (`str`, *optional*, defaults to `"float32"`): `"float32"`, `"binary"` or `"ubinary"`. The codes
                of int8 need ranges that all texts share: `quantization.quantize` makes them.
            convert_to_tensor (`bool`, *optional*, defaults to `False`): Return a tensor on the model's device. By
                default the tensor is on the CPU.
            convert_to_numpy (`bool`, *optional*, defaults to `False`): Return an array.
            device (`str` or `torch.device`, *optional*): Move the model there first.
            **batching (`Batching`): `batch_size`, the most texts of a batch, and `token_budget`, the tokens of a
                padded one, whose default depends on the device. `split_over_processes=False` if under several
                processes each has texts of its own; otherwise each encodes a part of them.

        Returns:
            `torch.Tensor` or `np.ndarray`: Float32 embeddings or codes, of shape `(dim,)` for one text and
            `(texts, dim)` for a sequence.

        Raises:
            ValueError: If an item is not a text, an embedding is not finite, the model has no prompt of that name, or
                `precision`, `truncate_dim` or `batch_size` is invalid.

        Examples:
            >>> from simcse_hf import SimCSE
            >>> model = SimCSE("outputs/my-model", device="cpu")
            >>> texts = ["The chef cooked the soup.", "The old mariner found the horse."]
            >>> model.encode(texts).shape
            torch.Size([2, 64])
            >>> model.encode(texts[0], truncate_dim=16).shape
            torch.Size([16])
            >>> model.encode(texts, precision="ubinary").shape  # 64 signs in 8 bytes
            torch.Size([2, 8])
        """
        texts = list_texts(sentences)
        if device is not None:
            self.to(device)
        check_values(PRECISIONS, precision=precision)
        prefix = self.resolve_prompt(prompt, prompt_name)
        windows = (
            (start, self.tokenize(texts[start : start + _SORTED_TOGETHER], prefix, max_length, long_texts))
            for start in range(0, len(texts), _SORTED_TOGETHER)
        )
        stream = self.encode_stream(
            windows,
            long_texts=long_texts,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            show_progress_bar=show_progress_bar,
            **batching,
        )
        empty = torch.zeros(0, truncate_dim or self.dim)
        embeddings = torch.cat([empty, *(vectors.cpu() for _, vectors in stream)])
        check_finite(embeddings, lambda number: f"text {number} ({texts[number][:80]!r})")
        if precision != "float32":
            embeddings = torch.from_numpy(quantize(embeddings, precision))
        if isinstance(sentences, str):
            embeddings = embeddings[0]
        if convert_to_tensor:
            return embeddings.to(self.device)
        if convert_to_numpy:
            return embeddings.numpy()
        return embeddings

    def encode_stream(
        self,
        windows: Iterable[tuple[T, list[Any]]],
        *,
        long_texts: str | None = None,
        normalize_embeddings: bool | str | None = "auto",
        truncate_dim: int | None = None,
        show_progress_bar: bool = False,
        **batching: Unpack[Batching],
    ) -> Iterator[tuple[T, torch.Tensor]]:
        """Compute the embeddings of windows of tokenized texts, of which a background thread makes the next one.

        Args:
            windows (`Iterable[tuple[T, list]]`): What the caller calls a window, and what [`SimCSE.tokenize`] returned
                for its texts.
            long_texts (`str`, *optional*): `"cut"` or `"mean"`, as the texts were tokenized.
            normalize_embeddings (`bool`, *optional*): As in [`SimCSE.encode`].
            truncate_dim (`int`, *optional*): Keep only the leading dimensions.
            show_progress_bar (`bool`, *optional*, defaults to `False`): Show a progress bar.
            **batching (`Batching`): See [`BatchEncoder.embed`].

        Yields:
            `tuple[T, torch.Tensor]`: What the caller calls a window, and its embeddings of shape `(texts, dim)`, on
            the model's device. They may hold NaN or infinity.

        Raises:
            ValueError: As [`SimCSE.encode`].
        """
        check_values(range(1, self.dim + 1), truncate_dim=truncate_dim)
        if self.postprocessing is not None:
            self._check_fit()
        if normalize_embeddings == "auto":
            normalize_embeddings = self.similarity_fn_name == "cosine"
        for key, token_ids in one_ahead(windows):
            embeddings = self.embed(token_ids, long_texts, show_progress_bar=show_progress_bar, **batching)
            if self.postprocessing is not None:
                embeddings = self.postprocessing.transform(embeddings)
            if normalize_embeddings is False and self.settings.normalize:
                embeddings = F.normalize(embeddings, dim=-1)
            embeddings = embeddings[:, : truncate_dim or self.dim]
            if normalize_embeddings:
                embeddings = F.normalize(embeddings, dim=-1)
            yield key, embeddings

    def _inspect(self, texts: Sequence[str], rows: Iterable[list[int]], full: int | None = None) -> None:
        """Warn once of words that the tokenizer does not know, and once for each length of texts that are cut."""
        if all(text in (PROBE, *PROBES, *SERVED) for text in texts):
            return  # the package's own sentences say nothing about those of the user
        rows = list(rows)
        if not self._warned_of_unknown:
            self._warned_of_unknown = check_known(rows, self.tokenizer, "the texts to encode", refuses=False)
        if full in (None, self._warned_of_length):
            return
        cut = sum(len(row) >= full for row in rows)
        if cut:
            self._warned_of_length = full
            logger.warning(
                f"{cut} of {len(rows)} texts ({cut / len(rows):.1%}) fill the maximum length of {full} tokens, so "
                "their ends may be cut. Raise max_length if the model can read more."
            )

    def encode_query(self, sentences: Texts, **options: Any) -> Any:
        """Encode search queries: with the prompt `"query"`, unless another is given; arguments as in `encode`."""
        given = options.pop("prompt", None), options.pop("prompt_name", None)
        return self.encode(sentences, prompt=self.resolve_prompt(*given, role="query"), **options)

    def encode_document(self, sentences: Texts, **options: Any) -> Any:
        """Encode searchable texts: with the prompt `"document"`, unless another is given; arguments as in `encode`."""
        given = options.pop("prompt", None), options.pop("prompt_name", None)
        return self.encode(sentences, prompt=self.resolve_prompt(*given, role="document"), **options)

    def similarity(self, a: Texts | Embeddings, b: Texts | Embeddings) -> float | torch.Tensor:
        """Compare each item of `a` with each item of `b`, by the cosine or the model's own `similarity_fn_name`.

        Args:
            a (`str`, `Sequence[str]`, `torch.Tensor` or `np.ndarray`): Texts, or embeddings of any length.
            b (`str`, `Sequence[str]`, `torch.Tensor` or `np.ndarray`): Texts, or embeddings of any length.

        Returns:
            `float` or `torch.Tensor`: A number for two single items, a vector of shape `(m,)` for one against `m`
            items, else a matrix of shape `(n, m)`.

        Raises:
            ValueError: If an item is not a text, or embeddings are codes or not finite.

        Examples:
            >>> from simcse_hf import SimCSE
            >>> model = SimCSE("outputs/my-model", device="cpu")
            >>> texts = ["The chef cooked the soup.", "The elderly sailor discovered the horse."]
            >>> cosines = model.similarity("The old mariner found the horse.", texts)
            >>> cosines.shape, texts[cosines.argmax()]
            (torch.Size([2]), 'The elderly sailor discovered the horse.')
            >>> model.similarity(texts, texts).shape
            torch.Size([2, 2])
        """
        x = self._embeddings(a)
        y = self._embeddings(b)
        scores = similarity_matrix(torch.atleast_2d(x), torch.atleast_2d(y), self.similarity_fn_name)
        if x.dim() == 2:
            return scores
        if y.dim() == 1:
            return scores.item()
        return scores[0]

    def similarity_pairwise(self, a: Sequence[str] | Embeddings, b: Sequence[str] | Embeddings) -> torch.Tensor:
        """Compare each item of `a` with the item of `b` at the same position; see [`similarity`].

        Args:
            a (`Sequence[str]`, `torch.Tensor` or `np.ndarray`): Texts, or embeddings of any length.
            b (`Sequence[str]`, `torch.Tensor` or `np.ndarray`): As many texts or embeddings.

        Returns:
            `torch.Tensor`: Of shape `(n,)`.

        Raises:
            SettingError: If `a` and `b` do not have equally many items, or an embedding is not finite.

        Examples:
            >>> from simcse_hf import SimCSE
            >>> model = SimCSE("outputs/my-model", device="cpu")
            >>> texts = ["The chef cooked the soup.", "The old mariner found the horse."]
            >>> model.similarity_pairwise(texts, texts).round(decimals=4)  # each text with its partner
            tensor([1., 1.])
        """
        x = torch.atleast_2d(self._embeddings(a))
        y = torch.atleast_2d(self._embeddings(b))
        if x.shape != y.shape:
            raise SettingError(f"pairs need equally many items on both sides, got {len(x)} and {len(y)}")
        return similarity_pairs(x, y, self.similarity_fn_name)

    def is_similar(self, a: Texts | Embeddings, b: Texts | Embeddings) -> bool | torch.Tensor:
        """Return whether cosines reach the saved threshold; arguments and shapes are those of [`similarity`].

        Raises:
            ValueError: As [`threshold`].
        """
        return self.similarity(a, b) >= self.threshold

    @property
    def threshold(self) -> float:
        """The lowest cosine of two texts that count as similar, which `evaluate --save_threshold` saved.

        Raises:
            ModelError: If none is saved, or it was chosen for other embeddings.
        """
        saved = getattr(self.model.config, THRESHOLD, None)
        if saved is None:
            raise ModelError(f"{self.name_or_path} has no saved threshold. {_CHOOSE_THRESHOLD}")
        now = (saved, self.identity())
        if now != self._threshold_of:
            reason = threshold_problem(self)
            if reason:
                raise ModelError(
                    f"the threshold of {self.name_or_path} does not fit this model: {reason}. {_CHOOSE_THRESHOLD}"
                )
            self._threshold_of = now
        return saved["cosine"]

    # --- an index of sentences ---------------------------------------------------------------------------------------

    def build_index(self, sentences_or_file_path: StrPath | Sequence[str], **options: Any) -> None:
        """Index sentences, or those of a file, as `self.index`; arguments as in `SentenceIndex.build`."""
        self.index = SentenceIndex.build(self, sentences_or_file_path, **options)

    def add_to_index(self, sentences_or_file_path: StrPath | Sequence[str], **options: Any) -> None:
        """Add sentences to the index; arguments as in `SentenceIndex.add`."""
        self._existing_index().add(sentences_or_file_path, **options)

    def save_index(self, folder: StrPath) -> None:
        """Save the index in a folder, as `SentenceIndex.save` does."""
        self._existing_index().save(folder)

    def load_index(self, folder: StrPath, **options: Any) -> None:
        """Open a saved index as `self.index`; arguments as in `SentenceIndex.load`."""
        self.index = SentenceIndex.load(folder, self, **options)

    def search(self, queries: str | Sequence[str], **options: Any) -> Matches | list[Matches]:
        """Find the sentences of the index that are most similar to each query; arguments as `SentenceIndex.search`."""
        return self._existing_index().search(queries, **options)

    def _existing_index(self) -> SentenceIndex:
        if self.index is None:
            raise SettingError("the model has no index yet: call build_index or load_index first")
        return self.index

    # --- saving -------------------------------------------------------------------------------------

    def to(self, device: str | torch.device) -> "SimCSE":
        """Move the model to a device, and return it; an exported graph stays on the CPU."""
        refuse_settings(device=self.backend != "torch" and torch.device(device).type != "cpu")
        self.device = torch.device(device)
        self.model.to(self.device)
        return self

    def save_pretrained(self, save_directory: StrPath) -> None:
        """Save everything that makes these embeddings but `long_texts`: `SimCSE(save_directory)` gives the same ones.

        The directory gets the weights, the tokenizer with the maximum length, a whitening or flow, and the files by
        which `SentenceTransformer` gives the same embeddings where its modules can.

        Args:
            save_directory (`str` or `os.PathLike`): Where to save. It is created if needed.
        """
        if self.long_texts != "cut":
            logger.warning(
                f"long_texts={self.long_texts!r} is not saved: give it again to SimCSE({str(save_directory)!r})."
            )
        with replace_model(save_directory) as folder:
            self.save_settings(folder)
            self.model.save_pretrained(folder)
            if self.postprocessing and self.postprocessing_fit:
                self._check_fit()
                save_transform(folder, self.postprocessing, self.postprocessing_fit)
                WeightDigests.of(self.model, self.model.state_dict(), self.postprocessing).write(folder)

    def save_settings(self, save_directory: StrPath) -> None:
        """Save the config with the prompts and the maximum length, and the tokenizer with that length."""
        if threshold_problem(self):
            vars(self.model.config).pop(THRESHOLD)
            logger.warning(
                f"{self.name_or_path}: its threshold does not fit this model and is not saved. {_CHOOSE_THRESHOLD}"
            )
        self.model.update_settings(
            prompts=dict(self.prompts), default_prompt_name=self.default_prompt_name, max_length=self.max_length
        )
        self.model.config.save_pretrained(save_directory)
        limit = self.tokenizer.model_max_length
        try:
            self.tokenizer.model_max_length = self.max_length or limit
            save_tokenizer(self.tokenizer, save_directory, self.model)
        finally:
            self.tokenizer.model_max_length = limit

    def to_sentence_transformer(self) -> Any:
        """Return the same model as a `SentenceTransformer`, for programs that take such an object.

        Returns:
            `sentence_transformers.SentenceTransformer`: Its embeddings, prompts, length and similarity are those of
            this model.

        Raises:
            ModelError: If it cannot give the same embeddings: those of an exported graph, of `long_texts="mean"`, or
                of a pooler or a transform that sentence-transformers does not have.
        """
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Normalize

        if self.backend != "torch" or self.long_texts != "cut":
            raise ModelError(
                f"{self.name_or_path}: sentence-transformers gives other embeddings than "
                f"long_texts={self.long_texts!r}, backend={self.backend!r}"
            )
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            try:
                model = SentenceTransformer(
                    folder, device=str(self.device), similarity_fn_name=self.similarity_fn_name
                )
            except ValueError as error:
                raise ModelError(
                    f"{self.name_or_path}: sentence-transformers has no module for its pooler or transform ({error})"
                ) from error
        if self.similarity_fn_name == "cosine" and not isinstance(model[-1], Normalize):
            model.append(Normalize())  # as `encode` does
        return model

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "Upload model",
        **options: Any,
    ) -> str:
        """Save the model and upload it to the hub in one commit; `simcse-hf push` writes a model card too.

        Args:
            repo_id (`str`): `organization/name`, or `name` for an account of your own. It is created if needed.
            private (`bool`, *optional*): Whether a new repository is private. The default is the owner's setting.
            token (`str`, *optional*): Access token. The default is the one of `hf auth login` or `HF_TOKEN`.
            commit_message (`str`, *optional*, defaults to `"Upload model"`): First line of the commit message.
            **options (`Any`): Further arguments of `HfApi.create_commit`: `revision` (a branch, or an open pull
                request), `create_pr`, `commit_description`, `parent_commit` or `num_threads`.

        Returns:
            `str`: The URL of the commit or of the pull request.

        Raises:
            SettingError: If there is another option, before anything is made.
        """
        unknown = options.keys() - {"commit_description", "create_pr", "num_threads", "parent_commit", "revision"}
        if unknown:
            raise SettingError(
                f"push_to_hub takes no {', '.join(sorted(unknown))}: leave it out. The repository may exist, the "
                "weights are safetensors, and simcse-hf push writes the card."
            )
        api = HfApi(token=token, library_name="simcse_hf")
        with tempfile.TemporaryDirectory() as directory:
            self.save_pretrained(directory)
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            commit = commit_folder(api, directory, repo_id, commit_message=commit_message, **options)
        return commit.pr_url or commit.commit_url

    def _embeddings(self, items: Texts | Embeddings) -> torch.Tensor:
        if isinstance(items, (torch.Tensor, np.ndarray)) and not holds_texts(items):
            if "float" not in str(items.dtype):
                raise DataError(f"embeddings are {items.dtype}: give texts, or embeddings of floats (no codes)")
            embeddings = torch.as_tensor(items, dtype=torch.float32)
            check_finite(embeddings, "item {}".format)
            if self.similarity_fn_name == "cosine":
                embeddings = F.normalize(embeddings, dim=-1)
            return embeddings
        return self.encode(items)


def load_model(model: StrPath | SimCSE, *, revision: str | None = None, **loading: Unpack[ModelOptions]) -> SimCSE:
    """Load a model in each of the processes that the launcher has started, or take one that is loaded.

    Args:
        model (`str`, `os.PathLike` or `SimCSE`): Folder or hub name; or a model, which is returned as it is.
        revision (`str`, *optional*): Branch, tag or commit on the hub.
        **loading (`ModelOptions`): How the model is loaded. `None` stands for the default.

    Returns:
        `SimCSE`: The model.

    Raises:
        ModelError: If the model does not exist, or as `SimCSE` says.
        SettingError: If the device does not exist, or options are given together with a loaded model.
    """
    settings: Values = {"revision": revision, **loading}
    settings = {name: value for name, value in settings.items() if value is not None}
    if isinstance(model, SimCSE):
        if settings:
            raise SettingError(f"the model is loaded already: leave out {', '.join(settings)}")
        return model
    if model == KEYWORDS:
        raise SettingError(
            f"{KEYWORDS} is keyword search, which has no vectors: only evaluate and compare take it. For a folder of "
            f"this name, write ./{KEYWORDS}"
        )
    state = join_processes()
    if "device" in settings:
        device = settings["device"]
        try:
            torch.zeros(1, device=device).item()
        except (RuntimeError, AssertionError, ImportError) as error:  # unknown, absent, or not in this build of torch
            raise SettingError(f"device {device}: this machine cannot use it ({error}); leave out device") from None
    elif state.num_processes > 1:
        settings["device"] = str(state.device)
    if "dtype" in settings:
        check_values(_DTYPES, dtype=settings["dtype"])
        settings["dtype"] = _DTYPES[settings["dtype"]]
    if "model_backend" in settings:
        settings["backend"] = settings.pop("model_backend")
    return SimCSE(model, **settings)
