"""Rows of a premise and different numbers of hypotheses, as the objectives that read relations get them."""

import torch
from datasets import Dataset

from simcse_hf.objectives import EncodedBatch, TrainingRows

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
#: The relation where a row has no further hypothesis.
ABSENT = -100


def _many_rows():
    """Thirteen rows of one to five hypotheses with all relations."""
    rows = []
    for i in range(13):
        relations = [(i * j + j) % 3 for j in range(i % 5)]
        rows.append([*relations, ENTAILMENT])
    return rows


#: Relations of a row's hypotheses: 0 entailment, 1 neutral, 2 contradiction.
ROWS = {
    "pairs": [[0], [1], [2], [0]],
    "one row": [[0, 2]],
    "positives only": [[0], [0, 0]],
    "ragged": [[0, 2], [0], [0, 0, 1, 2, 2], [1, 0]],
    "a row without positive": [[1, 2], [0, 1], [0, 2, 0]],
    "many": _many_rows(),
}


def embedded(rows, dim):
    """A batch of one premise per row, with embeddings that require a gradient.

    They are large where there is no sentence, so that an objective which reads them is found out.
    """
    generator = torch.Generator().manual_seed(0)
    most_hypotheses = max(len(row) for row in rows)
    columns = most_hypotheses + 1
    vectors = torch.randn(len(rows), columns, dim, generator=generator, dtype=torch.float64)
    relations = torch.full((len(rows), most_hypotheses), ABSENT)
    for i, row in enumerate(rows):
        relations[i, : len(row)] = torch.tensor(row, dtype=torch.long)
        vectors[i, len(row) + 1 :] = 1e6
    premise_ids = torch.arange(len(rows))[:, None].expand(-1, columns)
    inputs = {"relations": relations, "text_ids": premise_ids}
    return EncodedBatch(vectors.requires_grad_(), inputs)


def training_rows(rows, global_batch=4):
    """What `check` is given, for rows with these relations."""
    sentences = [len(row) + 1 for row in rows]
    token_ids = [2, 7, 3]
    columns = {
        "input_ids": [[token_ids] * count for count in sentences],
        "relations": rows,
    }
    return TrainingRows(max(sentences), global_batch, columns, Dataset.from_dict(columns))
