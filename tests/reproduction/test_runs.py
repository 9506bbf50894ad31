"""`python -m reproduction` on a tiny encoder: runs are finished once, kept, shared, continued and judged."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import save_encoder
from evaluation_helpers import write_stsb
from reproduction_helpers import table_of
from trainer_helpers import sentences
from transformers import TrainerCallback

from reproduction.__main__ import main
from reproduction.report import format_markdown
from reproduction.reproduce import Options, dry_run, plan, reproduce
from reproduction.specs import Sources
from simcse_hf.training.recipe import Recipe

SMALL = {
    "model_name_or_path": "tiny",
    "train_file": "wiki/sentences.txt",
    "max_steps": 2,
    "eval_steps": 1,
    "per_device_train_batch_size": 4,
    "bf16": False,
}
ROWS = [
    {"name": "plain", "paper": [80.0]},
    {"name": "cold", "settings": {"temp": 0.5}, "paper": [70.0]},
]
CLAIMS = [{"says": "plain is best", "better": "plain", "than": ["cold"]}]
DEFAULTS = {"rows": ROWS, "claims": CLAIMS, "small": SMALL}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("shared")
    data = root / "data"
    (data / "wiki").mkdir(parents=True)
    (data / "wiki/sentences.txt").write_text("\n".join(sentences(40)) + "\n")
    write_stsb(data / "senteval/downstream")
    save_encoder(root / "models/tiny")
    return data


def scores(document):
    return {row["name"]: row["cells"][0]["figures"] for row in document["rows"]}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data_dir):
    """A table whose runs were finished by the command: two rows, two seeds."""
    folder = tmp_path_factory.mktemp("finished")
    table_of(folder, **DEFAULTS)
    words = ["--data_dir", str(data_dir), "--output", str(folder / "out"), "--seeds", "2", "--quiet"]
    assert main([str(folder / "test.yaml"), "--write_docs", str(folder / "docs"), *words]) == 0
    assert sorted(path.name for path in (folder / "docs").iterdir()) == ["test.json", "test.md"]
    return json.loads((folder / "out/test.json").read_text()), Options(Sources(data_dir, folder / "out"), seeds=2)


def test_a_table_has_the_paper_s_scores_ours_and_a_verdict(finished):
    document, options = finished
    assert [row["name"] for row in document["rows"]] == ["plain", "cold"]
    cell = document["rows"][0]["cells"][0]
    assert set(cell["figures"]) == {"42", "43"} and cell["paper"] == 80.0
    assert cell["mean"] == pytest.approx(sum(cell["figures"].values()) / 2, abs=1e-3)
    assert cell["difference"] == pytest.approx(cell["mean"] - 80.0, abs=1e-3)
    assert document["claims"][0]["verdict"] in ("agrees", "disagrees", "within noise")
    page = (options.sources.output / "test.md").read_text()
    assert "| plain | 80.0 |" in page and "“plain is best”" in page and "    python -m reproduction" in page


def test_the_site_shows_our_scores_beside_the_papers_once_they_are_reproduced(finished, tmp_path):
    document, _ = finished
    fill_tables = runpy.run_path(str(Path(__file__).parents[2] / "docs/site_results.py"))["fill_tables"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/simcse-3.json").write_text(json.dumps(document | {"start": "models/tiny"}))
    text = fill_tables("before\n\n<!-- table simcse/3 -->\n\nafter", tmp_path)
    cell, claim = document["rows"][0]["cells"][0], document["claims"][0]
    assert f"| plain | 80.0 | {cell['mean']:.2f} ± {cell['sd']:.2f} |" in text
    assert "over 2 seeds" in text and "`tiny`" in text and "results/simcse-3.md" not in text
    assert f"- **{claim['verdict'].capitalize()}**: “plain is best” ({claim['reason']})." in text
    assert "not among the tables" in fill_tables("<!-- table simcse/99 -->", tmp_path)


def test_a_killed_command_continues_and_ends_as_if_it_had_not_been_killed(finished, data_dir, tmp_path, monkeypatch):
    """At the paper's scale, it continues at the last checkpoint."""
    table = table_of(tmp_path, **DEFAULTS | {"small": SMALL | {"save_only_model": False}})
    options = Options(Sources(data_dir, tmp_path / "out"), seeds=1)
    make, steps = Recipe.trainer, []

    class CountsAndKills(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)
            if len(steps) == 4:
                raise KeyboardInterrupt

    def make_and_watch(recipe):
        trainer = make(recipe)
        trainer.add_callback(CountsAndKills())
        return trainer

    monkeypatch.setattr(Recipe, "trainer", make_and_watch)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, options)
    partial = json.loads((tmp_path / "out/test.json").read_text())
    assert {name: list(each) for name, each in scores(partial).items()} == {
        "plain": ["42"],
        "cold": [],
    }
    continued = scores(reproduce(table, options))
    assert steps == [1, 2, 1, 2, 2]
    assert continued == {name: {"42": each["42"]} for name, each in scores(finished[0]).items()}


def test_equal_runs_of_two_tables_are_trained_once(finished, tmp_path, monkeypatch):
    document, options = finished
    rows = [{"name": "default"}, {"name": "warm", "settings": {"temp": 0.05}}]
    monkeypatch.setattr(Recipe, "trainer", lambda recipe: pytest.fail("a finished run was trained again"))
    # The recipe's temperature is 0.05, so both rows are the run "plain" of the other table.
    first, second = scores(reproduce(table_of(tmp_path, rows=rows, small=SMALL), options)).values()
    assert first == second == scores(document)["plain"]
    changed = table_of(
        tmp_path,
        **DEFAULTS | {"rows": [ROWS[0], {"name": "cold", "settings": {"temp": 0.7}}]},
    )
    listed = [(run["row"], run["done"]) for run in dry_run(changed, options)["runs"]]
    assert listed == [("plain", True), ("cold", False)] * 2


def test_a_row_that_cannot_be_run_says_why_and_the_others_are_run(data_dir, tmp_path):
    rows = [
        {"name": "broken", "settings": {"train_file": "wiki/nothing.txt"}},
        {"name": "start", "recipe": "evaluation", "pooler": "avg"},
    ]
    claims = [{"says": "x", "better": "start", "than": ["broken"]}]
    table = table_of(tmp_path, rows=rows, claims=claims, small=SMALL)
    options = Options(Sources(data_dir, tmp_path / "out", model="tiny"), seeds=1)
    missing = f"wiki/nothing.txt: put this file at {data_dir / 'wiki/nothing.txt'}"
    assert dry_run(table, options)["missing"] == [missing]
    document = reproduce(table, options)
    assert "missing: wiki/nothing.txt" in document["rows"][0]["failure"]
    assert document["rows"][1]["cells"][0]["mean"] is not None
    assert document["claims"][0]["verdict"] == "not run"
    page = format_markdown(document)
    assert "- broken: missing" in page
    with pytest.raises(ValueError, match="--only hot: test has no such row; its rows are broken, start"):
        plan(table, replace(options, only=("hot",)))


RESULTS = Path(__file__).parents[2] / "docs/results"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_page_of_results_is_what_the_command_writes_from_its_numbers(path):
    page = format_markdown(json.loads(path.read_text()))
    assert page == path.with_suffix(".md").read_text()
