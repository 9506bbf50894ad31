"""Tokens and passwords are found in files and hidden in command lines, and nothing else is."""

import json
import random
import string
import time

import pytest
import torch
from safetensors.torch import save_file

from simcse_hf.publishing.secrets import HIDDEN, file_holds_secret, hide_secrets, holds_secret

LETTERS = "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=40))


SECRETS = f"""hf_{LETTERS}
api_org_{LETTERS}
git clone https://ghp_{LETTERS}@github.com/a/b
github_pat_{LETTERS}{LETTERS}
glpat-{LETTERS}
sk-{LETTERS}
AKIAABCDEFGH01234567
hf_oauth_{LETTERS}
AIza{LETTERS[:35]}
-----BEGIN OPENSSH PRIVATE KEY-----
-----BEGIN PGP PRIVATE KEY BLOCK-----
{{"hub_token": "my-very-own-token"}}
{{"arguments": {{"push_to_hub_token": "abcdefgh12"}}}}
api_key: 'abcdefgh12'
password = "correct-horse"
QDRANT_API_KEY='abcdefgh12'
password: hunter2
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
postgresql://u:pw@host/base"""
ORDINARY = """{"mask_token": "[MASK]", "pad_token": "<|endoftext|>", "token": "sentence", "password": 20786}
{"hub_token": "<HUB_TOKEN>", "api_key": null, "access_token": "..."}
hf_short
The token_budget of a batch; special_tokens_map.json; a password is needed.
sk-learn
export API_KEY=$MY_KEY
{"password": 20786, "access_key": null}"""


@pytest.mark.parametrize("text", SECRETS.splitlines())
def test_a_secret_is_found(text):
    assert holds_secret(f"before\n{text}\nafter")


@pytest.mark.parametrize("text", ORDINARY.splitlines())
def test_ordinary_text_is_no_secret(text):
    assert not holds_secret(text)


def test_a_secret_is_found_in_utf_16_and_in_the_metadata_of_weights(tmp_path):
    (tmp_path / "notes.txt").write_text("password: hunter2", encoding="utf-16")
    save_file({"w": torch.zeros(2)}, tmp_path / "model.safetensors", metadata={"note": "hf_" + LETTERS})
    save_file({"w": torch.zeros(2)}, tmp_path / "clean.safetensors", metadata={"format": "pt"})
    found = {path.name for path in tmp_path.iterdir() if file_holds_secret(path)}
    assert found == {"notes.txt", "model.safetensors"}


def test_detect_secrets_is_asked_where_it_is_installed(tmp_path):
    pytest.importorskip("detect_secrets", reason="needs detect-secrets")
    (tmp_path / "config.json").write_text(
        json.dumps({"digest": "0f" * 64, "hidden_size": 384, "mask_token": "[MASK]"})
    )
    assert not file_holds_secret(tmp_path / "config.json")
    (tmp_path / "azure.txt").write_text("AccountKey=" + LETTERS + LETTERS + "abcdef==\n")
    assert file_holds_secret(tmp_path / "azure.txt")


@pytest.mark.parametrize("part", ["a_", "token", "sk-", "hf_", "api_key", "'", "x" * 9 + "-"])
def test_long_texts_are_searched_in_linear_time(part):
    start = time.process_time()
    holds_secret(part * (2_000_000 // len(part)))
    assert time.process_time() - start < 10  # a quadratic search would take hours


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
