"""The folder of shards: nothing but a run's own files is removed, and a damaged manifest or shard is one message."""

import json
import pickle
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import tiny_config

from simcse_hf import AutoModelForCL, SimCSE
from simcse_hf.cli.encode import encode_main
from simcse_hf.inference.manifest import read_manifest, remove_run, shard_paths
from simcse_hf.inference.shards import encode_file, read_shards

MANIFEST = {
    "layout": 1,
    "input": {"rows": 5, "file": "a.txt"},
    "model": {},
    "settings": {"shard_size": 3, "format": "npy", "precision": "float32"},
}


@pytest.fixture
def folder(tmp_path):
    """Shards of 3 and 2 rows."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps(MANIFEST))
    for path, rows in zip(shard_paths(folder), (3, 2), strict=True):
        np.save(path, np.ones((rows, 4), dtype=np.float32))
    return folder


@pytest.fixture
def model(save_checkpoint):
    return SimCSE(save_checkpoint(AutoModelForCL.from_config(tiny_config("bert"), pooler_type="avg")), device="cpu")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("the cat\na dog\n")
    return path


# --- other people's files ----------------------------------------------------------------------------------------


def test_a_foreign_folder_keeps_its_partial_files(model, source, tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "film.partial").write_text("half")
    with pytest.raises(ValueError, match="holds other files"):
        encode_file(model, source, tmp_path / "downloads")
    assert (tmp_path / "downloads" / "film.partial").read_text() == "half"


def test_a_resumed_run_removes_its_own_leftovers_only(model, source, tmp_path):
    (path,) = encode_file(model, source, tmp_path / "out")
    leftover = path.with_name(f".{path.name}.77.partial")
    for name in (leftover, path.with_name("film.partial"), path.with_name(".draft.77.partial")):
        name.write_text("half")
    encode_file(model, source, tmp_path / "out", resume=True)
    assert not leftover.exists()
    assert path.with_name("film.partial").exists() and path.with_name(".draft.77.partial").exists()


def test_a_folder_with_a_foreign_manifest_is_left_as_it_is(model, source, tmp_path):
    folder = tmp_path / "extension"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"manifest_version": 3}')
    (folder / "vectors-1-of-a-kind.svg").write_text("mine")
    for call in (lambda: remove_run(folder), lambda: encode_file(model, source, folder, resume=True)):
        with pytest.raises(ValueError, match=r"manifest\.json: has layout None"):
            call()
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "vectors-1-of-a-kind.svg"]


def test_overwriting_removes_the_shards_of_the_manifest_only(folder):
    for name in ("vectors-of-mine.npy", "vectors-00000-of-00009.npy", "notes.txt"):
        (folder / name).write_text("mine")
    remove_run(folder)
    names = ["notes.txt", "vectors-00000-of-00009.npy", "vectors-of-mine.npy"]
    assert sorted(path.name for path in folder.iterdir()) == names
    remove_run(folder)


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layout": 2}, "has layout 2"),
        ({"input": None}, "damaged .no section 'input'"),
        ({"input": {}}, "rows is None"),
        ({"input": {"rows": 10**15}}, "shards, and 1000000 are the most"),
        ({"input": {"rows": 0}}, "rows is 0"),
        ({"input": {"rows": True}}, "rows is True"),
        ({"input": {"rows": "9"}}, "rows is '9'"),
        ({"model": []}, "no section 'model'"),
        ({"settings": {}}, "shard_size is None"),
        ({"settings": {"shard_size": -1}}, "shard_size is -1"),
        ({"settings": {"shard_size": 3, "format": "../../x"}}, "format is"),
        ({"settings": {"shard_size": 3, "format": "npy"}}, "precision is None"),
        ({"starts": {"0": [1, 0]}}, "starts do not name the places of 2 shards"),
        ({"starts": [[1, 0]]}, "starts do not name the places of 2 shards"),
        ({"starts": [[1, 0], [4, "9"]]}, "starts do not name the places of 2 shards"),
        ({"starts": [[4, 9], [1, 0]]}, "starts do not name the places of 2 shards"),
        ({"starts": [[1, -3], [4, 9]]}, "starts do not name the places of 2 shards"),
    ],
)
def test_a_damaged_manifest_is_one_message_and_never_a_long_loop(folder, changes, message):
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | changes))
    for call in (read_manifest, shard_paths, lambda path: next(read_shards(path)), remove_run):
        with pytest.raises(ValueError, match=rf"manifest\.json: .*{message}"):
            call(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b'{"a":' * 5000])
def test_a_manifest_that_is_no_table_is_one_message(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json: (not readable|has layout None)"):
        read_manifest(folder)


def archive(path):
    np.savez(path.open("wb"), vectors=np.ones((3, 4), dtype=np.float32))


def empty_archive(path):
    with zipfile.ZipFile(path, "w"):
        pass


class Harmful:
    def __reduce__(self):
        return (eval, ("1/0",))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"),
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"(3, 4)", b"(9999999999, 4)")),
        lambda path: path.write_bytes(pickle.dumps(Harmful())),
        lambda path: np.save(path, np.array([Harmful()], dtype=object), allow_pickle=True),
        lambda path: np.save(path, np.ones((2, 4), dtype=np.float32)),
        lambda path: np.save(path, np.ones((3, 0), dtype=np.float32)),
        lambda path: np.save(path, np.ones(3, dtype=np.float32)),
        archive,
        empty_archive,
    ],
)
def test_a_damaged_shard_is_named_and_nothing_in_it_is_run(folder, damage):
    path = shard_paths(folder)[0]
    damage(path)
    with pytest.raises(ValueError, match="vectors-00000-of-00002.npy: damaged"):
        list(read_shards(folder))


def test_a_shard_of_another_type_or_width_is_named(folder):
    path = shard_paths(folder)[1]
    for array in (np.ones((2, 5), dtype=np.float32), np.ones((2, 4), dtype=np.float64)):
        np.save(path, array)
        with pytest.raises(ValueError, match="vectors-00001-of-00002.npy: damaged .*unlike the shards before it"):
            list(read_shards(folder))


@pytest.mark.parametrize("column", ["text", "list", "null"])
def test_a_parquet_shard_without_vectors_is_named(folder, column):
    settings = MANIFEST["settings"] | {"format": "parquet"}
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | {"settings": settings}))
    values = {
        "text": pa.table({"text": ["a", "b", "c"]}),
        "list": pa.table({"vector": [[1.0], [1.0, 2.0], []]}),
        "null": pa.table({"vector": pa.array([None] * 3, pa.list_(pa.float32(), 4))}),
    }
    pq.write_table(values[column], shard_paths(folder)[0])
    with pytest.raises(ValueError, match="vectors-00000-of-00002.parquet: damaged"):
        list(read_shards(folder))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no array"])
def test_damaged_ranges_are_named(tmp_path, content):
    (tmp_path / "ranges.npz").write_bytes(content)
    words = ["--model", "nowhere", "--input", "x.txt", "--output", "y", "--precision", "int8"]
    with pytest.raises(ValueError, match=r"--ranges .*ranges\.npz: not a readable npy file"):
        encode_main([*words, "--ranges", str(tmp_path / "ranges.npz")])


# --- texts -------------------------------------------------------------------------------------------------------


def test_half_a_surrogate_pair_is_named_before_anything_is_encoded(model, tmp_path, monkeypatch):
    source = tmp_path / "t.jsonl"
    source.write_text('{"text": "fine"}\n{"text": "half \\ud83d of one"}\n')
    with pytest.raises(ValueError, match="sentence 1: the text .* holds half of a surrogate pair"):
        model.encode(["fine", "half \ud83d of one"])
    with pytest.raises(ValueError, match="sentence 1: the text .* holds half of a surrogate pair"):
        model.build_index(["fine", "half \ud83d of one"])
    monkeypatch.setattr(model, "encode_windows", None)
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2: the text .* holds half of a surrogate pair"):
        encode_file(model, source, tmp_path / "out", shard_size=1)
