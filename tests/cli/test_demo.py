"""The demo's page, used as a person would: in a browser, against the command itself, which may reach nothing else."""

import base64
import builtins
import csv
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import torch
from browser_helpers import errors, open_browser
from conftest import tiny_config
from evaluation_helpers import write
from transformers import BertTokenizer

from simcse_hf.cli.demo import demo_main
from simcse_hf.cli.demo_page import build_demo
from simcse_hf.evaluation.geometry import alignment, uniformity
from simcse_hf.inference.simcse import SimCSE
from simcse_hf.models.auto import contrastive_class
from simcse_hf.search import SentenceIndex

# The command, which notes the hosts that its process looks up or connects to. A shell starts a background job with
# SIGINT ignored, and child processes inherit that, so the default handler is restored here.
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
    pairs = [(5, SENTENCES[0], SENTENCES[4]), (4.5, SENTENCES[1], SENTENCES[2]), (1, SENTENCES[0], SENTENCES[5])]
    write(base / "pairs.tsv", ["\t".join(map(str, pair)) for pair in pairs])
    return base


@pytest.fixture(scope="module")
def model(folders):
    return SimCSE(folders / "model", device="cpu")


@pytest.fixture(scope="module")
def index(folders, model):
    return SentenceIndex.load(folders / "index", model)


@pytest.fixture(scope="module")
def demo(folders):
    """Start the command with --top_k 4 and --pairs, and return its address and process."""
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    port = free_port()
    options = ["--index", folders / "index", "--port", str(port), "--top_k", "4", "--pairs", folders / "pairs.tsv"]
    log = (folders / "log").open("w+")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folders / "hosts", *options, "--device", "cpu"],
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
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.get(demo[0])
        yield opened


def until(browser, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT).until(lambda _: condition())


def element(browser, selector):
    """The element that is shown."""

    def shown():
        return next((each for each in browser.find_elements("css selector", selector) if each.is_displayed()), None)

    return until(browser, shown)


def enter(browser, name, text):
    box = element(browser, f"#{name} textarea, #{name} input")
    box.clear()
    box.send_keys(text)


def rows(browser):
    """Texts of the result table, one list per row. A script in the browser reads them all at once."""
    script = """return [...document.querySelectorAll('#results tbody tr')].map(
        row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim()))"""
    return [row for row in browser.execute_script(script) if any(row)]


def downloaded(browser, selector):
    """The rows of the CSV file behind a download link."""
    address = element(browser, f"{selector} a[download]").get_attribute("href")
    return list(csv.reader(io.StringIO(base64.b64decode(address.partition("base64,")[2]).decode())))


@pytest.mark.slow
def test_the_page_names_the_model_and_the_index(browser, folders):
    text = element(browser, ".gradio-container").text
    assert str(folders / "model") in text and "6 sentences, embeddings of 32 dimensions" in text


@pytest.mark.slow
def test_search_shows_the_ranked_sentences_of_the_index_and_offers_them_as_csv(browser, index):
    enter(browser, "query", QUERY)
    element(browser, "#search").click()
    expected = index.search(QUERY, top_k=4, threshold=None)
    assert len(expected) == 4
    until(browser, lambda: len(rows(browser)) == 4)
    assert rows(browser) == [[str(i), f"{score:.4f}", text] for i, (text, score) in enumerate(expected, start=1)]
    header, *table = downloaded(browser, "#results")
    assert header == ["model", "rank", "cosine", "sentence"]
    assert [(row[3], float(row[2])) for row in table] == [(text, pytest.approx(score)) for text, score in expected]


@pytest.mark.slow
def test_an_example_fills_in_the_query(browser):
    enter(browser, "query", "")
    element(browser, "#examples button, #examples td").click()
    until(browser, lambda: element(browser, "#query textarea, #query input").get_attribute("value") == SENTENCES[0])


