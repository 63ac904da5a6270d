"""What a server's host takes to send a token, and to launch what no graph holds, is found again in the token times of its streams."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.joins import ALONE_S
from calibrate.served.launches import HOSTS_SD, LOAD_SD, launches, launching
from calibrate.served.runs import Experiment
from calibrate.served.sending import LEAST_STREAMS, sending_s
from sim.bill import GRAPH_TOKENS
from sim.engine.overlap import HostWork

STEP_S, TOKEN_S = 8e-3, 58e-6
IN_PROCESS_S, WORK = 0.012, HostWork(1e-3, 2e-5, 5e-4)


def rung(streams: int, tokens: int = 60) -> Experiment:
    """Streams that start one iteration after the other; an iteration's tokens go out in order."""
    times = tuple(STEP_S * (i + np.arange(tokens)) + TOKEN_S * i for i in range(streams))
    first, last = (np.array([t[k] for t in times]) for k in (0, -1))
    ones = np.ones(streams, dtype=np.int64)
    return Experiment("n", "ladder", np.zeros(streams), 2048 * ones, tokens * ones, first, last, clients=streams, token_s=times)


def low_load(launch_s: np.ndarray, prompt: int = 700) -> Experiment:
    """Two streams; every 30 tokens a prompt joins, and the tokens of the iteration before wait for its launch."""
    now, times, firsts = 0.0, [], []
    for token in range(30 * (len(launch_s) + 1)):
        joins = token % 30 == 29 and len(firsts) < len(launch_s)
        launches_now = token % 30 == 28 and len(firsts) < len(launch_s)
        now += launch_s[len(firsts)] if launches_now else STEP_S
        times.append(now)
        if joins:
            firsts.append(now)
    streams = np.array(times)
    tokens = (streams, streams + TOKEN_S, *(np.array([first + 2 * TOKEN_S]) for first in firsts))
    first, last = (np.array([t[k] for t in tokens]) for k in (0, -1))
    prompts = np.array([300, 300] + [prompt] * len(firsts))
    outputs = np.array([len(t) for t in tokens])
    return Experiment("made", "open", np.maximum(first - 0.03, 0.0), prompts, outputs, first, last, token_s=tokens)


@pytest.mark.parametrize("streams", [LEAST_STREAMS, 40])
def test_the_time_of_one_token_sent(streams: int) -> None:
    assert sending_s((rung(streams), rung(streams))) == pytest.approx(TOKEN_S, rel=1e-6)


def test_few_streams_or_no_token_times_say_nothing_of_sending() -> None:
    assert sending_s((rung(LEAST_STREAMS - 1),)) == 0.0
    assert sending_s((replace(rung(16), token_s=None),)) == 0.0
    assert sending_s(()) == 0.0


def test_a_steady_launch_is_found() -> None:
    seen = launching((low_load(np.full(12, 0.022)),), IN_PROCESS_S, WORK)
    assert seen.seen == 12
    own = 0.022 - (WORK.iteration_s + 3 * WORK.sequence_s + WORK.prefill_s)
    assert seen.factor == pytest.approx(own / IN_PROCESS_S, rel=1e-3)
    assert seen.sd < 1e-3


def test_prompts_that_disagree_leave_it_nearer_to_the_grids_and_less_certain() -> None:
    apart = launching((low_load(np.tile([0.012, 0.022, 0.040], 4)),), IN_PROCESS_S, WORK)
    steady = launching((low_load(np.full(12, 0.022)),), IN_PROCESS_S, WORK)
    assert 0 < apart.log_factor < steady.log_factor
    assert 0 < apart.sd < HOSTS_SD
    factors = apart.draws(4000)
    assert np.log(factors).mean() == pytest.approx(apart.log_factor, abs=4 * apart.anywhere_sd / np.sqrt(4000))
    assert np.log(factors).std() == pytest.approx(np.hypot(apart.sd, LOAD_SD), rel=0.1)


def test_prompts_that_a_graph_holds_or_that_come_together_say_nothing_of_launching() -> None:
    assert launches(low_load(np.full(12, 0.022), prompt=GRAPH_TOKENS)) == []
    made = low_load(np.full(12, 0.022))
    assert made.token_s is not None
    together = tuple(t if i < 2 else made.token_s[2] + 0.1 * ALONE_S * i for i, t in enumerate(made.token_s))
    assert launching((replace(made, token_s=together),), IN_PROCESS_S, WORK).seen == 0
    assert launching((low_load(np.full(4, 0.022)),), IN_PROCESS_S, WORK).factor == 1.0
    assert launching((replace(made, token_s=None),), IN_PROCESS_S, WORK).factor == 1.0
