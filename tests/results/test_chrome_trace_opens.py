"""The Chrome trace is valid trace-event JSON: times in order, slices that do not overlap, every begin with its end."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli import run

SESSIONS = Path(__file__).parents[1] / "data" / "small_sessions.jsonl"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    target = tmp_path_factory.mktemp("chrome") / "trace.json"
    arguments = ("--trace", str(SESSIONS), "--model", "Qwen2.5-7B", "--gpu", "H100", "--replicas", "2")
    assert run("simulate", *arguments, "--chrome-trace", str(target)).code == 0
    assert [each.name for each in target.parent.iterdir()] == ["trace.json"]
    return json.loads(target.read_text())["traceEvents"]


def test_iterations_are_slices_one_after_another(events):
    for replica in (0, 1):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == replica]
        assert len(slices) > 10
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
        assert all(e["name"].startswith(("prefill", "decode")) for e in slices)
        terms = sum(v for e in slices for k, v in e["args"].items() if k.endswith(" (us)"))
        assert terms == pytest.approx(sum(e["dur"] for e in slices), rel=1e-3)


def test_requests_begin_and_end(events):
    balance = Counter()
    for event in events:
        if event["ph"] in "be":
            balance[event["id"], event["name"]] += 1 if event["ph"] == "b" else -1
            assert balance[event["id"], event["name"]] in (0, 1)
    assert set(balance.values()) == {0}
    assert len({identity for identity, _ in balance}) == 24


def test_counters_name_queue_and_kv(events):
    assert {e["name"] for e in events if e["ph"] == "C"} == {"requests", "KV blocks"}


def test_an_unwritable_place_is_one_line():
    result = run("simulate", "--gpu", "H100", "--num-prompts", "5", "--chrome-trace", "/dev/null/x.json")
    assert (result.code, result.stderr.count("\n")) == (2, 1)
