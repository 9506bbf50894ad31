"""The site and the report of `simcse-hf analyze` open in a browser, in light and dark, without an error."""

import functools
import http.server
import threading
from pathlib import Path

import pytest
from browser_helpers import errors, open_browser
from evaluation_helpers import BagOfWords, write_stsb

from simcse_hf.publishing.analysis import document, report
from simcse_hf.publishing.analysis.models import measure_model, prepare_data

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ("", "training/", "papers/simcse/", "results/simcse-3/")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, and return the address at which it is served."""
    config = pytest.importorskip("mkdocs.config", reason="needs the docs extra")
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    """Write a report of two models, and return its address."""
    pytest.importorskip("matplotlib", reason="needs the plot extra")
    folder = tmp_path_factory.mktemp("report")
    write_stsb(folder / "data")
    data = prepare_data(("STSBenchmark",), folder / "data")
    models = {f"width {dim}": measure_model(BagOfWords(dim), data, {"model": str(dim)}) for dim in (16, 32)}
    report.write_analysis(folder, document.analyse(models, resamples=50), models, "simcse-hf analyze", {})
    return (folder / "report.html").as_uri()


def open_page(browser, address, scheme):
    """Open a page in a browser set to a colour scheme; return the brightness of its background, from 0 to 255."""
    preference = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preference})
    browser.get(address)
    browser.execute_script("localStorage.clear()")  # the site remembers the scheme of its first visit
    browser.refresh()
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]) / 3


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_site_opens_without_an_error_in_light_and_dark(browser, site, page):
    dark, light = (open_page(browser, site + page, scheme) for scheme in ("dark", "light"))
    assert dark < 80 < 200 < light
    assert browser.find_element("css selector", "h1").text
    assert not errors(browser)


def test_the_report_opens_without_an_error_in_light_and_dark(browser, analysis):
    dark, light = (open_page(browser, analysis, scheme) for scheme in ("dark", "light"))
    assert dark < 80 < 200 < light
    drawn = browser.find_elements("css selector", "svg")
    assert len(drawn) >= 3 and all(picture.size["height"] > 100 for picture in drawn)
    assert not errors(browser)
