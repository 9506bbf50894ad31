"""A repository is what was pushed last, under its own name, and says nothing about the machine it comes from."""

import json
import threading
from copy import deepcopy

import huggingface_hub
import numpy as np
import pytest
import torch
from conftest import NEEDS_PEFT, fast_first, tiny_config
from encoding_helpers import random_texts
from evaluation_helpers import write, write_rows
from huggingface_hub import EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from huggingface_hub.utils import tqdm as hub_tqdm
from publishing_fixtures import save_random, save_transformed
from tqdm import tqdm
from trainer_helpers import EVALUATES, SAVES, files_of, make, refuses
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from yaml import safe_dump

from simcse_hf import AutoModelForCL, SimCSE, compare, evaluate, train
from simcse_hf.publishing.card import CARD, EVAL_RESULTS, write_card
from simcse_hf.publishing.hub import PushError, push_model
from simcse_hf.runtime.files import folder_problem

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
#: Files of an earlier model that would be loaded in place of the weights.
GRAPHS = dict.fromkeys(
    (
        "onnx/model.onnx onnx/model_O1.onnx openvino/openvino_model.xml openvino/openvino_model.bin pytorch_model.bin "
        "model-00001-of-00002.safetensors model.safetensors.index.json"
    ).split(),
    b"of the earlier weights",
)
#: Its results.
RESULTS = dict.fromkeys(
    "results.json evaluation.json comparison-mine.json trainer_state.json adaptation.json".split(), b"{}"
)
#: Files of the owner of a repository.
OTHERS = {"LICENSE": b"mine", "pictures/cat.png": b"png", "data/config.json": b"{}", "notes.md": b"notes"}


def card_on(hub, name):
    """The card of a repository."""
    return hub.repositories[name].files()[CARD].decode()


# --- nothing of an earlier model stays ---


def save_adapter(folder, tokenizer):
    """Save an adapter of a model on the hub."""
    from peft import LoraConfig

    push_model(save_random(folder, tokenizer, "roberta", pooler_type="avg"), "org/base")
    model = AutoModelForCL.from_pretrained("org/base")
    model.base_model.add_adapter(LoraConfig(target_modules=["query"], init_lora_weights=False))
    model.save_adapter = True
    model.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    return folder / "adapter"


KINDS = {
    "adapter": save_adapter,
    "graphs": lambda *given: save_random(*given, "roberta"),
    "whitened": lambda *given: save_transformed(*given, "whitening"),
    "head": lambda *given: save_random(*given, "distilbert"),
}
WAYS = {
    "push": push_model,
    "SimCSE": lambda directory, name: SimCSE(directory, device="cpu").push_to_hub(name),
    "transformers": lambda directory, name: AutoModelForCL.from_pretrained(directory).push_to_hub(name),
}


@pytest.mark.parametrize(
    "kind, ways",
    [
        pytest.param("adapter", ["push"], marks=NEEDS_PEFT),
        ("graphs", WAYS),
        ("whitened", ["push"]),
        ("head", ["push"]),
    ],
)
def test_an_earlier_model_is_replaced_in_one_commit_and_files_of_the_owner_stay(kind, ways, hub, tokenizer, tmp_path):
    push_model(KINDS[kind](tmp_path, tokenizer), "org/earlier")
    earlier = hub.repositories["org/earlier"]
    further = OTHERS | RESULTS | (GRAPHS if kind == "graphs" else {})
    earlier.commit("main", earlier.files() | further, "further files")
    whole = save_random(tmp_path / "whole", tokenizer, "bert", pooler_type="avg")
    expected = SimCSE(whole, device="cpu").encode(TEXTS)
    for way in ways:
        name = f"org/{way}"
        hub.repositories[name] = deepcopy(earlier)
        WAYS[way](whole, name)
        files = hub.repositories[name].files()
        assert {name: files[name] for name in OTHERS} == OTHERS
        assert files.keys() - OTHERS.keys() - {CARD} == {path.as_posix() for path in files_of(whole, CARD)}
        assert len(hub.repositories[name].messages) == len(earlier.messages) + 1
        assert torch.equal(SimCSE(name).encode(TEXTS), expected)


# --- the card ---

