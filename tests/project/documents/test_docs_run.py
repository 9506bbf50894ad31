"""The commands and programs in README.md and docs/ run as they are written."""

import re
import runpy
import shlex
import shutil
import sys

import pytest
from docs_helpers import ROOT, blocks, commands, inline_commands, make_workspace, run_command, simcse_arguments

#: tests/project/documents/test_tutorials.py runs the tutorials.
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if not re.match("tutorial|notebook", path.name))
SKILL = "skills/train-sentence-embeddings/SKILL.md"
#: Their commands in sentences run, too, where they are whole.
WHOLE = (SKILL, "docs/migration.md")
DOCUMENTS = [
    "README.md",
    SKILL,
    "docs/results/backends.md",
    *(str(path.relative_to(ROOT)) for path in PAGES),
]

#: Commands that the test cannot run, by how they start.
NOT_RUN = (
    "pip install",  # changes the environment
    "make ",  # runs this test suite, or trains for a minute
    "python examples/finetune_classifier.py",  # tests/project/examples/test_examples.py
    "simcse-hf adapt corpus.txt --model sentence-transformers",  # needs the model; the skill's command runs
    "simcse-hf push outputs/my-model org/my-model",  # uploads; tests/publishing/test_hub.py
    "simcse-hf train mlm --model bert-base-uncased",  # all words are known; tests/apps/test_pretraining.py
    "simcse-hf study study.yaml",  # trains for hours; tests/apps/study
    "simcse-hf which-model bert-base-uncased roberta-base",  # trains for hours; tests/apps/test_which_model.py
    "infinity_emb",  # serves until it is interrupted
    "simcse-hf check-server",  # asks a server; tests/apps/test_check_server.py
)
#: Their commands take more than five seconds.
SLOW = ("docs/training.md docs/publishing.md docs/evaluation.md docs/studies.md docs/results/backends.md").split()
#: Commands of the quickstart kind, without files, warm up the sample encoder first.
SAMPLE_RUN = re.compile(r"simcse-hf train (unsup|sup)\s*(#|$)")
#: Appended to what trains, so that it takes seconds.
SHORT = {
    "train": "--use_cpu --report_to none --max_steps 2 --per_device_train_batch_size 8",
    "adapt": "--arms labels --steps 2 --seeds 1",
}


def can_run(command):
    """Whether a command runs in a test; the quickstart trains on the sample for a minute."""
    if command.startswith("simcse-hf push") and "--dry_run" in command:
        return True
    return not SAMPLE_RUN.match(command) and not command.startswith(NOT_RUN)


@pytest.fixture(scope="module")
def workspace(module_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_path)
        make_workspace(module_path)
    return module_path


@pytest.mark.parametrize(
    "document",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in DOCUMENTS if blocks(name)],
)
def test_commands_and_programs_run_as_they_are_written(document, workspace, tmp_path, monkeypatch, forget_definitions):
    monkeypatch.chdir(shutil.copytree(workspace, tmp_path / "here", symlinks=True))
    names = {}
    inline = [command for command in inline_commands(document) if document in WHOLE and len(command.split()) > 5]
    in_sentences = [("bash", command) for command in inline if command.startswith("simcse-hf ")]
    for language, block in [*blocks(document), *in_sentences]:
        if language == "python" and document != "docs/clients.md":  # tests/clients/test_clients_page.py runs those
            exec(compile(block, document, "exec"), names)
        for command in commands(block) if language == "bash" else []:
            if command.startswith("python examples/build_pairs.py"):
                monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
                runpy.run_path(sys.argv[0], run_name="__main__")
            elif can_run(command):
                arguments = simcse_arguments(command)
                assert arguments is not None, f"{command}: no command of simcse-hf; list it in NOT_RUN with a reason"
                run_command(f"{command.split(' #')[0]} {SHORT.get(arguments[0], '')}")
