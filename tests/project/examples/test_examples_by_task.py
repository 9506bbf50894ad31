"""The examples by task: each is short, runs as it is, and prints what it shows; two of them are notebooks."""

import gzip
import json
import re
import runpy
from itertools import islice

import numpy as np
import pytest
from conftest import NEEDS_PEFT
from docs_helpers import ON_A_PROCESSOR, ROOT, difference, text_of

from simcse_hf import sample_files

EXAMPLES = ROOT / "examples"
SCRIPTS = {path.stem: text_of(path) for path in sorted(EXAMPLES.glob("*.py"))}
#: Programs with options, whose tests are elsewhere.
PROGRAMS = (
    "build_pairs encode_ray finetune_classifier pretrain_mlm run_sup run_unsup search_pgvector search_qdrant "
    "study_ray synthesize_triplets"
).split()
BY_TASK = [name for name in SCRIPTS if name not in PROGRAMS]
NOTEBOOKS = [path.stem for path in sorted(EXAMPLES.glob("*.ipynb"))]
#: It serves until it is interrupted.
SERVER = "serve_index"
PRINTS = "\n\n# Prints:\n"


@pytest.fixture
def here(tmp_path, monkeypatch, forget_definitions):
    """A folder to run an example in, with the modules beside it, as `python examples/NAME.py` finds them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)


def start(name, run_name="__main__"):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=run_name)


def printed_by_cells(notebook):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join(output["text"]) for cell in cells for output in cell["outputs"]]


#: Equal cosines are told apart by rounding, which differs in numpy 1.
NEEDS_NUMPY_2 = pytest.mark.skipif(np.__version__ < "2", reason="shows figures of numpy 2")
NEEDS = {"lora_decoder": NEEDS_PEFT, "evaluate_any": NEEDS_NUMPY_2}
PRINTING = [pytest.param(name, marks=NEEDS.get(name, ())) for name in BY_TASK if name not in (*NOTEBOOKS, SERVER)]


@ON_A_PROCESSOR
@pytest.mark.parametrize("name", PRINTING)
def test_an_example_prints_what_stands_at_its_end(name, here, capsys):
    _, found, comment = SCRIPTS[name].partition(PRINTS)
    assert found, f"examples/{name}.py shows nothing of what it prints"
    start(name)
    assert difference(re.sub(r"^# ?", "", comment, flags=re.MULTILINE), capsys.readouterr().out) is None


@ON_A_PROCESSOR
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_holds_the_script_and_what_it_prints(name, here):
    notebook = json.loads(text_of(EXAMPLES / f"{name}.ipynb"))
    written = runpy.run_path(str(ROOT / "tools/write_notebooks.py"))["write"](name)
    sources = [[cell["source"] for cell in each["cells"]] for each in (notebook, written)]
    assert sources[0] == sources[1], "run python tools/write_notebooks.py"
    shown, printed = printed_by_cells(notebook), printed_by_cells(written)
    assert [difference(*pair) for pair in zip(shown, printed, strict=True)] == [None] * len(shown)


@pytest.mark.usefixtures("here")
def test_the_server_finds_what_the_index_finds(tmp_path, monkeypatch):
    testclient = pytest.importorskip("fastapi.testclient", reason="fastapi is not installed")
    sample, encoder = sample_files()
    sentences = tmp_path / "sentences.txt"
    with gzip.open(sample.train_sentences, "rt") as lines:
        sentences.write_text("".join(islice(lines, 500)))
    monkeypatch.setattr("simcse_hf.sample_files", lambda: (sample._replace(train_sentences=sentences), encoder))
    server = start(SERVER, run_name=SERVER)
    query = "The tired mariner lost the fiddle."
    found = testclient.TestClient(server["app"]).get("/search", params={"query": query, "top_k": 2}).json()
    assert [each["text"] for each in found] == [match.sentence for match in server["model"].search(query, top_k=2)]


@pytest.mark.parametrize("name", BY_TASK)
def test_an_example_is_short_and_says_how_to_start_it(name):
    lines = [line for line in SCRIPTS[name].splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 40
    assert lines[1].startswith(f"python examples/{name}.py")


def test_the_page_lists_every_example_and_nothing_else():
    page = text_of(EXAMPLES / "README.md")
    listed = re.findall(r"\]\((\w+\.(?:py|ipynb))\)", page)
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert sorted(listed) == sorted(files)
