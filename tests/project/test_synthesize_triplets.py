"""The example that generates triplets: with a server of the OpenAI protocol, and its filters."""

import csv
import json
import runpy
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import VOCABULARY, tiny_config
from huggingface_hub import constants

from simcse_hf import AutoModelForCL, SimCSE

SCRIPT = Path(__file__).parents[2] / "examples" / "synthesize_triplets.py"
SENTENCES = ["A cat sat.", "A dog ran.", "A bird sang.", "A man slept.", "A woman ran.", "The house."]


class ChatServer(ThreadingHTTPServer):
    """Answers chat completions by `reply(sentence, wants_negative)`."""

    def __init__(self, reply):
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.reply, self.requests = reply, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class ChatHandler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers.get("Authorization"), body))
        prompt, _, sentence = body["messages"][0]["content"].partition("\n\n")
        negative = any(word in prompt for word in ("cannot be true", "Contradict", "something else"))
        message = {"role": "assistant", "content": self.server.reply(sentence, negative)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
        content = json.dumps(answer | {"usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def plain_reply(sentence, negative):
    return f'"{"No" if negative else "Indeed"} {sentence.lower()}"\nThat is my answer.'


@pytest.fixture
def generate(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # it forbids requests to any server
    source = tmp_path / "sentences.txt"

    def run(*options, sentences=SENTENCES):
        source.write_text("\n".join([*sentences, ""]))
        output = tmp_path / "triplets.csv"
        monkeypatch.setattr(sys, "argv", ["synthesize", str(source), str(output), "--model", *map(str, options)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        with output.open(newline="") as file:
            return list(csv.reader(file)), capsys.readouterr().out

    return run


def test_every_sentence_gets_a_positive_and_a_negative_from_a_server(generate):
    with ChatServer(plain_reply) as server:
        rows, printed = generate("tiny", "--base_url", server.url)
    assert rows[0] == ["sent0", "sent1", "hard_neg"]
    assert rows[1:] == [[s, f"Indeed {s.lower()}", f"No {s.lower()}"] for s in SENTENCES]
    assert "6 triplets of 6 sentences; dropped: none" in printed
    assert len({body["messages"][0]["content"].partition("\n\n")[0] for _, _, body in server.requests}) > 2
    for path, key, body in server.requests:
        assert path == "/v1/chat/completions" and body["model"] == "tiny" and body["max_tokens"] == 64
        assert key == "Bearer none", "the token of the hub is not for other servers"


def test_an_interrupted_run_continues_and_asks_the_same(generate, tmp_path):
    with ChatServer(plain_reply) as server:
        expected, _ = generate("tiny", "--base_url", server.url, sentences=SENTENCES * 1)
        asked = {body["messages"][0]["content"] for _, _, body in server.requests}
    answers = tmp_path / "triplets.csv.answers.jsonl"
    lines = answers.read_text().splitlines(keepends=True)
    answers.write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote the third line
    with ChatServer(plain_reply) as server:
        continued, _ = generate("tiny", "--base_url", server.url)
        assert len(server.requests) == 8, "two requests for each of four sentences"
        assert {body["messages"][0]["content"] for _, _, body in server.requests} <= asked
    assert continued == expected and answers.read_text() == "".join(lines)
    with ChatServer(plain_reply) as server:
        assert generate("tiny", "--base_url", server.url)[0] == expected and not server.requests
    with pytest.raises(SystemExit, match="holds answers for other sentences"):
        generate("tiny", "--base_url", "http://unused", sentences=SENTENCES[1:])


def test_unfit_answers_are_dropped_and_counted(generate):
    replies = {
        "A cat sat.": ("I'm sorry, I cannot do that.", "A cat stood."),
        "A dog ran.": ("a dog ran", "A dog slept."),
        "A bird sang.": ("A bird sings.", "Which bird do you mean?"),
        "A man slept.": ("Someone slept.", "Someone slept."),
        "A woman ran.": ("A lady ran.", "A lady stood."),
        "The house.": ("A lady ran.", ""),
        "The tree.": ("A lady ran!", "The mat."),
    }
    with ChatServer(lambda sentence, negative: replies[sentence][negative]) as server:
        rows, printed = generate("tiny", "--base_url", server.url, sentences=list(replies))
    assert rows[1:] == [["A woman ran.", "A lady ran.", "A lady stood."]]
    counts = ("2 copies", "1 refusals", "1 questions back", "1 empty", "1 duplicates")
    assert all(count in printed for count in counts)


def test_a_guide_drops_negatives_that_are_closer_than_the_positive(generate, save_checkpoint):
    guide = save_checkpoint(AutoModelForCL.from_config(tiny_config(initializer_range=0.2)), "guide")
    words = VOCABULARY[5:20]
    sentences = [f"{a} {b}" for a, b in zip(words, words[1:], strict=False)]
    reply = lambda sentence, negative: f"{sentence} {'cat' if negative else 'tree house'} {sentence[0]}"  # noqa: E731
    with ChatServer(reply) as server:
        everything, _ = generate("tiny", "--base_url", server.url, sentences=sentences)
        rows, printed = generate("tiny", "--base_url", server.url, "--guide", guide, sentences=sentences)
    model = SimCSE(guide, device="cpu")
    close = [model.similarity(a, p) >= model.similarity(a, n) for a, p, n in everything[1:]]
    assert rows[1:] == [row for row, keep in zip(everything[1:], close, strict=True) if keep] and not all(close)
    assert f"{close.count(False)} negatives closer than the positive" in printed
