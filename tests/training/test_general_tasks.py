"""General tasks, on which a run says what it forgot: the change from the start to the weights that are saved."""

import json

import pytest
from conftest import tiny_config
from evaluation_helpers import binary_pairs, write_rows
from scipy.stats import spearmanr
from trainer_helpers import (
    KEEPS_BEST,
    make,
    model_of,
    pairs,
    refuses,
    scored_by,
    sentences,
)
from transformers import BertForMaskedLM

from simcse_hf import AutoModelForCL, SimCSE, train
from simcse_hf.evaluation.user_tasks import name_general_tasks, paired_interval
from simcse_hf.publishing import write_card
from simcse_hf.training.run_results import Results

TRAINS = KEEPS_BEST | {"learning_rate": 1e-2}


@pytest.fixture
def files(tmp_path):
    """Scored pairs, labelled pairs, and sentences to train on."""
    rows = zip(
        sentences(40, 11), sentences(40, 12), [n % 6 for n in range(40)], strict=True
    )
    write_rows(tmp_path / "sts.csv", ["sentence1", "sentence2", "score"], rows)
    write_rows(
        tmp_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(40)
    )
    rows = zip(
        sentences(20, 21), sentences(20, 22), [n % 5 for n in range(20)], strict=True
    )
    write_rows(tmp_path / "dev.csv", ["sentence1", "sentence2", "score"], rows)
    (tmp_path / "train.txt").write_text("\n".join(sentences(32, 5)))
    return tmp_path


@pytest.fixture
def command(files, save_checkpoint):
    """`command(general=[...])` trains a saved tiny model on the files."""
    start = save_checkpoint(model_of(pooler_type="avg"), "start")
    values = {
        "model_name_or_path": str(start),
        "train_file": str(files / "train.txt"),
        "dev_file": str(files / "dev.csv"),
        "output_dir": str(files / "out"),
        "max_steps": 4,
        "eval_steps": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return lambda **changes: train("unsup", **values | changes)


def score(model, file):
    """Spearman's correlation of a model on scored pairs, times 100, pair by pair."""
    task = name_general_tasks([str(file)])["sts"]
    encode = SimCSE(model, device="cpu").encode
    cosines = [
        float(encode(first).double() @ encode(second).double())
        for first, second, _ in task.units
    ]
    return 100 * spearmanr(cosines, [gold for *_, gold in task.units]).statistic


def test_the_change_is_that_from_the_start_to_the_saved_weights(command, files):
    results = command(general=[str(files / "sts.csv")])
    [change] = results.general
    assert results.dev.saved.step == 2 or results.dev.saved.step == 4
    before, after = (
        score(files / "start", files / "sts.csv"),
        score(files / "out", files / "sts.csv"),
    )
    assert change.difference == pytest.approx(after - before, abs=1e-3) != 0


def test_the_interval_is_that_of_a_paired_bootstrap_over_the_pairs(command, files):
    [change] = command(general=[str(files / "sts.csv")]).general
    task = name_general_tasks([str(files / "sts.csv")])["sts"]
    models = [SimCSE(files / name, device="cpu") for name in ("start", "out")]
    _, low, high = paired_interval(task, *([task.evaluate(model)] for model in models))
    assert (change.low, change.high) == pytest.approx((low, high), abs=1e-3)


def test_scored_pairs_and_tasks_are_reported_in_the_verdict_in_results_json_and_in_the_card(
    command, files, capsys
):
    results = command(general=[str(files / "sts.csv"), f"pairs={files / 'pairs.csv'}"])
    shown = capsys.readouterr().out
    for change, name in zip(results.general, ("sts.csv", "pairs.csv"), strict=True):
        assert f"  general task     {change}" in shown and str(change).endswith(
            f"({name})"
        )
    stored = json.loads((files / "out/results.json").read_text())["general"]
    assert [each["metric"] for each in stored] == [
        "general_sts_spearman",
        "general_pairs_average_precision",
    ]
    assert Results.read(files / "out").general == results.general
    card = write_card(files / "out").read_text()
    assert (
        "Change of `general_sts_spearman` (general task sts.csv): " in card
        and str(files) not in card
    )


def test_general_tasks_choose_nothing(tmp_path, tokenizer, files):
    plain = make(tmp_path, tokenizer, dev_set=pairs(), **TRAINS)
    other = make(
        tmp_path, tokenizer, dev_set=pairs(), general=[str(files / "sts.csv")], **TRAINS
    )
    assert (
        other.args.metric_for_best_model
        == plain.args.metric_for_best_model
        == "stsb_spearman"
    )
    plain.train()
    other.train()
    assert other.results.dev.saved.step == plain.results.dev.saved.step
    assert other.results.change == plain.results.change


def test_several_seeds_have_the_change_over_all_of_them(command, files):
    results = command(general=[str(files / "sts.csv")], seeds=2)
    [change] = results.general
    before = score(files / "start", files / "sts.csv")
    after = [score(files / f"out/seed-{seed}", files / "sts.csv") for seed in (42, 43)]
    assert change.seeds == 2 and change.difference == pytest.approx(
        sum(after) / 2 - before, abs=1e-3
    )
    assert f"  general task      {change}" in str(results)
    assert (
        json.loads((files / "out/results.json").read_text())["general"][0]["seeds"] == 2
    )


def test_a_start_without_a_pooler_is_compared_with_the_pooler_that_its_dev_score_is_of(
    tmp_path, tokenizer, files, save_checkpoint
):
    start = str(
        save_checkpoint(BertForMaskedLM(tiny_config(initializer_range=0.2)), "plain")
    )
    dev_set = scored_by(
        AutoModelForCL.from_pretrained(start, pooler_type="avg"), tokenizer
    )
    trainer = make(
        tmp_path,
        tokenizer,
        model=start,
        dev_set=dev_set,
        general=[str(files / "sts.csv")],
        **TRAINS,
    )
    trainer.train()
    results = trainer.results
    pooler = results.dev.start.pooler
    assert pooler == "avg"
    begin = results.dev.initial.metrics[f"start_{pooler}_general_sts_spearman"]
    assert (
        results.general[0].difference
        == results.dev.saved.metrics["general_sts_spearman"] - begin
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"data": [*sentences(30, 5), *sentences(40, 11)[:2]]},
            "2 of 80 general texts, are also training texts",
        ),
        (
            {"dev_set": "sts.csv"},
            "80 of 80 general texts, are also dev texts, which choose the checkpoint",
        ),
        (
            {"metric_for_best_model": "general_sts_spearman"},
            "general_sts_spearman chooses the checkpoint",
        ),
    ],
    ids=["training texts", "dev texts", "metric"],
)
def test_what_makes_the_change_too_favourable_is_said(
    tmp_path, tokenizer, files, monkeypatch, caplog, changes, words
):
    monkeypatch.chdir(files)
    make(
        tmp_path,
        tokenizer,
        general=["sts.csv"],
        **TRAINS | {"dev_set": pairs()} | changes,
    )
    assert all(part in caplog.text for part in words.split(", "))


