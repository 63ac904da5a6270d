"""The API server's own time per request, seen from waves: N clients that send at once, of which an engine takes up the first ones later
the more there are. That server is one process, which turns to all its requests by turns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.middle import heavier
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from sim.bill import iteration_bill, mixed_shape
from sim.deployment import plan_engine
from sim.host import HostRates
from sim.price import step_time_s
from sim.products import known_to
from sim.rates import RateDraws, Rates

Array = NDArray[np.float64]
WAVE_ROUNDS = 6
# seconds that the API servers of five hosts take per request, and how far apart they lie (log sd): 1.5, 1.9, 2.0, 2.7 and 3.1 ms
HOSTS_SERIAL_S, HOSTS_SERIAL_SD = 2.2e-3, 0.29
TOGETHER_S = 0.02  # first tokens no further apart come of one iteration: one of whole prompts takes longer, and sending its tokens less


def own_time_s(run: ServedRun, rates: RateDraws, host: HostRates, waves: tuple[Experiment, ...]) -> tuple[float, float]:
    """Seconds of the API server's own per request, from how much later a wave of N is first taken up for each of the N, and their
    standard error.
    """
    clients = np.array([float(e.clients) for e in waves])
    priced = host.boost.rested(rates.point)
    measured = np.array([taken_up_s(run, priced, e, e.ttft_s) for e in waves])
    serial_s, error_s = 0.0, 0.0
    for _ in range(WAVE_ROUNDS):
        own = replace(host, serial_s=serial_s)
        late = measured - np.array([taken_up_s(run, priced, e, replay(run, e, rates, own, draws=0).ttft_s) for e in waves])
        slopes = slopes_of(clients, late)
        serial_s = max(0.0, serial_s + float(np.median(slopes)))
        # as far as pairs of waves disagree; each wave is in many pairs, and so few waves tell little of how far waves scatter
        free = max(len(waves) - 1, 1)
        error_s = heavier(free) * 1.4826 * float(np.median(np.abs(slopes - np.median(slopes)))) / np.sqrt(free)
    return serial_s, error_s


def weighed(own_s: float, error_s: float) -> tuple[float, float]:
    """(seconds, log sd) of a server whose waves say `own_s` +- `error_s`, by how far servers lie apart; 0 stays 0."""
    if own_s <= 0:
        return 0.0, 0.0
    error = error_s / own_s
    weight = HOSTS_SERIAL_SD**2 / (HOSTS_SERIAL_SD**2 + error**2)
    return float(HOSTS_SERIAL_S * (own_s / HOSTS_SERIAL_S) ** weight), float(np.sqrt(weight) * error)


def slopes_of(x: Array, y: Array) -> Array:
    """The slopes between all pairs of points, whose median one wave that the engine took up an iteration late does not decide; of one
    point, that from the origin.
    """
    if len(x) == 1:
        return np.asarray(y / x)
    left, right = np.triu_indices(len(x), 1)
    return np.asarray((y[right] - y[left]) / (x[right] - x[left]))


def taken_up_s(run: ServedRun, rates: Rates, wave: Experiment, ttft_s: Array) -> float:
    """Seconds until the engine began to compute a wave: its earliest first token, less that iteration's own time. How many prompts were
    there in time for it is an accident worth several prompts' time, and shows in how many first tokens come with it.
    """
    came = wave.arrival_s - wave.arrival_s[0] + ttft_s
    together = int((came <= came.min() + TOGETHER_S).sum())
    budget = plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)[0].max_num_batched_tokens
    chunks, left = [], float(budget)
    for prompt in np.sort(wave.prompt_tokens)[:together].tolist():
        own = min(float(prompt), left)
        if own > 0:
            chunks.append((own, own, True))
        left -= own
    bill = iteration_bill(run.model, mixed_shape(run.model, [], chunks, tp=run.tp), run.precision, tp=run.tp, gpu=known_to(run.gpu))
    return float(ttft_s.min()) - float(step_time_s(bill, rates))
