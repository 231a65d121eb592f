"""A real Chromium without a screen, that asks nobody but the service under test for anything, and tells what it asked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service as DriverProcess
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.processes import wait_for

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--lang=en-US",
)

T = TypeVar("T")


def found(program: str, package: str) -> str:
    """The path of an installed program; nothing is ever downloaded."""
    path = shutil.which(program)
    assert path is not None, f"{program} is missing: apt-get install {package}, or leave these tests out with -m 'not console'"
    return path


class Browser:
    """The driver, and what the tests do with it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def resize(self, width: int, height: int, scale: float = 1.0, dark: bool = False) -> None:
        """A screen of so many pixels, and the colours that its owner prefers."""
        phone = width < 700
        screen = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text of the last element that fits; empty where there is none, or it was just replaced."""
        try:
            return (self.all(selector) or [None])[-1].text  # type: ignore[union-attr]
        except (AttributeError, StaleElementReferenceException):
            return ""

    def until(self, condition: Callable[[], T], what: str, timeout: float = 20.0) -> T:
        """Waits; a failure tells what the page says instead."""
        try:
            return wait_for(condition, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page says:\n{self.text('body')}") from None

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def screenshot(self, path: Path) -> None:
        assert self.driver.get_screenshot_as_file(str(path))

    def requests(self) -> list[str]:
        """The addresses that pages asked for since this was called last."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the browser's console told of since this was called last: errors of scripts, policies and files."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in a folder."""
    options = Options()
    options.binary_location = found("chromium", "chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.set_capability("goog:perfLoggingPrefs", {"enableNetwork": True})
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = DriverProcess(found("chromedriver", "chromium-driver"), env=environment)
    driver = webdriver.Chrome(options=options, service=process)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
