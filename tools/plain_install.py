"""Train, evaluate, search and write a card with the packages that this Python has, in a temporary folder.

    .venv-plain/bin/python tools/plain_install.py

It needs nothing but a plain install of the package, so that an environment with its lowest versions can be tried: the
extra `test` would lift them. Every command is one of simcse-hf, and the first that fails ends the program.
"""

import re
import subprocess
import sys
from importlib.metadata import requires, version
from tempfile import TemporaryDirectory

COMMANDS = """
train unsup --max_steps 5 --output_dir model
evaluate --model model --pairs {pairs} --output evaluation.json
index --model model --input {texts} --output index
search --index index {query}
card model
push model someone/model --dry_run
"""


def main() -> None:
    from simcse_hf import sample_files

    corpus, _ = sample_files()
    for requirement in requires("simcse-hf") or []:
        if "extra ==" not in requirement:
            name = re.match(r"[\w-]+", requirement)[0]
            print(name, version(name))
    values = {
        "{pairs}": str(corpus.test),
        "{texts}": str(corpus.train_sentences),
        "{query}": "The chef lost the lute.",
    }
    with TemporaryDirectory() as folder:
        for line in COMMANDS.strip().splitlines():
            words = [values.get(word, word) for word in line.split()]
            print(f"simcse-hf {line}", flush=True)
            subprocess.run([sys.executable, "-m", "simcse_hf", *words], cwd=folder, check=True)


if __name__ == "__main__":
    main()
