"""Rates whose replay misses the medians of the very log that they were learnt from fail a gate; tails do not."""

import pytest

from calibrate.logs.log_rates import MOST_MISFIT, misfits


def row(figure, error):
    return {"figure": figure, "measured_s": 2.0, "simulated_s": 2.0 * (1 + error)}


def test_a_log_that_is_reproduced_passes():
    assert misfits([row("p50 TTFT", MOST_MISFIT - 0.01), row("p50 TPOT", -MOST_MISFIT + 0.01), row("p99 TTFT", 3.0)]) == []


@pytest.mark.parametrize("error", [0.71, -0.5, float("nan")])
def test_a_median_that_is_missed_is_named_with_its_error(error):
    assert misfits([row("p50 TTFT", 0.01), row("p50 TPOT", error)]) == [f"p50 TPOT {error:+.0%}"]
