"""How long a served engine's host takes to launch an iteration that no captured graph holds, seen from the streams beside it.

An engine that decides ahead sends the tokens of an iteration once the next one is launched (sim.engine.overlap). Before a prompt longer
than the captured graphs, the streams that decode therefore wait for its launch: the gap before their token of its iteration is the
host's own time, read directly. Hosts differ more than GPUs do: of two with the same GPU one took 12 ms and the other 22
(docs/validation.md). What one run shows is weighed against the grids' rate by how far hosts differ and how far its prompts disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.served.joins import joins
from calibrate.served.middle import middle
from calibrate.served.runs import Experiment
from sim.bill import GRAPH_TOKENS
from sim.engine.overlap import HostWork

Array = NDArray[np.float64]
LEAST_PROMPTS = 5
# log sd of a host's time to launch about that of the grids: low loads of six hosts show 0.29, 0.35, -0.04, -0.04, -0.03 and 0.37, 0.24 rms,
# a tenth of which is their own error; cells that launching bounds differed by 0.25 between two hosts, which is sqrt(2) of one
HOSTS_SD = 0.22
# log sd of a host's time to launch at loads of 8, 16 and 24 requests/s about that at its low load: seven runs, one of which launches
# faster by 0.35 (0.04 without it, 0.15 without any other); a host's low load does not say which way it will go
LOAD_SD = 0.14


@dataclass(frozen=True)
class Launching:
    """Log of the host's time to launch over what the grids say, and its standard deviation; `seen` prompts were learnt from."""

    log_factor: float = 0.0
    sd: float = 0.0
    seen: int = 0

    @property
    def factor(self) -> float:
        return float(np.exp(self.log_factor))

    def draws(self, count: int) -> Array:
        """Factors [count] at any load, not only at the one that was learnt from."""
        return np.asarray(np.exp(self.log_factor + self.anywhere_sd * np.random.default_rng(12).standard_normal(count)))

    @property
    def anywhere_sd(self) -> float:
        """Standard deviation of the logarithm at any load; 0 where nothing was learnt."""
        return float(np.hypot(self.sd, LOAD_SD)) if self.seen else self.sd


def launching(experiments: tuple[Experiment, ...], in_process_s: float, work: HostWork) -> Launching:
    """What a run says of launching all layers, which takes `in_process_s` by the grids, besides preparing the iteration (`work`).

    No change, and no uncertainty of it, where it says nothing: no token times, or fewer than LEAST_PROMPTS prompts beyond the graphs.
    """
    found = [one for experiment in experiments for one in launches(experiment)]
    if len(found) < LEAST_PROMPTS or in_process_s <= 0:
        return Launching()
    preparing = np.array([work.iteration_s + (streams + 1) * work.sequence_s + work.prefill_s for _, streams in found])
    logs = np.log(np.maximum(np.array([gap for gap, _ in found]) - preparing, 0.1 * in_process_s) / in_process_s)
    median, error = middle(logs)
    weight = HOSTS_SD**2 / (HOSTS_SD**2 + error**2)
    return Launching(float(weight * median), float(np.sqrt(weight) * error), len(found))


def launches(experiment: Experiment) -> list[tuple[float, int]]:
    """(seconds, streams) of the launch of each prompt beyond the captured graphs that came in alone beside streams that decode."""
    found = []
    for i, beside in joins(experiment, 2):
        if experiment.prompt_tokens[i] > GRAPH_TOKENS and experiment.token_s is not None:
            waits = [float(experiment.token_s[j][k - 1] - experiment.token_s[j][k - 2]) for j, k in beside]
            found.append((float(np.median(waits)), len(waits)))
    return found
