"""The example programs in the documentation run without changes."""

import re
from pathlib import Path

from safetensors.torch import load_file

import simcse_hf
from simcse_hf.data.views import VIEWS
from simcse_hf.objectives import OBJECTIVES

DOCS = Path(__file__).parents[2] / "docs"


def programs(document):
    return re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_a_custom_objective_trains_and_has_at_most_thirty_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = programs("methods.md")
    assert len([line for line in program.splitlines() if line.strip()]) <= 30
    names = {}
    try:
        exec(compile(program, "docs/methods.md", "exec"), names)
    finally:
        OBJECTIVES.pop("align_uniform", None)
    state = list((tmp_path / "outputs/align-uniform").glob("checkpoint-*/model.safetensors"))
    assert state and load_file(state[0])


def test_methods_md_lists_every_objective_and_view():
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    missing = [name for name in (*OBJECTIVES, *VIEWS) if f"`{name}`" not in text]
    assert not missing


def test_the_api_page_has_every_public_name():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert not [name for name in simcse_hf.__all__ if name != "__version__" and f".{name}\n" not in page]
