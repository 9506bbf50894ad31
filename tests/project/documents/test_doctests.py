"""The examples of the docstrings run, and give what stands there.

Each runs in a folder of its own with a few lines of the sample corpus as `sentences.txt`, `triplets.csv`, `pairs.csv`,
`nli.csv`, `tickets.csv` and `sts-dev.csv`, and with a model that was trained on them, `outputs/my-model`.
"""

import ast
import doctest
import gzip
import importlib.util
import shutil
from itertools import islice

import pytest
from docs_helpers import PACKAGE, text_of
from evaluation_helpers import write, write_rows

import simcse_hf
from simcse_hf import train
from simcse_hf.data.sample import sample_files

#: What an example needs that a plain installation lacks.
NEEDS = {
    "apps.analysis.analyze": "matplotlib",
    "apps.export.export": "sentence_transformers",
}
#: Public names without an example: the first asks a server, the second is one, and the third downloads data. The
#: example of the errors stands with their base class.
ERRORS = {"DataError", "ModelError", "NotFiniteError", "SettingError"}
NO_EXAMPLE = {"check_server", "demo", "evaluate_mteb", "__version__"} | ERRORS


def examples():
    """The name, the docstring and the line of every docstring with an example."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = text_of(path)
        if ">>> " in source:
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
            yield from examples_of(ast.parse(source), module)


def examples_of(node, name):
    text = ast.get_docstring(node) or ""
    if ">>> " in text:
        yield name, text, node.body[0].lineno
    for inner in node.body:
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef)):
            yield from examples_of(inner, f"{name}.{inner.name}")


EXAMPLES = {name: (text, line) for name, text, line in examples()}


def lines(path, number):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in islice(file, number)]


@pytest.fixture(scope="module")
def workspace(module_path):
    corpus, encoder = sample_files()
    write(module_path / "sentences.txt", lines(corpus.train_sentences, 200))
    write(module_path / "sts-dev.csv", [line.replace("\t", ",") for line in lines(corpus.dev, 201)])
    header, *triplets = [line.split(",") for line in lines(corpus.train_triplets, 4001)]
    write_rows(module_path / "triplets.csv", header, triplets)
    write_rows(module_path / "pairs.csv", ["anchor", "positive"], [row[:2] for row in triplets[:64]])
    hypotheses = [(anchor, positive, "entailment") for anchor, positive, _ in triplets[:64]]
    hypotheses += [(anchor, negative, "contradiction") for anchor, _, negative in triplets[:64]]
    write_rows(module_path / "nli.csv", ["premise", "hypothesis", "label"], hypotheses)
    places = [(anchor, "sea" if "harbour" in anchor or "port" in anchor else "land") for anchor, *_ in triplets[:256]]
    write_rows(module_path / "tickets.csv", ["text", "label"], places)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_path)
        train(
            "sup",
            model_name_or_path=str(encoder),
            train_file="triplets.csv",
            dev_file="sts-dev.csv",
            output_dir="outputs/my-model",
            pooler_type="avg",
            learning_rate=3e-3,
            per_device_train_batch_size=64,
            max_steps=70,
            eval_steps=35,
            save_steps=35,
            use_cpu=True,
            report_to="none",
        )
    return module_path


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_gives_what_stands_there(
    name, workspace, tmp_path, monkeypatch, forget_definitions
):
    needed = NEEDS.get(name, "torch")
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    monkeypatch.chdir(shutil.copytree(workspace, tmp_path / "here"))
    text, line = EXAMPLES[name]
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, line)
    differences = []
    doctest.DocTestRunner().run(test, out=differences.append)
    assert not differences, "".join(differences)


@pytest.mark.parametrize("name", sorted(set(simcse_hf.__all__) - NO_EXAMPLE))
def test_a_public_name_has_an_example(name):
    assert f"{simcse_hf._MODULE_OF[name]}.{name}" in EXAMPLES
