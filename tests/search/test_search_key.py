"""The key of a Qdrant server goes only to servers that the user names, and not in clear over a network."""

import json

import pytest
from test_search_folder import SENTENCES, CountingModel

from simcse_hf.search import SentenceIndex
from simcse_hf.search.qdrant_index import QdrantIndex
from simcse_hf.search.server_url import check_saved_url

qdrant_client = pytest.importorskip("qdrant_client", reason="the extra `qdrant` is not installed")


@pytest.fixture
def connections(monkeypatch):
    """Record where clients connect to, and the keys that they bring."""
    store, made = qdrant_client.QdrantClient(":memory:"), []

    def connect(location=None, *, url=None, api_key=None, **_):
        made.append((url, api_key))
        return store

    monkeypatch.setattr(qdrant_client, "QdrantClient", connect)
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    return made


@pytest.fixture
def folder(connections, tmp_path):
    index = SentenceIndex.build(CountingModel(), SENTENCES, backend="qdrant", url="https://mine.example:6333")
    index.save(tmp_path / "index")
    connections.clear()
    return tmp_path / "index"


def test_a_server_that_only_the_folder_names_is_not_connected_to(folder, connections, monkeypatch):
    for key in (None, "secret"):
        if key is not None:
            monkeypatch.setenv("QDRANT_API_KEY", key)
        with pytest.raises(ValueError, match=r"--url https://mine\.example:6333"):
            SentenceIndex.load(folder, CountingModel())
    assert connections == []


def test_a_server_that_the_user_names_gets_the_key(folder, connections, monkeypatch):
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    index = SentenceIndex.load(folder, CountingModel(), url="https://mine.example:6333")
    assert connections == [("https://mine.example:6333", "secret")]
    assert index.search("sentence number 7", top_k=1)[0][0] == "sentence number 7"


def test_the_key_is_not_sent_to_a_folders_server_on_this_machine(folder, connections, monkeypatch):
    described = json.loads((folder / "index.json").read_text())
    described["options"]["url"] = "http://127.0.0.1:6333"
    (folder / "index.json").write_text(json.dumps(described))
    SentenceIndex.load(folder, CountingModel())
    assert connections == [("http://127.0.0.1:6333", None)]
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    with pytest.raises(ValueError, match="name it yourself"):
        SentenceIndex.load(folder, CountingModel())


def test_the_key_is_never_sent_in_clear_to_another_machine(connections, monkeypatch):
    QdrantIndex(8, url="http://other.example:6333")
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    with pytest.raises(ValueError, match="would be sent to http://other.example:6333 in clear"):
        QdrantIndex(8, url="http://other.example:6333", collection="b")
    for number, url in enumerate(("http://localhost:6333", "http://127.0.0.2:6333", "http://[::1]:6333")):
        QdrantIndex(8, url=url, collection=f"c{number}")
    assert [key for _, key in connections] == [None, "secret", "secret", "secret"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1@evil.example:6333",
        "http://127.0.0.1:6333\\@evil.example",
        "http://user:password@localhost:6333",
        "evil.example:6333",
        "file:///etc/passwd",
        "http://[::1",
        "http://",
        "http://local host",
    ],
)
def test_a_url_that_hides_its_host_is_refused(url, tmp_path, connections):
    with pytest.raises(ValueError, match="is not the URL of a server"):
        QdrantIndex(8, url=url)
    with pytest.raises(ValueError, match="is not the URL of a server"):
        check_saved_url(url, tmp_path, {})
    assert connections == []


def test_a_url_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="which is no URL"):
        check_saved_url(["http://127.0.0.1"], tmp_path, {})
