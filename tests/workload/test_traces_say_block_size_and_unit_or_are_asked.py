"""Block size and time unit of a trace are given, or inferred and noted; where neither tells, the trace is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.workload.content import BlockHashes, Grown, TokenIds
from sim.workload.formats import load_trace
from sim.workload.loader_options import LoadOptions
from sim.workload.trace import Trace


def loaded(tmp_path: Path, records: list[dict[str, Any]], name: str = "mooncake", **options: Any) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    return load_trace(path, name, LoadOptions(**options))


def record(time: float, prompt: int, block: int, **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": prompt, "output_length": 5, "hash_ids": list(range(-(-prompt // block))), **more}


def test_blocks_of_16_tokens_and_seconds_are_seen(tmp_path: Path) -> None:
    trace = loaded(tmp_path, [record(0.5, 209, 16), record(1.25, 718, 16)])
    np.testing.assert_allclose(trace.arrival_s, [0.5, 1.25])
    assert all(isinstance(c, BlockHashes) and c.block_size == 16 for c in trace.contents)
    assert any("16 tokens" in note for note in trace.notes)
    assert any("seconds" in note for note in trace.notes)


@given(st.sampled_from([16, 64, 512]), st.lists(st.integers(2000, 50_000), min_size=8, max_size=20, unique=True))
def test_a_size_that_is_told_or_seen_is_the_one_that_made_the_trace(tmp_path_factory: Any, block: int, prompts: list[int]) -> None:
    trace = loaded(tmp_path_factory.mktemp("t"), [record(1000 * i, prompt, block) for i, prompt in enumerate(prompts)])
    assert {c.block_size for c in trace.contents if isinstance(c, BlockHashes)} == {block}


def test_mooncake_stays_as_it_is(tmp_path: Path) -> None:
    trace = loaded(tmp_path, [record(0, 700, 512), record(3000, 5000, 512)])
    np.testing.assert_allclose(trace.arrival_s, [0.0, 3.0])
    assert trace.notes == ()


def test_what_is_open_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="with time-unit s or ms"):
        loaded(tmp_path, [record(0.5, 700, 512)])
    assert loaded(tmp_path, [record(0.5, 700, 512)], time_unit="s").arrival_s[0] == 0.5
    with pytest.raises(UsageError, match="say which with prefix-block"):
        loaded(tmp_path, [{"timestamp": 0, "input_length": 33, "output_length": 5, "hash_ids": [1, 2]}, record(1, 40, 16)][:1])
    with pytest.raises(UsageError, match="line 1: 700 prompt tokens are"):
        loaded(tmp_path, [record(0, 700, 512)], prefix_block=16)
    with pytest.raises(UsageError, match="prefix-block is for mooncake, log"):
        loaded(tmp_path, [{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": 5}], "jsonl", prefix_block=16)


def test_texts_count_by_characters(tmp_path: Path) -> None:
    text = {"timestamp": 0, "text_input": "x" * 120, "output_length": 5}
    assert loaded(tmp_path, [text]).prompt_tokens[0] == 30
    trace = loaded(tmp_path, [text], chars_per_token=3.0)
    assert trace.prompt_tokens[0] == 40
    assert isinstance(trace.contents[0], TokenIds)
    assert "3 characters to the token" in trace.notes[0]


def test_sessions_wait_for_their_delay(tmp_path: Path) -> None:
    first = {"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 10}
    trace = loaded(tmp_path, [first, {"session_id": "a", "delay": 500, "input_length": 20, "output_length": 10}])
    assert trace.prompt_tokens.tolist() == [100, 130]
    assert np.isnan(trace.arrival_s[1])
    assert trace.think_s[1] == 0.5
    assert trace.contents[1] == Grown(110)


def test_burstgpt_sessions_repeat_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text("Timestamp,Session ID,Request tokens,Response tokens\n0,s1,100,10\n3,,50,5\n5,s1,130,7\n")
    trace = load_trace(path, "burstgpt")
    assert list(trace.session_ids) == ["s1", None, "s1"]
    assert trace.contents == [None, None, Grown(110)]
