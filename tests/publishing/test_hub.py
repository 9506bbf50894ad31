"""A push is complete or changes nothing, keeps the local files, and gives everyone the same embeddings."""

import threading
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from shutil import copytree
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
from publishing_fixtures import save_random
from safetensors.torch import load

from simcse_hf import (
    AutoModelForCL,
    SimCSE,
    SimCSETrainer,
    SimCSETrainingArguments,
    index,
    search,
)
from simcse_hf.cli.main import exit_status
from simcse_hf.publishing.card import CARD, EVAL_RESULTS, write_card
from simcse_hf.publishing.hub import PushError, files_to_push, push_model

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
#: With the head in the main weights, and in a file of its own.
FAMILIES = ("bert", "distilbert")


def contents(directory):
    """The content of each file of a directory, by its path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def embeddings_of(*model, **options):
    """Embeddings with their lengths, so that a head counts."""
    return SimCSE(*model, **options).encode(TEXTS, normalize_embeddings=False)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory, tokenizer):
    """`random_model(family)` is the folder of a model whose weights are all random, which is only read."""

    @cache
    def save(family):
        torch.manual_seed(0)
        return save_random(tmp_path_factory.mktemp("model"), tokenizer, family)

    return save


@pytest.fixture(scope="module")
def new_model(random_model, tmp_path_factory):
    """`new_model(family)` is another folder of such a model."""

    def copy(family="bert"):
        return copytree(random_model(family), tmp_path_factory.mktemp("copy") / family)

    return copy


@pytest.fixture
def saved(new_model):
    return new_model


# --- the command ---


def printed_by_push(*words):
    """What the command prints."""
    with redirect_stdout(StringIO()) as printed:
        assert push_main(list(map(str, words))) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def dry_run(shared_hub, new_model):
    """What a dry run prints, its directory, and the files before."""
    directory = new_model()
    before = contents(directory)
    requests = len(shared_hub.requests)
    printed = printed_by_push(directory, "org/dry", "--dry_run")
    requests = shared_hub.requests[requests:]
    return SimpleNamespace(directory=directory, before=before, printed=printed, requests=requests)


@pytest.mark.parametrize("name", ["model.safetensors", "2_Dense/config.json", "modules.json", CARD])
def test_a_dry_run_lists_the_files(dry_run, name):
    assert name in dry_run.printed


def test_a_dry_run_says_where_nothing_was_pushed_to(dry_run):
    assert "to org/dry, main; nothing was pushed" in dry_run.printed


def test_a_dry_run_sends_no_request(dry_run):
    assert not dry_run.requests


def test_a_dry_run_changes_no_file(dry_run):
    assert contents(dry_run.directory) == dry_run.before


@pytest.fixture(scope="module")
def pushed(shared_hub, new_model):
    """A private repository that the command made, its directory, and what the command printed and sent."""
    directory = new_model()
    requests = len(shared_hub.requests)
    options = ["--private", "--commit_message", "First"]
    printed = printed_by_push(directory, "org/name", *options)
    return SimpleNamespace(
        directory=directory,
        printed=printed,
        requests=shared_hub.requests[requests:],
        repository=shared_hub.repositories["org/name"],
    )


def test_a_push_prints_the_address_of_its_commit(pushed, shared_hub):
    assert f"{shared_hub.url}/org/name/commit/" in pushed.printed


def test_a_push_uploads_the_files_of_the_directory(pushed):
    assert pushed.repository.files() == contents(pushed.directory)


def test_a_push_uploads_a_card_that_names_the_repository(pushed):
    assert 'SimCSE("org/name")' in pushed.repository.files()[CARD].decode()


def test_a_repository_is_private_if_it_is_asked_for(pushed):
    assert pushed.repository.private


def test_a_push_is_one_commit_with_its_message(pushed):
    assert pushed.repository.messages[1:] == [("main", "First")]


def test_weights_and_head_are_uploaded_as_large_files(pushed):
    uploads = []
    for method, path, _ in pushed.requests:
        if method == "PUT" and path.startswith("/lfs/"):
            uploads.append(path)
    assert len(uploads) == 2


# --- branches ---


@pytest.fixture(scope="module")
def branched(shared_hub, new_model):
    """A repository, to whose new branch v2 a model was pushed twice, and its directory."""
    directory = new_model()
    for _ in range(2):
        printed_by_push(directory, "org/branched", "--revision", "v2")
    repository = shared_hub.repositories["org/branched"]
    return SimpleNamespace(directory=directory, repository=repository)


@pytest.fixture(scope="module")
def of_branch(branched):
    """The model of the branch."""
    return SimCSE("org/branched", revision="v2")


def test_a_push_to_a_new_branch_uploads_the_files(branched):
    assert branched.repository.files("v2") == contents(branched.directory)


def test_push_to_a_new_branch_leaves_main_unchanged(branched):
    assert branched.repository.files("main") == {}


def test_a_model_of_a_branch_knows_its_commit(of_branch, branched):
    assert of_branch.revision == branched.repository.branches["v2"]


def test_the_identity_of_a_model_of_a_branch_has_its_commit(of_branch):
    assert of_branch.identity().revision == of_branch.revision


def test_a_model_of_a_branch_has_the_embeddings_of_the_directory(of_branch, branched):
    expected = SimCSE(branched.directory).encode(TEXTS)
    assert torch.equal(of_branch.encode(TEXTS), expected)


@pytest.fixture
def moving(hub, saved):
    """Two models on the hub, the second of which becomes that of the branch main when `move` is called."""
    push_model(saved("bert"), "org/name", revision="main")
    push_model(saved("distilbert"), "org/name", revision="next")
    repository = hub.repositories["org/name"]
    second = repository.branches["next"]

    def move():
        repository.branches["main"] = second

    return SimpleNamespace(move=move, first=repository.branches["main"])


@pytest.fixture
def moves_before_the_tokenizer(moving, hub):
    """The branch moves when the first file of the tokenizer is asked for."""

    def move_before_the_tokenizer(method, path):
        if path.endswith("tokenizer_config.json"):
            moving.move()
        return False

    hub.cut = move_before_the_tokenizer


def test_a_model_is_of_one_commit_although_the_branch_moves_while_it_is_loaded(moving, moves_before_the_tokenizer):
    model = SimCSE("org/name")
    assert model.revision == moving.first
    of_first = SimCSE("org/name", revision=moving.first)
    assert torch.equal(model.encode(TEXTS), of_first.encode(TEXTS))


@pytest.fixture
def index_of_first(moving, tmp_path):
    """An index that was built before the branch moved."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    index(tmp_path / "texts.txt", tmp_path / "index", model="org/name")
    moving.move()
    return tmp_path / "index"


