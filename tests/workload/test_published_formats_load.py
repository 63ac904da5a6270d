"""Every published trace format, in small samples written by hand: what is read is what they say."""

import json

import numpy as np
import pytest

from sim.errors import UsageError
from sim.workload.content import BlockHashes
from sim.workload.formats import FORMATS, format_of, load_trace
from sim.workload.loader_options import LoadOptions
from sim.workload.sources import TraceSource


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def load(tmp_path, text, trace_format, **options):
    file = tmp_path / "sample"
    file.write_text(text)
    return load_trace(file, trace_format, LoadOptions(**options))


def reuse(trace, block_size):
    """Share of prompt tokens found again with an unlimited cache, whole blocks only, requests one after another."""
    source, seen, hit = TraceSource(trace, block_size), set(), 0
    for request in all_requests(source):
        full = request.prompt_tokens // block_size
        for name in list(request.prompt_hashes)[:full]:
            if name not in seen:
                break
            hit += block_size
        seen.update(request.prompt_hashes)
    return hit / trace.prompt_tokens.sum()


def all_requests(source):
    for request in source.arrivals():
        while request is not None:
            yield request
            request = next(iter(source.after(request, request.arrival_s)), None)


def test_mooncake(tmp_path):
    trace = load(
        tmp_path,
        lines(
            {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7, 8, 9]},
            {"timestamp": 3000, "input_length": 1500, "output_length": 6, "hash_ids": [7, 8, 10]},
        ),
        "mooncake",
    )
    assert trace.arrival_s.tolist() == [0.0, 3.0]
    assert trace.contents[1].block_size == 512
    assert isinstance(trace.contents[1], BlockHashes)
    assert reuse(trace, 512) == 1024 / 2700
    assert reuse(trace, 16) == 1024 / 2700
    assert reuse(trace, 1024) == 1024 / 2700
    # a block of 768 ends in mid hash block: only what whole hashes prove is shared
    assert reuse(trace, 768) == 768 / 2700


def test_mooncake_hit_stops_at_the_prompt(tmp_path):
    row = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
    assert reuse(load(tmp_path, lines(row, row), "mooncake"), 16) == 688 / 1400  # 43 whole blocks of the second prompt


def test_burstgpt(tmp_path):
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    text += "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118.5,ChatGPT,417,276,693,Conversation log\n"
    trace = load(tmp_path, text, "burstgpt")
    assert trace.arrival_s.tolist() == [0.0, 113.5]
    assert trace.output_tokens.tolist() == [18, 276]
    assert trace.notes == ("1 failed calls (no response tokens) left out",)


CONVERSATIONS = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "x" * 40},
            {"from": "gpt", "value": "y" * 20},
            {"from": "human", "value": "z" * 8},
            {"from": "gpt", "value": "w" * 12},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "unasked"}]},
    {"id": "c", "conversations": [{"from": "human", "value": "x" * 44}, {"from": "gpt", "value": "u"}]},
]


def test_sharegpt(tmp_path):
    trace = load(tmp_path, json.dumps(CONVERSATIONS), "sharegpt")
    assert trace.prompt_tokens.tolist() == [10, 11]
    assert trace.output_tokens.tolist() == [5, 1]
    assert not trace.timed
    assert "1 conversations without a question" in trace.notes[0]
    assert "4 characters to the token" in trace.notes[1]
    assert reuse(trace, 4) == 8 / 21


def test_sharegpt_sessions(tmp_path):
    trace = load(tmp_path, json.dumps(CONVERSATIONS, indent=2), "sharegpt-sessions")
    assert trace.prompt_tokens.tolist() == [10, 17, 11]
    assert np.isnan(trace.arrival_s).tolist() == [False, True, False]
    assert reuse(trace, 4) == (12 + 8) / 38


def test_sharegpt_larger_than_a_read(tmp_path):
    many = [{"conversations": [{"from": "human", "value": "q" * 3001}, {"from": "gpt", "value": f"a{i}"}]} for i in range(900)]
    assert len(load(tmp_path, json.dumps(many), "sharegpt")) == 900


def test_custom(tmp_path):
    trace = load(tmp_path, lines({"prompt": "x" * 41}, {"prompt": "y", "output_tokens": 9}), "custom", output_tokens=77)
    assert trace.prompt_tokens.tolist() == [11, 1]
    assert trace.output_tokens.tolist() == [77, 9]


def test_agent_sessions(tmp_path):
    def session(name, minute):
        stamp = f"2026-04-23T17:{minute}:15.5+00:00"
        turns = [{"completed_at": stamp, "prompt_tokens": p, "completion_tokens": c} for p, c in ((50, 10), (64, 5), (55, 5))]
        return {"session_id": name, "turns": turns}

    trace = load(tmp_path, lines(session("late", 21), session("early", 20)), "agents")
    assert trace.session_ids[0] == "early"
    assert trace.arrival_s[[0, 3]].tolist() == [0.0, 60.0]
    assert [content.shared_tokens for content in trace.contents[1:3]] == [60, 55]


