"""A push is complete or changes nothing, keeps the local files, and gives everyone the same embeddings."""

import json
import os
import subprocess
import sys
import threading

import huggingface_hub
import pytest
import torch
import transformers.utils.hub
import yaml
from conftest import fast_first, tiny_config
from datasets import Dataset
from hub_server import HubServer
from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml, parse_eval_result_entries
from safetensors.torch import load, load_file, save_file
from transformers import AutoModel, AutoTokenizer, TrainerCallback

from simcse_hf import AutoModelForCL, SimCSE, SimCSETrainer, SimCSETrainingArguments
from simcse_hf.cli.main import exit_status
from simcse_hf.cli.publish import push_main
from simcse_hf.publishing import CARD, write_card
from simcse_hf.publishing.card import EVAL_RESULTS
from simcse_hf.publishing.hub import PushError, files_to_push, push_model

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
FAMILIES = ("bert", "distilbert")  # with the head in the main weights, and in a file of its own


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The local stand-in for the hub that the clients of this process talk to, with its token."""
    with HubServer() as server:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server
        assert not server.errors


@pytest.fixture
def saved(save_checkpoint):
    def save(family="bert", **settings):
        model = AutoModelForCL.from_config(tiny_config(family), **settings)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return save_checkpoint(model, family)

    return save


def contents(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def paths(hub, method):
    return [path for asked, path, _ in hub.requests if asked == method]


def is_upload(method, path):
    return method == "PUT" and path.startswith("/lfs/")


# --- there and back -----------------------------------------------------------------------------------------------

LOAD = """
import sys, torch
from transformers import AutoModel, AutoTokenizer
texts = sys.argv[2:]
tokenizer, model = AutoTokenizer.from_pretrained("org/name"), AutoModel.from_pretrained("org/name").eval()
with torch.no_grad():
    output = model(**tokenizer(texts, padding=True, return_tensors="pt"))
found = {"last_hidden_state": output.last_hidden_state, "pooler_output": output.get("pooler_output")}
from simcse_hf import SimCSE
found["simcse"] = SimCSE("org/name").encode(texts, normalize_embeddings=False)
try:
    from sentence_transformers import SentenceTransformer
    found["sentence_transformers"] = SentenceTransformer("org/name").encode(texts, convert_to_tensor=True)
except ImportError:
    pass
