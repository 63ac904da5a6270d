"""An installed Chromium, driven over its debugging pipe: pages at a width and in a colour scheme, keys, console, screenshots."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOADED = (
    "document.readyState == 'complete' && [...document.querySelectorAll('.view')].every(each => each.childElementCount || each.textContent)"
)


def installed() -> str | None:
    """The path of a browser, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A page of a headless browser. `said` has what the console and the log said of errors and warnings."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._left, self._count, self._session = write, read, b"", 0, ""
        self.said: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """The result of a method of the DevTools protocol."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has gone"
            self._left += piece
        one, self._left = self._left.split(b"\0", 1)
        event: dict[str, Any] = json.loads(one)
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.said.append(str([each.get("value", each.get("description")) for each in params["args"]]))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.said.append(params["entry"]["text"])
        return event

    def value(self, expression: str) -> Any:
        """What an expression evaluates to in the page."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get("value")

    def open(self, page: Path | str, width: int, scheme: str = "light", height: int = 900) -> None:
        """Show the page, a file or an address, and wait until every picture is drawn."""
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        until = time.monotonic() + 120
        while not self.value(f"location.href != 'about:blank' && {LOADED}"):
            assert time.monotonic() < until, "pictures are not drawn"
            time.sleep(0.05)

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **more)

    def picture(self, target: Path) -> None:
        """A screenshot of the whole page."""
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        target.write_bytes(base64.b64decode(found["data"]))

    def picture_of(self, box: Sequence[float]) -> bytes:
        """A screenshot of x, y, width and height of the page."""
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": 1}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png", clip=clip)
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with its profile in this folder, without network. It ends with the block."""
    path = installed()
    assert path is not None
    to_read, ours_to_write = os.pipe()
    ours_to_read, to_write = os.pipe()

    def place() -> None:
        os.dup2(to_read, 13)
        os.dup2(to_write, 14)
        os.dup2(13, 3)
        os.dup2(14, 4)

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
               "--disable-background-networking", "--proxy-server=127.0.0.1:9"]  # fmt: skip
    process = subprocess.Popen([path, *options], close_fds=False, preexec_fn=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.close(to_read)
        os.close(to_write)
        yield Browser(ours_to_write, ours_to_read)
    finally:
        process.terminate()
        process.wait(60)
        os.close(ours_to_write)
        os.close(ours_to_read)
