"""The highest rate of a deployment: an interval that holds the 5 % quantile over trials, each found by bisection."""

import numpy as np
import pytest

from sim.planning.highest_rate import TRIALS, offered_rate, sustained
from sim.planning.trials import CLOSEST, Here
from sim.slo import parse_slo
from sim.workload.workload import Workload
from tests.planning.offered import choices


def test_the_interval_holds_the_quantile():
    rng = np.random.default_rng(0)
    found = [sustained(rng.lognormal(0.0, 0.2, TRIALS), 10.0) for _ in range(300)]
    truth = 10.0 * np.exp(0.2 * -1.6449)
    assert np.mean([each.low <= truth <= each.high for each in found]) >= 0.9
    assert all(each.low <= each.per_s <= each.high for each in found)


def test_a_winner_sustains_what_it_won_at():
    found = sustained(np.linspace(0.9, 1.2, TRIALS), 10.0)
    assert found.low < 10.0
    known = found.at_least(10.0)
    assert (known.low, known.per_s) == (10.0, 10.0)
    assert known.high == max(found.high, 10.0)
    assert found.at_least(1.0) == found


@pytest.mark.parametrize("rate", [2.0, 60.0])
def test_a_trial_meets_the_slo_up_to_its_rate(rate):
    slo = parse_slo(["ttft:p90<500ms"], {})
    found = choices(Workload.drawn(60, output_len=32, request_rate=rate), "L40S")
    here = Here(found, slo)
    factor = here.factor(0, 1, 3)
    assert here.one(0, 1, 3, factor).met
    assert not here.one(0, 1, 3, factor * (1 + CLOSEST) ** 2).met
    assert offered_rate(found[0].study.workload) == rate
