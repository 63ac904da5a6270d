"""Reports for the page, Prometheus and autoscalers: the last one and those of the last hour."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.twin.twin import TwinReport
from simctl.report.serve import LOOPBACK, Answer, Routes, server
from simctl.watch.text import metrics_of, said

if TYPE_CHECKING:
    from ssl import SSLContext

PAGE = Path(__file__).with_name("twin.html")
KEPT = 720  # reports
ALERTS = 20
HEALTHY_WINDOWS = 3  # without a report so many are no health


class History:
    """Reports, newest last; written by the watcher, read by the page's threads. `slo` is what must hold, in words."""

    def __init__(self, slo: str = "") -> None:
        self._slo = slo
        self._reports: deque[TwinReport] = deque(maxlen=KEPT)
        self._alerts: deque[str] = deque(maxlen=ALERTS)
        self._lock = threading.Lock()
        self._added_s = -math.inf  # on the monotonic clock

    def add(self, report: TwinReport, clock: str) -> None:
        """Keep a report."""
        with self._lock:
            self._reports.append(report)
            self._added_s = time.monotonic()
            self._alerts.extend(f"{clock} {alert}" for alert in report.alerts)

    def last(self) -> TwinReport | None:
        """The newest, None before there is one."""
        with self._lock:
            return self._reports[-1] if self._reports else None

    def health(self, within_s: float) -> Answer:
        """Whether there is a report of the last so many seconds."""
        with self._lock:
            age_s = time.monotonic() - self._added_s
        return (200, "text/plain", "ok") if age_s <= within_s else (503, "text/plain", "no report of late")

    def last_json(self) -> str:
        """The newest as JSON, null before there is one."""
        report = self.last()
        return json.dumps(report and report.to_dict(), allow_nan=False)

    def to_json(self) -> str:
        """Content of the page."""
        with self._lock:
            reports, alerts = list(self._reports), list(self._alerts)
        ahead = reports[-1].forecast if reports else None
        body = {
            "advice": said(ahead) if ahead else "No forecast yet: it needs an SLO and a few windows with requests.",
            "warned": bool(reports and reports[-1].warned),
            "alerts": alerts[::-1],
            "slo": self._slo,
            "windows": [_window(report) for report in reports],
        }
        return json.dumps(body, allow_nan=False)


def _window(report: TwinReport) -> dict[str, Any]:
    """What the page draws of a report."""
    whole = report.to_dict()
    kept = {name: whole[name] for name in ("at_s", "seen", "slowness", "rate_per_s", "running", "waiting")}
    return kept | {"break_chance": report.forecast and report.forecast.chance}


def serve_history(
    history: History, port: int, every_s: float = 15.0, bind: str = LOOPBACK, token: str = "", tls: SSLContext | None = None
) -> ThreadingHTTPServer:
    """Start the page in a thread: /, /history.json, /status.json, /metrics, /healthz. OSError where the port is taken."""
    routes: Routes = {
        "/": ("text/html", lambda: PAGE.read_text(encoding="utf-8")),
        "/history.json": ("application/json", history.to_json),
        "/status.json": ("application/json", history.last_json),
        "/metrics": ("text/plain", lambda: metrics_of(history.last())),
        "/healthz": lambda _: history.health(HEALTHY_WINDOWS * every_s),
    }
    found = server(routes, port, bind, token, tls)
    threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    return found
