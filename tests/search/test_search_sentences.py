"""An index of sentences: what a search returns, what a folder keeps, and which models and folders are refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import WORDS, tiny_config

from simcse_hf.cli.search import index_main, search_main
from simcse_hf.inference.shards import encode_file, read_shards
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.models.auto import contrastive_class
from simcse_hf.search import SentenceIndex, describe


def make_sentences(count, seed=0):
    words = [word for word in WORDS.split() if word.isalpha()]
    generator = np.random.default_rng(seed)
    results = {}
    while len(results) < count:
        results[" ".join(generator.choice(words, generator.integers(2, 9)))] = None
    return list(results)


SENTENCES = make_sentences(80)


@pytest.fixture
def checkpoint(save_checkpoint):
    torch.manual_seed(1)
    config = tiny_config("bert")
    return save_checkpoint(contrastive_class(type(config))(config, pooler_type="avg"))


@pytest.fixture
def model(checkpoint):
    return SimCSE(checkpoint, device="cpu")


def by_hand(model, sentences, query, top_k=5, threshold=-2):
    scores = model.encode(sentences).double() @ model.encode(query).double()
    order = sorted(range(len(sentences)), key=lambda i: -scores[i])
    return [(sentences[i], scores[i].item()) for i in order if scores[i] >= threshold][:top_k]


def assert_same(results, expected):
    assert [sentence for sentence, _ in results] == [sentence for sentence, _ in expected]
    np.testing.assert_allclose([score for _, score in results], [score for _, score in expected], atol=1e-5)


def needs(backend):
    if backend in ("flat", "ivf", "hnsw"):
        pytest.importorskip("faiss", reason="the extra `faiss` is not installed")
    if backend == "qdrant":
        pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")


ALL = pytest.mark.parametrize("backend", ["exact", "flat", "ivf", "hnsw", "qdrant"])
PROBES = {"ivf": {"cells": 2, "probes": 2}}

# --- searching ---------------------------------------------------------------------------------------------------


@ALL
def test_finds_the_most_similar_sentences_in_descending_order(model, backend):
    needs(backend)
    index = SentenceIndex.build(model, SENTENCES, backend=backend, **PROBES.get(backend, {}))
    for query in ("the cat sat", SENTENCES[11]):
        assert_same(index.search(query, threshold=None), by_hand(model, SENTENCES, query, threshold=-2))
    index.close()


@ALL
def test_top_k_and_threshold_hold_for_one_query_and_for_several(model, backend):
    """The reference's tool ignores both arguments for a list of queries."""
    needs(backend)
    index = SentenceIndex.build(model, SENTENCES, backend=backend, **PROBES.get(backend, {}))
    queries = ["the cat sat", "a red house", "dog"]
    scores = [score for _, score in by_hand(model, SENTENCES, queries[0], 80, -2)]
    threshold = (scores[1] + scores[2]) / 2
    for top_k, least in ((1, -1), (3, -1), (80, threshold), (1, threshold), (500, None)):
        expected = [by_hand(model, SENTENCES, query, top_k, -2 if least is None else least) for query in queries]
        several = index.search(queries, top_k=top_k, threshold=least)
        assert len(several) == 3
        for query, results, wanted in zip(queries, several, expected, strict=True):
            assert_same(results, wanted)
            assert_same(index.search(query, top_k=top_k, threshold=least), wanted)
    assert len(index.search(queries[0], top_k=80, threshold=threshold)) == 2
    index.close()


def test_embeddings_that_are_not_finite_are_refused(model):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    vectors[3, 0] = np.nan
    with pytest.raises(ValueError, match="sentence 3 of the index has an embedding that is not finite"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors])
    with pytest.raises(ValueError, match="query 0 has an embedding that is not finite"):
        SentenceIndex.build(model, SENTENCES).search(vectors[3])


def test_scores_are_python_floats_and_results_plain_pairs(model):
    index = SentenceIndex.build(model, SENTENCES)
    (results,) = index.search(["the cat"], threshold=None)
    assert all(type(pair) is tuple and type(pair[0]) is str and type(pair[1]) is float for pair in results)
    json.dumps(results)


