"""Turns of a recorded session come at their recorded times (open), or each after the answer to the one before (closed)."""

import json

import numpy as np
import pytest

from sim import Workload
from sim.errors import UsageError

WEKA = {
    "id": "s",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "type": "s", "in": 200, "out": 40, "hash_ids": [1, 2, 3, 4], "api_time": 2.0},
        {"t": 6.5, "type": "subagent", "requests": [{"t": 0.0, "in": 130, "out": 7, "hash_ids": [1, 2], "api_time": 1.0}]},
        {"t": 5.0, "type": "s", "in": 320, "out": 10, "hash_ids": [1, 2, 3, 4, 5], "api_time": 1.0},
        {"t": 9.0, "type": "s", "in": 330, "out": 10, "hash_ids": [1, 2, 3, 4, 5, 6], "api_time": 1.0},
    ],
}
TIMED = [{"arrival_s": t, "session_id": "s", "prompt_tokens": 100 * (t + 1), "output_tokens": 9} for t in range(3)]
WAITING = [
    {"arrival_s": 0, "session_id": "s", "prompt_tokens": 10, "output_tokens": 9},
    {"session_id": "s", "prompt_tokens": 30, "output_tokens": 9},
]


@pytest.fixture
def replayed(tmp_path):
    def load(records, form, **options):
        file = tmp_path / "trace"
        file.write_text("".join(json.dumps(each) + "\n" for each in records))
        return Workload.from_trace(file, form, **options).trace

    return load


def test_open_turns_keep_their_times_in_order(replayed):
    closed, opened = replayed([WEKA], "weka"), replayed([WEKA], "weka", replay="open")
    assert np.isnan(closed.arrival_s).sum() == 2
    assert opened.arrival_s.tolist() == [0.0, 5.0, 6.5, 9.0]
    assert opened.prompt_tokens.tolist() == [200, 320, 130, 330]
    assert opened.think_s.tolist() == [0.0] * 4
    assert replayed([WEKA], "weka", replay="open", rate_scale=2.0).arrival_s.tolist() == [0.0, 2.5, 3.25, 4.5]


def test_closed_turns_wait_for_the_answer_before(replayed):
    trace = replayed(TIMED, "jsonl", replay="closed")
    np.testing.assert_array_equal(trace.arrival_s, [0.0, np.nan, np.nan])
    assert replayed(TIMED, "jsonl", replay="open").arrival_s.tolist() == replayed(TIMED, "jsonl").arrival_s.tolist() == [0.0, 1.0, 2.0]
    paused = replayed(TIMED, "jsonl", replay="closed", think_time_s=3.0)
    assert min(paused.think_s[1:]) > paused.think_s[0] == 0.0


def test_turns_whose_times_nobody_wrote_down_are_not_replayed_open(replayed):
    with pytest.raises(UsageError, match="call '1' has no recorded time of its own"):
        replayed(WAITING, "jsonl", replay="open")
