"""The tables of papers: every YAML of the package is valid, says what the paper says, and its runs resolve."""

import re
from pathlib import Path

import pytest
import yaml

from simcse_hf.publishing.card_training import PAPERS
from simcse_hf.training.reproduction.figures import metric
from simcse_hf.training.reproduction.specs import Sources, differences, runs_of
from simcse_hf.training.reproduction.table import SCALES, load_table, table_names
from simcse_hf.training.script_arguments import ARGUMENT_CLASSES, parse_arguments

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared"
TEXTS = {"simcse": "simcse.txt", "liao": "supervised_contrastive.txt", "non_contrastive": "non_contrastive.txt"}
MINIMAL = {
    "paper": "simcse",
    "table": "3",
    "title": "A test",
    "figure": "STS-B dev",
    "recipe": "unsup-simcse-bert-base-uncased",
    "columns": [{"name": "dev"}],
    "rows": [{"name": "a", "paper": [1.0]}, {"name": "b", "paper": [2.0]}],
}


def write(folder, **changes):
    path = folder / "table.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | changes))
    return str(path)


@pytest.mark.parametrize("name", table_names())
@pytest.mark.parametrize("scale", SCALES)
def test_every_table_resolves_to_runs_with_valid_settings(name, scale, tmp_path):
    table = load_table(name)
    assert table.paper in PAPERS
    runs = [run for _, _, run in runs_of(table, scale, 2, Sources(tmp_path, tmp_path))]
    assert len({run.key(Sources(tmp_path, tmp_path)) for run in runs}) >= 2
    assert all(run.settings["dev_file"] and (run.steps > 0 or not run.trained) for run in runs)
    for column in table.columns:
        assert metric(column.metric).tasks
    assert bool(differences(table, scale)) == (scale == "small")


@pytest.mark.parametrize("name", table_names())
def test_the_figures_and_the_words_of_a_table_occur_in_its_paper(name):
    table = load_table(name)
    path = SHARED / "papers" / TEXTS.get(table.paper, "")
    if not path.is_file():
        pytest.skip("needs the text of the paper in ../shared/papers")
    text = " ".join(path.read_text(encoding="utf-8").split())
    for row in table.rows:
        for figure in row.paper:
            assert figure is None or re.search(rf"(?<![\d.]){figure:g}0?(?![\d])", text), (row.name, figure)
    for claim in table.claims:
        assert claim.says in text, claim.says


def test_the_default_run_of_simcse_is_one_run_in_all_tables_that_contain_it(tmp_path):
    sources = Sources(tmp_path, tmp_path)
    rows = {
        "simcse/1": "None (unsup. SimCSE)",
        "simcse/2": "Unsupervised SimCSE",
        "simcse/3": "p = 0.1",
        "simcse/6": "[CLS] w/ MLP (train)",
        "simcse/A.1": "64, 3e-5",
    }
    keys = {
        run.key(sources)
        for name, row_name in rows.items()
        for row, column, run in runs_of(load_table(name), "small", 1, sources)
        if (row.name, column) == (row_name, 0)
    }
    assert len(keys) == 1


def test_runs_differ_by_seed_by_settings_and_by_the_content_of_their_files(tmp_path):
    table = load_table("simcse/3")
    data, output = tmp_path / "data", tmp_path / "output"
    (data / "wiki").mkdir(parents=True)
    text = data / "wiki" / "wiki_sentences.txt"

    def keys():
        return [run.key(Sources(data, output)) for _, _, run in runs_of(table, "small", 2, Sources(data, output))]

    text.write_text("one\n")
    first = keys()
    assert len(set(first)) == 2 * len(table.rows)
    text.write_text("another\n")
    assert not set(first) & set(keys())
    text.write_text("one\n")
    assert keys() == first  # the same content, whenever it was written


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": [{"name": "a", "paper": [1.0, 2.0]}]}, "row a has 2 figures of the paper, and the table has 1 col"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "two rows are named a; rename one"),
        ({"rows": [{"title": "a"}]}, "rows, entry 1: unknown entry title; known are name, paper"),
        ({"rows": [{"settings": {}}]}, "rows, entry 1: name is missing"),
        ({"rows": {"a": 1}}, "rows must be a list"),
        ({"paper": "nobody"}, "paper 'nobody' has no entry in publishing/papers.bib; add one"),
        ({"claims": [{"says": "x", "better": "a", "than": ["c"]}]}, "claim 'x' names c, and there is no such row"),
        ({"claims": [{"says": "x", "better": "a"}]}, "needs either better and than, or similar"),
        ({"claims": [{"says": "x", "column": "no", "better": "a", "than": ["b"]}]}, "there is no such column"),
    ],
)
def test_a_broken_table_is_refused_with_the_place_of_the_error(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_table(write(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"recipe": "nothing"}, "row a, column dev: there is no recipe nothing; use one of "),
        ({"rows": [{"name": "a", "settings": {"tempo": 1}}]}, "row a, column dev: unknown argument(s) tempo"),
        ({"rows": [{"name": "a", "settings": {"temp": "hot"}}]}, "row a, column dev: temp is 'hot', but must be"),
    ],
)
def test_a_table_with_an_unknown_recipe_or_setting_is_refused_before_any_run(tmp_path, changes, message):
    table = load_table(write(tmp_path, **changes))
    with pytest.raises(ValueError, match=re.escape(message)):
        list(runs_of(table, "small", 1, Sources(tmp_path, tmp_path)))


def test_the_table_in_the_documentation_is_valid(tmp_path):
    text = (ROOT / "docs/reproducing.md").read_text(encoding="utf-8")
    (tmp_path / "temperatures.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1])
    table = load_table(str(tmp_path / "temperatures.yaml"))
    assert len(list(runs_of(table, "small", 1, Sources(tmp_path, tmp_path)))) == 3


def test_an_unknown_table_is_refused_with_the_list_of_tables():
    with pytest.raises(ValueError, match=r"there is no table simcse/99. Use one of .*simcse/3"):
        load_table("simcse/99")


def test_the_paper_scale_keeps_the_settings_of_the_recipe(tmp_path):
    (_, _, run), *_ = runs_of(load_table("simcse/A.1"), "paper", 1, Sources(tmp_path, tmp_path))
    recipe = yaml.safe_load((ROOT / "examples/recipes/unsup-simcse-bert-base-uncased.yaml").read_text())
    changed = {name for name, value in run.settings.items() if recipe.get(name) != value}
    assert changed == {"learning_rate"}  # the first row of the grid: batch 64, learning rate 1e-5
    model_args, data_args, args = parse_arguments(
        [word for name, value in run.settings.items() for word in (f"--{name}", str(value))] + ["--bf16", "false"]
    )
    assert (model_args.model_name_or_path, args.learning_rate) == ("bert-base-uncased", 1e-5)
    assert data_args.train_file == "data/wiki1m_for_simcse.txt" and len(ARGUMENT_CLASSES) == 3
