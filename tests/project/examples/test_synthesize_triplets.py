"""The example that generates triplets: with a server of the OpenAI protocol, and its filters."""

import csv
import runpy
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

SCRIPT = ROOT / "examples" / "synthesize_triplets.py"
SENTENCES = [
    "A cat sat.",
    "A dog ran.",
    "A bird sang.",
    "A man slept.",
    "A woman ran.",
    "The house.",
]


class ChatServer:
    """Stands for the client of a server of the OpenAI protocol, which answers by `reply(sentence, wants_negative)`."""

    def __init__(self, reply):
        self.reply, self.asked = reply, []

    def __call__(self, **options):
        self.options = options
        return self

    def chat_completion(self, messages, **options):
        prompt, _, sentence = messages[0]["content"].partition("\n\n")
        negative = any(word in prompt for word in ("cannot be true", "Contradict", "something else"))
        self.asked.append((prompt, sentence, options))
        message = SimpleNamespace(content=self.reply(sentence, negative))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def plain_reply(sentence, negative):
    return f'"{"No" if negative else "Indeed"} {sentence.lower()}"\nThat is my answer.'


@pytest.fixture
def generate(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    source = tmp_path / "sentences.txt"

    def run(server, sentences=SENTENCES):
        monkeypatch.setattr("huggingface_hub.InferenceClient", server)
        source.write_text("\n".join([*sentences, ""]))
        output = tmp_path / "triplets.csv"
        command = f"synthesize {source} {output} --model tiny --base_url http://here"
        monkeypatch.setattr(sys, "argv", command.split())
        runpy.run_path(str(SCRIPT), run_name="__main__")
        with output.open(newline="") as file:
            return list(csv.reader(file)), capsys.readouterr().out

    return run


def test_every_sentence_gets_a_positive_and_a_negative_from_a_server(generate):
    server = ChatServer(plain_reply)
    rows, printed = generate(server)
    assert rows[0] == ["sent0", "sent1", "hard_neg"]
    assert rows[1:] == [[s, f"Indeed {s.lower()}", f"No {s.lower()}"] for s in SENTENCES]
    assert "6 triplets of 6 sentences; dropped: none" in printed
    assert len({prompt for prompt, *_ in server.asked}) > 2
    assert all(options["model"] == "tiny" and options["max_tokens"] == 64 for *_, options in server.asked)
    assert server.options["base_url"] == "http://here"
    assert server.options["api_key"] == "none", "the token of the hub is not for other servers"


def test_an_interrupted_run_continues_and_asks_the_same(generate, tmp_path):
    first, second, third = (ChatServer(plain_reply) for _ in range(3))
    expected, _ = generate(first)
    answers = tmp_path / "triplets.csv.answers.jsonl"
    lines = answers.read_text().splitlines(keepends=True)
    answers.write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote the third line
    continued, _ = generate(second)
    assert len(second.asked) == 8, "two requests for each of four sentences"
    assert all(request in first.asked for request in second.asked)
    assert continued == expected and answers.read_text() == "".join(lines)
    assert generate(third)[0] == expected and not third.asked
    with pytest.raises(SystemExit, match="holds answers for other sentences"):
        generate(third, sentences=SENTENCES[1:])


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
    server = ChatServer(lambda sentence, negative: replies[sentence][negative])
    rows, printed = generate(server, sentences=list(replies))
    assert rows[1:] == [["A woman ran.", "A lady ran.", "A lady stood."]]
    counts = ("2 copies", "1 refusals", "1 questions back", "1 empty", "1 duplicates")
    assert all(count in printed for count in counts)
