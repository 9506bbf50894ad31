"""`check_server` compares a server's embeddings with those of its model, and says why they differ.

The server is a small one on loopback with OpenAI's interface, which encodes with whatever a test gives it.
"""

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from cli_helpers import status
from conftest import tiny_config

from simcse_hf import BertForCL, SimCSE, check_server
from simcse_hf.encoding.probes import SERVED

LENGTH = 30
POSITIONS = tiny_config().max_position_embeddings


class Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/embeddings with `encode(texts)`, or with `answer`, a status and a body, if it is set."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        code, body = self.server.answer or (200, None)
        if self.path != "/v1/embeddings":
            code, body = 404, {"detail": "Not Found"}
        if body is None:
            vectors = torch.as_tensor(self.server.encode(self.server.asked[-1]["input"])).tolist()
            body = {"object": "list", "data": [{"index": i, "embedding": each} for i, each in enumerate(vectors)]}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.url = f"http://127.0.0.1:{running.server_port}/v1"
        running.answer, running.asked = None, []
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def model(save_checkpoint):
    prompts = {"query": "the cat : ", "document": "a house : "}
    settings = {"pooler_type": "cls", "prompts": prompts, "max_length": LENGTH}
    return SimCSE(save_checkpoint(BertForCL(tiny_config(initializer_range=0.2), **settings), "my-model"))


@pytest.fixture
def check(model, server):
    """`check()` compares the server with the model."""
    return lambda: check_server(server.url, model=model)


def test_a_server_with_the_same_embeddings_of_whatever_length_agrees(model, server, check, capsys):
    server.encode = model.encode
    line = f"check-server {server.url}/ --model {model.name_or_path} --json --served_name mine"
    assert status(*line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["texts"] == 20 and found["cause"] == ""
    assert found["cosine"] == pytest.approx(1, abs=1e-6) and found["length"] == pytest.approx(1, abs=1e-6)
    assert server.asked[0]["model"] == "mine" and len(set(server.asked[0]["input"])) == 20
    assert check().exit_status == 0
    assert server.asked[1] == server.asked[0] | {"model": model.name_or_path}
    server.encode = lambda texts: 3 * model.encode(texts)
    found = check()
    assert found.exit_status == 0 and found.length == pytest.approx(3)
    assert "lengths: 3.000 times the model's" in str(found)


OTHERWISE = [
    (dict(pooler_type="avg"), {}, "takes the mean of the last layer over all tokens after"),
    ({}, dict(prompt_name="document"), "head after the prompt 'a house : ', and the model the first"),
    (dict(pooler_type="max"), dict(prompt_name="query"), "maximum .* prompt 'the cat : '"),
    (
        dict(max_length=20),
        {},
        "other weights, another tokenizer or another length.* of 20 texts agree",
    ),
    (dict(max_length=POSITIONS), {}, f"after {POSITIONS} tokens, and the model after {LENGTH}"),
    ({}, dict(prompt="it : "), "a prompt that the model does not have"),
]


@pytest.mark.parametrize("loading, encoding, words", OTHERWISE)
def test_the_cause_of_other_embeddings_is_found(loading, encoding, words, model, server, check):
    other = SimCSE(model.name_or_path, **loading)
    server.encode = lambda texts: other.encode(texts, **encoding)
    found = check()
    texts = server.asked[0]["input"]
    cosines = torch.cosine_similarity(model.encode(texts).double(), server.encode(texts).double())
    assert found.cosine == pytest.approx(cosines.min().item(), abs=1e-6)
    assert found.cosine < 0.999 and found.exit_status == 1 and re.search(words, str(found))


def test_the_length_after_which_a_server_cuts_is_found(save_checkpoint, server):
    model = SimCSE(save_checkpoint(BertForCL(tiny_config(max_position_embeddings=512), pooler_type="avg")))
    for length in (32, 64, 128, 256, 384):
        server.encode = partial(model.encode, max_length=length)
        found = check_server(server.url, model=model)
        assert found.cause == f"it cuts texts after {length} tokens, and the model after {model.max_length}"


def test_vectors_that_are_no_numbers_are_a_difference_of_their_own(model, server, check):
    def encode(texts):
        vectors = model.encode(texts)
        vectors[3, 0] = float("nan")
        return vectors

    server.encode = encode
    found = check()
    assert found.exit_status == 1 and found.cause.startswith("1 of its embeddings hold NaN")
    assert "NaN" not in json.dumps(found.to_dict() | {"cause": ""})


def test_embeddings_in_another_order_belong_to_the_texts_that_index_names(model, server, check):
    listed = [{"index": i, "embedding": each.tolist()} for i, each in enumerate(model.encode(SERVED))]
    server.answer = 200, {"data": listed[::-1]}
    assert check().exit_status == 0
    for row in listed:
        del row["index"]
    assert check().exit_status == 1


def embeddings(*vectors):
    return 200, {"data": [{"index": i, "embedding": each} for i, each in enumerate(vectors)]}


def test_an_answer_without_comparable_embeddings_is_refused(server, check):
    no_embeddings = "gives no embeddings"
    for answer, words in (
        ((400, {"error": "no model x, there are a, b"}), "no model x, there are a, b.*served_name"),
        ((200, b"<html>hello</html>"), no_embeddings),
        ((200, {"embeddings": [[1.0]]}), no_embeddings),
        (embeddings(*[[1.0] * 32] * 19, [1.0]), no_embeddings),
        (embeddings(*[[1.0] * 32] * 19), "19 embeddings for 20 texts"),
        ((200, {"data": [{"index": 0, "embedding": [1.0]}] * 20}), "20 embeddings .*1 values of index"),
        (embeddings(*[[1.0] * 8] * 20), r"of shape \(20, 8\), and .*my-model of \(20, 32\)"),
    ):
        server.answer = answer
        with pytest.raises(ValueError, match=words):
            check()


def test_an_address_without_a_server_is_refused_in_one_line(model, server, tmp_path, capsys):
    (tmp_path / "embeddings").write_text("secret")
    root = server.url.removesuffix("/v1")
    for url in ("http://127.0.0.1:9/v1", "localhost:8080/v1", root, f"file:///{tmp_path}"):
        assert status("check-server", url, "--model", model.name_or_path) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1 and "secret" not in error and url in error


def test_long_texts_can_be_left_out_for_a_server_that_refuses_them(model, server):
    def encode(texts):
        assert len(texts) == 18 and all(len(text.split()) < 30 for text in texts)
        return model.encode(texts)

    server.encode = encode
    assert check_server(server.url, model=model, skip_long=True).texts == 18
