"""A data frame is taken wherever a function takes a file of rows, and gives what the file gives."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from trainer_helpers import sentences

from simcse_hf import SimCSE, duplicates, encode, evaluate, index, mine, search, train

FIRST, SECOND = (sentences(8, seed) for seed in (1, 2))
PAIRS = {"query": FIRST, "positive": [[text] for text in SECOND]}
SCORED = {"sentence1": FIRST, "sentence2": SECOND, "score": [float(row) for row in range(8)]}
LABELLED = {"text": FIRST + SECOND, "label": [0, 1] * 8}
RANKED = {"query": FIRST, "positive": [[text] for text in SECOND], "negative": [[text] for text in FIRST[::-1]]}
TEXTS = {"text": FIRST, "id": [str(row) for row in range(8)]}


def trained(frame, start):
    values = {"max_steps": 1, "per_device_train_batch_size": 4, "learning_rate": 0.1, "max_seq_length": 16}
    values |= {"model_name_or_path": start, "report_to": "none", "overwrite_output_dir": True, "output_dir": "run"}
    results = train("sup", train_file=frame(PAIRS), dev_file=frame(SCORED), eval_steps=1, **values)
    return results.change


def searched(frame, model):
    encode(model, frame(TEXTS), "vectors", column="text", overwrite=True)
    index(frame(TEXTS), "index", model=model, vectors="vectors", keep=["id"], overwrite=True)
    [found] = search(FIRST[:1], "index", model=model, filters={"id": "3"})
    return np.load("vectors/vectors.npy").tolist(), found.to_dict()


def scored_by_tasks(frame, model):
    tasks = [("classification", LABELLED), ("knn", LABELLED), ("reranking", RANKED)]
    tasks.append(("pairs", SCORED | {"score": [0, 1] * 4}))
    evaluation = evaluate(model, task=[(kind, frame(columns)) for kind, columns in tasks])
    return [evaluation.results[kind][evaluation.results[kind]["metrics"][0]] for kind, _ in tasks]


DOORS = {
    "train": trained,
    "evaluate": lambda frame, model: evaluate(model, pairs=[frame(SCORED)]).results["average"]["value"],
    "evaluate by tasks": scored_by_tasks,
    "encode, index and search": searched,
    "mine": lambda frame, model: mine(model, frame(PAIRS), "mined.csv", overwrite=True).negative_score,
    "duplicates": lambda frame, model: [pair.row for pair in duplicates(frame(TEXTS), model, 0.0, column="text")],
}


@pytest.mark.parametrize("door", DOORS)
def test_a_data_frame_gives_what_a_file_of_its_rows_gives(door, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    model = str(checkpoint) if door == "train" else SimCSE(checkpoint, device="cpu")

    def file(columns):
        path = f"{'-'.join(columns)}.parquet"
        pd.DataFrame(columns).to_parquet(path)
        return path

    expected = DOORS[door](file, model)
    assert DOORS[door](pd.DataFrame, model) == expected
    assert DOORS[door](pa.table, model) == expected
