"""The console as a tool for whoever operates the pair: faults, keys, keyboards, phones, and eyes that need contrast."""

from __future__ import annotations

import io
import os
import signal
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.console.browser import Browser
from tests.console.conftest import Watched
from tests.console.page import ANSWER, SCENE, Page
from tests.processes import ROOT, Service

pytestmark = pytest.mark.console


def test_a_fault_is_set_takes_effect_and_is_cleared_by_buttons(page: Page, watched: Watched) -> None:
    page.choose_fault("overload", retry_after=7)
    assert "refused as for load" in page.browser.text("#fault-about")
    page.browser.one("#fault-set").click()
    page.browser.until(
        lambda: "overload · retry_after 7 · fired 0" in page.browser.text("#fault-list"), "the fault in the list"
    )
    page.ask("Describe the picture.", page.new_picture())
    assert page.browser.text(".failed").startswith("503 encoder_overloaded")
    assert "Retry after: 7 s" in page.browser.text(".failed")
    page.browser.until(lambda: "fired 1" in page.browser.text("#fault-list"), "that it has fired")
    page.browser.until(lambda: "encoder_overloaded" in page.browser.text("#failure-list"), "the failure in the list")
    page.browser.one("#fault-list button").click()
    page.browser.until(lambda: not page.browser.all("#fault-list li"), "an empty list")
    assert page.browser.text("#faults-note") == "The fault is cleared."
    page.browser.one(".failed button").click()
    page.browser.until(lambda: "finish: stop" in page.facts, "an answer")
    for kind in ("drop", "corrupt"):
        page.choose_fault(kind)
        page.browser.one("#fault-set").click()
        page.browser.until(lambda kind=kind: kind in page.browser.text("#fault-list"), f"{kind} in the list")
    assert len(httpx.get(f"{watched.encoder.url}/v1/faults", trust_env=False).json()["faults"]) == 2
    page.browser.one("#fault-clear").click()
    page.browser.until(lambda: not page.browser.all("#fault-list li"), "an empty list")
    assert httpx.get(f"{watched.encoder.url}/v1/faults", trust_env=False).json()["faults"] == []


def test_an_encoder_that_hangs_is_shown_as_lost(page: Page, watched: Watched) -> None:
    page.browser.until(lambda: page.encoder == "● ready", "a ready encoder")
    watched.encoder.process.send_signal(signal.SIGSTOP)
    try:
        page.ask("Describe the picture.", page.new_picture())
        assert page.browser.text(".failed").startswith("503 encoder_lost")
        page.browser.until(lambda: page.encoder == "○ lost", "an encoder that is lost")
    finally:
        watched.encoder.process.send_signal(signal.SIGCONT)
    page.browser.until(lambda: page.encoder == "● ready", "a ready encoder")


