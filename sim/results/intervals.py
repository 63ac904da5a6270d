"""90 % intervals of a run's figures: what another run like it would show, and what is not known about the rates.

Run noise of drawn workloads comes from repeats with other seeds, the run shown among them. A trace happened once, so its run noise comes
from blocks of the run itself; that understates tails of short runs (tests/simulate/test_noise_intervals_cover.py measures by how much).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.results.metrics import PERCENTILES, request_latencies_ms
from sim.results.quantiles import quantiles
from sim.results.record import RunRecord

Interval = tuple[float, float]
BLOCKS = 10
MIN_PER_BLOCK = 10
RESAMPLES = 200
T_90 = {9: 1.8331, 19: 1.7291}  # Student's t by degrees of freedom, two-sided 90 %


def rate_intervals(draws: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """5 to 95 % of each figure over draws of the rates; figures that no draw has are left out."""
    out = {}
    for name, values in draws.items():
        present = np.asarray(values)[~np.isnan(values)]
        if len(present):
            low, high = quantiles(present, (0.05, 0.95))
            out[name] = (low, high)
    return out


def repeat_intervals(repeats: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Interval of one more repeat's figure, from 20 repeats: Student's t prediction, of the logarithm where all are positive."""
    out = {}
    for name, given in repeats.items():
        values = np.asarray(given, dtype=np.float64)
        if not np.isfinite(values).all():
            continue
        if values.min() == values.max():
            out[name] = (float(values[0]), float(values[0]))
            continue
        positive = bool((values > 0).all())
        scale = np.log(values) if positive else values
        half = T_90[len(values) - 1] * float(scale.std(ddof=1)) * math.sqrt(1 + 1 / len(values))
        low, high = float(scale.mean()) - half, float(scale.mean()) + half
        if positive:
            low, high = math.exp(low), math.exp(high)
        out[name] = (max(low, 0.0) if values.min() >= 0 else low, high)  # no figure that is a count or a share falls below 0
    return out


def around(summary: Mapping[str, float | int], intervals: Mapping[str, Interval]) -> dict[str, Interval]:
    """The intervals, wide enough for the run that is shown: it is one of those that they tell of."""
    return {
        name: (min(low, float(summary[name])), max(high, float(summary[name]))) if name in summary else (low, high)
        for name, (low, high) in intervals.items()
    }


def block_intervals(record: RunRecord) -> dict[str, Interval]:
    """Intervals of TTFT, TPOT and E2EL figures from this run alone, by a block bootstrap with a fixed seed.

    Requests are cut, in order of arrival, into 10 blocks, and the blocks resampled: what goes on inside a block (a burst, a queue that
    builds up and drains) stays together, so congestion that comes and goes widens the interval. Student's t with 9 degrees of freedom, on
    the logarithm. Empty when there are fewer than 10 requests per block.
    """
    out: dict[str, Interval] = {}
    rng = np.random.default_rng(0)
    picks = rng.multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), size=RESAMPLES)
    for name, values in request_latencies_ms(record).items():
        present = values[~np.isnan(values)]
        if len(present) < BLOCKS * MIN_PER_BLOCK:
            continue
        whole: NDArray[np.int64] = np.ones((1, BLOCKS), dtype=np.int64)
        for key, found in _figures(present, np.concatenate([whole, picks])).items():
            value, samples = float(found[0]), found[1:]
            if value > 0 and (samples > 0).all():
                half = T_90[BLOCKS - 1] * float(np.log(samples).std()) * math.sqrt(BLOCKS / (BLOCKS - 1))
                out[f"{key}_{name}_ms"] = (value * math.exp(-half), value * math.exp(half))
    return out


def _figures(values: NDArray[np.float64], picks: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Mean, std, median and percentiles when block b counts picks[r, b] times: an array of shape [resamples] each."""
    count = len(values)
    block = np.arange(count) * BLOCKS // count
    order = np.argsort(values)
    owner = block[order]
    n = np.bincount(block, minlength=BLOCKS)
    total = picks @ n
    # about the mean of all, so that the difference of squares keeps its digits
    centred = values - values.mean()
    mean = picks @ np.bincount(block, weights=centred, minlength=BLOCKS) / total
    square = picks @ np.bincount(block, weights=centred**2, minlength=BLOCKS) / total
    out = {"mean": mean + values.mean(), "std": np.sqrt(np.maximum(square - mean**2, 0.0))}
    # the table of counts has every `step`-th place of the order alone; the places between two of them are counted where a figure lies
    step = math.isqrt(count)
    table = np.bincount(np.arange(count) // step * BLOCKS + owner, minlength=-(-count // step) * BLOCKS).reshape(-1, BLOCKS)
    upto = picks @ np.cumsum(table, axis=0).T  # [resamples, parts]
    padded = np.append(owner, np.zeros(step, dtype=owner.dtype))
    for name, q in zip(("median", *(f"p{q}" for q in PERCENTILES[1:])), PERCENTILES, strict=True):
        target = q / 100.0 * (total - 1)
        part = (upto <= target[:, None]).sum(axis=1)
        before = np.where(part > 0, np.take_along_axis(upto, np.maximum(part - 1, 0)[:, None], axis=1)[:, 0], 0)
        inside = padded[(part * step)[:, None] + np.arange(step)]
        within = np.cumsum(np.take_along_axis(picks, inside, axis=1), axis=1)
        out[name] = values[order[part * step + (before[:, None] + within <= target[:, None]).sum(axis=1)]]
    return out
