"""The folder of an index: nothing but the index's own files is removed, damage is noticed, and one process writes."""

import json
import os
import shutil
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from simcse_hf.cli.search import index_main
from simcse_hf.search import SentenceIndex, describe, hold_folder
from simcse_hf.search.folder import check_target

SENTENCES = [f"sentence number {number}" for number in range(40)]


class CountingModel:
    """Embed a text by a hash of its words: fast, and the same in every process."""

    name_or_path, revision, pooler_type, max_length = "counting", None, "avg", None

    def encode(self, texts, truncate_dim=None, convert_to_numpy=True):
        single = isinstance(texts, str)
        rows = []
        for text in [texts] if single else texts:
            row = np.zeros(8)
            for word in text.split():
                row += np.random.default_rng(list(blake2b(word.encode(), digest_size=8).digest())).standard_normal(8)
            rows.append(row / (np.linalg.norm(row) or 1))
        vectors = np.array(rows, dtype=np.float32)[:, :truncate_dim]
        return vectors[0] if single else vectors


@pytest.fixture
def model():
    return CountingModel()


@pytest.fixture
def folder(model, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    return tmp_path / "index"


def data_file(folder, name):
    (path,) = Path(folder).rglob(name)
    return path


def rewrite(folder, name, content):
    """Change a file, and the digest in the description with it, as someone who means harm would."""
    path = data_file(folder, name)
    path.write_bytes(content)
    described = json.loads((folder / "index.json").read_text())
    described["files"][name] = {"bytes": len(content), "blake2b": blake2b(content).hexdigest()}
    (folder / "index.json").write_text(json.dumps(described))


# --- other people's files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["{}", '{"layout": "web site"}', '{"layout": 2}', "not json", "[]"])
def test_a_folder_with_some_index_json_is_not_taken_for_an_index(model, tmp_path, content):
    project = tmp_path / "project"
    project.mkdir()
    (project / "index.json").write_text(content)
    (project / "thesis.tex").write_text("ten years of work")
    before = {path.name: path.read_bytes() for path in project.iterdir()}
    with pytest.raises(ValueError, match="holds something else than an index of this package"):
        SentenceIndex.build(model, SENTENCES).save(project)
    assert {path.name: path.read_bytes() for path in project.iterdir()} == before


def test_the_index_command_refuses_a_foreign_folder_before_it_loads_the_model(tmp_path):
    (tmp_path / "index.json").write_text('{"name": "web site"}')
    words = ["--model", "nowhere", "--input", "nowhere.txt", "--output", str(tmp_path), "--overwrite"]
    with pytest.raises(ValueError, match="holds something else than an index of this package"):
        index_main(words)


def test_files_of_the_user_in_an_index_stay_when_it_is_saved_again(model, folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "queries").mkdir()
    (folder / "queries" / "vectors.npy").write_text("mine too")
    data_folder = folder / describe(folder)["data"]
    (data_folder / "inside.txt").write_text("also mine")
    index = SentenceIndex.load(folder, model)
    index.add(["one more"])
    index.save(folder)
    SentenceIndex.build(model, SENTENCES[:3]).save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "queries" / "vectors.npy").read_text() == "mine too"
    assert (data_folder / "inside.txt").read_text() == "also mine"
    assert len(SentenceIndex.load(folder, model)) == 3


def test_saving_again_leaves_no_file_of_the_replaced_index(model, folder):
    names = sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    interrupted = folder / ".data-0123456789abcdef.77.partial"  # left by a process that was killed
    interrupted.mkdir()
    (interrupted / "vectors.npy").write_bytes(b"half")
    SentenceIndex.build(model, SENTENCES).save(folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != ".lock") == names
    assert not interrupted.exists()


