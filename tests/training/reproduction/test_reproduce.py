"""`simcse-hf reproduce` on a tiny encoder: runs are finished once, kept, shared, continued and judged."""

import json
import random

import pytest
import torch
import yaml
from conftest import VOCABULARY, WORDS, tiny_config
from filelock import FileLock
from transformers import BertForMaskedLM, BertTokenizer, TrainerCallback

from simcse_hf.cli.main import main
from simcse_hf.training.reproduction import runs as runs_module
from simcse_hf.training.reproduction.report import format_markdown
from simcse_hf.training.reproduction.reproduce import Options, dry_run, plan, reproduce
from simcse_hf.training.reproduction.runs import RunStore
from simcse_hf.training.reproduction.specs import Sources
from simcse_hf.training.reproduction.table import load_table

SMALL = {
    "model_name_or_path": "tiny",
    "train_file": "wiki/sentences.txt",
    "max_steps": 2,
    "eval_steps": 1,
    "per_device_train_batch_size": 4,
    "bf16": False,
}
TABLE = {
    "paper": "simcse",
    "table": "3",
    "title": "A test",
    "figure": "STS-B dev, Spearman x 100",
    "recipe": "unsup-simcse-bert-base-uncased",
    "columns": [{"name": "dev"}],
    "rows": [{"name": "plain", "paper": [80.0]}, {"name": "cold", "settings": {"temp": 0.5}, "paper": [70.0]}],
    "claims": [{"says": "plain is best", "better": "plain", "than": ["cold"]}],
    "small": SMALL,
}


def sentences(count, seed):
    draw = random.Random(seed)
    words = [word for word in WORDS.split() if word.isalpha()]
    return [" ".join(draw.choices(words, k=6)) for _ in range(count)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("shared")
    data = root / "data"
    (data / "wiki").mkdir(parents=True)
    (data / "wiki/sentences.txt").write_text("\n".join(sentences(40, 0)) + "\n")
    folder = data / "senteval/downstream/STS/STSBenchmark"
    folder.mkdir(parents=True)
    pairs = zip(sentences(24, 1), sentences(24, 2), strict=True)
    rows = [f"main\tx\t2017\t{n}\t{n % 6}\t{a}\t{b}" for n, (a, b) in enumerate(pairs)]
    (folder / "sts-dev.csv").write_text("\n".join(rows) + "\n")
    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.2)).save_pretrained(root / "models/tiny")
    vocabulary = {word: i for i, word in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocabulary, model_max_length=40).save_pretrained(root / "models/tiny")
    return data


@pytest.fixture
def table(tmp_path):
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(TABLE))
    return load_table(str(tmp_path / "test.yaml"))


