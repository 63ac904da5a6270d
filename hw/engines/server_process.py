"""A server as a child process on the loopback: start it, wait until it is healthy, stop it and all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import SimctlError


@dataclass(frozen=True)
class Server:
    """A running server: its URL, the name it serves the model under, and what it says it got."""

    url: str
    model: str
    facts: dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], url: str, log: Path, env: Mapping[str, str], start_timeout_s: float) -> Iterator[float]:
    """Run `command`, its output going to `log`, until the block ends. Yields the seconds it took to get healthy.

    Raises SimctlError when it dies or does not get healthy in time; the end of its log is in the message.
    """
    start = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        _await_health(process, url, log, start_timeout_s)
        yield time.monotonic() - start
    finally:
        _stop(process)


def _await_health(process: subprocess.Popen[bytes], url: str, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SimctlError(f"the server ended with code {process.returncode}: {_tail(log)}")
        with contextlib.suppress(OSError), opener.open(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise SimctlError(f"the server was not healthy after {timeout_s:.0f} s: {_tail(log)}")


def _tail(log: Path, characters: int = 600) -> str:
    return " ".join(log.read_text(errors="replace")[-characters:].split())


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and the engine process it started: they share a process group of their own."""
    for sign, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        with contextlib.suppress(ProcessLookupError):  # children that outlived it
            os.killpg(process.pid, signal.SIGKILL)
        return
