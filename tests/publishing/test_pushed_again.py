"""A repository is what was pushed last, under its own name, and says nothing about the machine it comes from."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import NEEDS_PEFT, tiny_config
from datasets import Dataset
from huggingface_hub import EvalResultEntry, ModelCard, eval_result_entries_to_yaml
from inference_helpers import perturb, random_texts
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
from simcse_hf.ops.files import folder_problem
from simcse_hf.ops.upload import PublicNames
from simcse_hf.publishing import CARD, write_card
from simcse_hf.publishing.card import EVAL_RESULTS
from simcse_hf.publishing.hub import push_model

TEXTS = ["a cat sat on the mat .", "dog", "the old man sang"]
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
OTHERS = {
    "LICENSE": b"mine",
    "pictures/cat.png": b"png",
    "data/config.json": b"{}",
    "notes.md": b"notes",
}


# --- nothing of an earlier model stays ----------------------------------------------------------------------------


@pytest.fixture
def folder(saved, transformed, hub, tmp_path, tokenizer):
    """`folder(kind)` makes a model with a tokenizer in a folder."""

    def adapter():
        from peft import LoraConfig

        push_model(saved("roberta", pooler_type="avg"), "org/base")
        model = AutoModelForCL.from_pretrained("org/base")
        model.base_model.add_adapter(
            LoraConfig(target_modules=["query"], init_lora_weights=False)
        )
        model.save_adapter = True
        model.save_pretrained(tmp_path / "adapter")
        tokenizer.save_pretrained(tmp_path / "adapter")
        return tmp_path / "adapter"

    kinds = {
        "whole": lambda: saved("bert", pooler_type="avg"),
        "head": lambda: saved("distilbert"),
        "whitened": lambda: transformed("whitening"),
        "adapter": adapter,
        "graphs": lambda: saved("roberta"),
    }
    return lambda kind: kinds[kind]()


def push_with_simcse(directory):
    SimCSE(directory, device="cpu").push_to_hub("org/name")


def push_as_transformers(directory):
    AutoModelForCL.from_pretrained(directory).push_to_hub("org/name")


WAYS = {
    "push": lambda directory: push_model(directory, "org/name"),
    "SimCSE": push_with_simcse,
    "transformers": push_as_transformers,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "kind", [pytest.param("adapter", marks=NEEDS_PEFT), "graphs", "whitened", "head"]
)
def test_the_repository_is_the_model_that_was_pushed_last(kind, way, folder, hub):
    push_model(folder(kind), "org/name")
    repository = hub.repositories["org/name"]
    further = OTHERS | (GRAPHS if kind == "graphs" else {})
    repository.commit("main", repository.files() | further, "further files")
    directory = folder("whole")
    WAYS[way](directory)
    files = repository.files()
    assert {name: files[name] for name in OTHERS} == OTHERS
    wanted = {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file()
    }
    assert files.keys() - OTHERS.keys() - {CARD} == wanted - {CARD}, (
        "nothing of the earlier model is left"
    )
    assert len(repository.messages) == 4, "in one commit"
    assert torch.equal(
        SimCSE("org/name").encode(TEXTS), SimCSE(directory, device="cpu").encode(TEXTS)
    )


def test_a_tokenizer_of_the_repository_stays_until_another_one_is_pushed(hub, saved):
    directory = saved()
    push_model(directory, "org/name")
    repository = hub.repositories["org/name"]
    repository.commit(
        "main",
        repository.files() | {"merges.txt": b"old", "spiece.model": b"old"},
        "an old tokenizer",
    )
    AutoModelForCL.from_pretrained(directory).push_to_hub("org/name")
    assert {"merges.txt", "spiece.model", "tokenizer.json"} <= repository.files().keys()
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
    repository.commit(
        "main", repository.files() | dict.fromkeys(names, b"{}"), "results"
    )
    push_model(saved("distilbert"), "org/name")
    assert not repository.files().keys() & set(names)


# --- the card -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before", ["nothing", "a draft", "another repository", "another owner", "no owner"]
)
def test_the_card_names_the_repository_that_is_pushed_to(before, hub, saved):
    directory = saved("distilbert")
    if before == "a draft":
        write_card(directory, repo_id="org/draft")
    elif before != "nothing":
        name = {
            "another repository": "org/draft",
            "another owner": "acme/public",
            "no owner": "draft",
        }[before]
        if before == "another owner":
            write_card(directory, repo_id=name)
        else:
            push_model(directory, name)
    push_model(directory, "org/public")
    card = hub.repositories["org/public"].files()[CARD].decode()
    assert "draft" not in card and "acme" not in card
    assert card.count('"org/public"') == 5, (
        "three libraries, of which transformers loads a tokenizer, a model and a head"
    )
    assert "\n# public\n" in card and (directory / CARD).read_text() == card


def test_a_name_without_an_owner_is_completed_in_the_card(hub, saved):
    push_model(saved(), "mine")
    assert 'SimCSE("org/mine")' in hub.repositories["org/mine"].files()[CARD].decode()


def test_sources_of_scores_name_the_repository_and_a_base_model_of_an_earlier_name_stays(
    hub, saved, tmp_path
):
    directory = saved()
    hub.benchmarks = ["mteb/sts12-sts"]
    (directory / "results.json").write_text(
        json.dumps({"settings": {}, "base_model": "org/first", "steps": 1})
    )
    push_model(directory, "org/first")
    entries = [
        EvalResultEntry(
            "mteb/sts12-sts",
            "STS12",
            70.5,
            source_url="https://huggingface.co/org/first/blob/main/x",
        )
    ]
    (directory / EVAL_RESULTS).parent.mkdir()
    (directory / EVAL_RESULTS).write_text(
        safe_dump(eval_result_entries_to_yaml(entries))
    )
    push_model(directory, "org/second")
    files = hub.repositories["org/second"].files()
    assert b"huggingface.co/org/second/blob/main/x" in files[EVAL_RESULTS.as_posix()]
    card = files[CARD].decode()
    assert (
        ModelCard(card).data.base_model == "org/first"
        and "Training started from `org/first`" in card
    )
    assert 'SimCSE("org/second")' in card and '"org/first"' not in card


def test_a_card_of_other_weights_is_written_anew(hub, saved):
    directory = saved(pooler_type="avg")
    write_card(directory, repo_id="org/name")
    AutoModelForCL.from_config(
        tiny_config(hidden_size=64), pooler_type="max"
    ).save_pretrained(directory)
    push_model(directory, "org/name")
    card = hub.repositories["org/name"].files()[CARD].decode()
    assert (
        "| dimensions | 64 |" in card
        and "`max`" in card
        and "| dimensions | 32 |" not in card
    )


def test_a_card_written_by_hand_stays(hub, saved):
    directory = saved()
    (directory / CARD).write_text("---\nlicense: mit\n---\nMy words about org/first.")
    push_model(directory, "org/second")
    assert (
        hub.repositories["org/second"].files()[CARD]
        == b"---\nlicense: mit\n---\nMy words about org/first."
    )


def test_a_push_from_python_may_be_a_dry_run(hub, saved):
    directory = saved()
    found = push_model(directory, "org/name", dry_run=True)
    assert (
        found == push(directory, "org/name", dry_run=True)
        and not found.pushed
        and not hub.requests
    )
    assert "model.safetensors" in found.files and not (directory / CARD).exists()
    assert "to org/name, main; nothing was pushed" in str(found)
    assert (
        push_model(directory, "org/name").url
        == f"{hub.url}/org/name/commit/{hub.repositories['org/name'].branches['main']}"
    )


# --- nothing about the machine ------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path, save_checkpoint):
    """The folder of a client, with a model and data in it."""
    folder = tmp_path / "user-jane" / "client-acme"
    folder.mkdir(parents=True)
    start = save_checkpoint(
        perturb(AutoModelForCL.from_config(tiny_config(), pooler_type="avg")), "start"
    )
    shutil.copytree(start, folder / "start")
    texts = random_texts(120, words=(5, 7))
    (folder / "train.txt").write_text("\n".join(texts) + "\n")
    scores = np.random.default_rng(0).uniform(0, 5, 60).round(2)
    rows = [
        f"{a},{b},{score}"
        for a, b, score in zip(texts[:60], texts[60:], scores, strict=True)
    ]
    (folder / "dev.csv").write_text("\n".join(["sentence1,sentence2,score", *rows]))
    rows = [
        f"{a},{b},{number % 2}"
        for number, (a, b) in enumerate(zip(texts[:60], texts[60:], strict=True))
    ]
    (folder / "pairs.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]))
    return folder


def names_of_the_machine(files):
    """What the contents of files say about the machine, by path."""
    words = (b"user-jane", b"client-acme", b"pytest-of-", b"/tmp/", b"site-packages")
    return {
        path: [word for word in words if word in content]
        for path, content in files.items()
        if any(w in content for w in words)
    }


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_nothing_that_is_pushed_names_a_folder_of_the_machine(
    relative, client, hub, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    root = client.relative_to(tmp_path) if relative else client
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
    evaluate(str(run), **options, output=str(run / "evaluation.json"))
    evaluate(str(root / "start"), **options, output=str(root / "start.json"))
    compare(
        [str(root / "start.json"), str(run / "evaluation.json")],
        output=str(run / "comparison.json"),
    )
    compare(
        [str(root / "start"), str(run)],
        **options,
        output=str(run / "comparison-models.json"),
    )
    assert (
        len(
            names_of_the_machine(
                {path: path.read_bytes() for path in run.glob("*.json")}
            )
        )
        == 5
    )
    push_model(run, "org/name")
    files = hub.repositories["org/name"].files()
    assert names_of_the_machine(files) == {}
    results = json.loads(files["results.json"])
    assert (results["base_model"], results["dev_set"], results["model"]) == (
        "start",
        "dev.csv",
        "run",
    )
    compared = json.loads(files["comparison.json"])
    assert (
        list(compared["scores"]) == ["start.json", "evaluation.json"]
        and compared["baseline"] == "start.json"
    )
    assert (
        json.loads(files["evaluation.json"])["results"]["pairs"]["source"]
        == "pairs.csv"
    )
    assert "evaluation.json - start.json" in files[CARD].decode()


@pytest.mark.parametrize("strategy", ["checkpoint", "every_save"])
def test_a_trainer_pushes_no_folder_and_a_checkpoint_that_can_be_resumed(
    strategy, client, hub, tokenizer, tmp_path
):
    args = SimCSETrainingArguments(
        output_dir=str(client / "run"),
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=4,
        push_to_hub=True,
        hub_model_id="org/name",
        hub_strategy=strategy,
        hub_always_push=True,
        load_best_model_at_end=True,
        eval_strategy="steps",
        eval_steps=1,
    )
    rows = Dataset.from_dict({"sent0": random_texts(12)})
    model = AutoModelForCL.from_pretrained(client / "start")
    trainer = SimCSETrainer(
        model, args, rows, dev_set=str(client / "dev.csv"), processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model()
    files = hub.repositories["org/name"].files()
    assert names_of_the_machine(files) == {} and "training_args.bin" not in files
    assert {"model.safetensors", "results.json", CARD} <= files.keys()
    checkpoint = tmp_path / "last-checkpoint"
    for path, content in files.items():
        if path.startswith("last-checkpoint/"):
            (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / path).write_bytes(content)
    if strategy == "checkpoint":
        assert (
            folder_problem(checkpoint) is None
            and (checkpoint / "optimizer.pt").exists()
        )
    else:
        assert not checkpoint.exists()


@NEEDS_PEFT
def test_an_adapter_of_a_folder_is_pushed_in_no_way(client, hub):
    from peft import LoraConfig

    model = AutoModelForCL.from_pretrained(client / "start")
    model.base_model.add_adapter(LoraConfig(target_modules=["query"]))
    model.save_adapter = True
    with pytest.raises(
        ValueError, match="is an adapter of .*start, a folder that nobody else has"
    ):
        model.push_to_hub("org/name")
    assert hub.repositories["org/name"].files() == {}


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
    assert PublicNames()({"a": [text, 1, None], text: {"b": text}}) == {
        "a": [PATHS[text], 1, None],
        PATHS[text]: {"b": PATHS[text]},
    }


def test_two_paths_with_one_last_name_stay_apart_and_texts_of_a_dev_set_stay():
    document = {
        "scores": {"/a/final": 1, "/b/final": 2},
        "baseline": "/b/final",
        "dev_texts": ["/a/b is a path"],
    }
    assert PublicNames()(document) == {
        "scores": {"final": 1, "final (2)": 2},
        "baseline": "final (2)",
        "dev_texts": ["/a/b is a path"],
    }
