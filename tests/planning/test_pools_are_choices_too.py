"""Pools of prefill and decode, or of short and long prompts, on equal or different GPUs, are choices like any other."""

import pytest

from sim.planning.bounds import states_of
from sim.planning.choices import RATIOS
from sim.planning.trials import Here
from sim.slo import parse_slo
from sim.workload.workload import Workload
from tests.cli import run
from tests.planning.offered import choices

DRAWN = ["--model", "Llama-3.1-8B", "--num-prompts", "200", "--random-output-len", "100", "--random-length-cv", "0.5", "--dtype", "fp8"]
SLO = parse_slo(["ttft:p99<1s tpot:p95<60ms"], {})


def offered(gpu, pools, rate=4.0, **values):
    workload = Workload.drawn(200, output_len=100, length_cv=0.5, request_rate=rate)
    return choices(workload, gpu, pools, dtype="fp8", **values)


def test_every_pair_in_every_ratio():
    found = offered("H100,L4", "prefill-decode")
    assert len(found) == 4 * len(RATIOS)
    assert "prefill on 1 x H100, decode on 2 replicas of 1 x L4" in [choice.name for choice in found]
    both = offered("H100,L4", "one,prefill-decode,split")
    assert len(both) == 2 + len(found) + 3 * len(found)


def test_prefill_and_decode_share_their_dtypes():
    found = offered("H100", "prefill-decode", kv_dtype=("bf16", "fp8"))
    assert len(found) == 2 * len(RATIOS)


def test_a_unit_times_two_has_twice_the_replicas():
    choice = next(c for c in offered("L4,L40S", "split") if "3 replicas of 1 x L40S" in c.name)
    pools = choice.study_of(2).fleet.pools
    assert [pool.deployment.replicas for pool in pools] == [part.replicas * 2 for part in choice.parts]
    assert choice.cost(2) == 2 * choice.cost(1)


@pytest.mark.parametrize("pools", ["prefill-decode", "split"])
def test_what_is_ruled_out_misses_in_trials(pools):
    found = offered("L4", pools, 25.0)[:2]
    here = Here(found, SLO)
    for i, state in enumerate(states_of(found, SLO, 64)):
        assert state.fails >= 1
        assert not any(here.one(i, state.fails, trial).met for trial in range(2))


def test_any_ratio_can_be_asked_for():
    (only,) = offered("H100", "prefill-decode:3x2")
    assert [part.replicas for part in only.parts] == [3, 2]
    assert len(offered("H100", "prefill-decode,prefill-decode:3x2")) == len(RATIOS) + 1


@pytest.mark.parametrize("kind", ["prefill-decode:0x2", "split:3", "one:1x1", "prefill-decode:ax2"])
def test_a_ratio_that_there_is_not_is_refused(kind):
    assert run("plan", "--gpu", "H100", *DRAWN, "--slo", "ttft:p99<2s", "--pools", kind).stderr.startswith(f"simctl: --pools: no '{kind}'")


def test_a_kind_that_there_is_not_is_refused():
    result = run("plan", "--gpu", "H100", *DRAWN, "--slo", "ttft:p99<2s", "--pools", "two")
    assert "--pools: no 'two'; there are one, prefill-decode, split" in result.stderr
