"""What iterations with prefill scatter by is found in the token times, and a perfect model of a server that scatters misses by it."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.floor import floors, phase_floor, scattered_floor
from calibrate.served.runs import Experiment
from calibrate.served.scatter import LEAST_SEEN, Scatter, ScatteredSteps, scatter_of
from sim.bill import GRAPH_TOKENS
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from tests.served.made import HOST, IN_PROCESS, RUN, as_served, open_loop

TRUTH = as_served(IN_PROCESS)
STEPS = StepTime(RUN.model, RUN.precision, TRUTH.point, host=HOST.work)
EXTRA_S = np.array([0.0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3])


def low_load(prompt: int, extra_s: np.ndarray) -> Experiment:
    """Two streams; every 30 tokens a prompt joins, in an iteration that takes so much longer than priced."""
    now, times, firsts = 0.0, [], []
    for token in range(30 * (len(extra_s) + 1)):
        context = 600 + 2 * token
        step = STEPS.stretch(2, context).first
        joins = token % 30 == 29 and len(firsts) < len(extra_s)
        if joins:
            now += STEPS.mixed(2, context, 0, context, [(prompt, prompt, 1)], step) * TICK_S + extra_s[len(firsts)]
            firsts.append(now)
        else:
            now += step * TICK_S
        times.append(now)
    streams = np.array(times)
    tokens = (streams, streams, *(np.array([first]) for first in firsts))
    first, last = (np.array([t[k] for t in tokens]) for k in (0, -1))
    sizes = np.array([300, 300] + [prompt] * len(firsts)), np.array([len(t) for t in tokens])
    return Experiment("made", "open", np.maximum(first - 0.03, 0.0), *sizes, first, last, token_s=tokens)


@pytest.fixture(scope="module")
def seen():
    made = low_load(300, EXTRA_S / 10), low_load(900, EXTRA_S)
    return scatter_of(RUN, made, TRUTH.point, HOST)


def test_the_scatter_that_made_the_times_is_found_about_its_mean(seen):
    np.testing.assert_allclose(np.sort(seen.launched), EXTRA_S - 3e-3, atol=2e-5)
    np.testing.assert_allclose(np.sort(seen.held), EXTRA_S / 10 - 3e-4, atol=5e-5)


def test_too_little_seen_says_nothing():
    made = low_load(300, EXTRA_S), low_load(900, EXTRA_S[: LEAST_SEEN - 1])
    assert scatter_of(RUN, made, TRUTH.point, HOST) is None
    assert scatter_of(RUN, tuple(replace(m, token_s=None) for m in made), TRUTH.point, HOST) is None
    assert floors(RUN, open_loop("few", 4.0, 12), TRUTH, HOST, None).scattered == {}


def test_only_iterations_with_prefill_scatter_each_by_its_kind():
    kinds = Scatter(np.array([1e-3]), np.array([-2e-3]))
    steps = ScatteredSteps(RUN.model, RUN.precision, TRUTH.point, host=HOST.work, scatter=kinds, rng=np.random.default_rng(0))
    assert steps.stretch(8, 8 * 500) == STEPS.stretch(8, 8 * 500)
    for prompt, extra_s in ((GRAPH_TOKENS - 8, 1e-3), (GRAPH_TOKENS, -2e-3)):
        arguments = (8, 4000, 0, 4000, [(prompt, prompt, 1)])
        assert steps.mixed(*arguments) - STEPS.mixed(*arguments) == to_ticks(extra_s)


def test_the_floor_grows_with_the_scatter_and_without_it_is_that_of_the_phase(seen):
    loop = open_loop("8/s", 8.0, 60)
    none = scattered_floor(RUN, loop, TRUTH, HOST, Scatter(np.zeros(1), np.zeros(1)))
    assert none["ttft_s"] == pytest.approx(phase_floor(RUN, loop, TRUTH, HOST), rel=1e-9)
    some, more = (scattered_floor(RUN, loop, TRUTH, HOST, Scatter(k * seen.launched, k * seen.launched)) for k in (1, 3))
    for metric in ("ttft_s", "tpot_s", "e2el_s"):
        assert none[metric] < some[metric] < more[metric]
