"""The table of docs/bench_accuracy.py: errors of means, over the loads that every tool answered, and simctl's coverage."""

import re
import runpy

import numpy as np
import pytest

from tests.docs.pages import ROOT, text_of

SCRIPT = runpy.run_path(str(ROOT / "docs" / "bench_accuracy.py"))
PEERS = runpy.run_path(str(ROOT / "docs" / "bench_accuracy_peers.py"))
METRICS = SCRIPT["METRICS"]


def test_the_page_shows_what_was_printed():
    printed = text_of(ROOT / "docs" / "data" / "bench-accuracy.txt")
    assert re.search(r"<!-- accuracy -->\n(.*?)\n<!--", text_of(ROOT / "docs" / "comparison.md"), re.DOTALL)[1] in printed


def load(name, kind, factor, inside, peer):
    each = {m: np.array([90.0, 110.0]) for m in METRICS}
    made = SCRIPT["Load"](name, kind, 2, dict.fromkeys(METRICS, 100.0), each)
    ours = dict.fromkeys(METRICS, 100.0 * factor)
    made.predicted["simctl"] = ours | {"inside": dict.fromkeys(METRICS, inside), "scores": dict.fromkeys(METRICS, (0.05, 1.0))}
    made.predicted["peer"] = peer
    return made


def answers(factor):
    return dict.fromkeys(METRICS, 100.0 * factor) | {"requests": {m: [99.0, 99.0] for m in METRICS}}


def test_a_load_that_one_refused_counts_for_none():
    loads = [
        load("a", "low", 1.1, True, answers(1.3)),
        load("b", "high", 1.2, False, answers(1.5)),
        load("c", "high", 9.0, True, {"refused": "x"}),
    ]
    found = {(row[0], row[1]): row[2:] for row in SCRIPT["rows"](loads, ["simctl", "peer"])}
    assert found["all (2)", "simctl"][:3] == ("15.0",) * 3
    assert found["all (2)", "peer"][:3] == ("40.0",) * 3
    assert found["high rate (1)", "simctl"][:3] == ("20.0",) * 3
    assert found["all (2)", "simctl"][-1] == "50 / 50 / 50"
    assert found["all (2)", "peer"][-2:] == ("10.0 / 10.0 / 10.0", "")


def test_a_peers_requests_are_in_order_of_arrival_with_tpot_of_what_followed():
    rows = [
        {"arrival_time_ms": 5.0, "ttft_ms": 20.0, "e2e_latency_ms": 60.0, "output_length": 5},
        {"arrival_time_ms": 1.0, "ttft_ms": 10.0, "e2e_latency_ms": 10.0, "output_length": 1},
    ]
    found = PEERS["_of_requests"](rows, False)
    assert found["requests"]["ttft"] == [10.0, 20.0]
    assert (found["ttft"], found["tpot"], found["e2el"]) == (15.0, 10.0, 35.0)
    assert "requests" not in PEERS["_of_requests"](rows, True)


def test_a_tool_that_fails_says_why_and_prints_nothing(capsys):
    def fails(question):
        print("noise")
        raise ValueError(f"no tables of {question['id']}\nmore")

    assert PEERS["answer"](fails, {"id": "x"}) == {"refused": "ValueError: no tables of x"}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("only", ["h200_served_llama3.1-8b_eager", "h200_served_llama3.1-8b_lora-again"])
def test_what_no_peer_can_be_told_is_counted(tmp_path, only):
    refused = SCRIPT["Counter"]()
    assert list(SCRIPT["loads_of"](SCRIPT["RUNS"] / f"{only}.nc", tmp_path, refused)) == []
    assert sum(refused.values()) == 3
