"""What the commands refuse: the status is 2, and the last line names the option, the file or the value."""

import re
import sys
from importlib.util import find_spec

import pytest
from cli_helpers import status
from evaluation_helpers import write


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


MODEL = "--model ./no/such/folder"
FIT = f"postprocess fit {MODEL} --input a --output b"
#: Words of the command line, and what the error says.
USAGE = [
    ("trian", "did you mean train"),
    ("train unsupp", "did you mean unsup"),
    ("encode --modle m --input a.txt", "required: --model, --output"),
    ("train unsup --max_step 2", "did you mean --max_steps"),
    ("train sup sup-simcse-bert-base-uncase", "did you mean sup-simcse-bert-base-uncased"),
    ("train unsup --pooler clss", r"did you mean cls\?"),
    ("export m --to onx --output x", r"did you mean onnx\?"),
    ("train sup --datasets [1", "--datasets takes a table"),
    ("search --index", "--index: expected"),
    (f"{FIT} --method zca", "invalid choice: 'zca'"),
    ("search --index i --top_k many", "--top_k: invalid int"),
    ("demo --index i --port 70000", "port"),
    (f"evaluate {MODEL}", "data_dir, pairs, task or mteb"),
    ("push model my-model", "OWNER/NAME"),
    (f"mine {MODEL} --input a --output x.txt", "output must end in .csv"),
    (f"{FIT} --method flow --dim 3", "dim"),
]


@pytest.mark.parametrize("words, message", USAGE)
def test_wrong_usage(words, message, capsys):
    ended = status(*words.split())
    error = " ".join(capsys.readouterr().err.split())
    assert ended == 2 and "simcse-hf" in error and re.search(message, error), error


#: Every command that loads a model, without the model's name, which comes last.
MODEL_COMMANDS = {
    "encode": "--input texts.txt --output output --model",
    "index": "--input texts.txt --output output --model",
    "evaluate": "--pairs p.tsv --model",
    "export": "--to onnx --output output",
    "postprocess": "fit --method whitening --input texts.txt --output output --model",
    "train": "unsup --train_file texts.txt --output_dir output --use_cpu --model",
}


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_a_model_that_is_not_there_is_named_in_one_line_that_says_why(command, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "texts.txt", ["a cat", "a dog"])
    write(tmp_path / "p.tsv", ["1\ta\tb", "2\tb\tc"])
    reasons = {"bert-base-uncsed": "HF_HUB_OFFLINE", "two words": "", "empty": "config.json"}
    for model, reason in reasons.items():
        assert status(command, *MODEL_COMMANDS[command].split(), model) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert line.startswith(f"simcse-hf {command}: error: ") and model in line and reason in line
        assert not (tmp_path / "output").exists()


#: Options whose packages the tests do not install.
PACKAGES = {
    "deepspeed": "--deepspeed ds.json",
    "wandb": "--report_to wandb",
    "mlflow": "--report_to none mlflow",
    "liger_kernel": "--use_liger_kernel",
    "bitsandbytes": "--optim adamw_bnb_8bit",
    "grokadamw": "--optim grokadamw",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_an_option_whose_package_is_missing_is_refused_before_an_earlier_run_is_deleted(package, tmp_path, capsys):
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.json").write_text("{}")
    words = f"train unsup --use_cpu --max_train_samples 64 --output_dir out --overwrite_output_dir {PACKAGES[package]}"
    assert status(*words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and package in error
    assert (tmp_path / "out/results.json").read_text() == "{}"


FOREIGN = ["config.json", "adapter_config.json", "modules.json", "checkpoint-500/config.json"]


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("words", ["unsup", "unsup --seeds 2", "mlm --train_tokenizer"])
def test_a_model_that_no_run_wrote_is_never_replaced(words, name, tmp_path, capsys):
    path = tmp_path / "model" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for overwrite in ("", "--overwrite_output_dir"):
        line = f"train {words} --use_cpu --max_steps 1 --output_dir model {overwrite}"
        assert status(*line.split()) == 2
        assert "model holds a model that no run" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path]
    assert path.read_text() == "mine"


@pytest.mark.parametrize("output", ["file/o", "file", "/proc/o"])
@pytest.mark.parametrize(
    "words", ["train unsup --output_dir", "train mlm --output_dir", "train unsup --seeds 2 --output_dir"]
)
def test_a_folder_that_cannot_be_made_is_refused_in_a_sentence(words, output, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert status(*words.split(), output) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert output in line and "Errno" not in line and "folder" in line


def test_a_demo_without_gradio_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert status("demo", "--index", "no-such-folder") == 2
    assert "simcse-hf[demo]" in capsys.readouterr().err