def figures(document):
    return {row["name"]: row["cells"][0]["figures"] for row in document["rows"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir):
    """A table whose runs were finished without interruption: two rows, two seeds."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "test.yaml").write_text(yaml.safe_dump(TABLE))
    options = Options(Sources(data_dir, folder / "out"), seeds=2)
    return reproduce(load_table(str(folder / "test.yaml")), options, ["simcse-hf", "reproduce"]), options


def test_a_table_has_the_paper_s_figures_ours_and_a_verdict(finished):
    document, options = finished
    assert [row["name"] for row in document["rows"]] == ["plain", "cold"]
    cell = document["rows"][0]["cells"][0]
    assert set(cell["figures"]) == {"42", "43"} and cell["paper"] == 80.0
    assert cell["mean"] == pytest.approx(sum(cell["figures"].values()) / 2, abs=1e-3)
    assert cell["difference"] == pytest.approx(cell["mean"] - 80.0, abs=1e-3)
    assert document["claims"][0]["verdict"] in ("agrees", "disagrees", "within noise")
    written = json.loads((options.sources.output / "test.json").read_text())
    assert written == json.loads(json.dumps(document))
    page = (options.sources.output / "test.md").read_text()
    assert "| plain | 80.0 |" in page and "“plain is best”" in page and "    simcse-hf reproduce" in page


def test_a_page_says_which_intervals_come_from_the_seeds_alone(finished):
    document, _ = finished
    (column,) = document["columns"]
    assert column["resampled"] and "the seeds alone" not in format_markdown(document)
    other = document | {"columns": [column | {"resampled": False}]}
    assert f"The intervals of {column['name']} come from the seeds alone" in format_markdown(other)


def test_a_run_keeps_its_curve_figures_and_scores_but_not_its_model(finished, table):
    _, options = finished
    run = plan(table, options)[0].run
    document = RunStore(options.sources).read(run)
    assert [point["step"] for point in document["curve"]] == [1, 2]
    assert document["steps"] == 2 and document["best_step"] in (1, 2)
    best = max(point["dev"] for point in document["curve"])
    assert document["results"]["dev"]["STS-B dev"]["spearman"] == pytest.approx(best, abs=1e-3)
    scores = RunStore(options.sources).measured(run).scores["dev"]["STS-B dev"]["pairs"]
    assert len(scores["predicted"]) == len(scores["gold"]) == 24
    assert not [path for path in (options.sources.output / "runs").iterdir() if path.is_dir()]


def test_a_killed_command_continues_and_ends_as_if_it_had_not_been_killed(
    finished, table, data_dir, tmp_path, monkeypatch
):
    document, _ = finished
    options = Options(Sources(data_dir, tmp_path / "out"), seeds=2)
    train, trained = runs_module._train, []

    def killed(*args):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(args)
        return train(*args)

    monkeypatch.setattr(runs_module, "_train", killed)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, options)
    partial = json.loads((tmp_path / "out/test.json").read_text())
    assert {name: list(each) for name, each in figures(partial).items()} == {"plain": ["42"], "cold": ["42"]}
    assert partial["claims"][0]["verdict"] == "within noise"

    def counted(*args):
        trained.append(args)
        return train(*args)

    monkeypatch.setattr(runs_module, "_train", counted)
    continued = reproduce(table, options)
    assert len(trained) == 4  # two before and two after: no run was trained twice
    assert figures(continued) == figures(document)


@pytest.mark.slow
def test_a_run_that_was_killed_after_a_checkpoint_continues_there(data_dir, tmp_path, monkeypatch):
    """At the paper's scale a run takes hours and saves whole checkpoints."""
    small = SMALL | {"max_steps": 4, "save_only_model": False}
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump(TABLE | {"rows": [{"name": "plain"}], "claims": []} | {"small": small})
    )
    table = load_table(str(tmp_path / "test.yaml"))
    whole = reproduce(table, Options(Sources(data_dir, tmp_path / "whole"), seeds=1))
    make, steps = runs_module.make_trainer, []

    class CountsAndKills(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)
            if len(steps) == 3:
                raise KeyboardInterrupt

    def make_and_watch(*args):
        trainer = make(*args)
        trainer.add_callback(CountsAndKills())
        return trainer

    monkeypatch.setattr(runs_module, "make_trainer", make_and_watch)
    options = Options(Sources(data_dir, tmp_path / "killed"), seeds=1)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, options)
    assert figures(reproduce(table, options)) == figures(whole)
    assert steps == [1, 2, 3, 3, 4]  # killed in step 3, after the checkpoint of step 2


def test_a_run_that_another_process_trains_is_left_to_it(table, data_dir, tmp_path):
    options = Options(Sources(data_dir, tmp_path / "out"), seeds=1)
    store, run = RunStore(options.sources), plan(table, options)[0].run
    store.folder.mkdir(parents=True)
    with FileLock(store.folder / f"{run.key(options.sources)}.lock"):
        assert not store.finish(run, ["dev"], wait=False)
    assert not store.has(run, ["dev"])
    assert store.finish(run, ["dev"], wait=False) and store.has(run, ["dev"])


def test_equal_runs_of_two_tables_are_trained_once(finished, data_dir, tmp_path, monkeypatch):
    _, options = finished
    other = TABLE | {"rows": [{"name": "default"}, {"name": "warm", "settings": {"temp": 0.05}}]}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other | {"claims": []}))
    monkeypatch.setattr(runs_module, "_train", lambda *args: pytest.fail("a finished run was trained again"))
    document = reproduce(load_table(str(tmp_path / "other.yaml")), options)
    # The recipe's temperature is 0.05, so both rows are the run "plain" of the other table.
    first, second = figures(document).values()
    assert first == second == figures(finished[0])["plain"]


def test_a_changed_table_trains_only_what_changed(finished, tmp_path):
    _, options = finished
    changed = TABLE | {"rows": [TABLE["rows"][0], {"name": "cold", "settings": {"temp": 0.7}}]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(changed))
    listed = dry_run(load_table(str(tmp_path / "test.yaml")), options)
    assert [(run["row"], run["done"]) for run in listed["runs"]] == [("plain", True), ("cold", False)] * 2
    assert listed["rate"] == "runs that are finished" and listed["pending_seconds"] > 0


