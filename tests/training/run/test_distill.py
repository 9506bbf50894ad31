"""Runs with a teacher or a guide: what the vectors change, and vectors of other texts."""

import numpy as np
import pytest
import torch
from conftest import read_json, tiny_tokenizer
from trainer_helpers import SAVES, logged, make, model_of, refuses, texts, train_command, vectors_of

from simcse_hf import AutoModelForCL

TRIPLETS = texts(24, 3)
TOKENIZER = tiny_tokenizer()


def run(folder, output="run", **changes):
    """A run of 9 steps with triplets and the folder of a guide."""
    values = SAVES | {"max_steps": 9, "logging_steps": 1, "save_steps": 4, "output_dir": str(folder / output)}
    values["guide"] = vectors_of(folder / "guide", TRIPLETS)
    return make(folder, TOKENIZER, TRIPLETS, model_of(pooler_type="avg", dropout=0.0), **values | changes)


def test_a_guide_changes_what_is_learned_and_has_its_vectors_in_the_batch(tmp_path):
    guided, plain = run(tmp_path), run(tmp_path, output="plain", guide=None)
    batch = guided.data_collator([guided.train_dataset[i] for i in (5, 2)])
    shards = np.concatenate([np.load(path) for path in sorted((tmp_path / "guide").glob("*.npy"))])
    expected = torch.tensor(shards).view(24, 3, -1)[[5, 2]]
    torch.testing.assert_close(batch["guide"], torch.nn.functional.normalize(expected, dim=-1))
    assert "guide" not in plain.data_collator([plain.train_dataset[0]])
    guided.train(), plain.train()
    assert logged(guided, "loss")[0] < logged(plain, "loss")[0]  # some candidates are left out


def test_the_command_trains_with_the_vectors_of_a_folder_and_records_them(tmp_path, save_checkpoint):
    start = save_checkpoint(model_of(pooler_type="avg"), "start")
    texts(24).to_csv(tmp_path / "texts.csv")
    files = f"--model {start} --train_file {tmp_path / 'texts.csv'} --output_dir {tmp_path / 'run'}"
    words = f"{files} --max_steps 2 --per_device_train_batch_size 8 --use_cpu --report_to none --objective distill"
    with refuses("objective 'distill' learns from a teacher: name a model, or the folder"):
        train_command("unsup", words)
    folder = vectors_of(tmp_path / "teacher", texts(24))
    train_command("unsup", f"{words} --teacher {folder}:0.3 {folder}:0.7")
    results = read_json(tmp_path / "run" / "results.json")
    assert results["arguments"]["teacher"] == [f"{folder}:0.3", f"{folder}:0.7"]
    with refuses("teacher holds the vectors of other texts, (24 there, 72 here)"):
        run(tmp_path, guide=folder)


def test_a_run_does_not_resume_with_other_vectors(tmp_path):
    run(tmp_path).train()
    other = vectors_of(tmp_path / "other", TRIPLETS, seed=1)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    with refuses("vectors of the guide"):
        run(tmp_path, guide=other).train(resume_from_checkpoint=checkpoint)
    moved = str((tmp_path / "guide").rename(tmp_path / "moved"))
    run(tmp_path, guide=moved).train(resume_from_checkpoint=checkpoint)


def test_an_evaluation_has_the_vectors_that_the_teacher_gives_its_own_texts(tmp_path, save_checkpoint):
    teacher = save_checkpoint(model_of(pooler_type="avg"), "teacher")
    student = AutoModelForCL.from_pretrained(teacher, objective="distill")
    data = texts(48)
    train, others = (data.select(range(start, start + 24)) for start in (0, 24))
    trainer = make(tmp_path, TOKENIZER, train, student, teacher=[str(teacher)], eval_dataset=others)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(0, abs=1e-6)  # it begins as its teacher
