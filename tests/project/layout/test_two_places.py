"""Each thing of CONTRIBUTING.md's table is added in the places that it names, and works."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import read_json
from docs_helpers import ROOT

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
TASK = '''

class HitsTask(KNNTask):
    """Count the texts whose nearest text has their label."""

    kind = "hits"
    metrics = ("hit_rate",)

    def score(self, embeddings: SentenceEmbeddings) -> TaskResult:
        """Compute the share; see [`Task.score`]."""
        result = super().score(embeddings)
        return TaskResult({"hit_rate": result.metrics["accuracy"]}, result.scores, result.details)
'''
EXPORT = '''

class TorchGraph(Graph):
    """Modules as torch saves them."""

    name = "graph"
    package = "torch"
    file = "graph/model.pt2"
    earlier = "model.pt2"
    int8 = {}
    methods = ()

    def open(self, path, streams, dtype):
        module = torch.load(path, weights_only=False)

        def compute(ids, mask):
            with torch.no_grad():
                return module(torch.from_numpy(ids), torch.from_numpy(mask))[1].numpy()

        return INPUTS, ["last_hidden_state", EMBEDDING], compute

    def export(self, simcse, path):
        torch.save(_Embedder(simcse.model).eval(), path)

    def quantize(self, plain, path, method, feeds, bits):
        raise NotImplementedError
'''
APP = '''
"""Count words."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.outputs import Result


@dataclass(frozen=True)
class Count(Result):
    """The number of words."""

    words: int

    def __str__(self) -> str:
        return f"{self.words} words"


def count_words(texts: Sequence[str], *, longest: int = 100) -> Count:
    """Count the words of some texts.

    Args:
        texts (`Sequence[str]`): The texts.
        longest (`int`, *optional*, defaults to `100`): Letters of the longest word that counts.

    Returns:
        `Count`: The number of words.
    """
    return Count(sum(len(word) <= longest for text in texts for word in text.split()))
