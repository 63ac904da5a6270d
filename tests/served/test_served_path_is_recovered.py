"""A served path that made the data is found again, and a replay with it is right to the last request."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.compare import interval_scores, score
from calibrate.served.floor import KNOWN_TO, phase_floor
from calibrate.served.path import learn_path
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment
from calibrate.served.waves import HOSTS_SERIAL_S, HOSTS_SERIAL_SD, weighed
from sim.engine.boost import NO_BOOST, Boost
from sim.errors import UsageError
from tests.served.made import C0_S, HOST, IN_PROCESS, REQUEST_S, RUN, SERIAL_S, SHOWN, as_served, open_loop, rung, served

LOW = open_loop("low", 1.0, 30)
RUNGS = tuple(rung(n) for n in (1, 4, 16, 32, 64))


@pytest.fixture(scope="module")
def learnt():
    return learn_path(RUN, IN_PROCESS, (LOW,), RUNGS)


def test_c0_shown_and_request_latency(learnt):
    assert learnt.rates.point.c0_s == pytest.approx(C0_S, rel=1e-6)
    assert learnt.shown == pytest.approx(SHOWN, rel=1e-6)
    assert learnt.host.serial_s == pytest.approx(SERIAL_S, rel=0.05)
    assert learnt.host.request_s + learnt.host.serial_s == pytest.approx(REQUEST_S + SERIAL_S, abs=1e-4)
    assert set(learnt.learnt_on) == {"low", "n1", "n4", "n16", "n32", "n64"}


def test_one_wave_taken_up_an_iteration_late_does_not_decide_the_servers_own_time(learnt):
    late_s = 0.15
    late = replace(RUNGS[-1], ttft_s=RUNGS[-1].ttft_s + late_s, e2el_s=RUNGS[-1].e2el_s + late_s)
    found = learn_path(RUN, IN_PROCESS, (LOW,), (*RUNGS[:-1], rung(8), rung(24), late))
    assert found.host.serial_s == pytest.approx(learnt.host.serial_s, rel=0.1)


def test_waves_that_disagree_leave_the_servers_own_time_uncertain(learnt):
    shifts = np.random.default_rng(1).normal(0.0, 0.01, 4)
    waves = (rung(16), rung(24), rung(32), rung(64))
    late = tuple(replace(w, ttft_s=w.ttft_s + s, e2el_s=w.e2el_s + s) for w, s in zip(waves, shifts, strict=True))
    found = learn_path(RUN, IN_PROCESS, (LOW,), (*RUNGS[:2], *late))
    assert found.serial_sd > max(5 * learnt.serial_sd, 0.02)
    assert abs(np.log(found.host.serial_s / learnt.host.serial_s)) < 4 * found.serial_sd


def test_draws_of_the_server_divide_what_a_request_takes_alone_otherwise(learnt):
    hosts = replace(learnt, serial_sd=0.1).hosts(4000)
    own = np.array([host.serial_s for host in hosts])
    assert np.log(own).std() == pytest.approx(0.1, rel=0.1)
    assert np.median(own) == pytest.approx(learnt.host.serial_s, rel=0.01)
    np.testing.assert_allclose([host.request_s + host.serial_s for host in hosts], learnt.host.request_s + learnt.host.serial_s)
    later = replay(RUN, RUNGS[-1], learnt.rates, learnt.host, draws=1, hosts=[replace(learnt.host, serial_s=2 * learnt.host.serial_s)])
    assert later.draws["ttft_s"][0].min() > later.ttft_s.min()


def test_every_draw_meets_the_windows(learnt):
    """What the windows pin down, every draw agrees on: its price of a rung is the measured window to a fraction of a percent."""
    from sim.bill import decode_shape, iteration_bill
    from sim.price import step_time_s
    from sim.products import known_to

    for r in RUNGS:
        shape = decode_shape(RUN.model, float(r.clients), 2048.0 + 64)
        prices = step_time_s(iteration_bill(RUN.model, shape, RUN.precision, gpu=known_to(RUN.gpu)), learnt.rates.draws, np)
        assert np.abs(prices / r.window_step_s - 1).max() < 0.02


def test_higher_loads_are_replayed_exactly(learnt):
    for rate in (8.0, 24.0):
        unseen = open_loop(f"{rate}/s", rate, 80, seed=1)
        predicted = replay(RUN, unseen, learnt.rates, learnt.host, draws=0)
        scores = {s.metric: s for s in score(unseen, predicted, {"ttft_s": 0.01, "tpot_s": 0.01, "e2el_s": 0.01})}
        assert scores["tpot_s"].median_abs < 1e-3
        assert scores["e2el_s"].median_abs < 2e-3
        assert all(s.within for s in scores.values())


def test_without_a_ladder_c0_closes_the_low_load():
    learnt = learn_path(RUN, IN_PROCESS, (LOW,), ())
    assert learnt.shown == 0.0  # an engine that decides ahead hides it
    seen = replay(RUN, LOW, learnt.rates, learnt.host, draws=0)
    assert np.nanmedian(seen.tpot_s) == pytest.approx(np.nanmedian(LOW.tpot_s), rel=2e-3)


def test_a_wrong_model_is_told_so(learnt):
    """Twice the KV traffic nobody modelled shows as a bias, a miss and lost coverage."""
    slow = replace(LOW, e2el_s=LOW.ttft_s + 1.3 * (LOW.e2el_s - LOW.ttft_s))
    predicted = replay(RUN, slow, learnt.rates, learnt.host, draws=2)
    by_metric = {s.metric: s for s in score(slow, predicted, {"ttft_s": 0.02, "tpot_s": 0.02, "e2el_s": 0.02})}
    assert not by_metric["tpot_s"].within
    assert by_metric["tpot_s"].bias < -0.2
    assert by_metric["tpot_s"].coverage < 0.1
    assert by_metric["ttft_s"].within


def test_coverage_of_known_noise_is_nominal():
    """Requests off by log-normal noise of the declared size lie inside their 90 % interval nine times in ten."""
    rng = np.random.default_rng(3)
    many = open_loop("many", 2.0, 400)
    predicted = replay(RUN, many, as_served(IN_PROCESS), HOST, draws=0)
    noisy = many.e2el_s * np.exp(rng.normal(0, 0.05, 400))
    inside = interval_scores(noisy, predicted, "e2el_s", {"e2el_s": 0.05}) <= 1.6448536269514722
    assert abs(inside.mean() - 0.9) < 4 * np.sqrt(0.09 / 400)


def test_an_engine_that_decides_when_it_is_done_shows_all_of_its_host_work():
    waits = replace(RUN, limits=replace(RUN.limits, options={"async_scheduling": False}))
    assert learn_path(waits, IN_PROCESS, (LOW,), ()).shown == 1.0


def test_phase_floor_is_what_an_unknown_place_in_an_iteration_costs(learnt):
    """Alone a request meets no iteration in flight. Beside a stream that never ends it does, and the best guess of its place in it, the
    middle, is a quarter of a step away in the median.
    """
    path = learnt.rates, learnt.host
    apart = replace(LOW, arrival_s=10.0 * np.arange(30))
    assert phase_floor(RUN, apart, *path) < 2 * KNOWN_TO
    rng = np.random.default_rng(0)
    arrival = np.concatenate([[0.0], 5 + np.cumsum(rng.uniform(0.1, 0.2, 150))])
    prompts, outputs = np.full(151, 256), np.array([6000] + [2] * 150)
    beside = served(Experiment("beside", "open", arrival, prompts, outputs, np.ones(151), np.full(151, 2.0)))
    step = beside.tpot_s[0]
    assert phase_floor(RUN, beside, *path) == pytest.approx(0.25 * step / np.median(beside.ttft_s), rel=0.25)


def test_too_few_requests_are_refused():
    few = replace(LOW, **{k: getattr(LOW, k)[:3] for k in ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2el_s")})
    with pytest.raises(UsageError, match="too few"):
        learn_path(RUN, IN_PROCESS, (few,), RUNGS)


def test_a_server_of_another_kind_of_time_is_weighed_by_how_servers_lie_apart():
    """What waves say for sure stands; what they hardly say leaves the server where servers are."""
    sure, sure_sd = weighed(5e-3, 1e-5)
    assert sure == pytest.approx(5e-3, rel=1e-3)
    assert sure_sd == pytest.approx(2e-3, rel=1e-3)
    unsure, unsure_sd = weighed(5e-3, 50e-3)
    assert unsure == pytest.approx(HOSTS_SERIAL_S, rel=0.02)
    assert unsure_sd == pytest.approx(HOSTS_SERIAL_SD, rel=0.02)
    assert weighed(0.0, 1e-3) == (0.0, 0.0)


def test_a_path_is_found_again_beneath_a_gpu_that_rests():
    """Of a server whose rested GPU prefills faster: its waves and a load of prompts one by one are replayed by who knows that it rests."""
    boost = Boost(share=0.3, budget_s=0.3, refill=1.0)
    truth = replace(HOST, boost=boost)

    def seen(experiment):
        times = replay(RUN, experiment, as_served(IN_PROCESS), truth, draws=0)
        return replace(experiment, ttft_s=times.ttft_s, e2el_s=times.e2el_s)

    low, rungs, wave = seen(LOW), tuple(seen(r) for r in RUNGS), seen(rung(24))
    knows, ignores = (learn_path(RUN, IN_PROCESS, (low,), rungs, own) for own in (boost, NO_BOOST))
    assert knows.host.serial_s == pytest.approx(SERIAL_S, rel=0.05)
    off = [np.abs(replay(RUN, wave, p.rates, p.host, draws=0).ttft_s / wave.ttft_s - 1).max() for p in (knows, ignores)]
    assert off[0] < 0.01
    assert off[1] > 0.05
