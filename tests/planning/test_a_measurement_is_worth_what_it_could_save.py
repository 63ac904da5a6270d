"""Knowing the rates of a deployment is worth the money that the draws save at which a cheaper one would do; else nothing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from sim.planning.choices import Part
from sim.planning.race import Candidate, CandidateState, RaceResult
from sim.planning.trials import Trial
from sim.planning.value import _chances, _log_times, best_measurement
from sim.slo import parse_slo
from sim.workload.workload import Workload
from tests.planning.offered import choices

SLO = parse_slo(["ttft:p99<1s"], {})


def plan_where(used):
    """One replica at 2 USD uses `used` of its limit, a function of its step times' logarithms [draw]; two certainly do."""
    choice = choices(Workload.drawn(20), "L40S")[0]
    choice = replace(choice, parts=(Part(1, 2.0, 1),))
    times = _log_times(choice.study.deployment, choice.study.rates, choice)[:, 0]
    one, two = Candidate(0, 1), Candidate(0, 2)
    one.add([Trial((float(each),)) for each in used(times)[:200]])
    two.add([Trial((0.4,))] * 200)
    return RaceResult([choice], SLO, [CandidateState(1, candidates={1: one, 2: two})], two)


def nothing_lacks(choice, count, stage):
    pass


def test_half_the_draws_save_half_of_the_difference():
    found = best_measurement(plan_where(lambda times: np.exp(times - np.median(times))), nothing_lacks)
    assert found.usd_per_hour == pytest.approx(0.5 * 2.0, abs=0.1)
    assert found.chance == pytest.approx(0.5, abs=0.05)
    assert found.what == "Llama-3.1-8B in bf16, KV in bf16, on 1 x L40S"


@pytest.mark.parametrize("level", [1.6, 3.0])
def test_where_no_likely_rates_would_do_there_is_none(level):
    assert best_measurement(plan_where(lambda times: level * np.exp(0.1 * times)), nothing_lacks) is None


def test_what_is_the_runs_own_noise_cannot_be_measured_away():
    noise = np.random.default_rng(0).normal(0.0, 0.3, 1600)
    assert best_measurement(plan_where(lambda times: np.exp(noise[: len(times)])), nothing_lacks) is None


def test_the_chance_at_a_draw_follows_its_step_times_and_the_runs_own_noise():
    """log(used) is normal about a line in the logarithm of a decode step: the chance that it is below 0 is known."""
    rng = np.random.default_rng(0)
    times = np.column_stack([rng.normal(0.0, 0.2, 400), rng.normal(0.0, 0.2, 400)])
    candidate = Candidate(0, 1)
    candidate.add([Trial((float(used),)) for used in np.exp(-0.1 + times[:, 0] + rng.normal(0.0, 0.3, 400))])
    assert _chances(candidate, times) == pytest.approx(ndtr((0.1 - times[:, 0]) / 0.3), abs=0.1)
