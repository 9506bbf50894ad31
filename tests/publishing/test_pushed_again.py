"""A repository is what was pushed last, under its own name, and says nothing about the machine it comes from."""

import json
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import NEEDS_PEFT, tiny_config
from datasets import Dataset
from encoding_helpers import perturb, random_texts
from huggingface_hub import EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from publishing_fixtures import save_random, save_transformed
from yaml import safe_dump

from simcse_hf import (
    AutoModelForCL,
    SimCSE,
    SimCSETrainer,
    SimCSETrainingArguments,
    compare,
    evaluate,
    push,
    train,
)
from simcse_hf.publishing.card import CARD, EVAL_RESULTS, write_card
from simcse_hf.publishing.hub import push_model
from simcse_hf.runtime.files import folder_problem
from simcse_hf.runtime.upload import PublicNames

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
#: Files of an earlier model that would be loaded in place of the weights.
GRAPHS = dict.fromkeys(
    (
        "onnx/model.onnx",
        "onnx/model_O1.onnx",
        "openvino/openvino_model.xml",
        "openvino/openvino_model.bin",
        "pytorch_model.bin",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    ),
    b"of the earlier weights",
)
#: Files of the owner of a repository.
OTHERS = {
    "LICENSE": b"mine",
    "pictures/cat.png": b"png",
    "data/config.json": b"{}",
    "notes.md": b"notes",
}


def names_of_files(directory):
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


# --- nothing of an earlier model stays ---


def save_adapter(folder, tokenizer):
    """Save an adapter of a model on the hub."""
    from peft import LoraConfig

    push_model(save_random(folder, tokenizer, "roberta", pooler_type="avg"), "org/base")
    model = AutoModelForCL.from_pretrained("org/base")
    adapter = LoraConfig(target_modules=["query"], init_lora_weights=False)
    model.base_model.add_adapter(adapter)
    model.save_adapter = True
    model.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    return folder / "adapter"


def save_kind(kind, folder, tokenizer):
    """Save a model of a kind whose files another one has to replace."""
    if kind == "adapter":
        return save_adapter(folder, tokenizer)
    if kind == "whitened":
        return save_transformed(folder, tokenizer, "whitening")
    if kind == "head":
        return save_random(folder, tokenizer, "distilbert")
    return save_random(folder, tokenizer, "roberta")


def push_by_function(directory, name):
    push_model(directory, name)


def push_with_simcse(directory, name):
    SimCSE(directory, device="cpu").push_to_hub(name)


def push_as_transformers(directory, name):
    AutoModelForCL.from_pretrained(directory).push_to_hub(name)


WAYS = {
    "push": push_by_function,
    "SimCSE": push_with_simcse,
    "transformers": push_as_transformers,
}
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [pytest.param("adapter", marks=NEEDS_PEFT), "graphs", "whitened", "head"],
    scope="module",
)
EVERY_WAY = pytest.mark.parametrize("way", WAYS, scope="module")


@pytest.fixture(scope="module")
def earlier(kind, shared_hub, tokenizer, tmp_path_factory):
    """A repository of an earlier model, with files of its owner."""
    folder = tmp_path_factory.mktemp(kind)
    push_model(save_kind(kind, folder, tokenizer), f"org/{kind}")
    repository = shared_hub.repositories[f"org/{kind}"]
    further = OTHERS | (GRAPHS if kind == "graphs" else {})
    repository.commit("main", repository.files() | further, "further files")
    return repository


