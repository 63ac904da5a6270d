"""Time until a long prompt has been read: chunks of the engine's token budget, one after another, each attending to all before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.closed_form.what_if_options import Interval, interval
from sim.cost.batch import mixed_batch
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.specs.attention_policy import Placement, dense
from sim.study.deployment import Deployment

MOST_PRICED = 33  # chunks that are priced: between them times are as good as linear in the context


def prefill_s(d: Deployment, context: int, rates: RateDraws, placement: Placement = "hbm") -> Interval:
    """Interval of `prefill_times`."""
    return interval(*prefill_times(d, context, rates, placement))


def prefill_times(d: Deployment, context: int, rates: RateDraws, placement: Placement = "hbm") -> tuple[float, NDArray[np.float64]]:
    """Seconds to read `context` tokens of one sequence alone, by the deployment's engine at the medians and at draws of its rates, dense.
    Where the cache lies in host RAM, a chunk's earlier keys and values cross the link while the layer before it computes.
    """
    _, budget = d.batch_limits()
    count = -(-context // budget)
    places = np.array(sorted(set(np.linspace(1, count, min(count, MOST_PRICED)).round().astype(int).tolist())))
    point, draws = [], []
    for place in places.tolist():
        end = min(place * budget, context)
        tokens = float(end - (place - 1) * budget)
        work = d.work(mixed_batch(d.model, (), [(tokens, float(end), float(end == context))]), dense(placement))
        point.append(float(step_time_s(work, rates.point)))
        draws.append(np.asarray(step_time_s(work, rates.draws, np)))
    every = np.arange(1, count + 1)
    weights = np.array([np.interp(every, places, unit).sum() for unit in np.eye(len(places))])
    return float(weights @ np.array(point)), weights @ np.array(draws)
