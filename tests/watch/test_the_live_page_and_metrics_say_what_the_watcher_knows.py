"""The live page, its JSON and its metrics say what the watcher knows, on the loopback alone."""

import json
import math
import re
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from sim.twin.forecast import Forecast
from sim.twin.twin import SeenLatency, SeenSlo, TwinReport
from simctl.watch.live import History, serve_history
from simctl.watch.text import metrics_of

SEEN = {
    "http://a": [
        SeenLatency("ttft", 55.0, (40.0, 60.0), (45.0, 58.0), 61.0, (50.0, 70.0)),
        SeenLatency("tpot", 30.0, (25.0, 50.0), (8.0, 10.0), 31.0, (8.0, 11.0)),
    ]
}
AHEAD = Forecast(1200.0, 0.8, 0.01, 720.0, (300.0, 1200.0), "ttft:p95<1s", 2, 0.2)
SLO = [SeenSlo("ttft:p95<1s", (400.0, 600.0), True), SeenSlo("tpot:p95<30ms", (25.0, 50.0), None)]
REPORT = TwinReport(
    60.0, 1, 6.0, 512.0, math.nan, 5.0, 0.0, {"http://a": (1.2, 1.3, 1.4)}, SEEN, AHEAD, ["http://a: silent (refused)"], slo=SLO
)


@pytest.fixture
def address():
    history = History("ttft:p95<1s")
    history.add(REPORT, "12:00:00")
    server = serve_history(history, 0)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=120) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_status_and_history_are_the_report(address) -> None:
    status = json.loads(get(f"{address}/status.json")[1])
    assert status["output_tokens"] is None  # nan is no JSON
    assert [row["inside"] for row in status["seen"]["http://a"]] == [True, False]
    history = json.loads(get(f"{address}/history.json")[1])
    assert history["advice"] == "at this growth ttft:p95<1s breaks in 12 min [5-20] with chance 0.80; add 2 replicas"
    assert history["alerts"] == ["12:00:00 http://a: silent (refused)"]
    assert history["slo"] == "ttft:p95<1s"
    (window,) = history["windows"]
    assert (window["rate_per_s"], window["break_chance"], window["slowness"]) == (6.0, 0.8, {"http://a": [1.2, 1.3, 1.4]})
    assert [row["mean_ms"] for row in window["seen"]["http://a"]] == [61.0, 31.0]


@pytest.mark.parametrize("name", ["watch-alerts.yaml", "watch-grafana.json"])
def test_rules_and_dashboard_are_of_metrics_that_there_are(name) -> None:
    text = (Path(__file__).parents[2] / "docs" / "data" / name).read_text(encoding="utf-8")
    used = set(re.findall(r"simctl_watch_\w+", text))
    assert len(used) >= 5
    assert used <= set(re.findall(r"^(simctl_watch_\w+)", metrics_of(REPORT), re.MULTILINE))


def test_metrics_are_prometheus_text(address) -> None:
    text = get(f"{address}/metrics")[1]
    assert 'simctl_watch_slowness{server="http://a"} 1.3' in text
    assert "simctl_watch_replicas_to_add 2" in text
    assert text.count("# TYPE simctl_watch_slowness gauge") == 1
    assert 'simctl_watch_seen_tpot_mean_seconds{server="http://a"} 0.031' in text


def test_a_page_of_somebody_else_gets_nothing(address) -> None:
    assert get(f"{address}/status.json", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert get(f"{address}/status.json", Host="evil.example")[0] == 403
    assert get(f"{address}/nothing")[0] == 404


def test_labels_are_escaped() -> None:
    odd = replace(REPORT, slowness={'http://a/"\\x\n': (1.2, 1.3, 1.4)}, seen={})
    assert 'server="http://a/\\"\\\\x\\n"' in metrics_of(odd)


def test_health_is_a_report_of_late(address) -> None:
    assert get(f"{address}/healthz") == (200, "ok\n")
    history = History()
    assert history.health(60.0)[0] == 503
    history.add(REPORT, "12:00:00")
    assert history.health(60.0)[0] == 200
    assert history.health(-1.0)[0] == 503


def test_beyond_the_loopback_a_token_is_asked_for() -> None:
    history = History()
    server = serve_history(history, 0, bind="0.0.0.0", token="0123456789abcdef")
    address = f"http://127.0.0.1:{server.server_address[1]}"
    basic = b64encode(b"prometheus:0123456789abcdef").decode()
    try:
        assert get(f"{address}/healthz")[0] == 503  # open, and there is no report yet
        for wrong in (
            {},
            {"Authorization": "Bearer 0123456789abcdeg"},
            {"Authorization": "Basic !"},
            {"Authorization": "0123456789abcdef"},
        ):
            assert get(f"{address}/metrics", **wrong)[0] == 401
        for right in ("Bearer 0123456789abcdef", f"Basic {basic}"):
            assert get(f"{address}/metrics", Authorization=right, Host="fleet.example")[0] == 200
    finally:
        server.shutdown()
        server.server_close()
