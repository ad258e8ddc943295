"""A real Chromium without a screen, for tests of the page."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from selenium import webdriver
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

_MISSING = (
    "chromium and chromedriver are not installed; Debian has them as chromium and chromium-driver"
)
_DEADLINE_S = 120.0
_LOOK_S = 0.05

# What JavaScript makes of a value that is missing.
_NO_TEXTS = """(() => {
  const page = document.querySelector('main') ?? document.body;
  const walker = document.createTreeWalker(page, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    if (['null', 'undefined', 'NaN', '[object Object]'].includes(text)) found.push(text);
  }
  return found;
})()"""


@dataclass(frozen=True)
class _NotYet:
    """Why an expression has no value yet."""

    error: str | None

    def __bool__(self) -> bool:
        return False


class Browser:
    """One browser with one window. Skips the test that asks where none is installed.

    With ``OTEL_RL_LAB=required`` the test fails there.

    Args:
        home: Directory for its profile.
        width: Of the window, in pixels.
        height: Of the window, in pixels.
    """

    def __init__(self, home: Path, *, width: int = 1400, height: int = 1000) -> None:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        driver = shutil.which("chromedriver")
        if chromium is None or driver is None:
            if os.environ.get("OTEL_RL_LAB") == "required":
                pytest.fail(_MISSING, pytrace=False)
            pytest.skip(_MISSING)
        options = Options()
        options.binary_location = chromium
        for argument in (
            "--headless=new",
            "--no-sandbox",  # tests run as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--blink-settings=primaryHoverType=2,availableHoverTypes=2",  # as with a mouse
            f"--user-data-dir={home}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self._driver = webdriver.Chrome(options=options, service=Service(driver))
        self._driver.set_script_timeout(_DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.quit()

    def open(self, url: str, page: str) -> None:
        """Open an address anew, and wait until the page of a name is there."""
        self._driver.get("about:blank")
        self._driver.get(url)
        self.wait(f"document.body.dataset.ready === {json.dumps(page)}")

    def get(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self._driver.execute_script(f"return {expression}")

    def do(self, script: str) -> None:
        """Run JavaScript."""
        self._driver.execute_script(script)

    def press(self, keys: str, *, held: str = "") -> None:
        """Type keys, wherever the focus is, while another one is held down."""
        actions = ActionChains(self._driver)
        if held:
            actions.key_down(held).send_keys(keys).key_up(held).perform()
        else:
            actions.send_keys(keys).perform()

    def click(self, selector: str) -> None:
        """Click an element where it is seen."""
        self._driver.find_element(By.CSS_SELECTOR, selector).click()

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        self._wait(expression, bool, "")

    def expect(self, expression: str, value: object) -> None:
        """Wait until an expression has a value: what an event changes is drawn a little later."""
        self._wait(expression, lambda found: found == value, f" to be {value!r}")

    def _wait(self, expression: str, is_so: Callable[[Any], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not is_so(found := self._get_or_error(expression)):
            assert time.monotonic() < deadline, (
                f"waited in vain for {expression}{what}, it is {found!r}; {self.complaints()}"
            )
            time.sleep(_LOOK_S)

    def _get_or_error(self, expression: str) -> Any:
        """Return the value, or the error of one that looks at a part that is not there yet."""
        try:
            return self.get(expression)
        except JavascriptException as error:
            return _NotYet(error.msg)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window, in pixels."""
        self._driver.set_window_size(width, height)

    def as_phone(self, width: int) -> None:
        """Show pages as a phone does, narrower than any window; 0 for the window again."""
        if width:
            metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
            self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        else:
            self._driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def block(self, urls: list[str]) -> None:
        """Load nothing whose address is like one of these, with ``*``; none of them: load all."""
        self._driver.execute_cdp_cmd("Network.enable", {})
        self._driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": urls})
        self._driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": bool(urls)})

    def screenshot(self, path: Path) -> None:
        """Write a picture of the window as PNG."""
        assert self._driver.save_screenshot(str(path))

    def complaints(self) -> list[str]:
        """Return errors of scripts, what the policy has forbidden, and texts that are none."""
        found = self.get("[...(otelRl.errors ?? []), ...(otelRl.violations ?? [])]")
        return [*found, *self.get(_NO_TEXTS)]

    def hosts(self) -> set[str]:
        """Return the hosts of all requests since the last call.

        Pages of the browser itself (``chrome:``), such as its first one, ask no host.
        """
        found = set()
        log = self._driver.get_log("performance")  # type: ignore[no-untyped-call]  # of selenium
        for entry in log:
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if "://" in url and not url.startswith("chrome:"):
                    found.add(url.partition("://")[2].partition("/")[0])
        return found
