"""What a commit of a model puts into a repository and removes from it, without the names of folders here."""

import pytest

from simcse_hf import AutoModelForCL
from simcse_hf.publishing.hub import push_model
from simcse_hf.runtime.upload import PublicNames, name_in_card


def test_a_tokenizer_of_the_repository_stays_until_another_one_is_pushed(hub, saved):
    directory = saved()
    push_model(directory, "org/name")
    repository = hub.repositories["org/name"]
    repository.commit("main", repository.files() | {"merges.txt": b"old", "spiece.model": b"old"}, "an old tokenizer")
    AutoModelForCL.from_pretrained(directory).push_to_hub("org/name")
    assert {"merges.txt", "spiece.model", "tokenizer.json"} <= repository.files().keys()
    push_model(directory, "org/name")
    assert not {"merges.txt", "spiece.model"} & repository.files().keys()


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
    name = PATHS[text]
    assert PublicNames()(text) == name
    document = {"a": [text, 1, None], text: {"b": text}}
    assert PublicNames()(document) == {"a": [name, 1, None], name: {"b": name}}


def test_two_paths_with_one_last_name_stay_apart_and_texts_of_a_dev_set_stay():
    document = {"scores": {"/a/final": 1, "/b/final": 2}, "baseline": "/b/final", "dev_texts": ["/a/b is a path"]}
    assert PublicNames()(document) == {
        "scores": {"final": 1, "final (2)": 2},
        "baseline": "final (2)",
        "dev_texts": ["/a/b is a path"],
    }


def test_a_source_that_was_written_before_the_owner_was_known_gets_the_whole_name():
    source = "url: https://huggingface.co/{}/blob/main/README.md\n"
    for before in ("model", "other/model"):
        assert name_in_card(source.format(before), "org/model") == source.format("org/model")
