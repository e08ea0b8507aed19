"""A page in a real, headless browser, which is told what to do through a pipe (the Chrome DevTools
Protocol).

Frames are drawn as for a reader: observers of scrolling and of sizes work, which they do not in a
dump of the page.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


def needs_browser(test: Any) -> Any:
    """Slow: a browser takes seconds to start."""
    here = pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome here"
    )
    return pytest.mark.slow(here(test))


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)

KEYS = {"Enter": 13, "Tab": 9, "ArrowRight": 39}

START = """
import fcntl, os, sys
aside = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(aside[0], 3)  # from which the browser reads
os.dup2(aside[1], 4)  # to which it writes
os.execv(sys.argv[3], sys.argv[3:])
"""


class Seen(NamedTuple):
    """What the probe found, and what happened meanwhile."""

    found: Any
    complaints: list[str]  # exceptions, and what the console or the browser says
    requests: list[str]  # addresses of all that was asked for, the page first


def browsed(
    page: Path,
    probe: str,
    *,
    width: int,
    height: int = 900,
    focus: str = "",
    keys: Sequence[str] = (),
    dark: bool = False,
) -> Seen:
    """The value of a JavaScript expression, often a promise, in a window of this size that shows
    the page.

    Before it, the element that the selector `focus` finds gets the focus, and keys are pressed.
    """
    with _browser(page.parent / "profile", width, height) as browser:
        session = browser.tab(width, height, dark)
        browser.visit(session, page.as_uri())
        if focus:
            browser.call(
                "Runtime.evaluate",
                session,
                expression=f"document.querySelector({json.dumps(focus)}).focus()",
            )
        for key in keys:
            pressed = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            browser.call("Input.dispatchKeyEvent", session, type="keyDown", **pressed, **text)
            browser.call("Input.dispatchKeyEvent", session, type="keyUp", **pressed)
        return browser.seen(session, probe)


def browsed_in_turn(
    addresses: Sequence[str], probe: str, profile: Path, *, width: int
) -> Iterator[tuple[str, Seen]]:
    """The same for many addresses, one after the other in one tab."""
    with _browser(profile, width, 900) as browser:
        session = browser.tab(width, 900)
        for address in addresses:
            browser.events.clear()
            browser.visit(session, address)
            yield address, browser.seen(session, probe)


class Browser:
    """Sends commands and keeps events; messages are JSON that ends with a zero byte."""

    def __init__(self, to: Any, answers: Any) -> None:
        self.to, self.answers = to, answers
        self.number, self.rest = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        self.to.write(
            json.dumps(command | ({"sessionId": session} if session else {})).encode() + b"\0"
        )
        self.to.flush()
        while (message := self._next()).get("id") != self.number:
            self.events.append(message)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def tab(self, width: int, height: int, dark: bool = False) -> str:
        """The session of a new, empty tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        return session

    def visit(self, session: str, address: str) -> None:
        self.call("Page.navigate", session, url=address)
        self.wait_for("Page.loadEventFired")

    def seen(self, session: str, probe: str) -> Seen:
        answer = self.call(
            "Runtime.evaluate", session, expression=probe, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return Seen(answer["result"].get("value"), self.complaints(), self.requests())

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            part = os.read(self.answers.fileno(), 1 << 16)
            assert part, "the browser ended"
            self.rest += part
        whole, self.rest = self.rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(whole)
        return message

    def complaints(self) -> list[str]:
        heard = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [
            json.dumps(event["params"])[:500]
            for event in self.events
            if event.get("method") in heard
        ]

    def requests(self) -> list[str]:
        sent = [
            event["params"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [one["request"]["url"] for one in sent]


@contextmanager
def _browser(profile: Path, width: int, height: int) -> Iterator[Browser]:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        START,
        str(theirs_in),
        str(theirs_out),
        str(CHROMIUM),
        *flags,
    ]
    process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb") as answers:
        try:
            yield Browser(to, answers)
        finally:
            process.kill()
            process.wait(timeout=600)
