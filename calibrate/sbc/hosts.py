"""Simulation-based calibration of what is read off times: the host's time to launch, what carrying prefill costs as served, and the API
server's own time.

Two streams decode; every SPACING tokens a prompt joins them, alone. One within the captured graphs holds them up for longer than its bytes
and products say; of one beyond, their tokens before wait for its launch. As many prompts as a packaged low load has of each kind, and
they scatter as those do. Waves of clients that send at once are each taken up late by an accident. The rates of the GPU are taken as known:
their uncertainty has a calibration of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.sbc.ranks import rank
from calibrate.served.launches import HOSTS_SD, LOAD_SD, launching
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.stalls import prefill_seen
from calibrate.served.waves import HOSTS_SERIAL_S, HOSTS_SERIAL_SD, own_time_s, weighed
from sim.bill import GRAPH_TOKENS, coefficients, iteration_bill, mixed_shape
from sim.engine.overlap import HostWork
from sim.host import HostRates
from sim.price import step_time_s
from sim.products import known_to
from sim.rates import RateDraws, Rates

Array = NDArray[np.float64]
SPACING, CONTEXT, STREAMS = 30, 512, 2
SHORT, LONG = GRAPH_TOKENS // 2, 2 * GRAPH_TOKENS  # prompt tokens
PROMPTS = {SHORT: 23, LONG: 10}
CARRYING_S = (0.0, 2e-3)  # of an iteration that carries prefill, as served
STALL_SD_S = (1e-4, 1e-3)  # scatter of single prompts
LAUNCH_SD = (0.05, 0.4)  # of the logarithm
WAVES, WAVE_OUTPUT = (8, 16, 32, 64), 4  # clients, tokens
WAVE_SD_S = (5e-4, 4e-3)
DRAWS = 1000  # those of a factor are the same standard normals every time: of few, their gaps would show in the ranks


def serial_rank(run: ServedRun, rates: RateDraws, rng: np.random.Generator) -> float:
    """Rank of one truth of the API server's own time per request, one of those that servers take."""
    host = HostRates(request_s=3e-3, serial_s=HOSTS_SERIAL_S * float(np.exp(HOSTS_SERIAL_SD * rng.standard_normal())))
    late_s = rng.uniform(*WAVE_SD_S)

    def wave(clients: int) -> Experiment:
        blank, lengths = np.ones(clients), (np.full(clients, CONTEXT), np.full(clients, WAVE_OUTPUT))
        made = Experiment(f"n{clients}", "ladder", 0 * blank, *lengths, blank, 2 * blank, clients=clients)
        seen = replay(run, made, rates, host, draws=0)
        return replace(made, ttft_s=seen.ttft_s + late_s * abs(rng.standard_normal()), e2el_s=seen.e2el_s + 1.0)

    own_s, log_sd = weighed(*own_time_s(run, rates, replace(host, serial_s=0.0), tuple(wave(clients) for clients in WAVES)))
    return rank(host.serial_s, own_s * np.exp(log_sd * rng.standard_normal(DRAWS)), rng)


def host_ranks(run: ServedRun, rates: Rates, rng: np.random.Generator) -> dict[str, float]:
    """Ranks of one truth: the factor on launching, and the seconds that carrying prefill costs, each among its posterior draws."""
    carrying_s, log_factor = rng.uniform(*CARRYING_S), HOSTS_SD * rng.standard_normal()
    work = HostWork(iteration_s=rng.uniform(0, 1e-3), sequence_s=rng.uniform(0, 5e-5), prefill_s=rng.uniform(0, 1e-3))
    model = coefficients(run.model, run.precision, run.tp)
    in_process_s = model.layers * float(rates.eager_layer_s) + model.expert_layers * float(rates.eager_expert_layer_s)
    launch_s = in_process_s * np.exp(log_factor + rng.uniform(*LAUNCH_SD) * rng.standard_normal(PROMPTS[LONG]))
    stall_s = carrying_s + rng.uniform(*STALL_SD_S) * rng.standard_normal(PROMPTS[SHORT])
    preparing_s = work.iteration_s + (STREAMS + 1) * work.sequence_s + work.prefill_s
    seen = (_streams(run, replace(rates, c_prefill_s=0.0), stall_s, preparing_s + launch_s, rng),)
    launch, prefill = launching(seen, in_process_s, work), prefill_seen(run, seen, rates)
    assert prefill is not None
    return {
        # at another load than the one that was learnt from
        "launch": rank(float(np.exp(log_factor + LOAD_SD * rng.standard_normal())), launch.draws(DRAWS), rng),
        "c_prefill_s": rank(carrying_s, prefill[0] + prefill[1] * rng.standard_normal(DRAWS), rng),
    }


def _streams(run: ServedRun, rates: Rates, stall_s: Array, wait_s: Array, rng: np.random.Generator) -> Experiment:
    """The streams and prompts, in random order: seconds by which short prompts hold them up, and of waits for long ones' launches."""

    def priced(token: int, prompt: int) -> float:
        chunks = [(float(prompt), float(prompt), True)] if prompt else []
        shape = mixed_shape(run.model, [float(CONTEXT + token)] * STREAMS, chunks)
        return float(step_time_s(iteration_bill(run.model, shape, run.precision, tp=run.tp, gpu=known_to(run.gpu)), rates))

    coming = rng.permutation(np.repeat(list(PROMPTS), list(PROMPTS.values())))
    held, waits = iter(stall_s.tolist()), iter(wait_s.tolist())
    now, times, firsts = 0.0, [], []
    for token in range(SPACING * (len(coming) + 1) - 1):
        prompt = int(coming[token // SPACING]) if token % SPACING == SPACING - 1 else 0
        late = token % SPACING == SPACING - 2 and token // SPACING < len(coming) and coming[token // SPACING] == LONG
        now += next(waits) if late else priced(token, prompt) + (next(held) if prompt == SHORT else 0.0)
        times.append(now)
        if prompt:
            firsts.append(now)
    tokens = (*[np.array(times)] * STREAMS, *(np.array([first]) for first in firsts))
    first, last = (np.array([t[end] for t in tokens]) for end in (0, -1))
    arrival = np.concatenate([np.zeros(STREAMS), np.array(firsts) - 1e-3])
    prompts = np.concatenate([np.full(STREAMS, CONTEXT), coming])
    outputs = np.concatenate([np.full(STREAMS, len(times)), np.ones(len(coming), dtype=np.int64)])
    return Experiment("made", "open", arrival, prompts, outputs, first - arrival, last - arrival, token_s=tokens)