def test_by_default_the_best_five_are_returned_whatever_their_score(model):
    index = SentenceIndex.build(model, SENTENCES)
    assert index.search("the cat") == index.search("the cat", top_k=5, threshold=None)
    opposite = -model.encode("the cat")
    assert len(index.search(opposite)) == 5 and index.search(opposite)[0][1] < 0.5


def test_a_threshold_that_nothing_reaches_gives_an_empty_list_and_names_the_best_score(model, caplog):
    index = SentenceIndex.build(model, SENTENCES)
    best = index.search("the cat sat", top_k=1)[0][1]
    assert best < 0.99999
    assert index.search("the cat sat", threshold=1.0) == []
    assert (
        f"1 of 1 queries found no sentence with a cosine of at least 1.0: their best score is {best:.4f}"
        in caplog.text
    )
    assert index.search(["the cat sat", SENTENCES[0]], threshold=0.99999)[0] == []
    assert "1 of 2 queries" in caplog.text
    assert index.search([]) == []


@pytest.mark.parametrize("threshold", [5, -1.5, float("nan")])
def test_a_threshold_that_is_not_a_cosine_is_refused(threshold, model):
    with pytest.raises(ValueError, match="threshold must be a cosine, between -1 and 1"):
        SentenceIndex.build(model, SENTENCES).search("the cat", threshold=threshold)


@pytest.mark.parametrize("container", ["numpy", "tensor"])
def test_embeddings_of_any_length_can_be_queries(model, container):
    index = SentenceIndex.build(model, SENTENCES)
    vectors = model.encode(
        ["the cat", "dog"], normalize_embeddings=False, convert_to_numpy=container == "numpy" or None
    )
    kept = vectors.clone() if container == "tensor" else vectors.copy()
    expected = index.search(["the cat", "dog"])
    for results, wanted in zip(index.search(vectors), expected, strict=True):
        assert_same(results, wanted)
    assert_same(index.search(vectors[0]), expected[0])
    assert (vectors == kept).all()


def test_the_callers_list_is_not_changed(model):
    """The reference's add_to_index changes the list that was passed to build_index."""
    first, second = SENTENCES[:10], SENTENCES[10:20]
    index = SentenceIndex.build(model, first)
    index.add(second)
    assert first == SENTENCES[:10] and second == SENTENCES[10:20] and len(index) == 20
    first[0] = "changed"
    assert index.search(SENTENCES[0], top_k=1)[0][0] == SENTENCES[0]


def test_truncated_embeddings_are_searched_with_truncated_queries(model, tmp_path):
    index = SentenceIndex.build(model, SENTENCES, truncate_dim=8)
    vectors = model.encode(SENTENCES, truncate_dim=8).double()
    scores = vectors @ model.encode("the cat", truncate_dim=8).double()
    best = index.search("the cat", top_k=1, threshold=None)[0]
    assert best[0] == SENTENCES[scores.argmax()] and best[1] == pytest.approx(scores.max().item(), abs=1e-5)
    index.save(tmp_path / "index")
    assert SentenceIndex.load(tmp_path / "index", model).search("the cat", top_k=1, threshold=None) == [best]


@pytest.mark.parametrize("text", ["", "   ", "\x00", "cat \U0001f600 猫 кот", "the cat " * 12_500])
def test_any_text_can_be_indexed_and_found(model, text, tmp_path):
    index = SentenceIndex.build(model, [text, *SENTENCES[:5]])
    index.save(tmp_path / "index")
    results = SentenceIndex.load(tmp_path / "index", model).search(text, top_k=6, threshold=0.999)
    assert text in [sentence for sentence, _ in results]


# --- files and folders -------------------------------------------------------------------------------------------


def test_a_file_gives_the_same_index_as_a_list(model, tmp_path, monkeypatch):
    import simcse_hf.search.sentences as module

    monkeypatch.setattr(module, "_WINDOW", 9)  # several windows
    text, table = tmp_path / "s.txt", tmp_path / "s.parquet"
    text.write_text("\n\n".join(SENTENCES) + "\n")
    pq.write_table(pa.table({"n": range(80), "said": SENTENCES}), table)
    expected = SentenceIndex.build(model, SENTENCES).search("the cat", top_k=80, threshold=None)
    assert_same(SentenceIndex.build(model, str(text)).search("the cat", top_k=80, threshold=None), expected)
    index = SentenceIndex.build(model, SENTENCES[:40])
    index.add(SENTENCES[40:])
    assert_same(index.search("the cat", top_k=80, threshold=None), expected)
    assert_same(SentenceIndex.build(model, table, column="said").search("the cat", top_k=80, threshold=None), expected)


