"""The first thing that a new user runs says nothing that is wrong with the package's own sample."""

import logging
import re

from simcse_hf.cli.main import main


def test_the_quickstart_prints_no_warning_and_no_bar_for_half_a_megabyte_of_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main("train unsup --max_steps 10 --per_device_train_batch_size 64 --report_to none".split()) == 0
    printed = capsys.readouterr()
    assert "Nearest to" in printed.out
    assert re.findall("WARNING.*|Loading weights|Writing model shards", printed.err) == []
    assert logging.getLogger("simcse_hf").handlers
