"""Linear layers by another kernel than the one priced, where it is not known which one runs or how long it takes.

    log ratio = log(seconds of the model's GEMMs by the other kernel / by the one priced), at FEW and at MANY rows

A draw takes a share u of it, uniform over half to either side of the middle, the medians the middle. Where either kernel may run that is
half, and an interval holds both. Bandwidth takes the ratio at few rows, where weights are read, the flop rate the one at many.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.cost.gemm import STAND_INS, gemms_of, kernel_surface
from sim.cost.gemm_surface import Surface, surface_of
from sim.engine.registry import ENGINES

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

FEW, MANY = 8, 2048
OTHER = {"machete": "marlin", "marlin": "machete"}
EITHER = 0.5
# DeepGEMM takes what a plain fp8 GEMM does at few rows: one stream of an 8B on an H200. Its loads of several streams were looked at after.
STANDS_IN = 1.0


class LogRatios(NamedTuple):
    """Log ratios at few and at many rows, and the share of them at the medians."""

    few: float
    many: float
    middle: float


def log_ratios(d: Deployment) -> LogRatios | None:
    """Log ratios of a deployment's layers; None where the kernel is known and was measured, and where there is no other to compare with.

    DeepGEMM is priced as CUTLASS, which was measured in an engine. Kernel tables have it within 3 % of that at many rows (2,048 to 8,192,
    H100 and H200). At few they show the host's launches alone: plain fp8 GEMMs say how much quicker it is.
    """
    kernel = d.precision.kernel
    priced, other = kernel_surface(STAND_INS.get(kernel, kernel), d.gpu), None
    if kernel in STAND_INS:
        other = surface_of(d.gpu, "fp8")
    elif d.limits.engine not in ENGINES and kernel in OTHER:
        other = kernel_surface(OTHER[kernel], d.gpu)
    if priced is None or other is None or not gemms_of(d.model, d.tp):
        return None
    few, many = (math.log(_seconds(d, other, rows) / _seconds(d, priced, rows)) for rows in (FEW, MANY))
    return LogRatios(few, 0.0, STANDS_IN) if kernel in STAND_INS else LogRatios(few, many, EITHER)


def _seconds(d: Deployment, surface: Surface, rows: int) -> float:
    """Seconds of the GEMMs of the model's layers on one GPU."""
    upto = np.arange(1.0, rows + 1.0)
    return float(sum(layers * surface.seconds(float(gemm.k * gemm.n), upto)[-1] for gemm, layers in gemms_of(d.model, d.tp)))
