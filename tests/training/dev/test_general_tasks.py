"""General tasks, on which a run says what it forgot: the change from the start to the weights that are saved."""

import json
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest
from conftest import save_encoder, tiny_config
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
from simcse_hf.evaluation.tasks import name_general_tasks, paired_interval
from simcse_hf.publishing.card import write_card
from simcse_hf.training.run_results import Results

TRAINS = KEEPS_BEST | {"learning_rate": 1e-2}


@pytest.fixture(scope="module")
def files(tmp_path_factory, tokenizer):
    """Scored pairs, labelled pairs, sentences to train on, and the model `start`. The files are only read."""
    folder = tmp_path_factory.mktemp("files")
    scored = ["sentence1", "sentence2", "score"]
    grades = [number % 6 for number in range(40)]
    rows = zip(sentences(40, 11), sentences(40, 12), grades, strict=True)
    write_rows(folder / "sts.csv", scored, rows)
    labelled = ["sentence1", "sentence2", "label"]
    write_rows(folder / "pairs.csv", labelled, binary_pairs(40))
    grades = [number % 5 for number in range(20)]
    rows = zip(sentences(20, 21), sentences(20, 22), grades, strict=True)
    write_rows(folder / "dev.csv", scored, rows)
    (folder / "train.txt").write_text("\n".join(sentences(32, 5)))
    model_of(pooler_type="avg").save_pretrained(folder / "start")
    tokenizer.save_pretrained(folder / "start")
    return folder


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


def spearman_of(model, file):
    """Spearman's correlation of a model on scored pairs, times 100, pair by pair."""
    task = name_general_tasks([file])["sts"]
    encode = SimCSE(model, device="cpu").encode
    cosines = []
    gold = []
    for _, first, second, score in task.units:
        cosines.append(float(encode(first).double() @ encode(second).double()))
        gold.append(score)
    return 100 * spearmanr(cosines, gold).statistic


# --- a run ---


@pytest.fixture(scope="module")
def run(train_on_files, files, tmp_path_factory):
    """The folder and the results of a run with two general tasks, and what it printed."""
    folder = tmp_path_factory.mktemp("run") / "out"
    general = [str(files / "sts.csv"), f"pairs={files / 'pairs.csv'}"]
    with redirect_stdout(StringIO()) as printed:
        results = train_on_files(folder, general=general)
    return SimpleNamespace(folder=folder, results=results, printed=printed.getvalue())


@pytest.fixture(scope="module")
def change(run):
    """The change on the scored pairs."""
    return run.results.general[0]


@pytest.fixture(scope="module")
def stored(run):
    """What results.json says of general tasks."""
    return json.loads((run.folder / "results.json").read_text())["general"]


def test_the_change_is_that_from_the_start_to_the_saved_weights(change, run, files, sts):
    before = spearman_of(files / "start", sts)
    after = spearman_of(run.folder, sts)
    assert change.difference == pytest.approx(after - before, abs=1e-3) != 0


def test_the_saved_weights_are_those_of_a_checkpoint(run):
    assert run.results.saved["step"] in (2, 4)


@pytest.fixture(scope="module")
def paired(run, files, sts):
    """The paired bootstrap of the start and of the saved weights."""
    task = name_general_tasks([sts])["sts"]
    before = task.evaluate(SimCSE(files / "start", device="cpu"))
    after = task.evaluate(SimCSE(run.folder, device="cpu"))
    return paired_interval(task, [before], [after])


def test_the_interval_is_that_of_a_paired_bootstrap_over_the_pairs(change, paired):
    _, low, high = paired
    assert (change.low, change.high) == pytest.approx((low, high), abs=1e-3)


BOTH_TASKS = pytest.mark.parametrize(
    ("number", "name", "metric"),
    [
        (0, "sts.csv", "general_sts_spearman"),
        (1, "pairs.csv", "general_pairs_average_precision"),
    ],
    ids=["scored pairs", "labelled pairs"],
)


@BOTH_TASKS
def test_the_verdict_shows_the_change_on_each_task(run, number, name, metric):
    change = run.results.general[number]
    assert f"  general task     {change}" in run.printed


@BOTH_TASKS
def test_the_change_on_a_task_names_its_file(run, number, name, metric):
    assert str(run.results.general[number]).endswith(f"({name})")


@BOTH_TASKS
def test_the_change_on_each_task_stands_in_results_json(stored, number, name, metric):
    assert stored[number]["metric"] == metric


def test_results_json_is_read_with_the_changes(run):
    assert Results.read(run.folder).general == run.results.general


@pytest.fixture(scope="module")
def card(run):
    return write_card(run.folder).read_text()


def test_the_card_shows_the_change(card):
    assert "Change of `general_sts_spearman` (general task sts.csv): " in card


def test_the_card_names_no_folder(card, files):
    assert str(files) not in card


# --- several seeds ---


@pytest.fixture(scope="module")
def two_seeds(train_on_files, sts, tmp_path_factory):
    """The folder and the results of two seeds."""
    folder = tmp_path_factory.mktemp("seeds") / "out"
    results = train_on_files(folder, general=[sts], seeds=2)
    return SimpleNamespace(folder=folder, results=results)


@pytest.fixture(scope="module")
def change_of_seeds(two_seeds):
    [change] = two_seeds.results.general
    return change


def test_several_seeds_have_the_change_over_all_of_them(two_seeds, change_of_seeds, files, sts):
    before = spearman_of(files / "start", sts)
    after = [spearman_of(two_seeds.folder / f"seed-{seed}", sts) for seed in (42, 43)]
    expected = sum(after) / 2 - before
    assert change_of_seeds.difference == pytest.approx(expected, abs=1e-3)


