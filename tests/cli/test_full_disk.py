"""A full disk is one line in every command that writes: earlier files survive, and no half file is left."""

from contextlib import nullcontext
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
from evaluation_helpers import binary_pairs, write, write_rows
from trainer_helpers import files_of

from simcse_hf.cli.main import FAILED, WRONG_USAGE, main

FULL = OSError(28, "No space left on device")
#: numpy names neither the number of the error nor the file.
SHORT = OSError("15360 requested and 4096 written")
#: safetensors has an error class of its own.
SERIALIZING = safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
#: Commands, the function whose write ends early, and its error.
COMMANDS = {
    "card {model}": (Path, "write_text", FULL),
    "encode --model {model} --input {texts} --output {new} --precision int8": (np, "save", SHORT),
    "index --model {model} --input {texts} --output {out} --overwrite": (pq, "write_table", FULL),
    "export {model} --to sentence-transformers --output {out}": (safetensors.torch, "serialize_file", SERIALIZING),
    "mine --model {model} --input {pairs} --columns sentence1 sentence2 --output {out}/rows.csv": (
        datasets.Dataset,
        "to_csv",
        FULL,
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_is_one_line(command, directory, tmp_path, monkeypatch, capsys):
    pairs = binary_pairs(30)
    inputs = {
        "model": directory,
        "texts": write(tmp_path / "texts.txt", [first for first, *_ in pairs]),
        "pairs": write_rows(tmp_path / "pairs.csv", ["sentence1", "sentence2", "score"], pairs),
    }
    words = command.format(**inputs, out=tmp_path / "out", new=tmp_path / "new").split() + ["--quiet"]
    if "{new}" not in command:
        assert main([word for word in words if word != "--overwrite"]) == 0
    if "{out}" in command:
        words.append("--overwrite")
    before = files_of(tmp_path, "_manifest.json")  # the plan of an encoding, by which it resumes
    module, name, error = COMMANDS[command]

    def ends_early(*arguments, **options):
        target = next(each for each in arguments if isinstance(each, (str, Path)) or hasattr(each, "write"))
        with nullcontext(target) if hasattr(target, "write") else open(target, "wb") as stream:
            stream.write(b"half")
        raise error

    monkeypatch.setattr(module, name, ends_early)
    capsys.readouterr()
    assert main(words) in (FAILED, WRONG_USAGE)
    message = capsys.readouterr().err
    assert message.startswith(f"simcse-hf {words[0]}: error: ") and message.count("\n") == 1
    assert "No space left on device" in message and files_of(tmp_path, "_manifest.json") == before