def test_an_index_opens_with_its_commit_after_the_branch_has_moved(index_of_first):
    [found] = search("dog", index_of_first)
    assert found.results[0].sentence == "dog"
    assert found.results[0].score == pytest.approx(1)


def test_an_index_does_not_open_with_a_branch_that_has_moved(index_of_first):
    words = "was built with model 'org/name'.*this is another model: .*other weights"
    with pytest.raises(ValueError, match=words):
        search("dog", index_of_first, model="org/name")


# --- an interrupted push ---

WHERE = pytest.mark.parametrize("where", fast_first("/commit/", "/lfs/", "/preupload/", "/lfs/objects/batch"))


@pytest.fixture
def directory(saved):
    """A model with a card and with a head in a file of its own."""
    directory = saved("distilbert")
    write_card(directory, repo_id="org/name")
    return directory


@pytest.fixture
def files_before(directory):
    return contents(directory)


@pytest.fixture
def interrupted(where, hub, directory, files_before):
    """The error of a push whose connection fails, after which the hub can be reached again."""
    hub.cut = lambda method, path: where in path and method in ("PUT", "POST")
    with pytest.raises(PushError) as raised:
        push_model(directory, "org/name")
    hub.cut = lambda method, path: False
    return str(raised.value)


@WHERE
def test_the_error_of_an_interrupted_push_says_to_run_the_same_again(interrupted):
    assert "org/name was not pushed: the connection to " in interrupted
    assert " failed " in interrupted
    assert " Run the same" in interrupted


@WHERE
def test_an_interrupted_push_changes_no_local_file(interrupted, directory, files_before):
    assert contents(directory) == files_before


@WHERE
def test_no_part_of_an_interrupted_push_is_to_be_seen(interrupted, hub):
    assert hub.repositories["org/name"].files() == {}


@WHERE
def test_an_interrupted_push_can_be_repeated(interrupted, hub, directory, files_before):
    push_model(directory, "org/name")
    assert hub.repositories["org/name"].files() == files_before
    expected = SimCSE(directory).encode(TEXTS)
    assert torch.equal(SimCSE("org/name").encode(TEXTS), expected)


# --- tokens and refusals ---


@pytest.fixture
def publisher(monkeypatch):
    """The module of trusted publishers, in a process without a stored token."""
    module = pytest.importorskip("huggingface_hub._oidc", reason="this huggingface_hub has no trusted publishers")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/name")
    return module


