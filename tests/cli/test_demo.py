"""The demo's page, used as a person would: in a browser, against the command itself, which may reach nothing else."""

import builtins
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
import torch
from conftest import tiny_config
from transformers import BertTokenizer

from simcse_hf.cli.demo import build_demo, demo_main
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.models.auto import contrastive_class
from simcse_hf.search import SentenceIndex

# The command, noting whom its process looks up or connects to. A shell starts a background job with SIGINT ignored,
# and child processes inherit that, so the default handler is restored here.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
notes = open(sys.argv.pop(1), "w", buffering=1)

def note(event, arguments):
    if event == "socket.getaddrinfo":
        print(arguments[0], file=notes)
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        print(arguments[1][0], file=notes)

sys.addaudithook(note)
from simcse_hf.cli.demo import demo_main
sys.exit(demo_main(sys.argv[1:]))
"""
WAIT = 60  # seconds; a machine may be busy
SENTENCES = [
    "a cat sat on a mat",
    "the dog ran in the house",
    "a bird sang in the tree",
    "<b>the</b> woman slept ${1 + 1} {{ 1 + 1 }} & <script>alert(1)</script>",
    "a man , a dog and a bird",
    "the big red house",
]
QUERY = "the cat slept on the big mat"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer: BertTokenizer):
    torch.manual_seed(1)
    config = tiny_config("bert")
    base = tmp_path_factory.mktemp("demo")
    contrastive_class(type(config))(config, pooler_type="avg").save_pretrained(base / "model")
    tokenizer.save_pretrained(base / "model")
    SentenceIndex.build(SimCSE(base / "model", device="cpu"), SENTENCES).save(base / "index")
    return base


@pytest.fixture(scope="module")
def model(folders):
    return SimCSE(folders / "model", device="cpu")


@pytest.fixture(scope="module")
def index(folders, model):
    return SentenceIndex.load(folders / "index", model)


@pytest.fixture(scope="module")
def demo(folders):
    """Address and process of the command, serving with --top_k 4 and no threshold."""
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    port = free_port()
    options = ["--index", folders / "index", "--port", str(port), "--top_k", "4", "--threshold", "-1"]
    log = (folders / "log").open("w+")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folders / "asked", *options, "--device", "cpu"],
        stdout=log,
        stderr=log,
        env=environment,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(WAIT * 5):
            try:
                urllib.request.urlopen(address, timeout=WAIT).close()
                break
            except OSError:
                assert process.poll() is None, (folders / "log").read_text()
                time.sleep(0.2)
        yield address, process
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture(scope="module")
def browser(demo, tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1000,800",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        opened.get(demo[0])
        yield opened
    finally:
        opened.quit()


def until(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT).until(lambda _: condition())


def element(browser, selector):
    """The one that is shown."""

    def shown():
        return next((found for found in browser.find_elements("css selector", selector) if found.is_displayed()), None)

    return until(browser, shown)


def enter(browser, name, text):
    box = element(browser, f"#{name} textarea, #{name} input")
    box.clear()
    box.send_keys(text)


def rows(browser):
    """Texts of the result table, a list a row; a browser's own script reads them at one moment."""
    script = """return [...document.querySelectorAll('#results tbody tr')].map(
        row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim()))"""
    return [row for row in browser.execute_script(script) if any(row)]


def test_ranked_sentences_and_their_scores_are_those_of_the_index(browser, index):
    enter(browser, "query", QUERY)
    element(browser, "#search").click()
    expected = index.search(QUERY, top_k=4, threshold=None)
    assert len(expected) == 4
    until(browser, lambda: len(rows(browser)) == 4)
    assert rows(browser) == [[str(i), f"{score:.4f}", text] for i, (text, score) in enumerate(expected, start=1)]


def test_enter_searches_too_and_markup_in_a_sentence_is_shown_as_it_stands(browser, index):
    enter(browser, "query", SENTENCES[3] + "\n")
    until(browser, lambda: rows(browser) and rows(browser)[0] == ["1", "1.0000", SENTENCES[3]])


def test_an_empty_query_is_told_and_leaves_no_results(browser):
    enter(browser, "query", "the cat")
    element(browser, "#search").click()
    until(browser, lambda: rows(browser))
    enter(browser, "query", "   ")
    element(browser, "#search").click()
    until(browser, lambda: element(browser, "#search-message").text == "Type a query first: it is empty.")
    assert rows(browser) == []


def test_where_nothing_is_similar_enough_the_page_says_so(browser):
    box = element(browser, "input[type=number][aria-label*='Least cosine']")
    enter(browser, "query", QUERY)
    box.send_keys("\ue009a\ue000" + "0.99")  # over what control + a marks
    element(browser, "#search").click()
    said = "No sentence of the index has a cosine of at least 0.99 with this query: lower the threshold."
    until(browser, lambda: element(browser, "#search-message").text == said)
    assert rows(browser) == []


def test_two_sentences_are_compared(browser, model):
    element(browser, "#compare-tab-button").click()
    enter(browser, "first", SENTENCES[0])
    element(browser, "#compare").click()
    said = "Type both sentences first: the second is empty."
    until(browser, lambda: element(browser, "#cosine").text == said)
    enter(browser, "second", SENTENCES[2])
    element(browser, "#compare").click()
    score = model.similarity(SENTENCES[0], SENTENCES[2])
    until(browser, lambda: element(browser, "#cosine").text == f"Cosine: {score:.4f}")


def test_the_browser_asked_nobody_else_for_anything(browser, demo):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    ours = urllib.parse.urlsplit(demo[0]).netloc
    assert any(ours in url for url in asked)
    elsewhere = {urllib.parse.urlsplit(url).netloc for url in asked if url.startswith("http")} - {ours}
    assert not elsewhere
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_server_asked_nobody_for_anything(demo, folders):
    asked = set((folders / "asked").read_text().split())
    assert asked <= {"127.0.0.1", "localhost", "None"}
    assert "127.0.0.1" in asked


def test_the_server_can_be_interrupted(demo):
    _, process = demo
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 0


def test_a_taken_port_is_told(folders):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1, port {port}: name another --port"):
            demo_main(["--index", str(folders / "index"), "--port", str(port), "--device", "cpu"])


@pytest.mark.parametrize(
    "options, said",
    [
        (["--port", "70000"], "--port must be between 1 and 65535, got 70000"),
        (["--top_k", "0"], "argument --top_k: must be a whole number of at least 1, got 0"),
        (["--threshold", "1.5"], "argument --threshold: must be a cosine similarity, between -1 and 1, got 1.5"),
    ],
)
def test_a_setting_out_of_range_is_told(folders, options, said, capsys):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    with pytest.raises(SystemExit) as ended:
        demo_main(["--index", str(folders / "index"), "--device", "cpu", *options])
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_folder_without_an_index_is_told(tmp_path):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    with pytest.raises(ValueError, match="not a folder that an index was saved in"):
        demo_main(["--index", str(tmp_path)])


def test_without_gradio_the_extra_is_named(index, model, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "gradio":
            raise ImportError("No module named 'gradio'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"simcse-hf\[demo\]"):
        build_demo(index, model)
