"""What a program can tell from the class of an error."""

import pytest

from simcse_hf import DataError, ModelError, SettingError, SimCSE, SimCSEError, load_text_dataset, train


def test_a_program_can_tell_a_wrong_text_a_wrong_setting_and_a_wrong_model_apart(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts.txt").write_text("a cat\n")
    with pytest.raises(DataError):
        load_text_dataset(str(tmp_path / "texts.txt"), columns=["title"])
    with pytest.raises(ModelError):
        SimCSE(tmp_path / "empty")
    with pytest.raises(SettingError):
        train("unsup", no_such_option=1)


@pytest.mark.parametrize("error", [DataError, ModelError, SettingError])
def test_what_catches_a_value_error_goes_on_working(error):
    assert issubclass(error, SimCSEError)
    assert issubclass(SimCSEError, ValueError)
