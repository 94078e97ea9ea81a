"""The Prefect UI as a person sees it: pages are opened in a real browser, and only what is visible counts.

The UI is a single-page application: nothing is there when the page has loaded, so every look waits until what it
looks for is visible.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

if TYPE_CHECKING:  # only these tests need it
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
"""Debian's packages chromium and chromium-driver."""

SECONDS = 30.0
"""Within which a page has to show what is expected of it."""

WIDTH, HEIGHT = 1440, 1000
MOST_BYTES = 300_000
"""Maximum size of a picture in docs/."""

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # in a container there is no user namespace for it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
)

# What has this text and no child that has it too. An element without a box has no offsetParent.
FIND = """
const wanted = arguments[0].toLowerCase();
const says = e => e.innerText !== undefined && e.innerText.trim().toLowerCase() === wanted;
return [...document.body.querySelectorAll('*')].filter(
    e => e.offsetParent !== null && says(e) && ![...e.children].some(says));
"""

TABLES = """
return [...document.querySelectorAll('table')].filter(t => t.offsetParent !== null).map(
    t => [...t.rows].map(r => [...r.cells].map(c => c.innerText.trim())));
"""

IMAGES = """
return [...document.images].filter(i => i.offsetParent !== null && i.src.startsWith('data:')).map(
    i => ({alt: i.alt, natural: i.complete ? i.naturalWidth : 0}));
"""

FIELDS = """
const label = i => i.labels && i.labels.length ? i.labels[0] : i.closest('label, .p-label, .schema-form-property');
const name = i => label(i) ? label(i).innerText.trim().split('\\n')[0] : '';
return [...document.querySelectorAll('input, textarea')].filter(i => i.offsetParent !== null).map(
    i => [name(i), i.type === 'checkbox' ? String(i.checked) : i.value]);
"""

Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Shown:
    """An image of a page: its text, and its own width in pixels; 0 when it could not be decoded."""

    alt: str
    natural: int


class Ui:
    """The UI of one server in one browser window."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self._driver, self._url = driver, url

    def open(self, path: str, *texts: str) -> None:
        """Go to a page, and wait until it shows these texts."""
        self._driver.get(f"{self._url}/{path}")
        self.wait_for(*texts)

    def reload(self, *texts: str) -> None:
        """Load the page again, and wait until it shows these texts."""
        self._driver.refresh()
        self.wait_for(*texts)

    def visit(self, url: str) -> None:
        """Go to a page of any server."""
        self._driver.get(url)

    def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.until(lambda: self._driver.find_elements("css selector", selector), lambda: f"no {selector}")[0].send_keys(
            text
        )

    def asynchronous(self, script: str, *arguments: str) -> Any:
        """What a script of the page hands to its last argument, a function."""
        return self._driver.execute_async_script(script, *arguments)

    def text(self) -> str:
        """All text that can be seen, also by scrolling."""
        return str(self._driver.execute_script("return document.body.innerText"))

    def wait_for(self, *texts: str, seconds: float = SECONDS) -> None:
        """Wait until the page shows all texts."""

        def missing() -> list[str]:
            text = " ".join(self.text().split())
            return [wanted for wanted in texts if wanted not in text]

        self.until(lambda: not missing(), lambda: f"not on the page: {missing()}", seconds)

    def until(self, look: Callable[[], Seen], what: Callable[[], str], seconds: float = SECONDS) -> Seen:
        """Look until there is something to be seen, and return it; `what` was expected, for the message."""
        deadline = time.monotonic() + seconds
        while not (seen := look()):
            assert time.monotonic() < deadline, (
                f"{self._driver.current_url}: {what()} after {seconds:.0f} s. The page says:\n{self.text()}"
            )
            time.sleep(0.2)
        return seen

    def click(self, text: str) -> None:
        """Click on what has exactly this text, whatever the case of its letters."""
        self.until(lambda: self._find(text), lambda: f"nothing to click on says {text!r}")[-1].click()

    def click_link(self, path: str) -> None:
        """Click on a link to a page."""
        selector = f'a[href$="{path}"]'
        self.until(lambda: self._driver.find_elements("css selector", selector), lambda: f"no link to {path}")[
            0
        ].click()

    def follow(self) -> None:
        """Look at the page that was opened last, in a window of its own or not."""
        self._driver.switch_to.window(self._driver.window_handles[-1])

    def tab(self, name: str, *texts: str, height: int = HEIGHT) -> None:
        """Open a tab of a run's page. Of a long list only what is in the window is there at all: `height`."""
        self._driver.set_window_size(WIDTH, height)
        self.click(name)
        self.wait_for(*texts)
        self._driver.set_window_size(WIDTH, HEIGHT)

    def tables(self) -> list[list[list[str]]]:
        """The cells of every table, heads included."""
        return list(self.until(lambda: self._driver.execute_script(TABLES), lambda: "no table"))

    def images(self) -> list[Shown]:
        """The images that are part of the page itself, once there are any and each has been decoded."""

        def look() -> list[Shown]:
            found = [Shown(str(i["alt"]), int(i["natural"])) for i in self._driver.execute_script(IMAGES)]
            return found if all(image.natural for image in found) else []

        return self.until(look, lambda: f"no images, or broken ones: {self._driver.execute_script(IMAGES)}")

    def fields(self) -> dict[str, str]:
        """Label to value of the form's text fields."""
        return dict(self._driver.execute_script(FIELDS))

    def drawn_colours(self, selector: str) -> int:
        """Number of colours in an element such as a canvas; an empty one has one or two."""
        element = self.until(lambda: self._driver.find_elements("css selector", selector), lambda: f"no {selector}")[0]
        shown = Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")
        return len(shown.getcolors(shown.width * shown.height) or ())

    def screenshot(self, file: Path, height: int = HEIGHT) -> None:
        """The page as a picture for docs/: readable, and small enough for a repository."""
        self._driver.set_window_size(WIDTH, height)
        time.sleep(1.0)  # for what slides into place
        image = Image.open(io.BytesIO(self._driver.get_screenshot_as_png())).convert("RGB")
        few = image.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        file.parent.mkdir(parents=True, exist_ok=True)
        few.save(file, optimize=True)
        self._driver.set_window_size(WIDTH, HEIGHT)
        assert file.stat().st_size < MOST_BYTES, f"{file}: {file.stat().st_size} bytes"

    def _find(self, text: str) -> list[WebElement]:
        return list(self._driver.execute_script(FIND, text))


@contextmanager
def browser(url: str, *arguments: str) -> Iterator[Ui]:
    """Chromium without a window, at the UI of a server; ended with all its processes at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    for program in (CHROMIUM, DRIVER):
        assert program.exists(), f"{program} is missing: apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (*ARGUMENTS, *arguments, f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        driver.set_page_load_timeout(SECONDS)
        yield Ui(driver, url)
    finally:
        driver.quit()
