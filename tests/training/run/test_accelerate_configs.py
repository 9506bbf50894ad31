"""Accelerate can read the launch configurations, and several processes give the results of one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from conftest import ROOT, read_json, tiny_config
from objective_helpers import assert_opens_in_transformers
from safetensors.torch import load_file
from trainer_helpers import texts
from transformers import BertModel

CONFIGS = sorted((ROOT / "examples" / "accelerate_configs").glob("*.yaml"))
ACCELERATE = str(Path(sys.executable).with_name("accelerate"))
slow = pytest.mark.slow


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_can_read_each_config_and_the_files_it_names_exist(path):
    config = load_config_from_file(str(path))
    assert config.num_processes == {"one_gpu": 1, "two_cpu_processes": 2}.get(path.stem, 8)
    assert config.use_cpu is (path.stem == "two_cpu_processes")
    scripts = re.findall(r"\S+/\S+\.(?:py|yaml)", "".join(x for x in path.read_text().splitlines(True) if x[0] == "#"))
    assert scripts and all((ROOT / name).exists() for name in scripts)
    types = {"fsdp2": "FSDP", "deepspeed_zero2": "DEEPSPEED", "one_gpu": "NO"}
    assert config.distributed_type == types.get(path.stem, "MULTI_GPU")
    layer = config.fsdp_config.get("fsdp_transformer_layer_cls_to_wrap")
    if layer:
        assert layer in BertModel(tiny_config())._no_split_modules


@pytest.fixture
def command(tmp_path, save_checkpoint):
    """Arguments of run_sup.py: 32 triplets, 8 per step over all processes, no dropout."""
    start = save_checkpoint(BertModel(tiny_config(initializer_range=0.2)), "start")
    texts(32, 3).to_csv(tmp_path / "triplets.csv")
    arguments = f"--model_name_or_path {start} --train_file {tmp_path / 'triplets.csv'} --max_steps 6 --save_steps 3"
    arguments += " --save_strategy steps --learning_rate 1e-3 --logging_steps 1 --dropout 0 --head fresh --use_cpu"
    arguments += " --report_to none"
    return arguments.split()


def run(*words):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(words, check=True, capture_output=True, env=environment, timeout=170)


def losses(folder):
    history = read_json(folder / "trainer_state.json")["log_history"]
    return [[entry["loss"], entry["grad_norm"]] for entry in history if "loss" in entry]


@slow
def test_fsdp2_training_equals_one_process_and_can_be_resumed(command, tmp_path):
    """Two CPU processes have the losses and gradient norms of one, and AutoModel loads what they save."""
    one, sharded, resumed = (tmp_path / name for name in ("one", "sharded", "resumed"))
    script = str(ROOT / "examples" / "run_sup.py")
    run(sys.executable, script, *command, *f"--per_device_train_batch_size 8 --output_dir {one}".split())
    config = ROOT / "examples" / "accelerate_configs" / "fsdp2.yaml"
    options = f"--config_file {config} --num_processes 2 --mixed_precision no --main_process_port 0"
    launch = [ACCELERATE, "launch", *options.split(), str(ROOT / "tests" / "fsdp_on_cpu.py"), script, *command]
    launch += ["--per_device_train_batch_size", "4"]
    run(*launch, "--output_dir", str(sharded))
    assert (sharded / "checkpoint-3" / "pytorch_model_fsdp.bin").exists()  # only FSDP writes this file
    for a, b in zip(losses(one), losses(sharded), strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert_opens_in_transformers(sharded)
    shutil.copytree(sharded / "checkpoint-3", resumed / "checkpoint-3")
    run(*launch, "--output_dir", str(resumed), "--resume_from_checkpoint", "true")
    a, b = (load_file(folder / "model.safetensors") for folder in (sharded, resumed))
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
