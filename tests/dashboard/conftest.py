"""A real browser, one for each module; windows in it that note whatever goes wrong.

Playwright's own loop must not outlive the module: tests that run on asyncio's could not start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.architecture.tree import ROOT
from tests.dashboard.product import ADMIN, VIEWER, Product

AXE = ROOT / "controlplane" / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
Scheme = Literal["light", "dark"]
LONGEST_MS = 60_000
"""Until a page shows what it should: a guard against hanging, for busy machines."""

expect.set_options(timeout=LONGEST_MS)


class Window:
    """A page in the browser. Paths are the dashboard's."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.url = url
        self.wrong: list[str] = []
        """Console errors, uncaught exceptions, dialogs. A test ends with none."""
        self.page.set_default_timeout(LONGEST_MS)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialog"), dialog.dismiss()))

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, token: str) -> Page:
        self.open("/login")
        self.page.get_by_label("Admin or viewer token").fill(token)
        self.page.get_by_role("button", name="Log in").click()
        return self.page

    def expected(self, *statuses: int) -> None:
        """Forget that these statuses were answered: browsers call each an error."""
        marks = tuple(f"status of {status} " for status in statuses)
        self.wrong = [each for each in self.wrong if not any(mark in each for mark in marks)]

    def barriers(self, *rules: str) -> list[str]:
        """What axe finds, by all its rules or these, that keeps somebody out."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        options = {"runOnly": list(rules)} if rules else {}
        found: dict[str, Any] = self.page.evaluate("options => axe.run(options)", options)
        return [
            f"{each['id']} {[node['target'] for node in each['nodes']]}: {each['help']}"
            for each in found["violations"]
        ]

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text} at {self.page.url}")


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("product")
    with Product(f"sqlite+aiosqlite:///{folder / 'obleth.db'}") as product:
        yield product


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "chromium is missing; as root: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, product: Product) -> dict[str, Any]:
    """The cookies of an admin and of a viewer."""
    found = {}
    for role, token in (("admin", ADMIN), ("viewer", VIEWER)):
        context = browser.new_context()
        Window(context, product.url).log_in(token).wait_for_url(f"{product.url}/")
        found[role] = context.storage_state()
        context.close()
    return found


OpenWindow = Callable[..., Window]


@pytest.fixture
def new_window(
    browser: Browser, product: Product, signed_in: dict[str, Any]
) -> Iterator[OpenWindow]:
    """Opens windows: of an admin, a `viewer` or, with None, a stranger."""
    windows: list[Window] = []
    with ExitStack() as stack:

        def new(role: str | None = "admin", scheme: Scheme = "light", **options: Any) -> Window:
            context = browser.new_context(
                color_scheme=scheme,
                storage_state=None if role is None else signed_in[role],
                viewport={"width": 1360, "height": 860},
                **options,
            )
            stack.callback(context.close)
            windows.append(Window(context, product.url))
            return windows[-1]

        yield new
        assert [each for window in windows for each in window.wrong] == []


@pytest.fixture
def window(new_window: OpenWindow) -> Window:
    """An admin's."""
    return new_window()
