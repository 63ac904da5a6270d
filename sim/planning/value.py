"""The value of measuring: how much cheaper a plan could become if the rates of one GPU, model, dtype and TP degree were known.

Cheaper counts were dropped because they miss the SLO at too many draws of the rates. At the other draws they would do: a measurement could
show that. How a trial's figures follow its rates is fitted by linear regression of their logarithms; what is left is the run's own noise.
The value is that of knowing the rates exactly, so no measurement is worth more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cost.batch import chunk_sums, decode_batch, from_sums
from sim.cost.rates import RateDraws
from sim.cost.step_time import step_time_s
from sim.planning.choices import Choice
from sim.planning.race import Candidate, RaceResult
from sim.results.chance import CERTAINTY
from sim.study.deployment import Deployment, plan_engine

Floats = NDArray[np.float64]
LEAST_TRIALS = 20
PROMISING = 2.0  # the limit is used no more than so many times in the mean: else no plausible rates would do
MOST_FITTED = 12
WORTH = 0.01  # of the winner's cost: less is none


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement, USD per hour that it saves in the mean at most, and the chance that it shows a cheaper count to be enough."""

    what: str
    usd_per_hour: float
    chance: float


def best_measurement(plan: RaceResult, advance: Callable[[int, int, int], None]) -> Measurement | None:
    """The measurement that is worth most, None where none would change the decision. `advance` runs the trials that a fit lacks."""
    if plan.winner is None:
        return None
    cost = plan.cost(plan.winner)
    cheaper = [each for each in plan.candidates() if plan.cost(each) < cost and np.mean([max(t.used) for t in each.trials]) < PROMISING]
    cheaper.sort(key=lambda each: -each.chance.value)
    by_what: dict[str, list[Candidate]] = {}
    for each in cheaper[:MOST_FITTED]:
        advance(each.choice, each.replicas, LEAST_TRIALS)
        for what, _, _ in _measurable(plan.choices[each.choice]):
            by_what.setdefault(what, []).append(each)
    found = [_value(plan, what, candidate, cost) for what, candidate in by_what.items()]
    best = max(found, key=lambda each: each.usd_per_hour, default=None)
    return best if best is not None and best.usd_per_hour >= WORTH * cost else None


def _measurable(choice: Choice) -> list[tuple[str, Deployment, RateDraws]]:
    """Measurable rates of a choice."""
    pools = zip(choice.study.whole_fleet.pools, choice.study.sources, strict=True)
    found = {}
    for pool, (rates, _) in pools:
        d = pool.deployment
        found[f"{d.model.name} in {d.precision.weights}, KV in {d.precision.kv}, on {d.placed}"] = (d, rates)
    return [(what, *pair) for what, pair in found.items()]


def _value(plan: RaceResult, what: str, cheaper: list[Candidate], cost: float) -> Measurement:
    """Of every draw of these rates the cost of the cheapest count that does there, the winner's where none does."""
    least: Floats | None = None
    for candidate in cheaper:
        choice = plan.choices[candidate.choice]
        d, rates = next((d, rates) for name, d, rates in _measurable(choice) if name == what)
        times = _log_times(d, rates, choice)
        if least is None:
            least = np.full(len(times), cost)
        enough = _chances(candidate, times) >= CERTAINTY
        least = np.where(enough, np.minimum(least, plan.cost(candidate)), least)
    assert least is not None
    return Measurement(what, cost - float(least.mean()), float((least < cost).mean()))


def _log_times(d: Deployment, rates: RateDraws, choice: Choice) -> Floats:
    """Logarithms of a decode step and of a prefill iteration, [draw, 2], less their means."""
    trace, config = choice.study.workload.trace, plan_engine(d)[0]
    prompt = float(np.mean(trace.prompt_tokens))
    chunk = min(prompt, float(config.max_num_batched_tokens))
    shapes = (
        decode_batch(d.model, 16.0, prompt, d.limits.attention),
        from_sums(0.0, 0.0, 0.0, 0.0, chunk_sums([(chunk, chunk, 1.0)], d.model.window)),
    )
    logs = [np.log(np.asarray(step_time_s(d.work(shape), rates.draws, np), dtype=float)) for shape in shapes]
    found: Floats = np.stack(logs, axis=1)
    found -= found.mean(axis=0)
    return found


def _chances(candidate: Candidate, times: Floats) -> Floats:
    """The chance that a count meets the SLO at every draw of the rates."""
    from scipy.special import ndtr

    used = np.log([max(max(trial.used), 1e-9) for trial in candidate.trials])
    finite = np.isfinite(used)
    mine = times[np.arange(len(used)) % len(times)]
    if finite.sum() < LEAST_TRIALS // 2:
        return np.zeros(len(times))
    design = np.column_stack([np.ones(finite.sum()), mine[finite]])
    fit, *_ = np.linalg.lstsq(design, used[finite], rcond=None)
    rest = used[finite] - design @ fit
    noise = max(float(np.sqrt((rest**2).sum() / max(finite.sum() - 3, 1))), 1e-3)
    predicted = np.column_stack([np.ones(len(times)), times]) @ fit
    return np.asarray(finite.mean() * ndtr(-predicted / noise))
