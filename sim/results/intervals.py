"""90 % intervals of a run's figures: what another run like it would show, and what is not known about the rates.

Run noise of drawn workloads comes from repeats with other seeds, the run shown among them. A trace happened once, so its run noise comes
from blocks of the run itself; that understates tails of short runs (tests/results/test_noise_intervals_cover.py measures by how much).
Both hold what replicates on one server differ by, which no simulation shows.

Intervals of the rates are quantiles over runs at some draws, with a control variate (Hsu and Nelson 1990): a quadratic in `predictors`
of the draws, known of all of them, is fitted to the runs, and its own quantile over all draws less that over those that were run is added,

    q = q(run) + R**2 (q(quadratic, all draws) - q(quadratic, those run)),

R**2 being how much of the runs' variance it predicts when each is left out. 20 runs then know an interval as 200 do (a test holds it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.quantiles import quantiles
from sim.results.metrics import PERCENTILES, request_latencies_ms
from sim.results.record import RunRecord

Interval = tuple[float, float]
Array = NDArray[np.float64]
BLOCKS = 10
MIN_PER_BLOCK = 10
RESAMPLES = 200
T_90 = {9: 1.8331, 19: 1.7291}  # Student's t by degrees of freedom, two-sided 90 %
Z_90 = 1.6448536269514722  # half a 90 % interval over the standard deviation
# Log sd of a run's mean or percentile between replicates on one server, by latency: medians over 76 loads of packaged servers.
REPLICATES_SD = {"ttft": 0.04, "tpot": 0.007, "itl": 0.007, "e2el": 0.007}
OUTER = (0.05, 0.95)
LEAST_RUNS = 10  # for a control variate
REACH = 2.5  # standard deviations beyond which a quadratic is not trusted
RIDGE = 1e-2
COLLINEAR = 0.05  # of the largest singular value: predictors that say the same


def rate_intervals(draws: Mapping[str, Sequence[float]], predictors: Array | None = None) -> dict[str, Interval]:
    """5 to 95 % of each figure over draws of the rates; figures that no draw has are left out. `predictors` [draw, predictor] are of all
    draws, of which the first were run.
    """
    out: dict[str, Interval] = {}
    bases: dict[int, list[Array]] = {}
    for name, given in draws.items():
        values = np.asarray(given, dtype=np.float64)
        present = values[~np.isnan(values)]
        if not len(present):
            continue
        positive, count = bool((present > 0).all()), len(values)
        low, high = quantiles(present, OUTER)
        scale = np.log(present) if positive else present
        if predictors is not None and len(present) == count and LEAST_RUNS <= count < len(predictors) and np.ptp(scale) > 0.0:
            if count not in bases:
                bases[count] = _bases(predictors)
            below, above = _beyond_runs(scale, bases[count])
            low, high = (low * math.exp(below), high * math.exp(above)) if positive else (low + below, high + above)
            low = max(low, 0.0) if present.min() >= 0 else low
        out[name] = (min(low, high), max(low, high))
    return out


def _bases(predictors: Array) -> list[Array]:
    """Designs of a line and of a quadratic [draw, term] in the predictors' principal scores."""
    centred = predictors - predictors.mean(axis=0)
    spread = centred.std(axis=0)
    scores = centred[:, spread > 1e-9] / spread[spread > 1e-9]
    if not scores.size:
        return []
    _, size, ways = np.linalg.svd(scores, full_matrices=False)
    kept = size > COLLINEAR * size[0]
    z = np.clip(scores @ ways[kept].T / (size[kept] / math.sqrt(len(scores))), -REACH, REACH)
    line = [np.ones(len(z)), *z.T]
    squares = [z[:, i] * z[:, j] for i in range(z.shape[1]) for j in range(i + 1)]
    return [np.column_stack(line), np.column_stack([*line, *squares])]


def _beyond_runs(values: Array, bases: Sequence[Array]) -> tuple[float, float]:
    """What all draws add to the outer quantiles of those that were run, by the basis that predicts left-out runs best. They take nothing
    away: the outer quantiles of few lie inside those of many.
    """
    best, more, count = float(values.var()), (0.0, 0.0), len(values)
    for basis in bases:
        run = basis[:count]
        ridge = RIDGE * count * np.eye(run.shape[1])
        ridge[0, 0] = 0.0
        solve = np.linalg.solve(run.T @ run + ridge, run.T)
        at_all = basis @ (solve @ values)
        leverage = np.minimum((run * solve.T).sum(axis=1), 0.95)
        missed = float((((values - at_all[:count]) / (1.0 - leverage)) ** 2).mean())
        if missed < best:
            best = missed
            low, high = (np.quantile(at_all, OUTER) - np.quantile(at_all[:count], OUTER)) * (1.0 - missed / float(values.var()))
            more = min(float(low), 0.0), max(float(high), 0.0)
    return more


def between_replicates(summary: Mapping[str, float | int], intervals: Mapping[str, Interval]) -> dict[str, Interval]:
    """The intervals wider by what replicates on one server differ by, in quadrature of logarithms; of every mean and percentile of a
    latency, those without an interval too.
    """
    out = dict(intervals)
    for name, value in summary.items():
        parts = name.split("_")
        if len(parts) == 3 and parts[0] != "std" and parts[2] == "ms" and (sd := REPLICATES_SD.get(parts[1])) and value > 0:
            low, high = out.get(name, (float(value), float(value)))
            ways = (math.log(value / low) if 0 < low < value else 0.0), (math.log(high / value) if high > value else 0.0)
            below, above = (math.exp(math.hypot(way, Z_90 * sd)) for way in ways)
            out[name] = (min(value / below, low), max(value * above, high))
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


def combined(summary: Mapping[str, float | int], noise: Mapping[str, Interval], known: Mapping[str, Interval]) -> dict[str, Interval]:
    """What another server would show nine times in ten: both intervals about a figure, in quadrature of logarithms on either side."""
    out: dict[str, Interval] = {}
    for name in noise.keys() | known.keys():
        value, both = float(summary.get(name, math.nan)), [each[name] for each in (noise, known) if name in each]
        if len(both) < 2 or not (value > 0.0 and min(low for low, _ in both) > 0.0):
            out[name] = (min(low for low, _ in both), max(high for _, high in both))
            continue
        below, above = (math.hypot(*(math.log(each[end] / value) for each in both)) for end in (0, 1))
        out[name] = (value * math.exp(-below), value * math.exp(above))
    return out


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
