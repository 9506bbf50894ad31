"""Several data sets in a run: what a batch holds, the shares, other objectives, resuming, and two processes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from trainer_helpers import make as make_trainer
from trainer_helpers import model_of, scored, sentences, texts, train_command

from simcse_hf import AutoModelForCL
from simcse_hf.data.samplers import MixtureSampler, PermutedSampler
from simcse_hf.publishing import write_card
from simcse_hf.training.recipe import Recipe


def mixture():
    return {"plain": texts(26), "pairs": texts(17, 2, seed=1), "sts.b": scored()}


TABLES = {"sts.b": {"objective": "cosent", "prompts": {"anchor": "the old "}, "max_seq_length": 6}}


def make(tmp_path, tokenizer, data=None, model=None, tables=TABLES, **changes):
    options = {"datasets": tables, "per_device_train_batch_size": 4, **changes}
    return make_trainer(tmp_path, tokenizer, data or mixture(), model, **options)


# --- the order ---


def sampler(shares, sizes=(24, 9, 6), block=3, seed=0):
    parts = {str(size): PermutedSampler(size, seed) for size in sizes}
    return MixtureSampler(parts, np.cumsum([0, *sizes])[:-1], shares, block, seed)


def numbers(order, sizes=(24, 9, 6), block=3):
    """The data set of each batch, which must be one."""
    of_row = np.searchsorted(np.cumsum(sizes), list(order), side="right").reshape(-1, block)
    assert (of_row == of_row[:, :1]).all()
    return of_row[:, 0].tolist()


@pytest.mark.parametrize(
    "shares, batches",
    [("proportional", [8, 3, 2]), ([1, 1, 2], [3, 3, 6]), ([1000, 1000, 1], [6, 6, 1])],  # no data set is left out
)
def test_the_batches_of_an_epoch_are_in_proportion_to_rows_or_shares(shares, batches):
    order = list(sampler(shares))
    assert np.bincount(numbers(order)).tolist() == batches
    if shares == "proportional":
        assert sorted(order) == list(range(39))


def test_round_robin_takes_the_data_sets_in_turn_and_starts_small_ones_again():
    order = list(sampler("round_robin"))
    assert numbers(order) == [0, 1, 2] * 4
    assert sorted(order[6::9] + order[7::9] + order[8::9]) == sorted(list(range(33, 39)) * 2), "two passes of six rows"


def test_a_data_set_that_fills_no_batch_is_refused():
    with pytest.raises(ValueError, match="data set '6' has 6 rows, fewer than one batch of 8 over all processes"):
        sampler("proportional", block=8)


def test_several_data_sets_are_refused_where_one_process_makes_the_batches_of_all(tmp_path, tokenizer):
    with pytest.raises(
        ValueError, match="dispatch_batches cuts one batch for all processes, but not that of a mixture"
    ):
        make(tmp_path, tokenizer, accelerator_config={"dispatch_batches": True})


# --- a run ---


def test_each_batch_is_as_its_data_set_needs_it(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer)
    seen = {}
    for batch in trainer.get_train_dataloader():
        assert len(set(batch["dataset"])) == 1
        seen.setdefault(int(batch["dataset"][0]), []).append(batch)
    assert {number: len(batches) for number, batches in seen.items()} == {0: 6, 1: 4, 2: 4}
    assert seen[0][0]["input_ids"].shape[:2] == (4, 2) and "scores" not in seen[0][0] and "scores" in seen[2][0]
    assert all(batch["input_ids"].shape[-1] <= 6 for batch in seen[2])
    first = trainer.train_dataset[26 + 17]
    prompted = tokenizer(f"the old {sentences(1, 3)[0]}", truncation=True, max_length=6)["input_ids"]
    assert first["dataset"] == 2 and first["input_ids"][0] == prompted


def test_texts_of_a_class_stay_together_in_a_mixture(tmp_path, tokenizer):
    labelled = Dataset.from_dict({"text": sentences(24, 5), "label": [f"class {i % 6}" for i in range(24)]})
    tables = {"labelled": {"objective": "class_labels"}}
    trainer = make(tmp_path, tokenizer, {"plain": texts(8), "labelled": labelled}, tables=tables)
    batches = [batch for batch in trainer.get_train_dataloader() if batch["dataset"][0] == 1]
    assert len(batches) == 6
    for batch in batches:
        assert min(torch.unique(batch["labels"], return_counts=True)[1]) >= 2
    trainer.train()


def test_each_data_set_trains_its_own_objective_and_its_loss_is_logged(tmp_path, tokenizer):
    tables = {"sts.b": {"objective": "cosent"}, "pairs": {"objective": "simcse+barlow_twins:0.1",
              "objective_options": {"projector_dim": 8}}}  # fmt: skip
    trainer = make(tmp_path, tokenizer, tables=tables, logging_steps=14, num_train_epochs=1, max_steps=-1)
    projector = trainer.model.objective.of_dataset(1).parts["barlow_twins"].projector[0].weight.clone()
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "contrastive_loss" in entry)
    parts = {"plain_loss": 6, "pairs_simcse_loss": 4, "pairs_barlow_twins_loss": 4, "sts.b_loss": 4}
    assert parts.keys() <= logged.keys()
    weighted = sum(logged[part] * batches for part, batches in parts.items()) / 14
    assert weighted == pytest.approx(logged["contrastive_loss"], rel=1e-4), "means over the batches of each data set"
    assert not torch.equal(projector, trainer.model.objective.of_dataset(1).parts["barlow_twins"].projector[0].weight)
    saved = trainer.model.settings.dataset_objectives
    assert {name: own.get("objective") for name, own in saved.items()} == {
        **{"plain": None, "pairs": "simcse+barlow_twins:0.1", "sts.b": "cosent"}
    }


def test_the_objectives_of_data_sets_stay_behind_in_a_run_without_them(tmp_path, tokenizer):
    make(tmp_path, tokenizer).save_model()
    one = make_trainer(tmp_path / "one", tokenizer, model=AutoModelForCL.from_pretrained(tmp_path / "run"))
    assert one.model.settings.dataset_objectives == {} and one.model.objective.name == "simcse"


def test_evaluation_data_of_a_data_set_has_its_objective(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, eval_dataset={"sts.b": scored(8)})
    assert "eval_sts.b_loss" in trainer.evaluate()
    with pytest.raises(ValueError, match="names none of the data sets plain, pairs, sts.b: evaluate eval_dataset"):
        trainer.evaluate(texts(8, 2))


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (None, {"tables": {"stsb": {}}}, "datasets has 'stsb', and train_dataset 'plain', 'pairs', 'sts.b'"),
        ([{"sent0": "a"}], {"tables": {"a": {}}}, "datasets has 'a', and train_dataset is one"),
        (None, {"tables": {"plain": {"share": 2}}}, "1 of 3 data sets have a share.*all of them one, or none"),
        (None, {"tables": {name: {"share": 0} for name in mixture()}}, "share must be a number above 0"),
        (None, {"tables": {"plain": {"share": None}}}, "'plain': share must be a number above 0, got None"),
        (None, {"tables": {"plain": {"train_file": "x"}}}, "train_file is not known; a data set has objective"),
        (None, {"tables": "nli"}, "datasets must be a table"),
        (None, {"tables": {"pairs": {"objective_options": {"scale": 2}}}}, "'pairs' has objective_options, but no"),
        (None, {"tables": {"pairs": {"objective": "contrastive_tension"}}}, "contrastive_tension.*encoders"),
        (None, {"train_sampling_strategy": "sequential"}, "train_sampling_strategy = 'sequential' is for one data"),
        (None, {"tables": {"pairs": {"max_seq_length": 2}}}, r"\['pairs'\]: max_seq_length must be an integer"),
        (
            None,
            {"tables": {"pairs": {"prompts": {"positive": "the old cat "}, "max_seq_length": 5}}},
            r"train_dataset\['pairs'\], column positive: the prompt 'the old cat ' takes 5 of the 5 tokens",
        ),
    ],
)
def test_tables_that_cannot_work_are_refused(tmp_path, tokenizer, data, changes, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, tokenizer, data and Dataset.from_list(data), **changes)


def test_rows_that_do_not_fit_the_objective_of_their_data_set_are_refused_with_its_name(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"train_dataset\['pairs'\]: no column 'score'"):
        make(tmp_path, tokenizer, tables={"pairs": {"objective": "angle"}})
    trainer = make(tmp_path, tokenizer, tables={"pairs": {"objective": "is_bert"}}, model=model_of(pooler_type="avg"))
    with pytest.raises(ValueError, match="data set 'pairs': the training data has rows with 2 sentences"):
        trainer.train()


# --- the command line ---


def test_a_recipe_names_several_data_sets(tmp_path, save_checkpoint):
    start = save_checkpoint(model_of())
    files = {name: tmp_path / f"{name}.csv" for name in ("pairs", "sts")}
    texts(24, 2).rename_columns({"sent0": "a", "sent1": "b"}).to_csv(files["pairs"])
    scored(16).to_csv(files["sts"])
    plain = tmp_path / "plain.txt"
    plain.write_text("\n".join(sentences(24)) + "\n")
    recipe = tmp_path / "run.yaml"
    recipe.write_text(
        f"model_name_or_path: {start}\noutput_dir: {tmp_path / 'out'}\nuse_cpu: true\nmax_steps: 6\n"
        "per_device_train_batch_size: 4\ndatasets:\n"
        f"  plain: {{train_file: {plain}, share: 2}}\n"
        f"  pairs: {{train_file: {files['pairs']}, columns: [a, b], prompts: {{anchor: 'the '}}, share: 1}}\n"
        f"  sts: {{train_file: {files['sts']}, objective: cosent, share: 1}}\n"
    )
    train_command("sup", [str(recipe)])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["datasets"] == {"plain": 24, "pairs": 24, "sts": 16} and results["train_rows"] == 64
    write_card(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "one of the data sets `plain` (24 rows), `pairs` (24 rows), `sts` (16 rows, objective `cosent`)." in card
    assert "64 rows of texts" in card and "CoSENT" in card


@pytest.mark.parametrize("given", [{}, {"objective": "simcse"}], ids=["no objective", "an objective"])
def test_a_file_of_labelled_texts_among_several_learns_as_it_does_alone(tmp_path, given):
    labelled, pairs, own = (str(tmp_path / f"{name}.csv") for name in ("labelled", "pairs", "own"))
    rows = pd.DataFrame({"text": sentences(16), "label": [number % 4 for number in range(16)]})
    for path in (labelled, own):
        rows.to_csv(path, index=False)
    texts(16, 2).to_csv(pairs)
    assert Recipe.read("sup", {"train_file": labelled}, given).completed().given["objective"] == (
        given.get("objective") or "class_labels"
    )
    tables = {"labelled": {"train_file": labelled}, "pairs": {"train_file": pairs}}
    tables["own"] = {"train_file": own, "objective": "supcon"}
    completed = Recipe.read("sup", {"datasets": tables}, given).completed().given["datasets"]
    objectives = {name: table.get("objective") for name, table in completed.items()}
    assert objectives == {"labelled": None if given else "class_labels", "pairs": None, "own": "supcon"}


def test_labelled_texts_among_several_data_sets_are_trained_in_pairs_of_a_class(tmp_path, save_checkpoint):
    pd.DataFrame({"text": sentences(16), "label": [number % 4 for number in range(16)]}).to_csv(
        tmp_path / "labelled.csv", index=False
    )
    texts(16, 2).to_csv(tmp_path / "pairs.csv")
    tables = {name: {"train_file": str(tmp_path / f"{name}.csv")} for name in ("labelled", "pairs")}
    given = {"model_name_or_path": str(save_checkpoint(model_of())), "output_dir": str(tmp_path / "out")}
    given |= {"datasets": tables, "use_cpu": True, "per_device_train_batch_size": 4, "report_to": "none"}
    trainer = Recipe.read("sup", given).trainer()
    for batch in trainer.get_train_dataloader():
        if "labels" in batch:
            assert batch["input_ids"].shape[:2] == (4, 1)
            assert min(batch["labels"].tolist().count(label) for label in batch["labels"].tolist()) >= 2
    assert trainer.model.settings.dataset_objectives["labelled"]["objective"] == "class_labels"
