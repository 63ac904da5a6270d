"""`--day` plans for the busiest hour and says what every hour needs."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.planning.choices import Choice, Part
from sim.planning.day import hourly, hours_of
from sim.workload.rate_curve import RateCurve, load_curve
from tests.cli import run


def test_hours_have_the_means_of_the_curve():
    curve = load_curve("servegen-day")
    rates = hourly(curve)
    assert len(rates) == 24
    assert np.mean(rates) == pytest.approx(curve.mean_per_s)
    assert rates[3] == pytest.approx(curve.rates_per_s[18:24].mean())


@pytest.mark.parametrize("most", [3, 40])
def test_every_hour_gets_the_least_that_holds_it(most):
    rates = [0.5, 2.2, float(most), most - 0.5]
    choice = Choice("a", None, (Part(1, 2.0, 4),))
    hours = hours_of(rates, choice, most, 1.0, lambda count, trials: [float(count)] * len(trials))
    assert [hour.count for hour in hours] == [math.ceil(rate) for rate in rates]
    assert [hour.usd for hour in hours] == [2.0 * hour.count for hour in hours]
    assert hours[0].gpus == 4


@given(st.lists(st.floats(0.1, 30.0), min_size=1, max_size=9), st.integers(1, 20), st.integers(0, 3599))
def test_hours_hold_all_calls_of_the_period(rates, hours, rest_s):
    """The last hour may be a part of one."""
    curve = RateCurve("c", np.linspace(0.0, 3600.0 * hours + max(rest_s, 1), len(rates) + 1), np.array(rates))
    found = hourly(curve)
    lengths = [3600.0] * (len(found) - 1) + [curve.edges_s[-1] - 3600.0 * (len(found) - 1)]
    assert len(found) == hours + 1
    assert np.dot(found, lengths) == pytest.approx(curve.mean_per_s * curve.edges_s[-1])
    assert min(rates) * (1 - 1e-9) <= min(found) <= max(found) <= max(rates) * (1 + 1e-9)


@given(st.lists(st.floats(0.1, 2.0), min_size=1, max_size=30), st.lists(st.floats(0.01, 60.0), min_size=1, max_size=9))
def test_no_hour_has_more_units_than_the_busiest_nor_fewer_than_hold_it(gains, rates):
    """Units hold the more the more there are, each by another amount; the busiest hour was sized by trials of its own."""
    holds = np.cumsum(gains)
    choice = Choice("a", None, (Part(1, 1.0, 1),))
    for hour in hours_of(rates, choice, len(gains), 1.0, lambda count, trials: [float(holds[count - 1])] * len(trials)):
        assert 1 <= hour.count <= len(gains)
        if len(gains) <= 8:  # of more, some are read between two that were simulated
            assert hour.count == len(gains) or hour.requests_per_s <= holds[hour.count - 1] * (1 + 1e-12)
            assert hour.count == 1 or hour.requests_per_s > holds[hour.count - 2] or hour.requests_per_s == max(rates)
        assert 0.0 < hour.least_gpus <= hour.gpus * (1 + 1e-12)  # one GPU a unit


def test_perfect_scaling_is_a_bound_by_hand():
    """Two units of 4 GPUs hold 5 requests/s, one alone 2: at best a unit holds 2.5."""
    choice = Choice("a", None, (Part(1, 2.0, 4, lost=1),))
    hours = hours_of([5.0, 1.0], choice, 2, 1.0, lambda count, trials: [{1: 2.0, 2: 5.0}[count]] * len(trials))
    assert [hour.least_gpus for hour in hours] == pytest.approx([8.0, 1.6])
    assert [hour.gpus for hour in hours] == [12, 8]  # with what stands by


def test_a_plan_of_a_day(tmp_path):
    curve = tmp_path / "day.csv"
    curve.write_text("hour,rate\n0,1\n1,30\n2,4\n")
    asked = (
        "plan",
        "--gpu",
        "L40S",
        "--model",
        "Llama-3.1-8B",
        "--num-prompts",
        "16",
        "--random-output-len",
        "8",
        "--quick",
        "--within",
        "10m",
        "--workers",
        "1",
        "--day",
        str(curve),
    )
    answer = json.loads(run(*asked, "--slo", "ttft:p90<300ms", "--json").stdout)
    counts = [hour["count"] for hour in answer["day"]]
    assert counts[1] == answer["winner"]["replicas"] == max(counts) > 1
    assert counts[0] == 1
    assert [hour["requests_per_s"] for hour in answer["day"]] == pytest.approx([1.0, 30.0, 4.0])