def test_a_task_that_shares_nothing_is_not_complained_of(
    tmp_path, tokenizer, files, caplog
):
    make(
        tmp_path, tokenizer, dev_set=pairs(), general=[str(files / "sts.csv")], **TRAINS
    )
    assert "general" not in caplog.text


def test_a_task_that_chooses_the_checkpoint_has_an_interval_that_allows_for_it(
    tmp_path, tokenizer, files
):
    chosen = {"metric_for_best_model": "general_sts_spearman"}
    trainer = make(
        tmp_path,
        tokenizer,
        dev_set=pairs(),
        general=[str(files / "sts.csv")],
        **TRAINS | chosen,
    )
    trainer.train()
    assert trainer.results.general[0].optimism == trainer.results.change.optimism


@pytest.mark.parametrize("seeds", [None, 2])
@pytest.mark.parametrize(
    "general, words",
    [
        (["nosuch.csv"], "--general nosuch.csv"),
        (["pairs=nosuch.csv"], "--general nosuch.csv"),
        (["pears=pairs.csv"], "pears classification pairs"),
        (3 * ["pairs=pairs.csv"], "pairs"),
        (["train.txt"], "train.txt score"),
    ],
)
def test_what_is_no_task_is_refused_by_name_before_an_earlier_run_is_deleted(
    command, files, monkeypatch, general, words, seeds
):
    monkeypatch.chdir(files)
    (files / "out").mkdir()
    (files / "out/results.json").write_text("{}")
    with refuses(words, (ValueError, FileNotFoundError)):
        command(general=general, seeds=seeds, overwrite_output_dir=True)
    assert (files / "out/results.json").exists()


def test_general_tasks_without_a_dev_set_are_refused(
    command, files, tmp_path, tokenizer
):
    with refuses("--general --dev_file --dev_task"):
        command(general=[str(files / "sts.csv")], dev_file=None)
    with refuses("--general --dev_file --dev_task"):
        make(tmp_path, tokenizer, general=[str(files / "sts.csv")])
    with refuses("general list"):
        make(tmp_path, tokenizer, dev_set=pairs(), general=str(files / "sts.csv"))
