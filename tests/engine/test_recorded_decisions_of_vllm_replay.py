"""Decision logs that vLLM 0.33.0 and 0.32.0 wrote (tests/engine/record_vllm_decisions.py) come out of our scheduler unchanged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from sim.engine.versions import VLLM_RULES
from tests.engine.vllm_oracle import Ask, Workload, steps_of_ours

LOGS: dict[str, dict[str, Any]] = {
    version: json.loads(gzip.decompress((Path(__file__).parent / f"data/vllm_{version}_decisions.json.gz").read_bytes()))
    for version in VLLM_RULES
}


@pytest.mark.parametrize("version", VLLM_RULES)
def test_the_log_names_its_engine_and_stresses_preemption_and_hits(version: str) -> None:
    assert version in LOGS[version]["engine"]
    steps = [step for case in LOGS[version]["cases"] for step in case["steps"]]
    assert sum(len(step[2]) for step in steps) > 50
    assert sum(cached > 0 for step in steps for _, cached in step[1]) > 50


@pytest.mark.parametrize(
    ("version", "case"),
    [pytest.param(version, case, id=f"{version} {case['name']}") for version, log in LOGS.items() for case in log["cases"]],
)
def test_replay_is_identical(version: str, case: dict[str, Any]) -> None:
    workload = Workload(case["limits"] | {"engine_version": version}, [Ask(**ask) for ask in case["asks"]])
    assert steps_of_ours(workload, case["overlap"]) == case["steps"]
