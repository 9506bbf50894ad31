"""Encoding files: complete shards in order, after any interruption; quantization and truncation as documented."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import WORDS, tiny_config

from simcse_hf.cli.encode import encode_main
from simcse_hf.data.read import placed_texts, stream_texts
from simcse_hf.inference import encoding, shard_rows, shards
from simcse_hf.inference.quantization import calibrate_ranges, dequantize_int8, quantize
from simcse_hf.inference.shards import encode_file, read_manifest, read_shards, shard_paths
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.models.auto import contrastive_class


def make_texts(count, seed=0):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(words, generator.integers(1, 12))) for _ in range(count)]


@pytest.fixture
def checkpoint(save_checkpoint):
    config = tiny_config("bert")
    return save_checkpoint(contrastive_class(type(config))(config, pooler_type="avg"))


@pytest.fixture
def model(checkpoint):
    return SimCSE(checkpoint, device="cpu")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(make_texts(53)) + "\n", encoding="utf-8")
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


# --- shards ------------------------------------------------------------------------------------------------------


def test_shards_hold_the_embeddings_in_the_order_of_the_texts(model, source, tmp_path):
    paths = encode_file(model, source, tmp_path / "out", shard_size=20)
    assert [path.name for path in paths] == [f"vectors-0000{i}-of-00003.npy" for i in range(3)]
    assert [len(np.load(path)) for path in paths] == [20, 20, 13]
    expected = model.encode(make_texts(53), convert_to_numpy=True)
    np.testing.assert_allclose(np.concatenate(list(read_shards(tmp_path / "out"))), expected, atol=1e-6)


def test_a_shard_longer_than_the_window_is_complete(model, source, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "default_window", lambda device: 7)
    encode_file(model, source, tmp_path / "out", shard_size=50)
    expected = model.encode(make_texts(53), convert_to_numpy=True)
    np.testing.assert_allclose(np.concatenate(list(read_shards(tmp_path / "out"))), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.jsonl", "t.txt.gz"])
def test_every_file_format_gives_the_same_embeddings(model, source, tmp_path, name):
    texts = make_texts(53)
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(pa.table({"id": range(53), "said": texts}), path)
    else:
        lines = {
            "csv": ["id,said", *(f'{i},"{text}"' for i, text in enumerate(texts))],
            "jsonl": [json.dumps({"id": i, "said": text}) for i, text in enumerate(texts)],
            "txt": texts,
        }[name.split(".")[1]]
        data = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    column = None if "txt" in name else "said"
    encode_file(model, path, tmp_path / "out", column=column, shard_size=30)
    encode_file(model, source, tmp_path / "reference", shard_size=30)
    for ours, reference in zip(shard_paths(tmp_path / "out"), shard_paths(tmp_path / "reference"), strict=True):
        assert ours.read_bytes() == reference.read_bytes()


def test_parquet_shards_name_the_row_and_the_text_of_each_embedding(model, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("the cat\n\na dog\nred house\n")
    encode_file(model, source, tmp_path / "out", shard_size=2, file_format="parquet")
    table = pa.concat_tables(pq.read_table(path) for path in shard_paths(tmp_path / "out"))
    assert table["row"].to_pylist() == [1, 3, 4]
    assert table["text"].to_pylist() == ["the cat", "a dog", "red house"]
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(
        vectors, model.encode(["the cat", "a dog", "red house"], convert_to_numpy=True), atol=1e-6
    )
    np.testing.assert_array_equal(np.concatenate(list(read_shards(tmp_path / "out"))), vectors)


def test_an_empty_cell_of_a_table_keeps_its_row(model, tmp_path):
    source = tmp_path / "t.csv"
    source.write_text('text,n\nthe cat,1\n"",2\na dog,3\n')
    encode_file(model, source, tmp_path / "out")
    (vectors,) = read_shards(tmp_path / "out")
    np.testing.assert_allclose(vectors, model.encode(["the cat", "", "a dog"], convert_to_numpy=True), atol=1e-6)


def test_the_file_is_streamed_and_no_more_than_one_window_of_it_is_read_ahead(model, source, tmp_path, monkeypatch):
    read, seen = 0, []

    def counting(*arguments):
        nonlocal read
        for item in placed_texts(*arguments):
            read += 1
            yield item

    monkeypatch.setattr(shard_rows, "placed_texts", counting)
    start = encoding.start_encoding
    monkeypatch.setattr(
        encoding, "start_encoding", lambda *args, **kw: (time.sleep(0.05), seen.append(read), start(*args, **kw))[2]
    )
    encode_file(model, source, tmp_path / "out", shard_size=10)
    assert seen == [20, 30, 40, 50, 53, 53]  # at the time when windows of 10, 20, ... are encoded


# --- truncation and codes ----------------------------------------------------------------------------------------


def test_embeddings_are_normalized_after_truncation(model, source, tmp_path):
    encode_file(model, source, tmp_path / "out", truncate_dim=8)
    (vectors,) = read_shards(tmp_path / "out")
    full = model.encode(make_texts(53), normalize_embeddings=False, convert_to_numpy=True)[:, :8]
    np.testing.assert_allclose(vectors, full / np.linalg.norm(full, axis=1, keepdims=True), atol=1e-6)


def test_int8_uses_the_ranges_of_the_first_shard_for_all_shards(model, source, tmp_path):
    encode_file(model, source, tmp_path / "out", shard_size=20, precision="int8")
    vectors = model.encode(make_texts(53), convert_to_numpy=True)
    ranges = np.load(tmp_path / "out" / "ranges.npy")
    np.testing.assert_allclose(ranges, [vectors[:20].min(0), vectors[:20].max(0)], atol=1e-6)
    codes = np.concatenate(list(read_shards(tmp_path / "out")))
    assert codes.dtype == np.int8
    inside = np.clip(vectors, *ranges)
    steps = (ranges[1] - ranges[0]) / 255
    assert (np.abs(dequantize_int8(codes, ranges) - inside) <= steps / 2 + 1e-5).all()


@pytest.mark.parametrize("damage, message", [(None, "is missing"), (b"", "damaged"), (np.zeros((2, 3)), "damaged")])
def test_a_resumed_run_names_ranges_that_are_missing_or_damaged(model, source, tmp_path, damage, message):
    folder = tmp_path / "out"
    paths = encode_file(model, source, folder, shard_size=20, precision="int8")
    expected = [path.read_bytes() for path in paths]
    paths[1].unlink()
    if damage is None:
        (folder / "ranges.npy").unlink()
    elif isinstance(damage, bytes):
        (folder / "ranges.npy").write_bytes(damage)
    else:
        np.save(folder / "ranges.npy", damage)
    with pytest.raises(ValueError, match=rf"ranges\.npy.*{message}.*{paths[0].name}.*--resume"):
        encode_file(model, source, folder, shard_size=20, precision="int8", resume=True)
    paths[0].unlink()
    (folder / "ranges.npy").unlink(missing_ok=True)
    encode_file(model, source, folder, shard_size=20, precision="int8", resume=True)
    assert [path.read_bytes() for path in paths] == expected


def test_ranges_passed_by_the_caller_are_used(model, source, tmp_path):
    ranges = np.stack([np.full(32, -1.0), np.full(32, 1.0)]).astype(np.float32)
    encode_file(model, source, tmp_path / "out", shard_size=20, precision="int8", ranges=ranges)
    codes = np.concatenate(list(read_shards(tmp_path / "out")))
    expected = model.encode(make_texts(53), convert_to_numpy=True, precision="int8", ranges=ranges)
    assert np.abs(codes.astype(int) - expected).max() <= 1  # a rounding of the encoder may tip a code
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "ranges.npy"), ranges)


def test_int8_codes_are_linear_and_saturate():
    ranges = np.array([[-1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    values = np.array([[-1, 0], [1, 0], [0.5, 0], [7, 3], [-7, -3]], dtype=np.float32)
    codes = quantize(values, "int8", ranges)
    # (0.5 + 1) / (2 / 255) - 128 = 63.25; the second dimension is constant: one code, or the ends beyond it
    assert codes.tolist() == [[-128, -128], [127, -128], [63, -128], [127, -125], [-128, -128]]


def test_binary_codes_are_the_signs():
    values = np.array([[1, -1, 0, 2, -2, 3, -3, 4, -1, 5]], dtype=np.float32)
    assert quantize(values, "ubinary").tolist() == [[0b10010101, 0b01000000]]
    assert quantize(values, "binary").tolist() == [[0b10010101 - 128, 0b01000000 - 128]]
    assert quantize(values, "ubinary").dtype == np.uint8 and quantize(values, "binary").dtype == np.int8


def test_codes_equal_those_of_sentence_transformers():
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    quantize_embeddings = library.quantize_embeddings
    vectors = np.random.default_rng(0).standard_normal((500, 32)).astype(np.float32)
    ranges = calibrate_ranges(vectors)
    for precision in ("binary", "ubinary"):
        np.testing.assert_array_equal(quantize(vectors, precision), quantize_embeddings(vectors, precision))
    theirs = quantize_embeddings(vectors, "int8", ranges=ranges)
    difference = np.abs(quantize(vectors, "int8", ranges).astype(int) - theirs)
    assert difference.max() == 1  # they cut the fraction off, we round
    assert (difference == 0).mean() > 0.4


def test_encode_quantizes_one_text_and_several(model):
    bits = model.encode(["the cat", "a dog"], precision="ubinary")
    assert bits.dtype == torch.uint8 and bits.shape == (2, 4)
    assert torch.equal(model.encode("the cat", precision="ubinary"), bits[0])


def test_bf16_weights_give_float32_embeddings_close_to_those_of_float32(checkpoint, model):
    halved = SimCSE(checkpoint, device="cpu", dtype=torch.bfloat16).encode(make_texts(20))
    assert halved.dtype == torch.float32
    full = model.encode(make_texts(20))
    assert not torch.equal(halved, full)
    assert (halved * full).sum(-1).min() > 0.999


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"precision": "int4"}, "precision must be one of"),
        ({"precision": "int8"}, "int8 needs ranges"),
        ({"precision": "int8", "ranges": np.zeros((2, 3))}, r"ranges must be \(2, 32\)"),
        ({"truncate_dim": 33}, "between 1 and the model's 32"),
        ({"truncate_dim": 0}, "between 1 and the model's 32"),
    ],
)
def test_encode_refuses_invalid_precision_ranges_and_dimensions(model, settings, message):
    with pytest.raises(ValueError, match=message):
        model.encode(["the cat"], **settings)


def test_ranges_need_a_sample():
    with pytest.raises(ValueError, match="at least two"):
        calibrate_ranges(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="finite"):
        calibrate_ranges(np.full((3, 4), np.nan))


# --- interrupted runs --------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from simcse_hf.inference import shards
from simcse_hf.cli.encode import encode_main
write, count = shards.write_whole, 0
def write_and_die(path, content):
    global count
    if path.name.startswith("vectors-"):
        count += 1
        if count == {shard}:
            def half(stream):
                stream.write(b"half of a shard")
                stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return write(path, half)
    write(path, content)
shards.write_whole = write_and_die
encode_main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("file_format, precision", [("npy", "int8"), ("parquet", "float32")])
def test_a_resumed_run_writes_the_same_bytes_as_an_uninterrupted_run(
    checkpoint, source, tmp_path, monkeypatch, file_format, precision
):
    words = f"--model {checkpoint} --input {source} --shard_size 10 --format {file_format} --precision {precision}"
    command = [*words.split(), "--device", "cpu", "--output"]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED.format(shard=4), *command, str(tmp_path / "out")],
        env=environment,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    finished = [path for path in shard_paths(tmp_path / "out") if path.exists()]
    assert len(finished) == 3 and list((tmp_path / "out").glob("*.partial"))
    before = {path: path.stat().st_mtime_ns for path in finished}

    encoded = []
    tokenize = encoding.tokenize_texts
    monkeypatch.setattr(
        encoding, "tokenize_texts", lambda *arguments: (encoded.extend(arguments[1]), tokenize(*arguments))[1]
    )
    assert encode_main([*command, str(tmp_path / "out"), "--resume"]) == 0
    assert encoded == make_texts(53)[30:]
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    encode_main([*command, str(tmp_path / "whole")])
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_kill_at_any_time_leaves_only_complete_shards(checkpoint, tmp_path):
    source = tmp_path / "many.txt"
    source.write_text("\n".join(make_texts(6000)))
    command = f"--model {checkpoint} --input {source} --shard_size 200 --device cpu --output".split()
    program = "import sys; from simcse_hf.cli.encode import encode_main; encode_main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command, str(tmp_path / "out")], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("vectors-*.npy")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = [path for path in shard_paths(tmp_path / "out") if path.exists()]
    assert 0 < len(finished) < 30
    encode_main([*command, str(tmp_path / "out"), "--resume"])
    encode_main([*command, str(tmp_path / "whole")])
    ours, whole = (np.concatenate(list(read_shards(tmp_path / name))) for name in ("out", "whole"))
    np.testing.assert_allclose(ours, whole, atol=1e-6)


def test_resuming_with_another_input_model_or_setting_is_refused(model, checkpoint, source, tmp_path):
    encode_file(model, source, tmp_path / "out", shard_size=20)
    with pytest.raises(ValueError, match="holds a run already: continue it with --resume"):
        encode_file(model, source, tmp_path / "out", shard_size=20)
    with pytest.raises(ValueError, match="shard_size was 20 and is now 10"):
        encode_file(model, source, tmp_path / "out", shard_size=10, resume=True)
    with pytest.raises(ValueError, match="precision was 'float32' and is now 'ubinary'"):
        encode_file(model, source, tmp_path / "out", shard_size=20, precision="ubinary", resume=True)
    other = SimCSE(checkpoint, device="cpu", pooler_type="cls_before_pooler")
    with pytest.raises(ValueError, match="pooler was 'avg' and is now 'cls_before_pooler'"):
        encode_file(other, source, tmp_path / "out", shard_size=20, resume=True)
    with torch.no_grad():
        next(model.model.parameters())[0, 0] += 1
    with pytest.raises(ValueError, match="model weights"):
        encode_file(model, source, tmp_path / "out", shard_size=20, resume=True)
    model = SimCSE(checkpoint, device="cpu")
    source.write_text(source.read_text().replace("cat", "dog"))
    with pytest.raises(ValueError, match="input blake2b"):
        encode_file(model, source, tmp_path / "out", shard_size=20, resume=True)


def test_resuming_ignores_an_unused_random_head(save_checkpoint, tmp_path, source):
    from transformers import BertModel

    checkpoint = save_checkpoint(BertModel(tiny_config("bert"), add_pooling_layer=False), "bare")
    encode_file(SimCSE(checkpoint, pooler_type="avg", device="cpu"), source, tmp_path / "out", shard_size=20)
    encode_file(
        SimCSE(checkpoint, pooler_type="avg", device="cpu"), source, tmp_path / "out", shard_size=20, resume=True
    )


def test_resuming_a_finished_run_does_nothing(model, source, tmp_path, monkeypatch):
    encode_file(model, source, tmp_path / "out", shard_size=20)
    before = contents(tmp_path / "out")
    monkeypatch.setattr(encoding, "tokenize_texts", None)
    encode_file(model, source, tmp_path / "out", shard_size=20, resume=True)
    assert contents(tmp_path / "out") == before


def test_a_full_disk_gives_one_message_and_leaves_no_partial_shard(model, source, tmp_path, monkeypatch):
    save = np.save

    def full(stream, array):
        if len(array) == 13:
            stream.write(b"half")
            raise OSError(28, "No space left on device")
        save(stream, array)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(ValueError, match="vectors-00002.*No space left on device.*--resume"):
        encode_file(model, source, tmp_path / "out", shard_size=20)
    assert sorted(contents(tmp_path / "out")) == ["manifest.json", *(f"vectors-0000{i}-of-00003.npy" for i in (0, 1))]
    monkeypatch.setattr(np, "save", save)
    encode_file(model, source, tmp_path / "out", shard_size=20, resume=True)
    assert sum(map(len, read_shards(tmp_path / "out"))) == 53


def test_two_processes_write_the_same_shards_as_one(checkpoint, source, tmp_path):
    command = f"--model {checkpoint} --input {source} --shard_size 10 --precision int8 --output".split()
    program = tmp_path / "encode.py"
    program.write_text("import sys; from simcse_hf.cli.encode import encode_main; sys.exit(encode_main(sys.argv[1:]))")
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
    ]
    result = subprocess.run(
        [*launch, str(program), *command, str(tmp_path / "two"), "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        encode_main([*command, str(tmp_path / "one"), "--device", "cpu"])
    finally:
        torch.set_num_threads(threads)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert "53 texts in 6 shard(s)" in result.stdout and result.stdout.count("53 texts") == 1


# --- bad input ---------------------------------------------------------------------------------------------------


def test_an_invalid_cell_is_reported_before_anything_is_encoded(model, tmp_path, monkeypatch):
    source = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["the cat", "a dog", None]}), source)
    monkeypatch.setattr(model, "encode_windows", None)
    with pytest.raises(ValueError, match=r"t\.parquet, row 3, column 'text': expected a text, got None"):
        encode_file(model, source, tmp_path / "out", shard_size=1)


def test_an_ambiguous_column_has_to_be_named(tmp_path):
    source = tmp_path / "t.csv"
    source.write_text("question,answer\na,b\n")
    with pytest.raises(ValueError, match="which of the columns 'question', 'answer' holds the texts"):
        list(stream_texts(source))
    with pytest.raises(ValueError, match="no column 'c'; the columns are"):
        list(stream_texts(source, "c"))
    assert list(stream_texts(source, "answer")) == [(2, "b")]


def test_files_and_foreign_folders_are_not_written_to(model, source, tmp_path):
    with pytest.raises(ValueError, match="is a file"):
        encode_file(model, source, source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        encode_file(model, source, tmp_path / "full")
    with pytest.raises(ValueError, match="not a folder that"):
        list(read_shards(tmp_path / "full"))


@pytest.mark.parametrize("file_format", ["npy", "parquet"])
def test_missing_and_damaged_shards_are_named(model, source, tmp_path, file_format):
    paths = encode_file(model, source, tmp_path / "out", shard_size=20, file_format=file_format)
    paths[1].write_bytes(paths[1].read_bytes()[:50])
    with pytest.raises(ValueError, match="vectors-00001-of-00003.*damaged"):
        list(read_shards(tmp_path / "out"))
    paths[1].unlink()
    with pytest.raises(ValueError, match="is missing"):
        list(read_shards(tmp_path / "out"))
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="not readable as JSON"):
        read_manifest(tmp_path / "out")


def test_embeddings_that_are_not_finite_are_not_written(model, source, tmp_path):
    with torch.no_grad():
        model.model.base_model.embeddings.word_embeddings.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="line or row 1 has an embedding that is not finite"):
        encode_file(model, source, tmp_path / "out")


@pytest.mark.parametrize("text", ["", "   ", "\x00", "cat \U0001f600 猫 кот", "the cat " * 12_500, "\u200b"])
def test_any_text_has_an_embedding(model, text):
    vector = model.encode(text)
    assert vector.shape == (32,) and torch.isfinite(vector).all()


def test_none_is_refused_as_a_text(model):
    with pytest.raises(ValueError, match="sentence 1 is not a text but NoneType"):
        model.encode(["the cat", None])


def test_a_shard_whose_npy_header_is_cut_off_is_named(model, source, tmp_path):
    paths = encode_file(model, source, tmp_path / "out", shard_size=20)
    paths[1].write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',")
    with pytest.raises(ValueError, match=f"{paths[1].name}: damaged"):
        list(read_shards(tmp_path / "out"))
