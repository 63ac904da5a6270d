"""Rates learnt from the requests of a served log, by linearised simulation.

No iteration is seen, so the log is compared by statistics: mean log TTFT and mean log TPOT of groups of requests (blocks in order of
sending, short and long prompts apart). Their dependence on the rates is taken from simulations of the log's own workload at draws of the
rates (the same arrivals and lengths each time: common random numbers), as a line in the rates' standard scores z:

    statistics = line(z) + scale * noise,   noise ~ Normal(0, missed + diag(misfit[metric]**2))

`missed` is the covariance of the line's residuals over the simulations (chance of scheduling, curvature), and the standard errors of the
log's own means, by how its requests scatter within their groups; `misfit` is what is left over of the log; `scale`, about 1, is learnt
with z. The line is refitted around what was learnt, ROUNDS times. A request given up after T seconds adds
the probability that its E2EL, on a line of its own, exceeds T. Rates that the workload does not show keep their priors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.logs.requests import ServedLog
from calibrate.sampling import Compiled, Diagnostics, Graph, Settings, diagnose
from calibrate.served.overhead import launching_as_logged
from calibrate.served.replay import replay
from calibrate.served.runs import ServedRun
from calibrate.steps.gpu_priors import like, starting_priors
from calibrate.steps.random_rates import identified, medians, value
from sim.cost.batch import mixed_batch
from sim.cost.rates import UNITS, RateDraws, Rates
from sim.cost.work import Work, iteration_work
from sim.errors import SimctlError
from sim.rates.posterior import rates_for
from sim.rates.priors import Prior
from sim.rates.serving import as_served, host_of_log, packaged_overhead
from sim.rates.source import RateSource

Array = NDArray[np.float64]
ROUNDS, LAPS = 6, 20
SIMULATIONS = 70
PRIOR_DRAWS = 1000
WIDEN = 1.2  # how much wider than what is known so far the next line is laid
PER_BLOCK, MOST_BLOCKS, LEAST_IN_GROUP = 25, 20, 5
HOST = Prior(5e-3, 0.8, "weak prior, 5 ms")
METRICS = ("ttft", "tpot")
SHORT = 0.2  # quantile of a log's prompts
FIRST_MISFIT = 0.1
LEAST_MISFIT = 1e-3
SHRINK = 0.2


@dataclass(frozen=True)
class Line:
    """statistic = at + slope @ z; `missed` [statistic, statistic] is the covariance of its residuals."""

    at: Array
    slope: Array
    missed: Array

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
    diagnostics: Diagnostics
    idata: Any


def served_priors(run: ServedRun, datasheet: bool = False, log: ServedLog | None = None) -> tuple[dict[str, Prior], str]:
    """(prior of every rate as served, where they come from): the packaged posterior under the packaged serving overhead, whose draws
    hold what hosts differ by, and whose launches a log's gaps between tokens may show; from the datasheet where asked or where no engine
    was measured. llama.cpp, which has kernels and a server of its own, starts as `simctl simulate` has it.
    """
    declared, start = starting_priors(run.gpu, run.precision, datasheet=True)
    if run.limits.engine == "llamacpp" and not datasheet:
        rates, _ = RateSource().of(run.deployment, PRIOR_DRAWS)
        return _like(rates, declared), rates.summary
    in_process, packaged = rates_for(run.gpu, run.precision, tp=run.tp), packaged_overhead()
    if datasheet or packaged is None or not in_process.source.stepped:
        return declared, start.basis
    overhead = packaged.elsewhere(None)
    overhead = overhead if log is None else launching_as_logged(run, log.experiment, overhead, in_process)
    rates, _ = as_served(in_process, overhead)
    return _like(rates, declared), rates.summary


def _like(rates: RateDraws, declared: Mapping[str, Prior]) -> dict[str, Prior]:
    draws = {name: np.asarray(getattr(rates.draws, name), dtype=float) for name in UNITS}
    return {name: like(draws[name], declared[name].upper, 0.0, rates.sources[name]) for name in UNITS}


def learn_rates(
    run: ServedRun,
    log: ServedLog,
    priors: Mapping[str, Prior],
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Learnt:
    """Posterior of the rates given the log. Raises SimctlError when its workload cannot be simulated at the priors."""
    free = identified_rates(run, log, priors)
    rng = np.random.default_rng([settings.seed, 90])
    groups, metric = grouping(log)
    observed = statistics(log.experiment.ttft_s, log.experiment.tpot_s, groups, metric)
    waits = np.flatnonzero(np.isfinite(log.waited_s))
    mean, root, misfit = np.zeros(len(free) + 1), np.eye(len(free) + 1), np.full(len(METRICS), FIRST_MISFIT)
    for lap in range(ROUNDS):
        progress(f"simulating the log, round {lap + 1} of {ROUNDS}")
        points = mean + (1.0 if lap == 0 else WIDEN) * rng.standard_normal((SIMULATIONS, len(mean))) @ root.T
        seen = [_simulated(run, log, priors, free, row) for row in points]
        line = fitted_line(points, np.array([statistics(ttft, tpot, groups, metric) for ttft, tpot, _ in seen]))
        scatter = request_scatter(log, [each[:2] for each in seen], groups, metric)
        line = replace(line, missed=line.missed + np.diag(np.square(groups).sum(axis=1) * scatter[metric]))
        late = fitted_line(points, np.array([np.log(e2el[waits]) for _, _, e2el in seen])) if len(waits) else None
        mean, root, misfit = update(line, observed, metric, misfit)
    data = _given(line, observed, misfit[metric], mean, root)
    if late is not None:
        # one request scatters more than a mean of many: what its own line misses, and the scatter and misfit of TPOT
        sd = np.sqrt(misfit[1] ** 2 + scatter[1] + np.diag(late.missed))
        data |= {"late_at": (late.at - np.log(log.waited_s[waits])) / sd, "late_slope": late.slope / sd[:, None]}
    idata = _model(len(mean), bool(len(waits))).sample(settings, data)
    stacked = idata.posterior.stack(sample=("chain", "draw"))
    scores = np.asarray(stacked["z"].transpose("sample", ...).values, dtype=float)
    z = dict(zip(UNITS, np.random.default_rng([settings.seed, 91]).standard_normal((len(UNITS), len(scores))), strict=True))
    z |= {name: scores[:, i] for i, name in enumerate(free)}
    return Learnt(
        Rates(**{name: value(priors[name], z[name]) for name in UNITS}),
        np.asarray(value(HOST, scores[:, -1])),
        np.outer(np.asarray(stacked["scale"].values, dtype=float), misfit),
        free,
        diagnose(idata),
        idata,
    )


def identified_rates(run: ServedRun, log: ServedLog, priors: Mapping[str, Prior]) -> tuple[str, ...]:
    """Rates that iterations of this workload show: decodes, and prompts alone and beside them, from the short, of which the host's launches
    are most, to the long. The fixed cost is always one of them: small as it is where it is known, a slower host's is not.
    """
    prompt, output = (float(np.mean(n)) for n in (log.experiment.prompt_tokens, log.experiment.output_tokens))
    short = max(1.0, float(np.quantile(log.experiment.prompt_tokens, SHORT)))
    contexts, chunks = 32 * [prompt, prompt + output], [(n, n, 1.0) for n in (prompt, 8192.0)]
    shapes = [mixed_batch(run.model, *each) for each in ((contexts, []), ([], chunks[:1]), ([], [(short, short, 1.0)]), (contexts, chunks))]
    works = [iteration_work(run.model, shape, run.precision, tp=run.tp, gpu=run.gpu) for shape in shapes]
    found = identified(Work(*map(np.array, zip(*works, strict=True))), medians(priors))
    return tuple(name for name in UNITS if name in found or name == "c0_s")


def grouping(log: ServedLog) -> tuple[Array, NDArray[np.int64]]:
    """(weights [statistic, request] that average groups of answered requests; metric [statistic] as its place in METRICS)."""
    answered, prompts, several = np.flatnonzero(log.answered), log.experiment.prompt_tokens, log.experiment.output_tokens > 1
    short, groups = prompts <= np.median(prompts[answered]), []
    ends = np.cumsum([len(each.ttft_s) for each in log.loads])
    for own in np.split(answered, np.searchsorted(answered, ends[:-1])):  # no group is of two loads
        for block in np.array_split(own, int(np.clip(len(own) // PER_BLOCK, 1, MOST_BLOCKS))):
            halves = [block[short[block]], block[~short[block]]]
            groups += halves if min(map(len, halves)) >= LEAST_IN_GROUP else [block]
    chosen = [(place, group) for place in range(len(METRICS)) for group in (groups if not place else [g[several[g]] for g in groups])]
    chosen = [(place, group) for place, group in chosen if len(group) >= LEAST_IN_GROUP]
    if not chosen:
        raise SimctlError("no group of requests is large enough to learn from")
    weights = np.zeros((len(chosen), len(log.answered)))
    for row, (_, group) in zip(weights, chosen, strict=True):
        row[group] = 1 / len(group)
    return weights, np.array([place for place, _ in chosen])


def statistics(ttft_s: Array, tpot_s: Array, groups: Array, metric: NDArray[np.int64]) -> Array:
    """Mean log TTFT or TPOT of each group [statistic]."""
    return np.asarray((groups * _logs(ttft_s, tpot_s)[metric]).sum(axis=1))


def request_scatter(log: ServedLog, seen: Sequence[tuple[Array, Array]], groups: Array, metric: NDArray[np.int64]) -> Array:
    """Variance [metric] of single requests about their group's mean: of log TTFT and TPOT as logged over the mean simulation's."""
    apart = _logs(log.experiment.ttft_s, log.experiment.tpot_s) - np.mean([_logs(*each) for each in seen], axis=0)
    squares = (np.square(apart)[metric] * groups).sum(axis=1) - np.square((apart[metric] * groups).sum(axis=1))
    count = 1 / np.square(groups).sum(axis=1)
    return np.array([_mean((squares * count / (count - 1))[metric == i]) for i in range(len(METRICS))])


def _logs(ttft_s: Array, tpot_s: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.nan_to_num(np.log(np.array([ttft_s, tpot_s])), nan=0.0, posinf=0.0, neginf=0.0))


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0


def fitted_line(z: Array, values: Array) -> Line:
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
    for _ in range(LAPS):
        weighed = np.linalg.solve(line.missed + np.diag(misfit[metric] ** 2), line.slope)
        covariance = np.linalg.inv(np.eye(line.slope.shape[1]) + line.slope.T @ weighed)
        mean = covariance @ (weighed.T @ (observed - line.at))
        # the fit has taken up part of what is left: its own variance is added (expectation-maximisation)
        beyond = (observed - line.mean(mean)) ** 2 + np.diag(line.slope @ covariance @ line.slope.T) - np.diag(line.missed)
        squares = [_mean(beyond[metric == i]) for i in range(len(METRICS))]
        misfit = np.sqrt(np.maximum(squares, LEAST_MISFIT**2))
    return mean, np.linalg.cholesky(covariance), misfit


def _given(line: Line, observed: Array, misfit: Array, centre: Array, axes: Array) -> dict[str, Array]:
    """Data of `_model`: in whitened statistics the noise is independent, whatever the line misses together."""
    root = np.linalg.cholesky(line.missed + np.diag(misfit**2))
    whitened = {"gap": np.linalg.solve(root, observed - line.at), "slope": np.linalg.solve(root, line.slope)}
    return {"centre": centre, "axes": axes, **whitened}


@cache
def _model(rates: int, late: bool) -> Compiled:
    """The posterior of so many rates by statistics, and where some are `late` by requests given up, however many: compiled once."""
    pm, pt = backend.pymc(), backend.tensor()
    with pm.Model() as model:
        # scores in which the posterior is nearly round, as `update` knows it; the prior is of z
        x = pm.Normal("x", shape=rates)
        z = pm.Deterministic("z", pm.Data("centre", np.zeros(rates)) + pt.dot(pm.Data("axes", np.eye(rates)), x))
        pm.Potential("prior", 0.5 * ((x**2).sum() - (z**2).sum()))
        scale = pm.LogNormal("scale", 0.0, 0.3)
        slope, gap = pm.Data("slope", np.zeros((2, rates))), pm.Data("gap", np.zeros(2))
        pm.Normal("statistics", pt.dot(slope, z), scale, observed=gap)
        if late:
            at, late_slope = pm.Data("late_at", np.zeros(2)), pm.Data("late_slope", np.zeros((2, rates)))
            above = (at + pt.dot(late_slope, z)) / scale
            pm.Potential("given_up", pt.log(0.5 * pt.erfc(-above / np.sqrt(2.0)) + 1e-12).sum())
    return Compiled(Graph(model))


def _simulated(run: ServedRun, log: ServedLog, priors: Mapping[str, Prior], free: tuple[str, ...], z: Array) -> tuple[Array, Array, Array]:
    """(TTFT, TPOT, E2EL) [request] at scores z."""
    scores = dict(zip(free, z[:-1], strict=True))
    rates = Rates(**{name: float(value(priors[name], scores.get(name, 0.0))) for name in UNITS})
    latencies = host_of_log(float(value(HOST, z[-1])), log.experiment.text)
    found = [replay(run, load, RateDraws(rates, rates), latencies) for load in log.loads]
    ttft, tpot, e2el = (np.concatenate([getattr(each, name) for each in found]) for name in ("ttft_s", "tpot_s", "e2el_s"))
    return ttft, tpot, e2el
