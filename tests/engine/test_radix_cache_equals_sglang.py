"""The radix tree matches, inserts, splits, locks and evicts like SGLang's own, operation by operation (`make test-sglang`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.sglang_oracle import Op, steps_of_engine, steps_of_ours

RECORDED = Path(__file__).parent / "data" / "radix_sglang_0.5.23.json"
texts = st.lists(st.integers(0, 2), max_size=9)
ops = st.lists(
    st.tuples(st.sampled_from(["match", "insert", "insert", "lock"]), texts)
    | st.tuples(st.just("unlock"), st.integers(0, 9))
    | st.tuples(st.just("evict"), st.integers(0, 12)),
    max_size=60,
)


@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")  # the engine's own imports
@settings(max_examples=2000, derandomize=True)
@given(ops)
def test_every_operation_gives_the_same(sequence: list[Op]) -> None:
    assert steps_of_ours(sequence) == steps_of_engine(sequence)


def test_recorded_operations_replay() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert len(recorded) >= 20
    assert sum(log[0] > 0 and op[0] == "evict" for case in recorded for op, log in zip(case["ops"], case["log"], strict=True)) > 20
    for case in recorded:
        assert steps_of_ours(case["ops"]) == case["log"]
