"""The same plan for 19 of 20 seeds."""

import json
from collections import Counter

import pytest

from tests.cli import run

ASKED = (
    *("plan", "--gpu", "H100,A100-80G,L40S,L4", "--dtype", "bf16,fp8", "--model", "Llama-3.1-8B", "--num-prompts", "300"),
    *(
        "--request-rate",
        "8",
        "--random-input-len",
        "1200",
        "--random-output-len",
        "200",
        "--random-length-cv",
        "1",
        "--quick",
        "--within",
        "10m",
    ),
)


@pytest.mark.slow
def test_nineteen_of_twenty_seeds_agree():
    found = Counter()
    for seed in range(20):
        answer = json.loads(run(*ASKED, "--slo", "ttft:p99<2s tpot:p95<60ms", "--seed", str(seed), "--json").stdout)
        found[answer["winner"]["choice"], answer["winner"]["replicas"]] += 1
    assert found.most_common(1)[0][1] >= 19, found
