"""The console script: commands, help, exit statuses, and errors in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock
from unittest.mock import Mock

import pytest

import simcse_hf
from simcse_hf.cli.main import COMMANDS, PACKAGE, exit_status, main
from simcse_hf.publishing.hub import PushError

HELP = [
    ["--help"],
    ["--version"],
    *([command, "--help"] for command in COMMANDS),
    ["postprocess", "fit", "--help"],
]
HELP += [["train", method, "--help"] for method in ("unsup", "sup", "mlm")]
#: What a user waits seconds for.
HEAVY = set("torch transformers datasets numpy accelerate evaluate matplotlib mteb gradio".split())


def python(*words, **options):
    """Run Python with these arguments, and return what it has printed."""
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, **options)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_help_and_version_import_no_heavy_library():
    program = (
        "import sys; from simcse_hf.cli.main import main\n"
        f"for words in {HELP!r}:\n"
        "    try: status = main(words)\n"
        "    except SystemExit as ended: status = ended.code\n"
        "    assert status == 0, (words, status)\n"
        f"    heavy = {HEAVY!r} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)"
    )
    python("-c", program)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_text_in_another_alphabet_is_printed_with_escapes(encoding):
    program = "import sys\nfrom simcse_hf.cli.main import main\nmain([])\nprint('кот')\nprint('кот', file=sys.stderr)"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = python("-c", program, env=environment)
    assert r"\u043a\u043e\u0442" in ended.stdout
    assert r"\u043a\u043e\u0442" in ended.stderr


def test_a_library_is_imported_by_the_first_use_that_needs_it():
    """The public names are listed before, and a model is loaded without what only training needs."""
    program = (
        "import sys, simcse_hf\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(simcse_hf.__all__) <= set(dir(simcse_hf))\n"
        "assert simcse_hf.objectives.register and 'torch' in sys.modules\n"
        "simcse_hf.SimCSE(simcse_hf.sample_files()[1], pooler_type='avg').encode(['a cat'])\n"
        "print(sorted({'datasets', 'pandas', 'transformers.trainer', 'simcse_hf.training'} & sys.modules.keys()))"
    )
    assert python("-c", program, cwd=Path(PACKAGE).parent).stdout == "[]\n"


def test_every_public_name_is_imported_by_a_star_and_no_other_one():
    names = {}
    exec("from simcse_hf import *", names)
    assert names["SimCSE"] is simcse_hf.SimCSE and set(simcse_hf.__all__) <= names.keys()
    assert all(hasattr(simcse_hf, name) for name in simcse_hf.__all__) and not hasattr(simcse_hf, "SimCES")


def test_traceback_shows_where_an_error_arose(capsys):
    words = "encode --input texts.txt --output output --model ./no/such/folder".split()
    assert main(["--traceback", *words]) == main([*words, "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


# --- exit statuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program, error",
    [
        (lambda: 1 // 0, ZeroDivisionError),
        (lambda: json.loads("{"), json.JSONDecodeError),
    ],
)
def test_a_defect_and_a_value_error_of_a_library_keep_their_traceback(program, error):
    with pytest.raises(error):
        exit_status(program, "program")


def test_a_failed_push_ends_with_status_1(tmp_path, capsys, monkeypatch):
    error = PushError("org/name was not pushed: the connection failed")
    monkeypatch.setattr("simcse_hf.publishing.hub.push_model", Mock(side_effect=error))
    with pytest.raises(PushError):  # raised outside the package, so it would keep its traceback
        main(["push", str(tmp_path), "org/name"])
    monkeypatch.setattr("simcse_hf.cli.main.PACKAGE", mock.__file__)
    assert main(["push", str(tmp_path), "org/name"]) == 1
    assert capsys.readouterr().err == "simcse-hf push: error: org/name was not pushed: the connection failed\n"


def test_an_interruption_ends_without_a_traceback(capsys):
    assert exit_status(Mock(side_effect=KeyboardInterrupt), "program") == 130
    assert capsys.readouterr().err == "program: interrupted\n"


class LocalEntryNotFoundError(Exception):
    """An error with the name of one of huggingface_hub's, which is not imported for the sake of --help."""


@pytest.mark.parametrize("error", [ConnectionError("no route"), LocalEntryNotFoundError("no route")])
def test_a_hub_out_of_reach_is_one_line(error, capsys):
    assert exit_status(Mock(side_effect=error), "simcse-hf evaluate") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("simcse-hf evaluate: error: no route; check") and "HF_HUB_OFFLINE" in line


@pytest.mark.parametrize("set_by_user, used", [(None, "passive"), ("active", "active")])
def test_threads_that_wait_leave_the_cores_to_others_unless_the_user_decides(set_by_user, used, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", set_by_user or "")
    if set_by_user is None:
        del os.environ["OMP_WAIT_POLICY"]
    assert main([]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == used
