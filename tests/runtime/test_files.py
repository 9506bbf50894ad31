"""Optional files of a model are found wherever the model is, and files are written whole or not at all."""

import pytest

from simcse_hf import DataError
from simcse_hf.runtime.files import read_json, write_atomically


def test_a_failed_write_of_a_folder_keeps_the_earlier_folder(tmp_path):
    path = tmp_path / "index"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(RuntimeError), write_atomically(path) as temporary:
        temporary.mkdir()
        (temporary / "half").touch()
        raise RuntimeError
    with pytest.raises(OSError), write_atomically(path):
        pass  # the block wrote nothing
    assert [file.name for file in path.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_text("old")
    (tmp_path / "file-link").symlink_to("file")
    with write_atomically(tmp_path / "link") as temporary:
        temporary.mkdir()
        (temporary / "new").touch()
    with write_atomically(tmp_path / "file-link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink() and [path.name for path in (tmp_path / "real").iterdir()] == ["new"]
    assert (tmp_path / "file-link").is_symlink() and (tmp_path / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "file",
        "file-link",
        "link",
        "real",
    ]


@pytest.mark.parametrize("content", ["{", "[" * 100_000, '["seed"]', '{"seed": 1}'])
def test_an_error_about_json_names_the_file_and_says_what_to_do(tmp_path, content):
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"record\.json: not a JSON .*\. Start again\.$"):
        read_json(path, "seed", "rate", advice="Start again.")
