"""Several data sets in a run: what a batch holds, the shares, other objectives, resuming, and two processes."""

import numpy as np
import pytest
import torch
from evaluation_helpers import write
from trainer_helpers import logged, model_of, refuses, rows_for, scored, sentences, texts

from simcse_hf import AutoModelForCL
from simcse_hf.data.samplers import MixtureSampler, PermutedSampler
from simcse_hf.publishing.card import write_card
from simcse_hf.training.recipe import Recipe


def mixture():
    """26 sentences, 17 pairs, and 19 pairs with a score."""
    return {"plain": texts(26), "pairs": texts(17, 2, seed=1), "sts.b": scored()}


TABLES = {"sts.b": {"objective": "cosent", "prompts": {"anchor": "the old "}, "max_seq_length": 6}}


@pytest.fixture
def mix(make):
    """`mix(data, model, tables)` makes a trainer with several data sets."""

    def mix(data=None, model=None, tables=TABLES, **changes):
        options = {"datasets": tables, "per_device_train_batch_size": 4, **changes}
        return make(data or mixture(), model, **options)

    return mix


# --- the order ---

SIZES = [24, 9, 6]


def sampler(shares, batch_size=3):
    parts = {str(size): PermutedSampler(size, 0) for size in SIZES}
    first_rows = [0, 24, 33]
    return MixtureSampler(parts, first_rows, shares, batch_size, 0)


def dataset_of_each_batch(order):
    """The number of the data set of each batch of three, which must be one."""
    of_row = np.searchsorted(np.cumsum(SIZES), list(order), side="right").reshape(-1, 3)
    assert (of_row == of_row[:, :1]).all()
    return of_row[:, 0].tolist()


@pytest.mark.parametrize(
    "shares, batches",
    [
        ("proportional", [8, 3, 2]),  # proportional to rows
        ([1, 1, 2], [3, 3, 6]),  # shares
        ([1000, 1000, 1], [6, 6, 1]),  # no data set is left out
    ],
)
def test_the_batches_of_an_epoch_are_in_proportion_to_rows_or_shares(shares, batches):
    numbers = dataset_of_each_batch(sampler(shares))
    assert np.bincount(numbers).tolist() == batches


def test_an_epoch_in_proportion_to_rows_has_each_row_once():
    assert sorted(sampler("proportional")) == list(range(39))


def test_round_robin_takes_the_data_sets_in_turn_and_starts_small_ones_again():
    order = list(sampler("round_robin"))
    assert dataset_of_each_batch(order) == [0, 1, 2] * 4
    assert sorted(row for row in order if row >= 33) == sorted([*range(33, 39)] * 2)


def test_a_data_set_that_fills_no_batch_is_refused():
    with refuses("data set '6' has 6 rows, fewer than one batch of 8 over all processes"):
        sampler("proportional", batch_size=8)


def test_no_process_makes_the_batches_of_all_of_several_data_sets(mix):
    trainer = mix(accelerator_config={"dispatch_batches": True})
    assert trainer.args.accelerator_config.dispatch_batches is False


# --- the batches of a run ---


def test_a_batch_has_the_form_the_prompt_and_the_length_of_the_data_set_that_it_comes_from(mix, tokenizer):
    trainer = mix()
    batches = ([], [], [])
    for batch in trainer.get_train_dataloader():
        [number] = {int(number) for number in batch["dataset"]}
        batches[number].append(batch)
    plain, _, sts_b = batches
    assert [len(of_dataset) for of_dataset in batches] == [6, 4, 4]
    assert plain[0]["input_ids"].shape[:2] == (4, 2), "two views of each sentence"
    assert "scores" in sts_b[0]
    assert "scores" not in plain[0]
    assert max(batch["input_ids"].shape[-1] for batch in sts_b) <= 6
    [anchor] = sentences(1, 3)
    expected = tokenizer(f"the old {anchor}", truncation=True, max_length=6)["input_ids"]
    assert trainer.train_dataset[26 + 17]["input_ids"][0] == expected


def test_texts_of_a_class_stay_together_in_a_mixture(mix):
    labels = [f"class {i % 6}" for i in range(24)]
    labelled = {"text": sentences(24, 5), "label": labels}
    data = {"plain": texts(8), "labelled": labelled}
    trainer = mix(data, tables={"labelled": {"objective": "class_labels"}})
    of_classes = [batch for batch in trainer.get_train_dataloader() if batch["dataset"][0] == 1]
    assert len(of_classes) == 6
    for batch in of_classes:
        _, rows_of_class = torch.unique(batch["labels"], return_counts=True)
        assert rows_of_class.min() >= 2
    trainer.train()


# --- the objective of each data set ---

BATCHES_OF_LOSSES = {"plain_loss": 6, "pairs_simcse_loss": 4, "pairs_barlow_twins_loss": 4, "sts.b_loss": 4}


def projector_of_pairs(trainer):
    objective = trainer.model.objective.of_dataset(1)
    return objective.parts["barlow_twins"].projector[0].weight.detach().clone()


