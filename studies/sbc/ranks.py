"""Ranks of true values among posterior draws, and whether they are uniform.

A calibrated posterior gives a truth drawn from the prior any rank with the same chance (Cook, Gelman and Rubin 2006; Talts and others
2018). A posterior that is too narrow piles ranks up at the ends, one too wide in the middle, a biased one on one side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sim.errors import UsageError

Array = NDArray[np.float64]
LEAST_RUNS = 20
IN_A_BIN = 5  # runs that a bin of the histogram should expect at least
MOST_BINS = 10


@dataclass(frozen=True, slots=True)
class Uniformity:
    """Uniformity of the ranks of one parameter: p-values of the ECDF (Kolmogorov-Smirnov) and of the histogram (chi-square)."""

    parameter: str
    runs: int
    ecdf_p: float
    histogram_p: float
    mean: float  # 0.5 when unbiased
    ends: float  # share of ranks in the outer tenths: 0.2 when the width is right

    @property
    def p(self) -> float:
        """The smaller of the two, doubled: one statement by two tests."""
        return min(1.0, 2 * min(self.ecdf_p, self.histogram_p))


def rank(truth: float, draws: Array, rng: np.random.Generator) -> float:
    """Share of `draws` [draw] below `truth`, spread within its step so that a calibrated rank is exactly uniform on 0..1."""
    values = np.asarray(draws, dtype=np.float64)
    return float((np.sum(values < truth) + rng.uniform() * (1 + np.sum(values == truth))) / (values.size + 1))


def uniformity(parameter: str, ranks: Array) -> Uniformity:
    """Judge the ranks [run] of one parameter. Raises UsageError for fewer than 20, or for ranks outside 0..1."""
    r = np.asarray(ranks, dtype=np.float64)
    if r.size < LEAST_RUNS:
        raise UsageError(f"{r.size} runs are too few to call ranks uniform: {LEAST_RUNS} are needed")
    if not ((r >= 0) & (r <= 1)).all():
        raise UsageError(f"ranks of {parameter} lie outside 0..1")
    bins = max(2, min(MOST_BINS, r.size // IN_A_BIN))
    counts, _ = np.histogram(r, bins, (0.0, 1.0))
    return Uniformity(
        parameter,
        r.size,
        float(stats.kstest(r, "uniform").pvalue),
        float(stats.chisquare(counts).pvalue),
        float(r.mean()),
        float(((r < 0.1) | (r > 0.9)).mean()),
    )


def judge(ranks: Mapping[str, Array]) -> list[Uniformity]:
    """Every parameter's uniformity, worst first."""
    return sorted((uniformity(name, values) for name, values in ranks.items()), key=lambda u: u.p)


def family_p(found: list[Uniformity]) -> float:
    """Chance that the worst of these parameters would look this bad or worse were all calibrated (Bonferroni)."""
    return min(1.0, len(found) * min(u.p for u in found))