@pytest.mark.slow
def test_enter_searches_and_markup_in_a_sentence_is_shown_as_text(browser, index):
    enter(browser, "query", SENTENCES[3] + "\n")
    until(browser, lambda: rows(browser) and rows(browser)[0] == ["1", "1.0000", SENTENCES[3]])


@pytest.mark.slow
def test_an_empty_query_gets_a_message_and_no_results(browser):
    enter(browser, "query", "the cat")
    element(browser, "#search").click()
    until(browser, lambda: rows(browser))
    enter(browser, "query", "   ")
    element(browser, "#search").click()
    until(browser, lambda: element(browser, "#search-message").text == "Type a query first.")
    assert rows(browser) == []


@pytest.mark.slow
def test_a_threshold_that_hides_everything_gets_a_message_with_the_best_score(browser, index):
    box = element(browser, "input[type=number][aria-label*='Lowest cosine similarity']")
    enter(browser, "query", QUERY)
    box.send_keys("\ue009a\ue000" + "0.99")  # replaces what control + a selects
    element(browser, "#search").click()
    best = index.search(QUERY, top_k=1, threshold=None)[0][1]
    message = (
        "No sentence has a cosine similarity of at least 0.99 with this query. The best one has "
        f"{best:.2f}: lower the threshold."
    )
    until(browser, lambda: element(browser, "#search-message").text == message)
    assert rows(browser) == []


@pytest.mark.slow
def test_two_sentences_are_compared(browser, model):
    element(browser, "#compare-tab-button").click()
    enter(browser, "first", SENTENCES[0])
    element(browser, "#compare").click()
    message = "Type both sentences: the second one is empty."
    until(browser, lambda: element(browser, "#cosine").text == message)
    enter(browser, "second", SENTENCES[2])
    element(browser, "#compare").click()
    score = model.similarity(SENTENCES[0], SENTENCES[2])
    until(browser, lambda: element(browser, "#cosine").text == f"Cosine: {score:.4f}")


@pytest.mark.slow
def test_the_heat_map_shows_all_similarities_and_offers_them_as_csv(browser, model):
    element(browser, "#heat-tab-button").click()
    enter(browser, "lines", SENTENCES[0])
    element(browser, "#draw").click()
    message = "Type 2 to 40 sentences, one per line; there are 1."
    until(browser, lambda: element(browser, "#heat-message").text == message)
    enter(browser, "lines", "\n".join(SENTENCES[:4]))
    element(browser, "#draw").click()
    cells = until(browser, lambda: browser.find_elements("css selector", "#heat tbody td"))
    expected = model.similarity(SENTENCES[:4], SENTENCES[:4])
    assert [cell.text for cell in cells] == [f"{score:.2f}" for score in expected.flatten().tolist()]
    header, *table = downloaded(browser, "#heat")
    assert header == ["model", "sentence", *SENTENCES[:4]]
    torch.testing.assert_close(
        torch.tensor([[float(score) for score in row[2:]] for row in table]), expected, rtol=0, atol=1e-5
    )


@pytest.mark.slow
def test_geometry_measures_the_sentences_of_the_index_and_the_positive_pairs(browser, model):
    element(browser, "#geometry-tab-button").click()
    element(browser, "#measure").click()
    cells = until(browser, lambda: browser.find_elements("css selector", "#geometry tbody td"))
    first, second = model.encode([SENTENCES[0], SENTENCES[1]]), model.encode([SENTENCES[4], SENTENCES[2]])
    expected = [f"{alignment(first, second):.4f} (2 pairs)", f"{uniformity(model.encode(SENTENCES)):.4f}", "6"]
    assert [cell.text for cell in cells][1:] == expected


@pytest.mark.slow
def test_the_browser_loads_nothing_from_other_hosts(browser, demo):
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    ours = urllib.parse.urlsplit(demo[0]).netloc
    assert any(ours in url for url in urls)
    elsewhere = {urllib.parse.urlsplit(url).netloc for url in urls if url.startswith("http")} - {ours}
    assert not elsewhere
    assert not errors(browser)


