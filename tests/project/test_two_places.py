"""A new objective, view and pooler take the places that CONTRIBUTING.md names, and every command knows them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from docs_workspace import ROOT

OBJECTIVE = '''
"""The mean squared distance of the two views."""

from torch import Tensor

from .base import EncodedBatch, Objective


class Near(Objective):
    """The mean squared distance of the two views, times a weight.

    Args:
        dim (`int`): Embedding size.
        weight (`float`, *optional*, defaults to `1.0`): The weight.
    """

    name = "near"
    summary = "the squared distance of two views"
    papers = ("simcse",)
    defaults = {"mlp_only_train": False, "per_device_train_batch_size": 8}

    def __init__(self, dim: int, weight: float = 1.0):
        super().__init__(dim)
        self.weight = weight

    def forward(self, batch: EncodedBatch) -> Tensor:
        return self.weight * (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()
'''
VIEW = '''

class Reversed(TextView):
    """The words from last to first."""

    name = "reversed"
    words = "the sentence with its words from last to first"
    paper = "simcse"

    def __call__(self, text, rng):
        return " ".join(reversed(text.split()))
'''
POOLER = '''

class Middle(Pooler):
    """The mean of the second layer and the last one."""

    name = "avg_middle"
    words = "the mean of the second and the last layer"
    code = _MEAN.replace("HIDDEN", "(outputs.hidden_states[2] + outputs.last_hidden_state) / 2")
    mode = "mean"
    second_layer = 2

    def pool(self, states, mask, layers=()):
        return masked_mean((layers[2] + states) / 2, mask)
'''
PROGRAM = """
import io, runpy, sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

from simcse_hf import SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import main
from simcse_hf.data.sample import sample_files

def run(words):
    assert main(words.split()) == 0, words

def help_of(words):
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(words.split())
    Path("help.txt").open("a").write(printed.getvalue())

encoder = sample_files()[1]
texts = ["a cat sits", "a dog runs", "the sun is hot", "rain falls"] * 4
Path("texts.txt").write_text("\\n".join(texts))
Path("pairs.csv").write_text("sentence1,sentence2,score\\na cat,a dog,2\\na cat,the cat,5\\na cat,rain,0\\n")

method = "--objective near --objective_options weight=2.0 --view reversed --pooler_type avg_middle"
start = f"--model {encoder} --train_file texts.txt --output_dir model --max_steps 1 --report_to none --use_cpu"
run(f"train unsup {start} {method}")
args = SimCSETrainingArguments("python", max_steps=1, report_to="none", use_cpu=True, view="reversed")
SimCSETrainer("model", args, train_dataset=texts).train()
run("evaluate --model model --pairs pairs.csv --output model/evaluation.json")
run(f"evaluate --model {encoder} --pooler_type avg_middle --pairs pairs.csv --output other.json")
run("encode --model model --input texts.txt --output vectors --pooler_type avg_middle")
run("card model")
help_of("train unsup near --help")
help_of("train unsup --objective near --help_all")
help_of("encode --help")
write = runpy.run_path("source/tools/write_reference.py")["write"]
Path("api.md").write_text(write(Path("source/docs/api.md").read_text()))
"""


def insert(path, before, text):
    content = path.read_text("utf-8")
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the program writes with a copy of the package that has the three."""
    folder = tmp_path_factory.mktemp("two_places")
    package = folder / "source" / "simcse_hf"
    shutil.copytree(
        ROOT / "simcse_hf", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for file in ("tools/write_reference.py", "docs/api.md"):
        (folder / "source" / file).parent.mkdir()
        shutil.copy(ROOT / file, folder / "source" / file)
    (package / "objectives" / "near.py").write_text(OBJECTIVE.lstrip(), "utf-8")
    insert(package / "objectives" / "__init__.py", "    promptbert,\n", "    near,\n")
    words = package / "data" / "views" / "words.py"
    words.write_text(words.read_text("utf-8") + VIEW, "utf-8")
    pooling = package / "models" / "pooling.py"
    pooling.write_text(pooling.read_text("utf-8") + POOLER, "utf-8")
    insert(package / "names.py", '    "avg_top2",\n', '    "avg_middle",\n')
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return folder


def test_a_run_uses_the_three(folder):
    results = json.loads((folder / "model/results.json").read_text())
    settings = results["settings"]
    assert (
        settings["objective"],
        results["view"]["name"],
        settings["pooler_type"],
    ) == (
        "near",
        "reversed",
        "avg_middle",
    )


def test_an_evaluation_uses_the_pooler(folder):
    assert (
        json.loads((folder / "other.json").read_text())["identity"]["pooler"]
        == "avg_middle"
    )


@pytest.mark.parametrize(
    "words",
    [
        "the squared distance of two views (with `weight` 2)",
        "the sentence with its words from last to first (view `reversed`",
        "the mean of the second and the last layer",
        "(outputs.hidden_states[2] + outputs.last_hidden_state) / 2",
    ],
)
def test_the_card_describes_the_three(words, folder):
    assert words in (folder / "model/README.md").read_text()


@pytest.mark.parametrize(
    "words", ["near", "reversed", "avg_middle", "objective near,", "weight"]
)
def test_help_names_the_three(words, folder):
    assert words in (folder / "help.txt").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "### `near`",
        "| `weight` | `1.0` | The weight. |",
        "| `reversed` |",
        "| `avg_middle` |",
    ],
)
def test_the_reference_lists_the_three(words, folder):
    assert words in (folder / "api.md").read_text()
