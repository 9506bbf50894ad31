"""What a command shows of the log."""

import logging

from simcse_hf.runtime.messages import show_messages


def test_a_message_names_its_module_without_the_path_to_it(capsys):
    show_messages()
    logging.getLogger("simcse_hf.apps.adapt.adapt").info("present: 66.87")
    assert capsys.readouterr().err == "INFO test_messages: present: 66.87\n"
