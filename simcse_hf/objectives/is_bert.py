"""IS-BERT: mutual information between a sentence's vector and the n-grams around its tokens."""

import torch
import torch.nn.functional as F
from torch import nn

from ..ops.distributed import gather_rows, sum_over_processes, world
from .base import EncodedBatch, Objective, TrainingRows
from .info_nce import as_full_precision

WINDOWS = (1, 3, 5)
FILTERS = 256  # a window, in the authors' code


class ISBERT(Objective):
    r"""IS-BERT (Zhang et al. 2020, EMNLP, arXiv:2009.12061): mutual information by the Jensen-Shannon estimator.

    The local features of a token are ReLU'd convolutions over the windows of 1, 3 and 5 tokens around it. Their dot
    product T with a sentence's global vector is high if the token is of that sentence (P) and low if it is of another
    of the global batch (Q):

        loss = mean over P of softplus(-T) + mean over Q of softplus(T)

    P has every token once, [CLS] and [SEP] among them, Q every token once for each other sentence. Padding is in
    neither, and a window sees zeros in its place, as beyond either end.

    Where this departs from the paper: there the mean of the local features *is* the sentence vector, so inference
    needs the convolutions. Here it is the pooler's output, which `AutoModel` loads, and a linear layer maps it to the
    dimension of the local features. That layer and the convolutions are for training only.

    There are no views: a sentence is encoded once, and only column 0 of a row is read.

    Args:
        dim: of the sentence vectors and of the hidden states.
    """

    summary = "mutual information (IS-BERT) between a sentence's embedding and the n-grams around its tokens"
    papers = ("is_bert",)
    supports_gradcache = False
    num_views = 1
    needs_hidden_states = True

    def __init__(self, dim: int):
        super().__init__(dim)
        self.ngrams = nn.ModuleList(nn.Conv1d(dim, FILTERS, window, padding=window // 2) for window in WINDOWS)
        self.to_global = nn.Linear(dim, FILTERS * len(WINDOWS))

    def check(self, rows: TrainingRows) -> None:
        if rows.num_sentences > 1 or rows.has_relations:
            raise ValueError(
                f"the training data has rows of {rows.num_sentences} sentences, and is_bert learns from single ones, "
                "without their positives and negatives: give one text column"
            )
        if rows.batch_size * rows.processes < 2:
            raise ValueError(
                "is_bert tells the tokens of a sentence from those of others, and a batch of 1 has no other: raise "
                "per_device_train_batch_size to at least 2"
            )

    def forward(self, batch: EncodedBatch) -> torch.Tensor:
        mask = batch.inputs["attention_mask"][:, 0].bool()
        tokens, sentences = self._local_features(batch.hidden_states[:, 0], mask), self._global_vectors(batch)
        rank, processes = world() if self.training else (0, 1)
        own = rank * len(mask) + mask.nonzero()[:, 0]  # the sentence of each token
        if self.training:
            sentences = gather_rows(sentences)
        count = torch.tensor(len(tokens), device=tokens.device)
        count = sum_over_processes(count) if self.training else count
        with torch.autocast(tokens.device.type, enabled=False):
            scores = tokens @ sentences.T
            positive = scores.gather(1, own[:, None])
            others = F.softplus(scores.scatter(1, own[:, None], float("-inf")))
            of_same = F.softplus(-positive).sum() / count
            of_others = others.sum() / (count * max(len(sentences) - 1, 1))
            # Sentences differ in length: the means are over the tokens of all processes.
            return processes * (of_same + of_others)

    def _global_vectors(self, batch: EncodedBatch) -> torch.Tensor:
        return as_full_precision(self.to_global(batch.vectors[:, 0].to(self.to_global.weight.dtype)))

    def _local_features(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(n, length, dim) -> (tokens, features): those of padding are left out, and no window looks at it."""
        states = states.to(self.to_global.weight.dtype).masked_fill(~mask[:, :, None], 0).transpose(1, 2)
        features = torch.cat([F.relu(ngram(states)) for ngram in self.ngrams], dim=1)
        return as_full_precision(features.transpose(1, 2)[mask])
