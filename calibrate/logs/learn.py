"""Rates from requests: what a served log says about them, through the simulator.

No iteration is seen, so the log is compared by statistics: mean log TTFT and mean log TPOT of groups of requests (blocks in order of
sending, short and long prompts apart). Their dependence on the rates is taken from simulations of the log's own workload at draws of the
rates (the same arrivals and lengths each time: common random numbers), as a line in the rates' standard scores z:

    statistics = line(z) + scale * noise,   noise ~ Normal(0, missed + diag(misfit[metric]**2))

`missed` is the covariance of what the line misses of the simulations (chance of scheduling, curvature), `misfit` what is left over, read
off the residuals; `scale`, about 1, is learnt with z. The line is laid anew around what was learnt, ROUNDS times. A request given up after
T seconds adds the probability that its E2EL, on a line of its own, exceeds T.

So this is an approximation: good where the statistics are smooth in the rates over the posterior's width, and told by `missed`. Rates that
the workload does not show keep their priors; rates that it shows only together (fixed cost and weight bandwidth) stay wide and correlated,
while what they predict does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.logs.requests import Log
from calibrate.sampling import Diagnostics, Settings, diagnose, sample
from calibrate.served.replay import replay
from calibrate.served.runs import ServedRun
from calibrate.steps.rates import unseen, value
from sim.bill import TILE_ROWS, iteration_bill, mixed_shape
from sim.errors import SimctlError
from sim.host import HostRates
from sim.priors import Prior
from sim.products import known_to
from sim.rates import UNITS, RateDraws, Rates

Array = NDArray[np.float64]
ROUNDS = 6
SIMULATIONS = 70
WIDEN = 1.2  # how much wider than what is known so far the next line is laid
PER_BLOCK, MOST_BLOCKS, LEAST_IN_GROUP = 25, 20, 5
HOST = Prior(5e-3, 0.8, "weak prior, 5 ms")
METRICS = ("ttft", "tpot")
FIRST_MISFIT = 0.1
LEAST_MISFIT = 1e-3
SHRINK = 0.2


@dataclass(frozen=True)
class Line:
    """statistic = at + slope @ z; `missed` [statistic, statistic] is the covariance of what the line misses of the simulations."""

    at: Array
    slope: Array
    missed: Array

    @property
    def missed_sd(self) -> Array:
        """Standard deviation of what it misses [statistic]."""
        return np.asarray(np.sqrt(np.diag(self.missed)))

    def mean(self, z: Array) -> Array:
        """[statistic] at scores z [rate]."""
        return np.asarray(self.at + self.slope @ z)


@dataclass(frozen=True)
class Learnt:
    """Posterior draws [draw] of all rates, of the host's time per request and of the misfit by metric."""

    rates: Rates
    request_s: Array
    misfit: Array  # [draw, metric]
    free: tuple[str, ...]
    missed: Mapping[str, float]  # median over groups of what the lines miss, by metric
    diagnostics: Diagnostics
    idata: Any

    def draws(self, basis: Mapping[str, str], summary: str) -> RateDraws:
        """As rates for the simulator, the host's latency apart."""
        point = Rates(**{name: float(np.median(getattr(self.rates, name))) for name in UNITS})
        return RateDraws(point, self.rates, dict(basis), summary)


