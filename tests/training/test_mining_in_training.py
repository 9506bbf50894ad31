"""Hard negatives that are mined during training: what a step sees, resuming, and several processes."""

import json
import logging

import numpy as np
import pytest
import torch
from conftest import VOCABULARY, fast_first, tiny_config
from datasets import Dataset
from transformers import TrainerCallback

from simcse_hf import AutoModelForCL, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.search.mining import MiningOptions
from simcse_hf.training.mined_rows import MinedRows

WORDS = VOCABULARY[5:25]


def pairs(rows=24, columns=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: " ".join(WORDS[i] for i in torch.randint(len(WORDS), (6,), generator=generator))  # noqa: E731
    return Dataset.from_dict({f"sent{c}": [draw() for _ in range(rows)] for c in range(columns)})


def arguments(tmp_path, **changes):
    values = {
        "output_dir": str(tmp_path / "run"), "per_device_train_batch_size": 8, "max_steps": 6, "learning_rate": 1e-2,
        "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "report_to": "none",
        "mine_every": 2,
    }  # fmt: skip
    return SimCSETrainingArguments(**(values | changes))


class Watch(TrainerCallback):
    """Records the batches that reach the model, and ends the run before a step."""

    def __init__(self, stop_at=None):
        self.batches, self.stop_at = [], stop_at

    def on_step_end(self, args, state, control, **kwargs):
        if self.stop_at is not None and state.global_step == self.stop_at:
            raise KeyboardInterrupt


def trainer_of(tmp_path, tokenizer, watch=None, columns=2, **changes):
    torch.manual_seed(1)
    model = AutoModelForCL.from_config(tiny_config(initializer_range=0.2), pooler_type="avg")
    watch = watch or Watch()
    trainer = SimCSETrainer(
        model,
        arguments(tmp_path, **changes),
        train_dataset=pairs(columns=columns),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    complete = trainer._complete_inputs

    def record(inputs, training):
        completed = complete(inputs, training)
        watch.batches.append(completed["input_ids"].clone())
        return completed

    trainer._complete_inputs = record
    return trainer, watch


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def negatives_by_hand(trainer, tokenizer, num_negatives):
    """The candidates nearest to each anchor, by a loop over all pairs of texts."""
    model, rows = trainer.model.eval(), trainer.train_dataset.pairs["input_ids"]
    embed = lambda ids: torch.nn.functional.normalize(  # noqa: E731
        model(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)).sentence_embeddings[0], dim=0
    )
    with torch.no_grad():
        anchors, positives = [embed(row[0]) for row in rows], [embed(row[1]) for row in rows]
    found = []
    for i, anchor in enumerate(anchors):
        others = [j for j in range(len(rows)) if j != i]
        others.sort(key=lambda j: -(anchor @ positives[j]).item())
        found.append([rows[j][1] for j in others[:num_negatives]])
    return found


def test_the_rows_get_the_nearest_candidates_of_the_model_in_training(tmp_path, tokenizer):
    trainer, _ = trainer_of(tmp_path, tokenizer, mine_every=100, mine_negatives=2, learning_rate=0.0)
    trainer.train()
    rows = [trainer.train_dataset[i]["input_ids"][2:] for i in range(24)]
    assert rows == negatives_by_hand(trainer, tokenizer, 2)


def test_negatives_are_replaced_every_n_steps_and_a_batch_that_was_fetched_before_is_made_again(tmp_path, tokenizer):
    trainer, watch = trainer_of(tmp_path, tokenizer)
    mined, mine = [], trainer.train_dataset.mine

    def record(*args):
        mine(*args)
        rows = [trainer.train_dataset[i]["input_ids"] for i in range(24)]
        mined.append({(tuple(row[0]), tuple(row[1]), tuple(row[2])) for row in rows})

    trainer.train_dataset.mine = record
    trainer.train()
    assert len(mined) == 3 and mined[0] != mined[1], "mined before steps 0, 2 and 4"
    for step, batch in enumerate(watch.batches):
        rows = {tuple(tuple(x for x in ids.tolist() if x != tokenizer.pad_token_id) for ids in row) for row in batch}
        assert rows <= mined[step // 2], f"step {step}"


@pytest.mark.parametrize("changes", fast_first({"dataloader_num_workers": 1}, {}, {"gradcache_chunk_size": 3}))
def test_workers_and_gradcache_see_the_same_negatives(tmp_path, tokenizer, changes):
    plain, first = trainer_of(tmp_path, tokenizer)
    plain.train()
    other, second = trainer_of(tmp_path, tokenizer, **changes)
    other.train()
    assert len(first.batches) == len(second.batches) == 6
    if "gradcache_chunk_size" in changes:  # other dropout masks, so other weights and negatives after a step
        assert torch.equal(first.batches[0], second.batches[0])
    else:
        assert all(map(torch.equal, first.batches, second.batches)) and same(weights(plain), weights(other))


@pytest.mark.parametrize(
    ("changes", "stop"),
    fast_first(
        ({"mine_every": 2}, 3),
        ({"mine_every": 2}, 4),
        ({"mine_every": None, "mine_every_epochs": 1}, 3),
        ({"mine_every": None, "mine_every_epochs": 1}, 5),
        ({"mine_relative_margin": 0.5, "mine_negatives": 2}, 3),
    ),
)
def test_a_killed_and_resumed_run_ends_with_the_bits_of_the_uninterrupted_one(tmp_path, tokenizer, changes, stop):
    every = {"save_strategy": "steps", "save_steps": 1, "max_steps": 7}
    whole, seen = trainer_of(tmp_path / "whole", tokenizer, **every, **changes)
    whole.train()
    killed, _ = trainer_of(tmp_path / "killed", tokenizer, Watch(stop_at=stop + 1), **every, **changes)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    resumed, after = trainer_of(tmp_path / "killed", tokenizer, **every, **changes)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"killed/run/checkpoint-{stop}"))
    assert len(after.batches) == 7 - stop
    assert all(map(torch.equal, seen.batches[stop:], after.batches))
    assert same(weights(whole), weights(resumed))


