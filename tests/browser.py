"""Headless Chromium, driven through chromedriver's HTTP interface (WebDriver)."""

import json
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


class Browser:
    """One window.

    Args:
        session: the address of chromedriver's session.
    """

    def __init__(self, session):
        self._session = session

    def _ask(self, path, **values):
        return ask(f"{self._session}/{path}", values)

    def open(self, address):
        """Open a page and wait until it is loaded."""
        self._ask("url", url=address)

    def run(self, script, *arguments):
        """What a script returns, or the promise that it returns."""
        return self._ask("execute/sync", script=script, args=arguments)

    def click(self, selector):
        """Click on the first element of a selector, as a user does: it must be in sight."""
        self._ask(f"element/{self._find(selector)}/click")

    def type(self, selector, keys):
        """Press keys in an element."""
        self._ask(f"element/{self._find(selector)}/value", text=keys)

    def _find(self, selector):
        (found,) = self._ask("element", using="css selector", value=selector).values()
        return found

    def text(self, selector):
        """The text of the first element of a selector."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def until(self, script, seconds=20):
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < end, script
            time.sleep(0.02)
        return value

    def command(self, name, **arguments):
        """What a command of Chromium's own protocol returns."""
        return self._ask("goog/cdp/execute", cmd=name, params=arguments)

    def messages(self):
        """What the console has said since the last time."""
        return [one["message"] for one in self._ask("se/log", type="browser")]


def ask(address, values=None, method="POST"):
    """The value that chromedriver answers with."""
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address, body, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)["value"]


@contextmanager
def browser(folder, *flags):
    """Open a window whose user's data are in an empty folder."""
    command = [DRIVER, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        try:
            lines = (re.search(r"on port (\d+)\.", line) for line in driver.stdout)
            port = next(found[1] for found in lines if found)
            arguments = [*_FLAGS.split(), f"--user-data-dir={folder}", *flags]
            wanted = {
                "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            root = f"http://127.0.0.1:{port}/session"
            made = ask(root, {"capabilities": {"alwaysMatch": wanted}})
            session = f"{root}/{made['sessionId']}"
            try:
                yield Browser(session)
            finally:
                ask(session, method="DELETE")
        finally:
            driver.terminate()