def test_a_publisher_without_an_identity_is_refused(hub, publisher, saved):
    words = "org/name was not pushed: HF_OIDC_RESOURCE .*no OIDC id token"
    with pytest.raises(PushError, match=words):
        push_model(saved(), "org/name")


def test_the_command_says_that_it_runs_for_no_trusted_publisher(hub, publisher, capsys):
    assert exit_status(publisher.get_oidc_token, "simcse-hf push") == 1
    words = "simcse-hf push: error: No supported CI OIDC provider"
    assert words in capsys.readouterr().err


def test_a_trusted_publisher_pushes_without_a_stored_token(hub, publisher, saved, monkeypatch):
    def exchange(**_):
        return {"access_token": hub.token, "expires_in": 3600}

    monkeypatch.setenv("HF_OIDC_ID_TOKEN", "an identity")
    monkeypatch.setattr(publisher, "exchange_oidc_token", exchange)
    push_model(saved(), "org/name")
    assert "model.safetensors" in hub.repositories["org/name"].files()


WRONG = "hf_" + "w" * 34


def without_a_token(hub, patch):
    patch.delenv("HF_TOKEN")


def with_a_wrong_token(hub, patch):
    patch.setenv("HF_TOKEN", WRONG)


def offline(hub, patch):
    patch.setattr(constants, "HF_HUB_OFFLINE", True)


def without_a_hub(hub, patch):
    patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def without_permission(hub, patch):
    hub.refusal = Refusal(403, "", "the hub's own words")


def with_an_error_of_the_hub(hub, patch):
    hub.refusal = Refusal(500, "", "the hub's own words")


REASONS = {
    without_a_token: "no access token was found.*hf auth login.*HF_TOKEN",
    with_a_wrong_token: "the hub does not accept the access token",
    offline: "HF_HUB_OFFLINE forbids all requests",
    without_a_hub: "http://127.0.0.1:9 failed",
    without_permission: "may not write to this repository",
    with_an_error_of_the_hub: "the hub answered 500: the hub's own words",
}
EVERY_FAILURE = pytest.mark.parametrize("prepare", REASONS, ids=lambda prepare: prepare.__name__.replace("_", " "))


@EVERY_FAILURE
def test_a_failed_push_says_why(prepare, hub, saved, monkeypatch):
    prepare(hub, monkeypatch)
    words = f"org/name was not pushed: .*{REASONS[prepare]}"
    with pytest.raises(PushError, match=words):
        push_model(saved(), "org/name")
    assert not hub.repositories, "nothing is made"


def test_a_failed_push_shows_no_token(hub, saved, monkeypatch, caplog):
    with_a_wrong_token(hub, monkeypatch)
    with pytest.raises(PushError) as raised:
        push_model(saved(), "org/name")
    assert WRONG not in f"{raised.value} {raised.value.__cause__} {caplog.text}"


# --- the files of a push ---


@pytest.fixture(scope="module")
def cluttered(new_model):
    """A model, and the files of it that are pushed; beside it, a trainer has written its own."""
    directory = new_model()
    own = set(files_to_push(directory))
    for name in PUSHED | NOT_PUSHED:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")
    (directory / "again.json").symlink_to("config.json")
    return own, set(files_to_push(directory))


PUSHED = {"results.json", ".eval_results/simcse_hf.yaml", "trainer_state.json"}
NOT_PUSHED = {
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
}


@pytest.mark.parametrize("name", sorted(NOT_PUSHED))
def test_pickles_checkpoints_and_hidden_files_are_not_pushed(cluttered, name):
    _, files = cluttered
    assert name not in files


def test_the_records_of_a_run_are_pushed(cluttered):
    _, files = cluttered
    assert files >= PUSHED


def test_a_link_within_the_directory_is_pushed(cluttered):
    _, files = cluttered
    assert "again.json" in files


def test_nothing_but_the_model_its_records_and_links_is_pushed(cluttered):
    own, files = cluttered
    assert files == own | PUSHED | {"again.json"}


ENTRIES = [
    EvalResultEntry("mteb/sts12-sts", "STS12", 70.5),
    EvalResultEntry("mteb/sts13-sts", "STS13", 70.5),
]


