"""Analytic bounds discard counts that simulation would miss the SLO with, and nothing else."""

import pytest

from sim.planning.bounds import states_of
from sim.planning.race import search
from sim.planning.trials import Here, runner
from sim.slo import parse_slo
from sim.workload.workload import Workload
from tests.planning.offered import choices

SLO = parse_slo(["ttft:p99<1s tpot:p95<60ms"], {})


def offered(gpu, requests=200, input_len=1024, request_rate=None, max_concurrency=None, **values):
    workload = Workload.drawn(
        requests, input_len=input_len, output_len=100, length_cv=0.5, request_rate=request_rate, max_concurrency=max_concurrency
    )
    return choices(workload, gpu, **values)


@pytest.mark.parametrize(
    "asked",
    [
        {"gpu": "L4", "dtype": "fp8", "request_rate": 12.0},
        {"gpu": "A100-80G", "request_rate": 60.0},
        {"gpu": "L40S", "request_rate": 40.0, "input_len": 100, "max_num_seqs": 8},
    ],
)
def test_what_is_ruled_out_misses_in_trials(asked):
    found = offered(**asked)
    fails = states_of(found, SLO, 64)[0].fails
    assert fails >= 1
    here = Here(found, SLO)
    assert not any(here.one(0, fails, trial).met for trial in range(6))


def test_the_answer_is_the_same_without_them():
    found = offered("L40S,L4", 40, dtype="fp8", request_rate=6.0)
    with runner(found, SLO, 1) as run:
        with_them, _ = search(found, SLO, run.trials, 16, None, states_of(found, SLO, 16))
        without, _ = search(found, SLO, run.trials, 16)
    assert (with_them.winner.choice, with_them.winner.replicas) == (without.winner.choice, without.winner.replicas)


def test_clients_that_wait_for_answers_set_no_deadline():
    found = offered("L4", dtype="fp8", max_concurrency=500)
    assert states_of(found, SLO, 64)[0].fails == 0
