"""A real browser, the system's Chromium driven by Playwright, whose tabs ask nobody but the page's own server.

What a test saw is kept as pictures in the folder `screenshots` of the project, one of its own for every test.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

PICTURES = Path(__file__).parents[2] / "screenshots"
SERVERS = {"bare", "house", "viewer"}  # fixtures that serve a page
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60_000  # milliseconds; only a broken page takes as long, also on a busy machine
expect.set_options(timeout=PATIENCE)


@dataclass  # without slots: Playwright leaves a note on whoever listens
class Tab:
    """A page of the browser with what it did: whom it asked, and what went wrong in it."""

    page: Page
    pictures: Path
    asked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("request", self._request)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("dialog", self._dialog)

    def keep(self, name: str, *, whole: bool = False) -> None:
        """Takes a picture of what is seen, or of the whole page."""
        self.pictures.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.pictures / f"{name}.png", full_page=whole)

    @property
    def strangers(self) -> list[str]:
        """Requests to anyone but the server of the page."""
        own = urlsplit(self.page.url).netloc
        return [url for url in self.asked if urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc != own]

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(message.text)

    def _dialog(self, dialog: Dialog) -> None:
        """A page of ours opens none: this is a script that ran though it must not."""
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser; of one module, since no event loop can be started elsewhere while Playwright's runs."""
    program = next(found for name in BROWSERS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        # No other process sees these pages, and the sandbox needs rights that a container does not have.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def contexts(chromium: Browser) -> Callable[[bool], BrowserContext]:
    """Light and dark, each kept for a module: what was loaded once is not loaded again by the next test."""

    @cache
    def made(dark: bool) -> BrowserContext:
        context = chromium.new_context(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        context.set_default_timeout(PATIENCE)
        return context

    return made


@pytest.fixture
def tabs(contexts: Callable[[bool], BrowserContext], request: pytest.FixtureRequest) -> Iterator[Callable[..., Tab]]:
    """Opens tabs of a width; at the end nothing went wrong in any, and none asked a stranger."""
    # Their servers first: fixtures end in reverse order, and an open page goes on asking a server that is gone.
    for server in SERVERS & set(request.fixturenames):
        request.getfixturevalue(server)
    opened: list[Tab] = []
    pictures = PICTURES / re.sub(r"\W+", "-", request.node.name).strip("-")
    shutil.rmtree(pictures, ignore_errors=True)

    def make(width: int = 1280, height: int = 800, *, dark: bool = False) -> Tab:
        page = contexts(dark).new_page()
        page.set_viewport_size({"width": width, "height": height})
        tab = Tab(page, pictures)
        tab.listen()
        opened.append(tab)
        return tab

    yield make
    for tab in opened:
        assert tab.faults == []
        assert tab.strangers == []
        tab.page.close()


@pytest.fixture
def tab(tabs: Callable[..., Tab]) -> Tab:
    """A tab as wide as a laptop's."""
    return tabs()
