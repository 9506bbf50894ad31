"""Several data sets in a run: what a batch holds, the shares, other objectives, resuming, and two processes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset
from trainer_helpers import logged, model_of, refuses, scored, sentences, texts, train_command
from trainer_helpers import make as make_trainer

from simcse_hf import AutoModelForCL
from simcse_hf.data.samplers import MixtureSampler, PermutedSampler
from simcse_hf.publishing.card import write_card
from simcse_hf.training.recipe import Recipe


def mixture():
    """26 sentences, 17 pairs, and 19 pairs with a score."""
    return {"plain": texts(26), "pairs": texts(17, 2, seed=1), "sts.b": scored()}


TABLES = {
    "sts.b": {
        "objective": "cosent",
        "prompts": {"anchor": "the old "},
        "max_seq_length": 6,
    },
}


def make(tmp_path, tokenizer, data=None, model=None, tables=TABLES, **changes):
    options = {"datasets": tables, "per_device_train_batch_size": 4, **changes}
    return make_trainer(tmp_path, tokenizer, data or mixture(), model, **options)


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
        pytest.param("proportional", [8, 3, 2], id="proportional to rows"),
        pytest.param([1, 1, 2], [3, 3, 6], id="shares"),
        pytest.param([1000, 1000, 1], [6, 6, 1], id="no data set is left out"),
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
    message = "data set '6' has 6 rows, fewer than one batch of 8 over all processes"
    with pytest.raises(ValueError, match=message):
        sampler("proportional", batch_size=8)


def test_no_process_makes_the_batches_of_all_of_several_data_sets(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, accelerator_config={"dispatch_batches": True})
    assert trainer.args.accelerator_config.dispatch_batches is False


# --- the batches of a run ---

PLAIN, OF_PAIRS, STS_B = 0, 1, 2


@pytest.fixture(scope="module")
def trainer_of_mixture(tmp_path_factory, tokenizer):
    return make(tmp_path_factory.mktemp("run"), tokenizer)


@pytest.fixture(scope="module")
def batches(trainer_of_mixture):
    """The batches of each data set, by its number."""
    seen = {PLAIN: [], OF_PAIRS: [], STS_B: []}
    for batch in trainer_of_mixture.get_train_dataloader():
        [number] = {int(number) for number in batch["dataset"]}
        seen[number].append(batch)
    return seen


def test_a_batch_has_the_form_of_the_data_set_that_it_comes_from(batches):
    assert [len(batches[number]) for number in (PLAIN, OF_PAIRS, STS_B)] == [6, 4, 4]
    assert batches[PLAIN][0]["input_ids"].shape[:2] == (4, 2), "two views of each sentence"
    assert "scores" in batches[STS_B][0]
    assert "scores" not in batches[PLAIN][0]
    assert max(batch["input_ids"].shape[-1] for batch in batches[STS_B]) <= 6


def test_the_prompt_of_a_data_set_stands_before_its_anchors(trainer_of_mixture, tokenizer):
    first = trainer_of_mixture.train_dataset[26 + 17]
    [anchor] = sentences(1, 3)
    expected = tokenizer(f"the old {anchor}", truncation=True, max_length=6)["input_ids"]
    assert first["dataset"] == STS_B
    assert first["input_ids"][0] == expected


def rows_of_least_class(batch):
    _, counts = torch.unique(batch["labels"], return_counts=True)
    return counts.min().item()


def test_texts_of_a_class_stay_together_in_a_mixture(tmp_path, tokenizer):
    labels = [f"class {i % 6}" for i in range(24)]
    labelled = Dataset.from_dict({"text": sentences(24, 5), "label": labels})
    data = {"plain": texts(8), "labelled": labelled}
    trainer = make(tmp_path, tokenizer, data, tables={"labelled": {"objective": "class_labels"}})
    of_classes = [batch for batch in trainer.get_train_dataloader() if batch["dataset"][0] == 1]
    assert len(of_classes) == 6
    assert min(rows_of_least_class(batch) for batch in of_classes) >= 2
    trainer.train()


# --- the objective of each data set ---

BATCHES_OF_LOSSES = {
    "plain_loss": 6,
    "pairs_simcse_loss": 4,
    "pairs_barlow_twins_loss": 4,
    "sts.b_loss": 4,
}


def projector_of_pairs(trainer):
    objective = trainer.model.objective.of_dataset(OF_PAIRS)
    return objective.parts["barlow_twins"].projector[0].weight.detach().clone()


def test_each_data_set_learns_by_its_own_objective_which_is_logged_and_recorded(tmp_path, tokenizer):
    tables = {
        "sts.b": {"objective": "cosent"},
        "pairs": {"objective": "simcse+barlow_twins:0.1", "objective_options": {"projector_dim": 8}},
    }
    options = {"logging_steps": 14, "num_train_epochs": 1, "max_steps": -1}
    trainer = make(tmp_path, tokenizer, tables=tables, **options)
    before = projector_of_pairs(trainer)
    trainer.train()
    total = 0.0
    for name, number in BATCHES_OF_LOSSES.items():
        [mean] = logged(trainer, name)  # over the batches of its data set
        total += mean * number
    [whole] = logged(trainer, "contrastive_loss")
    assert total / 14 == pytest.approx(whole, rel=1e-4)
    assert not torch.equal(projector_of_pairs(trainer), before)
    recorded = trainer.model.settings.dataset_objectives
    assert {name: own.get("objective") for name, own in recorded.items()} == {
        "plain": None,
        "pairs": "simcse+barlow_twins:0.1",
        "sts.b": "cosent",
    }


def test_the_objectives_of_data_sets_stay_behind_in_a_run_without_them(tmp_path, tokenizer):
    make(tmp_path, tokenizer).save_model()
    start = AutoModelForCL.from_pretrained(tmp_path / "run")
    model = make_trainer(tmp_path / "one", tokenizer, model=start).model
    assert model.settings.dataset_objectives == {}
    assert model.objective.name == "simcse"


def test_evaluation_data_of_a_data_set_has_its_objective_and_any_other_is_refused(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, eval_dataset={"sts.b": scored(8)})
    assert "eval_sts.b_loss" in trainer.evaluate()
    with pytest.raises(ValueError, match="names none of the data sets plain, pairs, sts.b: evaluate eval_dataset"):
        trainer.evaluate(texts(8, 2))


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
        ({"pairs": {"max_seq_length": 2}}, "['pairs']: max_seq_length"),
        ({"pairs": {"prompts": {"positive": "the old cat "}, "max_seq_length": 5}}, "['pairs'], positive: 5"),
        ({"pairs": {"objective": "angle"}}, "['pairs']: 'score'"),
    ],
)
def test_tables_that_cannot_work_are_refused(tmp_path, tokenizer, tables, words):
    with refuses(words):
        make(tmp_path, tokenizer, tables=tables)


def test_what_is_for_one_or_for_several_data_sets_is_refused_for_the_others(tmp_path, tokenizer):
    with refuses("datasets 'a' train_dataset one"):
        make(tmp_path, tokenizer, texts(8), tables={"a": {}})
    with refuses("train_sampling_strategy 'sequential'"):
        make(tmp_path, tokenizer, train_sampling_strategy="sequential")


def test_rows_that_do_not_fit_the_objective_of_their_data_set_are_refused_with_its_name(
    tmp_path,
    tokenizer,
):
    tables = {"pairs": {"objective": "is_bert"}}
    trainer = make(tmp_path, tokenizer, tables=tables, model=model_of(pooler_type="avg"))
    message = "data set 'pairs': the training data has rows with 2 sentences"
    with pytest.raises(ValueError, match=message):
        trainer.train()


# --- a recipe with several data sets ---


def write_csv(path, columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return str(path)


def test_a_recipe_names_several_data_sets_and_so_do_its_results_and_its_card(tmp_path, save_checkpoint):
    (tmp_path / "plain.txt").write_text("\n".join(sentences(24)) + "\n")
    pairs = write_csv(tmp_path / "pairs.csv", texts(24, 2).to_dict())
    sts = write_csv(tmp_path / "sts.csv", scored(16).to_dict())
    out = tmp_path / "out"
    recipe = {
        "model_name_or_path": str(save_checkpoint(model_of())),
        "output_dir": str(out),
        "use_cpu": True,
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "datasets": {
            "plain": {"train_file": str(tmp_path / "plain.txt"), "share": 2},
            "pairs": {"train_file": pairs, "columns": ["sent1", "sent0"], "prompts": {"anchor": "the "}, "share": 1},
            "sts": {"train_file": sts, "objective": "cosent", "share": 1},
        },
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    train_command("sup", [str(tmp_path / "run.yaml")])
    results = json.loads((out / "results.json").read_text())
    assert (results["datasets"], results["train_rows"]) == ({"plain": 24, "pairs": 24, "sts": 16}, 64)
    write_card(out)
    card = (out / "README.md").read_text()
    named = "`plain` (24 rows), `pairs` (24 rows), `sts` (16 rows, objective `cosent`)"
    assert f"one of the data sets {named}." in card
    assert "64 rows of texts" in card and "CoSENT" in card


# --- labelled texts among several data sets ---

LABELLED = {"text": sentences(16), "label": [number % 4 for number in range(16)]}


@pytest.mark.parametrize("given", [{}, {"objective": "simcse"}], ids=["no objective", "an objective"])
def test_labelled_texts_learn_from_classes_unless_told_otherwise_alone_and_among_others(
    given, tmp_path, save_checkpoint
):
    start = {"model_name_or_path": str(save_checkpoint(model_of()))}
    labelled = write_csv(tmp_path / "labelled.csv", LABELLED)
    alone = Recipe.read("sup", start | {"train_file": labelled}, given).decide()
    assert alone.model.objective == given.get("objective", "class_labels")
    tables = {
        "labelled": {"train_file": labelled},
        "pairs": {"train_file": write_csv(tmp_path / "pairs.csv", texts(16, 2).to_dict())},
        "own": {"train_file": labelled, "objective": "supcon"},
    }
    decided = Recipe.read("sup", start | {"datasets": tables}, given).decide()
    objectives = {name: table.get("objective") for name, table in decided.training.datasets.items()}
    of_labelled = None if given else "class_labels"  # that of the run
    assert objectives == {"labelled": of_labelled, "pairs": None, "own": "supcon"}