def servegen(folder, dataset=None):
    folder.mkdir()
    for client, family in ((1, "Gamma"), (2, "Weibull"), (3, "")):
        rows = "".join(f"{600 * w},{0.5 if w else 0},2.0,{family},0.5,3.0\n" for w in range(4))
        (folder / f"chunk-{client}-trace.csv").write_text(rows)
        lengths = {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{7: 1.0}", "reason_ratio": "{}"}
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps(dataset or {"0": lengths}))
    return folder


def test_servegen(tmp_path):
    folder = servegen(tmp_path / "clients")
    trace = load_trace(folder, "servegen", LoadOptions(seed=1, start_s=0, duration_s=2400))
    assert len(trace) == 3 * 3 * 300  # each client's count in each window is its rate's
    assert trace.arrival_s.min() >= 600
    assert set(trace.output_tokens) == {7}
    assert 0.70 < (trace.prompt_tokens == 20).mean() < 0.80
    assert (np.diff(trace.arrival_s) >= 0).all()
    again = load_trace(folder, "servegen", LoadOptions(seed=1, start_s=0, duration_s=2400))
    other = load_trace(folder, "servegen", LoadOptions(seed=2, start_s=0, duration_s=2400))
    assert trace.arrival_s.tolist() == again.arrival_s.tolist() != other.arrival_s.tolist()
    part = load_trace(folder / "chunk-1-trace.csv", "servegen", LoadOptions(seed=1, start_s=900, duration_s=600))
    assert 0 <= part.arrival_s[0] <= part.arrival_s[-1] < 600


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"0": {"input_tokens": "__import__('os').abort()", "output_tokens": "{}"}}, "not a ServeGen dataset"),
        ({"0": {"input_tokens": "{}", "output_tokens": "{}"}}, "has no lengths"),
        ({"0": {"input_tokens": "{1: 1.0}"}}, "not a ServeGen dataset"),
        ([1], "not a ServeGen dataset"),
    ],
)
def test_servegen_datasets_are_literals_and_nothing_else(tmp_path, dataset, message):
    with pytest.raises(UsageError, match=message):
        load_trace(servegen(tmp_path / "clients", dataset), "servegen")


@pytest.mark.parametrize(
    ("trace_format", "text", "message"),
    [
        (
            "mooncake",
            '{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7]}',
            "sample: line 1: 1200 prompt tokens are 2 or 3",
        ),
        ("mooncake", '{"timestamp": 0, "input_length": 1200}', "line 1: output_length is missing"),
        ("burstgpt", "Timestamp,Model\n1,2\n", "line 1: the header lacks 'Request tokens'"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\nnan,1,1\n", "line 2: arrival must be a finite time"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\n1,1\n", "line 2: expected 3 cells, got 2"),
        ("sharegpt", '[{"conversations": [', "ends inside its JSON array"),
        ("sharegpt", '{"a": 1}', "not a JSON array"),
        ("sharegpt", "[1]", "item 0: expected an object"),
        ("sharegpt", "[]", "holds no requests"),
        ("custom", '{"text": "x"}', "line 1: prompt is missing"),
        ("agents", '{"session_id": "s", "turns": [{"completed_at": "noon"}]}', "completed_at is not a time"),
        ("nonsense", "", "unknown trace format 'nonsense'; known: jsonl"),
    ],
)
def test_malformed(tmp_path, trace_format, text, message):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text, trace_format)
    assert message in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    for trace_format in FORMATS:
        with pytest.raises(UsageError):
            load_trace(tmp_path, trace_format)


@pytest.mark.parametrize(
    ("trace_format", "text"),
    [
        ("jsonl", '{"arrival_s": 0.0, "prompt_tokens": 5, "output_tokens": 1}'),
        ("mooncake", '{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7, 8, 9]}'),
        ("mooncake", '{"timestamp": 0, "text_input": "a b", "output_length": 5}'),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,1\n"),
        ("burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"),
        ("sharegpt", '[\n {"id": "a", "conversations": [' + "{}, " * 40_000),
        ("custom", '{"prompt": "a", "output_tokens": 3}'),
        ("otel", '{"resourceSpans": []}'),
        ("weka", '{\n "id": "a", "block_size": 64,\n "requests": [{"t": 0.0, "in": 3}]}'),
        ("agents", '{"session_id": "s", "turns": [{"completed_at": "2026-01-01"}]}'),
    ],
)
def test_the_content_shows_the_format(tmp_path, trace_format, text):
    (tmp_path / "sample").write_text(text)
    assert format_of(tmp_path / "sample") == trace_format
    assert format_of(tmp_path) == "servegen"
