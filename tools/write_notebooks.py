"""Write notebooks from examples, with what their cells print.

python tools/write_notebooks.py

The first line of a script becomes the heading of its notebook, and a line `# %% Words` begins a cell of code.
"""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = ("sentences", "classes")
MARK = "\n# %% "


def parts_of(script):
    """Return the heading of a script, and the heading and the code of each of its cells."""
    docstring, *parts = script.split(MARK)
    title = docstring.splitlines()[0].strip('".')
    cells = []
    for part in parts:
        heading, _, code = part.partition("\n")
        cells.append((heading, code.strip()))
    return title, cells


def run(cells):
    """Run the cells one after the other in the current directory, and return what each of them prints."""
    names = {"__name__": "__main__"}
    printed = []
    for _, code in cells:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, "cell", "exec"), names)
        printed.append(output.getvalue())
    return printed


def words(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def notebook(name, title, cells, printed):
    """Return the notebook of a script with the outputs of its cells."""
    written = [words(f"# {title}\n\nThis is [{name}.py]({name}.py), run from top to bottom.")]
    for number, ((heading, code), text) in enumerate(zip(cells, printed, strict=True), start=1):
        output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
        cell = {"cell_type": "code", "metadata": {}, "execution_count": number}
        cell |= {"source": code.splitlines(keepends=True), "outputs": [output] if text else []}
        written += [words(f"## {heading}"), cell]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}


def write(name):
    """Return the notebook of an example, which runs in the current directory."""
    title, cells = parts_of((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    return notebook(name, title, cells, run(cells))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for each in NAMES:
            text = json.dumps(write(each), indent=1, ensure_ascii=False)
            (EXAMPLES / f"{each}.ipynb").write_text(text + "\n", encoding="utf-8")
