"""What host RAM has, and what it evicts, is what vLLM's CPUOffloadingManager has and evicts, operation by operation (`make test-vllm`)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.engine.host_ram_oracle import Ours, Theirs, drawn, steps_of

RECORDED = Path(__file__).parent / "data" / "vllm_0.33_host_ram.json.gz"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # the engine's own imports
def test_a_thousand_traces_alike() -> None:
    seen = Counter[tuple[bool, bool]]()
    for seed in range(1000):
        settings, ops = drawn(Random(seed))
        theirs = steps_of(Theirs(*settings), ops)
        assert steps_of(Ours(*settings), ops) == theirs, f"trace {seed}"
        seen.update((settings[1] > 1, found > 0) for step in theirs for found in step[step.index(-2) + 1 :] if found)
    print(seen)
    assert min(seen.values()) > 2_000
    assert len(seen) == 4


def test_recorded_traces_replay() -> None:
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    assert recorded["engine"] == "vllm 0.33.0"
    assert len(recorded["cases"]) >= 30
    for case in recorded["cases"]:
        assert steps_of(Ours(*case["settings"]), [tuple(op) for op in case["ops"]]) == case["steps"]


def record() -> None:
    """Write the log of forty traces: `python -m tests.engine.test_host_ram_keeps_what_vllms_manager_keeps`, where the engine is."""
    traces = [drawn(Random(10_000 + seed)) for seed in range(40)]
    cases = [{"settings": settings, "ops": ops, "steps": steps_of(Theirs(*settings), ops)} for settings, ops in traces]
    log = json.dumps({"engine": "vllm 0.33.0", "cases": cases}, separators=(",", ":"))
    RECORDED.write_bytes(gzip.compress(log.encode(), mtime=0))


if __name__ == "__main__":
    record()