#: A draft, a card for another owner, and cards of other repositories; one has a name without an owner.
EARLIER_CARDS = [
    lambda directory: None,
    lambda directory: write_card(directory, repo_id="org/draft"),
    lambda directory: write_card(directory, repo_id="acme/public"),
    lambda directory: push_model(directory, "org/draft"),
    lambda directory: push_model(directory, "draft"),
]


@pytest.mark.parametrize("prepare", EARLIER_CARDS)
def test_the_pushed_card_names_the_repository_whatever_card_there_was(prepare, hub, saved):
    directory = saved("distilbert")
    prepare(directory)
    push_model(directory, "org/public")
    card = card_on(hub, "org/public")
    assert "draft" not in card and "acme" not in card
    # Three libraries, of which transformers loads a tokenizer, a model and a head.
    assert card.count('"org/public"') == 5 and "\n# public\n" in card
    assert (directory / CARD).read_text() == card


def test_a_name_without_an_owner_is_completed_in_the_card(hub, saved):
    push_model(saved(), "mine")
    assert 'SimCSE("org/mine")' in card_on(hub, "org/mine")


def test_sources_of_scores_name_the_repository_and_the_base_model_keeps_its_name(hub, saved):
    directory = saved()
    record = {"settings": {}, "base_model": "org/first", "steps": 1}
    (directory / "results.json").write_text(json.dumps(record))
    push_model(directory, "org/first")
    url = "https://huggingface.co/org/first/blob/main/x"
    entry = EvalResultEntry("mteb/sts12-sts", "STS12", 70.5, source_url=url)
    (directory / EVAL_RESULTS).parent.mkdir()
    (directory / EVAL_RESULTS).write_text(safe_dump(eval_result_entries_to_yaml([entry])))
    hub.benchmarks = ["mteb/sts12-sts"]
    push_model(directory, "org/second")
    files = hub.repositories["org/second"].files()
    assert b"huggingface.co/org/second/blob/main/x" in files[EVAL_RESULTS.as_posix()]
    card = files[CARD].decode()
    assert ModelCard(card).data.base_model == "org/first" and "Training started from `org/first`" in card
    assert 'SimCSE("org/second")' in card and '"org/first"' not in card


def test_a_card_of_other_weights_is_written_anew(hub, saved):
    directory = saved(pooler_type="avg")
    write_card(directory, repo_id="org/wider")
    AutoModelForCL.from_config(tiny_config(hidden_size=64), pooler_type="max").save_pretrained(directory)
    push_model(directory, "org/wider")
    card = card_on(hub, "org/wider")
    assert "| dimensions | 64 |" in card and "| dimensions | 32 |" not in card
    assert "`max`" in card


def test_a_card_written_by_hand_stays(hub, saved):
    directory = saved()
    by_hand = "---\nlicense: mit\n---\nMy words about org/first."
    (directory / CARD).write_text(by_hand)
    push_model(directory, "org/second")
    assert card_on(hub, "org/second") == by_hand


# --- nothing about the machine ---


@pytest.fixture
def client(tokenizer, tmp_path):
    """A folder, named after a client, that holds a model and data."""
    folder = tmp_path / "user-jane/client-acme"
    folder.mkdir(parents=True)
    save_random(folder, tokenizer, "distilbert").rename(folder / "start")
    texts = random_texts(120, words=(5, 7))
    first, second = texts[:60], texts[60:]
    write(folder / "train.txt", texts)
    scores = np.random.default_rng(0).uniform(0, 5, 60).round(2)
    write_rows(folder / "dev.csv", ["sentence1", "sentence2", "score"], zip(first, second, scores, strict=True))
    labels = [number % 2 for number in range(60)]
    write_rows(folder / "pairs.csv", ["sentence1", "sentence2", "label"], zip(first, second, labels, strict=True))
    return folder


def train_on(root, **options):
    """Train the model of a client on its texts."""
    return train(
        "unsup",
        model_name_or_path=root / "start",
        train_file=root / "train.txt",
        output_dir=root / "run",
        use_cpu=True,
        report_to="none",
        **options,
    )


OF_THE_MACHINE = (b"user-jane", b"client-acme", b"pytest-of-", b"/tmp/", b"site-packages")