torch.save(found, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pushed_model_gives_bit_identical_embeddings_on_another_machine(family, hub, saved, tmp_path):
    directory = saved(family)
    push_model(directory, "org/name")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "elsewhere"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", LOAD, str(tmp_path / "found.pt"), *TEXTS]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    with torch.no_grad():
        wanted = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"))
    ours = SimCSE(directory, device="cpu").encode(TEXTS, normalize_embeddings=False)
    assert torch.equal(found["last_hidden_state"], wanted.last_hidden_state)
    assert torch.equal(found["simcse"], ours)
    if family == "bert":
        assert torch.equal(found["pooler_output"], wanted.pooler_output)
    if "sentence_transformers" in found:
        torch.testing.assert_close(found["sentence_transformers"], ours, rtol=0, atol=1e-6)


def test_push_uploads_exactly_the_listed_files(hub, saved):
    directory = saved()
    url = push_model(directory, "org/name", commit_message="First")
    repository = hub.repositories["org/name"]
    assert repository.files() == contents(directory) and CARD in repository.files()
    assert repository.messages[1:] == [("main", "First")] and url.startswith(f"{hub.url}/org/name/commit/")
    assert 'SimCSE("org/name")' in repository.files()[CARD].decode()
    assert sum(is_upload(method, path) for method, path, _ in hub.requests) == 2, "weights and head, by LFS"


# --- where to -----------------------------------------------------------------------------------------------------


def test_push_to_a_new_branch_leaves_main_unchanged(hub, saved):
    directory = saved()
    for _ in range(2):
        push_model(directory, "org/name", revision="v2")
    repository = hub.repositories["org/name"]
    assert repository.files("v2") == contents(directory) and repository.files("main") == {}
    found = SimCSE("org/name", revision="v2").encode(TEXTS)
    assert torch.equal(found, SimCSE(directory).encode(TEXTS))


def test_the_push_command_lists_files_and_pushes(hub, saved, capsys):
    directory = saved()
    before = contents(directory)
    assert push_main([str(directory), "org/name", "--dry_run"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("model.safetensors", "2_Dense/config.json", "modules.json", CARD))
    assert "to org/name, main; nothing was pushed" in listed
    assert not hub.requests and contents(directory) == before
    assert push_main([str(directory), "org/name", "--private", "--revision", "v1"]) == 0
    assert "/org/name/commit/" in capsys.readouterr().out
    assert hub.repositories["org/name"].private and "v1" in hub.repositories["org/name"].branches


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", fast_first("/commit/", "/lfs/", "/preupload/", "/lfs/objects/batch"))
def test_an_interrupted_push_changes_nothing_and_can_be_repeated(where, hub, saved):
    directory = saved("distilbert")
    write_card(directory, repo_id="org/name")
    before = contents(directory)
    hub.cut = lambda method, path: where in path and method in ("PUT", "POST")
    with pytest.raises(
        PushError, match="org/name was not pushed: the connection to .* failed .* Run the same command"
    ):
        push_model(directory, "org/name")
    assert contents(directory) == before
    assert hub.repositories["org/name"].files() == {}, "no part of it is to be seen"
    hub.cut = lambda method, path: False
    push_model(directory, "org/name")
    assert hub.repositories["org/name"].files() == before
    assert torch.equal(SimCSE("org/name").encode(TEXTS), SimCSE(directory).encode(TEXTS))


def test_a_missing_token_is_reported(hub, saved, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PushError, match="no access token was found. Log in with `hf auth login` or set HF_TOKEN"):
        push_model(saved(), "org/name")
    assert not hub.repositories


def test_a_trusted_publisher_pushes_without_a_stored_token(hub, saved, monkeypatch, capsys):
    auth = pytest.importorskip("huggingface_hub._oidc", reason="this huggingface_hub has no trusted publishers")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/name")
    directory = saved()
    with pytest.raises(PushError, match="org/name was not pushed: HF_OIDC_RESOURCE .*no OIDC id token"):
        push_model(directory, "org/name")
    assert exit_status(lambda: auth.get_oidc_token(), "simcse-hf push") == 1
    assert "simcse-hf push: error: No supported CI OIDC provider" in capsys.readouterr().err
    monkeypatch.setenv("HF_OIDC_ID_TOKEN", "an identity")
    monkeypatch.setattr(auth, "exchange_oidc_token", lambda **_: {"access_token": hub.token, "expires_in": 3600})
    push_model(directory, "org/name")
    assert "model.safetensors" in hub.repositories["org/name"].files()


def test_a_wrong_token_is_reported_without_showing_it(hub, saved, caplog):
    wrong = "hf_" + "w" * 34
    with pytest.raises(PushError, match="the hub does not accept the access token") as raised:
        push_model(saved(), "org/name", token=wrong)
    cause = raised.value.__cause__
    assert wrong not in f"{raised.value} {cause} {caplog.text}"


def test_offline_mode_and_a_missing_network_are_reported(hub, saved, monkeypatch):
    directory = saved()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PushError, match="HF_HUB_OFFLINE forbids all requests. Unset it"):
        push_model(directory, "org/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PushError, match="the connection to http://127.0.0.1:9 failed"):
        push_model(directory, "org/name")


@pytest.mark.parametrize("status", [403, 500])
def test_error_responses_of_the_hub_are_explained(status, hub, saved, monkeypatch):
    monkeypatch.setattr("hub_server._Handler._may_write", lambda self: self._error(status, "", "the hub's own words"))
    wanted = "may not write to this repository" if status == 403 else "the hub answered 500: the hub's own words"
    with pytest.raises(PushError, match=wanted):
        push_model(saved(), "org/name")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
def test_an_incomplete_directory_is_refused(name, hub, saved):
    directory = saved()
    (directory / name).unlink()
    with pytest.raises(ValueError, match=rf"lacks .*\({name}\). Save the model and its tokenizer"):
        push_model(directory, "org/name")
    with pytest.raises(ValueError, match="is not a directory"):
        push_model(directory / "nowhere", "org/name")
    assert not hub.requests


def test_pickles_checkpoints_and_hidden_files_are_not_pushed(hub, saved):
    directory = saved()
    wanted = set(files_to_push(directory))
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "checkpoint-5/model.safetensors", ".git/config",
                 "runs/x/events", ".env", "_notes.md", "evaluation.scores.npz"):  # fmt: skip
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("x")
    for name in ("results.json", ".eval_results/simcse_hf.yaml", "trainer_state.json"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")
        wanted.add(name)
    assert set(files_to_push(directory)) == wanted


@pytest.mark.parametrize("registered", [["mteb/sts12-sts", "cais/hle"], []])
def test_scores_are_pushed_for_registered_benchmarks_alone(registered, hub, saved):
    directory, hub.benchmarks = saved(), registered
    write_card(directory)
    (directory / EVAL_RESULTS).parent.mkdir()
    entries = [EvalResultEntry(f"mteb/{name.lower()}-sts", name, 70.5) for name in ("STS12", "STS13")]
    (directory / EVAL_RESULTS).write_text(yaml.safe_dump(eval_result_entries_to_yaml(entries)))
    push_model(directory, "org/name")
    pushed = hub.repositories["org/name"].files().get(EVAL_RESULTS.as_posix(), b"[]")
    assert parse_eval_result_entries(yaml.safe_load(pushed)) == entries[: len(registered) > 0]


def test_a_file_that_contains_a_token_stops_the_push(hub, saved):
    directory = saved()
    (directory / "results.json").write_text(json.dumps({"command": ["--hub_token", hub.token]}))
    with pytest.raises(ValueError, match="results.json contains an access token or a password") as raised:
        push_model(directory, "org/name")
    assert hub.token not in str(raised.value) and not hub.requests


@pytest.mark.parametrize("name, content", [("notes", "sk-" + 40 * "a"), ("run.sh", "API_KEY='abcdefgh12'")])
def test_a_secret_of_another_form_or_in_another_file_stops_the_push_and_its_preview(name, content, hub, saved):
    directory = saved()
    (directory / name).write_text(content)
    for call in (lambda: push_model(directory, "org/name"), lambda: push_main([str(directory), "a/b", "--dry_run"])):
        with pytest.raises(ValueError, match=f"{name} contains an access token or a password, so nothing was pushed"):
            call()
    assert not hub.requests


@pytest.mark.parametrize("damage", ["not finite", "truncated", "incomplete"])
def test_a_model_that_cannot_be_used_is_not_pushed(damage, hub, saved):
    directory = saved()
    path = directory / "model.safetensors"
    weights = load_file(path)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "incomplete":
        save_file({n: x for n, x in weights.items() if "layer.1" not in n}, path, metadata={"format": "pt"})
    else:
        weights[next(iter(weights))].view(-1)[0] = float("nan")
        save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="NaN or infinity|damaged|lacks the weights"):
        push_model(directory, "org/name")
    assert not hub.requests


def test_a_link_out_of_the_directory_stops_the_push_and_its_preview(hub, saved, tmp_path):
    directory = saved()
    (tmp_path / "diary.txt").write_text("dear diary")
    (directory / "notes.txt").symlink_to(tmp_path / "diary.txt")
    for call in (lambda: push_model(directory, "org/name"), lambda: push_main([str(directory), "a/b", "--dry_run"])):
        with pytest.raises(ValueError, match=r"notes\.txt is a symbolic link to .*diary\.txt, outside of the model's"):
            call()
    assert not hub.requests
    (directory / "notes.txt").unlink()
    (directory / "again.json").symlink_to("config.json")  # a link within the directory is a file of the model
    assert "again.json" in files_to_push(directory)


# --- transformers' own ways ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", fast_first(*FAMILIES))
def test_push_to_hub_of_model_and_tokenizer_gives_a_loadable_model(family, hub, saved, tokenizer):
    directory = saved(family)
    AutoModelForCL.from_pretrained(directory).push_to_hub("org/name")
    tokenizer.push_to_hub("org/name")
    assert {"modules.json", "2_Dense/model.safetensors", "1_Pooling/config.json"} < set(
        hub.repositories["org/name"].files()
    )
    assert torch.equal(SimCSE("org/name").encode(TEXTS), SimCSE(directory).encode(TEXTS))


@pytest.mark.parametrize("family", fast_first(*FAMILIES))
def test_save_pretrained_with_push_to_hub(family, hub, saved, tokenizer, tmp_path):
    directory = saved(family)
    for _ in range(2):  # the second time, every file was there before
        AutoModelForCL.from_pretrained(directory).save_pretrained(tmp_path / "x", push_to_hub=True, repo_id="org/name")
    tokenizer.push_to_hub("org/name")
    assert "modules.json" in hub.repositories["org/name"].files()
    assert torch.equal(SimCSE("org/name").encode(TEXTS), SimCSE(directory).encode(TEXTS))


class WaitForPush(TrainerCallback):
    """Four steps finish before the first upload, which reads the files only when its turn comes."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_save(self, *_, **__):
        self.trainer._finish_current_push()


@pytest.fixture
def train(tokenizer, tmp_path):
    def run(family, strategy, **options):
        args = SimCSETrainingArguments(
            output_dir=str(tmp_path / "run"), use_cpu=True, disable_tqdm=True, report_to="none", max_steps=4,
            per_device_train_batch_size=4, save_strategy="steps", save_steps=2, learning_rate=0.01, push_to_hub=True,
            hub_model_id="org/name", hub_strategy=strategy, hub_always_push=True, **options,
        )  # fmt: skip
        texts = Dataset.from_dict({"sent0": ["a cat sat", "the dog ran", "a bird sang", "old house"]})
        model = AutoModelForCL.from_config(tiny_config(family))
        trainer = SimCSETrainer(model, args, texts, processing_class=tokenizer)
        trainer.add_callback(WaitForPush(trainer))
        trainer.train()
        return trainer, tmp_path / "run"

    return run


@pytest.mark.parametrize("family", fast_first(*FAMILIES))
@pytest.mark.parametrize("strategy", fast_first("all_checkpoints", "end", "every_save", "checkpoint"))
def test_every_hub_strategy_pushes_a_model_that_loads(strategy, family, hub, train):
    trainer, directory = train(family, strategy)
    trainer._finish_current_push()
    repository = hub.repositories["org/name"]
    in_progress = [message for _, message in repository.messages if "in progress" in message]
    assert len(in_progress) == {"end": 0, "every_save": 2}.get(strategy, 4)
    if strategy != "end":
        pushed = SimCSE("org/name").encode(TEXTS, normalize_embeddings=False)
        assert torch.equal(pushed, SimCSE(directory / "checkpoint-4").encode(TEXTS, normalize_embeddings=False))
    trainer.save_model()  # as the example scripts do: with push_to_hub this pushes
    files = repository.files()
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", CARD} < set(files)
    assert "| `learning_rate` | 0.01 |" in files[CARD].decode() and 'SimCSE("org/name")' in files[CARD].decode()
    found = SimCSE("org/name", force_download=True).encode(TEXTS, normalize_embeddings=False)
    assert torch.equal(found, SimCSE(directory).encode(TEXTS, normalize_embeddings=False))
    if strategy in ("checkpoint", "all_checkpoints"):
        folder = "last-checkpoint" if strategy == "checkpoint" else "checkpoint-4"
        kept = load(files[f"{folder}/model.safetensors"])
        assert all(torch.equal(kept[name], tensor) for name, tensor in load(files["model.safetensors"]).items())
        assert f"{folder}/optimizer.pt" in files and f"{folder}/2_Dense/model.safetensors" in files


def test_a_running_push_is_not_mixed_with_the_next_checkpoint(hub, train, monkeypatch):
    """Without hub_always_push, a checkpoint is skipped while a push is running, and so is its head."""
    trainer, directory = train("distilbert", "every_save")
    trainer._finish_current_push()
    trainer.args.hub_always_push = False
    head = (directory / "2_Dense" / "model.safetensors").read_bytes()
    going = threading.Event()
    trainer.push_in_progress.jobs = [huggingface_hub.hf_api.api.run_as_future(going.wait)]
    trainer._push_from_checkpoint(str(directory / "checkpoint-2"))
    assert (directory / "2_Dense" / "model.safetensors").read_bytes() == head
    going.set()
    trainer._finish_current_push()
    trainer._push_from_checkpoint(str(directory / "checkpoint-2"))
    assert (directory / "2_Dense" / "model.safetensors").read_bytes() != head
    trainer._finish_current_push()