def learn_rates(
    run: ServedRun, log: Log, priors: Mapping[str, Prior], settings: Settings, progress: Callable[[str], None] = lambda _: None
) -> Learnt:
    """Posterior of the rates given the log. Raises SimctlError when its workload cannot be simulated at the priors."""
    free = shown_rates(run, log)
    rng = np.random.default_rng([settings.seed, 90])
    groups, metric = grouping(log)
    observed = statistics(log.experiment.ttft_s, log.experiment.tpot_s, groups, metric)
    waits = np.flatnonzero(np.isfinite(log.waited_s))
    mean, root = np.zeros(len(free) + 1), np.eye(len(free) + 1)
    misfit = np.full(len(METRICS), FIRST_MISFIT)
    line = late = None
    for lap in range(ROUNDS):
        progress(f"simulating the log, round {lap + 1} of {ROUNDS}")
        z = mean + (1.0 if lap == 0 else WIDEN) * rng.standard_normal((SIMULATIONS, len(mean))) @ root.T
        seen = [_simulated(run, log, priors, free, row) for row in z]
        line = lay(z, np.array([statistics(ttft, tpot, groups, metric) for ttft, tpot, _ in seen]))
        late = lay(z, np.array([np.log(e2el[waits]) for _, _, e2el in seen])) if len(waits) else None
        mean, root, misfit = update(line, observed, metric, misfit)
    assert line is not None
    idata = sample(_model(line, observed, misfit[metric], late, np.log(log.waited_s[waits]), misfit[1]), settings)
    stacked = idata.posterior.stack(sample=("chain", "draw"))
    scores = np.asarray(stacked["z"].transpose("sample", ...).values, dtype=float)
    values: dict[str, Any] = {}
    prior_z = np.random.default_rng([settings.seed, 91]).standard_normal((len(UNITS), len(scores)))
    for i, name in enumerate(UNITS):
        values[name] = value(priors[name], scores[:, free.index(name)] if name in free else prior_z[i])
    return Learnt(
        Rates(**values),
        np.asarray(value(HOST, scores[:, -1])),
        np.outer(np.asarray(stacked["scale"].values, dtype=float), misfit),
        free,
        {name: float(np.median(line.missed_sd[metric == i])) for i, name in enumerate(METRICS)},
        diagnose(idata),
        idata,
    )


def shown_rates(run: ServedRun, log: Log) -> tuple[str, ...]:
    """Rates that iterations of this workload show: decodes of unequal contexts, and prompts beside them, long and short."""
    prompt, output = (float(np.mean(n)) for n in (log.experiment.prompt_tokens, log.experiment.output_tokens))
    shapes = [
        mixed_shape(run.model, [prompt, prompt + output], [(prompt, prompt, True), (8192.0, 8192.0, True)]),
        mixed_shape(run.model, [prompt], [(float(TILE_ROWS), float(TILE_ROWS), True)]),  # one row more than a tile
    ]
    bills = (iteration_bill(run.model, shape, run.precision, tp=run.tp, gpu=known_to(run.gpu))._asdict() for shape in shapes)
    hidden = set.intersection(*(unseen({name: np.asarray(v, dtype=float) for name, v in bill.items()}) for bill in bills))
    return tuple(name for name in UNITS if name not in hidden)