@ALL
def test_a_loaded_index_gives_the_same_results_and_can_grow(model, backend, tmp_path):
    needs(backend)
    index = SentenceIndex.build(model, SENTENCES[:50], backend=backend, **PROBES.get(backend, {}))
    index.save(tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index", model)
    queries = ["the cat", "a red house"]
    assert loaded.search(queries, threshold=None) == index.search(queries, threshold=None)
    loaded.add(SENTENCES[50:])
    for query in queries:
        assert_same(loaded.search(query, threshold=None), by_hand(model, SENTENCES, query, threshold=-2))
    assert len(loaded) == 80
    loaded.save(tmp_path / "index")  # over the files that it is mapped from
    again = SentenceIndex.load(tmp_path / "index", model)
    assert len(again) == 80
    for query in queries:  # products round by where vectors lie in memory
        assert_same(again.search(query, threshold=None), loaded.search(query, threshold=None))
    assert sorted(path.name for path in tmp_path.iterdir() if "index" in path.name) == ["index"]


def test_embeddings_that_were_computed_before_are_used(model, tmp_path, monkeypatch):
    source = tmp_path / "s.txt"
    source.write_text("\n".join(SENTENCES))
    encode_file(model, source, tmp_path / "vectors", shard_size=30)
    expected = SentenceIndex.build(model, source).search("the cat", threshold=None)
    encoded = []
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda texts, **kw: (encoded.append(len(texts)), encode(texts, **kw))[1])
    index = SentenceIndex.build(model, source, vectors=read_shards(tmp_path / "vectors"))
    assert max(encoded) == 1
    assert_same(index.search("the cat", threshold=None), expected)


def test_embeddings_of_other_sentences_are_refused(model, checkpoint):
    vectors = model.encode(SENTENCES, convert_to_numpy=True)
    with pytest.raises(ValueError, match="more sentences than the 79 vectors"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[:40], vectors[40:79]])
    with pytest.raises(ValueError, match="more vectors than the 79 sentences"):
        SentenceIndex.build(model, SENTENCES[:79], vectors=[vectors])
    with pytest.raises(ValueError, match="float32 with 32 dimensions, got float32 of shape"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[:, :8]])
    with pytest.raises(ValueError, match="not this model's"):
        SentenceIndex.build(model, SENTENCES, vectors=[vectors[::-1]])


# --- refused -----------------------------------------------------------------------------------------------------


