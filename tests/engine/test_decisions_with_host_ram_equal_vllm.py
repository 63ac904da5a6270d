"""With host RAM our scheduler decides what vLLM's decides with its OffloadingConnector: shares, hits and victims of every iteration."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.engine.host_ram_scheduler_oracle import STUCK, drawn, steps_of_engine, steps_of_ours

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

COUNT = int(1000 * float(os.environ.get("WORKLOADS", "1")))


def test_every_iteration_is_decided_alike_and_none_is_stuck() -> None:
    hits = preempted = 0
    for seed in range(COUNT):
        workload = drawn(Random(seed))
        theirs = steps_of_engine(workload)
        assert steps_of_ours(workload) == theirs, f"workload {seed}: {workload.limits}"
        assert theirs[-1] != STUCK
        hits += sum(cached > 0 for step in theirs for _, cached in step[1])
        preempted += sum(len(step[2]) for step in theirs)
    assert hits > 4 * COUNT
    assert preempted > COUNT // 10