def test_each_data_set_learns_by_its_own_objective_which_is_logged_and_recorded(mix):
    tables = {
        "sts.b": {"objective": "cosent"},
        "pairs": {"objective": "simcse+barlow_twins:0.1", "objective_options": {"projector_dim": 8}},
    }
    options = {"logging_steps": 14, "num_train_epochs": 1, "max_steps": -1}
    trainer = mix(tables=tables, **options)
    before = projector_of_pairs(trainer)
    trainer.train()
    total = 0.0
    for name, number in BATCHES_OF_LOSSES.items():
        [mean] = logged(trainer, name)  # over the batches of its data set
        total += mean * number
    [whole] = logged(trainer, "contrastive_loss")
    assert total / 14 == pytest.approx(whole, rel=1e-4)
    assert not torch.equal(projector_of_pairs(trainer), before)
    assert len(before) == 8, "as its options say"
    recorded = trainer.model.settings.dataset_objectives
    assert {name: own.get("objective") for name, own in recorded.items()} == {
        "plain": None,
        "pairs": "simcse+barlow_twins:0.1",
        "sts.b": "cosent",
    }


def test_the_objectives_of_data_sets_stay_behind_in_a_run_without_them(make, mix, tmp_path):
    mix().save_model()
    start = AutoModelForCL.from_pretrained(tmp_path / "run")
    model = make(model=start).model
    assert model.settings.dataset_objectives == {}
    assert model.objective.name == "simcse"


# --- tables that cannot work ---


@pytest.mark.parametrize(
    "tables, words",
    [
        ({"stsb": {}}, "'stsb' train_dataset 'sts.b'"),
        ({"plain": {"share": 2}}, "1 3 share"),
        ({"plain": {"share": 0}}, "'plain': share 0"),
        ({"plain": {"train_file": "x"}}, "'plain': train_file objective"),
        ("nli", "datasets table"),
        ({"pairs": {"objective_options": {"scale": 2}}}, "'pairs' objective_options"),
        ({"pairs": {"objective": "contrastive_tension"}}, "contrastive_tension encoders"),
        ({"pairs": {"prompts": {"positive": "the old cat "}, "max_seq_length": 5}}, "['pairs'], positive: 5"),
        ({"pairs": {"objective": "angle"}}, "['pairs']: 'score'"),
    ],
)
def test_tables_that_cannot_work_are_refused(mix, tables, words):
    with refuses(words):
        mix(tables=tables)


def test_what_is_for_one_or_for_several_data_sets_is_refused_for_the_others(mix):
    with refuses("datasets 'a' train_dataset one"):
        mix(texts(8), tables={"a": {}})
    with refuses("train_sampling_strategy 'sequential'"):
        mix(train_sampling_strategy="sequential")


def test_rows_that_do_not_fit_the_objective_of_their_data_set_are_refused_with_its_name(mix):
    trainer = mix(tables={"pairs": {"objective": "is_bert"}}, model=model_of(pooler_type="avg"))
    with refuses("data set 'pairs': rows with 2 sentences"):
        trainer.train()


# --- a recipe with several data sets ---


def test_a_recipe_names_several_data_sets_and_so_do_its_results_and_its_card(tmp_path, save_checkpoint):
    plain = str(write(tmp_path / "plain.txt", sentences(24)))
    pairs, sts, out = (str(tmp_path / name) for name in ("pairs.csv", "sts.csv", "out"))
    texts(24, 2).to_csv(pairs)
    scored(16).to_csv(sts)
    recipe = {
        "model_name_or_path": str(save_checkpoint(model_of())),
        "output_dir": out,
        "use_cpu": True,
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "datasets": {
            "plain": {"train_file": plain, "share": 2},
            "pairs": {"train_file": pairs, "columns": ["sent1", "sent0"], "prompts": {"anchor": "the "}, "share": 1},
            "sts": {"train_file": sts, "objective": "cosent", "share": 1},
        },
    }
    described = Recipe("sup", recipe).train().run
    assert (described["datasets"], described["train_rows"]) == ({"plain": 24, "pairs": 24, "sts": 16}, 64)
    card = write_card(out).read_text()
    named = "`plain` (24 rows), `pairs` (24 rows), `sts` (16 rows, objective `cosent`)"
    assert f"one of the data sets {named}." in card
    assert "64 rows of texts" in card and "CoSENT" in card


# --- labelled texts among several data sets ---


@pytest.mark.parametrize("given", [{}, {"objective": "simcse"}], ids=["no objective", "an objective"])
def test_labelled_texts_among_others_learn_from_classes_unless_told_otherwise(given, tmp_path, save_checkpoint):
    start = {"model_name_or_path": str(save_checkpoint(model_of()))}
    labelled, pairs = (str(tmp_path / name) for name in ("labelled.csv", "pairs.csv"))
    rows_for("class_labels").to_csv(labelled)
    texts(16, 2).to_csv(pairs)
    tables = {
        "labelled": {"train_file": labelled},
        "pairs": {"train_file": pairs},
        "own": {"train_file": labelled, "objective": "supcon"},
    }
    decided = Recipe.read("sup", start | {"datasets": tables}, given).decide()
    objectives = {name: table.get("objective") for name, table in decided.training.datasets.items()}
    of_labelled = None if given else "class_labels"  # that of the run
    assert objectives == {"labelled": of_labelled, "pairs": None, "own": "supcon"}
