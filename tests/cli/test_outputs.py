"""What commands write and print: prompts, thresholds, JSON, and what is never overwritten."""

import json

import numpy as np
import pytest
import torch
from conftest import tiny_config
from evaluation_helpers import write

from simcse_hf import SimCSE
from simcse_hf.cli.main import main
from simcse_hf.inference.shards import read_shards
from simcse_hf.models.auto import contrastive_class

SENTENCES = ["a cat sat on a mat", "the dog ran in the house", "a bird sang in the tree", "the big red house"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, tokenizer):
    """A folder with a model, texts and an index of them."""
    torch.manual_seed(1)
    base = tmp_path_factory.mktemp("outputs")
    config = tiny_config("bert")
    contrastive_class(type(config))(config, pooler_type="avg").save_pretrained(base / "model")
    tokenizer.save_pretrained(base / "model")
    write(base / "texts.txt", SENTENCES)
    assert main(_index(base, "index")) == 0
    return base


def _index(base, name, *options):
    words = ["--model", str(base / "model"), "--input", str(base / "texts.txt"), "--output", str(base / name)]
    return ["index", *words, "--device", "cpu", "--quiet", *options]


def _encode(base, name, *options):
    return ["encode", *_index(base, name, *options)[1:]]


def _search(base, name, capsys, *options):
    capsys.readouterr()
    assert main(["search", "--index", str(base / name), "--device", "cpu", "--json", "--quiet", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_threshold_that_hides_everything_names_the_best_score(base, capsys):
    (answer,) = _search(base, "index", capsys, "a cat")
    assert len(answer["results"]) == len(SENTENCES)
    (answer,) = _search(base, "index", capsys, "a cat", "--threshold", "1")
    assert answer["results"] == [] and 0 < answer["best_score"] < 1
    assert main(["search", "--index", str(base / "index"), "--device", "cpu", "a cat", "--threshold", "1"]) == 0
    assert f"no sentence reaches 1; the best one has {answer['best_score']:.4f}" in capsys.readouterr().out


def test_prompts_are_put_before_queries_and_documents(base, capsys):
    prompt = "the woman : "
    assert main(_index(base, "prompted", "--prompt", prompt)) == 0
    model = SimCSE(base / "model", device="cpu")
    query, documents = (model.encode(texts) for texts in ("the man a cat", [prompt + text for text in SENTENCES]))
    for options, embedding in (((), model.encode("a cat")), (("--prompt", "the man "), query)):
        (answer,) = _search(base, "prompted", capsys, "a cat", *options)
        scores = {result["sentence"]: result["score"] for result in answer["results"]}
        expected = dict(zip(SENTENCES, (documents @ embedding).tolist(), strict=True))
        assert scores == pytest.approx(expected, abs=1e-5)


def test_encode_puts_the_prompt_before_each_text(base):
    assert main(_encode(base, "prompted-vectors", "--prompt", "the man ")) == 0
    expected = SimCSE(base / "model", device="cpu").encode([f"the man {text}" for text in SENTENCES])
    np.testing.assert_allclose(np.concatenate(list(read_shards(base / "prompted-vectors"))), expected, atol=1e-5)


def test_an_index_is_replaced_only_on_request(base, capsys):
    assert main(_index(base, "twice")) == 0
    before = (base / "twice" / "index.json").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(_index(base, "twice", "--truncate_dim", "8"))
    assert ended.value.code == 2 and "replace it with --overwrite" in capsys.readouterr().err
    assert (base / "twice" / "index.json").read_bytes() == before
    assert main(_index(base, "twice", "--truncate_dim", "8", "--overwrite")) == 0
    assert (base / "twice" / "index.json").read_bytes() != before


def test_shards_are_replaced_only_on_request(base, capsys):
    assert main(_encode(base, "shards", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == len(SENTENCES)
    assert main(_encode(base, "shards", "--truncate_dim", "8")) == 2
    assert next(read_shards(base / "shards")).shape[1] == 32
    assert main(_encode(base, "shards", "--truncate_dim", "8", "--overwrite")) == 0
    assert next(read_shards(base / "shards")).shape[1] == 8


def test_an_export_is_replaced_only_on_request_and_never_the_model_that_is_read(base, capsys):
    def export(output, *options):
        words = ["--to", "sentence-transformers", "--output", str(output), *options]
        return main(["export", str(base / "model"), "--pooler_type", "cls_before_pooler", *words])

    assert export(base / "export", "--json") == 0
    assert json.loads(capsys.readouterr().out)["pooler_type"] == "cls_before_pooler"
    assert export(base / "export") == 2 and export(base / "export", "--overwrite") == 0
    before = {path.name: path.read_bytes() for path in (base / "model").iterdir() if path.is_file()}
    assert export(base / "model", "--overwrite") == 2
    assert {path.name: path.read_bytes() for path in (base / "model").iterdir() if path.is_file()} == before


def test_an_evaluation_is_replaced_only_on_request(base, capsys):
    pairs = write(base / "pairs.tsv", [f"{n}\t{SENTENCES[n]}\t{SENTENCES[n - 1]}" for n in range(4)])
    words = ["evaluate", "--model", str(base / "model"), "--pairs", str(pairs), "--device", "cpu"]
    words += ["--output", str(base / "evaluation.json"), "--quiet"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["pairs"]["pairs"] == 4
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and "replace it with --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_a_push_without_an_owner_is_refused_before_anything_is_uploaded(base, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["push", str(base / "model"), "my-model"])
    assert ended.value.code == 2
    assert "'my-model' names no owner: give OWNER/NAME, such as your-name/my-model" in capsys.readouterr().err
    assert not (base / "model" / "README.md").exists()
