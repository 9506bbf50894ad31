"""What an objective sees: the model that it trains, and a batch after the encoder pass."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

import numpy as np
from torch import Tensor, nn
from transformers import PreTrainedConfig

#: What a batch holds of each text.
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: What a batch may hold for the objective beside token ids and masks; see [`EncodedBatch`].
ROW_INPUTS = ("relations", "text_ids", "scores", "labels", "teacher", "guide", "dataset")


class Encoder(Protocol):
    """What an objective may ask of the model that it trains.

    `simcse_hf.models.ContrastiveModel` satisfies this protocol. Objectives depend on the protocol and not on that
    class, so the model can import the objectives and not the other way round.
    """

    config: PreTrainedConfig
    #: The model's `ContrastiveSettings`.
    settings: Any
    name_or_path: str
    #: The n-gram features of pooler `ngrams`.
    ngram_head: Any

    #: The stock encoder, without the head.
    base_model: Any
    #: The device of the weights.
    device: Any
    #: The dense + tanh head of pooler `cls`.
    contrastive_head: Any

    def embed(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        lengths: np.ndarray | None = None,
    ) -> Tensor:
        """Encode token ids of shape `(n, length)`, with `lengths` of shape `(n,)`, into embeddings `(n, dim)`."""

    def copy_encoder(self) -> Self:
        """Return an independent copy of the encoder, its head and its pooler."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the names and parameters of the model."""


class _MissingEncoder:
    """Stands for the model of a batch that was encoded elsewhere, and explains itself when it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for these
            raise AttributeError(name)
        raise ValueError(
            f"the objective asks for batch.model.{name}, but this batch comes without a model, as under GradCache. "
            "Set supports_gradcache = False in the objective's class, and train without gradcache_chunk_size"
        )


@dataclass
class EncodedBatch:
    """A batch after the encoder pass: everything that an objective may read.

    Args:
        embeddings (`torch.Tensor`): Embeddings of shape `(batch, num_sentences, dim)`, not normalized. Column 0 holds
            the anchors, column 1 the positives, further columns the other sentences of each row. A row with fewer
            sentences than the widest row is filled up with zeros. If the objective `reconstructs`, column 0 is
            missing.
        inputs (`Mapping[str, torch.Tensor]`): The batch as it went into the model: `input_ids` and `attention_mask` of
            shape `(batch, num_sentences, length)`, and, if the collator adds them, `relations` of shape
            `(batch, num_sentences - 1)` (how a sentence after the first relates to it: 0 entailment, 1 neutral,
            2 contradiction, -100 if the row has fewer sentences), `text_ids` of shape `(batch, num_sentences)`, equal
            for equal texts, `scores` of pairs and `labels` of classes, of shape `(batch,)`, `dataset`, numbers on the
            host that say which data set of several the rows come from, and `teacher` and `guide`, the unit vectors of
            frozen models, of shape `(batch, num_sentences, dim of the frozen models)`.
        model (`Encoder`): For objectives that run the encoder themselves (`batch.model.embed`). GradCache gives no
            model: an objective that needs one sets `supports_gradcache = False`.
        hidden_states (`torch.Tensor`, *optional*): Last hidden states of shape `(batch, num_sentences, length, dim)`.
            They are present only if the objective sets `needs_hidden_states`.
        lengths (`np.ndarray`, *optional*): The number of tokens of each text, of shape `(batch, num_sentences)`, if
            the collator counted them. All padding is then on the right. An objective that selects by it instead of by
            `attention_mask` does not make the host wait for an accelerator.
    """

    embeddings: Tensor
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    model: Encoder = cast(Encoder, _MissingEncoder())
    hidden_states: Tensor | None = None
    lengths: np.ndarray | None = None

    @property
    def text_ids(self) -> Tensor:
        """The integers `(batch, num_sentences)` that are equal for equal texts.

        Raises:
            ValueError: If the collator did not add them.
        """
        if "text_ids" not in self.inputs:
            raise ValueError(
                "the batch has no text_ids, by which equal texts are recognized: make the collator with "
                "ContrastiveCollator(tokenizer, add_text_ids=True)"
            )
        return self.inputs["text_ids"]
