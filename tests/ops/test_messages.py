"""What a command shows of the log."""

import logging

from simcse_hf.ops.messages import show_messages


def test_a_message_names_its_module_without_the_path_to_it(capsys):
    show_messages()
    logging.getLogger("simcse_hf.training.adaptation.adaptation").info("present: 66.87")
    assert capsys.readouterr().err == "INFO test_messages: present: 66.87\n"