@pytest.mark.parametrize("name", [".data-0123456789abcdef.77.partial", "data-0123456789abcdef"])
def test_what_a_killed_first_save_has_left_does_not_stop_the_next_one(model, tmp_path, name):
    """The folder used to be refused as that of something else."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "vectors.npy").write_bytes(b"half")
    (tmp_path / ".index.json.77.partial").write_text("{")
    SentenceIndex.build(model, SENTENCES).save(tmp_path)
    assert len(SentenceIndex.load(tmp_path, model)) == 40
    data = describe(tmp_path)["data"]
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {"index.json", data}


def test_a_file_of_the_user_beside_what_a_killed_save_has_left_stops_a_save(model, tmp_path):
    (tmp_path / ".index.json.77.partial").write_text("{")
    (tmp_path / "data-0123456789abcdef").write_text("a file, no folder")
    with pytest.raises(ValueError, match="holds something else than an index"):
        SentenceIndex.build(model, SENTENCES).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("names", [{"../../secret.txt": {"bytes": 6}}, {"/etc/passwd": {"bytes": 1}}, ["x"], None])
def test_a_description_cannot_name_files_outside_of_the_index(model, folder, names):
    (folder.parent / "secret.txt").write_text("secret")
    described = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(described | {"files": names}))
    with pytest.raises(ValueError, match=r"index\.json: damaged"):
        describe(folder)
    with pytest.raises(ValueError, match="nothing is written"):
        SentenceIndex.build(model, SENTENCES).save(folder)
    (folder / "index.json").write_text(json.dumps(described | {"data": ".."}))
    with pytest.raises(ValueError, match=r"index\.json: damaged"):
        describe(folder)
    assert (folder.parent / "secret.txt").read_text() == "secret"


def test_an_index_can_be_saved_in_the_current_folder_and_through_a_symbolic_link(model, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    monkeypatch.chdir(tmp_path / "real")
    SentenceIndex.build(model, SENTENCES).save(".")
    assert len(SentenceIndex.load(".", model)) == 40
    (tmp_path / "link").symlink_to("real")
    SentenceIndex.build(model, SENTENCES[:2]).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and len(SentenceIndex.load(tmp_path / "real", model)) == 2


# --- damage ------------------------------------------------------------------------------------------------------


def test_a_changed_byte_of_any_file_is_noticed(model, folder):
    """A wrong offset in `sentences.arrow` used to kill the process."""
    generator = np.random.default_rng(0)
    for name in ("sentences.arrow", "vectors.npy"):
        path = data_file(folder, name)
        whole = path.read_bytes()
        for position in generator.integers(0, len(whole), 40):
            changed = bytearray(whole)
            changed[position] ^= 1 << int(generator.integers(8))
            path.write_bytes(changed)
            with pytest.raises(ValueError, match=f"{name} is damaged"):
                SentenceIndex.load(folder, model)
        path.write_bytes(whole)
    assert len(SentenceIndex.load(folder, model)) == 40


def test_invalid_offsets_with_a_matching_digest_are_noticed(model, folder):
    whole = data_file(folder, "sentences.arrow").read_bytes()
    offsets = np.cumsum([0, *map(len, SENTENCES)]).astype("<i8").tobytes()
    start = whole.index(offsets)
    for value in (2**62, -5, 10_000):
        changed = whole[: start + 80] + np.int64(value).tobytes() + whole[start + 88 :]
        rewrite(folder, "sentences.arrow", changed)
        with pytest.raises(ValueError, match=r"sentences\.arrow: missing or damaged"):
            SentenceIndex.load(folder, model)


@pytest.mark.parametrize("values", [[None] * 40, [1] * 40])
def test_sentences_that_are_no_texts_are_refused(model, folder, values):
    sink = pa.BufferOutputStream()
    column = pa.array(values, pa.large_string() if values[0] is None else pa.int64())
    table = pa.table({"sentence": column})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    rewrite(folder, "sentences.arrow", sink.getvalue().to_pybytes())
    with pytest.raises(ValueError, match=r"sentences\.arrow: damaged"):
        SentenceIndex.load(folder, model)


@pytest.mark.parametrize("key", ["model", "pooler", "dim", "count", "backend", "options", "probe"])
@pytest.mark.parametrize("value", ["missing", [[]], {"a": 1}, 10**30])
def test_a_description_with_a_missing_or_wrong_entry_is_damaged(model, folder, key, value):
    described = json.loads((folder / "index.json").read_text())
    described |= {key: value}
    if value == "missing":
        del described[key]
    (folder / "index.json").write_text(json.dumps(described))
    with pytest.raises(ValueError):
        SentenceIndex.load(folder, model)


def test_an_index_of_the_first_layout_can_be_read_and_saved_in_the_new_one(model, folder):
    described = json.loads((folder / "index.json").read_text())
    data = folder / described.pop("data")
    files = described.pop("files")
    for name in files:
        shutil.move(data / name, folder / name)
    data.rmdir()
    described |= {"layout": 1, "bytes": {name: entry["bytes"] for name, entry in files.items()}}
    (folder / "index.json").write_text(json.dumps(described))
    index = SentenceIndex.load(folder, model)
    assert index[7] == SENTENCES[7]
    index.add(["one more"])
    index.save(folder)
    assert not (folder / "vectors.npy").exists() and len(SentenceIndex.load(folder, model)) == 41


# --- embeddings that are not finite ------------------------------------------------------------------------------


def test_a_stored_index_of_nan_is_refused(model, folder):
    vectors = np.load(data_file(folder, "vectors.npy"))
    vectors[7] = np.nan
    content = data_file(folder, "vectors.npy").read_bytes()
    rewrite(folder, "vectors.npy", content[: len(content) - vectors.nbytes] + vectors.tobytes())
    with pytest.raises(ValueError, match=r"vectors\.npy: row 7 has an embedding that is not finite"):
        SentenceIndex.load(folder, model)


def test_a_model_that_gives_nan_is_not_the_model_of_an_index(model, folder):
    """NaN < 0.999 is false, so that such a model used to pass for the right one."""
    model.encode = lambda texts, **_: np.full((len(texts), 8), np.nan, dtype=np.float32)
    with pytest.raises(ValueError, match="probe of the model has an embedding that is not finite"):
        SentenceIndex.load(folder, model)
    described = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(described | {"probe": [float("nan")] * 8}))
    with pytest.raises(ValueError, match="has an embedding that is not finite"):
        SentenceIndex.load(folder, CountingModel())


# --- several writers ---------------------------------------------------------------------------------------------


def test_a_second_addition_is_refused_when_another_process_saved_first(model, folder):
    first, second = SentenceIndex.load(folder, model), SentenceIndex.load(folder, model)
    first.add(["from the first"])
    second.add(["from the second"])
    first.save(folder)
    with pytest.raises(ValueError, match="another process has changed this index since it was loaded"):
        second.save(folder)
    first.add(["once more"])
    first.save(folder)
    loaded = SentenceIndex.load(folder, model)
    assert [loaded[40], loaded[41]] == ["from the first", "once more"] and len(loaded) == 42


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_index_that_another_process_is_changing_is_refused(model, folder):
    with hold_folder(folder):
        SentenceIndex.build(model, SENTENCES[:4]).save(folder)  # the holder itself may save
        child = os.fork()
        if not child:
            try:
                SentenceIndex.build(model, ["lost"]).save(folder)
            except ValueError as error:
                os._exit(7 if "another process is changing this index" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(SentenceIndex.load(folder, model)) == 4
    SentenceIndex.build(model, SENTENCES[:5]).save(folder)  # the folder is free again


def test_a_lock_that_points_elsewhere_does_not_touch_the_other_file(model, folder):
    victim = folder.parent / "victim.txt"
    victim.write_text("mine")
    (folder / ".lock").unlink(missing_ok=True)
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(ValueError, match="cannot write the index"):
        SentenceIndex.build(model, SENTENCES).save(folder)
    assert victim.read_text() == "mine"


def test_an_index_can_be_read_while_it_is_replaced(model, folder, monkeypatch):
    """The description may name a folder that another process has replaced in the meantime."""
    import simcse_hf.search.sentences as module

    described, calls = describe(folder), []

    def outdated(path):
        calls.append(path)
        if len(calls) > 1:
            return describe(path)
        SentenceIndex.build(model, SENTENCES[:6]).save(folder)
        return described

    monkeypatch.setattr(module, "describe", outdated)
    assert len(SentenceIndex.load(folder, model)) == 6


def test_the_target_of_an_index_is_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="holds something else"):
        check_target(tmp_path / "file")
    check_target(tmp_path / "new")
