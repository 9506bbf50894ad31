"""The folder of an index: nothing but the index's own files is removed, damage is noticed, and no sentence is lost."""

import json
import shutil

import numpy as np
import pytest
from retrieval_helpers import EVERY_BACKEND, CountingModel
from trainer_helpers import files_of, refuses

from simcse_hf import SentenceIndex, describe, index

SENTENCES = [f"sentence number {number}" for number in range(40)]


@pytest.fixture
def model():
    return CountingModel()


def opened(folder):
    return SentenceIndex.load(folder, CountingModel())


@pytest.fixture
def folder(model, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("content", ['{"name": "web site"}', "not json", "[]", None])
def test_a_folder_with_other_files_is_neither_read_nor_written_to(model, tmp_path, content):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    before = files_of(tmp_path)
    with refuses("holds something else than an index: name a new folder"):
        SentenceIndex.build(model, SENTENCES).save(tmp_path)
    with pytest.raises(ValueError, match=r"holds something else.*(thesis\.tex|index\.json)"):
        index("nowhere.txt", tmp_path, model="nowhere", overwrite=True)
    with refuses("index.json"):
        opened(tmp_path)
    assert files_of(tmp_path) == before


def test_files_of_the_user_in_an_index_stay_and_those_of_the_replaced_one_go(model, folder):
    (folder / "notes.txt").write_text("mine")
    leftover = folder / ".data-0123456789abcdef.77.partial"  # of a process that was killed
    leftover.mkdir()
    (leftover / "vectors.npy").write_bytes(b"half")
    names = {path.name for path in folder.rglob("*")}
    SentenceIndex.build(model, SENTENCES[:3]).save(folder)
    assert (folder / "notes.txt").read_text() == "mine" and not leftover.exists()
    assert len({path.name for path in folder.rglob("*")} - names) == 1, "the new data folder takes the old one's place"
    assert len(opened(folder)) == 3


def test_an_index_can_be_saved_through_a_link_but_not_through_a_linked_description(model, tmp_path, folder):
    (tmp_path / "link").symlink_to("index")
    SentenceIndex.build(model, SENTENCES[:2]).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and len(opened(folder)) == 2
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.json").symlink_to(folder / "index.json")
    before = files_of(folder)
    for target in (other, folder / "index.json"):  # the second is no folder
        with refuses("holds something else"):
            SentenceIndex.build(model, SENTENCES).save(target)
    assert files_of(folder) == before


@EVERY_BACKEND
def test_damage_of_any_file_is_noticed_and_named(model, tmp_path, backend):
    folder, generator = tmp_path / "index", np.random.default_rng(0)
    SentenceIndex.build(model, SENTENCES, backend=backend).save(folder)
    for path in (folder / describe(folder).data).iterdir():
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[generator.integers(len(whole))] ^= 1
        for content in (bytes(changed), whole[: len(whole) // 2], b"\0" * len(whole)):
            path.write_bytes(content)
            with refuses(f"cannot be read: {path.name} Build the index again"):
                opened(folder)
        path.unlink()
        with refuses(path.name):
            opened(folder)
        path.write_bytes(whole)
    assert len(opened(folder)) == 40


@pytest.mark.parametrize("key", "name_or_path pooler prompts count backend probe data digests".split())
def test_a_description_with_a_missing_or_wrong_entry_is_damaged(folder, key):
    whole = json.loads((folder / "index.json").read_text())
    missing = object()
    for value in (missing, [[]], {"a": 1}, 10**30, [0.5, "x"], *([".."] if key in ("backend", "data") else [])):
        described = json.loads(json.dumps(whole))
        section = described["model"] if key in described["model"] and key != "backend" else described
        del section[key]
        if value is not missing:
            section[key] = value
        (folder / "index.json").write_text(json.dumps(described))
        with refuses(str(folder)):
            opened(folder)


def test_a_second_addition_is_refused_when_another_process_saved_first(folder):
    first, second = opened(folder), opened(folder)
    first.add(["from the first"])
    second.add(["from the second"])
    first.save(folder)
    with refuses("another process has changed this index since it was loaded"):
        second.save(folder)
    shutil.rmtree(folder / describe(folder).data)
    with refuses("cannot be read"):
        opened(folder)
    first.add(["once more"])
    first.save(folder)
    loaded = opened(folder)
    assert [loaded[40], loaded[41]] == ["from the first", "once more"] and len(loaded) == 42


def test_an_index_in_a_folder_of_links_opens(folder, tmp_path):
    """As in a snapshot of the hub, or with DVC or git-annex."""
    links = tmp_path / "links"
    for number, path in enumerate(path for path in sorted(folder.rglob("*")) if path.is_file()):
        link = links / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.rename(tmp_path / f"blob{number}"))
    assert len(opened(links)) == 40
    with refuses("index.json is a link"):
        opened(links).save(links)


def test_an_index_can_be_read_while_it_is_replaced(model, folder, monkeypatch):
    """The description may name a folder that another process has replaced in the meantime."""
    check, calls = model.encode, []

    def encode(texts):
        calls.append(texts)
        if len(calls) == 1:  # between reading the description and the data
            SentenceIndex.build(CountingModel(), SENTENCES[:6]).save(folder)
        return check(texts)

    monkeypatch.setattr(model, "encode", encode)
    assert len(SentenceIndex.load(folder, model)) == 6