def test_a_row_that_cannot_be_run_says_why_and_the_others_are_run(data_dir, tmp_path):
    rows = [{"name": "broken", "settings": {"train_file": "wiki/nothing.txt"}}, {"name": "plain"}]
    claims = [{"says": "x", "better": "plain", "than": ["broken"]}]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(TABLE | {"rows": rows, "claims": claims}))
    table = load_table(str(tmp_path / "test.yaml"))
    options = Options(Sources(data_dir, tmp_path / "out"), seeds=1)
    assert dry_run(table, options)["missing"] == [
        f"wiki/nothing.txt: put this file at {data_dir / 'wiki/nothing.txt'}"
    ]
    document = reproduce(table, options)
    assert "missing: wiki/nothing.txt" in document["rows"][0]["failure"]
    assert document["rows"][1]["cells"][0]["mean"] is not None
    assert document["claims"][0]["verdict"] == "not run"


def test_a_start_model_without_a_trained_head_is_measured_with_the_pooler_of_the_row(data_dir, tmp_path):
    row = {"name": "start", "recipe": "evaluation", "pooler": "avg", "paper": [80.0]}
    document = {key: value for key, value in TABLE.items() if key != "claims"} | {"rows": [row]}
    (tmp_path / "start.yaml").write_text(yaml.safe_dump(document))
    sources = Sources(data_dir, tmp_path / "out", model="tiny")
    done = reproduce(load_table(str(tmp_path / "start.yaml")), Options(sources, seeds=1))
    assert done["rows"][0]["failure"] is None
    assert len(done["rows"][0]["cells"][0]["figures"]) == 1


def test_only_the_named_rows_are_run(table, data_dir, tmp_path):
    options = Options(Sources(data_dir, tmp_path / "out"), seeds=1, only=("cold",))
    assert {name for name, each in figures(reproduce(table, options)).items() if each} == {"cold"}
    with pytest.raises(ValueError, match="--only hot: test has no such row; its rows are plain, cold"):
        plan(table, Options(Sources(data_dir, tmp_path / "out"), only=("hot",)))


def test_another_start_model_makes_other_runs_and_other_files(table, data_dir, tmp_path):
    usual = Options(Sources(data_dir, tmp_path), seeds=1)
    other = Options(Sources(data_dir, tmp_path, model=str(data_dir.parent / "models/tiny")), seeds=1)
    keys = [{each.run.key(options.sources) for each in plan(table, options)} for options in (usual, other)]
    assert keys[0] == keys[1]  # the same files under another name
    missing = Options(Sources(data_dir, tmp_path, model="no-such-model"), seeds=1)
    assert dry_run(table, missing)["missing"] == [
        "no-such-model: download this model of the Hugging Face hub, or name another start model"
    ]


def test_the_command_lists_tables_and_plans_a_table_offline(data_dir, tmp_path, capsys):
    words = ["--data_dir", str(data_dir), "--output", str(tmp_path / "out"), "--seeds", "1"]
    assert main(["reproduce", *words]) == 0
    listed = capsys.readouterr().out
    assert "simcse/3" in listed and "missing" in listed
    assert main(["reproduce", "simcse/3", "--scale", "paper", "--dry_run", "--json", *words]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert len(planned["runs"]) == 8 and any("wiki1m_for_simcse.txt" in text for text in planned["missing"])
    assert planned["pending_seconds"] > 3600 and planned["rate"] == "the rates in scales/paper.yaml"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_trains_a_table_of_one_s_own_and_writes_it_for_the_documents(data_dir, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TABLE))
    words = ["--data_dir", str(data_dir), "--output", str(tmp_path / "out"), "--seeds", "1", "--quiet"]
    assert main(["reproduce", str(tmp_path / "mine.yaml"), "--write_docs", str(tmp_path / "docs"), *words]) == 0
    assert "one seed says nothing about what another would give" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["mine.json", "mine.md"]


def test_a_page_leaves_out_the_rows_and_columns_that_were_not_run_and_names_them(finished):
    document = json.loads(json.dumps(finished[0]))
    document["columns"].append({"name": "mteb", "averaged": [], "resampled": False})
    for row in document["rows"]:
        row["cells"].append(
            {"paper": 5.0, "figures": {}, "mean": None, "sd": None, "difference": None, "trained": True}
        )
    absent = {"name": "large, cold", "cells": [document["rows"][0]["cells"][1]] * 2, "failure": None}
    page = format_markdown(document | {"rows": [*document["rows"], absent]})
    header = next(line for line in page.splitlines() if line.startswith("|"))
    assert "dev, paper" in header and "mteb" not in header and "| large" not in page
    assert "These columns were not run: mteb\n" in page and "These rows were not run: large, cold\n" in page
