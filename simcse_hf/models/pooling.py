"""From token states to embeddings: the poolers, the layers that the stock encoder lacks, and their files."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import load_state_dict
from transformers.models.bert.modeling_bert import BertPredictionHeadTransform

from ..objectives.is_bert import NGRAM_POOLER, NGramFeatures
from ..objectives.masked_lm import load_masked_lm
from ..runtime.errors import DataError, ModelError, SettingError
from ..runtime.files import StrPath, write_json
from ..runtime.loading import HubArguments, find_file

#: Weights by their names.
StateDict = dict[str, Tensor]

#: The pooler of models with the setting `templates`.
TEMPLATE_POOLER = "mask"
_MEAN = """\
hidden, mask = HIDDEN, inputs["attention_mask"].unsqueeze(-1)
embeddings = (hidden * mask).sum(1) / mask.sum(1)"""

# sentence-transformers' folder and format for a dense layer. The head has a file of its own, so that AutoModel loads
# the encoder's weights without an unexpected key.
HEAD_FOLDER = "2_Dense"
WEIGHTS = "model.safetensors"
OLD_WEIGHTS = "pytorch_model.bin"  # of sentence-transformers before version 2.3
TANH = "torch.nn.modules.activation.Tanh"
LINEAR = "torch.nn.modules.linear.Identity"
#: Layers of our own poolers by their attribute of the model, and the folder of a checkpoint that holds their weights.
POOLER_FOLDERS = {"ngram_head": NGRAM_POOLER, "template_head": "template_head"}


def first_tokens(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the first token of each row, [CLS], whether the row is padded on the right or on the left.

    Args:
        hidden (`torch.Tensor`): States of shape `(batch, length, dim)`, or `(batch, 1, dim)` of first tokens only.
        attention_mask (`torch.Tensor`): 1 for a token and 0 for padding, of shape `(batch, length)`.

    Returns:
        `torch.Tensor`: Of shape `(batch, dim)`.
    """
    if hidden.shape[1] == 1:
        return hidden[:, 0]
    column = attention_mask.bool().int().argmax(1)  # of the first 1
    # A gather keeps the batch size symbolic when the model is exported; indexing by an arange would fix it.
    index = column[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, index).squeeze(1)


