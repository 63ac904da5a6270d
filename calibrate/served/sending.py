"""How long an API server takes to send one token, seen from streams that decode together.

All tokens of an iteration are there at once, and the server sends them one after another. In the true-decode window of a ladder rung
(from the last first token to the first last token) every stream has one token an iteration, so the window falls apart into iterations
by itself, and the spread of their tokens over the number of streams is the time of one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import Experiment

Array = NDArray[np.float64]
LEAST_STREAMS = 8  # with fewer, waking up for an iteration at all is much of the spread


def sending_s(rungs: tuple[Experiment, ...]) -> float:
    """Seconds per token sent: the median over rungs of their median iteration. 0 where no rung says when its tokens came."""
    found = [float(np.median(own)) for rung in rungs if (own := per_token(rung)).size]
    return float(np.median(found)) if found else 0.0


def per_token(rung: Experiment) -> Array:
    """Seconds between one token and the next of an iteration, [iteration of the true-decode window]; empty without token times."""
    times = rung.token_s
    if times is None or len(times) < LEAST_STREAMS or min(map(len, times)) < 2:
        return np.empty(0)
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    count = min(int(((t > begin) & (t <= end)).sum()) for t in times)
    if count < 2:
        return np.empty(0)
    # the k-th token of every stream in the window; the last iteration is cut where the first stream ends
    each = np.stack([t[t > begin][: count - 1] for t in times])
    return np.asarray((each.max(axis=0) - each.min(axis=0)) / (len(times) - 1))