def test_a_second_run_of_a_trainer_starts_without_the_negatives_of_the_first(tmp_path, tokenizer):
    trainer, _ = trainer_of(tmp_path, tokenizer, max_steps=2)
    trainer.train()
    assert int(trainer.train_dataset._mining) == 1
    trainer.train()
    assert int(trainer.train_dataset._mining) == 1


def test_given_hard_negatives_are_candidates_and_are_replaced(tmp_path, tokenizer):
    trainer, watch = trainer_of(tmp_path, tokenizer, columns=3)
    assert trainer.train_dataset.table.num_candidates == 48
    trainer.train()
    assert {batch.shape[1] for batch in watch.batches} == {3}


def test_places_without_a_candidate_inside_the_bounds_are_filled_at_random_with_other_texts(
    tmp_path, tokenizer, caplog
):
    trainer, watch = trainer_of(tmp_path, tokenizer, mine_relative_margin=3.0, max_steps=3)
    logger = logging.getLogger("simcse_hf.training.mined_rows")
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    try:
        trainer.train()
    finally:
        logger.removeHandler(caplog.handler)
    assert "places without a candidate inside the bounds were filled at random" in caplog.text
    for batch in watch.batches:
        assert not any(torch.equal(row[2], row[1]) for row in batch), "a negative is never the positive"


def test_filling_excludes_what_the_anchor_must_not_take():
    rows = Dataset.from_dict({"input_ids": [[[1], [2]], [[1], [3]], [[1], [4]], [[5], [6]]]})
    mined = MinedRows(rows, MiningOptions())
    found = np.full((4, 1), -1)
    mined._fill(found, np.random.default_rng(0))
    assert found[:3].tolist() == [[3], [3], [3]] and found[3, 0] in (0, 1, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[[1, 2]], [[3, 4]]], "hold single sentences: train on pairs or triplets"),
        ([[[1], [2]], [[1], [3]]], "2 distinct candidates, 0 of which some anchor may take"),
    ],
)
def test_rows_that_cannot_be_mined_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        MinedRows(Dataset.from_dict({"input_ids": rows}), MiningOptions())


def test_a_checkpoint_without_mined_negatives_is_refused(tmp_path, tokenizer):
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    plain, _ = trainer_of(tmp_path, tokenizer, mine_every=None, **saved)
    plain.train()
    mining, _ = trainer_of(tmp_path, tokenizer, **saved | {"max_steps": 4})
    with pytest.raises(ValueError, match="its run did not mine hard negatives"):
        mining.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-2"))


def test_arguments_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ValueError, match="mine_every and mine_every_epochs are both given"):
        arguments(tmp_path, mine_every_epochs=1)
    with pytest.raises(ValueError, match="mine_every must be at least 1, got 0"):
        arguments(tmp_path, mine_every=0)
    with pytest.raises(ValueError, match="num_negatives must be at least 1"):
        arguments(tmp_path, mine_negatives=0)


def test_the_commands_take_the_options(tmp_path):
    from simcse_hf.training.script_arguments import parse_arguments

    words = "--model_name_or_path m --train_file t --mine_every 500 --mine_negatives 2 --mine_relative_margin 0.05"
    _, _, args = parse_arguments([*words.split(), "--output_dir", str(tmp_path), "--pooler_type", "avg"])
    assert args.mine_every == 500
    assert args.mining_options() == MiningOptions(num_negatives=2, relative_margin=0.05, seed=args.seed)
    json.dumps(args.to_dict())
