"""What makes two models or two lists of texts the same."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from .errors import changes

if TYPE_CHECKING:
    from datasets import Dataset

# Numbers of a larger weight that a digest reads at least, unless it reads all.
_READ_NUMBERS = 65_536
_ROWS_AT_ONCE = 10_000  # that are in memory together
# The same model may have another name, and be another commit of its repository.
_NAMES = ("name_or_path", "revision", "saved_as")
# How a message says that the digest of these is another one.
_DIGESTS = {
    "weights": "other weights",
    "tokenizer": "another tokenizer",
    "config": "other settings of its layers (config.json)",
}
#: The state of the weights of a model when their digest was computed, and the digest.
_COMPUTED: WeakKeyDictionary[nn.Module, tuple[list[object], str]] = WeakKeyDictionary()


# Digests ------------------------------------------------------------------------------------------------------------


def digest_value(value: object) -> str:
    """Return a digest of a value that `repr` shows completely, such as nested lists of texts and numbers."""
    return blake2b(repr(value).encode(), digest_size=16).hexdigest()


def digest_weights(tensors: Iterable[tuple[str, Tensor]], *, reads_all: bool = False) -> str:
    """Return a digest of weights and their names.

    Args:
        tensors (`Iterable[tuple[str, torch.Tensor]]`): The names and the weights, in an order that is always the same.
        reads_all (`bool`, *optional*, defaults to `False`): Read every byte, which takes a second for a gigabyte. By
            default 65,536 to 131,071 numbers of a larger weight are read, in float64.

    Returns:
        `str`: The digest, in hexadecimal.
    """
    total = blake2b(digest_size=64 if reads_all else 16)
    for name, tensor in tensors:
        if tensor.is_meta:
            continue
        numbers = tensor.detach().flatten()
        if not reads_all:
            step = max(1, len(numbers) // _READ_NUMBERS)
            numbers = numbers[::step].double()
        total.update(name.encode())
        total.update(numbers.cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def weights_state(tensors: Iterable[Tensor], *, reads_all: bool = False) -> list[object]:
    """Return what changes with weights, in a fraction of the time of their digest.

    Args:
        tensors (`Iterable[torch.Tensor]`): The weights.
        reads_all (`bool`, *optional*, defaults to `False`): Add up all numbers, in place of reading one of each tensor
            in a thousandth of the time.

    Returns:
        `list`: The place and the version of each tensor, which `tensor.data.mul_` and an array of numpy do not raise,
        and a number of it.
    """
    state: list[object] = []
    samples = []
    for tensor in tensors:
        state += (tensor.data_ptr(), tensor._version)
        if not tensor.numel() or tensor.is_meta:
            continue
        numbers = tensor.detach()
        if reads_all:
            # The weights of the sums differ, so that rows and columns that change places are seen, too.
            rows = numbers.reshape(tensor.shape[0] if tensor.dim() else 1, -1)
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
            sums = (rows @ torch.linspace(1, 2, rows.shape[1]).to(rows)).double()
            samples.append(sums @ torch.linspace(1, 2, len(sums)).to(sums))
        else:
            samples.append(numbers.flatten()[tensor.numel() // 2].double())
    if samples:
        state += torch.stack([sample.to(samples[0].device) for sample in samples]).tolist()
    return state


def digest_model(model: nn.Module, unused: Collection[Tensor] = (), beside: Mapping[str, Tensor] | None = None) -> str:
    """Return a digest of all weights of a model, which is computed again when they have changed.

    Args:
        model (`nn.Module`): The model. An adapter of peft that is switched off counts as a change.
        unused (`Collection[torch.Tensor]`, *optional*): Weights that no embedding goes through.
        beside (`Mapping[str, torch.Tensor]`, *optional*): Further weights, such as those of a whitening.

    Returns:
        `str`: The digest, in hexadecimal.
    """
    ids = set(map(id, unused))
    tensors: dict[str, Tensor] = {name: x for name, x in sorted(model.named_parameters()) if id(x) not in ids}
    tensors.update(beside or {})
    switched = []
    for name, module in model.named_modules():
        if "_disable_adapters" in vars(module):
            switched.append((name, module._disable_adapters, module.active_adapters))
    state = [*tensors, *switched, *weights_state(tensors.values(), reads_all=True)]
    known, digest = _COMPUTED.get(model, (None, ""))
    if state != known:
        digest = digest_weights(tensors.items(), reads_all=True)
        if switched:
            digest = digest_value([digest, switched])
        _COMPUTED[model] = state, digest
    return digest


def digest_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of a tokenizer's rules and words, which is kept until one of them changes.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer. The length of its last call and the padding do not
            count, but the side on which texts are cut does.

    Returns:
        `str`: The digest, in hexadecimal.
    """
    rules = [tokenizer.truncation_side, tokenizer.split_special_tokens]
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        rules += [backend.normalizer, backend.pre_tokenizer, backend.post_processor]
    return _digest_tokenizer(tokenizer, len(tokenizer), repr(rules))


