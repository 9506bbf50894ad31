"""The layers of embeddings that the stock encoder lacks, and their files."""

import json
import os
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from ..objectives.is_bert import NGRAM_POOLER, NGramFeatures
from ..objectives.masked_lm import load_masked_lm
from ..ops.files import find_file, select_hub_arguments

# sentence-transformers' folder and format for a dense layer. The head has a file of its own, so that AutoModel loads
# the encoder's weights without an unexpected key.
FOLDER = "2_Dense"
WEIGHTS = "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # of sentence-transformers before version 2.3
TANH = "torch.nn.modules.activation.Tanh"
#: Layers of our own poolers by their attribute of the model, and the folder of a checkpoint that holds their weights.
POOLER_FOLDERS = {"ngram_head": NGRAM_POOLER, "template_head": "template_head"}


class SentenceHead(nn.Module):
    """Compute tanh(W x + b), which is BERT's pooler layer, for encoders that lack one."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map embeddings of shape `(batch, dim)` to embeddings of the same shape."""
        return torch.tanh(self.dense(embeddings))


class NGramHead(nn.Module):
    """The mean of the tokens' n-gram features, which is the embedding of IS-BERT (arXiv:2009.12061, section 3).

    The features of the three windows share the hidden size, so that the embedding has it, too: 256 filters each for a
    hidden size of 768, as in the paper.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        filters = [config.hidden_size // 3 + (i < config.hidden_size % 3) for i in range(3)]
        self.ngrams = NGramFeatures(config.hidden_size, filters)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Compute features of shape `(batch, length, dim)`, one per token."""
        return self.ngrams(hidden_states, attention_mask)

    def start(self, name_or_path: str | os.PathLike, **hub_arguments: Any) -> None:
        """Draw the weights that training starts from; nothing of the checkpoint is used."""
        for convolution in self.ngrams.convolutions:
            cast(nn.Conv1d, convolution).reset_parameters()


class TemplateHead(nn.Module):
    """The layer of supervised PromptBERT models, and the subtraction of the template's own embedding.

    Jiang et al. 2022 (arXiv:2201.04337), section 4.3, with h the state at the mask token and h' that of the template
    without the text. As in the authors' code, there are two layers:

        transform    T(h) - T(h')             T is BERT's masked-LM head without its last layer: dense, GELU, LayerNorm
        tanh         tanh(W (h - h') + b)     for other encoders, such as RoBERTa

    Args:
        config (`PreTrainedConfig`): The config of the encoder.
        denoising (`str`): `"transform"` or `"tanh"`.

    Raises:
        ValueError: If the encoder is not BERT, and `denoising` is `"transform"`.
    """

    def __init__(self, config: PreTrainedConfig, denoising: str) -> None:
        super().__init__()
        if denoising == "transform" and config.model_type != "bert":
            raise ValueError(
                f"denoising 'transform' needs the masked-LM head of BERT, and this encoder is {config.model_type!r}: "
                "use denoising 'tanh', as PromptBERT's authors do for RoBERTa."
            )
        self.transforms = denoising == "transform"
        self.layer = BertPredictionHeadTransform(config) if self.transforms else SentenceHead(config)

    def forward(self, states: torch.Tensor, template_states: torch.Tensor) -> torch.Tensor:
        """Map the states `(batch, dim)` of texts in a template and of the template alone to `(batch, dim)`."""
        if self.transforms:
            return self.layer(states) - self.layer(template_states)
        return self.layer(states - template_states)

    @torch.no_grad()
    def start(self, name_or_path: str | os.PathLike, **hub_arguments: Any) -> None:
        """Set the weights that training starts from: those of the checkpoint's masked-LM head, or random ones.

        Args:
            name_or_path (`str` or `os.PathLike`): The checkpoint.
            **hub_arguments (`Any`): `revision`, `token`, `cache_dir` and the like, as in `from_pretrained`.

        Raises:
            ValueError: If the checkpoint has no trained masked-LM head.
        """
        if self.transforms:
            masked_lm = cast(Any, load_masked_lm(name_or_path, **hub_arguments))
            self.layer.load_state_dict(masked_lm.cls.predictions.transform.state_dict())
        else:
            dense = cast(SentenceHead, self.layer).dense
            nn.init.normal_(dense.weight, std=0.02)
            nn.init.zeros_(dense.bias)


