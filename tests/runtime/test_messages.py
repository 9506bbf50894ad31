"""What a command shows of the log, and what it says where more processes have been started than work together."""

import logging

import pytest

from simcse_hf.runtime.messages import check_together, show_messages


def test_a_message_names_its_module_without_the_path_to_it(capsys):
    show_messages()
    logging.getLogger("simcse_hf.apps.adapt.adapt").info("present: 66.87")
    assert capsys.readouterr().err == "INFO test_messages: present: 66.87\n"


@pytest.mark.parametrize(
    "variable",
    ["WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"],
)
def test_the_processes_that_a_launcher_has_started_must_work_together(monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    check_together(2)
    with pytest.raises(ValueError, match="2 processes.*torchrun --nproc_per_node"):
        check_together(1)
