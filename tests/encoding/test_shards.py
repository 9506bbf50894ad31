"""Encoding files: complete shards in order, after any interruption; quantization and truncation as documented."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cli_helpers import encode_main
from conftest import tiny_config
from datasets import load_dataset
from encoding_helpers import random_texts
from process_helpers import held_elsewhere, launch
from transformers import BertModel

import simcse_hf
from simcse_hf import AutoModelForCL
from simcse_hf.encoding.files import (
    EncodeJob,
    Shard,
    encode,
    read_manifest,
    read_shards,
    remove_run,
)
from simcse_hf.encoding.quantization import calibrate_ranges, quantize
from simcse_hf.encoding.simcse import SimCSE
from simcse_hf.runtime import files
from simcse_hf.runtime.files import entries


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(random_texts(53)) + "\n", encoding="utf-8")
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(entries(Path(folder)))}


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("truncate_dim", "format"), [(None, "npy"), (8, "npy"), (8, "parquet")])
def test_shards_hold_the_embeddings_in_the_order_of_the_texts(truncate_dim, format, model, source, tmp_path):
    result = encode(
        model,
        source,
        tmp_path / "out",
        shard_size=20,
        format=format,
        truncate_dim=truncate_dim,
    )
    shards = [f"vectors-0000{i}-of-00003.parquet" for i in range(3)]
    assert result.shards == (["vectors.npy"] if format == "npy" else shards)
    assert {path.name for path in entries(tmp_path / "out")} == {
        "_manifest.json",
        *result.shards,
    }
    assert [len(vectors) for vectors in read_shards(tmp_path / "out")] == [20, 20, 13]
    full = model.encode(random_texts(53), normalize_embeddings=False, convert_to_numpy=True)[:, :truncate_dim]
    expected = full / np.linalg.norm(full, axis=1, keepdims=True)
    np.testing.assert_allclose(np.concatenate(list(read_shards(tmp_path / "out"))), expected, atol=1e-6)


def test_an_empty_cell_keeps_its_row(model, tmp_path):
    texts, path = ["", *random_texts(53)], tmp_path / "t.csv.gz"
    pd.DataFrame({"id": range(54), "said": texts}).to_csv(path, index=False)
    encode(model, path, tmp_path / "out", column="said", shard_size=30)
    vectors = np.concatenate(list(read_shards(tmp_path / "out")))
    np.testing.assert_allclose(vectors, model.encode(texts, convert_to_numpy=True), atol=1e-6)


def test_the_function_takes_a_name_or_a_loaded_model_and_returns_what_it_wrote(model, checkpoint, source, tmp_path):
    result = simcse_hf.encode(checkpoint, source, tmp_path / "out", device="cpu", max_length=5)
    assert str(result) == f"53 texts in 1 file under {tmp_path / 'out'}"
    assert result.to_dict() == {
        "output": tmp_path / "out",
        "texts": 53,
        "shards": ["vectors.npy"],
    }
    expected = model.encode(random_texts(53), max_length=5, convert_to_numpy=True)
    np.testing.assert_allclose(np.load(tmp_path / "out/vectors.npy"), expected, atol=1e-6)
    with pytest.raises(ValueError, match="the model is loaded already: leave out max_length"):
        simcse_hf.encode(model, source, tmp_path / "out", max_length=5)


# --- truncation and codes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, np.stack([np.full(32, -1.0), np.full(32, 1.0)]).astype(np.float32)])
def test_int8_uses_the_ranges_of_the_caller_or_of_the_first_texts_for_all_shards(model, source, tmp_path, given):
    encode(model, source, tmp_path / "out", shard_size=20, precision="int8", ranges=given)
    vectors = model.encode(random_texts(53), convert_to_numpy=True)
    ranges = np.load(tmp_path / "out" / "_ranges.npy")
    expected = [vectors[:20].min(0), vectors[:20].max(0)] if given is None else given
    np.testing.assert_allclose(ranges, expected, atol=1e-6)
    codes = np.concatenate(list(read_shards(tmp_path / "out")))
    assert codes.dtype == np.int8
    inside = np.clip(vectors, *ranges)
    steps = (ranges[1] - ranges[0]) / 255
    assert (np.abs(ranges[0] + (codes.astype(np.float32) + 128) * steps - inside) <= steps / 2 + 1e-5).all()


def test_ranges_of_another_model_are_refused_and_those_of_its_queries_are_not(
    model, source, tmp_path, save_checkpoint
):
    model.prompts["query"] = "the "
    options = {"precision": "int8", "ranges": tmp_path / "out" / "_ranges.npy"}
    encode(model, source, tmp_path / "out", precision="int8")
    encode(model, source, tmp_path / "queries", prompt_name="query", **options)
    other = save_checkpoint(AutoModelForCL.from_config(tiny_config(), pooler_type="avg"), "other")
    with pytest.raises(
        ValueError,
        match="ranges .*_ranges.npy are those of another model: other weights",
    ):
        encode(other, source, tmp_path / "other", **options)


def test_the_manifest_names_the_model_without_its_folder(model, source, tmp_path):
    encode(model, source, tmp_path / "out")
    assert read_manifest(tmp_path / "out")["model"]["name_or_path"] == Path(model.name_or_path).name
    assert str(tmp_path) not in (tmp_path / "out" / "_manifest.json").read_text()


def test_a_resumed_run_names_damaged_ranges_and_measures_missing_ones_again(model, source, tmp_path):
    folder = tmp_path / "out"
    options = {"shard_size": 20, "precision": "int8", "format": "parquet"}
    encode(model, source, folder, **options)
    expected = contents(folder)
    (folder / "_ranges.npy").unlink()
    shard = folder / "vectors-00001-of-00003.parquet"
    shard.unlink()
    encode(model, source, folder, **options, resume=True)
    assert contents(folder) == expected
    for damage in (b"", shard.read_bytes()):
        (folder / "_ranges.npy").write_bytes(damage)
        with pytest.raises(ValueError, match=r"ranges\.npy: damaged"):
            encode(model, source, folder, **options, resume=True)


def test_int8_codes_are_linear_and_saturate():
    ranges = np.array([[-1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    values = np.array([[-1, 0], [1, 0], [0.5, 0], [7, 3], [-7, -3]], dtype=np.float32)
    codes = quantize(values, "int8", ranges)
    # (0.5 + 1) / (2 / 255) - 128 = 63.25; the second dimension is constant: one code, or the ends beyond it
    assert codes.tolist() == [
        [-128, -128],
        [127, -128],
        [63, -128],
        [127, -125],
        [-128, -128],
    ]


def test_codes_equal_those_of_sentence_transformers():
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    vectors = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    ranges = calibrate_ranges(vectors)
    for precision, largest in (
        ("binary", 0),
        ("ubinary", 0),
        ("int8", 1),
    ):  # they cut the fraction off, we round
        theirs = library.quantize_embeddings(vectors, precision, ranges=ranges)
        ours = quantize(vectors, precision, ranges)
        assert ours.dtype == theirs.dtype
        assert np.abs(ours.astype(int) - theirs).max() == largest


# --- interrupted runs --------------------------------------------------------------------------------------------


def killed_while_writing(name, command):
    """Run `simcse-hf encode` in a process of its own, which dies in the middle of a file."""
    process = os.fork()
    if process == 0:
        put = files.put_in_place

        def half(temporary, path):
            if path.name == name:
                temporary.write_bytes(temporary.read_bytes()[:-9])
                os.kill(os.getpid(), signal.SIGKILL)
            put(temporary, path)

        files.put_in_place = half
        encode_main(command)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("format", "name", "written"),
    [
        ("npy", "vectors-00003-of-00006.npy", 3),
        ("npy", "vectors.npy", 0),
        ("parquet", "vectors-00003-of-00006.parquet", 3),
    ],
)
def test_a_killed_run_leaves_whole_shards_and_is_resumed_to_the_same_bytes(
    checkpoint, source, tmp_path, monkeypatch, format, name, written
):
    words = f"--model {checkpoint} --input {source} --shard_size 10 --precision int8 --device cpu --quiet --output"
    command, folder = words.split(), tmp_path / "out"
    killed_while_writing(name, [*command, str(folder), "--format", format])
    finished = sorted(folder.glob("vectors-*-of-*"))
    assert len(finished) == 6 - written and list(folder.glob("*.partial"))
    with pytest.raises(
        ValueError,
        match="is missing, because the run was interrupted: finish it with resume",
    ):
        list(read_shards(folder))
    before = {path: path.stat().st_mtime_ns for path in finished}
    write, numbers = Shard.write, []
    monkeypatch.setattr(
        Shard,
        "write",
        lambda shard, *args: (numbers.append(shard.number), write(shard, *args)),
    )
    assert encode_main([*command, str(folder), "--format", format, "--resume"]) == 0
    assert numbers == [3, 4, 5][:written]
    if format == "parquet":
        assert {path: path.stat().st_mtime_ns for path in finished} == before
    encode_main([*command, str(tmp_path / "whole"), "--format", format])
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.parametrize("format", ["npy", "parquet"])
@pytest.mark.parametrize("damage", [b"", b"the first half"])
def test_a_resumed_run_writes_an_empty_or_truncated_shard_again(model, source, tmp_path, format, damage):
    names = encode(model, source, tmp_path / "out", shard_size=20, format=format).shards
    expected = contents(tmp_path / "out")
    paths = [tmp_path / "out" / name for name in names]
    if format == "parquet":
        paths[1].write_bytes(paths[2].read_bytes())  # 13 rows in place of 20
    paths[0].write_bytes(damage and paths[0].read_bytes()[:-7])
    encode(model, source, tmp_path / "out", shard_size=20, format=format, resume=True)
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("change", ["longer", "touched", "shorter"])
def test_a_file_that_is_changed_after_its_rows_were_counted_is_refused(model, source, tmp_path, monkeypatch, change):
    start = EncodeJob.open

    def start_and_change(*arguments):
        manifest = start(*arguments)
        if change == "touched":
            os.utime(source, ns=(0, 0))
        else:
            source.write_text("one more\n" + source.read_text() if change == "longer" else "a cat\n")
        return manifest

    monkeypatch.setattr(EncodeJob, "open", start_and_change)
    with pytest.raises(ValueError, match=r"texts\.txt: the file was changed while it was encoded"):
        encode(model, source, tmp_path / "out", shard_size=10)
    assert not list((tmp_path / "out").glob("vectors-*"))


def test_resuming_with_another_input_model_or_setting_is_refused(model, checkpoint, source, tmp_path):
    encode(model, source, tmp_path / "out", shard_size=20)
    other = SimCSE(checkpoint, device="cpu", pooler_type="cls_before_pooler")
    changed = SimCSE(checkpoint, device="cpu")
    with torch.no_grad():
        next(changed.model.parameters())[0, 0] += 1
    replaced = tmp_path / "replaced.txt"
    replaced.write_text(source.read_text().replace("cat", "dog"))
    for encoder, file, options, message in [
        (
            model,
            source,
            {"resume": False},
            "holds embeddings already: continue an interrupted run with resume",
        ),
        (model, source, {"shard_size": 10}, "settings shard_size: 20 there, 10 here"),
        (
            model,
            source,
            {"precision": "ubinary"},
            "settings precision: float32 there, ubinary here",
        ),
        (other, source, {}, "model pooler: avg there, cls_before_pooler here"),
        (changed, source, {}, "model weights"),
        (model, replaced, {}, "input blake2b"),
    ]:
        with pytest.raises(ValueError, match=message):
            encode(
                encoder,
                file,
                tmp_path / "out",
                **{"shard_size": 20, "resume": True} | options,
            )


def test_resuming_ignores_an_unused_random_head(save_checkpoint, tmp_path, source):
    checkpoint = save_checkpoint(BertModel(tiny_config("bert"), add_pooling_layer=False), "bare")
    for resume in (False, True):
        encode(
            SimCSE(checkpoint, pooler_type="avg", device="cpu"),
            source,
            tmp_path / "out",
            resume=resume,
        )


def test_a_folder_that_another_process_encodes_into_is_refused_and_left_alone(model, checkpoint, source, tmp_path):
    encode(model, source, tmp_path / "out", shard_size=20)
    before = contents(tmp_path / "out")
    words = f"--model {checkpoint} --input {source} --output {tmp_path / 'out'} --device cpu --quiet".split()
    with held_elsewhere(tmp_path / "out") as child:
        for option in ("--overwrite", "--resume"):
            with pytest.raises(ValueError, match=f"process {child} on .* is writing there"):
                encode_main([*words, option])
        assert contents(tmp_path / "out") == before


def test_two_processes_write_the_same_shards_as_one(checkpoint, source, tmp_path):
    command = f"--model {checkpoint} --input {source} --shard_size 10 --precision int8 --device cpu --output".split()
    launch(encode_main, [*command, str(tmp_path / "two")])
    encode_main([*command, str(tmp_path / "one")])
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


# --- other people's files and damage -----------------------------------------------------------------------------

MANIFEST = {
    "input": {"rows": 5, "file": "a.txt"},
    "model": {},
    "settings": {"shard_size": 3, "format": "npy", "precision": "float32"},
}


@pytest.fixture
def folder(tmp_path):
    """An array of 5 vectors."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "_manifest.json").write_text(json.dumps(MANIFEST))
    np.save(folder / "vectors.npy", np.ones((5, 4), dtype=np.float32))
    return folder


