"""A call with `after` is sent when the last of the calls that it names has finished: subagents, their join, a child in the background."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Deployment, Workload, simulate
from sim.errors import UsageError
from sim.ticks import TICK_S
from sim.workload.jsonl import load_jsonl
from sim.workload.sources import TraceSource
from tests.cli import run

H100 = Deployment.of("Llama-3.1-8B", "H100")
PLAN, TOOLS = {"request_id": "plan", "arrival_s": 0.0, "prompt_tokens": 900, "output_tokens": 40}, ("search", "read", "run")
AGENT = [
    PLAN,
    *(
        {"request_id": name, "after": ["plan"], "prompt_tokens": 500, "output_tokens": 20 * (i + 1), "session_id": name}
        for i, name in enumerate(TOOLS)
    ),
    {"request_id": "more", "session_id": "search", "prompt_tokens": 700, "output_tokens": 90},
    {"request_id": "memory", "after": ["plan"], "think_s": 0.5, "prompt_tokens": 300, "output_tokens": 300},
    {"request_id": "join", "after": ["more", "read", "run"], "think_s": 0.25, "prompt_tokens": 1500, "output_tokens": 60},
]


def written(tmp_path, calls):
    path = tmp_path / "graph.jsonl"
    path.write_text("".join(json.dumps(call) + "\n" for call in calls))
    return path


def served(trace):
    """(arrival, end) of every call by its id, in seconds."""
    record = simulate(H100, Workload(trace), draws=0).record
    return dict(zip(record.request_ids, zip(record.requests["arrival_s"], record.requests["finish_s"], strict=True), strict=True))


def test_subagents_a_join_and_a_background_child(tmp_path):
    times = served(load_jsonl(written(tmp_path, AGENT)))
    for name in TOOLS:
        assert times[name][0] == pytest.approx(times["plan"][1], abs=2 * TICK_S)
    assert times["more"][0] == pytest.approx(times["search"][1], abs=2 * TICK_S)
    last = max(times[name][1] for name in ("more", "read", "run"))
    assert times["join"][0] == pytest.approx(last + 0.25, abs=2 * TICK_S)
    assert times["memory"][0] == pytest.approx(times["plan"][1] + 0.5, abs=2 * TICK_S)
    assert times["memory"][1] > times["join"][0]  # and nobody waits for it


@settings(max_examples=40, deadline=None)
@given(data=st.data(), count=st.integers(2, 12))
def test_no_call_is_early_and_all_are_served(data, count, tmp_path_factory):
    """Any graph whose edges point back: every call comes once, as soon as its last parent has finished."""
    calls = []
    for i in range(count):
        parents = sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else []
        when = {"after": [f"c{p}" for p in parents]} if parents else {"arrival_s": 0.0}
        calls.append({"request_id": f"c{i}", "prompt_tokens": 50 + i, "output_tokens": data.draw(st.integers(1, 30)), **when})
    times = served(load_jsonl(written(tmp_path_factory.mktemp("graph"), calls)))
    for call in calls:
        begin = max((times[name][1] for name in call.get("after", ())), default=0.0)
        assert times[call["request_id"]][0] == pytest.approx(begin, abs=2 * TICK_S)
    assert not np.isnan([end for _, end in times.values()]).any()


def test_arrivals_drawn_anew_leave_the_graph(tmp_path):
    path = written(tmp_path, AGENT)
    done = run(
        "simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--trace", str(path), "--trace-format", "jsonl", "--draws", "0", "--json"
    )
    assert json.loads(done.stdout)["completed"] == len(AGENT)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"after": ["later"]}, "after names 'later', which is no earlier call"),
        ({"after": ["x"]}, "after names 'x'"),
        ({"after": "plan"}, "after must be a list of request ids"),
        ({"after": ["plan"], "arrival_s": 1.0}, "arrival_s and after exclude each other"),
    ],
)
def test_what_no_call_can_wait_for_is_one_line(tmp_path, wrong, message):
    with pytest.raises(UsageError, match="line 2") as caught:
        load_jsonl(written(tmp_path, [PLAN, {"request_id": "x", "prompt_tokens": 1, "output_tokens": 1} | wrong]))
    assert message in str(caught.value)


def test_a_part_of_a_graph_is_refused_where_it_waits_for_the_rest(tmp_path):
    trace = load_jsonl(written(tmp_path, AGENT))
    with pytest.raises(UsageError, match="waits for 'plan'"):
        TraceSource(trace.taken(np.arange(1, len(AGENT))), 16)


FORKS = [
    {"request_id": "plan", "session_id": "main", "arrival_s": 0.0, "prompt_tokens": 1000, "output_tokens": 56},
    {"request_id": "search", "session_id": "search", "context_of": "plan", "prompt_tokens": 1200, "output_tokens": 20},
    {"request_id": "read", "session_id": "read", "context_of": "plan", "prompt_tokens": 800, "output_tokens": 20},
    {"request_id": "more", "session_id": "read", "prompt_tokens": 900, "output_tokens": 20},
    {"request_id": "next", "session_id": "main", "after": ["search", "more"], "prompt_tokens": 1300, "output_tokens": 20},
]


def test_a_subagent_begins_with_what_its_parent_said(tmp_path):
    trace = load_jsonl(written(tmp_path, FORKS))
    answers = [simulate(H100, Workload(trace), draws=0, keep_iterations=keep) for keep in (True, False)]
    cached = dict(zip(answers[0].record.request_ids, answers[0].record.requests["cached_tokens"].tolist(), strict=True))
    # blocks of 16, of which the last one of the plan's answer is filled by `search`: the last token of an answer is not computed
    assert cached == {"plan": 0, "search": 1040, "read": 784, "more": 816, "next": 1056}
    for name, column in answers[0].record.requests.items():
        np.testing.assert_array_equal(answers[1].record.requests[name], column)
    times = served(trace)
    assert times["search"][0] == pytest.approx(times["plan"][1], abs=2 * TICK_S)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ({"context_of": "plan"}, "context_of needs a session_id"),
        ({"context_of": "none", "session_id": "s"}, "context_of names 'none', which is no earlier call of a session"),
        ({"context_of": "plan", "session_id": "read"}, "context_of is of a session's first turn"),
        ({"context_of": "plan", "session_id": "s", "arrival_s": 9.0}, "arrival_s and after exclude each other"),
    ],
)
def test_a_context_that_cannot_be_repeated_is_named(last, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        load_jsonl(written(tmp_path, [*FORKS, {"prompt_tokens": 9, "output_tokens": 2} | last]))