class DenseLayer(nn.Module):
    """A linear layer with an activation, which is sentence-transformers' `Dense` module after the pooling.

    Args:
        in_features (`int`): Size of the input embeddings.
        out_features (`int`): Size of the output embeddings.
        bias (`bool`, *optional*, defaults to `True`): Whether the linear layer has a bias.
        activation_function (`str`, *optional*): The name of a class in `torch.nn`. Defaults to tanh.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation_function: str = TANH
    ) -> None:
        super().__init__()
        package, _, name = activation_function.rpartition(".")
        activation = getattr(nn, name, None)
        # The name comes from a downloaded file, so only layers of torch are created from it.
        if not package.startswith("torch.nn") or not isinstance(activation, type):
            raise ValueError(
                f"activation_function of a dense layer must be a class of torch.nn, got {activation_function!r}. Load "
                "the model with sentence_transformers."
            )
        self.linear = nn.Linear(in_features, out_features, bias)
        self.activation = activation()

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map embeddings of shape `(batch, in_features)` to `(batch, out_features)`."""
        return self.activation(self.linear(embeddings))


def save_head(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Write a head to the folder `2_Dense` of a checkpoint.

    Args:
        directory (`str` or `os.PathLike`): The checkpoint.
        state_dict (`dict[str, torch.Tensor]`): The head's weight and bias, under names that end in these words.
    """
    outputs, inputs = next(tensor.shape for tensor in state_dict.values() if tensor.dim() == 2)
    layer = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": TANH}
    save_dense(Path(directory) / FOLDER, layer, state_dict)


def save_dense(folder: Path, config: dict[str, Any], state_dict: dict[str, torch.Tensor]) -> None:
    """Write a dense layer as sentence-transformers does.

    Args:
        folder (`Path`): The folder of the module. It is created if necessary.
        config (`dict`): The arguments of [`DenseLayer`].
        state_dict (`dict[str, torch.Tensor]`): Weight and bias, under names that end in these words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {f"linear.{name.rpartition('.')[2]}": tensor.contiguous() for name, tensor in state_dict.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_head(head: SentenceHead, name_or_path: str | os.PathLike, kwargs: dict[str, Any]) -> bool:
    """Load the weights of a head, if the checkpoint has one.

    Args:
        head (`SentenceHead`): The head. It is changed in place.
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        kwargs (`dict`): The arguments of `from_pretrained`. Only those that locate files are used.

    Returns:
        `bool`: Whether the checkpoint has a head.
    """
    return load_dense(head.dense, name_or_path, FOLDER, kwargs)


def save_pooler_layers(directory: str | os.PathLike, state_dict: dict[str, torch.Tensor]) -> None:
    """Write the layers of our own poolers to their folders of a checkpoint (see `POOLER_FOLDERS`).

    Args:
        directory (`str` or `os.PathLike`): The checkpoint.
        state_dict (`dict[str, torch.Tensor]`): The weights of the whole model.
    """
    for attribute, name in POOLER_FOLDERS.items():
        prefix = f"{attribute}."
        tensors = {key.removeprefix(prefix): x.contiguous() for key, x in state_dict.items() if key.startswith(prefix)}
        if tensors:
            folder = Path(directory) / name
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_pooler_layer(layer: nn.Module, name_or_path: str | os.PathLike, folder: str, kwargs: dict[str, Any]) -> bool:
    """Load the layer of one of our own poolers, if the checkpoint has its folder.

    Args:
        layer (`nn.Module`): The layer. It is changed in place.
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        folder (`str`): The folder.
        kwargs (`dict`): The arguments of `from_pretrained`. Only those that locate files are used.

    Returns:
        `bool`: Whether the checkpoint has such a folder.
    """
    path = find_file(name_or_path, f"{folder}/{WEIGHTS}", **select_hub_arguments(kwargs))
    if path is None:
        return False
    _load_weights(layer, path)
    return True


def load_dense(linear: nn.Linear, name_or_path: str | os.PathLike, folder: str, kwargs: dict[str, Any]) -> bool:
    """Load a linear layer from a `Dense` module of sentence-transformers, if the file exists.

    Args:
        linear (`nn.Linear`): The layer. It is changed in place.
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        folder (`str`): The folder of the module.
        kwargs (`dict`): The arguments of `from_pretrained`. Only those that locate files are used.

    Returns:
        `bool`: Whether there is such a file.
    """
    hub = select_hub_arguments(kwargs)
    for name in (WEIGHTS, OLD_WEIGHTS):
        path = find_file(name_or_path, f"{folder}/{name}", **hub)
        if path is not None:
            _load_weights(linear, path, prefix="linear.")
            return True
    return False


def _load_weights(module: nn.Module, path: str, prefix: str = "") -> None:
    """Load the weights of a module from a safetensors file, or from a file of sentence-transformers before 2.3."""
    try:
        if path.endswith(OLD_WEIGHTS):
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        else:
            tensors = load_file(path)
        module.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    except Exception as error:  # its type depends on the library that reads the file, and on what is wrong
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path}: damaged, or not the weights of this layer ({reason}). Download or save the model again."
        ) from error