def test_shards_in_parquet_are_a_data_set_for_other_programs(model, tmp_path):
    source, texts = tmp_path / "texts.txt", ["the cat", "a dog", "red house"]
    source.write_text("the cat\n\na dog\nred house\n")
    encode(model, source, tmp_path / "out", shard_size=2, format="parquet")
    vectors = np.concatenate(list(read_shards(tmp_path / "out")))
    np.testing.assert_allclose(vectors, model.encode(texts, convert_to_numpy=True), atol=1e-6)
    loaded = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    for table in (pq.read_table(tmp_path / "out"), loaded.with_format("arrow")[:]):
        assert table["vector"].to_pylist() == vectors.tolist()
        assert table["row"].to_pylist() == [1, 3, 4] and table["text"].to_pylist() == texts


def test_a_resumed_run_and_overwriting_remove_their_own_files_only(model, source, tmp_path):
    encode(model, source, tmp_path / "out")
    path = tmp_path / "out/vectors.npy"
    leftover = path.with_name(f".{path.name}.77.partial")
    mine = [
        "film.partial",
        ".draft.77.partial",
        "vectors-of-mine.npy",
        "vectors-00000-of-00009.npy",
    ]
    for name in (leftover.name, *mine):
        path.with_name(name).write_text("half")
    encode(model, source, tmp_path / "out", resume=True)
    assert not leftover.exists()
    for _ in range(2):
        remove_run(tmp_path / "out")
        assert {path.name for path in path.parent.iterdir()} - {"_run.lock"} == set(mine)


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"[]",
            b"null",
            b"\xff\xfe",
            b'{"a":' * 5000,
            b'{"manifest_version": 3}',
        ),
        *(
            {"input": None},
            {"input": {}},
            {"input": {"rows": 10**15}},
            {"input": {"rows": 0}},
        ),
        *({"input": {"rows": True}}, {"input": {"rows": "9"}}, {"settings": {}}),
        {"settings": MANIFEST["settings"] | {"shard_size": True}},
        *(
            {"settings": {"shard_size": size, "format": kind, "precision": precision}}
            for size, kind, precision in (
                (-1, "npy", "float32"),
                (3, "../../x", "float32"),
                (3, "npy", None),
            )
        ),
    ],
    ids=str,
)
def test_a_damaged_manifest_is_one_message_and_never_a_long_loop(folder, model, source, content):
    written = content if isinstance(content, bytes) else json.dumps(MANIFEST | content).encode()
    (folder / "_manifest.json").write_bytes(written)
    before = contents(folder)
    calls = (read_manifest, lambda path: next(read_shards(path)), remove_run)
    for call in (*calls, lambda path: encode(model, source, path, resume=True)):
        with pytest.raises(ValueError, match=r"manifest\.json: (damaged|not a JSON)"):
            call(folder)
    assert contents(folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',"),
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"(5, 4)", b"(9999999999, 4)")),
        lambda path: np.save(path, np.ones((2, 4), dtype=np.float32)),
        lambda path: np.save(path, np.ones((5, 0), dtype=np.float32)),
        lambda path: np.save(path, np.ones(5, dtype=np.float32)),
        lambda path: np.savez(path.open("wb"), vectors=np.ones((5, 4), dtype=np.float32)),
    ],
)
def test_a_damaged_array_is_named(folder, damage):
    damage(folder / "vectors.npy")
    with pytest.raises(ValueError, match="vectors.npy: damaged"):
        list(read_shards(folder))