def names_of_the_machine(files):
    """The files whose contents say something about the machine."""
    return {path for path, content in files.items() if any(word in content for word in OF_THE_MACHINE)}


@pytest.mark.parametrize("paths", ["absolute", "relative"])
def test_the_files_of_a_run_are_pushed_with_the_last_names_of_paths(paths, client, tmp_path, hub, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = client if paths == "absolute" else client.relative_to(tmp_path)
    run = root / "run"
    steps = {"max_steps": 2, "eval_steps": 1, "save_steps": 1}
    train_on(root, dev_file=root / "dev.csv", per_device_train_batch_size=8, **steps)
    options = {"task": [f"pairs={root}/pairs.csv"], "pairs": [root / "dev.csv"]}
    before = root / "start.json"
    after = run / "evaluation.json"
    evaluate(run, **options, output=after)
    evaluate(root / "start", **options, output=before)
    compare([before, after], output=run / "comparison.json")
    compare([root / "start", run], **options, output=run / "comparison-models.json")
    assert len(names_of_the_machine({path: path.read_bytes() for path in run.glob("*.json")})) == 5

    push_model(run, "org/name")
    files = hub.repositories["org/name"].files()
    assert names_of_the_machine(files) == set()
    results = json.loads(files["results.json"])
    assert results["base_model"] == "start" and results["dev_set"] == "dev.csv" and results["model"] == "run"
    comparison = json.loads(files["comparison.json"])
    assert list(comparison["scores"]) == ["start.json", "evaluation.json"]
    assert comparison["baseline"] == "start.json"
    assert json.loads(files["evaluation.json"])["results"]["pairs"]["source"] == "pairs.csv"
    assert "evaluation.json - start.json" in files[CARD].decode()


@NEEDS_PEFT
def test_an_adapter_of_a_folder_is_pushed_in_no_way(client, hub):
    from peft import LoraConfig

    model = AutoModelForCL.from_pretrained(client / "start")
    model.base_model.add_adapter(LoraConfig(target_modules=["q_lin"]))
    model.save_adapter = True
    with refuses("is an adapter of start, a folder that nobody else has"):
        model.push_to_hub("org/name")
    assert hub.repositories["org/name"].files() == {}, "nothing is pushed"


# --- pushes of a trainer ---


@pytest.fixture
def make_trainer(client, tokenizer):
    """`make_trainer(strategy)` makes a trainer of four steps with two checkpoints, which are pushed to org/name."""

    def make_pushing(strategy, **options):
        options |= {"hub_strategy": strategy, "hub_always_push": True, "push_to_hub": True, "hub_model_id": "org/name"}
        return make(
            client,
            tokenizer,
            {"sent0": random_texts(12)},
            AutoModelForCL.from_pretrained(client / "start"),
            dev_set=str(client / "dev.csv"),
            per_device_train_batch_size=4,
            learning_rate=0.01,
            **EVALUATES | SAVES | options,
        )

    return make_pushing


def embeddings_of(*model, **options):
    """Embeddings with their lengths, so that a head counts."""
    return SimCSE(*model, **options).encode(TEXTS, normalize_embeddings=False)


#: The pushes in progress of each strategy, and where a checkpoint to resume from is.
STRATEGIES = {
    "all_checkpoints": (4, "checkpoint-4"),
    "end": (0, None),
    "every_save": (2, None),
    "checkpoint": (4, "last-checkpoint"),
}


@pytest.mark.parametrize("strategy", fast_first(*STRATEGIES))
def test_every_hub_strategy_pushes_a_whole_model_with_a_card_and_no_folder_of_the_machine(
    strategy, make_trainer, hub, tmp_path
):
    """The example scripts call `save_model`, which pushes with push_to_hub."""
    pushes, place = STRATEGIES[strategy]
    trainer = make_trainer(strategy)
    folder = trainer.args.output_dir
    trainer.train()
    trainer._finish_current_push()
    repository = hub.repositories["org/name"]
    assert sum("in progress" in message for _, message in repository.messages) == pushes
    if pushes:
        assert torch.equal(embeddings_of("org/name"), embeddings_of(f"{folder}/checkpoint-4"))
    trainer.save_model()
    files = repository.files()
    wanted = {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "results.json", CARD}
    assert wanted <= files.keys() and "training_args.bin" not in files
    assert names_of_the_machine(files) == set()
    card = files[CARD].decode()
    assert "| `learning_rate` | 0.01 |" in card and 'SimCSE("org/name")' in card
    assert torch.equal(embeddings_of("org/name", force_download=True), embeddings_of(folder))
    kept = [path for path in files if "checkpoint" in path]
    assert bool(kept) is (place is not None)
    if place is not None:
        for path in kept:
            (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / path).write_bytes(files[path])
        assert folder_problem(tmp_path / place) is None
        assert (tmp_path / place / "optimizer.pt").exists()
        assert torch.equal(embeddings_of(tmp_path / place), embeddings_of(f"{folder}/checkpoint-4"))


def test_the_files_of_a_running_push_stay_until_it_has_ended(make_trainer, client, hub):
    """The push reads its files at its end, during which the next checkpoint is saved; one checkpoint is kept."""
    trainer = make_trainer("checkpoint", save_total_limit=1)
    trainer.train()
    assert tqdm.get_lock() is hub_tqdm.get_lock(), "or a line of the log ends the run while the push makes a bar"
    trainer._finish_current_push()
    paths = [client / "run" / folder / "model.safetensors" for folder in ("2_Dense", "checkpoint-4")]

    def contents():
        return [path.read_bytes() for path in paths]

    def wait_and_read():
        threading.Event().wait(0.3)
        return contents()

    before = contents()
    push = huggingface_hub.hf_api.api.run_as_future(wait_and_read)
    trainer.push_in_progress.jobs = [push]
    for weight in trainer.model.parameters():
        weight.data += 1
    trainer.state.global_step = 5
    trainer._save_checkpoint(trainer.model, None)
    assert push.result() == before
    trainer._finish_current_push()
    assert not paths[1].exists()


def test_a_checkpoint_is_pushed_only_where_no_push_is_running_unless_always(make_trainer, client, hub):
    trainer = make_trainer("every_save")
    trainer.train()
    trainer._finish_current_push()
    trainer.args.hub_always_push = False
    head = client / "run/2_Dense/model.safetensors"
    before = head.read_bytes()
    going = threading.Event()
    trainer.push_in_progress.jobs = [huggingface_hub.hf_api.api.run_as_future(going.wait)]
    trainer._push_from_checkpoint(str(client / "run/checkpoint-2"))
    assert head.read_bytes() == before
    going.set()
    trainer._finish_current_push()
    trainer._push_from_checkpoint(str(client / "run/checkpoint-2"))
    assert head.read_bytes() != before
    trainer._finish_current_push()


class Tracker(TensorBoardCallback):
    """A tracker whose server is away."""

    def __init__(self):
        pass

    def on_log(self, *_, **__):
        raise ConnectionError("the server of the tracker is away")


def test_training_goes_on_without_the_hub_and_without_a_tracker_and_says_what_failed(make_trainer, hub, caplog):
    """The model of the run is then pushed with its tags, and in transformers' way with its card."""
    trainer = make_trainer("checkpoint")
    trainer.add_callback(Tracker())
    hub.cut = lambda method, path: trainer.state.global_step < 4

    class WaitsForThePush(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 3:
                trainer.push_in_progress.wait_until_done()

    trainer.add_callback(WaitsForThePush())
    trainer.train()
    assert trainer.state.global_step == 4
    assert "checkpoint-2 was not pushed" in caplog.text and "checkpoint-4 was not" not in caplog.text
    assert "Tracker failed (ConnectionError: the server of the tracker is away)" in caplog.text
    assert "last-checkpoint/optimizer.pt" in hub.repositories["org/name"].files()

    trainer.model.add_model_tags(["legal"])
    trainer.push_to_hub()
    assert "- legal" in card_on(hub, "org/name").splitlines()
    trainer.model.push_to_hub("org/model")
    assert "Training" in card_on(hub, "org/model")


def test_a_run_whose_last_push_fails_says_where_its_model_is(client, hub):
    hub.cut = lambda method, path: (client / "run/results.json").exists()
    with refuses(f"simcse-hf push {client}/run org/name", PushError):
        train_on(client, max_steps=1, save_strategy="no", push_to_hub=True, hub_model_id="org/name")
