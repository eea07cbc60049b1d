"""Headless Chromium, driven through chromedriver's HTTP interface (WebDriver)."""

import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

NEEDED = "needs Debian's packages chromium and chromium-driver"
"""Said where one of the two is missing."""

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


class Browser:
    """One window, by the address of chromedriver's session."""

    def __init__(self, session: str):
        self._session = session

    def ask(self, path: str, **values: Any) -> Any:
        return _ask(f"{self._session}/{path}", values)

    def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self.ask("url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns, or the promise that it returns."""
        return self.ask("execute/sync", script=script, args=arguments)

    def click(self, selector: str) -> None:
        """Click on the first element of a selector, as a user does: it must be in sight."""
        self._of_element(selector, "click")

    def type(self, selector: str, keys: str) -> None:
        self._of_element(selector, "value", text=keys)

    def _of_element(self, selector: str, action: str, **values: Any) -> None:
        (element,) = self.ask("element", using="css selector", value=selector).values()
        self.ask(f"element/{element}/{action}", **values)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def until(self, script: str, seconds: float = 20) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, script
            time.sleep(0.02)
        return value

    def messages(self) -> list[str]:
        """What the console has said since the last time."""
        return [entry["message"] for entry in self.ask("se/log", type="browser")]

    def devtools(self, command: str, **values: Any) -> Any:
        """The answer to a command of Chromium's own protocol."""
        return self.ask("goog/cdp/execute", cmd=command, params=values)


@contextmanager
def window() -> Iterator[Browser]:
    """A window of a new user."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as user, ExitStack() as end:
        command = [str(DRIVER), "--port=0"]
        driver = end.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        end.callback(driver.terminate)
        lines = (re.search(r"on port (\d+)\.", line) for line in driver.stdout or ())
        root = next(f"http://127.0.0.1:{match[1]}/session" for match in lines if match)
        flags = [*_FLAGS.split(), f"--user-data-dir={user}"]
        wanted = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = _ask(root, {"capabilities": {"alwaysMatch": wanted}})
        session = f"{root}/{made['sessionId']}"
        end.callback(_ask, session, method="DELETE")
        yield Browser(session)


def _ask(address: str, values: Any = None, method: str = "POST") -> Any:
    """The value that chromedriver answers with."""
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address, body, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)["value"]
