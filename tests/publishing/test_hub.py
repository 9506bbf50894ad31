"""A push is complete or changes nothing, keeps the local files, and gives everyone the same embeddings."""

from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from shutil import copytree

import pytest
import torch
import yaml
from cli_helpers import push_main
from conftest import fast_first
from hub_server import Refusal
from huggingface_hub import EvalResultEntry, constants, eval_result_entries_to_yaml, parse_eval_result_entries
from publishing_fixtures import save_random
from trainer_helpers import files_of, refuses

from simcse_hf import AutoModelForCL, SentenceIndex, SettingError, SimCSE, index, push, search
from simcse_hf.cli.main import exit_status
from simcse_hf.publishing.card import CARD, EVAL_RESULTS, write_card
from simcse_hf.publishing.hub import PushError, files_to_push, push_model

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
WRONG = "hf_" + "w" * 34
NO_HUB = "http://127.0.0.1:9"


def contents(directory):
    """The content of each file of a directory, by its path."""
    return {path.as_posix(): content for path, content in files_of(directory).items()}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory, tokenizer):
    """`random_model(family)` is the folder of a model whose weights are all random, which is only read."""

    @cache
    def save(family):
        torch.manual_seed(0)
        return save_random(tmp_path_factory.mktemp("model"), tokenizer, family)

    return save


@pytest.fixture
def saved(random_model, tmp_path_factory):
    """`saved(family)` is another folder of such a model."""

    def copy(family="bert"):
        return copytree(random_model(family), tmp_path_factory.mktemp("copy") / family)

    return copy


# --- the command and the function ---


def printed_by_push(line):
    """What the command prints."""
    with redirect_stdout(StringIO()) as printed:
        assert push_main(line.split()) == 0
    return printed.getvalue()


def test_a_dry_run_lists_the_files_and_changes_and_sends_nothing(hub, saved):
    directory = saved()
    before = contents(directory)
    printed = printed_by_push(f"{directory} org/name --dry_run")
    for words in (*before, CARD, "to org/name, main; nothing was pushed"):
        assert words in printed
    found = push(directory, "org/name", dry_run=True)
    assert str(found) == printed.rstrip("\n") and not found.pushed
    assert not hub.requests and contents(directory) == before


def test_a_push_is_one_commit_with_all_files_and_a_card(hub, saved):
    directory = saved()
    printed = printed_by_push(f"{directory} org/name --private --commit_message First")
    repository = hub.repositories["org/name"]
    assert printed.strip() == f"{hub.url}/org/name/commit/{repository.branches['main']}"
    assert repository.private
    assert repository.messages[1:] == [("main", "First")]
    assert repository.files() == contents(directory)
    assert 'SimCSE("org/name")' in repository.files()[CARD].decode()
    uploads = [path for method, path in hub.requests if method == "PUT" and path.startswith("/lfs/")]
    assert len(uploads) == 2, "the weights and the head"


def test_a_push_to_a_branch_makes_it_and_leaves_main_unchanged(hub, saved):
    directory = saved()
    for _ in range(2):
        printed_by_push(f"{directory} org/name --revision v2")
    repository = hub.repositories["org/name"]
    assert repository.files("v2") == contents(directory)
    assert repository.files("main") == {}
    model = SimCSE("org/name", revision="v2")
    assert model.revision == model.identity().revision == repository.branches["v2"]
    assert torch.equal(model.encode(TEXTS), SimCSE(directory).encode(TEXTS))


def test_a_push_to_an_open_pull_request_is_committed_to_it(hub, saved):
    directory = saved()
    push(directory, "org/name")
    repository = hub.repositories["org/name"]
    main = repository.branches["main"]
    for pull_request in ("refs/pr/1", "refs/pr/2"):
        repository.branches[pull_request] = next(iter(repository.commits))
    push(directory, "org/name", revision="refs/pr/1")
    SimCSE(directory, device="cpu").push_to_hub("org/name", revision="refs/pr/2")
    assert [branch for branch, _ in repository.messages[2:]] == ["refs/pr/1", "refs/pr/2"]
    assert repository.branches["main"] == main


# --- a branch that moves ---


def test_an_index_opens_with_its_commit_and_not_with_a_branch_that_has_moved(hub, saved, tmp_path):
    push_model(saved("bert"), "org/name")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    index(tmp_path / "texts.txt", tmp_path / "index", model="org/name")
    push_model(saved("distilbert"), "org/name")
    [found] = search("dog", tmp_path / "index")
    assert found.results[0].sentence == "dog"
    assert found.results[0].score == pytest.approx(1)
    with refuses("was built with model 'org/name' other weights"):
        search("dog", tmp_path / "index", model="org/name")


def test_an_index_of_a_subfolder_is_searched_with_the_model_there(hub, saved, tmp_path):
    folder = saved("bert")
    copytree(saved("distilbert"), folder / "sub")
    push_model(saved("bert"), "org/name")
    repository = hub.repositories["org/name"]
    repository.commit("v2", contents(folder), "with a subfolder")
    for number, model in enumerate(
        [SimCSE(folder, subfolder="sub"), SimCSE("org/name", revision="v2", subfolder="sub")]
    ):
        SentenceIndex.build(model, TEXTS).save(tmp_path / str(number))
        [found] = search("dog", tmp_path / str(number))
        assert found.results[0].sentence == "dog"


# --- pushes that fail ---


@pytest.mark.parametrize("where", fast_first("/commit/", "/lfs/", "/preupload/", "/lfs/objects/batch"))
def test_an_interrupted_push_changes_nothing_and_can_be_repeated(where, hub, saved):
    directory = saved("distilbert")
    write_card(directory, repo_id="org/name")
    before = contents(directory)
    hub.cut = lambda method, path: where in path and method in ("PUT", "POST")
    with refuses("org/name was not pushed: the connection failed Run the same", PushError):
        push_model(directory, "org/name")
    assert contents(directory) == before
    assert hub.repositories["org/name"].files() == {}
    hub.cut = lambda method, path: False
    push_model(directory, "org/name")
    assert hub.repositories["org/name"].files() == before


