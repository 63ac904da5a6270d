"""Requests of a server whose iterations scatter lie inside their intervals nine times in ten at loads that were not learnt from."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.compare import interval_scores
from calibrate.served.noise import beyond_scatter, noise_of
from calibrate.served.replay import replay, scattered, study_of
from calibrate.served.scatter import Scatter
from sim.rates import RateDraws, Rates
from tests.served.made import HOST, IN_PROCESS, RUN, as_served, open_loop

DRAWS = 40
POINT = as_served(IN_PROCESS).point
KNOWN = RateDraws(POINT, Rates(**{name: np.full(DRAWS, getattr(POINT, name)) for name in POINT.names()}), {}, "truth")
EXTRA_S = np.random.default_rng(2).normal(0.0, 5e-3, 40)
SCATTER = Scatter(EXTRA_S - EXTRA_S.mean(), EXTRA_S - EXTRA_S.mean())
LOW = open_loop("2/s", 2.0, 150)


def as_it_came(loop, seed, scatter=SCATTER, sd=0.0):
    """The loop as a server sends it whose iterations scatter, single requests with noise of their own."""
    rng = np.random.default_rng(seed)
    ttft_s, _, e2el_s, _ = scattered(study_of(RUN, loop, KNOWN, HOST), scatter, rng)
    return replace(loop, ttft_s=ttft_s * np.exp(sd * rng.standard_normal(len(ttft_s))), e2el_s=e2el_s)


def coverage(loop, noise, scatter):
    """Shares inside their 90 %, TPOT and E2EL, of eight such runs of the loop."""
    predicted = replay(RUN, loop, KNOWN, HOST, draws=DRAWS, scatter=scatter)
    runs = [as_it_came(loop, seed) for seed in range(8)]
    off = {metric: [interval_scores(getattr(run, metric), predicted, metric, noise) for run in runs] for metric in ("tpot_s", "e2el_s")}
    return [np.mean(np.array(own) <= 1.645) for own in off.values()]


def test_intervals_hold_nine_in_ten_at_a_load_that_was_not_learnt_from():
    low, loop = as_it_came(LOW, 50), open_loop("16/s", 16.0, 120, seed=1)
    noise = noise_of([(low, replay(RUN, low, KNOWN, HOST, draws=0))])
    beyond = beyond_scatter(noise, RUN, (low,), KNOWN, HOST, SCATTER)
    for share in coverage(loop, beyond, SCATTER):
        assert 0.85 <= share <= 0.95
    for share in coverage(loop, noise, None):  # a busy server's requests meet more such iterations than those of the low load did
        assert share < 0.8


def test_noise_is_counted_once():
    low = as_it_came(LOW, 51)
    noise = noise_of([(low, replay(RUN, low, KNOWN, HOST, draws=0))])
    beyond = beyond_scatter(noise, RUN, (low,), KNOWN, HOST, SCATTER)
    assert all(beyond[metric] < 0.5 * noise[metric] for metric in noise)
    louder = as_it_came(LOW, 51, sd=0.3)
    left = beyond_scatter(noise_of([(louder, replay(RUN, louder, KNOWN, HOST, draws=0))]), RUN, (louder,), KNOWN, HOST, SCATTER)
    assert left["ttft_s"] == pytest.approx(0.3, rel=0.2)


def test_where_nothing_scatters_all_of_the_noise_is_left():
    low = as_it_came(LOW, 52, Scatter(np.zeros(1), np.zeros(1)), sd=0.1)
    noise = noise_of([(low, replay(RUN, low, KNOWN, HOST, draws=0))])
    assert beyond_scatter(noise, RUN, (low,), KNOWN, HOST, Scatter(np.zeros(1), np.zeros(1))) == pytest.approx(noise)
    assert noise["ttft_s"] == pytest.approx(0.1, rel=0.2)
