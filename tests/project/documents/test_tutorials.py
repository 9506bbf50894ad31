"""The tutorials run from top to bottom, and every command prints what the page shows."""

import contextlib
import io
import shlex

import pytest
from docs_helpers import ON_A_PROCESSOR, blocks, commands, difference

from simcse_hf.cli.main import main

#: What a fresh clone needs once.
SET_UP = ("git clone", "pip install")


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


@ON_A_PROCESSOR
@pytest.mark.parametrize("page", ["tutorial.md", "tutorial_labels.md", "notebook.md"])
def test_every_command_of_a_tutorial_prints_what_the_page_shows(page, module_path, tmp_path, monkeypatch, capfd):
    # The second tutorial needs files of the first.
    monkeypatch.chdir(tmp_path if page == "notebook.md" else module_path)
    names, printed = {}, ""
    for language, block in blocks(f"docs/{page}"):
        if language == "text":
            found = difference(block, printed + capfd.readouterr().err)
            assert found is None, f"{page}: {found}; this was printed:\n{printed}"
            assert "unknown to the model's tokenizer" not in printed, "the index's own probe is no text of the user"
        else:
            printed = run_block(language, block, names)


@pytest.mark.slow  # the first tutorial trains the same encoder on the same texts, test_quickstart.py by this command
@ON_A_PROCESSOR
def test_the_sample_run_prints_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [block for language, block in blocks("README.md") if language == "text"]
    assert difference(shown[0], run_block("bash", "simcse-hf train unsup", {})) is None
    program = next(block for language, block in blocks("README.md") if language == "python")
    assert difference(shown[1], run_block("python", program, {})) is None
