"""A new objective and a new pooler take two places each, as CONTRIBUTING.md says, and train in Python and shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import simcse_hf

OBJECTIVE = '''
"""The mean squared distance of the two views."""

from torch import Tensor

from .base import EncodedBatch, Objective


class Near(Objective):
    """The mean squared distance of the two views, times a weight."""

    name = "near"
    summary = "the squared distance of two views"
    defaults = {"mlp_only_train": False, "per_device_train_batch_size": 8}

    def __init__(self, dim: int, weight: float = 1.0):
        super().__init__(dim)
        self.weight = weight

    def forward(self, batch: EncodedBatch) -> Tensor:
        return self.weight * (batch.embeddings[:, 0] - batch.embeddings[:, 1]).square().mean()
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
import sys
from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import main
from simcse_hf.data.sample import sample_files

corpus, encoder = sample_files()
texts = ["a cat sits", "a dog runs", "the sun is hot", "rain falls"] * 4
model = AutoModelForCL.from_pretrained(str(encoder), objective="near", pooler_type="avg_middle")
args = SimCSETrainingArguments("python", max_steps=1, per_device_train_batch_size=8, report_to="none", use_cpu=True)
trainer = SimCSETrainer(model, args, train_dataset=texts)
trainer.train()
trainer.save_model()
trainer.create_model_card()
assert "the mean of the second and the last layer" in open("python/README.md").read()
assert SimCSE("python", device="cpu").pooler_type == "avg_middle"

open("texts.txt", "w").write("\\n".join(texts))
method = "--objective near --objective_options weight=2.0 --pooler_type avg_middle"
words = f"{method} --max_steps 1 --report_to none --use_cpu true"
files = ["--model_name_or_path", str(encoder), "--train_file", "texts.txt", "--output_dir", "shell"]
assert main(["train", "unsup", *files, *words.split()]) == 0
files = ["--model", "shell", "--input", "texts.txt", "--output", "vectors"]
assert main(["encode", *files, "--pooler_type", "avg_middle"]) == 0
"""


def insert(path, before, text):
    content = path.read_text("utf-8")
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before), "utf-8")


def test_an_objective_and_a_pooler_of_two_places_each_train_from_python_and_from_the_shell(tmp_path):
    package = tmp_path / "source" / "simcse_hf"
    shutil.copytree(Path(simcse_hf.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "objectives" / "near.py").write_text(OBJECTIVE.lstrip(), "utf-8")
    insert(package / "objectives" / "__init__.py", "    promptbert,\n", "    near,\n")
    pooling = package / "models" / "pooling.py"
    pooling.write_text(pooling.read_text("utf-8") + POOLER, "utf-8")
    insert(package / "names.py", '    "avg_top2",\n', '    "avg_middle",\n')

    environment = {**os.environ, "PYTHONPATH": str(package.parent), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
