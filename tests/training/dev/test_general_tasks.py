"""General tasks, on which a run says what it forgot: the change from the start to the weights that are saved."""

import pytest
from conftest import read_json, save_with_tokenizer
from evaluation_helpers import binary_pairs, write, write_rows
from scipy.stats import spearmanr
from trainer_helpers import KEEPS_BEST, model_of, pairs, refuses, scored, sentences

from simcse_hf import SimCSE, train
from simcse_hf.evaluation.tasks import name_general_tasks, paired_interval
from simcse_hf.publishing.card import write_card
from simcse_hf.training.run_results import Results

TRAINS = KEEPS_BEST | {"learning_rate": 1e-2}


@pytest.fixture(scope="module")
def files(module_path):
    """Scored pairs, labelled pairs, sentences to train on, and the model `start`. The files are only read."""
    scored(40, 11).to_csv(module_path / "sts.csv")
    scored(20, 21).to_csv(module_path / "dev.csv")
    write_rows(module_path / "pairs.csv", ["sentence1", "sentence2", "label"], binary_pairs(40))
    write(module_path / "train.txt", sentences(32, 5))
    save_with_tokenizer(model_of(pooler_type="avg"), module_path / "start")
    return module_path


@pytest.fixture(scope="module")
def sts(files):
    """The file of a general task."""
    return str(files / "sts.csv")


@pytest.fixture(scope="module")
def train_on_files(files):
    """`train_on_files(output, general=[...])` trains the model `start` on the files."""
    values = {
        "model_name_or_path": str(files / "start"),
        "train_file": str(files / "train.txt"),
        "dev_file": str(files / "dev.csv"),
        "max_steps": 4,
        "eval_steps": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 8,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }

    def command(output, **changes):
        return train("unsup", **values | {"output_dir": str(output)} | changes)

    return command


def spearman_of(model, sts):
    """Spearman's correlation of a model on scored pairs, times 100, pair by pair."""
    task = name_general_tasks([sts])["sts"]
    encode = SimCSE(model, device="cpu").encode
    cosines = [float(encode(first).double() @ encode(second).double()) for _, first, second, _ in task.units]
    return 100 * spearmanr(cosines, [unit[-1] for unit in task.units]).statistic


# --- a run ---


def test_a_run_says_what_it_has_changed_on_each_general_task(train_on_files, files, sts, tmp_path, capsys):
    """From the start to the saved weights, with the interval of a paired bootstrap, in every place that shows it."""
    folder = tmp_path / "out"
    results = train_on_files(folder, general=[sts, f"pairs={files / 'pairs.csv'}"])
    printed = capsys.readouterr().out
    assert results.saved["step"] in (2, 4)
    first, second = results.general
    difference = spearman_of(folder, sts) - spearman_of(files / "start", sts)
    assert first.difference == pytest.approx(difference, abs=1e-3) != 0
    task = name_general_tasks([sts])["sts"]
    before, after = (task.evaluate(SimCSE(model, device="cpu")) for model in (files / "start", folder))
    _, low, high = paired_interval(task, [before], [after])
    assert (first.low, first.high) == pytest.approx((low, high), abs=1e-3)
    for change, name in ((first, "sts.csv"), (second, "pairs.csv")):
        assert f"  general task     {change}" in printed
        assert str(change).endswith(f"({name})")
    stored = read_json(folder / "results.json")["general"]
    assert [each["metric"] for each in stored] == ["general_sts_spearman", "general_pairs_average_precision"]
    assert Results.read(folder).general == results.general
    card = write_card(folder).read_text()
    assert "Change of `general_sts_spearman` (general task sts.csv): " in card
    assert str(files) not in card


def test_several_seeds_have_the_change_over_all_of_them(train_on_files, files, sts, tmp_path):
    results = train_on_files(tmp_path / "out", general=[sts], seeds=2)
    [change] = results.general
    after = [spearman_of(tmp_path / "out" / f"seed-{seed}", sts) for seed in (42, 43)]
    assert change.difference == pytest.approx(sum(after) / 2 - spearman_of(files / "start", sts), abs=1e-3)
    assert f"  general task     {change}" in str(results)
    written = read_json(tmp_path / "out" / "results.json")
    assert written["general"][0]["seeds"] == change.seeds == 2


def test_general_tasks_choose_nothing(make, sts, tmp_path):
    with_task, without = (
        make(output_dir=str(tmp_path / str(len(general))), dev_set=pairs(), general=general, **TRAINS)
        for general in ([sts], [])
    )
    for trainer in (with_task, without):
        trainer.train()
        assert trainer.args.metric_for_best_model == "stsb_spearman"
    assert with_task.results.saved["step"] == without.results.saved["step"]
    assert with_task.results.change == without.results.change


# --- what makes the change too favourable ---


@pytest.mark.parametrize(
    "changes, words",
    [
        # training texts
        (
            {"data": [*sentences(30, 5), *sentences(40, 11)[:2]]},
            ["2 of 80 general texts", "are also training texts"],
        ),
        # dev texts
        (
            {"dev_set": "sts.csv"},
            ["80 of 80 general texts", "are also dev texts, which choose the checkpoint"],
        ),
        # metric
        (
            {"metric_for_best_model": "general_sts_spearman"},
            ["general_sts_spearman chooses the checkpoint"],
        ),
    ],
)
def test_what_makes_the_change_too_favourable_is_said(make, files, monkeypatch, caplog, changes, words):
    monkeypatch.chdir(files)
    options = TRAINS | {"dev_set": pairs(), "general": ["sts.csv"]} | changes
    make(**options)
    for part in words:
        assert part in caplog.text


def test_a_task_that_chooses_the_checkpoint_has_an_interval_that_allows_for_it(make, files, sts, caplog):
    make(dev_set=pairs(), general=[sts], dev_tasks=[f"pairs={files / 'pairs.csv'}"], **TRAINS)
    assert not caplog.text  # as the general task shares nothing and chooses nothing
    chosen = TRAINS | {"metric_for_best_model": "general_sts_spearman"}
    trainer = make(dev_set=pairs(), general=[sts], **chosen)
    trainer.train()
    results = trainer.results
    assert results.general[0].optimism == results.change.optimism


# --- refusals ---


@pytest.mark.parametrize("seeds", [None, 2])
@pytest.mark.parametrize(
    "general, words", [(["nosuch.csv"], "--general nosuch.csv"), (["pears=pairs.csv"], "pears classification pairs")]
)
def test_what_is_no_task_is_refused_by_name_before_an_earlier_run_is_deleted(
    train_on_files, files, tmp_path, monkeypatch, general, words, seeds
):
    monkeypatch.chdir(files)
    (tmp_path / "results.json").write_text("{}")
    with refuses(words, (ValueError, FileNotFoundError)):
        train_on_files(tmp_path, general=general, seeds=seeds, overwrite_output_dir=True)
    assert (tmp_path / "results.json").exists()


def test_general_tasks_stand_beside_a_dev_set(train_on_files, tmp_path, sts):
    with refuses("--general --dev_file --dev_task"):
        train_on_files(tmp_path / "out", general=[sts], dev_file=None)