@pytest.mark.parametrize(
    ("registered", "wanted"),
    [(["mteb/sts12-sts", "cais/hle"], ENTRIES[:1]), ([], [])],
    ids=["one", "none"],
)
def test_scores_are_pushed_for_registered_benchmarks_alone(registered, wanted, hub, saved):
    directory = saved()
    hub.benchmarks = registered
    write_card(directory)
    (directory / EVAL_RESULTS).parent.mkdir()
    own = yaml.safe_dump(eval_result_entries_to_yaml(ENTRIES))
    (directory / EVAL_RESULTS).write_text(own)
    push_model(directory, "org/name")
    files = hub.repositories["org/name"].files()
    found = yaml.safe_load(files.get(EVAL_RESULTS.as_posix(), b"[]"))
    assert parse_eval_result_entries(found) == wanted


# --- transformers' own ways ---

EVERY_FAMILY = pytest.mark.parametrize("family", fast_first(*FAMILIES), scope="module")
OWN_WAYS = pytest.mark.parametrize("name", ["org/own", "org/other"])


@pytest.fixture(scope="module")
def own_ways(family, shared_hub, new_model, tokenizer, tmp_path_factory):
    """The folder of a model that was pushed by `push_to_hub` and by `save_pretrained`.

    The second way is taken twice, so that every file was there before.
    """
    folder = new_model(family)
    model = AutoModelForCL.from_pretrained(folder)
    model.push_to_hub("org/own")
    for _ in range(2):
        model.save_pretrained(tmp_path_factory.mktemp("x") / "x", push_to_hub=True, repo_id="org/other")
    for name in ("org/own", "org/other"):
        tokenizer.push_to_hub(name)
    return folder


@EVERY_FAMILY
@OWN_WAYS
def test_transformers_own_ways_to_push_give_all_modules(own_ways, name, shared_hub):
    wanted = {"modules.json", "2_Dense/model.safetensors", "1_Pooling/config.json"}
    assert wanted < set(shared_hub.repositories[name].files())


@EVERY_FAMILY
@OWN_WAYS
def test_transformers_own_ways_to_push_give_a_loadable_model(own_ways, name):
    expected = SimCSE(own_ways).encode(TEXTS)
    assert torch.equal(SimCSE(name).encode(TEXTS), expected)


# --- the strategies of a trainer ---


def train(folder, tokenizer, family, strategy, repository="org/name", **options):
    """Train four steps with two checkpoints, which are pushed."""
    args = SimCSETrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        max_steps=4,
        per_device_train_batch_size=4,
        save_strategy="steps",
        save_steps=2,
        learning_rate=0.01,
        push_to_hub=True,
        hub_model_id=repository,
        hub_strategy=strategy,
        hub_always_push=True,
        **options,
    )
    texts = ["a cat sat", "the dog ran", "a bird sang", "old house"]
    trainer = SimCSETrainer(
        AutoModelForCL.from_config(tiny_config(family)),
        args,
        Dataset.from_dict({"sent0": texts}),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


STRATEGIES = fast_first("all_checkpoints", "end", "every_save", "checkpoint")
EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES, scope="module")
PUSHES_IN_PROGRESS = {"end": 0, "every_save": 2, "checkpoint": 4, "all_checkpoints": 4}


@pytest.fixture(scope="module")
def run(family, strategy, shared_hub, tokenizer, tmp_path_factory):
    """A finished run: its folder, what was pushed in progress, and what its `save_model` pushed.

    The example scripts call `save_model`, which pushes with push_to_hub.
    """
    folder = tmp_path_factory.mktemp("run")
    name = f"org/{family}-{strategy}"
    trainer = train(folder, tokenizer, family, strategy, name)
    trainer._finish_current_push()
    repository = shared_hub.repositories[name]
    messages = [message for _, message in repository.messages]
    in_progress = [message for message in messages if "in progress" in message]
    found = SimpleNamespace(folder=folder, name=name, in_progress=in_progress)
    if strategy != "end":
        found.before_the_end = embeddings_of(name)
    trainer.save_model()
    found.files = repository.files()
    return found


@EVERY_FAMILY
@EVERY_STRATEGY
def test_every_hub_strategy_pushes_as_often_as_it_says(run, strategy):
    assert len(run.in_progress) == PUSHES_IN_PROGRESS[strategy]


@EVERY_FAMILY
@EVERY_STRATEGY
def test_the_last_checkpoint_is_the_model_in_progress(run, strategy):
    if strategy == "end":
        pytest.skip("nothing is pushed in progress")
    expected = embeddings_of(run.folder / "checkpoint-4")
    assert torch.equal(run.before_the_end, expected)


@EVERY_FAMILY
@EVERY_STRATEGY
@pytest.mark.parametrize(
    "name",
    ["modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", CARD],
)
def test_every_hub_strategy_pushes_all_modules_and_a_card(run, name):
    assert name in run.files


