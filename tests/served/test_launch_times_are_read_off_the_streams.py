"""What a server's host takes to launch what no CUDA graph holds is found again in the token times of its streams."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.launches import APART_S, HOSTS_LAUNCH, HOSTS_SD, LOADS_SD, launch_factor, launch_waits
from sim.cost.graphs import GRAPH_TOKENS
from sim.engine.overlap import HostWork
from studies.sbc.hosts import streams

IN_PROCESS_S, WORK = 0.012, HostWork(1e-3, 2e-5, 5e-4)


def test_a_steady_launch_is_found() -> None:
    made = streams(np.full(12, 0.022))
    assert len(launch_waits(made)) == 12
    factor, sd = launch_factor([made], IN_PROCESS_S, WORK)
    own = 0.022 - (WORK.iteration_s + 3 * WORK.sequence_s + WORK.prefill_s)
    assert factor == pytest.approx(own / IN_PROCESS_S, rel=1e-3)
    assert 0 < sd < HOSTS_SD


def test_prompts_that_disagree_leave_it_nearer_to_other_hosts_and_less_certain() -> None:
    apart, apart_sd = launch_factor([streams(np.tile([0.02, 0.04, 0.08], 4))], IN_PROCESS_S, WORK)
    steady, steady_sd = launch_factor([streams(np.full(12, 0.040))], IN_PROCESS_S, WORK)
    assert HOSTS_LAUNCH < apart < steady
    assert steady_sd < apart_sd


def test_prompts_that_a_graph_holds_or_that_come_together_say_nothing_of_launching() -> None:
    made = streams(np.full(12, 0.022))
    assert made.token_s is not None
    held = np.minimum(made.prompt_tokens, GRAPH_TOKENS)
    assert launch_waits(replace(made, prompt_tokens=held)) == []
    together = tuple(t if i < 2 else made.token_s[2] + 0.1 * APART_S * i for i, t in enumerate(made.token_s))
    assert launch_waits(replace(made, token_s=together)) == []
    assert launch_waits(replace(made, token_s=None)) == []
    assert launch_factor([streams(np.full(12, 0.040))], 0.0, WORK) == (HOSTS_LAUNCH, np.hypot(HOSTS_SD, LOADS_SD))  # nothing to launch
    assert launch_factor([streams(np.full(4, 0.022))], IN_PROCESS_S, WORK) == (HOSTS_LAUNCH, np.hypot(HOSTS_SD, LOADS_SD))
