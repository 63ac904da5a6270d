"""Analytic bounds discard counts that simulation would miss the SLO with, and nothing else."""

import pytest

from sim.plan.bounds import standings_of
from sim.plan.race import search
from sim.plan.trials import Here, runner
from sim.slo import parse_slo
from simctl.commands.plan import command
from simctl.plan_choices import choices_of

DRAWN = ("--model", "Llama-3.1-8B", "--num-prompts", "200", "--random-output-len", "100", "--random-length-cv", "0.5")
SLO = parse_slo(["ttft:p99<1s tpot:p95<60ms"], {})


def offered(*arguments):
    return choices_of(command.make_context("plan", [*DRAWN, *arguments]).params)


@pytest.mark.parametrize(
    "asked",
    [
        ("--gpu", "L4", "--dtype", "fp8", "--request-rate", "12"),
        ("--gpu", "A100-80G", "--request-rate", "60"),
        ("--gpu", "L40S", "--request-rate", "40", "--random-input-len", "100", "--max-num-seqs", "8"),
    ],
)
def test_what_is_ruled_out_misses_in_trials(asked):
    found = offered(*asked)
    fails = standings_of(found, SLO, 64)[0].fails
    assert fails >= 1
    here = Here(found, SLO)
    assert not any(here.one(0, fails, trial).met for trial in range(6))


def test_the_answer_is_the_same_without_them():
    found = offered("--gpu", "L40S,L4", "--dtype", "fp8", "--request-rate", "6", "--num-prompts", "40")
    with runner(found, SLO, 1) as run:
        with_them, _ = search(found, SLO, run.trials, 16, None, standings_of(found, SLO, 16))
        without, _ = search(found, SLO, run.trials, 16)
    assert (with_them.winner.choice, with_them.winner.replicas) == (without.winner.choice, without.winner.replicas)


def test_clients_that_wait_for_answers_set_no_deadline():
    found = offered("--gpu", "L4", "--dtype", "fp8", "--max-concurrency", "500")
    assert standings_of(found, SLO, 64)[0].fails == 0