@pytest.mark.parametrize(
    "table",
    [
        None,
        pa.table({"text": ["a", "b", "c"]}),
        pa.table({"vector": [[1.0], [1.0, 2.0], []]}),
        pa.table({"vector": pa.array([None] * 3, pa.list_(pa.float32(), 4))}),
    ],
)
def test_a_parquet_shard_without_vectors_is_named(folder, table):
    settings = MANIFEST["settings"] | {"format": "parquet"}
    (folder / "_manifest.json").write_text(json.dumps(MANIFEST | {"settings": settings}))
    with pytest.raises(ValueError, match="vectors-00000-of-00002.parquet is missing"):
        list(read_shards(folder))
    path = folder / "vectors-00000-of-00002.parquet"
    path.write_bytes(b"PAR1") if table is None else pq.write_table(table, path)
    with pytest.raises(ValueError, match="vectors-00000-of-00002.parquet: damaged"):
        list(read_shards(folder))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no array"])
def test_damaged_ranges_are_named(tmp_path, content):
    (tmp_path / "ranges.npz").write_bytes(content)
    (tmp_path / "x.txt").write_text("A text.\n")
    words = [
        "--model",
        "nowhere",
        "--input",
        str(tmp_path / "x.txt"),
        "--output",
        "y",
        "--precision",
        "int8",
    ]
    with pytest.raises(ValueError, match=r"ranges .*ranges\.npz: not a readable npy file"):
        encode_main([*words, "--ranges", str(tmp_path / "ranges.npz")])
