"""A push is complete or changes nothing, keeps the local files, and gives everyone the same embeddings."""

import threading
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import yaml
from cli_helpers import push_main
from conftest import fast_first, tiny_config
from datasets import Dataset
from hub_server import Refusal
from huggingface_hub import (
    EvalResultEntry,
    constants,
    eval_result_entries_to_yaml,
    parse_eval_result_entries,
)
from safetensors.torch import load

from simcse_hf import (
    AutoModelForCL,
    SimCSE,
    SimCSETrainer,
    SimCSETrainingArguments,
    index,
)
from simcse_hf.cli.main import exit_status
from simcse_hf.publishing import CARD, write_card
from simcse_hf.publishing.card import EVAL_RESULTS
from simcse_hf.publishing.hub import PushError, files_to_push, push_model
from simcse_hf.search import search

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
FAMILIES = (
    "bert",
    "distilbert",
)  # with the head in the main weights, and in a file of its own


def contents(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_push_uploads_exactly_the_listed_files(hub, saved, capsys):
    directory = saved()
    before = contents(directory)
    assert push_main([str(directory), "org/name", "--dry_run"]) == 0
    listed = capsys.readouterr().out
    assert all(
        name in listed
        for name in ("model.safetensors", "2_Dense/config.json", "modules.json", CARD)
    )
    assert "to org/name, main; nothing was pushed" in listed
    assert not hub.requests and contents(directory) == before
    assert (
        push_main(
            [str(directory), "org/name", "--private", "--commit_message", "First"]
        )
        == 0
    )
    assert f"{hub.url}/org/name/commit/" in capsys.readouterr().out
    repository = hub.repositories["org/name"]
    assert (
        repository.files() == contents(directory)
        and CARD in repository.files()
        and repository.private
    )
    assert repository.messages[1:] == [("main", "First")]
    assert 'SimCSE("org/name")' in repository.files()[CARD].decode()
    uploads = [
        path
        for method, path, _ in hub.requests
        if method == "PUT" and path.startswith("/lfs/")
    ]
    assert len(uploads) == 2, "weights and head, by LFS"


def test_push_to_a_new_branch_leaves_main_unchanged(hub, saved):
    directory = saved()
    for _ in range(2):
        assert push_main([str(directory), "org/name", "--revision", "v2"]) == 0
    repository = hub.repositories["org/name"]
    assert (
        repository.files("v2") == contents(directory) and repository.files("main") == {}
    )
    model = SimCSE("org/name", revision="v2")
    assert model.identity().revision == model.revision == repository.branches["v2"]
    assert torch.equal(model.encode(TEXTS), SimCSE(directory).encode(TEXTS))


@pytest.fixture
def moving(hub, saved):
    """Two models on the hub, the second of which becomes that of the branch main when `move` is called."""
    for family, branch in (("bert", "main"), ("distilbert", "next")):
        push_model(saved(family), "org/name", revision=branch)
    repository = hub.repositories["org/name"]
    first, second = (repository.branches[name] for name in ("main", "next"))

    def move():
        repository.branches["main"] = second

    return SimpleNamespace(move=move, first=first, second=second)


def test_a_model_is_of_one_commit_although_the_branch_moves_while_it_is_loaded(
    moving, hub
):
    expected = SimCSE("org/name", revision=moving.first).encode(TEXTS)

    def move_before_the_tokenizer(method, path):
        if path.endswith("tokenizer_config.json"):
            moving.move()
        return False

    hub.cut = move_before_the_tokenizer
    model = SimCSE("org/name")
    assert model.revision == moving.first and torch.equal(model.encode(TEXTS), expected)


def test_an_index_opens_with_its_commit_after_the_branch_has_moved_and_not_with_the_branch(
    moving, tmp_path
):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    index(tmp_path / "texts.txt", tmp_path / "index", model="org/name")
    moving.move()
    [found] = search("dog", tmp_path / "index")
    assert found.results[0].sentence == "dog" and found.results[
        0
    ].score == pytest.approx(1)
    with pytest.raises(
        ValueError,
        match="was built with model 'org/name'.*this is another model: .*other weights",
    ):
        search("dog", tmp_path / "index", model="org/name")


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", fast_first("/commit/", "/lfs/", "/preupload/", "/lfs/objects/batch")
)
def test_an_interrupted_push_changes_nothing_and_can_be_repeated(where, hub, saved):
    directory = saved("distilbert")
    write_card(directory, repo_id="org/name")
    before = contents(directory)
    hub.cut = lambda method, path: where in path and method in ("PUT", "POST")
    with pytest.raises(
        PushError,
        match="org/name was not pushed: the connection to .* failed .* Run the same",
    ):
        push_model(directory, "org/name")
    assert contents(directory) == before
    assert hub.repositories["org/name"].files() == {}, "no part of it is to be seen"
    hub.cut = lambda method, path: False
    push_model(directory, "org/name")
    assert hub.repositories["org/name"].files() == before
    assert torch.equal(
        SimCSE("org/name").encode(TEXTS), SimCSE(directory).encode(TEXTS)
    )