'''
PROGRAM = """
import io, runpy, shutil, sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

from simcse_hf import SimCSE, SimCSETrainer, SimCSETrainingArguments, sample_files
from simcse_hf.cli.main import main
from simcse_hf.runtime.upload import public_files

def run(words):
    assert main(words.split()) == 0, words

def print_of(words):
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(words.split())
    Path("printed.txt").open("a").write(printed.getvalue())

encoder = sample_files()[1]
texts = ["a cat sits", "a dog runs", "the sun is hot", "rain falls"] * 4
Path("texts.txt").write_text("\\n".join(texts))
Path("pairs.csv").write_text("sentence1,sentence2,score\\na cat,a dog,2\\na cat,the cat,5\\na cat,rain,0\\n")

method = "--objective near --objective_options weight=2.0 --view reversed --pooler_type avg_middle"
start = f"--model {encoder} --train_file texts.txt --output_dir model --max_steps 1 --report_to none --use_cpu"
run(f"train unsup {start} {method}")
args = SimCSETrainingArguments("python", max_steps=1, report_to="none", use_cpu=True, view="reversed")
SimCSETrainer("model", args, train_dataset=texts).train()
words = [f"the {a} {b}" for a in ("cat", "dog", "sun", "rain") for b in ("sits", "runs", "is hot", "falls")]
Path("labelled.csv").write_text("text,label\\n" + "".join(f"{text},{len(text) % 2}\\n" for text in words))
run("evaluate --model model --task hits=labelled.csv --output model/evaluation.json")
run(f"evaluate --model {encoder} --pooler_type avg_middle --pairs pairs.csv --output other.json")
run("encode --model model --input texts.txt --output vectors --pooler_type avg_middle")
Path("texts.psv").write_text("text|number\\n" + "".join(f"{text}|1\\n" for text in texts))
run("encode --model model --input texts.psv --column text --output of_format --pooler_type avg_middle")
run("card model")
run("export model --to graph --output exported")
run("encode --model exported --model_backend graph --input texts.txt --output of_graph")
shutil.copytree("exported/graph", "model/graph")
assert "graph/model.pt2" in public_files(Path("model"))
SimCSE("model").save_pretrained("model")
assert not Path("model/graph/model.pt2").exists()
print_of("train unsup near --help")
print_of("train unsup --objective near --help_all")
print_of("encode --help")
print_of("--help")
print_of("count-words --help")
print_of("count-words one two --longest 3")
write = runpy.run_path("source/tools/write_reference.py")["write"]
Path("api.md").write_text(write(Path("source/docs/api.md").read_text()))
"""


def insert(path, before, text):
    content = path.read_text("utf-8")
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before), "utf-8")


def append(path, text):
    path.write_text(path.read_text("utf-8") + text, "utf-8")


@pytest.fixture(scope="module")
def folder(module_path):
    """The files that the program writes with a copy of the package that has all of them."""
    package = module_path / "source" / "simcse_hf"
    shutil.copytree(ROOT / "simcse_hf", package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("tools/write_reference.py", "docs/api.md"):
        (module_path / "source" / file).parent.mkdir()
        shutil.copy(ROOT / file, module_path / "source" / file)
    (package / "objectives" / "near.py").write_text(OBJECTIVE.lstrip(), "utf-8")
    insert(package / "objectives" / "__init__.py", "    promptbert,\n", "    near,\n")
    append(package / "data" / "views" / "words.py", VIEW)
    append(package / "models" / "pooling.py", POOLER)
    insert(package / "names.py", '    "avg_top2",\n', '    "avg_middle",\n')
    append(package / "evaluation" / "tasks" / "labelled.py", TASK)
    tasks = package / "evaluation" / "tasks" / "__init__.py"
    insert(tasks, "from .ranking import", "from .labelled import HitsTask\n")
    insert(tasks, '    "knn": ', '    "hits": HitsTask,\n')
    insert(
        package / "evaluation" / "metrics.py",
        '        Metric("pearson"),\n',
        '        Metric("hit_rate", digits=1),\n',
    )
    insert(package / "data" / "table.py", '    "csv": ', '    "psv": partial(open_csv, delimiter="|"),\n')
    append(package / "encoding" / "graphs.py", EXPORT)
    for literal in ("Backend", "Export"):
        first = re.compile(rf'^({literal} = Literal\["[\w-]+", )', re.MULTILINE)
        names = package / "names.py"
        names.write_text(first.sub(r'\1"graph", ', names.read_text("utf-8")), "utf-8")
    (package / "apps" / "words.py").write_text(APP.lstrip(), "utf-8")
    command = '    "count-words": Command("apps.words:count_words", positional=("texts",)),\n'
    insert(package / "cli" / "main.py", '    "analyze": ', command)
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    words = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(words, cwd=module_path, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return module_path


def test_a_run_and_evaluations_use_them(folder):
    results = read_json(folder / "model/results.json")
    used = (results["settings"]["objective"], results["view"]["name"], results["settings"]["pooler_type"])
    assert used == ("near", "reversed", "avg_middle")
    assert read_json(folder / "other.json")["identity"]["pooler"] == "avg_middle"


def missing(path, *parts):
    text = path.read_text("utf-8")
    return [part for part in parts if part not in text]


def test_the_card_describes_them(folder):
    hits = read_json(folder / "model/evaluation.json")["results"]["hits"]
    parts = [
        "the squared distance of two views (with `weight` 2)",
        "the sentence with its words from last to first (view `reversed`",
        "(outputs.hidden_states[2] + outputs.last_hidden_state) / 2",
        "the mean of the second and the last layer",
        f"| hits (labelled) | hit_rate | {hits['hit_rate']:.1f} |",
    ]
    assert missing(folder / "model/README.md", *parts) == []


def test_help_and_the_reference_name_the_three(folder):
    assert missing(folder / "printed.txt", "near", "reversed", "avg_middle", "objective near,", "weight") == []
    rows = ("### `near`", "| `weight` | `1.0` | The weight. |", "| `reversed` |", "| `avg_middle` |")
    assert missing(folder / "api.md", *rows) == []


def test_an_exported_graph_is_encoded_with(folder):
    ours, theirs = (np.load(folder / name / "vectors.npy") for name in ("vectors", "of_graph"))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert missing(folder / "printed.txt", "--model_backend {torch,graph,") == []


def test_a_file_format_is_read(folder):
    of_text, of_format = (np.load(folder / name / "vectors.npy") for name in ("vectors", "of_format"))
    np.testing.assert_array_equal(of_text, of_format)


def test_an_app_is_a_command_with_help(folder):
    words = ("Count the words of some texts", "Letters of the longest word that counts", "2 words")
    assert missing(folder / "printed.txt", *words) == []
