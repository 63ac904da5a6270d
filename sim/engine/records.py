"""What serving a workload leaves behind, per request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Arrays of shape [requests], in the order of the workload: seconds since its start, tokens, times preempted, and
    the places (0 the first) of first and last tokens among those of their iterations.
    """

    scheduled_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    cached_tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    iterations: int
    first_place: NDArray[np.int64]
    finish_place: NDArray[np.int64]