def test_the_server_connects_to_no_other_host(demo, folders):
    hosts = set((folders / "hosts").read_text().split())
    assert hosts <= {"127.0.0.1", "localhost", "None"}
    assert "127.0.0.1" in hosts


def ask(address, path, data=None, **headers):
    """Return the status and the text of an answer."""
    request = urllib.request.Request(address + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def call(address, name, *data):
    """Call a function of the page as its own script does, and return what it answers."""
    body = json.dumps({"data": data}).encode()
    status, text = ask(address, f"gradio_api/call/{name}", body, **{"Content-Type": "application/json"})
    assert status == 200, text
    return ask(address, f"gradio_api/call/{name}/{json.loads(text)['event_id']}")[1]


def test_only_the_page_itself_gets_answers(demo):
    address = demo[0]
    assert ask(address, "")[0] == 200
    assert ask(address, "", Host="evil.example")[0] == 403
    assert ask(address, "gradio_api/call/search", b"{}", Origin="https://evil.example")[0] == 403
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nhello\r\n--x--\r\n'
    upload = ask(address, "gradio_api/upload", form, **{"Content-Type": "multipart/form-data; boundary=x"})
    assert upload == (403, "the demo takes no files")
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=WAIT)
    connection.putrequest("POST", "/gradio_api/call/search")
    connection.putheader("Content-Length", str(2**21))
    connection.endheaders()  # the answer comes before the body is sent
    assert connection.getresponse().status == 413


def test_long_texts_and_large_numbers_are_answered_at_once(demo):
    address = demo[0]
    start = time.monotonic()
    for name, data in (("search", [4, -1]), ("compare", ["dog"]), ("similarities", [])):
        text = "a cat " * 2000 + "\na dog"
        assert "A text may have 10,000 characters" in call(address, name, text, *data)
    assert time.monotonic() - start < WAIT
    assert "is greater than maximum value" in call(address, "search", "the dog", 10**9, -1)
    assert "the dog ran" in call(address, "search", "the dog", 100, -1)


def test_the_server_can_be_interrupted(demo):
    _, process = demo
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 0


# --- the command ----------------------------------------------------------------------------------------------------


def test_two_indexes_are_searched_side_by_side(index):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    page = build_demo([index, index])
    search = next(function.fn for function in page.fns.values() if function.api_name == "search")
    markup, message = search("a cat", 2, -1)
    assert markup.count("<table ") == 2 and markup.count("<h3>") == 2 and message == ""
    markup, message = search("a cat", 2, 1)
    assert "<table" not in markup and message.count("lower the threshold") == 2


def test_a_port_in_use_is_an_error(folders):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1, port {port}: name another --port"):
            demo_main(["--index", str(folders / "index"), "--port", str(port), "--device", "cpu"])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--port", "70000"], "--port must be between 1 and 65535, got 70000"),
        (["--top_k", "0"], "argument --top_k: must be a whole number of at least 1, got 0"),
        (["--threshold", "1.5"], "argument --threshold: must be a cosine similarity, between -1 and 1, got 1.5"),
        (["--index", "a", "b", "c"], "--index takes one or two folders, got 3"),
        (["--index", "a", "b", "--pooler", "avg"], "--model and --pooler_type belong to one index"),
    ],
)
def test_a_setting_out_of_range_is_a_usage_error(options, message, capsys):
    with pytest.raises(SystemExit) as ended:
        demo_main(["--index", "absent", *options])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_without_an_index_is_an_error(tmp_path):
    pytest.importorskip("gradio", reason="the extra `demo` is not installed")
    with pytest.raises(ValueError, match="not a folder that an index was saved in"):
        demo_main(["--index", str(tmp_path)])


def test_without_gradio_the_message_names_the_extra(index, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "gradio":
            raise ImportError("No module named 'gradio'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"simcse-hf\[demo\]"):
        build_demo([index])
