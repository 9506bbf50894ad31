"""Tokens and passwords are found in files and hidden in command lines, and nothing else is."""

import random
import string
import sys

import pytest
import torch
from safetensors.torch import save_file

from simcse_hf.publishing.secrets import HIDDEN, hide_secrets, holds_secret

LETTERS = "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=40))


SECRETS = f"""git clone https://ghp_{LETTERS[:36]}@github.com/a/b
glpat-{LETTERS[:20]}
AKIAABCDEFGH01234567
-----BEGIN OPENSSH PRIVATE KEY-----
{{"hub_token": "hf_{LETTERS}"}}
hf_oauth_{LETTERS}
api_key: 'abcdefgh12'
password = "correct-horse"
QDRANT_API_KEY='abcdefgh12'
postgresql://u:pw@host/base
AccountKey={LETTERS}{LETTERS}abcdef=="""
ORDINARY = """{"mask_token": "[MASK]", "pad_token": "<|endoftext|>", "token": "sentence", "password": 20786}
{"hub_token": "<HUB_TOKEN>", "api_key": null, "digest": "%s", "hidden_size": 384}
hf_short
The token_budget of a batch; special_tokens_map.json; a password is needed.
export API_KEY=$MY_KEY
{"password": 20786, "access_key": null}""" % ("0f" * 64)


@pytest.mark.parametrize("text", SECRETS.splitlines())
def test_a_secret_is_found(text, tmp_path):
    if "hf_" not in text:
        pytest.importorskip("detect_secrets")
    (tmp_path / "notes.txt").write_text(f"before\n{text}\nafter")
    assert holds_secret(tmp_path / "notes.txt")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["hf_" + LETTERS, 'password = "correct-horse"'])
def test_a_secret_is_found_in_a_text_of_two_bytes_a_letter(text, encoding, tmp_path):
    if "hf_" not in text:
        pytest.importorskip("detect_secrets")
    (tmp_path / "notes.txt").write_text(f"before: über\n{text}\n", encoding)
    assert holds_secret(tmp_path / "notes.txt")
    (tmp_path / "ordinary.txt").write_text("before: über\nThe token_budget of a batch\n", encoding)
    assert not holds_secret(tmp_path / "ordinary.txt")


@pytest.mark.parametrize("text", ORDINARY.splitlines())
def test_ordinary_text_is_no_secret(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert not holds_secret(tmp_path / "config.json")


def test_a_token_is_found_in_the_metadata_of_weights(tmp_path):
    save_file(
        {"w": torch.zeros(2)},
        tmp_path / "model.safetensors",
        metadata={"note": "hf_" + LETTERS},
    )
    save_file({"w": torch.zeros(2)}, tmp_path / "clean.safetensors", metadata={"format": "pt"})
    assert {path.name for path in tmp_path.iterdir() if holds_secret(path)} == {"model.safetensors"}


def test_without_detect_secrets_the_log_says_what_is_searched(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "detect_secrets", None)
    (tmp_path / "notes.txt").write_text("api_key: 'abcdefgh12'")
    assert not holds_secret(tmp_path / "notes.txt")
    assert "tokens of Hugging Face only" in caplog.text and "simcse-hf[push]" in caplog.text


#: A command line, and what is recorded of it.
COMMANDS = f"""train --hub_token own-form --lr 1 -> train --hub_token {HIDDEN} --lr 1
--hub-token=own-form x -> --hub-token={HIDDEN} x
--push_to_hub_token ab -> --push_to_hub_token {HIDDEN}
--hub_token --fp16 x -> --hub_token --fp16 x
--note hf_{LETTERS} -> --note {HIDDEN}
--token_budget 1024 --tokenizer_name bert -> --token_budget 1024 --tokenizer_name bert
--url postgresql://me:hunter2@db/base -> --url postgresql://me:{HIDDEN}@db/base
--url=https://host:6333/a@b -> --url=https://host:6333/a@b"""


@pytest.mark.parametrize("line", COMMANDS.splitlines())
def test_a_command_line_is_recorded_without_its_secrets(line):
    words, wanted = line.split(" -> ")
    assert hide_secrets(words.split()) == wanted.split()
