"""A real browser on the page: Debian's headless Chromium, and everything that it complains of."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from lab.missing import MissingError
from lab.waiting import until
from playwright.sync_api import Browser, Locator, Page, Route, sync_playwright
from web_kit import T0, Running

_CHROMIUM: Final = "chromium-headless-shell"
_ARGUMENTS: Final = ("--no-sandbox", "--disable-background-networking", "--disable-component-update")
#: What the browser writes to its console for an answer that is an error, or none: the page says that in words.
_ANSWERS: Final = "Failed to load resource"
#: The longest that something may take to be seen, seconds.
SEEN_S: Final = 20.0
WIDE: Final = (1440, 900)
PHONE: Final = (360, 780)


class Clock:
    """The server's clock: it runs from `T0` + 42 s on, and can be put forward."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.ahead = 0.0

    def __call__(self) -> float:
        return T0 + 42 + self.ahead + time.monotonic() - self._began


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser.

    Raises:
        MissingError: it is not installed.
    """
    path = shutil.which(_CHROMIUM)
    if path is None:
        raise MissingError(f"no {_CHROMIUM} is here: apt-get install {_CHROMIUM}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        yield browser
        browser.close()


class Look:
    """One visit of the page. `page` is Playwright's; what goes wrong in it is collected in `complaints`."""

    def __init__(self, page: Page, server: Running) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        page.set_default_timeout(SEEN_S * 1000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.route("**/*", self._route)

    def _console(self, message: Any) -> None:
        if message.type in {"error", "warning"} and _ANSWERS not in message.text:
            self.complaints.append(f"{message.type}: {message.text}")

    def _route(self, route: Route) -> None:
        if route.request.url.startswith((self.server.url + "/", "data:")):
            route.continue_()
        else:
            self.complaints.append(f"a request left: {route.request.url}")
            route.abort()

    def open(self, fragment: str = "", *, live: bool = True) -> Look:
        """Opens the page, and waits until it shows what the server knows."""
        self.page.goto(f"{self.server.url}/{fragment}")
        if live:
            self.see("#fresh-words", "live")
        return self

    def at(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def text(self, selector: str) -> str:
        return " ".join(self.at(selector).first.inner_text().split())

    def see(self, selector: str, words: str) -> None:
        """Waits until the element says these words.

        Raises:
            AssertionError: it never did.
        """
        said = [""]

        def says() -> bool:
            said[0] = self.text(selector)
            return words in said[0]

        self.wait(says, lambda: f"{selector} says {said[0]!r}, not {words!r}")

    def wait(
        self, happened: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not come true"
    ) -> None:
        """Waits until `happened` is true. The page may not evaluate strings, so it is asked from outside."""
        try:
            until(happened, SEEN_S)
        except TimeoutError:
            raise AssertionError(otherwise()) from None

    def js(self, code: str, argument: object = None) -> Any:
        """The value of an expression or function in the page."""
        return self.page.evaluate(code, argument)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def focused(self) -> str:
        """What has the focus: its text, or its id."""
        return str(self.js("(document.activeElement.innerText || document.activeElement.id).trim()"))

    def tab_to(self, words: str, *, most: int = 80) -> None:
        """Presses Tab until what has the focus says these words.

        Raises:
            AssertionError: nothing on the way says so.
        """
        seen = []
        for _ in range(most):
            self.press("Tab")
            seen.append(self.focused())
            if words in seen[-1]:
                return
        raise AssertionError(f"Tab never came to {words!r}, but to {seen}")

    def colour(self, name: str) -> tuple[int, ...]:
        """A colour of the stylesheet, as red, green and blue."""
        return tuple(
            self.js(
                "name => { const c = document.createElement('canvas').getContext('2d');"
                " c.fillStyle = getComputedStyle(document.body).getPropertyValue('--' + name);"
                " c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3); }",
                name,
            )
        )

    def pixels(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is drawn where the map's focus is: the colour in the middle, and that of the upper left corner."""
        return tuple(
            tuple(each)
            for each in self.js(
                """() => {
                    const map = document.getElementById('map'), ring = document.getElementById('ring');
                    const from = map.getBoundingClientRect(), box = ring.getBoundingClientRect();
                    const scale = map.width / from.width, x = box.left - from.left, y = box.top - from.top;
                    const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
                    const at = (dx, dy) => {
                        const left = Math.floor((x + dx) * scale), top = Math.floor((y + dy) * scale);
                        copy.drawImage(map, left, top, 1, 1, 0, 0, 1, 1);
                        return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
                    };
                    return [at(box.width / 2, box.height / 2 + 5), at(4, 4)];
                }"""
            )
        )  # type: ignore[return-value]


@contextmanager
def looking(browser: Browser, server: Running, *, size: tuple[int, int] = WIDE, **context: Any) -> Iterator[Look]:
    """A visit, in a context of its own; at its end nothing may have gone wrong in it."""
    visit = browser.new_context(viewport={"width": size[0], "height": size[1]}, **context)
    try:
        look = Look(visit.new_page(), server)
        yield look
        assert look.complaints == [], look.complaints
    finally:
        visit.close()
