"""A plan asked for by the function has the figures that its command prints."""

import json

import pytest

from sim import Workload, deployments, plan
from sim.sweeps.figures import flatten
from tests.cli import run

SLO = "ttft:p99<2s"
ASKED = (
    "--model", "Llama-3.1-8B", "--gpu", "H100,L40S", "--tp", "1", "--random-input-len", "512", "--random-output-len", "64",
    "--request-rate", "8", "--slo", SLO, "--quick", "--workers", "1", "--json",
)  # fmt: skip


@pytest.mark.parametrize("prices", [None, {"H100": 0.5, "L40S": 3.0}])
def test_figures(prices):
    load = Workload.drawn(1000, request_rate=8.0, input_len=512, output_len=64)
    called = plan(deployments("Llama-3.1-8B", ["H100", "L40S"]), load, slo=SLO, prices=prices, quick=True, workers=1).to_dict()
    given = [word for gpu, price in (prices or {}).items() for word in ("--price", f"{gpu}={price:g}")]
    assert numbers(called) == numbers(json.loads(run("plan", *ASKED, *given).stdout))


def numbers(answer):
    return {name: value for name, value in flatten(json.loads(json.dumps(answer))).items() if isinstance(value, int | float)}
