"""The console script: commands, help, and errors in one line."""

import subprocess
import sys

import pytest

from simcse_hf import __version__
from simcse_hf.cli.main import COMMANDS, main


def test_python_m_and_version():
    ran = subprocess.run([sys.executable, "-m", "simcse_hf", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"simcse-hf {__version__}"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"simcse-hf {command}" in capsys.readouterr().out


def test_an_unknown_command_ends_with_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert "trian" in capsys.readouterr().err


def test_bad_input_is_one_line(tmp_path, capsys):
    try:
        status = main(["build-nli", "--input", str(tmp_path / "absent.csv"), "--output", str(tmp_path / "out.csv")])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert "absent.csv" in capsys.readouterr().err