def test_an_index_of_another_model_pooler_or_dimension_is_refused(model, checkpoint, save_checkpoint, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    described = describe(tmp_path / "index")
    assert (described["model"], described["pooler"], described["dim"]) == (str(checkpoint), "avg", 32)

    config = tiny_config("bert")
    other = save_checkpoint(contrastive_class(type(config))(config, pooler_type="avg"), "other")
    with pytest.raises(ValueError, match="other' is another model: their embeddings of a sentence have cosine"):
        SentenceIndex.load(tmp_path / "index", SimCSE(other, device="cpu"))
    with pytest.raises(ValueError, match="pooler_type 'avg', but this model has pooler_type 'cls_before_pooler'"):
        SentenceIndex.load(tmp_path / "index", SimCSE(checkpoint, pooler_type="cls_before_pooler", device="cpu"))
    config = tiny_config("bert", hidden_size=64)
    wider = save_checkpoint(contrastive_class(type(config))(config, pooler_type="avg"), "wider")
    with pytest.raises(ValueError, match="gives 32 dimensions; this model gives 64"):
        SentenceIndex.load(tmp_path / "index", SimCSE(wider, device="cpu"))
    with pytest.raises(ValueError, match="queries have 64 dimensions, the index has 32"):
        SentenceIndex.load(tmp_path / "index", model).search(np.zeros((1, 64), dtype=np.float32))


def test_the_same_model_at_another_path_or_in_bfloat16_is_accepted(model, checkpoint, tmp_path):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    moved = shutil.copytree(checkpoint, tmp_path / "moved")
    SentenceIndex.load(tmp_path / "index", SimCSE(moved, device="cpu"))
    SentenceIndex.load(tmp_path / "index", SimCSE(checkpoint, device="cpu", dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["index.json", "sentences.arrow", "vectors.npy"])
def test_a_damaged_file_of_an_index_is_named(model, tmp_path, name):
    SentenceIndex.build(model, SENTENCES).save(tmp_path / "index")
    (path,) = (tmp_path / "index").rglob(name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{name}.*(damaged|not)"):
        SentenceIndex.load(tmp_path / "index", model)
    path.write_bytes(b"\0" * len(whole))
    with pytest.raises(ValueError, match=rf"{name}.*damaged"):
        SentenceIndex.load(tmp_path / "index", model)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{name}"):
        SentenceIndex.load(tmp_path / "index", model)


def test_a_folder_without_an_index_is_neither_read_nor_replaced(model, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    index = SentenceIndex.build(model, SENTENCES)
    with pytest.raises(ValueError, match="holds something else than an index"):
        index.save(tmp_path / "mine")
    with pytest.raises(ValueError, match="not a folder that an index was saved in"):
        SentenceIndex.load(tmp_path / "mine", model)
    with pytest.raises(ValueError, match="not a folder that an index was saved in"):
        describe(tmp_path / "mine" / "letter.txt")


def test_a_full_disk_leaves_the_old_index_intact(model, tmp_path, monkeypatch):
    index = SentenceIndex.build(model, SENTENCES[:40])
    index.save(tmp_path / "index")
    index.add(SENTENCES[40:])

    def full(folder):
        (folder / "vectors.npy").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index.vectors, "save", full)
    with pytest.raises(ValueError, match="cannot write the index to .*No space left on device"):
        index.save(tmp_path / "index")
    assert len(SentenceIndex.load(tmp_path / "index", model)) == 40
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_index_that_cannot_be_replaced_stays_intact(model, tmp_path, monkeypatch):
    index = SentenceIndex.build(model, SENTENCES[:40])
    index.save(tmp_path / "index")
    index.add(SENTENCES[40:])
    replace = os.replace

    def refuse(source, target):
        if Path(target).name == "index.json":
            raise OSError(5, "Input/output error")
        return replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ValueError, match="cannot write the index to .*Input/output error"):
        index.save(tmp_path / "index")
    monkeypatch.undo()
    assert len(SentenceIndex.load(tmp_path / "index", model)) == 40


@pytest.mark.parametrize(
    "sentences, options, message",
    [
        ([], {}, "there are no sentences"),
        (["the cat", None], {}, "sentence 1 is not a text but NoneType"),
        (
            ["the cat"],
            {"backend": "annoy"},
            "backend must be one of exact, flat, ivf, hnsw, ivf_disk, qdrant, pgvector",
        ),
        (["the cat"], {"ef_search": 5}, "'exact' has no option ef_search; its options: device"),
        (["the cat"], {"truncate_dim": 99}, "truncate_dim must be between"),
        ("nowhere.txt", {}, "nowhere.txt: no such file"),
        ("a sentence, not a path", {}, "no such file"),
    ],
)
def test_invalid_sentences_and_options_are_named(model, sentences, options, message):
    with pytest.raises(ValueError, match=message):
        SentenceIndex.build(model, sentences, **options)


def test_invalid_queries_are_named(model):
    index = SentenceIndex.build(model, SENTENCES)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        index.search("the cat", top_k=0)
    with pytest.raises(ValueError, match="sentence 1 is not a text but NoneType"):
        index.search(["the cat", None])


# --- the model's own methods, and the commands -------------------------------------------------------------------


def test_the_model_builds_saves_loads_and_searches(model, checkpoint, tmp_path):
    with pytest.raises(ValueError, match="call build_index or load_index first"):
        model.search("the cat")
    model.build_index(SENTENCES[:50])
    model.add_to_index(SENTENCES[50:])
    assert_same(model.search("the cat"), by_hand(model, SENTENCES, "the cat"))
    model.save_index(tmp_path / "index")
    other = SimCSE(checkpoint, device="cpu")
    other.load_index(tmp_path / "index")
    assert other.search(["the cat"], top_k=2) == model.search(["the cat"], top_k=2)


def test_the_commands_index_add_to_and_search_a_folder(model, checkpoint, tmp_path, capsys, monkeypatch):
    first, second = tmp_path / "a.txt", tmp_path / "b.csv"
    first.write_text("\n".join(SENTENCES[:50]))
    second.write_text("said,n\n" + "".join(f"{sentence},1\n" for sentence in SENTENCES[50:]))
    folder = str(tmp_path / "index")
    assert index_main(["--model", str(checkpoint), "--input", str(first), "--output", folder]) == 0
    assert index_main(["--add", "--input", str(second), "--column", "said", "--output", folder]) == 0
    assert "80 sentences" in capsys.readouterr().out
    assert search_main(["--index", folder, "--top_k", "2", "--threshold", "-1", "--json", "the cat", "dog"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["query"] for line in lines] == ["the cat", "dog"]
    for line in lines:
        results = [(result["sentence"], result["score"]) for result in line["results"]]
        assert_same(results, by_hand(model, SENTENCES, line["query"], 2, -1))
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO("the cat\n\n"))
    assert search_main(["--index", folder, "--top_k", "1", "--threshold", "-1"]) == 0
    out = capsys.readouterr().out
    best, score = by_hand(model, SENTENCES, "the cat", 1, -1)[0]
    assert out == f"the cat\n  {score:.4f}  {best}\n\n"


def test_an_index_names_its_local_model_by_an_absolute_path(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    model = SimCSE(checkpoint.name, device="cpu")
    assert model.name_or_path == checkpoint.name
    SentenceIndex.build(model, SENTENCES[:3]).save(tmp_path / "index")
    assert describe(tmp_path / "index")["model"] == str(checkpoint)


def test_the_commands_open_an_index_on_a_server_with_url_only(model, checkpoint, tmp_path, capsys, monkeypatch):
    qdrant_client = pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    store = qdrant_client.QdrantClient(":memory:")
    monkeypatch.setattr(qdrant_client, "QdrantClient", lambda *_, **__: store)
    monkeypatch.setattr(store, "close", lambda: None)
    texts, folder, url = tmp_path / "t.txt", str(tmp_path / "index"), "https://qdrant.example:6333"
    texts.write_text("\n".join(SENTENCES[:5]))
    common = ["--input", str(texts), "--output", folder]
    index_main([*common, "--model", str(checkpoint), "--backend", "qdrant", "--url", url])
    for main, words in ((index_main, [*common, "--add"]), (search_main, ["--index", folder, "the cat"])):
        with pytest.raises(ValueError, match=f"--url {url}"):
            main(words)
        assert main([*words, "--url", url]) == 0
    assert "10 sentences in the index" in capsys.readouterr().out


def test_the_index_command_takes_the_folder_that_encode_wrote(model, checkpoint, tmp_path, capsys):
    source = tmp_path / "s.txt"
    source.write_text("\n".join(SENTENCES))
    encode_file(model, source, tmp_path / "vectors", shard_size=30, file_format="parquet")
    common = ["--model", str(checkpoint), "--input", str(source), "--output", str(tmp_path / "index")]
    index_main([*common, "--vectors", str(tmp_path / "vectors")])
    assert_same(SentenceIndex.load(tmp_path / "index", model).search("the cat"), by_hand(model, SENTENCES, "the cat"))
    encode_file(model, source, tmp_path / "codes", precision="ubinary")
    with pytest.raises(ValueError, match="holds ubinary codes"):
        index_main([*common, "--overwrite", "--vectors", str(tmp_path / "codes")])


@pytest.mark.parametrize(
    "words", [["--input", "x.txt", "--output", "y"], ["--add", "--cells", "3", "--input", "x", "--output", "y"]]
)
def test_invalid_command_lines_are_refused(words):
    with pytest.raises(SystemExit, match="2"):
        index_main(words)