@pytest.fixture(scope="module")
def whole(tokenizer, tmp_path_factory):
    """The folder of a model without a head, an adapter or a transform."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("whole")
    return save_random(folder, tokenizer, "bert", pooler_type="avg")


@pytest.fixture(scope="module")
def replaced(kind, way, earlier, whole, shared_hub):
    """The name and the repository of the earlier model, to which the other one was pushed."""
    name = f"org/{kind}-{way}"
    shared_hub.repositories[name] = deepcopy(earlier)
    WAYS[way](whole, name)
    return SimpleNamespace(name=name, repository=shared_hub.repositories[name])


@EVERY_KIND
@EVERY_WAY
def test_files_of_the_owner_of_a_repository_stay(replaced):
    files = replaced.repository.files()
    assert {name: files[name] for name in OTHERS} == OTHERS


@EVERY_KIND
@EVERY_WAY
def test_nothing_of_the_earlier_model_is_left(replaced, whole):
    names = replaced.repository.files().keys() - OTHERS.keys()
    assert names - {CARD} == names_of_files(whole) - {CARD}


@EVERY_KIND
@EVERY_WAY
def test_an_earlier_model_is_replaced_in_one_commit(replaced, earlier):
    assert len(replaced.repository.messages) == len(earlier.messages) + 1


@EVERY_KIND
@EVERY_WAY
def test_the_repository_is_the_model_that_was_pushed_last(replaced, whole):
    expected = SimCSE(whole, device="cpu").encode(TEXTS)
    assert torch.equal(SimCSE(replaced.name).encode(TEXTS), expected)


@pytest.fixture
def with_old_tokenizer(hub, saved):
    """The folder of a model, and its repository with two files of an old tokenizer."""
    directory = saved()
    push_model(directory, "org/name")
    repository = hub.repositories["org/name"]
    old = {"merges.txt": b"old", "spiece.model": b"old"}
    repository.commit("main", repository.files() | old, "an old tokenizer")
    return directory, repository


def test_a_tokenizer_of_the_repository_stays_if_none_is_pushed(with_old_tokenizer):
    directory, repository = with_old_tokenizer
    AutoModelForCL.from_pretrained(directory).push_to_hub("org/name")
    wanted = {"merges.txt", "spiece.model", "tokenizer.json"}
    assert wanted <= repository.files().keys()


def test_a_tokenizer_of_the_repository_goes_when_another_one_is_pushed(
    with_old_tokenizer,
):
    directory, repository = with_old_tokenizer
    push_model(directory, "org/name")
    assert not {"merges.txt", "spiece.model"} & repository.files().keys()


def test_results_of_an_earlier_model_go(hub, saved):
    push_model(saved(), "org/name")
    repository = hub.repositories["org/name"]
    names = (
        "results.json",
        "evaluation.json",
        "comparison-mine.json",
        "trainer_state.json",
        "adaptation.json",
    )
    results = dict.fromkeys(names, b"{}")
    repository.commit("main", repository.files() | results, "results")
    push_model(saved("distilbert"), "org/name")
    assert not repository.files().keys() & set(names)


# --- the card ---


def write_nothing(directory):
    """There is no card."""


def write_a_draft(directory):
    write_card(directory, repo_id="org/draft")


def write_for_another_owner(directory):
    write_card(directory, repo_id="acme/public")


def push_to_another_repository(directory):
    push_model(directory, "org/draft")


def push_without_an_owner(directory):
    push_model(directory, "draft")


EVERY_EARLIER_CARD = pytest.mark.parametrize(
    "before",
    [
        write_nothing,
        write_a_draft,
        write_for_another_owner,
        push_to_another_repository,
        push_without_an_owner,
    ],
    ids=lambda before: before.__name__.replace("_", " "),
    scope="module",
)


@pytest.fixture(scope="module")
def public_folder(before, shared_hub, tokenizer, tmp_path_factory):
    """The folder of a model that was pushed to org/public after something else was done with it."""
    folder = tmp_path_factory.mktemp("public")
    directory = save_random(folder, tokenizer, "distilbert")
    before(directory)
    push_model(directory, "org/public")
    return directory


@pytest.fixture(scope="module")
def public_card(public_folder, shared_hub):
    return shared_hub.repositories["org/public"].files()[CARD].decode()


@EVERY_EARLIER_CARD
@pytest.mark.parametrize("name", ["draft", "acme"])
def test_the_card_does_not_name_another_repository(public_card, name):
    assert name not in public_card


@EVERY_EARLIER_CARD
def test_the_programs_of_the_card_name_the_repository_that_is_pushed_to(public_card):
    """Three libraries, of which transformers loads a tokenizer, a model and a head."""
    assert public_card.count('"org/public"') == 5


@EVERY_EARLIER_CARD
def test_the_heading_of_the_card_is_the_name_of_the_repository(public_card):
    assert "\n# public\n" in public_card


@EVERY_EARLIER_CARD
def test_the_card_of_the_folder_is_that_of_the_repository(public_card, public_folder):
    assert (public_folder / CARD).read_text() == public_card


def test_a_name_without_an_owner_is_completed_in_the_card(hub, saved):
    push_model(saved(), "mine")
    assert 'SimCSE("org/mine")' in hub.repositories["org/mine"].files()[CARD].decode()


@pytest.fixture(scope="module")
def pushed_second(shared_hub, tokenizer, tmp_path_factory):
    """The files of org/second, whose model was pushed to org/first before and started from there."""
    directory = save_random(tmp_path_factory.mktemp("second"), tokenizer)
    record = {"settings": {}, "base_model": "org/first", "steps": 1}
    (directory / "results.json").write_text(json.dumps(record))
    push_model(directory, "org/first")
    url = "https://huggingface.co/org/first/blob/main/x"
    entry = EvalResultEntry("mteb/sts12-sts", "STS12", 70.5, source_url=url)
    (directory / EVAL_RESULTS).parent.mkdir()
    written = safe_dump(eval_result_entries_to_yaml([entry]))
    (directory / EVAL_RESULTS).write_text(written)
    shared_hub.benchmarks = ["mteb/sts12-sts"]
    push_model(directory, "org/second")
    shared_hub.benchmarks = []
    return shared_hub.repositories["org/second"].files()


@pytest.fixture(scope="module")
def second_card(pushed_second):
    return pushed_second[CARD].decode()


def test_sources_of_scores_name_the_repository(pushed_second):
    scores = pushed_second[EVAL_RESULTS.as_posix()]
    assert b"huggingface.co/org/second/blob/main/x" in scores


def test_a_base_model_of_an_earlier_name_stays_in_the_front_matter(second_card):
    assert ModelCard(second_card).data.base_model == "org/first"


def test_a_base_model_of_an_earlier_name_stays_in_the_text(second_card):
    assert "Training started from `org/first`" in second_card


def test_programs_load_the_repository_and_not_its_base_model(second_card):
    assert 'SimCSE("org/second")' in second_card
    assert '"org/first"' not in second_card


@pytest.fixture(scope="module")
def card_of_other_weights(shared_hub, tokenizer, tmp_path_factory):
    """The pushed card of a model, whose folder has the card of smaller weights."""
    folder = tmp_path_factory.mktemp("other")
    directory = save_random(folder, tokenizer, pooler_type="avg")
    write_card(directory, repo_id="org/wider")
    wider = tiny_config(hidden_size=64)
    AutoModelForCL.from_config(wider, pooler_type="max").save_pretrained(directory)
    push_model(directory, "org/wider")
    return shared_hub.repositories["org/wider"].files()[CARD].decode()


@pytest.mark.parametrize("words", ["| dimensions | 64 |", "`max`"])
def test_a_card_of_other_weights_is_written_anew(card_of_other_weights, words):
    assert words in card_of_other_weights


def test_a_card_says_nothing_of_earlier_weights(card_of_other_weights):
    assert "| dimensions | 32 |" not in card_of_other_weights


def test_a_card_written_by_hand_stays(hub, saved):
    directory = saved()
    by_hand = "---\nlicense: mit\n---\nMy words about org/first."
    (directory / CARD).write_text(by_hand)
    push_model(directory, "org/second")
    assert hub.repositories["org/second"].files()[CARD].decode() == by_hand


# --- a dry run ---


@pytest.fixture
def tried(hub, saved):
    """The directory of a model, and what a dry run of its push returned."""
    directory = saved()
    return directory, push_model(directory, "org/name", dry_run=True)


def test_a_push_from_python_may_be_a_dry_run(tried, hub):
    _, found = tried
    assert not found.pushed
    assert not hub.requests


def test_a_dry_run_has_two_names(tried):
    directory, found = tried
    assert push(directory, "org/name", dry_run=True) == found


def test_a_dry_run_lists_the_files(tried):
    _, found = tried
    assert "model.safetensors" in found.files


def test_a_dry_run_writes_no_card(tried):
    directory, _ = tried
    assert not (directory / CARD).exists()


def test_a_dry_run_says_where_nothing_was_pushed_to(tried):
    _, found = tried
    assert "to org/name, main; nothing was pushed" in str(found)


def test_a_push_returns_the_address_of_its_commit(hub, saved):
    url = push_model(saved(), "org/name").url
    commit = hub.repositories["org/name"].branches["main"]
    assert url == f"{hub.url}/org/name/commit/{commit}"


# --- nothing about the machine ---


def write_table(path, columns, rows):
    lines = [",".join(map(str, row)) for row in [columns, *rows]]
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def new_client(tokenizer, tmp_path_factory):
    """`new_client()` makes a folder, named after a client, that holds a model and data."""

    def make():
        folder = tmp_path_factory.mktemp("home") / "user-jane" / "client-acme"
        folder.mkdir(parents=True)
        model = AutoModelForCL.from_config(tiny_config(), pooler_type="avg")
        perturb(model).save_pretrained(folder / "start")
        tokenizer.save_pretrained(folder / "start")
        texts = random_texts(120, words=(5, 7))
        first, second = texts[:60], texts[60:]
        (folder / "train.txt").write_text("\n".join(texts) + "\n")
        scores = np.random.default_rng(0).uniform(0, 5, 60).round(2)
        scored = zip(first, second, scores, strict=True)
        write_table(folder / "dev.csv", ["sentence1", "sentence2", "score"], scored)
        labels = [number % 2 for number in range(60)]
        labelled = zip(first, second, labels, strict=True)
        write_table(folder / "pairs.csv", ["sentence1", "sentence2", "label"], labelled)
        return folder

    return make


@pytest.fixture
def client(new_client):
    return new_client()


OF_THE_MACHINE = (
    b"user-jane",
    b"client-acme",
    b"pytest-of-",
    b"/tmp/",
    b"site-packages",
)


def names_of_the_machine(files):
    """What the contents of files say about the machine, by path."""
    found = {}
    for path, content in files.items():
        words = [word for word in OF_THE_MACHINE if word in content]
        if words:
            found[path] = words
    return found


def train_and_measure(root):
    """Train, evaluate and compare in the folder of a client; return the folder of the run."""
    run = root / "run"
    train(
        "unsup",
        model_name_or_path=str(root / "start"),
        train_file=str(root / "train.txt"),
        dev_file=str(root / "dev.csv"),
        output_dir=str(run),
        max_steps=2,
        per_device_train_batch_size=8,
        eval_steps=1,
        save_steps=1,
        use_cpu=True,
        report_to="none",
        objective="simcse",
        disable_tqdm=True,
    )
    options = {
        "task": [f"pairs={root}/pairs.csv"],
        "pairs": [str(root / "dev.csv")],
        "show_progress_bar": False,
    }
    before = str(root / "start.json")
    after = str(run / "evaluation.json")
    evaluate(str(run), **options, output=after)
    evaluate(str(root / "start"), **options, output=before)
    compare([before, after], output=str(run / "comparison.json"))
    models = [str(root / "start"), str(run)]
    compare(models, **options, output=str(run / "comparison-models.json"))
    return run


ABSOLUTE_AND_RELATIVE = pytest.mark.parametrize("paths", ["absolute", "relative"], scope="module")


@pytest.fixture(scope="module")
def published(paths, new_client, shared_hub):
    """What the folder of a run says about the machine, and the files that were pushed of it."""
    root = new_client()
    home = root.parent.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        run = train_and_measure(root.relative_to(home) if paths == "relative" else root)
        local = names_of_the_machine({path: path.read_bytes() for path in run.glob("*.json")})
        push_model(run, f"org/{paths}")
    return local, shared_hub.repositories[f"org/{paths}"].files()


@ABSOLUTE_AND_RELATIVE
def test_five_files_of_a_run_name_the_folders_of_the_machine(published):
    local, _ = published
    assert len(local) == 5


@ABSOLUTE_AND_RELATIVE
def test_nothing_that_is_pushed_names_a_folder_of_the_machine(published):
    _, files = published
    assert names_of_the_machine(files) == {}


@ABSOLUTE_AND_RELATIVE
@pytest.mark.parametrize(
    ("entry", "name"),
    [("base_model", "start"), ("dev_set", "dev.csv"), ("model", "run")],
)
def test_pushed_results_have_the_last_names_of_paths(published, entry, name):
    _, files = published
    assert json.loads(files["results.json"])[entry] == name


@ABSOLUTE_AND_RELATIVE
def test_a_pushed_comparison_has_the_names_of_its_files(published):
    _, files = published
    scores = json.loads(files["comparison.json"])["scores"]
    assert list(scores) == ["start.json", "evaluation.json"]


@ABSOLUTE_AND_RELATIVE
def test_a_pushed_comparison_has_the_name_of_its_baseline(published):
    _, files = published
    assert json.loads(files["comparison.json"])["baseline"] == "start.json"


@ABSOLUTE_AND_RELATIVE
def test_a_pushed_evaluation_has_the_names_of_its_tasks(published):
    _, files = published
    results = json.loads(files["evaluation.json"])["results"]
    assert results["pairs"]["source"] == "pairs.csv"


@ABSOLUTE_AND_RELATIVE
def test_the_pushed_card_compares_the_names_of_files(published):
    _, files = published
    assert "evaluation.json - start.json" in files[CARD].decode()


STRATEGIES = pytest.mark.parametrize("strategy", ["checkpoint", "every_save"], scope="module")


@pytest.fixture(scope="module")
def of_trainer(strategy, new_client, shared_hub, tokenizer):
    """The files that a trainer pushed."""
    client = new_client()
    args = SimCSETrainingArguments(
        output_dir=str(client / "run"),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=4,
        push_to_hub=True,
        hub_model_id=f"org/{strategy}",
        hub_strategy=strategy,
        hub_always_push=True,
        load_best_model_at_end=True,
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer = SimCSETrainer(
        AutoModelForCL.from_pretrained(client / "start"),
        args,
        Dataset.from_dict({"sent0": random_texts(12)}),
        dev_set=str(client / "dev.csv"),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()
    return shared_hub.repositories[f"org/{strategy}"].files()


@STRATEGIES
def test_a_trainer_pushes_no_folder_of_the_machine(of_trainer):
    assert names_of_the_machine(of_trainer) == {}


@STRATEGIES
def test_a_trainer_pushes_no_pickle_of_its_arguments(of_trainer):
    assert "training_args.bin" not in of_trainer


@STRATEGIES
@pytest.mark.parametrize("name", ["model.safetensors", "results.json", CARD])
def test_a_trainer_pushes_weights_results_and_a_card(of_trainer, name):
    assert name in of_trainer


@pytest.mark.parametrize("strategy", ["every_save"], scope="module")
def test_a_trainer_that_pushes_every_save_pushes_no_checkpoint(of_trainer):
    assert not [path for path in of_trainer if path.startswith("last-checkpoint/")]


@pytest.fixture
def last_checkpoint(of_trainer, tmp_path):
    """The folder of a checkpoint that was downloaded."""
    for path, content in of_trainer.items():
        if path.startswith("last-checkpoint/"):
            (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / path).write_bytes(content)
    return tmp_path / "last-checkpoint"


@pytest.mark.parametrize("strategy", ["checkpoint"], scope="module")
def test_a_pushed_checkpoint_is_whole(last_checkpoint):
    assert folder_problem(last_checkpoint) is None


@pytest.mark.parametrize("strategy", ["checkpoint"], scope="module")
def test_a_pushed_checkpoint_has_the_state_of_the_optimizer(last_checkpoint):
    assert (last_checkpoint / "optimizer.pt").exists()


@NEEDS_PEFT
def test_an_adapter_of_a_folder_is_pushed_in_no_way(client, hub):
    from peft import LoraConfig

    model = AutoModelForCL.from_pretrained(client / "start")
    model.base_model.add_adapter(LoraConfig(target_modules=["query"]))
    model.save_adapter = True
    words = "is an adapter of .*start, a folder that nobody else has"
    with pytest.raises(ValueError, match=words):
        model.push_to_hub("org/name")
    assert hub.repositories["org/name"].files() == {}, "nothing is pushed"


PATHS = {
    "/home/jane/acme/train.csv": "train.csv",
    "~/acme/train.csv": "train.csv",
    r"C:\Users\jane\acme\train.csv": "train.csv",
    "/home/jane/Client Acme/train set.csv": "train set.csv",
    "clients/acme/train.csv": "train.csv",
    "../acme/model": "model",
    "pairs=/home/jane/acme/pairs.csv": "pairs=pairs.csv",
    "no such file: '/home/jane/acme/x.csv'": "no such file: 'x.csv'",
    "org/name": "org/name",
    "org/name:train": "org/name:train",
    "https://huggingface.co/org/name/blob/main/x": "https://huggingface.co/org/name/blob/main/x",
    "accuracy and/or F1, 3/4": "accuracy and/or F1, 3/4",
    "": "",
}


@pytest.mark.parametrize("text", PATHS)
def test_a_path_becomes_its_last_name_and_other_texts_stay(text):
    assert PublicNames()(text) == PATHS[text]


@pytest.mark.parametrize("text", PATHS)
def test_paths_within_lists_and_tables_become_their_last_names(text):
    name = PATHS[text]
    document = {"a": [text, 1, None], text: {"b": text}}
    assert PublicNames()(document) == {"a": [name, 1, None], name: {"b": name}}


@pytest.fixture
def public():
    """A document with two paths of one last name and a text of a dev set, as it is published."""
    document = {
        "scores": {"/a/final": 1, "/b/final": 2},
        "baseline": "/b/final",
        "dev_texts": ["/a/b is a path"],
    }
    return PublicNames()(document)


def test_two_paths_with_one_last_name_stay_apart(public):
    assert public["scores"] == {"final": 1, "final (2)": 2}


def test_a_path_has_the_same_name_in_all_places(public):
    assert public["baseline"] == "final (2)"


def test_texts_of_a_dev_set_stay(public):
    assert public["dev_texts"] == ["/a/b is a path"]
