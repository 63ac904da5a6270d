"""Machines that runs share, and the prior of hosts that follows: starts of an engine on one machine are alike (docs/adr/0013)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.cells import StepCells

Array = NDArray[np.float64]
# Part of the variance of hosts that starts of an engine on one machine have in common: of the packaged grids (a test holds it).
SAME_MACHINE = 0.6


def machines_of(cells: StepCells, runs: Sequence[str]) -> list[str]:
    """The machine of each run [run]; where it is not known, one of the run's own."""
    known = {str(run): str(machine) for run, machine in zip(cells.run, cells.machine, strict=True) if machine}
    return [known.get(run, f"that of {run}") for run in runs]


def host_precision(machines: Sequence[str], host_sd: float) -> Array:
    """Inverse prior covariance of the hosts' logarithms [run, run]; exactly 0 between machines."""
    labels = np.asarray(machines)
    same = labels[:, None] == labels[None, :]
    out: Array = np.linalg.inv(host_sd**2 * (SAME_MACHINE * same + (1 - SAME_MACHINE) * np.eye(len(labels))))
    return np.where(same, out, 0.0)
