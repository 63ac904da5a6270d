"""Time of the API server per token that it sends, by how far apart the tokens of one iteration reach their clients.

An engine hands over the tokens of an iteration at once, and one process streams them one after another (sim.cost.api_server.SendQueue):
n tokens come within (n - 1) times that time. A low load shows what bounds a crowd.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrate.served.runs import Experiment

APART_S = 3e-4  # tokens further apart are of two iterations, or of a process that was interrupted
FEWEST, MOST = 4, 32  # tokens of one iteration that tell: fewer hang on when the process wakes, more come on top of the next ones
LEAST = 20  # iterations


def token_time_s(experiments: Sequence[Experiment], otherwise: float) -> float:
    """Median over iterations of the seconds per token; `otherwise` where fewer than LEAST show it, as without token times."""
    found = [each for experiment in experiments for each in _per_token_s(experiment)]
    return float(np.median(found)) if len(found) >= LEAST else otherwise


def _per_token_s(experiment: Experiment) -> list[float]:
    times = np.sort(np.concatenate(experiment.token_s or (np.zeros(0),)))
    bursts = np.split(times, np.flatnonzero(np.diff(times) > APART_S) + 1)
    return [float(b[-1] - b[0]) / (len(b) - 1) for b in bursts if FEWEST <= len(b) <= MOST]
