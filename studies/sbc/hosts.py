"""Simulation-based calibration of the host's time to launch, read off token times.

Two streams decode; every SPACING tokens a prompt beyond the CUDA graphs joins them: their tokens before it wait for its launch. As many
prompts as a packaged low load has, and they scatter as those do. The rates of the GPU are taken as known: their uncertainty has a
calibration of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrate.served.launches import HOSTS_LAUNCH, HOSTS_SD, LOADS_SD, launch_factor
from calibrate.served.overhead import launching_s
from calibrate.served.runs import Experiment, ServedRun
from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.rates import Rates
from sim.engine.overlap import HostWork
from studies.sbc.ranks import rank

Array = NDArray[np.float64]
SPACING, CONTEXT, STREAMS, STEP_S = 30, 512, 2, 8e-3
PROMPTS = 10
LAUNCH_SD = (0.05, 0.4)  # of the logarithm, from prompt to prompt
DRAWS = 1000


def launch_rank(run: ServedRun, rates: Rates, rng: np.random.Generator) -> float:
    """Rank of one truth, the factor on launching at another load than the one learnt from, among its posterior draws."""
    log_factor = np.log(HOSTS_LAUNCH) + HOSTS_SD * rng.standard_normal()
    work = HostWork(iteration_s=rng.uniform(0, 1e-3), sequence_s=rng.uniform(0, 5e-5), prefill_s=rng.uniform(0, 1e-3))
    in_process_s = launching_s(run, rates)
    launch_s = in_process_s * np.exp(log_factor + rng.uniform(*LAUNCH_SD) * rng.standard_normal(PROMPTS))
    preparing_s = work.iteration_s + (STREAMS + 1) * work.sequence_s + work.prefill_s
    factor, log_sd = launch_factor([streams(preparing_s + launch_s)], in_process_s, work)
    truth = float(np.exp(log_factor + LOADS_SD * rng.standard_normal()))
    return rank(truth, factor * np.exp(log_sd * rng.standard_normal(DRAWS)), rng)


def streams(wait_s: Array) -> Experiment:
    """Streams beside which prompts join, each of which makes them wait for its launch."""
    now, times, firsts = 0.0, [], []
    for token in range(SPACING * (len(wait_s) + 1) - 1):
        late = token % SPACING == SPACING - 2 and token // SPACING < len(wait_s)
        now += float(wait_s[token // SPACING]) if late else STEP_S
        times.append(now)
        if token % SPACING == SPACING - 1:
            firsts.append(now)
    tokens = (*[np.array(times)] * STREAMS, *(np.array([first]) for first in firsts))
    first, last = (np.array([t[end] for t in tokens]) for end in (0, -1))
    arrival = np.concatenate([np.zeros(STREAMS), np.array(firsts) - 1e-3])
    prompts = np.concatenate([np.full(STREAMS, CONTEXT), np.full(len(firsts), 2 * GRAPH_TOKENS)])
    outputs = np.concatenate([np.full(STREAMS, len(times)), np.ones(len(firsts), dtype=np.int64)])
    return Experiment("made", "open", arrival, prompts, outputs, first - arrival, last - arrival, token_s=tokens)
