"""Rows of a premise and different numbers of hypotheses, as the objectives that read relations get them."""

import torch
from datasets import Dataset

from simcse_hf.objectives import EncodedBatch, TrainingRows

#: Relations of a row's hypotheses: 0 entailment, 1 neutral, 2 contradiction.
ROWS = {
    "pairs": [[0], [1], [2], [0]],
    "one row": [[0, 2]],
    "positives only": [[0], [0, 0]],
    "ragged": [[0, 2], [0], [0, 0, 1, 2, 2], [1, 0]],
    "a row without positive": [[1, 2], [0, 1], [0, 2, 0]],
    "many": [[(i * j + j) % 3 for j in range(i % 5)] + [0] for i in range(13)],
}


def embedded(rows, dim, dtype=torch.float64, seed=0, scale=1.0):
    """A batch of one premise per row, whose embeddings require a gradient and are large where there is no sentence."""
    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, rows))
    vectors = scale * torch.randn(len(rows), width + 1, dim, generator=generator, dtype=torch.float64)
    relations = torch.full((len(rows), width), -100)
    for i, row in enumerate(rows):
        relations[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        vectors[i, len(row) + 1 :] = 1e6
    inputs = {"relations": relations, "text_ids": torch.arange(len(rows))[:, None].expand(-1, width + 1)}
    return EncodedBatch(vectors.to(dtype).requires_grad_(), inputs)


def training_rows(rows, global_batch=4, sentences=None):
    """What `check` is given, for rows with these relations."""
    sentences = sentences or [len(row) + 1 for row in rows]
    columns = {"input_ids": [[[2, 7, 3]] * count for count in sentences], "relations": rows}
    return TrainingRows(max(sentences), global_batch, columns, Dataset.from_dict(columns))