@EVERY_FAMILY
@EVERY_STRATEGY
def test_the_pushed_card_describes_the_run(run):
    assert "| `learning_rate` | 0.01 |" in run.files[CARD].decode()


@EVERY_FAMILY
@EVERY_STRATEGY
def test_the_pushed_card_names_the_repository(run):
    assert f'SimCSE("{run.name}")' in run.files[CARD].decode()


@EVERY_FAMILY
@EVERY_STRATEGY
def test_every_hub_strategy_pushes_a_model_that_loads(run):
    found = embeddings_of(run.name, force_download=True)
    assert torch.equal(found, embeddings_of(run.folder))


#: Where a strategy pushes a checkpoint to resume from.
RESUMABLE = {"checkpoint": "last-checkpoint", "all_checkpoints": "checkpoint-4"}


@pytest.fixture
def checkpoint(run, strategy):
    """The folder of the pushed checkpoint."""
    if strategy not in RESUMABLE:
        pytest.skip("no checkpoint is pushed")
    return RESUMABLE[strategy]


@EVERY_FAMILY
@EVERY_STRATEGY
def test_a_pushed_checkpoint_has_the_weights_of_the_model(run, checkpoint):
    kept = load(run.files[f"{checkpoint}/model.safetensors"])
    for name, weight in load(run.files["model.safetensors"]).items():
        assert torch.equal(kept[name], weight)


@EVERY_FAMILY
@EVERY_STRATEGY
@pytest.mark.parametrize("name", ["optimizer.pt", "2_Dense/model.safetensors"])
def test_a_pushed_checkpoint_can_be_resumed(run, checkpoint, name):
    assert f"{checkpoint}/{name}" in run.files


# --- a push that is still running ---


class SlowPush:
    """A push that reads its files at its end, during which the next checkpoint is saved; one checkpoint is kept."""

    def __init__(self, folder, trainer):
        self.trainer = trainer
        self.paths = [
            folder / "2_Dense" / "model.safetensors",
            folder / "checkpoint-4" / "model.safetensors",
        ]
        self.before = self.contents()
        push = huggingface_hub.hf_api.api.run_as_future(self.wait_and_read)
        trainer.push_in_progress.jobs = [push]
        for weight in trainer.model.parameters():
            weight.data += 1
        trainer.state.global_step = 5
        trainer._save_checkpoint(trainer.model, None)
        self.at_its_end = push.result()
        trainer._finish_current_push()

    def contents(self):
        return [path.read_bytes() for path in self.paths]

    def wait_and_read(self):
        threading.Event().wait(0.3)
        return self.contents()


@pytest.fixture(scope="module")
def slow_push(shared_hub, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow") / "run"
    options = {"repository": "org/slow", "save_total_limit": 1}
    trainer = train(folder, tokenizer, "distilbert", "checkpoint", **options)
    return SlowPush(folder, trainer)


def test_the_files_of_a_running_push_stay_until_it_has_ended(slow_push):
    assert slow_push.at_its_end == slow_push.before


def test_an_old_checkpoint_goes_after_the_push_has_ended(slow_push):
    _, of_checkpoint = slow_push.paths
    assert not of_checkpoint.exists()


class SkippedPush:
    """The saved head at three times: before a checkpoint, after one during a push, and after one without a push.

    Without hub_always_push, a checkpoint that comes while a push is running is not pushed, nor is its head.
    """

    def __init__(self, folder, trainer):
        head = folder / "2_Dense" / "model.safetensors"
        self.before = head.read_bytes()
        going = threading.Event()
        running = huggingface_hub.hf_api.api.run_as_future(going.wait)
        trainer.push_in_progress.jobs = [running]
        trainer._push_from_checkpoint(str(folder / "checkpoint-2"))
        self.during_a_push = head.read_bytes()
        going.set()
        trainer._finish_current_push()
        trainer._push_from_checkpoint(str(folder / "checkpoint-2"))
        self.without_a_push = head.read_bytes()
        trainer._finish_current_push()


@pytest.fixture(scope="module")
def skipped_push(shared_hub, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skipped") / "run"
    trainer = train(folder, tokenizer, "distilbert", "every_save", "org/skipped")
    trainer._finish_current_push()
    trainer.args.hub_always_push = False
    return SkippedPush(folder, trainer)


def test_a_running_push_is_not_mixed_with_the_next_checkpoint(skipped_push):
    assert skipped_push.during_a_push == skipped_push.before


def test_a_checkpoint_is_pushed_where_no_push_is_running(skipped_push):
    assert skipped_push.without_a_push != skipped_push.before
