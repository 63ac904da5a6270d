"""Arrivals along a rate curve are the plain process rescaled in time: exactly, and so in counts; curves are read or refused by line."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import Workload
from sim.errors import UsageError
from sim.workload.arrivals import arrival_times
from sim.workload.rate_curve import RateCurve, list_curves, load_curve

rates = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.5, 40.0]), min_size=1, max_size=8).filter(any)
seeds = st.integers(0, 2**32)


def rng(seed=0):
    return np.random.default_rng(seed)


def curve(per_s, row_s=600.0):
    return RateCurve("made", row_s * np.arange(len(per_s) + 1), np.array(per_s))


def read(tmp_path, text):
    file = tmp_path / "curve.csv"
    file.write_text(text)
    return load_curve(file)


@given(rates, seeds, st.sampled_from([0.2, 1.0, 5.0, math.inf]))
def test_rescaled_arrivals_are_arrivals_at_rate_one(per_s, seed, burstiness):
    """Time rescaling: expected calls until each arrival are a process of rate 1, the very one that was drawn."""
    shape = curve(per_s)
    times = arrival_times(300, shape, burstiness, rng(seed))
    assert shape.calls(times) == pytest.approx(arrival_times(300, 1.0, burstiness, rng(seed)), rel=1e-9, abs=1e-9)
    assert (np.diff(times) >= 0).all()


@given(rates, seeds)
def test_nothing_comes_where_the_rate_is_zero(per_s, seed):
    shape = curve(per_s)
    times = arrival_times(300, shape, 1.0, rng(seed)) % shape.edges_s[-1]
    rows = np.searchsorted(shape.edges_s, times, side="right") - 1
    edge = np.isin(times, shape.edges_s)
    assert all(shape.rates_per_s[rows[~edge]] > 0)


@given(st.floats(1e-3, 1e3), seeds, st.sampled_from([0.2, 1.0, 5.0]))
def test_a_constant_curve_is_the_plain_process(rate, seed, burstiness):
    constant = arrival_times(200, curve([rate] * 3), burstiness, rng(seed))
    assert constant == pytest.approx(arrival_times(200, rate, burstiness, rng(seed)), rel=1e-9)


def test_counts_in_every_window_are_poisson_about_the_integral():
    shape = curve([0.5, 0.0, 2.0, 4.0, 1.0], row_s=60.0)
    draws, edges = 400, np.arange(0.0, 601.0, 30.0)  # half rows, and a second round of the curve
    counts = np.array([np.histogram(arrival_times(1200, shape, 1.0, rng(seed)), edges)[0] for seed in range(draws)])
    expected = np.diff(shape.calls(edges))
    assert expected.sum() == pytest.approx(900)
    assert np.abs(counts.mean(0) - expected).max() <= 4 * np.sqrt(expected.max() / draws)
    assert counts.var(0)[expected > 0] / expected[expected > 0] == pytest.approx(1.0, abs=0.35)


@given(rates, st.floats(1e-3, 1e3))
def test_a_request_rate_scales_the_mean_and_keeps_the_shape(per_s, mean):
    scaled = curve(per_s).scaled_to(mean)
    assert scaled.mean_per_s == pytest.approx(mean)
    assert scaled.rates_per_s / mean == pytest.approx(np.array(per_s) / np.mean(per_s))


def test_the_packaged_day_has_a_mean_of_one_and_windows_of_ten_minutes():
    assert list_curves() == ["servegen-day"]
    day = load_curve("ServeGen day")
    assert day.edges_s.tolist() == [600.0 * i for i in range(145)]
    assert day.mean_per_s == pytest.approx(1.0, abs=1e-4)
    assert 0.2 < day.rates_per_s.min() < day.rates_per_s.max() < 3.0


def test_a_file_is_in_seconds_or_hours_and_its_last_row_is_as_long_as_the_one_before(tmp_path):
    hours = read(tmp_path, "# a day\nhour,rate\n0,1\n8,5\n16,2\n")
    assert hours.edges_s.tolist() == [0.0, 28_800.0, 57_600.0, 86_400.0]
    seconds = read(tmp_path, "time_s,rate\n0,1\n10,5\n30,2\n")
    assert seconds.edges_s.tolist() == [0.0, 10.0, 30.0, 50.0]
    assert read(tmp_path, "hour,rate\n0,3\n").mean_per_s == 3.0


def test_workloads_follow_the_curve_and_say_so():
    drawn = Workload.drawn(500, rate_curve="servegen-day", request_rate=0.1, seed=3)
    own = Workload.drawn(500, rate_curve=load_curve("servegen-day"), seed=3)
    assert drawn.trace.arrival_s == pytest.approx(np.sort(drawn.trace.arrival_s))
    day = load_curve("servegen-day")
    assert day.scaled_to(0.1).calls(drawn.trace.arrival_s) == pytest.approx(day.calls(own.trace.arrival_s))
    assert drawn.origin["rate_curve"] == "servegen-day"
    assert drawn.redraw(0).arrival_s.tolist() != drawn.trace.arrival_s.tolist()
    agents = Workload.agents(30, rate_curve="servegen-day")
    assert np.nanmax(agents.trace.arrival_s) < 200  # the curve's own mean, 1 session a second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "curve.csv: holds no rates"),
        ("hour,rate\n", "curve.csv: holds no rates"),
        ("hours,rate\n0,1\n", "curve.csv: line 1: the header must be time_s,rate or hour,rate"),
        ("hour,rate\n0,1\n1\n", "curve.csv: line 3: expected 2 cells, got 1"),
        ("hour,rate\n0,1\n\n1,many\n", "curve.csv: line 4: rate must be a number, got 'many'"),
        ("hour,rate\n0,1\n1,-2\n", "curve.csv: line 3: rate must be 0 or 1e-09 to 1e+09 per second, got -2"),
        ("hour,rate\n0,1\n1,nan\n", "curve.csv: line 3: rate must be 0 or"),
        ("hour,rate\n1,1\n", "curve.csv: line 2: the first row must be at time 0"),
        ("hour,rate\n0,1\n2,1\n2,1\n", "curve.csv: line 4: times must grow"),
        ("hour,rate\n0,1\ninf,1\n", "curve.csv: line 3: times must grow"),
        ("time_s,rate\n0,1\n1e-9,1\n", "curve.csv: line 3: times must grow, by a millisecond at least"),
        ("hour,rate\n0,1e-300\n", "curve.csv: line 2: rate must be 0 or"),
        ("hour,rate\n0,0\n1,0\n", "curve.csv: every rate is 0"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, text, message):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("mean", [0.0, -1.0, 1e-300, math.inf, math.nan])
def test_a_mean_that_is_no_rate_is_refused(mean):
    with pytest.raises(UsageError, match="must be positive and finite"):
        curve([1.0]).scaled_to(mean)


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match=r"nosuch\.csv: no such file; rate curves of simctl: servegen-day"):
        load_curve("nosuch.csv")