@lru_cache(maxsize=8)
def _digest_tokenizer(tokenizer: PreTrainedTokenizerBase, size: int, rules: str) -> str:
    """Return the digest of a tokenizer of this size and with these rules."""
    if tokenizer.is_fast:
        saved = json.loads(tokenizer.backend_tokenizer.to_str())
        content = json.dumps(saved | {"truncation": None, "padding": None})
    else:
        content = repr(sorted(tokenizer.get_vocab().items()))
    sides = (tokenizer.truncation_side, tokenizer.split_special_tokens)
    if sides != ("right", False):  # the usual ones, of which earlier versions took no notice
        content += repr(sides)
    return blake2b(content.encode()).hexdigest()


def digest_texts(texts: Iterable[str]) -> tuple[int, str]:
    """Return the number of texts, and a digest of them in their order."""
    number = 0
    total = blake2b(digest_size=16)
    for text in texts:
        number += 1
        total.update(f"{len(text)} {text}".encode())
    return number, total.hexdigest()


def digest_rows(rows: "Dataset") -> str:
    """Return a digest of the rows of a data set, in their order; names of columns do not count."""
    total = blake2b(digest_size=16)
    for batch in rows.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
        for column in batch.columns:
            values = column.combine_chunks()
            while hasattr(values, "value_lengths"):  # lists, and lists of lists
                total.update(values.value_lengths().to_numpy(zero_copy_only=False).tobytes())
                values = values.flatten()
            numbers = values.to_numpy(zero_copy_only=False)
            total.update(repr(numbers.tolist()).encode() if numbers.dtype == object else numbers.tobytes())
    return total.hexdigest()


def mark(texts: Iterable[str]) -> int:
    """Return 32 bits by which one row of texts is recognised in another result file."""
    return crc32("\0".join(texts).encode("utf-8", "surrogatepass"))


# Models -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What decides the embeddings of a model. `SimCSE.identity()` reads it from memory, whatever files say.

    Args:
        name_or_path (`str`, *optional*): The folder of the model, or its name on the hub. Not compared.
        revision (`str`, *optional*): Its commit on the hub. Not compared.
        pooler (`str`, *optional*): The pooler of inference.
        max_length (`int`, *optional*): The number of tokens that a text is truncated to. `None` for no limit.
        long_texts (`str`): What happens to longer texts: `"cut"` or `"mean"`.
        backend (`str`): What computes the embeddings: `"torch"`, `"onnx"` or `"openvino"`.
        dtype (`str`): The data type of the weights, such as `"float32"`.
        saved_as (`str`, *optional*): The data type of the files that the weights were loaded from. Not compared.
        tokenizer (`str`, *optional*): A digest of the tokenizer's rules and words.
        templates (`list[str]`): The texts that a sentence is put into.
        config (`str`, *optional*): A digest of the encoder's config and of the layers after its pooler, without what
            leaves embeddings as they are. `None` in files of earlier versions; it is then not compared.
        weights (`str`, *optional*): A digest of all weights that an embedding goes through, or of an exported graph.
        postprocessing (`str`, *optional*): The kind of the whitening or flow, whose numbers are among the weights.
        prompts (`dict[str, str]`): Texts that are put before a sentence, by name.
        default_prompt_name (`str`, *optional*): The prompt that is used if none is named.
        similarity (`str`): The similarity by which embeddings are compared.
    """

    name_or_path: str | None = None
    revision: str | None = None
    pooler: str | None = None
    max_length: int | None = None
    long_texts: str = "cut"
    backend: str = "torch"
    dtype: str = "float32"
    saved_as: str | None = None
    tokenizer: str | None = None
    templates: list[str] = field(default_factory=list)
    config: str | None = None
    weights: str | None = None
    postprocessing: str | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Identity":
        """Make an identity from the entries that [`to_dict`] returned; entries of other names are left out."""
        return cls(**{name: value for name, value in saved.items() if name in cls.__dataclass_fields__})

    def for_pairs(self) -> "Identity":
        """Return what decides the cosine of two texts: no names, and no other prompt than that before both."""
        prompt = "" if self.default_prompt_name is None else self.prompts[self.default_prompt_name]
        return replace(self, name_or_path=None, revision=None, prompts={"": prompt}, default_prompt_name=None)

    def to_dict(self) -> dict[str, object]:
        """Return the entries in types that JSON can hold."""
        return asdict(self)

    def changes(self, now: "Identity", may_change: Collection[str] = ()) -> list[str]:
        """Say in words what makes another model a different one.

        Args:
            now (`Identity`): The other model.
            may_change (`Collection[str]`, *optional*, defaults to `()`): Entries that are not compared. Weights in
                another `dtype` or another `backend` have no digest in common, so they are not compared either, nor is
                the config.

        Returns:
            `list[str]`: One phrase for each difference, such as `"max_length 32 there, 64 here"` and `"other
            weights"`. Empty if the embeddings of both models are the same.
        """
        left_out = {*_NAMES, *may_change}
        if (self.dtype, self.backend) != (now.dtype, now.backend):
            left_out |= {"weights", "config"}
        if "dtype" in may_change and self.saved_as != now.saved_as and now.saved_as in ("float16", "bfloat16"):
            left_out.add("weights")  # they may be the same ones, rounded
        if None in (self.config, now.config):
            left_out.add("config")
        return [
            _DIGESTS.get(name, f"{name} {before!r} there, {after!r} here")
            for name, (before, after) in changes(self.to_dict(), now.to_dict()).items()
            if name not in left_out
        ]