def masked_mean(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Average over the tokens that are not padding. [CLS] and [SEP] count, as in the reference implementation.

    Args:
        hidden (`torch.Tensor`): Hidden states of shape `(batch, length, dim)`.
        attention_mask (`torch.Tensor`): Of shape `(batch, length)`, 1 for a token and 0 for padding.

    Returns:
        `torch.Tensor`: Means of shape `(batch, dim)`, in the dtype of `hidden`. Zero for a row without tokens.

    Examples:
        >>> import torch
        >>> from simcse_hf.models.pooling import masked_mean
        >>> states = torch.tensor([[[1.0, 4.0], [3.0, 2.0], [9.0, 9.0]]])
        >>> masked_mean(states, torch.tensor([[1, 1, 0]]))  # the third token is padding
        tensor([[2., 3.]])
    """
    precision = torch.promote_types(hidden.dtype, torch.float32)  # float16 ends at 65504
    mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
    sums = (hidden * mask).sum(1, dtype=precision)
    counts = mask.sum(1, dtype=precision)
    means = sums / counts.clamp(min=1)
    return means.to(hidden.dtype)


def at_mask(last_hidden_state: Tensor, input_ids: Tensor, mask_token_id: int) -> Tensor:
    """Read the last layer at the mask token (PromptBERT, arXiv:2201.04337, section 4.1).

    Args:
        last_hidden_state (`torch.Tensor`): Of shape `(batch, length, dim)`.
        input_ids (`torch.Tensor`): Of shape `(batch, length)`, with one mask token per row.
        mask_token_id (`int`): The tokenizer's id of the mask token.

    Returns:
        `torch.Tensor`: Embeddings of shape `(batch, dim)`.

    Raises:
        DataError: If a row does not hold exactly one mask token.
    """
    is_mask = input_ids == mask_token_id
    counts = is_mask.sum(1)
    if not (counts == 1).all():
        row = int((counts != 1).nonzero()[0])
        raise DataError(
            f"The pooler 'mask' reads one mask token (id {mask_token_id}), but text {row} of the batch holds "
            f"{counts[row]}: give texts without it, tokenized with the model's template, as SimCSE does."
        )
    return (last_hidden_state * is_mask.unsqueeze(-1)).sum(1)


class Pooler:
    """A way to make one embedding of the states of a text's tokens (SimCSE, section 6.3, Tables 5 and 6).

    A subclass is known by its `name`. Class attributes describe it to the rest of the package:

    - `words` say on cards and in the reference what the embedding is.
    - `code` is Python for cards that computes `embeddings` from `inputs` and from the `outputs` of the encoder.
      `MODEL` stands for the name of the model.
    - `mode` is the mode of sentence-transformers' module `Pooling`, if this or two layers of it give the embedding.
    - `second_layer` is averaged with the last layer. Layer 0 is the embedding output.
    - `reads_first_token` says that nothing else is read. The first token of a decoder sees no other token.
    - `reduce` makes embeddings of shape `(batch, dim)` of states and their mask. Poolers with a layer have none.

    Examples:
        >>> import torch
        >>> from simcse_hf.models.pooling import POOLERS
        >>> states = torch.tensor([[[1.0, 4.0], [3.0, 2.0], [9.0, 9.0]]])  # (1, 3, 2): a text of three tokens
        >>> mask = torch.tensor([[1, 1, 0]])  # the third is padding
        >>> for name in ("cls_before_pooler", "avg", "max", "lasttoken"):
        ...     print(name, POOLERS[name].pool(states, mask))
        cls_before_pooler tensor([[1., 4.]])
        avg tensor([[2., 3.]])
        max tensor([[3., 4.]])
        lasttoken tensor([[3., 2.]])
    """

    name = ""
    words = ""
    code = ""
    mode: str | None = None
    second_layer: int | None = None
    reads_first_token = False
    reduce: Any

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            POOLERS[cls.name] = cls()

    def pool(self, states: Tensor, mask: Tensor, layers: Sequence[Tensor] = ()) -> Tensor:
        """Pool hidden states into one embedding per sentence, if the pooler has no layer of its own.

        Args:
            states (`torch.Tensor`): The last hidden states, of shape `(batch, length, dim)`.
            mask (`torch.Tensor`): Of shape `(batch, length)`, 1 for a token and 0 for padding. The first token that it
                marks is [CLS], on whichever side texts are padded.
            layers (`Sequence[torch.Tensor]`, *optional*): The embedding output and every layer's output, for poolers
                with a `second_layer`.

        Returns:
            `torch.Tensor`: Embeddings of shape `(batch, dim)`.
        """
        if self.second_layer is not None:
            states = (layers[self.second_layer] + states) / 2
        return self.reduce(states, mask)


#: The poolers by their names.
POOLERS: dict[str, Pooler] = {}


class FirstToken(Pooler):
    """The last layer at the first token."""

    name = "cls_before_pooler"
    words = "the first token of the last layer"
    code = "embeddings = outputs.last_hidden_state[:, 0]"
    mode = "cls"
    reads_first_token = True
    reduce = staticmethod(first_tokens)


class FirstTokenWithHead(FirstToken):
    """The same before the dense + tanh head, which is part of the model and is applied afterwards."""

    name = "cls"
    words = "the first token, passed through the trained dense + tanh head"
    code = "embeddings = outputs.pooler_output"


class Mean(Pooler):
    """The mean of the last layer."""

    name = "avg"
    words = "the mean of the last layer over all tokens"
    code = _MEAN.replace("HIDDEN", "outputs.last_hidden_state")
    mode = "mean"
    reduce = staticmethod(masked_mean)


class MeanWithoutFirst(Pooler):
    """The mean of the last layer without the first token, but with [SEP] (arXiv:2106.04791, section 3)."""

    name = "avg_no_cls"
    words = "the mean of the last layer over all tokens except the first, [CLS]"
    code = """\
hidden, mask = outputs.last_hidden_state[:, 1:], inputs["attention_mask"].unsqueeze(-1)[:, 1:]
embeddings = (hidden * mask).sum(1) / mask.sum(1)"""

    def reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        """Average over the tokens after the first one."""
        is_token = mask.bool()
        is_later = is_token.cumsum(1) > 1
        return masked_mean(states, is_token & is_later)


class MeanOfLastTwo(Mean):
    """The mean of the last two layers."""

    name = "avg_top2"
    words = "the mean of the last two layers over all tokens"
    code = _MEAN.replace("HIDDEN", "(outputs.hidden_states[-2] + outputs.last_hidden_state) / 2")
    second_layer = -2


class MeanOfFirstAndLast(Mean):
    """The mean of the first transformer layer and the last, which the reference's code computes since January 2022."""

    name = "avg_first_last"
    words = "the mean of the first and the last layer over all tokens"
    code = _MEAN.replace("HIDDEN", "(outputs.hidden_states[1] + outputs.last_hidden_state) / 2")
    second_layer = 1


class MeanOfEmbeddingsAndLast(Mean):
    """The mean of the embedding output and the last layer, which Table 5 of the paper reports."""

    name = "avg_embeddings_last"
    words = "the mean of the embedding output and the last layer over all tokens"
    code = _MEAN.replace("HIDDEN", "(outputs.hidden_states[0] + outputs.last_hidden_state) / 2")
    second_layer = 0


class Maximum(Pooler):
    """The largest value of each dimension over the tokens of the last layer (Sentence-BERT, arXiv:1908.10084)."""

    name = "max"
    words = "the maximum of the last layer over all tokens"
    code = """\
mask = inputs["attention_mask"].unsqueeze(-1).bool()
embeddings = outputs.last_hidden_state.masked_fill(~mask, float("-inf")).amax(1)"""
    mode = "max"

    def reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        """Take the maxima over the tokens; zero for a row without tokens."""
        is_token = mask.bool().unsqueeze(-1)
        lowest = torch.finfo(states.dtype).min
        maxima = states.masked_fill(~is_token, lowest).amax(1)
        return maxima.masked_fill(~is_token.any(1), 0.0)


class LastToken(Pooler):
    """The last layer at the last token, which is the only one of a decoder that sees the whole text."""

    name = "lasttoken"
    words = "the last token of the last layer"
    code = """\
last = inputs["attention_mask"].cumsum(1).argmax(1)
embeddings = outputs.last_hidden_state[torch.arange(len(last)), last]"""
    mode = "lasttoken"

    def reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        """Take the first token of the texts from right to left."""
        return first_tokens(states.flip(1), mask.flip(1))


class MaskToken(Pooler):
    """The mask token of a template, for models with the setting `templates`, and for no others; see [`at_mask`]."""

    name = TEMPLATE_POOLER
    words = "the mask token of a template around the text, in the last layer"
    code = 'embeddings = outputs.last_hidden_state[inputs["input_ids"] == tokenizer.mask_token_id]'


class NGrams(Pooler):
    """The mean of the features of [`NGramHead`]."""

    name = NGRAM_POOLER
    words = "the mean of the n-gram features of all tokens (IS-BERT)"
    code = """\
from safetensors.torch import load_file
from transformers.utils import cached_file

head = load_file(cached_file("MODEL", "model.safetensors", subfolder="ngrams"))
mask = inputs["attention_mask"].unsqueeze(-1)
states = (outputs.last_hidden_state * mask).transpose(1, 2)
weights = [(head[f"ngrams.convolutions.{i}.weight"], head[f"ngrams.convolutions.{i}.bias"]) for i in range(3)]
features = [torch.conv1d(states, weight, bias, padding=i).relu() for i, (weight, bias) in enumerate(weights)]
embeddings = (torch.cat(features, 1).transpose(1, 2) * mask).sum(1) / mask.sum(1)"""


def sentence_head(config: PreTrainedConfig) -> nn.Sequential:
    """Return a layer that computes tanh(W x + b), as BERT's pooler does, for encoders that lack one."""
    dense = nn.Linear(config.hidden_size, config.hidden_size)
    return nn.Sequential(OrderedDict(dense=dense, tanh=nn.Tanh()))


class NGramHead(nn.Module):
    """The mean of the tokens' n-gram features, which is the embedding of IS-BERT (arXiv:2009.12061, section 3).

    The features of the three windows share the hidden size, so that the embedding has it, too: 256 filters each for a
    hidden size of 768, as in the paper.
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        size = config.hidden_size
        filters = [size // 3 + (i < size % 3) for i in range(3)]
        self.ngrams = NGramFeatures(size, filters)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute features of shape `(batch, length, dim)`, one per token."""
        return self.ngrams(hidden_states, attention_mask)

    def start(self, *_: object, **__: object) -> None:
        """Draw the weights that training starts from."""
        for convolution in self.ngrams.convolutions:
            convolution.reset_parameters()  # type: ignore[operator]


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
            kind = config.model_type
            raise SettingError(
                f"denoising 'transform' needs BERT's masked-LM head, not {kind!r}: use denoising 'tanh'."
            )
        self.transforms = denoising == "transform"
        self.layer = BertPredictionHeadTransform(config) if self.transforms else sentence_head(config)

    def forward(self, states: Tensor, template_states: Tensor) -> Tensor:
        """Map the states `(batch, dim)` of texts in a template and of the template alone to `(batch, dim)`."""
        if self.transforms:
            return self.layer(states) - self.layer(template_states)
        return self.layer(states - template_states)

    @torch.no_grad()
    def start(self, name_or_path: StrPath, **hub_arguments: Unpack[HubArguments]) -> None:
        """Take the weights that training starts from: those of a masked-LM head, or with `"tanh"` random ones.

        Args:
            name_or_path (`str` or `os.PathLike`): The checkpoint.
            **hub_arguments (`Any`): `revision`, `token`, `cache_dir` and the like, as in `from_pretrained`.

        Raises:
            ValueError: If the checkpoint has no trained masked-LM head.
        """
        if self.transforms:
            trained = load_masked_lm(name_or_path, **hub_arguments).get_submodule("cls.predictions.transform")
            self.layer.load_state_dict(trained.state_dict())
        else:
            nn.init.normal_(self.layer.get_parameter("dense.weight"), std=0.02)
            nn.init.zeros_(self.layer.get_parameter("dense.bias"))


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
            raise ModelError(
                f"activation_function of a dense layer must be a class of torch.nn, got {activation_function!r}. Load "
                "the model with sentence_transformers."
            )
        self.linear = nn.Linear(in_features, out_features, bias)
        self.activation = activation()

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map embeddings of shape `(batch, in_features)` to `(batch, out_features)`."""
        return self.activation(self.linear(embeddings))


def save_layer(folder: Path, state: StateDict, config: dict[str, Any] | None = None) -> None:
    """Write a layer beside the weights of the encoder.

    Args:
        folder (`Path`): Its folder. It is created if necessary.
        state (`dict[str, torch.Tensor]`): Its weights.
        config (`dict`, *optional*): What sentence-transformers reads as the config of the layer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        write_json(folder / "config.json", config)
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_layer(
    layer: nn.Module, name_or_path: StrPath, folder: str, prefix: str = "", **hub_arguments: Unpack[HubArguments]
) -> bool:
    """Load the weights of a layer, if the checkpoint has its folder.

    Args:
        layer (`nn.Module`): The layer. It is changed in place.
        name_or_path (`str` or `os.PathLike`): A local directory or the name of a model on the hub.
        folder (`str`): The folder of [`save_layer`], or of a `Dense` module of sentence-transformers.
        prefix (`str`, *optional*): Prefix of the names in the file, `"linear."` for a `Dense` module.
        **hub_arguments (`Any`): `revision`, `token`, `cache_dir` and the like, as in `from_pretrained`.

    Returns:
        `bool`: Whether there is such a file.

    Raises:
        ModelError: If the file is damaged or holds the weights of another layer.
    """
    path = find_file(name_or_path, f"{folder}/{WEIGHTS}", **hub_arguments)
    path = path or find_file(name_or_path, f"{folder}/{OLD_WEIGHTS}", **hub_arguments)
    if path is None:
        return False
    try:
        tensors = load_state_dict(path)
        layer.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    except Exception as error:  # its type depends on the library that reads the file, and on what is wrong
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path}: damaged, or not the weights of this layer ({reason}). Download or save the model again."
        ) from error
    return True