def test_a_trusted_publisher_pushes_without_a_stored_token(
    hub, saved, monkeypatch, capsys
):
    auth = pytest.importorskip(
        "huggingface_hub._oidc", reason="this huggingface_hub has no trusted publishers"
    )
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/name")
    directory = saved()
    with pytest.raises(
        PushError, match="org/name was not pushed: HF_OIDC_RESOURCE .*no OIDC id token"
    ):
        push_model(directory, "org/name")
    assert exit_status(lambda: auth.get_oidc_token(), "simcse-hf push") == 1
    assert (
        "simcse-hf push: error: No supported CI OIDC provider"
        in capsys.readouterr().err
    )
    monkeypatch.setenv("HF_OIDC_ID_TOKEN", "an identity")
    monkeypatch.setattr(
        auth,
        "exchange_oidc_token",
        lambda **_: {"access_token": hub.token, "expires_in": 3600},
    )
    push_model(directory, "org/name")
    assert "model.safetensors" in hub.repositories["org/name"].files()


WRONG = "hf_" + "w" * 34


@pytest.mark.parametrize(
    "prepare, words",
    [
        (
            lambda patch: patch.delenv("HF_TOKEN"),
            "no access token was found.*hf auth login.*HF_TOKEN",
        ),
        (
            lambda patch: patch.setenv("HF_TOKEN", WRONG),
            "the hub does not accept the access token",
        ),
        (
            lambda patch: patch.setattr(constants, "HF_HUB_OFFLINE", True),
            "HF_HUB_OFFLINE forbids all requests",
        ),
        (
            lambda patch: patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9"),
            "http://127.0.0.1:9 failed",
        ),
        (403, "may not write to this repository"),
        (500, "the hub answered 500: the hub's own words"),
    ],
)
def test_a_failed_push_says_why_and_shows_no_token(
    prepare, words, hub, saved, monkeypatch, caplog
):
    directory = saved()
    if isinstance(prepare, int):
        hub.refusal = Refusal(prepare, "", "the hub's own words")
    else:
        prepare(monkeypatch)
    with pytest.raises(
        PushError, match=f"org/name was not pushed: .*{words}"
    ) as raised:
        push_model(directory, "org/name")
    assert WRONG not in f"{raised.value} {raised.value.__cause__} {caplog.text}"
    assert not hub.repositories


def test_pickles_checkpoints_and_hidden_files_are_not_pushed(hub, saved):
    directory = saved()
    wanted = set(files_to_push(directory))
    kept = {"results.json", ".eval_results/simcse_hf.yaml", "trainer_state.json"}
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "rng_state.pth",
        "checkpoint-5/model.safetensors",
        ".git/config",
        "runs/x/events",
        ".env",
        "_notes.md",
        "evaluation.scores.npz",
        "comparison.evaluations/0.json",
        *kept,
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")
    (directory / "again.json").symlink_to(
        "config.json"
    )  # a link within the directory is a file of the model
    assert set(files_to_push(directory)) == wanted | kept | {"again.json"}


@pytest.mark.parametrize("registered", [["mteb/sts12-sts", "cais/hle"], []])
def test_scores_are_pushed_for_registered_benchmarks_alone(registered, hub, saved):
    directory, hub.benchmarks = saved(), registered
    write_card(directory)
    (directory / EVAL_RESULTS).parent.mkdir()
    entries = [
        EvalResultEntry(f"mteb/{name.lower()}-sts", name, 70.5)
        for name in ("STS12", "STS13")
    ]
    (directory / EVAL_RESULTS).write_text(
        yaml.safe_dump(eval_result_entries_to_yaml(entries))
    )
    push_model(directory, "org/name")
    pushed = hub.repositories["org/name"].files().get(EVAL_RESULTS.as_posix(), b"[]")
    assert (
        parse_eval_result_entries(yaml.safe_load(pushed))
        == entries[: len(registered) > 0]
    )


# --- transformers' own ways ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", fast_first(*FAMILIES))
def test_transformers_own_ways_to_push_give_a_loadable_model(
    family, hub, saved, tokenizer, tmp_path
):
    model = AutoModelForCL.from_pretrained(saved(family))
    model.push_to_hub("org/name")
    for _ in range(2):  # the second time, every file was there before
        model.save_pretrained(tmp_path / "x", push_to_hub=True, repo_id="org/other")
    for name in ("org/name", "org/other"):
        tokenizer.push_to_hub(name)
        wanted = {"modules.json", "2_Dense/model.safetensors", "1_Pooling/config.json"}
        assert wanted < set(hub.repositories[name].files())
        assert torch.equal(
            SimCSE(name).encode(TEXTS), SimCSE(model.name_or_path).encode(TEXTS)
        )


