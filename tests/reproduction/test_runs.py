"""`python -m reproduction` on a tiny encoder: runs are finished once, kept, shared, continued and judged."""

import json
import runpy

import pytest
from conftest import ROOT, read_json, save_encoder
from evaluation_helpers import write, write_stsb
from reproduction_helpers import table_of
from trainer_helpers import refuses, sentences
from transformers import TrainerCallback

from reproduction.__main__ import main
from reproduction.report import format_markdown
from reproduction.reproduce import dry_run, plan, reproduce
from reproduction.rows import Options
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
RESULTS = ROOT / "docs/results"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    root = tmp_path_factory.mktemp("shared")
    data = root / "data"
    write(data / "wiki/sentences.txt", sentences(40))
    write_stsb(data / "senteval/downstream")
    save_encoder(root / "models/tiny")
    return data


def scores(document):
    return {row["name"]: row["cells"][0]["figures"] for row in document["rows"]}


@pytest.fixture(scope="module")
def finished(module_path, data_dir):
    """A table whose runs were finished by the command: two rows, two seeds."""
    table_of(module_path, **DEFAULTS)
    words = ["--data_dir", str(data_dir), "--output", str(module_path / "out"), "--seeds", "2", "--quiet"]
    assert main([str(module_path / "test.yaml"), "--write_docs", str(module_path / "docs"), *words]) == 0
    assert sorted(path.name for path in (module_path / "docs").iterdir()) == ["test.json", "test.md"]
    return read_json(module_path / "out/test.json"), Options(data_dir, module_path / "out", seeds=2)


def test_a_table_has_the_paper_s_scores_ours_and_a_verdict_also_on_the_site(finished, tmp_path):
    document, options = finished
    cell, claim = document["rows"][0]["cells"][0], document["claims"][0]
    assert set(cell["figures"]) == {"42", "43"} and cell["paper"] == 80.0
    assert cell["mean"] == pytest.approx(sum(cell["figures"].values()) / 2, abs=1e-3)
    assert cell["difference"] == pytest.approx(cell["mean"] - 80.0, abs=1e-3)
    assert claim["verdict"] in ("agrees", "disagrees", "within noise") and claim["differences"][0]["seeds"] == 2
    page = (options.output / "test.md").read_text()
    assert "| plain | 80.0 |" in page and "“plain is best”" in page and "    python -m reproduction" in page
    assert not list(options.output.rglob("*.safetensors"))
    fill_tables = runpy.run_path(str(RESULTS.parent / "site_results.py"))["fill_tables"]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/simcse-3.json").write_text(json.dumps(document | {"start": "models/tiny"}))
    text = fill_tables("before\n\n<!-- table simcse/3 -->\n\nafter", tmp_path)
    assert f"| plain | 80.0 | {cell['mean']:.2f} ± {cell['sd']:.2f} |" in text and "`tiny`" in text
    assert f"- **{claim['verdict'].capitalize()}**: “plain is best” ({claim['reason']})." in text
    assert "not among the tables" in fill_tables("<!-- table simcse/99 -->", tmp_path)


def test_a_killed_table_goes_on_at_its_last_checkpoint_and_ends_as_if_it_had_not_been_killed(
    finished, data_dir, tmp_path, monkeypatch
):
    table = table_of(tmp_path, **DEFAULTS)
    make = Recipe.trainer
    steps = []

    class CountsAndKills(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)
            if len(steps) == 4:
                raise KeyboardInterrupt

    def make_and_watch(recipe, *decided):
        trainer = make(recipe, *decided)
        trainer.add_callback(CountsAndKills())
        return trainer

    monkeypatch.setattr(Recipe, "trainer", make_and_watch)
    options = Options(data_dir, tmp_path / "out", seeds=1)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, options)
    assert [run["done"] for run in dry_run(table, options)["runs"]] == [True, False]
    continued = scores(reproduce(table, options))
    assert steps == [1, 2, 1, 2, 2]
    assert continued == {name: {"42": each["42"]} for name, each in scores(finished[0]).items()}


def test_equal_runs_of_two_tables_are_trained_once_and_again_only_for_what_was_not_measured(
    finished, tmp_path, monkeypatch
):
    document, options = finished
    rows = [{"name": "default"}, {"name": "warm", "settings": {"temp": 0.05}}]
    with monkeypatch.context() as patched:
        patched.setattr(Recipe, "trainer", lambda *_: pytest.fail("a finished run was trained again"))
        # The recipe's temperature is 0.05, so both rows are the run "plain" of the other table.
        first, second = scores(reproduce(table_of(tmp_path, rows=rows, small=SMALL), options)).values()
    assert first == second == scores(document)["plain"]
    changed = [{"name": "cold", "settings": {"temp": 0.7}}]
    listed = dry_run(table_of(tmp_path, **DEFAULTS | {"rows": [ROWS[0], *changed]}), options)["runs"]
    assert [(run["row"], run["done"]) for run in listed] == [("plain", True), ("cold", False)] * 2
    columns = [{"name": "dev"}, {"name": "uniformity", "metric": "uniformity"}]
    table = table_of(tmp_path, rows=[{"name": "plain"}], columns=columns, small=SMALL)
    dev, uniformity = reproduce(table, options)["rows"][0]["cells"]
    assert dev["figures"] == first and uniformity["mean"] < 0


def test_an_objective_of_one_s_own_works_in_a_row_and_a_row_that_cannot_be_run_says_why(
    data_dir, tmp_path, monkeypatch
):
    (tmp_path / "own_of_a_row.py").write_text(
        "from simcse_hf.objectives.info_nce import SimCSEObjective\n\n\nclass Mine(SimCSEObjective):\n    pass\n"
        "\n\nclass Broken(SimCSEObjective):\n    def forward(self, batch):\n        raise KeyError('mine')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rows = [
        {"name": "start", "recipe": "evaluation", "pooler": "avg"},
        {"name": "plain"},
        {"name": "mine", "settings": {"objective": "own_of_a_row:Mine"}},
        {"name": "raises", "settings": {"objective": "own_of_a_row:Broken"}},
        {"name": "absent", "settings": {"train_file": "wiki/nothing.txt"}},
    ]
    claims = [{"says": "x", "better": "mine", "than": ["start"]}, {"says": "y", "better": "mine", "than": ["raises"]}]
    table = table_of(tmp_path, rows=rows, claims=claims, small=SMALL)
    options = Options(data_dir, tmp_path / "out", model="tiny", seeds=2)
    missing = f"wiki/nothing.txt: put this file at {data_dir / 'wiki/nothing.txt'}"
    assert dry_run(table, options)["missing"] == [missing]
    document = reproduce(table, options)
    found = scores(document)
    assert found["mine"] == found["plain"] and len(found["start"]) == 1
    assert [claim["verdict"] != "not run" for claim in document["claims"]] == [True, False]
    page = format_markdown(document)
    assert "- raises: KeyError: 'mine'" in page and "- absent: missing: wiki/nothing.txt" in page
    assert len({run.folder for run in plan(table, options)}) == 9
    with refuses("--only hot: test has no such row; its rows are start"):
        plan(table, Options(data_dir, tmp_path / "out", only=("hot",)))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_page_of_results_is_what_the_command_writes_from_its_numbers(path):
    page = format_markdown(read_json(path))
    assert page == path.with_suffix(".md").read_text()
