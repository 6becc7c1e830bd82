"""A browser for the tests that look at pages, with nothing but this machine in reach."""

import http.server
import shutil
import threading
from functools import partial

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser(site):
    executable = find_browser()
    if not executable:
        pytest.skip(
            f"No browser found ({', '.join(BROWSERS)}): the pages are not looked at in one."
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(site):
    """The site's address on a server of this machine."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=site))
    serving.handle_error = lambda *_: None  # a browser that closes a page hangs up on us
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()


class Visits:
    """Opens pages in one window, with nothing but this machine in reach, and hears complaints."""

    def __init__(self, browser):
        # Without motion, a color is what it is as soon as the theme changes.
        self.context = browser.new_context(
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
        )
        self.context.set_default_timeout(60_000)
        self.context.add_init_script("localStorage.mode = localStorage.theme = 'light'")
        self.context.route(lambda address: not self._is_local(address), self._refuse)
        self.complaints = []

    def open(self, url):
        page = self.context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)
        page.evaluate("() => window.MathJax?.startup?.promise")
        return page

    def close(self):
        self.context.close()
        assert not self.complaints

    def _hear(self, message):
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location}")

    def _is_local(self, address):
        return address.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))

    def _refuse(self, route):
        self.complaints.append(f"asked for {route.request.url}")
        route.abort()


@pytest.fixture
def visits(browser):
    visits = Visits(browser)
    yield visits
    visits.close()
