"""OpenTelemetry's GenAI spans and WEKA's agent traces: what was sent when, and what prompts share, from files written by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.workload.formats import load_trace


def span(start_ms, end_ms, prompt, output, conversation=None, names=("input_tokens", "output_tokens")):
    attributes = [{"key": f"gen_ai.usage.{name}", "value": {"intValue": str(n)}} for name, n in zip(names, (prompt, output), strict=True)]
    if conversation:
        attributes.append({"key": "gen_ai.conversation.id", "value": {"stringValue": conversation}})
    times = {"startTimeUnixNano": str(1_790_000_000_000_000_000 + start_ms * 1_000_000)}
    times["endTimeUnixNano"] = str(1_790_000_000_000_000_000 + end_ms * 1_000_000)
    return {"spanId": f"{start_ms:x}", "name": "chat", "attributes": attributes, **times}


def export(*spans):
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def load(tmp_path, text, name):
    file = tmp_path / "trace.json"
    file.write_text(text if isinstance(text, str) else json.dumps(text, indent=1))
    return load_trace(file, name)


def test_calls_arrive_when_their_spans_start_and_a_conversation_goes_on(tmp_path):
    tool = {"spanId": "t", "name": "tool", "attributes": [], "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    calls = (span(0, 900, 100, 20, "a"), span(500, 700, 50, 5), tool, span(2_400, 3_000, 180, 30, "a"))
    trace = load(tmp_path, export(*calls), "otel")
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5, np.nan], atol=1e-6)
    assert trace.prompt_tokens.tolist() == [100, 50, 180]
    assert trace.think_s[2] == pytest.approx(1.5, abs=1e-6)
    assert (trace.session_ids[0], trace.session_ids[2], trace.contents[2].shared_tokens) == ("a", "a", 120)


def test_lines_of_exports_and_older_names_are_read_alike(tmp_path):
    calls = [span(0, 900, 100, 20), span(500, 700, 50, 5, names=("prompt_tokens", "completion_tokens"))]
    lines = "".join(json.dumps(export(call)) + "\n" for call in calls)
    one, other = load(tmp_path, export(*calls), "otel"), load(tmp_path, lines, "otel")
    assert (one.prompt_tokens.tolist(), one.arrival_s.tolist()) == (other.prompt_tokens.tolist(), other.arrival_s.tolist())


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(1, 10**4), st.integers(1, 999)), min_size=1, max_size=12)
)
def test_every_call_of_an_open_load_keeps_its_time_and_size(tmp_path_factory, calls):
    trace = load(tmp_path_factory.mktemp("spans"), export(*(span(at, at + took, n, out) for at, took, n, out in calls)), "otel")
    first = min(at for at, *_ in calls)
    found = sorted(zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    expected = sorted(((at - first) / 1e3, n, out) for at, _, n, out in calls)
    np.testing.assert_allclose([row[0] for row in found], [row[0] for row in expected], atol=1e-6)
    assert sorted(row[1:] for row in found) == sorted(row[1:] for row in expected)


def test_calls_side_by_side_share_nothing_and_are_named(tmp_path):
    trace = load(tmp_path, export(span(0, 900, 100, 20, "a"), span(500, 700, 50, 5, "a")), "otel")
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5], atol=1e-6)
    assert any("1 conversations have calls side by side" in note for note in trace.notes)


AGENT = {
    "id": "s1",
    "models": ["m"],
    "block_size": 64,
    "requests": [
        {"t": 0.0, "type": "s", "in": 200, "out": 40, "hash_ids": [1, 2, 3, 4], "api_time": 2.0},
        {"t": 5.0, "type": "s", "in": 320, "out": 10, "hash_ids": [1, 2, 3, 4, 5], "api_time": 1.0},
        {"t": 6.5, "type": "subagent", "requests": [{"t": 0.0, "type": "n", "in": 130, "out": 7, "hash_ids": [1, 2], "api_time": 1.0}]},
    ],
}


def test_an_agents_calls_follow_each_other_and_its_subagents_share_its_blocks(tmp_path):
    trace = load(tmp_path, AGENT, "weka")
    np.testing.assert_allclose(trace.arrival_s, [0.0, np.nan, 6.5])
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([200, 320, 130], [40, 10, 7])
    assert trace.think_s[1] == pytest.approx(3.0)
    shared = [content.hashes for content in trace.contents]
    assert (shared[0][:3], shared[2][:2]) == (shared[1][:3], shared[1][:2])


def test_hashes_are_a_sessions_own_unless_they_are_global(tmp_path):
    two = [AGENT, AGENT | {"id": "s2"}]
    own = load(tmp_path, two, "weka")
    both = load(tmp_path, "".join(json.dumps(each | {"hash_id_scope": "global"}) + "\n" for each in two), "weka")
    assert own.contents[0].hashes[0] != own.contents[1].hashes[0]
    assert both.contents[0].hashes[0] == both.contents[1].hashes[0]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("otel", {}, "no span in it has gen_ai.usage.input_tokens"),
        ("otel", export(span(5, 2, 10, 10)), "span 5: ends before it starts"),
        ("otel", export(span(0, 2, "x", 10)), "gen_ai.usage.input_tokens must be a whole number"),
        ("otel", {"resourceSpans": 3}, "resourceSpans must be a list of objects"),
        ("weka", {"id": "s"}, "requests must be a list of objects"),
        ("weka", {"id": "s", "requests": [{"in": 3, "out": 4}]}, "request 0: t is missing"),
        ("weka", {"id": "s", "requests": [{"t": 0, "out": 4}]}, "request 0: in is missing"),
        ("weka", "[3]", "item 0: expected an object"),
    ],
)
def test_what_is_wrong_names_its_place(tmp_path, name, text, says):
    with pytest.raises(UsageError, match=says):
        load(tmp_path, text, name)