def test_the_change_over_several_seeds_counts_them(change_of_seeds):
    assert change_of_seeds.seeds == 2


def test_the_printed_results_show_the_change_over_several_seeds(two_seeds, change_of_seeds):
    assert f"  general task     {change_of_seeds}" in str(two_seeds.results)


def test_results_json_counts_the_seeds_of_a_change(two_seeds):
    written = json.loads((two_seeds.folder / "results.json").read_text())
    assert written["general"][0]["seeds"] == 2


# --- general tasks choose nothing ---


@pytest.fixture(scope="module")
def with_and_without(sts, tokenizer, tmp_path_factory):
    """Two trainers after their run, with a general task and without one."""
    trainers = []
    for options in ({"general": [sts]}, {}):
        folder = tmp_path_factory.mktemp("trainer")
        trainer = make(folder, tokenizer, dev_set=pairs(), **options, **TRAINS)
        trainer.train()
        trainers.append(trainer)
    return trainers


def test_general_tasks_are_not_the_metric_of_the_best_model(with_and_without):
    for trainer in with_and_without:
        assert trainer.args.metric_for_best_model == "stsb_spearman"


def test_general_tasks_do_not_choose_the_saved_weights(with_and_without):
    one, other = with_and_without
    assert one.results.saved["step"] == other.results.saved["step"]


def test_general_tasks_do_not_change_the_change_on_the_dev_set(with_and_without):
    one, other = with_and_without
    assert one.results.change == other.results.change


# --- the start ---


@pytest.fixture(scope="module")
def of_plain_start(sts, tokenizer, tmp_path_factory):
    """The results of a run from an encoder that names no pooler."""
    folder = tmp_path_factory.mktemp("plain")
    config = tiny_config(initializer_range=0.2)
    save_encoder(folder / "start", BertForMaskedLM, config)
    start = str(folder / "start")
    perfect = AutoModelForCL.from_pretrained(start, pooler_type="avg")
    dev_set = scored_by(perfect, tokenizer)
    options = {"model": start, "dev_set": dev_set, "general": [sts]}
    trainer = make(folder, tokenizer, **options, **TRAINS)
    trainer.train()
    return trainer.results


def test_a_start_without_a_pooler_has_the_pooler_of_its_dev_score(of_plain_start):
    assert of_plain_start.start["pooler"] == "avg"


def test_a_start_without_a_pooler_is_compared_with_the_pooler_that_its_dev_score_is_of(
    of_plain_start,
):
    before = of_plain_start.initial["start_avg_general_sts_spearman"]
    after = of_plain_start.saved["general_sts_spearman"]
    assert of_plain_start.general[0].difference == after - before


# --- what makes the change too favourable ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"data": [*sentences(30, 5), *sentences(40, 11)[:2]]},
            ["2 of 80 general texts", "are also training texts"],
            id="training texts",
        ),
        pytest.param(
            {"dev_set": "sts.csv"},
            [
                "80 of 80 general texts",
                "are also dev texts",
                "which choose the checkpoint",
            ],
            id="dev texts",
        ),
        pytest.param(
            {"metric_for_best_model": "general_sts_spearman"},
            ["general_sts_spearman chooses the checkpoint"],
            id="metric",
        ),
    ],
)
def test_what_makes_the_change_too_favourable_is_said(tmp_path, tokenizer, files, monkeypatch, caplog, changes, words):
    monkeypatch.chdir(files)
    options = TRAINS | {"dev_set": pairs(), "general": ["sts.csv"]} | changes
    make(tmp_path, tokenizer, **options)
    for part in words:
        assert part in caplog.text


def test_a_task_that_shares_nothing_is_not_complained_of(tmp_path, tokenizer, sts, caplog):
    make(tmp_path, tokenizer, dev_set=pairs(), general=[sts], **TRAINS)
    assert "general" not in caplog.text


def test_a_task_that_chooses_the_checkpoint_has_an_interval_that_allows_for_it(tmp_path, tokenizer, sts):
    chosen = TRAINS | {"metric_for_best_model": "general_sts_spearman"}
    trainer = make(tmp_path, tokenizer, dev_set=pairs(), general=[sts], **chosen)
    trainer.train()
    results = trainer.results
    assert results.general[0].optimism == results.change.optimism


# --- refusals ---


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
    train_on_files, files, tmp_path, monkeypatch, general, words, seeds
):
    monkeypatch.chdir(files)
    (tmp_path / "results.json").write_text("{}")
    options = {"general": general, "seeds": seeds, "overwrite_output_dir": True}
    with refuses(words, (ValueError, FileNotFoundError)):
        train_on_files(tmp_path, **options)
    assert (tmp_path / "results.json").exists()


NEEDS_A_DEV_SET = "--general --dev_file --dev_task"


def test_general_tasks_of_a_command_without_a_dev_set_are_refused(train_on_files, tmp_path, sts):
    with refuses(NEEDS_A_DEV_SET):
        train_on_files(tmp_path / "out", general=[sts], dev_file=None)


def test_general_tasks_of_a_trainer_without_a_dev_set_are_refused(tmp_path, tokenizer, sts):
    with refuses(NEEDS_A_DEV_SET):
        make(tmp_path, tokenizer, general=[sts])


def test_general_tasks_of_a_trainer_are_a_list(tmp_path, tokenizer, sts):
    with refuses("general list"):
        make(tmp_path, tokenizer, dev_set=pairs(), general=sts)