@pytest.fixture
def train(tokenizer, tmp_path):
    def run(family, strategy, **options):
        args = SimCSETrainingArguments(
            output_dir=str(tmp_path / "run"),
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
            max_steps=4,
            per_device_train_batch_size=4,
            save_strategy="steps",
            save_steps=2,
            learning_rate=0.01,
            push_to_hub=True,
            hub_model_id="org/name",
            hub_strategy=strategy,
            hub_always_push=True,
            **options,
        )
        texts = Dataset.from_dict(
            {"sent0": ["a cat sat", "the dog ran", "a bird sang", "old house"]}
        )
        model = AutoModelForCL.from_config(tiny_config(family))
        trainer = SimCSETrainer(model, args, texts, processing_class=tokenizer)
        trainer.train()
        return trainer, tmp_path / "run"

    return run


@pytest.mark.parametrize("family", fast_first(*FAMILIES))
@pytest.mark.parametrize(
    "strategy", fast_first("all_checkpoints", "end", "every_save", "checkpoint")
)
def test_every_hub_strategy_pushes_a_model_that_loads(strategy, family, hub, train):
    trainer, directory = train(family, strategy)
    trainer._finish_current_push()
    repository = hub.repositories["org/name"]
    in_progress = [
        message for _, message in repository.messages if "in progress" in message
    ]
    assert len(in_progress) == {"end": 0, "every_save": 2}.get(strategy, 4)
    if strategy != "end":
        pushed = SimCSE("org/name").encode(TEXTS, normalize_embeddings=False)
        assert torch.equal(
            pushed,
            SimCSE(directory / "checkpoint-4").encode(
                TEXTS, normalize_embeddings=False
            ),
        )
    trainer.save_model()  # as the example scripts do: with push_to_hub this pushes
    files = repository.files()
    assert {
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
        CARD,
    } < set(files)
    assert (
        "| `learning_rate` | 0.01 |" in files[CARD].decode()
        and 'SimCSE("org/name")' in files[CARD].decode()
    )
    found = SimCSE("org/name", force_download=True).encode(
        TEXTS, normalize_embeddings=False
    )
    assert torch.equal(
        found, SimCSE(directory).encode(TEXTS, normalize_embeddings=False)
    )
    if strategy in ("checkpoint", "all_checkpoints"):
        folder = "last-checkpoint" if strategy == "checkpoint" else "checkpoint-4"
        kept = load(files[f"{folder}/model.safetensors"])
        assert all(
            torch.equal(kept[name], tensor)
            for name, tensor in load(files["model.safetensors"]).items()
        )
        assert (
            f"{folder}/optimizer.pt" in files
            and f"{folder}/2_Dense/model.safetensors" in files
        )


def test_the_files_of_a_running_push_stay_until_it_has_ended(hub, train):
    trainer, directory = train("distilbert", "checkpoint", save_total_limit=1)
    files = [
        directory / "2_Dense" / "model.safetensors",
        directory / "checkpoint-4" / "model.safetensors",
    ]
    contents = [file.read_bytes() for file in files]

    def end_of_a_slow_push():
        threading.Event().wait(0.3)
        return [file.read_bytes() for file in files]

    push = huggingface_hub.hf_api.api.run_as_future(end_of_a_slow_push)
    trainer.push_in_progress.jobs = [push]
    for weight in trainer.model.parameters():
        weight.data += 1
    trainer.state.global_step = 5
    trainer._save_checkpoint(trainer.model, None)
    assert push.result() == contents
    trainer._finish_current_push()
    assert not files[1].exists()


def test_a_running_push_is_not_mixed_with_the_next_checkpoint(hub, train):
    """Without hub_always_push, a checkpoint is skipped while a push is running, and so is its head."""
    trainer, directory = train("distilbert", "every_save")
    trainer._finish_current_push()
    trainer.args.hub_always_push = False
    head = (directory / "2_Dense" / "model.safetensors").read_bytes()
    going = threading.Event()
    trainer.push_in_progress.jobs = [
        huggingface_hub.hf_api.api.run_as_future(going.wait)
    ]
    trainer.push_checkpoint(directory / "checkpoint-2")
    assert (directory / "2_Dense" / "model.safetensors").read_bytes() == head
    going.set()
    trainer._finish_current_push()
    trainer.push_checkpoint(directory / "checkpoint-2")
    assert (directory / "2_Dense" / "model.safetensors").read_bytes() != head
    trainer._finish_current_push()
