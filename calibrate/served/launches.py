"""Time of a served engine's host to launch an iteration without CUDA graph, by the gaps between tokens of the streams beside it.

An engine that schedules asynchronously sends the tokens of an iteration once the next one is launched (sim.engine.overlap). Before a
prompt longer than the CUDA graphs, the streams that decode therefore wait for its launch: the gap before their token of its iteration is
the host's own time. Hosts differ more than GPUs do: of two with the same GPU one took 12 ms and the other 22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from calibrate.served.runs import Experiment
from sim.cost.graphs import GRAPH_TOKENS
from sim.engine.overlap import HostWork
from sim.quantiles import MEDIAN_SE

Array = NDArray[np.float64]
APART_S = 0.07  # from any other first token: of two prompts close together, who held up whom cannot be known
LEAST_PROMPTS, MOST_PROMPTS = 5, 1000
EVEN = 8  # tokens of an answer that do not come evenly by chance
QUARTILES_TELL = 0.37  # of what all values would show of their variance, quartiles do: degrees of freedom per value
# A host's time to launch as served over that in process, where much of it hides: median and log sd of 13 runs (1.3 to 2.7, their own
# errors taken off); and log sd at other loads about that at its low load, of seven runs.
HOSTS_LAUNCH, HOSTS_SD, LOADS_SD = 1.8, 0.22, 0.14


def launch_waits(experiment: Experiment) -> list[tuple[float, int]]:
    """(seconds, streams) of the wait for the launch of each prompt longer than the CUDA graphs, where streams decoded beside it and no
    other first token came near. None without token times.
    """
    times, found = experiment.token_s or (), []
    if any(len(t) > EVEN and np.ptp(np.diff(t)) < 1e-6 for t in times):  # a mean laid out evenly: nobody saw these tokens come
        return []
    first, last = (np.array([t[end] if len(t) else np.nan for t in times]) for end in (0, -1))
    for i in np.flatnonzero(np.isfinite(first) & (experiment.prompt_tokens > GRAPH_TOKENS))[:MOST_PROMPTS] if times else ():
        apart = np.abs(np.delete(first, i) - first[i])
        if apart.size and np.nanmin(apart) < APART_S:
            continue
        neighbours = [times[j] for j in np.flatnonzero((first < first[i]) & (first[i] <= last)) if j != i]
        places = [int(np.argmin(np.abs(t - first[i]))) for t in neighbours]  # of the token that came with the prompt's first
        waits = [float(t[k - 1] - t[k - 2]) for t, k in zip(neighbours, places, strict=True) if k >= 2]
        if waits:
            found.append((float(np.median(waits)), len(waits)))
    return found


def launch_factor(
    experiments: Sequence[Experiment], in_process_s: float, work: HostWork, others: tuple[float, float] | None = None
) -> tuple[float, float]:
    """(the host's time to launch over that in process, log sd at any load); that of other hosts where fewer than LEAST_PROMPTS show it.

    The run's median is weighed against that of other hosts by how far these differ and how far its prompts disagree. `others` is what is
    said of them where that is not HOSTS_LAUNCH.
    """
    typical, unknown_sd = others or (HOSTS_LAUNCH, float(np.hypot(HOSTS_SD, LOADS_SD)))
    found = [wait for experiment in experiments for wait in launch_waits(experiment)]
    if len(found) < LEAST_PROMPTS or in_process_s <= 0:
        return typical, unknown_sd
    preparing = [work.iteration_s + (streams + 1) * work.sequence_s + work.prefill_s for _, streams in found]
    launches_s = np.array([wait for wait, _ in found]) - preparing
    median, error = median_and_error(np.log(np.maximum(launches_s, 0.1 * in_process_s) / (typical * in_process_s)))
    between = HOSTS_SD if others is None else unknown_sd
    weight = between**2 / (between**2 + error**2)
    return float(typical * np.exp(weight * median)), float(np.hypot(np.sqrt(weight) * error, LOADS_SD))


def median_and_error(values: Array) -> tuple[float, float]:
    """(median, error) of few values [n]: median +- 1.645 errors holds what they scatter around nine times in ten.

    The error is the standard error by the quartiles, which a few outliers do not move. Quartiles of few values lie closer together than
    those of many (Blom's positions say by how much), and say little of the variance: a Student-t of so few degrees of freedom.
    """
    n = len(values)
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    place = 1 + 0.25 * (n - 1)  # of the lower quartile, among the ordered
    span = -2 * stats.norm.ppf((place - 0.375) / (n + 0.25))
    heavier = stats.t.ppf(0.95, QUARTILES_TELL * n) / stats.norm.ppf(0.95)
    return float(median), float(heavier * MEDIAN_SE * (high - low) / span / np.sqrt(n))
