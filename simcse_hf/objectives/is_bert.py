"""IS-BERT: mutual information between a sentence's embedding and the n-gram features of its tokens."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runtime.distributed import gather_rows, mean_over_processes, own_rows
from ..runtime.errors import SettingError
from .base import EncodedBatch, Objective, TrainedModel, TrainingRows, as_full_precision, no_autocast

WINDOWS = (1, 3, 5)
FILTERS = (256, 256, 256)  # for each window, in the authors' code
NGRAM_POOLER = "ngrams"


class NGramFeatures(nn.Module):
    """Local features of tokens: ReLU'd convolutions over windows of 1, 3 and 5 tokens around each of them.

    Padding counts as zeros, as what lies beyond either end of the text.

    Args:
        dim (`int`): Size of the hidden states.
        filters (`Sequence[int]`): Number of filters for each window.
    """

    def __init__(self, dim: int, filters: Sequence[int]):
        super().__init__()
        self.convolutions = nn.ModuleList()
        for width, window in zip(filters, WINDOWS, strict=True):
            convolution = nn.Conv1d(dim, width, window, padding=window // 2)
            self.convolutions.append(convolution)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute features of shape `(n, length, features)` from hidden states of shape `(n, length, dim)`."""
        states = hidden_states.to(next(self.parameters()).dtype)
        is_padding = ~attention_mask.bool()
        states = states.masked_fill(is_padding[:, :, None], 0).transpose(1, 2)
        features = [F.relu(convolution(states)) for convolution in self.convolutions]
        return torch.cat(features, dim=1).transpose(1, 2)


class ISBERT(Objective):
    r"""IS-BERT (Zhang et al. 2020, EMNLP, arXiv:2009.12061): mutual information by the Jensen-Shannon estimator.

    Let T be the dot product of a token's local features (see [`NGramFeatures`]) with a sentence's global feature. It
    should be high if the token belongs to the sentence (P) and low if it belongs to another one of the global batch
    (Q):

        loss = mean over P of softplus(-T) + mean over Q of softplus(T)

    P holds every token once, [CLS] and [SEP] included. Q holds every token once for each other sentence. Padding is in
    neither.

    With the model's pooler `ngrams`, this is the paper's method: the global feature is the mean of the local ones, and
    it *is* the sentence embedding. The convolutions belong to the model, are saved beside its weights (`ngrams/`), and
    are needed at inference, so load the model with `SimCSE`: `AutoModel` gives the encoder without them.

    With any other pooler, the embedding is what that pooler gives, and `AutoModel` is enough at inference. A linear
    layer maps the embedding to the size of the local features. This layer and the convolutions are used in training
    only.

    A sentence is encoded once, without a second view, and only column 0 of a row is read.

    Args:
        dim (`int`): Size of the embeddings and of the hidden states.
    """

    name = "is_bert"
    summary = "mutual information (IS-BERT) between a sentence's embedding and the n-grams around its tokens"
    papers = ("is_bert",)
    # The authors' code. Their texts are the sentences of SNLI and MultiNLI, without labels.
    defaults = {
        "pooler_type": NGRAM_POOLER,
        "mlp_only_train": False,
        "max_seq_length": 128,
        "per_device_train_batch_size": 32,
        "learning_rate": 5e-6,
        "weight_decay": 0.01,
        "warmup_steps": 0.1,
        "num_train_epochs": 1,
    }
    supports_gradcache = False
    num_views = 1
    needs_hidden_states = True

    def __init__(self, dim: int):
        super().__init__(dim)
        self.ngrams: Any = None
        self.to_global: Any = None

    def attach(self, model: TrainedModel) -> None:
        """Make the convolutions, unless they are the model's pooler, which does not work with leading dimensions."""
        if model.settings.pooler_type != NGRAM_POOLER:
            self.ngrams = NGramFeatures(self.dim, FILTERS)
            self.to_global = nn.Linear(self.dim, sum(FILTERS))
        elif self.dim != model.config.hidden_size:
            raise SettingError(
                f"pooler {NGRAM_POOLER!r} compares whole embeddings with features of tokens: train without "
                "matryoshka_dims, or with another pooler_type"
            )

    def check(self, rows: TrainingRows) -> None:
        """Refuse rows of several sentences, and batches of a single one."""
        advice = "objective 'is_bert' learns from single sentences: give one text column"
        rows.check_width(1, advice)
        rows.check_batch("a sentence is compared with the others of its batch, and a batch of 1 has none")

    def forward(self, batch: EncodedBatch) -> Tensor:
        """Compute this process's share of the loss, as a scalar."""
        assert batch.hidden_states is not None
        states = batch.hidden_states[:, 0]
        mask = batch.inputs["attention_mask"][:, 0].bool()
        sentences = batch.embeddings[:, 0]
        if self.ngrams is None:
            local = batch.model.get_submodule("ngram_head")(states, mask)
        else:
            local = self.ngrams(states, mask)
            sentences = self.to_global(sentences.to(self.to_global.weight.dtype))
        sentences = gather_rows(as_full_precision(sentences), self.training)
        index = batch.token_index(0)
        tokens = as_full_precision(local).flatten(0, 1).index_select(0, index)
        row_of_token = index // mask.shape[1]
        sentence_of_token = own_rows(mask, self.training)[row_of_token, None]
        with no_autocast(tokens):
            scores = tokens @ sentences.T
            positive = scores.gather(1, sentence_of_token)
            of_others = scores.scatter(1, sentence_of_token, float("-inf"))
            negative = F.softplus(of_others).sum()
            others = max(len(sentences) - 1, 1)
            total = F.softplus(-positive).sum() + negative / others
            # Sentences differ in length, so the mean is taken over the tokens of all processes.
            return mean_over_processes(total, len(tokens), self.training)
