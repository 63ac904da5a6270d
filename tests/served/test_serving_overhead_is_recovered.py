"""The serving overhead that made the data is found again, and a replay with it is right to the last request."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.overhead import SERIAL_S, fit_overhead
from calibrate.served.replay import replay
from calibrate.served.scores import places, score, within
from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.errors import UsageError
from tests.served.made_runs import C0_S, EXPOSED, HOST, IN_PROCESS, REQUEST_S, RUN, as_served, open_loop, rung

LOW = open_loop("low", 1.0, 30)
RUNGS = tuple(rung(n) for n in (1, 4, 16, 32, 64))


@pytest.fixture(scope="module")
def learnt():
    return fit_overhead(RUN, IN_PROCESS, [LOW], RUNGS)


def test_c0_shown_and_request_latency(learnt):
    assert learnt.rates.point.c0_s == pytest.approx(C0_S, rel=1e-6)
    assert learnt.overhead.exposed_share == pytest.approx(EXPOSED, rel=1e-6)
    assert learnt.host.request_s + learnt.host.serial_s == pytest.approx(REQUEST_S + SERIAL_S, abs=1e-4)
    assert set(learnt.fitted_to) == {"low", "n1", "n4", "n16", "n32", "n64"}
    assert (learnt.overhead.token_s, learnt.overhead.prompt_token_s) == (learnt.host.token_s, learnt.host.prompt_token_s)
    assert learnt.host.token_s != learnt.host.prompt_token_s


def test_a_window_without_clients_is_no_rung():
    """An open loop may say what its steps took; how many it had beside it, it does not."""
    windowed = replace(open_loop("open", 1.0, 30, seed=2), window_step_s=RUNGS[0].window_step_s)
    assert fit_overhead(RUN, IN_PROCESS, [LOW], (*RUNGS[:2], windowed)).fitted_to == ("low", "n1", "n4")


def test_every_draw_meets_the_windows(learnt):
    """What the windows pin down, every draw agrees on: its price of a rung is the measured window to a fraction of a percent."""
    for r in RUNGS:
        shape = decode_batch(RUN.model, float(r.clients), 2048.0 + 64)
        prices = step_time_s(RUN.deployment.work(shape), learnt.rates.draws, np)
        assert np.abs(prices / r.window_step_s - 1).max() < 0.02


def test_higher_loads_are_replayed_exactly(learnt):
    for rate in (8.0, 24.0):
        unseen = open_loop(f"{rate}/s", rate, 80, seed=1)
        predicted = replay(RUN, unseen, learnt.rates, learnt.host)
        scores = {s.metric: s for s in score(unseen, predicted, {"ttft_s": 0.01, "tpot_s": 0.01, "e2el_s": 0.01})}
        assert scores["tpot_s"].median_abs < 1e-3
        assert scores["e2el_s"].median_abs < 2e-3
        assert all(s.within for s in scores.values())


def test_without_a_ladder_c0_closes_the_low_load():
    learnt = fit_overhead(RUN, IN_PROCESS, [LOW], ())
    assert learnt.overhead.exposed_share == 0.0  # an engine that decides ahead hides it
    seen = replay(RUN, LOW, learnt.rates, learnt.host)
    assert np.nanmedian(seen.tpot_s) == pytest.approx(np.nanmedian(LOW.tpot_s), rel=2e-3)


def test_a_wrong_model_is_told_so(learnt):
    """Twice the KV traffic nobody modelled shows as a bias, a miss and lost coverage."""
    slow = replace(LOW, e2el_s=LOW.ttft_s + 1.3 * (LOW.e2el_s - LOW.ttft_s))
    predicted = replay(RUN, slow, learnt.rates, learnt.host, draws=IN_PROCESS.count)
    by_metric = {s.metric: s for s in score(slow, predicted, {"ttft_s": 0.02, "tpot_s": 0.02, "e2el_s": 0.02})}
    assert not by_metric["tpot_s"].within
    assert by_metric["tpot_s"].bias < -0.2
    assert by_metric["tpot_s"].coverage < 0.1
    assert by_metric["ttft_s"].within


def test_coverage_of_known_noise_is_nominal():
    """Requests off by log-normal noise of the declared size lie inside their 90 % interval nine times in ten."""
    rng = np.random.default_rng(3)
    many = open_loop("many", 2.0, 400)
    predicted = replay(RUN, many, as_served(IN_PROCESS), HOST)
    noisy = many.e2el_s * np.exp(rng.normal(0, 0.05, 400))
    inside = within(places(noisy, predicted, "e2el_s", {"e2el_s": 0.05}), 0.9)
    assert abs(inside.mean() - 0.9) < 4 * np.sqrt(0.09 / 400)


def test_an_engine_that_decides_when_it_is_done_shows_all_of_its_host_work():
    waits = replace(RUN, limits=replace(RUN.limits, options={"async_scheduling": False}))
    assert fit_overhead(waits, IN_PROCESS, [LOW], ()).overhead.exposed_share == 1.0


def test_too_few_requests_are_refused():
    few = replace(LOW, **{k: getattr(LOW, k)[:3] for k in ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2el_s")})
    with pytest.raises(UsageError, match="too few"):
        fit_overhead(RUN, IN_PROCESS, [few], RUNGS)
