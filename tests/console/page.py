"""The console as its user sees it."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from examples.scenes import png, random_scene
from tests.console.browser import Browser
from tests.processes import ROOT

SCENE = ROOT / "examples" / "scene.png"
ANSWER = "A red circle at the top left and a blue square at the bottom right."
_numbers = count(1)


class Page:
    """A tab with the console at ``url``; pictures that it needs are made in ``folder``."""

    def __init__(self, browser: Browser, url: str, folder: Path) -> None:
        self.browser = browser
        self.url = url
        self._folder = folder

    def open(self) -> None:
        """Loads the page, and waits until it is in work."""
        self.browser.driver.get(self.url)
        self.browser.until(lambda: self.browser.text("#summary"), "a word of the encoders")

    def new_picture(self) -> Path:
        """A picture that nobody has asked about yet."""
        path = self._folder / f"scene-{next(_numbers)}.png"
        path.write_bytes(png(random_scene(random.Random(1)), seed=random.SystemRandom().getrandbits(32)))
        return path

    def add(self, picture: Path) -> None:
        """Chooses a picture as by the button's dialog."""
        there = len(self.browser.all("#pictures img"))
        self.browser.one("#files").send_keys(str(picture))
        self.browser.until(lambda: len(self.browser.all("#pictures img")) > there, "the picture's thumbnail")

    def ask(self, question: str, picture: Path | None = None) -> None:
        """Sends a question, and waits until it is answered one way or the other."""
        if picture is not None:
            self.add(picture)
        self.browser.one("#question").send_keys(question, Keys.ENTER)
        self.browser.until(self.settled, "an answer")

    def settled(self) -> bool:
        """Whether there is an answer, and none is coming."""
        return bool(self.browser.all(".message.model")) and not self.browser.all(".message[aria-busy=true]")

    @property
    def answer(self) -> str:
        """The last answer's text."""
        return self.browser.text(".message.model:last-child .text")

    @property
    def facts(self) -> str:
        """What is told about the last answer."""
        return self.browser.text(".message.model:last-child footer")

    @property
    def stages(self) -> list[str]:
        """The stages in the last answer's time line, in order."""
        rows = self.browser.all(".message.model:last-child tr[data-stage]")
        return [row.get_attribute("data-stage") or "" for row in rows]

    @property
    def encoder(self) -> str:
        """The state of the only encoder, in symbol and word."""
        return self.browser.text("#encoder-list .state")

    def option(self, name: str, value: str) -> None:
        """Sets a field under "Options"."""
        self.browser.run("document.getElementById('options').open = true")
        field = self.browser.one(f"#{name}")
        field.clear()
        field.send_keys(value)

    def choose_fault(self, kind: str, **parameters: object) -> None:
        """Fills in the fault's form."""
        self.browser.until(lambda: self.browser.all("#fault-kind option"), "the kinds of faults")
        Select(self.browser.one("#fault-kind")).select_by_value(kind)
        for name, value in parameters.items():
            self.browser.one(f"#fault-fields [name={name}]").send_keys(str(value))
