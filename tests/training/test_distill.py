"""Runs with a teacher or a guide: resumed equals uninterrupted, two processes equal one, wrong vectors end."""

import json

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, tiny_config
from process_helpers import launch
from trainer_helpers import (
    SAVES,
    assert_close_weights,
    logged,
    make,
    model_of,
    texts,
    vectors_of,
    weights,
)
from transformers import BertTokenizer

from simcse_hf import AutoModelForCL
from simcse_hf.training.run import train_sup, train_unsup

SENTENCES = texts(24)
TRIPLETS = texts(24, 3)
TOKENIZER = BertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}, model_max_length=40)
DISTILL = {"objective": "distill"}
#: Model settings, rows, and the arguments of a run with the folder of vectors.
RUNS = {
    "teacher and neighbours": (DISTILL, SENTENCES, lambda folder: {"teacher": folder, "batch_neighbors": 2}),
    "ranks": (
        {"objective": "simcse+distill:0.5", "objective_options": {"loss": "listmle"}},
        SENTENCES,
        lambda folder: {"teacher": [f"{folder}:2", f"{folder}:1"]},
    ),
    "guide": ({}, TRIPLETS, lambda folder: {"guide": folder}),
    "guide and teacher": (
        {"objective": "simcse+distill"},
        TRIPLETS,
        lambda folder: {"guide": folder, "teacher": folder},
    ),
}


#: What lets a run learn from single sentences without dropout.
EQUAL_VIEWS = {"ranks": {"view": "fixed_mask"}}


def run(folder, name, output="run", batch=4, dropout=0.1, **changes):
    settings, rows, vectors = RUNS[name]
    values = SAVES | {"max_steps": 9, "max_seq_length": 16, "logging_steps": 1, "save_steps": 4}  # 6 are an epoch
    values |= vectors(vectors_of(folder / name.replace(" ", "-"), rows))
    values |= {"output_dir": str(folder / output), "per_device_train_batch_size": batch}
    model = model_of(dropout=dropout, pooler_type="avg", **settings)
    return make(folder, TOKENIZER, rows, model, **values | changes)


@pytest.mark.parametrize("name", RUNS)
def test_gradcache_equals_the_whole_batch(name, tmp_path):
    options = {"dropout": 0.0, "max_steps": 3} | EQUAL_VIEWS.get(name, {})
    plain = run(tmp_path, name, output="plain", **options)
    cached = run(tmp_path, name, output="cached", gradcache_chunk_size=2, **options)
    plain.train(), cached.train()
    assert_close_weights(weights(plain.model), weights(cached.model), but="key.bias", rtol=0, atol=2e-5)


def train_in_process(folder, processes):
    for name in RUNS:
        options = {"batch": 8 // processes, "dropout": 0.0, "ddp_backend": "gloo"} | EQUAL_VIEWS.get(name, {})
        trainer = run(folder, name, output=f"{name}-of-{processes}", max_steps=4, save_steps=100, **options)
        trainer.train()
        if trainer.is_world_process_zero():
            torch.save(trainer.model.state_dict(), folder / f"{name}-of-{processes}.pt")


def test_two_processes_give_the_weights_of_one_with_the_whole_batch(tmp_path):
    for name, (_, rows, _) in RUNS.items():
        vectors_of(tmp_path / name.replace(" ", "-"), rows)
    for processes in (1, 2):
        launch(train_in_process, tmp_path, processes, processes=processes)
    for name in RUNS:
        one, two = (torch.load(tmp_path / f"{name}-of-{n}.pt") for n in (1, 2))
        assert_close_weights(one, two, but="key.bias", rtol=0, atol=2e-5)


def test_a_guide_changes_what_is_learned_and_a_teacher_has_its_vectors_in_the_batch(tmp_path):
    guided, plain = run(tmp_path, "guide"), run(tmp_path, "guide", output="plain", guide=None)
    batch = guided.data_collator([guided.train_dataset[i] for i in (5, 2)])
    shards = np.concatenate([np.load(path) for path in sorted((tmp_path / "guide").glob("*.npy"))])
    expected = torch.tensor(shards).view(24, 3, -1)[[5, 2]]
    torch.testing.assert_close(batch["guide"], torch.nn.functional.normalize(expected, dim=-1))
    assert "guide" not in plain.data_collator([plain.train_dataset[0]])
    guided.train(), plain.train()
    assert logged(guided, "loss")[0] < logged(plain, "loss")[0]  # some candidates are left out


# --- commands ---


def test_the_command_trains_with_the_vectors_of_a_folder_and_records_them(tmp_path, save_checkpoint):
    start = save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"), "start")
    SENTENCES.to_csv(tmp_path / "texts.csv")
    line = f"--model {start} --max_steps 2 --per_device_train_batch_size 8 --use_cpu --report_to none"
    words = f"{line} --train_file {tmp_path / 'texts.csv'} --output_dir {tmp_path / 'run'} --objective distill".split()
    with pytest.raises(ValueError, match="objective 'distill' learns from a teacher: name a model, or the folder"):
        train_unsup(words)
    folder = vectors_of(tmp_path / "teacher", SENTENCES)
    assert train_unsup([*words, "--teacher", f"{folder}:0.3", f"{folder}:0.7"]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["arguments"]["teacher"] == [f"{folder}:0.3", f"{folder}:0.7"]
    TRIPLETS.to_csv(tmp_path / "rows.csv")
    words = f"{line} --train_file {tmp_path / 'rows.csv'} --output_dir {tmp_path / 'sup'}".split()
    with pytest.raises(ValueError, match=r"teacher holds the vectors of other texts, .* \(24 there, 72 here\)"):
        train_sup([*words, "--guide", folder])


def test_a_run_does_not_resume_with_other_vectors(tmp_path):
    run(tmp_path, "guide").train()
    other = vectors_of(tmp_path / "other", TRIPLETS, seed=1)
    checkpoint = str(tmp_path / "run" / "checkpoint-4")
    with pytest.raises(ValueError, match="vectors of the guide"):
        run(tmp_path, "guide", guide=other).train(resume_from_checkpoint=checkpoint)
    moved = str((tmp_path / "guide").rename(tmp_path / "moved"))
    run(tmp_path, "guide", guide=moved).train(resume_from_checkpoint=checkpoint)
