"""The tutorials run from top to bottom, and every command prints what the page shows."""

import contextlib
import difflib
import io
import re
import shlex

import pytest
import torch
from docs_workspace import ROOT, blocks, commands

from simcse_hf.cli.main import main

#: What a fresh clone needs once.
SET_UP = ("git clone", "pip install")
#: Numbers may differ between processors and versions of torch: by this much, or by a tenth.
TOLERANCE = 3.0


def run_block(language, block, names):
    """Run a block of a page, and return what it prints and logs."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        if language == "python":
            exec(compile(block, "tutorial", "exec"), names)
        for command in commands(block) if language == "bash" else []:
            if not command.startswith(SET_UP):
                program, *words = shlex.split(command)
                assert program == "simcse-hf" and main(words) == 0, command
    return printed.getvalue()


NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*")


def agrees(shown, line):
    """Return whether a printed line is the shown one: the same words, and numbers that are about the same."""
    shown, cut, _ = shown.partition("...")
    line = line[: len(shown)] if cut else line
    words = [" ".join(NUMBER.sub("0", text).split()) for text in (shown, line)]
    if difflib.SequenceMatcher(None, *words).ratio() < (0.9 if cut else 0.5):
        return False
    numbers = [[float(x.replace(",", "")) for x in NUMBER.findall(text)] for text in (shown, line)]
    pairs = zip(*numbers, strict=False)
    return all(abs(a - b) <= max(TOLERANCE, abs(a) / 10) for a, b in pairs)


def missing_line(shown, printed):
    """Return the first line of a page that was not printed after the lines before it."""
    lines = iter(printed.splitlines())
    for each in shown.splitlines():
        if each.strip() not in ("", "...") and not any(agrees(each, line) for line in lines):
            return each
    return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tutorial")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the pages show what a processor without a GPU prints")
@pytest.mark.parametrize("page", ["tutorial.md", "tutorial_labels.md", "notebook.md"])
def test_every_command_of_a_tutorial_prints_what_the_page_shows(page, folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path if page == "notebook.md" else folder)  # The second tutorial needs files of the first.
    names, printed = {}, ""
    for language, block in blocks(f"docs/{page}"):
        if language == "text":
            missing = missing_line(block, printed + capfd.readouterr().err)
            assert missing is None, f"{page} shows {missing!r}, and this was printed:\n{printed}"
            assert "unknown to the model's tokenizer" not in printed, "the index's own probe is no text of the user"
        else:
            printed = run_block(language, block, names)


def test_the_notebook_shows_the_numbers_of_the_tutorial():
    shown = {}
    for page in ("tutorial.md", "notebook.md"):
        printed = " ".join(block for language, block in blocks(f"docs/{page}") if language == "text")
        shown[page] = set(re.findall(r"\d+\.\d+", printed))
    rates = {"0.001", "6.29", "1.48", "10.82", "0.003", "9.30", "4.03", "13.86"}  # of the two runs that are its own
    assert shown["notebook.md"] - rates <= shown["tutorial.md"]


@pytest.mark.slow
def test_the_sample_run_prints_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = re.findall(
        r"^```text\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    printed = run_block("bash", "simcse-hf train unsup", {})
    assert missing_line(shown[0], printed) is None, printed
