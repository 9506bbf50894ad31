"""Encoding files: complete shards in order, after any interruption; quantization and truncation as documented."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from card_helpers import written
from cli_helpers import encode_main
from conftest import tiny_config
from datasets import load_dataset
from encoding_helpers import perturb, random_texts
from evaluation_helpers import write
from process_helpers import held_elsewhere, launch
from sentence_transformers import quantize_embeddings
from trainer_helpers import files_of, refuses

from simcse_hf import BertForCL, SimCSE
from simcse_hf.encoding.files import EncodeJob, Shard, encode, read_manifest, read_shards
from simcse_hf.encoding.quantization import calibrate_ranges, quantize
from simcse_hf.runtime import files
from simcse_hf.runtime.files import HOLDER, entries


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "texts.txt", random_texts(53))


@pytest.fixture
def run(model, source, tmp_path):
    """`run(...)` encodes the file into the folder `out` of the test, in shards of 20 texts."""
    return partial(encode, model, source, tmp_path / "out", shard_size=20)


def vectors_in(folder):
    """The vectors of all the shards in a folder."""
    return np.concatenate(list(read_shards(folder)))


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncate_dim, format", [(None, "npy"), (8, "parquet")])
def test_shards_hold_the_embeddings_in_the_order_of_the_texts(truncate_dim, format, model, source, tmp_path, capfd):
    out = tmp_path / "out"
    shows_bar = format == "npy"
    options = {"shard_size": 20, "truncate_dim": truncate_dim, "show_progress_bar": shows_bar}
    result = encode(model, source, out, format=format, **options)
    assert ("Encoding" in capfd.readouterr().err) is shows_bar
    shards = [f"vectors-0000{i}-of-00003.parquet" for i in range(3)]
    assert result.shards == (["vectors.npy"] if format == "npy" else shards)
    assert str(result) == f"53 texts in {'1 file' if format == 'npy' else '3 files'} under {out}"
    assert {path.name for path in entries(out)} == {"_manifest.json", *result.shards}
    found = list(read_shards(out))
    assert [len(vectors) for vectors in found] == [20, 20, 13]
    full = model.encode(random_texts(53), normalize_embeddings=False, convert_to_numpy=True)[:, :truncate_dim]
    expected = full / np.linalg.norm(full, axis=1, keepdims=True)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-6)
    assert read_manifest(out)["model"]["name_or_path"] == Path(model.name_or_path).name, "without its folder"


def test_an_empty_cell_keeps_its_row(model, tmp_path):
    texts, path = ["", *random_texts(53)], tmp_path / "t.csv.gz"
    pd.DataFrame({"id": range(54), "said": texts}).to_csv(path, index=False)
    encode(model, path, tmp_path / "out", column="said", shard_size=30)
    expected = model.encode(texts, convert_to_numpy=True)
    np.testing.assert_allclose(vectors_in(tmp_path / "out"), expected, atol=1e-6)


def test_a_generator_of_texts_is_encoded_like_a_list(model, tmp_path):
    assert encode(model, iter(["a cat", "a dog"]), tmp_path / "out").texts == 2


# --- truncation and codes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, np.stack([np.full(32, -1.0), np.full(32, 1.0)]).astype(np.float32)])
def test_int8_uses_the_ranges_of_the_caller_or_of_the_first_texts_for_all_shards(model, run, tmp_path, given):
    run(precision="int8", ranges=given)
    vectors = model.encode(random_texts(53), convert_to_numpy=True)
    ranges = np.load(tmp_path / "out/_ranges.npy")
    expected = calibrate_ranges(vectors[:20]) if given is None else given
    np.testing.assert_allclose(ranges, expected, atol=1e-6)
    codes = vectors_in(tmp_path / "out")
    assert codes.dtype == np.int8
    assert np.abs(codes.astype(int) - quantize(vectors, "int8", ranges)).max() <= 1


def test_ranges_of_another_model_or_damaged_ones_are_refused_and_those_of_its_queries_are_not(
    model, source, tmp_path, save_checkpoint
):
    model.prompts["query"] = "the "
    ranges = tmp_path / "out/_ranges.npy"
    options = {"precision": "int8", "ranges": ranges}
    encode(model, source, tmp_path / "out", precision="int8")
    encode(model, source, tmp_path / "queries", prompt_name="query", **options)
    other = save_checkpoint(BertForCL(tiny_config(), pooler_type="avg"), "other")
    with refuses("_ranges.npy other weights"):
        encode(other, source, tmp_path / "other", **options)
    ranges.write_bytes(b"no array")
    with refuses("_ranges.npy: not a readable npy file"):
        encode(model, source, tmp_path / "other", **options)


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_a_resumed_run_writes_what_is_missing_or_damaged_again(run, tmp_path, format):
    folder = tmp_path / "out"
    options = {"precision": "int8", "format": format}
    names = run(**options).shards
    expected = files_of(folder)
    (folder / "_ranges.npy").unlink()
    damaged = folder / names[0]
    # The last shard has 13 rows in place of 20.
    for damage in (b"", expected[Path(names[0])][:-7], expected[Path(names[-1])][:-7]):
        damaged.write_bytes(damage)
        run(**options, resume=True)
        assert files_of(folder) == expected
    damaged.unlink()
    (folder / "_ranges.npy").write_bytes(b"")
    with refuses("ranges.npy: damaged"):
        run(**options, resume=True)


def test_int8_codes_are_linear_and_saturate():
    ranges = calibrate_ranges([[-1, 0], [1, 0]])
    values = np.array([[-1, 0], [1, 0], [0.5, 0], [7, 3], [-7, -3]], dtype=np.float32)
    first, constant = quantize(values, "int8", ranges).T.tolist()
    assert first == [-128, 127, 63, 127, -128]  # (0.5 + 1) / (2 / 255) - 128 = 63.25
    assert constant == [-128, -128, -128, -125, -128]  # one code, or what lies beyond it


def test_codes_equal_those_of_sentence_transformers():
    vectors = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    ranges = calibrate_ranges(vectors)
    for precision, largest in (("binary", 0), ("ubinary", 0), ("int8", 1)):  # they cut the fraction off, we round
        theirs = quantize_embeddings(vectors, precision, ranges=ranges)
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
    "format, name, written",
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
    with refuses("missing resume"):
        vectors_in(folder)
    write_shard, numbers = Shard.write, []
    monkeypatch.setattr(Shard, "write", lambda shard, *args: (numbers.append(shard.number), write_shard(shard, *args)))
    assert encode_main([*command, str(folder), "--format", format, "--resume"]) == 0
    assert numbers == [3, 4, 5][:written]
    encode_main([*command, str(tmp_path / "whole"), "--format", format])
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_a_file_that_is_changed_after_its_rows_were_counted_is_refused(run, source, tmp_path, monkeypatch):
    start = EncodeJob.open

    def start_and_change(*arguments):
        manifest = start(*arguments)
        os.utime(source, ns=(0, 0))
        return manifest

    monkeypatch.setattr(EncodeJob, "open", start_and_change)
    with refuses("texts.txt: the file was changed while it was encoded"):
        run()
    assert not list((tmp_path / "out").glob("vectors-*"))


def test_resuming_with_another_input_model_or_setting_is_refused(model, checkpoint, source, run, tmp_path):
    run()
    other = SimCSE(checkpoint, device="cpu", pooler_type="cls_before_pooler")
    changed = SimCSE(checkpoint, device="cpu")
    perturb(changed.model, 0.02)
    replaced = tmp_path / "replaced.txt"
    replaced.write_text(source.read_text().replace("cat", "dog"))
    for encoder, file, options, named in [
        (model, source, {"resume": False}, "resume"),
        (model, source, {"shard_size": 10}, "shard_size: 20 there, 10 here"),
        (other, source, {}, "pooler: avg there, cls_before_pooler here"),
        (changed, source, {}, "model weights"),
        (model, replaced, {}, "input blake2b"),
    ]:
        with refuses(named):
            encode(encoder, file, tmp_path / "out", **{"shard_size": 20, "resume": True} | options)


def test_a_folder_that_another_process_encodes_into_is_refused_and_left_alone(run, tmp_path):
    run()
    before = files_of(tmp_path / "out", HOLDER)
    with held_elsewhere(tmp_path / "out") as child:
        with refuses(f"process {child} is writing there"):
            run(overwrite=True)
        assert files_of(tmp_path / "out", HOLDER) == before


def test_two_processes_write_the_same_shards_as_one(checkpoint, source, tmp_path):
    command = f"--model {checkpoint} --input {source} --shard_size 10 --precision int8 --device cpu --output".split()
    launch(encode_main, [*command, str(tmp_path / "two")])
    encode_main([*command, str(tmp_path / "one")])
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


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
    written(folder / "_manifest.json", MANIFEST)
    np.save(folder / "vectors.npy", np.ones((5, 4), dtype=np.float32))
    return folder


def test_shards_in_parquet_are_a_data_set_for_other_programs(model, tmp_path):
    source, texts = tmp_path / "texts.txt", ["the cat", "a dog", "red house"]
    source.write_text("the cat\n\na dog\nred house\n")
    encode(model, source, tmp_path / "out", shard_size=2, format="parquet")
    vectors = vectors_in(tmp_path / "out")
    loaded = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    for table in (pq.read_table(tmp_path / "out"), loaded.with_format("arrow")[:]):
        assert table["vector"].to_pylist() == vectors.tolist()
        assert table["row"].to_pylist() == [1, 3, 4] and table["text"].to_pylist() == texts


def test_a_resumed_run_and_overwriting_remove_their_own_files_only(model, source, tmp_path):
    encode(model, source, tmp_path / "out")
    path = tmp_path / "out/vectors.npy"
    leftover = path.with_name(f".{path.name}.77.partial")
    mine = ["film.partial", ".draft.77.partial", "vectors-of-mine.npy", "vectors-00000-of-00009.npy"]
    for name in (leftover.name, *mine):
        path.with_name(name).write_text("half")
    encode(model, source, tmp_path / "out", resume=True)
    assert not leftover.exists()
    encode(model, source, tmp_path / "out", format="parquet", overwrite=True)
    own = {"_manifest.json", "_run.lock", "vectors-00000-of-00001.parquet"}
    assert {path.name for path in path.parent.iterdir()} - own == set(mine)


def with_settings(**settings):
    return MANIFEST | {"settings": MANIFEST["settings"] | settings}


def test_a_damaged_manifest_is_one_message_and_never_a_long_loop(folder, model, source):
    for content in (
        '{"a":' * 5000,
        json.dumps(MANIFEST | {"input": None}),
        json.dumps(MANIFEST | {"input": {"rows": 10**15}}),
        json.dumps(with_settings(format="../../x")),
    ):
        (folder / "_manifest.json").write_text(content)
        before = files_of(folder)
        for call in (lambda: next(read_shards(folder)), lambda: encode(model, source, folder, resume=True)):
            with refuses("manifest.json"):
                call()
        assert files_of(folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: np.save(path, np.ones((2, 4), dtype=np.float32)),
    ],
)
def test_a_damaged_array_is_named(folder, damage):
    damage(folder / "vectors.npy")
    with refuses("vectors.npy: damaged"):
        vectors_in(folder)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"vector": [[1.0], [1.0, 2.0], []]}),
        pa.table({"vector": pa.array([None] * 3, pa.list_(pa.float32(), 4))}),
    ],
)
def test_a_parquet_shard_without_vectors_is_named(folder, table):
    written(folder / "_manifest.json", with_settings(format="parquet"))
    path = folder / "vectors-00000-of-00002.parquet"
    pq.write_table(table, path)
    with refuses(f"{path.name}: damaged"):
        vectors_in(folder)