def grouping(log: Log) -> tuple[Array, NDArray[np.int64]]:
    """(weights [statistic, request] that average groups of answered requests; metric [statistic] as its place in METRICS)."""
    answered = np.flatnonzero(log.answered)
    prompts = log.experiment.prompt_tokens[answered]
    blocks = np.array_split(np.arange(len(answered)), int(np.clip(len(answered) // PER_BLOCK, 1, MOST_BLOCKS)))
    middle = np.median(prompts)
    rows, metric = [], []
    for place, wanted in enumerate((np.ones(len(answered), bool), log.experiment.output_tokens[answered] > 1)):
        for block in blocks:
            halves = [block[prompts[block] <= middle], block[prompts[block] > middle]]
            parts = halves if min(map(len, halves)) >= LEAST_IN_GROUP else [block]
            for part in parts:
                chosen = answered[part[wanted[part]]]
                if len(chosen) >= LEAST_IN_GROUP:
                    row = np.zeros(len(log.answered))
                    row[chosen] = 1 / len(chosen)
                    rows.append(row)
                    metric.append(place)
    if not rows:
        raise SimctlError("no group of requests is large enough to learn from")
    return np.array(rows), np.array(metric)


def statistics(ttft_s: Array, tpot_s: Array, groups: Array, metric: NDArray[np.int64]) -> Array:
    """Mean log TTFT or TPOT of each group [statistic]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.nan_to_num(np.log(np.array([ttft_s, tpot_s])), nan=0.0, posinf=0.0, neginf=0.0)
    return np.asarray((groups * logs[metric]).sum(axis=1))


def lay(z: Array, values: Array) -> Line:
    """The least-squares line of values [simulation, statistic] in z [simulation, rate], slightly drawn towards no dependence."""
    centre, mean = z.mean(axis=0), values.mean(axis=0)
    dz = z - centre
    ridge = 1e-3 * len(z) * np.eye(z.shape[1])
    slope = np.linalg.solve(dz.T @ dz + ridge, dz.T @ (values - mean)).T
    missed = values - mean - dz @ slope.T
    used = z.shape[1] + 1
    # what is left of the simulations, and what their chance has put into the line itself
    covariance = missed.T @ missed / max(1, len(z) - used) * (1 + used / len(z))
    # fewer simulations than statistics: drawn towards independence, which keeps it invertible
    covariance = (1 - SHRINK) * covariance + SHRINK * np.diag(np.diag(covariance))
    return Line(mean - slope @ centre, slope, covariance)


def update(line: Line, observed: Array, metric: NDArray[np.int64], misfit: Array) -> tuple[Array, Array, Array]:
    """(mean, root of the covariance, misfit by metric) of z given the line: standard-normal prior, normal noise."""
    for _ in range(3):
        weighed = np.linalg.solve(line.missed + np.diag(misfit[metric] ** 2), line.slope)
        covariance = np.linalg.inv(np.eye(line.slope.shape[1]) + line.slope.T @ weighed)
        mean = covariance @ (weighed.T @ (observed - line.at))
        beyond = (observed - line.mean(mean)) ** 2 - np.diag(line.missed)
        squares = [np.mean(beyond[metric == i]) if (metric == i).any() else 0.0 for i in range(len(METRICS))]
        misfit = np.sqrt(np.maximum(squares, LEAST_MISFIT**2))
    return mean, np.linalg.cholesky(covariance), misfit


def _model(line: Line, observed: Array, misfit: Array, late: Line | None, log_waited: Array, one_misfit: float) -> Any:
    pm, pt = backend.pymc(), backend.tensor()
    # in whitened statistics the noise is independent, whatever the line misses together
    root = np.linalg.cholesky(line.missed + np.diag(misfit**2))
    gap, slope = np.linalg.solve(root, observed - line.at), np.linalg.solve(root, line.slope)
    with pm.Model() as model:
        z = pm.Normal("z", shape=slope.shape[1])
        scale = pm.LogNormal("scale", 0.0, 0.3)
        pm.Normal("statistics", pt.dot(slope, z), scale, observed=gap)
        if late is not None:
            # one request scatters more than a mean of many: what its own line misses, and the misfit of TPOT
            above = (late.at + pt.dot(late.slope, z) - log_waited) / (scale * np.sqrt(one_misfit**2 + late.missed_sd**2))
            pm.Potential("given_up", pt.log(0.5 * pt.erfc(-above / np.sqrt(2.0)) + 1e-12).sum())
    return model


def _simulated(run: ServedRun, log: Log, priors: Mapping[str, Prior], free: tuple[str, ...], z: Array) -> tuple[Array, Array, Array]:
    """(TTFT, TPOT, E2EL) [request] at scores z."""
    scores = dict(zip(free, z[:-1], strict=True))
    rates = Rates(**{name: float(value(priors[name], scores.get(name, 0.0))) for name in UNITS})
    host = HostRates(request_s=float(value(HOST, z[-1])))
    found = replay(run, log.experiment, RateDraws(rates, rates, {}, ""), host, draws=0)
    return found.ttft_s, found.tpot_s, found.e2el_s
