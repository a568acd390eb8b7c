"""A real browser for the tests of pages: headless Chromium, spoken to over a pipe."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")


@functools.cache
def _chromium() -> str | None:
    for name in _NAMES:
        path = shutil.which(name)
        # Ubuntu's package is a script that only says where the browser is to be had.
        if path and not subprocess.run([path, "--version"], capture_output=True).returncode:
            return path
    return None


def chromium() -> str:
    """The browser; the test is skipped where there is none."""
    path = _chromium()
    if path is None:
        pytest.skip("chromium is not installed")
    return path


def seen_by_chromium(page: Path, profile: Path) -> str:
    """Return the document as headless Chromium has read it; the test is skipped where there is none."""
    with browser(profile) as one:
        one.open(page.as_uri())
        return one.dom()


@dataclass
class Browser:
    """One tab.

    Attributes:
        console: errors and warnings of the page, and what it was refused.
        requested: addresses that it asked for.
    """

    read: int
    write: int
    session: str = ""
    console: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    _sent: int = 0
    _buffer: bytes = b""
    _loaded: bool = False

    def open(self, address: str) -> None:
        """Load a page, and wait until its scripts have run."""
        self._loaded = False
        elsewhere = "loaderId" in self.call("Page.navigate", url=address)
        while elsewhere and not self._loaded:  # a place in the same page is not loaded
            self._message()
        # Two frames later all that was asked for at load has been painted.
        self.call("Page.captureScreenshot", format="jpeg", quality=1)

    def dom(self) -> str:
        """The document as it is now."""
        root = self.call("DOM.getDocument", depth=0)["root"]
        return str(self.call("DOM.getOuterHTML", nodeId=root["nodeId"])["outerHTML"])

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def scripts(self, allowed: bool) -> None:
        """Allow scripts in the pages that are opened from now on, or not."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def looks(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the window's size in pixels and the reader's colors."""
        size = {"width": width, "height": height}
        self.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol, and return its result."""
        self._sent += 1
        number = self._sent
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return dict(answer["result"])

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + LIMIT
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self.read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited {LIMIT:.0f} s for an answer of chromium"
            data = os.read(self.read, 1 << 16)
            assert data, "chromium has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, values: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.console.append(json.dumps(values["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
            self.console.append(json.dumps(values["args"]))
        elif event == "Log.entryAdded":
            self.console.append(str(values["entry"]["text"]))
        elif event == "Network.requestWillBeSent":
            self.requested.append(str(values["request"]["url"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty tab; the test is skipped where there is none."""
    program = chromium()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # It reads commands from descriptor 3 and answers on 4.
    start = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", start, "bash", program, *_OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        os.close(theirs_in)
        os.close(theirs_out)
        one = Browser(ours_in, ours_out)
        target = one.call("Target.createTarget", url="about:blank")["targetId"]
        session = one.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        one.session = session
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            one.call(f"{domain}.enable")
        yield one
        one.session = ""
        one.call("Browser.close")
        process.wait(LIMIT)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for descriptor in (ours_in, ours_out):
            os.close(descriptor)
