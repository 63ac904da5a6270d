"""Order of the draws of the rates in which the first few are as spread as all of them: then a chance found by them is little the draws'.

The draws are sorted into columns by how long a typical request takes of an engine that decodes BATCH others, and within a column by decode
against prefill. The points of a Halton
sequence (1960) say in which order these cells come: stratified sampling in every prefix, the middle first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.cost.batch import chunk_sums, decode_batch, from_sums
from sim.cost.rates import RateDraws, Rates
from sim.cost.step_time import step_time_s
from sim.results.chance import radical_inverse
from sim.study.deployment import Deployment
from sim.study.studied import Study
from sim.workload.trace import Trace

BATCH, CHUNK = 16.0, 2048.0  # sequences of a typical decode step, most tokens of a prefill iteration
BASES = (2, 3)
TINY_S = 1e-30  # where a time is zero
POINTS = 16  # of the sequence for each draw: cells that none of them meets come last

Floats = NDArray[np.float64]


def typical(trace: Trace) -> tuple[float, float]:
    """Tokens of a typical prompt and output, rounded so that other draws of a workload mostly have the same."""
    prompt, output = (
        2.0 ** (round(4.0 * math.log2(max(float(each.mean()), 1.0))) / 4.0) for each in (trace.prompt_tokens, trace.output_tokens)
    )
    return prompt, output


def typical_s(rates: RateDraws, d: Deployment, prompt: float, output: float) -> tuple[Floats, Floats]:
    """Seconds [draw] that a typical request takes of an engine: to decode among BATCH others, and to read its prompt."""
    chunk = min(prompt, CHUNK)
    shapes = (
        decode_batch(d.model, BATCH, prompt + output / 2, d.limits.attention),
        from_sums(0.0, 0.0, 0.0, 0.0, chunk_sums([(chunk, (prompt + chunk) / 2, 1.0)], d.model.window)),
    )
    decode, prefill = (np.asarray(step_time_s(d.work(shape), rates.draws, np), dtype=float) for shape in shapes)
    return decode * output / BATCH, prefill * prompt / chunk


def predictors(study: Study) -> Floats | None:
    """[draw, predictor] of figures at the draws of the rates: logarithms of what a typical request takes to decode and to read, of a
    launch, and of the host's other work, of every pool; None where rates of floats are one draw.
    """
    tokens, found = typical(study.workload.trace), []
    for pool, (rates, _) in zip(study.whole_fleet.pools, study.sources, strict=True):
        if np.ndim(rates.draws.beta) and rates.count == study.rates.count:
            hosts = [rates.draws.launch_layer_s, *([] if rates.host_work is None else [rates.host_work])]
            found += [*typical_s(rates, pool.deployment, *tokens), *(np.asarray(each, dtype=float) for each in hosts)]
    return np.log(np.maximum(np.column_stack(found), TINY_S)) if found else None


def of_hosts(study: Study, figure: Sequence[float]) -> float:
    """Share of the variance of a figure's logarithm over the first draws that goes with what their hosts take to launch and to work."""
    rates, y = study.rates, np.log(np.asarray(figure, dtype=float))
    if rates.host_work is None or len(y) < 10 or not np.ptp(y) > 0.0:
        return 0.0
    hosts = np.log(np.column_stack([rates.draws.launch_layer_s, rates.host_work]))[: len(y)]
    line = np.column_stack([np.ones(len(y)), hosts - hosts.mean(axis=0)])
    left = y - line @ np.linalg.lstsq(line, y, rcond=None)[0]
    return max(1.0 - float(left.var()) / float(y.var()) * (len(y) - 1) / (len(y) - 3), 0.0)


def stratified(rates: RateDraws, d: Deployment, prompt: float, output: float) -> RateDraws:
    """The same draws in that order, for the deployment's model and requests of so many tokens. Rates of floats are one draw."""
    if not np.ndim(rates.draws.beta):
        return rates
    decode, prefill = typical_s(rates, d, prompt, output)
    order = stratified_order(decode + prefill, decode / prefill)

    def ordered(values: Floats | None) -> Floats | None:
        return None if values is None else np.asarray(values)[order]

    draws = Rates(**{name: np.asarray(getattr(rates.draws, name))[order] for name in rates.draws.names()})
    return replace(rates, draws=draws, error=ordered(rates.error), host=ordered(rates.host), host_work=ordered(rates.host_work))


def stratified_order(first: Floats, second: Floats) -> NDArray[np.int64]:
    """Places of points (first, second), [point] each, in an order of which every prefix is spread as all are."""
    count = len(first)
    columns = math.isqrt(count) or 1
    column, row = np.empty(count, dtype=int), np.empty(count)
    for place, members in enumerate(np.array_split(np.argsort(first, kind="stable"), columns)):
        column[members] = place
        row[members[np.argsort(second[members], kind="stable")]] = (np.arange(len(members)) + 0.5) / len(members)
    at = np.arange(1, POINTS * count + 1)
    x, y = (radical_inverse(at, base) for base in BASES)
    rows = -(-count // columns)
    cell = (x * columns).astype(int) * rows + (y * rows).astype(int)
    came = np.full(columns * rows, len(at))
    met, when = np.unique(cell, return_index=True)
    came[met] = when
    return np.argsort(came[column * rows + (row * rows).astype(int)], kind="stable")