def test_a_trusted_publisher_pushes_without_a_stored_token_if_it_has_an_identity(hub, saved, monkeypatch, capsys):
    publisher = pytest.importorskip("huggingface_hub._oidc", reason="this huggingface_hub has no trusted publishers")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/name")
    with refuses("org/name was not pushed: HF_OIDC_RESOURCE no OIDC id token", PushError):
        push_model(saved(), "org/name")
    assert exit_status(publisher.get_oidc_token, "simcse-hf push") == 1
    assert "simcse-hf push: error: No supported CI OIDC provider" in capsys.readouterr().err

    monkeypatch.setenv("HF_OIDC_ID_TOKEN", "an identity")
    answer = {"access_token": hub.token, "expires_in": 3600}
    monkeypatch.setattr(publisher, "exchange_oidc_token", lambda **_: answer)
    push_model(saved(), "org/name")
    assert "model.safetensors" in hub.repositories["org/name"].files()


#: What is done to the hub or to this process, and the reason that a push then gives.
FAILURES = [
    (lambda hub, patch: patch.delenv("HF_TOKEN"), "no access token was found.*hf auth login.*HF_TOKEN"),
    (lambda hub, patch: patch.setenv("HF_TOKEN", WRONG), "the hub does not accept the access token"),
    (lambda hub, patch: patch.setattr(constants, "HF_HUB_OFFLINE", True), "HF_HUB_OFFLINE"),
    (lambda hub, patch: patch.setattr(constants, "ENDPOINT", NO_HUB), f"{NO_HUB} failed"),
    (
        lambda hub, patch: setattr(hub, "refusal", Refusal(403, "", "the hub's own words")),
        "may not write to this repository",
    ),
    (
        lambda hub, patch: setattr(hub, "refusal", Refusal(500, "", "the hub's own words")),
        "the hub answered 500: the hub's own words",
    ),
]


@pytest.mark.parametrize("prepare, reason", FAILURES)
def test_a_failed_push_says_why_and_shows_no_token(prepare, reason, hub, saved, monkeypatch, caplog):
    prepare(hub, monkeypatch)
    with pytest.raises(PushError, match=f"org/name was not pushed: .*{reason}") as raised:
        push_model(saved(), "org/name")
    assert not hub.repositories, "nothing is made"
    assert WRONG not in f"{raised.value} {raised.value.__cause__} {caplog.text}"


# --- the files of a push ---

PUSHED = {"results.json", ".eval_results/simcse_hf.yaml", "trainer_state.json"}
NOT_PUSHED = {
    *"training_args.bin optimizer.pt rng_state.pth checkpoint-5/model.safetensors .git/config runs/x/events".split(),
    *".env _notes.md evaluation.scores.npz comparison.evaluations/0.json".split(),
}


def test_the_model_its_records_and_links_are_pushed_and_no_pickles_checkpoints_and_hidden_files(saved):
    directory = saved()
    own = set(files_to_push(directory))
    for name in PUSHED | NOT_PUSHED:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")
    (directory / "again.json").symlink_to("config.json")
    assert set(files_to_push(directory)) == own | PUSHED | {"again.json"}


ENTRIES = [EvalResultEntry("mteb/sts12-sts", "STS12", 70.5), EvalResultEntry("mteb/sts13-sts", "STS13", 70.5)]


@pytest.mark.parametrize(
    "registered, wanted",
    [(["mteb/sts12-sts", "cais/hle"], ENTRIES[:1]), ([], [])],
)
def test_scores_are_pushed_for_registered_benchmarks_alone(registered, wanted, hub, saved):
    directory = saved()
    hub.benchmarks = registered
    write_card(directory)
    (directory / EVAL_RESULTS).parent.mkdir()
    (directory / EVAL_RESULTS).write_text(yaml.safe_dump(eval_result_entries_to_yaml(ENTRIES)))
    push_model(directory, "org/name")
    files = hub.repositories["org/name"].files()
    found = yaml.safe_load(files.get(EVAL_RESULTS.as_posix(), b"[]"))
    assert parse_eval_result_entries(found) == wanted


# --- transformers' own ways ---


@pytest.mark.parametrize("family", fast_first("bert", "distilbert"))
def test_transformers_own_ways_to_push_give_all_modules_and_a_loadable_model(family, hub, saved, tokenizer, tmp_path):
    """`save_pretrained` is called twice, so that every file was there before. DistilBERT's head has a file."""
    folder = saved(family)
    model = AutoModelForCL.from_pretrained(folder)
    model.push_to_hub("org/own")
    for _ in range(2):
        model.save_pretrained(tmp_path / "x", push_to_hub=True, repo_id="org/other")
    for name in ("org/own", "org/other"):
        tokenizer.push_to_hub(name)
        wanted = {"modules.json", "2_Dense/model.safetensors", "1_Pooling/config.json"}
        assert wanted < set(hub.repositories[name].files())
        assert torch.equal(SimCSE(name).encode(TEXTS), SimCSE(folder).encode(TEXTS))


def test_an_option_that_a_push_of_simcse_does_not_have_is_refused_before_anything_is_made(hub, saved):
    names = "create_model_card, exist_ok, model_name, run_as_future, safe_serialization"
    with refuses(names, SettingError):
        SimCSE(saved(), device="cpu").push_to_hub("org/name", **dict.fromkeys(names.split(", "), True))
    assert not hub.requests