def test_the_keyboard_is_enough(page: Page) -> None:
    browser = page.browser

    def press(*keys: str) -> None:
        ActionChains(browser.driver).send_keys(*keys).perform()

    def focused() -> str:
        return str(browser.run("return document.activeElement.id || document.activeElement.textContent"))

    assert focused() == "question"
    press("Who are")
    ActionChains(browser.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    press("you?")
    assert browser.one("#question").get_attribute("value") == "Who are\nyou?"
    assert browser.all(".message") == []
    browser.one("#question").clear()
    page.option("further", '{"ignore_eos": true, "max_tokens": 1900}')
    browser.run("document.getElementById('question').focus()")
    press("Who are you?", Keys.ENTER)
    browser.until(lambda: page.answer, "the beginning of an answer")
    press(Keys.ESCAPE)
    browser.until(lambda: "finish: stopped" in page.facts, "the end of the answer")
    assert focused() == "question"
    seen = []
    for _ in range(3):
        press(Keys.TAB)
        seen.append(focused())
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
    assert seen == ["add", "fresh", "send"]
    browser.one("#question").send_keys(" ")
    browser.run("document.activeElement.blur(); window.getSelection().removeAllRanges()")
    browser.run("document.querySelector('.skip').focus()")
    assert browser.one(".skip").is_displayed()
    assert browser.one(".skip").location["y"] >= 0
    press(Keys.ENTER)
    browser.until(lambda: focused() == "question", "the focus in the question")


def test_the_key_is_asked_for_when_it_is_needed(browser: Browser, tmp_path: Path) -> None:
    with Service("language", tmp_path, encoders="", api_key="one,two") as service:
        browser.driver.get(service.url)
        browser.until(lambda: browser.one("#key").is_displayed(), "the field for the key")
        assert browser.text("#summary") == "An API key is needed"
        browser.complaints()
        browser.one("#key-value").send_keys("wrong", Keys.ENTER)
        browser.until(lambda: browser.one("#key").is_displayed(), "the field again")
        browser.one("#key-value").send_keys("two", Keys.ENTER)
        browser.until(lambda: browser.text("#summary") == "0 of 0 encoders ready", "the encoders")
        assert not browser.one("#key").is_displayed()
        browser.until(lambda: "invalid_api_key" in browser.text("#failure-counts"), "the calls without a key")
        page = Page(browser, service.url, tmp_path)
        page.ask("Who are you?")
        assert page.answer.startswith("I am a small demo model")
        assert not browser.one("#faults").is_displayed()
        assert browser.run("return localStorage.length") == 0
        assert {line for line in browser.complaints() if "status of 401" not in line} == set()


def test_a_phone_shows_one_column(page: Page) -> None:
    page.browser.resize(390, 844, scale=2)
    page.ask("Describe the picture.", SCENE)
    assert page.answer == ANSWER
    assert page.browser.run("return document.documentElement.scrollWidth") <= 390
    chat, state = page.browser.one("#chat").rect, page.browser.one("aside").rect
    assert chat["width"] > 380
    assert state["y"] >= chat["y"] + chat["height"] - 1
    page.browser.one("nav a[href='#failures']").click()
    top = "return document.getElementById('failures').getBoundingClientRect().top"
    page.browser.until(lambda: page.browser.run(top) < 700, "the failures on the screen")


CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const [x, y, z] = [r, g, b].map((part) => linear(part / 255));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const low = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.disabled || element.closest(".hidden")) continue;
  const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push(`${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
}
return low;
"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(page: Page, watched: Watched, dark: bool) -> None:
    page.browser.resize(1180, 820, dark=dark)
    page.choose_fault("delay", seconds="0")
    page.browser.one("#fault-set").click()
    page.ask("Describe the picture.", SCENE)
    page.option("further", '{"temperature": -1}')
    page.browser.one("#question").send_keys("Who are you?", Keys.ENTER)
    page.browser.until(lambda: page.browser.all(".failed"), "a refusal")
    page.browser.until(lambda: page.browser.all("#fault-list li"), "the fault in the list")
    page.browser.until(lambda: "invalid_request" in page.browser.text("#failure-list"), "the failure in the list")
    page.browser.run("document.querySelector('#encoder-list li').className = 'is-down'")
    low = page.browser.run(CONTRAST)
    page.browser.one("#fault-clear").click()
    page.browser.until(lambda: not page.browser.all("#fault-list li"), "an empty list")
    assert low == []
    colour = page.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") != dark


NAMES = """
return [...document.querySelectorAll("button, input, select, textarea, summary, a, img")]
  .filter((element) => element.checkVisibility())
  .filter((element) => !(element.labels?.length || element.ariaLabel || element.alt || element.textContent.trim()))
  .map((element) => element.outerHTML);
"""


def test_everything_has_a_name_and_a_place(page: Page) -> None:
    page.ask("Describe the picture.", SCENE)
    page.browser.run("document.getElementById('options').open = true")
    assert page.browser.run(NAMES) == []
    for landmark in ("header", "main", "aside", "nav", "#messages[role=log]", "#summary[role=status]"):
        assert len(page.browser.all(landmark)) == 1, landmark
    for table in page.browser.all("table.line"):
        assert table.get_attribute("textContent").count("Stage") == 1
    levels = page.browser.run("return [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


DOCS = ROOT / "docs"
LARGEST = 150_000


def kept(browser: Browser, name: str) -> None:
    """Writes what is on the screen into docs/, in few colours and so in few bytes, if UPDATE_DOCS=1."""
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    if os.environ.get("UPDATE_DOCS"):
        picture.quantize(128, dither=Image.Dither.NONE).save(DOCS / f"console-{name}.png", optimize=True)


def test_its_pictures_in_the_documents(page: Page, watched: Watched, tmp_path: Path) -> None:
    browser = page.browser
    # As good as the scene, but nobody has asked about it yet.
    picture = Image.open(SCENE).convert("RGB")
    picture.putpixel((0, 0), (1, 2, 3))
    picture.save(tmp_path / "scene.png")
    browser.resize(1180, 900)
    page.ask("Describe the picture.", tmp_path / "scene.png")
    assert page.answer == ANSWER
    kept(browser, "light")
    browser.resize(1180, 900, dark=True)
    kept(browser, "dark")
    browser.resize(390, 844, scale=1.5)
    kept(browser, "phone")
    browser.resize(1180, 820)
    browser.one("#fresh").click()
    watched.encoder.kill()
    try:
        page.ask("Describe the picture.", page.new_picture())
        browser.until(lambda: page.encoder == "✕ down", "an encoder that is down")
        browser.until(lambda: browser.all("#failure-list li"), "the failure in the list")
        kept(browser, "503")
    finally:
        watched.encoder.start()
        watched.language.wait_until_ready(encoders=1)
    for name in ("light", "dark", "phone", "503"):
        assert 10_000 < (DOCS / f"console-{name}.png").stat().st_size < LARGEST, name
