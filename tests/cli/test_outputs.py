"""What commands write and print: thresholds, JSON, and what is never overwritten."""

import json
import re

import pytest
from cli_helpers import save_model, status
from evaluation_helpers import write
from trainer_helpers import files_of

SENTENCES = [
    "a cat sat on a mat",
    "the dog ran in the house",
    "a bird sang in the tree",
    "the big red house",
]


@pytest.fixture(scope="module")
def base(module_path, tokenizer):
    """A folder with a model, texts and an index of them."""
    save_model(module_path / "model", tokenizer)
    write(module_path / "texts.txt", SENTENCES)
    files = f"--model {module_path}/model --input {module_path}/texts.txt --output {module_path}/index"
    assert status("index", *f"{files} --device cpu --quiet".split()) == 0
    return module_path


def test_a_threshold_that_hides_everything_names_the_best_score(base, capsys):
    words = f"search --index {base / 'index'} --device cpu cat --threshold 1".split()
    assert status(*words, "--json", "--quiet") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["results"] == [] and 0 < answer["best_score"] < 1
    assert status(*words) == 0
    assert f"no sentence reaches 1; the best one has {answer['best_score']:.4f}" in capsys.readouterr().out


COMMANDS = {
    "index": "--model {model} --input {texts} --device cpu --quiet",
    "encode": "--model {model} --input {texts} --device cpu --quiet",
    "evaluate": "--model {model} --pairs {pairs} --device cpu --quiet",
    "export": "{model} --to sentence-transformers",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_is_replaced_only_on_request_and_never_the_model_that_is_read(command, base, tmp_path, capsys):
    pairs = write(tmp_path / "pairs.tsv", [f"{n}\t{SENTENCES[n]}\t{SENTENCES[n - 1]}" for n in range(4)])
    words = COMMANDS[command].format(model=base / "model", texts=base / "texts.txt", pairs=pairs)
    output = tmp_path / ("output.json" if command == "evaluate" else "output")

    def run(more="", output=output):
        return status(command, *f"{words} --output {output} {more}".split())

    assert run("--json") == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"encode": "texts", "evaluate": "results", "export": "pooler_type"}.get(command, "sentences") in document
    before = files_of(output)
    assert run() == 2 and files_of(output) == before
    assert re.search("overwrite|resume", capsys.readouterr().err)
    assert run("--overwrite") == 0
    before = files_of(output)
    if "--input" in words:  # the last one counts
        empty = write(tmp_path / "empty.txt", [""])
        for wrong in ("--column nosuch", f"--input {empty}", f"--input {tmp_path / 'nosuch.txt'}"):
            assert run(f"--overwrite {wrong}") == 2 and files_of(output) == before
    read = files_of(base / "model")
    assert run("--overwrite", output=base / "model") == 2 and files_of(base / "model") == read
