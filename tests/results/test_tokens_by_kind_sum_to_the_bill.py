"""USD per million tokens by kind: times their tokens they are the bill of the GPU-hours."""

import json

import numpy as np
import pytest

from sim import Deployment, Simulate, Workload
from sim.results.token_cost import token_cost
from sim.specs.gpus import get_gpu
from tests.cli import run

AGENTS = ("--agent-sessions", "6", "--gpu", "H100", "--model", "Llama-3.1-8B", "--json")
PREFILL_DECODE = """
pools:
  - {name: prefill, role: prefill, replicas: 1, gpu: H100, model: Llama-3.1-8B}
  - {name: decode, role: decode, replicas: 2, gpu: L40S, model: Llama-3.1-8B}
"""


def test_the_three_are_the_bill():
    found = json.loads(run("simulate", *AGENTS).stdout)
    usd = found["usd_per_mtok"]
    cached = found["prefix_cache_hit_rate"] * found["total_input_tokens"]
    tokens = {"input": found["total_input_tokens"] - cached, "cached": cached, "output": found["total_output_tokens"]}
    assert sum(usd[kind] * tokens[kind] for kind in usd) / 1e6 == pytest.approx(
        found["gpu_hours"] * get_gpu("H100").price_per_hour, rel=1e-6
    )
    assert 0.0 < usd["cached"] < usd["input"] < usd["output"]


def test_nothing_cached_has_no_price():
    record = Simulate(Deployment.of("Llama-3.1-8B", "H100"), Workload.drawn(20, request_rate=4.0), draws=0).answer().record
    cost = token_cost(record, [3.6])
    assert set(cost.to_dict()) == {"input", "output"}
    assert cost.usd == pytest.approx(3.6 * record.paid_s[0] / 3600)
    assert cost.at(2.0).usd == pytest.approx(2e-6 * cost.tokens[-1])
    assert token_cost(record, [None]) is None


def test_each_pool_pays_for_what_it_does(tmp_path):
    """A prefill replica's idle time is input's, decode replicas' is output's."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(PREFILL_DECODE)
    found = json.loads(run("simulate", "--fleet", str(fleet), "--num-prompts", "40", "--request-rate", "4", "--json").stdout)
    hour = np.array([get_gpu("H100").price_per_hour, 2 * get_gpu("L40S").price_per_hour])
    hours = found["gpu_hours"] / 3
    usd = found["usd_per_mtok"]
    assert usd["input"] * found["total_input_tokens"] / 1e6 == pytest.approx(hour[0] * hours, rel=0.2)
    assert usd["output"] * found["total_output_tokens"] / 1e6 == pytest.approx(hour[1] * hours, rel=0.2)
