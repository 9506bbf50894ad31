"""WordNet is read from where nltk looks, is never downloaded, and gives the same synonyms in forked processes."""

import multiprocessing
import random
import sys

import pytest
from trainer_helpers import refuses

from simcse_hf.data.views import make_view
from simcse_hf.data.views.synonyms import wordnet_synonyms

nltk = pytest.importorskip("nltk")

#: Part of speech -> synsets of a WordNet of five.
SYNSETS = {
    "noun": [["dog", "domestic_dog"], ["cat", "true_cat"]],
    "verb": [["dog", "chase", "trail"]],
    "adj": [["big", "large(p)"]],
    "adv": [["soon", "before_long"]],
}
TYPES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LICENCE = "  1 WordNet 3.0 Copyright of nobody, written for a test.  \n"


def write_wordnet(folder):
    """Write files in WordNet's format (wndb(5)), in which a synset's number is the byte offset of its line."""
    folder.mkdir(parents=True)
    for pos, synsets in SYNSETS.items():
        data, index = LICENCE, {}
        for words in synsets:
            offset = f"{len(data):08}"
            frames = " 00" if pos == "verb" else ""
            listed = " ".join(f"{word} 0" for word in words)
            data += f"{offset} 00 {TYPES[pos]} {len(words):02x} {listed} 000{frames} | a gloss  \n"
            for word in words:
                lemma = word.partition("(")[0]
                index.setdefault(lemma, []).append(offset)
        lines = LICENCE
        for lemma, offsets in sorted(index.items()):
            lines += f"{lemma} {TYPES[pos]} {len(offsets)} 0 {len(offsets)} 0 {' '.join(offsets)}  \n"
        files = dict.fromkeys((f"{pos}.exc", "cntlist.rev", "index.sense"), "")
        files |= {f"data.{pos}": data, f"index.{pos}": lines, "lexnames": "00\tnoun.Tops\t1\n"}
        for name, content in files.items():
            (folder / name).write_text(content)


@pytest.fixture
def wordnet(tmp_path, monkeypatch):
    write_wordnet(tmp_path / "corpora/wordnet")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])


def test_synonyms_are_the_words_of_all_synsets(wordnet):
    lookup = wordnet_synonyms()
    assert lookup("dog") == ("chase", "domestic dog", "trail")
    assert lookup("Dogs") == ("chase", "dog", "domestic dog", "trail")
    assert lookup("big") == ("large",) and lookup("unheard") == ()


def test_the_views_synonyms_and_eda_use_wordnet(wordnet):
    results = {make_view("synonyms")("The dog.", random.Random(seed)) for seed in range(50)}
    assert results == {"The chase.", "The domestic dog.", "The trail."}
    assert all(make_view("eda", 0.5)("the dog", random.Random(seed)) for seed in range(50))


def _look_up(lookup, queue):
    queue.put([lookup(word) for word in ["dog", "cat", "big"] * 100])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_forked_processes_do_not_share_file_positions(wordnet):
    lookup = wordnet_synonyms()
    lookup("dog")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_look_up, args=(lookup, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    expected = [lookup(word) for word in ["dog", "cat", "big"] * 100]
    assert results == [expected, expected]


def test_the_error_without_wordnet_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with refuses(f"nltk.downloader wordnet {tmp_path}"):
        make_view("eda")


def test_refuses_an_incomplete_wordnet(wordnet, tmp_path):
    (tmp_path / "corpora/wordnet/lexnames").unlink()
    with refuses("not a complete WordNet lexnames"):
        wordnet_synonyms()
