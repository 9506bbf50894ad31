"""The tables of papers: every YAML file is valid, says what the paper says, and has a plan."""

import json
import re

import pytest
from conftest import ROOT
from reproduction_helpers import table_of
from trainer_helpers import refuses

from reproduction.__main__ import main
from reproduction.reproduce import plan
from reproduction.rows import Options, differences
from reproduction.table import SCALES, load_table, table_names

PAPERS = ROOT.parent / "shared/papers"
TEXTS = {
    "simcse": "simcse.txt",
    "liao": "supervised_contrastive.txt",
    "non_contrastive": "non_contrastive.txt",
}


def test_the_command_lists_the_22_tables(tmp_path, capsys):
    assert main(["--data_dir", str(tmp_path), "--seeds", "1"]) == 0
    assert len(table_names()) == len(capsys.readouterr().out.splitlines()) == 22
    with refuses("there is no table simcse/99. Use one of simcse/3"):
        load_table("simcse/99")


def options_of(folder, **options):
    words = []
    for name, value in ({"data_dir": folder, "output": folder / "out"} | options).items():
        words += [f"--{name}", str(value)]
    return words


def test_a_dry_run_at_the_papers_scale_lists_each_run_once_with_its_steps_and_the_hours(tmp_path, capsys):
    assert main(["simcse/3", "--dry_run", *options_of(tmp_path, scale="paper")]) == 0
    printed = capsys.readouterr().out
    assert "p = 0.01 (dropout=0.01): 15625 steps of 64 rows; seeds 42, 43, 44\n" in printed
    assert "24 runs, of which 0 are done" in printed and "NVIDIA H200: about 3.6 hours and 3 GiB" in printed


@pytest.mark.parametrize("name", table_names())
@pytest.mark.parametrize("scale", SCALES)
def test_every_table_has_a_plan(name, scale, tmp_path, capsys):
    assert main([name, "--dry_run", "--json", *options_of(tmp_path, scale=scale, seeds=1)]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["missing"] and len({run["key"] for run in planned["runs"]}) >= 2
    assert not any(run["done"] for run in planned["runs"]) and not (tmp_path / "out").exists()
    assert bool(differences(load_table(name), Options(tmp_path, tmp_path, scale=scale))) == (scale == "small")


@pytest.mark.parametrize("name", table_names())
def test_the_scores_and_the_words_of_a_table_occur_in_its_paper(name):
    table = load_table(name)
    path = PAPERS / TEXTS.get(table.paper, "")
    if not path.is_file():
        pytest.skip("needs the text of the paper in ../shared/papers")
    text = " ".join(path.read_text(encoding="utf-8").split())
    for row in table.rows:
        for score in row.paper:
            assert score is None or re.search(rf"(?<![\d.]){score:g}0?(?![\d])", text), (row.name, score)
    assert all(claim.says in text for claim in table.claims)


def test_runs_differ_by_seed_by_settings_and_by_the_content_of_their_files(tmp_path):
    table = load_table("simcse/3")
    (tmp_path / "wiki").mkdir()

    def keys(text):
        (tmp_path / "wiki/wiki_sentences.txt").write_text(text)
        return [run.folder.name for run in plan(table, Options(tmp_path, tmp_path, seeds=2))]

    first = keys("one\n")
    assert len(set(first)) == 2 * len(table.rows)
    assert not set(first) & set(keys("another\n")) and keys("one\n") == first


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": [{"name": "a", "paper": [1.0, 2.0]}]}, "row a has 2 scores of the paper"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "two rows are named a"),
        ({"rows": [{"title": "a"}]}, "rows, entry 1: unknown entry title"),
        ({"claims": [{"says": "x", "better": "a", "than": ["c"]}]}, "claim 'x' names c"),
        ({"claims": [{"says": "x", "better": "a"}]}, "needs either better and than, or similar"),
        ({"recipe": "nothing"}, "small.yaml says nothing about the recipe nothing"),
        ({"rows": [{"name": "a", "settings": {"tempo": 1}}]}, "the arguments: unknown argument(s) tempo"),
    ],
)
def test_a_broken_table_is_refused_before_any_run(tmp_path, changes, message):
    with refuses(message):
        plan(table_of(tmp_path, **changes), Options(tmp_path, tmp_path))


def test_the_table_in_the_documentation_is_valid(tmp_path):
    text = (ROOT / "reproduction/README.md").read_text(encoding="utf-8")
    (tmp_path / "temperatures.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1])
    table = load_table(str(tmp_path / "temperatures.yaml"))
    assert len(plan(table, Options(tmp_path, tmp_path, seeds=1))) == 3
