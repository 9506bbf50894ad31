"""The example programs in the documentation run without changes."""

import re
from pathlib import Path

from safetensors.torch import load_file

from simcse_hf.data.sample import sample_files, write_sample_corpus
from simcse_hf.data.views import VIEWS
from simcse_hf.objectives import OBJECTIVES
from simcse_hf.training.sample_encoder import SampleEncoderSettings, build_sample_encoder

DOCS = Path(__file__).parents[2] / "docs"


def programs(document):
    return re.findall(r"```python\n(.*?)```", (DOCS / document).read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_of_a_custom_objective_trains_and_has_at_most_thirty_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = programs("methods.md")
    assert len([line for line in program.splitlines() if line.strip()]) <= 30
    corpus = write_sample_corpus("outputs/sample/corpus", num_sentences=400, num_triplets=10, num_pairs=40)
    settings = SampleEncoderSettings(hidden_size=16, num_layers=1, num_heads=2, steps=5, batch_size=8)
    build_sample_encoder(sample_files("outputs/sample")[1], corpus, settings=settings)
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
