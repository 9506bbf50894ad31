"""Training from a stream: resuming, views, and what a stream cannot do."""

import os
from functools import partial
from itertools import islice

import pytest
from conftest import fast_first, tiny_tokenizer
from datasets import IterableDataset
from process_helpers import in_processes
from trainer_helpers import SAVES, logged, model_of, sentences, texts, train_and_resume, train_command
from trainer_helpers import make as make_in

from simcse_hf.data.stream import load_text_stream


def write_texts(path, rows=27, columns=1):
    texts(rows, columns).to_pandas().to_csv(path, index=False)
    return path


STEPS = {"per_device_train_batch_size": 4, "max_steps": 12, "learning_rate": 1e-2, "logging_steps": 1}


@pytest.mark.parametrize(
    "columns, name, changes",
    fast_first(
        (1, "texts.csv", {}),
        (1, "texts.csv.gz", {"view": "crop", "view_rate": 0.4}),
        (2, "pairs.csv", {"gradient_accumulation_steps": 2, "max_steps": 8}),
        (3, "triplets.csv.gz", {"gradcache_chunk_size": 2}),
    ),
)
def test_a_resumed_run_ends_with_the_bits_of_the_uninterrupted_one(make, tmp_path, columns, name, changes):
    path = write_texts(tmp_path / name, columns=columns)
    options = STEPS | SAVES | {"save_steps": 5} | changes
    runs = train_and_resume(lambda: make(load_text_stream(path), **options), 5)
    for figure in ("loss", "learning_rate", "grad_norm"):
        assert logged(runs[0], figure) == logged(runs[1], figure)
    assert len(logged(runs[0], "loss")) == runs[0].state.max_steps


def first_texts(trainer, batches):
    """The token ids of the first text of each row; all texts have the same length."""
    rows = islice(trainer.get_train_dataloader(), batches)
    return [batch["input_ids"][:, 0].tolist() for batch in rows]


def test_each_pass_has_every_row_once_also_in_a_second_run(make, tmp_path):
    trainer = make(load_text_stream(write_texts(tmp_path / "a.csv", rows=24)), **STEPS)
    first = sum(first_texts(trainer, 6), [])
    both = sum(first_texts(trainer, 12), [])
    assert first == both[:24] == both[24:]
    assert len({*map(tuple, first)}) == len({*map(tuple, both)})
    trainer.train()
    assert sum(first_texts(trainer, 6), []) == first


def batches_of(folder, paths, size):
    trainer = make_in(
        folder, tiny_tokenizer(), load_text_stream(paths), per_device_train_batch_size=size, max_steps=12
    )
    return first_texts(trainer, 5)


def _batches_in_process(paths, rank, processes):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    return batches_of(paths[0].parent / "two", paths, 4)


@pytest.mark.parametrize("files", [1, 2])
def test_two_processes_share_the_batches_of_one(tmp_path, files):
    paths = [write_texts(tmp_path / f"{number}.csv", rows=40) for number in range(files)]
    first, second = in_processes(partial(_batches_in_process, paths), tmp_path)
    whole = batches_of(tmp_path / "one", paths, 8)
    assert [own + other for own, other in zip(first, second, strict=True)] == whole


def test_epochs_of_a_stream_are_passes_over_its_rows(trained, tmp_path):
    """They are known when the second pass begins."""
    stream = load_text_stream(write_texts(tmp_path / "a.csv", rows=24))
    trainer = trained(stream, **STEPS | {"gradient_accumulation_steps": 2, "max_steps": 5})
    assert logged(trainer, "epoch") == [1.0, 32 / 24, 40 / 24, 40 / 24]
    assert trainer.results.run["epochs"] == 40 / 24


def test_a_stream_whose_first_rows_are_alike_is_trained_on(make, tmp_path):
    path = tmp_path / "sorted.txt"
    path.write_text("a cat\n" * 1200 + "a dog\n" * 20)
    assert make(load_text_stream(path), max_steps=1).train().global_step == 1


def test_a_stream_of_the_caller_can_be_trained_on_and_is_described(trained):
    rows = [{"query": f"a {word}", "pos": f"the {word}", "id": 1} for word in sentences(20)]
    trainer = trained(IterableDataset.from_generator(lambda: iter(rows)), max_steps=2)
    described = {"train_rows": None, "rows": "pairs", "num_sentences": 2}
    assert trainer.describe_run().items() >= described.items()


def test_the_command_streams_a_file(tmp_path, save_checkpoint):
    path = write_texts(tmp_path / "texts.csv.gz")
    line = f"--model {save_checkpoint(model_of())} --train_file {path} --output_dir {tmp_path / 'out'} --streaming"
    train_command("unsup", f"{line} --max_steps 3 --use_cpu --per_device_train_batch_size 4 --disable_tqdm true")
