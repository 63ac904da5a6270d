"""A trace read as what it is not names its own format, or how to convert one that is none of ours."""

import json

import pytest

from sim.errors import UsageError
from sim.workload.formats import FORMATS, SIGNS, load_trace

WEKA = {"id": "s", "block_size": 64, "requests": [{"t": 0.0, "type": "s", "in": 100, "out": 4, "hash_ids": [1, 2]}]}
MOONCAKE = {"timestamp": 0, "input_length": 100, "output_length": 4, "hash_ids": [1]}
JAEGER = {"data": [{"spans": [{"traceID": "a", "operationName": "chat", "startTime": 1}]}]}
OTHERS = {
    "weka": json.dumps(WEKA),
    "mooncake": json.dumps(MOONCAKE),
    "otel": json.dumps({"resourceSpans": []}, indent=1),
    "agents": json.dumps({"session_id": "s", "turns": [{"turn": 0, "completed_at": "2026-04-23T17:20:15+00:00", "prompt_tokens": 9}]}),
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
    "sharegpt": json.dumps([{"id": "a", "conversations": [{"from": "human", "value": "hi"}]}]),
    "Jaeger's": json.dumps(JAEGER),
    "LLMServingSim's": json.dumps({"input_toks": 2, "output_toks": 3, "arrival_time_ns": 4}),
}


@pytest.mark.parametrize("format_name", OTHERS)
def test_read_as_our_own_it_says_which(tmp_path, format_name):
    (tmp_path / "trace").write_text(OTHERS[format_name])
    with pytest.raises(UsageError, match=rf"^trace: .*it looks like (--trace-format {format_name}$|{format_name}[: ])") as said:
        load_trace(tmp_path / "trace", "jsonl")
    assert "\n" not in str(said.value)


def test_an_error_in_its_own_format_says_nothing_more(tmp_path):
    (tmp_path / "trace").write_text(json.dumps(MOONCAKE | {"input_length": -1}))
    with pytest.raises(UsageError) as said:
        load_trace(tmp_path / "trace", "mooncake")
    assert "looks like" not in str(said.value)


def test_every_sign_is_of_a_format_or_says_what_to_do():
    assert all(what in FORMATS or what.startswith("it looks like ") for what in SIGNS.values())
