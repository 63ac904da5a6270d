"""A 24 GB A10 and a million tokens: dense in HBM is infeasible by name of its bytes, and both published rates lie inside our intervals."""

import json

import pytest

from sim import Deployment, WhatIf
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from tests.cli import run


@pytest.fixture(scope="module")
def options():
    result = WhatIf(Deployment(get_model("Qwen2.5-7B-1M"), get_gpu("A10")), 2**20, stack="published-harness").answer()
    return {(o.policy.kind, o.policy.k, o.policy.placement): o for o in result.options}


def test_dense_in_hbm_is_infeasible_and_names_60_1_gb(options):
    option = options["dense", 0, "hbm"]
    assert not option.feasible
    assert "60.1 GB" in option.reason
    assert option.n_max < 1


def test_tiered_k32_interval_contains_the_published_6_1(options):
    rate = options["blocks", 32, "host"].tokens_per_s
    assert options["blocks", 32, "host"].feasible
    assert rate.low <= 6.1 <= rate.high


def test_dense_from_host_interval_contains_the_published_0_4(options):
    rate = options["dense", 0, "host"].tokens_per_s
    assert rate.low <= 0.4 <= rate.high


def test_the_ratio_is_printed():
    result = run("what-if", "--ctx", "1M", "--gpu", "A10", "--stack", "published-harness", "--json")
    option = next(o for o in json.loads(result.stdout)["options"] if (o["policy"], o["k"], o["kv_in"]) == ("blocks", 32, "host"))
    ratio = option["speedup_over_best_feasible_dense"]
    assert ratio["low"] <= 6.1 / 0.4 <= ratio["high"]
    text = run("what-if", "--ctx", "1M", "--gpu", "A10", "--stack", "published-harness").stdout
    assert f"{ratio['point']:.3g}x" in text
    assert "60.1 GB" in text
