"""Pools of prefill and decode, or of short and long prompts, on equal or different GPUs, are choices like any other."""

import pytest

from sim.plan.bounds import standings_of
from sim.plan.choices import RATIOS
from sim.plan.trials import Here
from sim.slo import parse_slo
from simctl.commands.plan import command
from simctl.plan_choices import choices_of
from tests.cli import run

DRAWN = ["--model", "Llama-3.1-8B", "--num-prompts", "200", "--random-output-len", "100", "--random-length-cv", "0.5", "--dtype", "fp8"]
SLO = parse_slo(["ttft:p99<1s tpot:p95<60ms"], {})


def offered(*arguments):
    return choices_of(command.make_context("plan", [*DRAWN, *arguments]).params)


def test_every_pair_in_every_ratio():
    found = offered("--gpu", "H100,L4", "--pools", "prefill-decode", "--request-rate", "4")
    assert len(found) == 4 * len(RATIOS)
    assert "prefill on 1 x H100, decode on 2 of 1 x L4" in [choice.name for choice in found]
    both = offered("--gpu", "H100,L4", "--pools", "one,prefill-decode,split", "--request-rate", "4")
    assert len(both) == 2 + len(found) + 3 * len(found)


def test_prefill_and_decode_share_their_dtypes():
    found = offered("--gpu", "H100", "--kv-dtype", "bf16,fp8", "--pools", "prefill-decode", "--request-rate", "4")
    assert len(found) == 2 * len(RATIOS)


def test_a_unit_times_two_has_twice_the_replicas():
    choice = next(c for c in offered("--gpu", "L4,L40S", "--pools", "split", "--request-rate", "4") if "3 of 1 x L40S" in c.name)
    pools = choice.study_of(2).fleet.pools
    assert [pool.deployment.replicas for pool in pools] == [part.replicas * 2 for part in choice.parts]
    assert choice.cost(2) == 2 * choice.cost(1)


@pytest.mark.parametrize("pools", ["prefill-decode", "split"])
def test_what_is_ruled_out_misses_in_trials(pools):
    found = offered("--gpu", "L4", "--pools", pools, "--request-rate", "25")[:3]
    here = Here(found, SLO)
    for i, standing in enumerate(standings_of(found, SLO, 64)):
        assert standing.fails >= 1
        assert not any(here.one(i, standing.fails, trial).met for trial in range(3))


def test_a_kind_that_there_is_not_is_refused():
    result = run("plan", "--gpu", "H100", *DRAWN, "--slo", "ttft:p99<2s", "--pools", "two")
    assert "--pools: no 'two'; there are one, prefill-decode, split" in result.stderr
