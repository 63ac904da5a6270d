"""A server's host learnt from some of its requests: launches, interpreted work, step time and time per request, each with a prior.

    statistics = line(z),   launch = exp(sd z1), work = exp(sd z2), step = exp(sd z3), request = exp(sd z4), times the packaged servers'

Statistics are mean log TTFT and TPOT of groups of requests. Their dependence on z is taken from simulations of the same requests
(calibrate.logs.learn, where the method stands), and the posterior is normal: priors keep what a load does not show where other hosts
are, so a low load cannot take launches for a fixed cost. Gaps between tokens show launches by themselves where a log has them
(calibrate.served.launches).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.logs.learn import METRICS, Line, fitted_line, update
from calibrate.served.launches import launch_factor
from calibrate.served.overhead import launching_s
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from sim.cost.rates import RateDraws, Rates
from sim.errors import UsageError
from sim.rates.host import API_TIMES, Host
from sim.rates.posterior import with_model_error
from sim.rates.serving import HostRates, ServingOverhead
from sim.study.deployment import plan_engine

Array = NDArray[np.float64]
ROUNDS, SIMULATIONS, WIDEN = 3, 24, 1.2
PER_GROUP, MOST_GROUPS, LEAST = 20, 12, 5  # requests of a group, groups of each metric, fewest requests of a group
REQUEST_SD = 0.8  # log sd of the time per request between servers
LEAST_STEP_SD = 0.05
FIRST_MISFIT = 0.1


class Learnt(NamedTuple):
    """The host, and what its prior was."""

    host: Host
    prior: Host


def learn_host(run: ServedRun, loads: Sequence[Experiment], in_process: RateDraws, prior: ServingOverhead) -> Learnt:
    """The host of `run` by requests of these loads; `prior` is the overhead of a host never seen. UsageError for too few requests."""
    rates = in_process.at_median_host()
    centre, sds = _prior(run, loads, rates, prior)
    groups = [_groups(load) for load in loads]
    observed = np.concatenate([_statistics(load.ttft_s, load.tpot_s, *own) for load, own in zip(loads, groups, strict=True)])
    metric = np.concatenate([own[1] for own in groups])
    if not len(observed):
        raise UsageError(f"{run.name}: fewer than {LEAST} requests to learn a host from")
    rng, mean, root, misfit = np.random.default_rng(0), np.zeros(len(sds)), np.eye(len(sds)), np.full(len(METRICS), FIRST_MISFIT)
    for lap in range(ROUNDS):
        z = mean + (WIDEN if lap else 1.0) * rng.standard_normal((SIMULATIONS, len(sds))) @ root.T
        seen = np.array([_simulated(run, loads, groups, rates, prior, _host(centre, sds, row)) for row in z])
        line: Line = fitted_line(z, seen)
        line = replace(line, missed=line.missed + np.diag(_scatter(loads, groups)))
        mean, root, misfit = update(line, observed, metric, misfit)
    host = _host(centre, sds, mean)
    left = np.sqrt((root**2).sum(axis=1)) * sds
    learnt_from = sum(len(load.ttft_s) for load in loads)
    found = replace(
        host,
        launch_sd=float(left[0]),
        work_sd=float(left[1]),
        step_sd=float(left[2]),
        source=f"learnt from {learnt_from} requests of {run.name}",
    )
    return Learnt(found, replace(centre, launch_sd=float(sds[0]), work_sd=float(sds[1]), step_sd=float(sds[2])))


def _prior(run: ServedRun, loads: Sequence[Experiment], rates: RateDraws, prior: ServingOverhead) -> tuple[Host, Array]:
    """Median host and log sds of launches, work, step time and time per request; launches as gaps show them."""
    launch, launch_sd = prior.launch, prior.launch_sd
    if run.tp == 1 and plan_engine(run.deployment)[0].overlaps:
        launch, launch_sd = launch_factor(loads, launching_s(run, rates.point), prior.host(rates).work, (prior.launch, prior.launch_sd))
    known = 0.0 if rates.error is None else float(np.std(np.log(rates.error)))
    api_s = {name: float(getattr(prior, name)) for name in API_TIMES}
    api_s["request_s"] = max(api_s["request_s"], 1e-3)  # its logarithm varies
    sds = np.array([launch_sd, prior.work_sd, max(known, LEAST_STEP_SD), REQUEST_SD])
    return Host(launch / prior.launch, api_s=api_s), sds


def _host(centre: Host, sds: Array, z: Array) -> Host:
    launch, work, step, request = (math.exp(float(each)) for each in np.clip(sds * z, -math.log(8.0), math.log(8.0)))
    api_s = {name: value * work for name, value in centre.api_s.items()}
    api_s["request_s"] = centre.api_s["request_s"] * request
    return replace(centre, launch=min(max(centre.launch * launch, 0.06), 19.0), work=work, step=step, api_s=api_s)


def as_on(host: Host, in_process: RateDraws, prior: ServingOverhead) -> tuple[RateDraws, HostRates]:
    """One draw: the medians of the rates on this host, and its latencies."""
    point = replace(in_process, draws=in_process.point, error=None)
    overhead = prior.elsewhere(replace(host, launch_sd=0.0, work_sd=0.0, step_sd=None))
    served = overhead.applied(point)
    slower = with_model_error({name: np.asarray(getattr(served.point, name)) for name in served.point.names()}, np.asarray(host.step))
    rates = Rates(**{name: float(value) for name, value in slower.items()})
    return RateDraws(rates, rates, served.sources, served.source), overhead.host(point)


def _simulated(
    run: ServedRun,
    loads: Sequence[Experiment],
    groups: Sequence[tuple[Array, NDArray[np.int64]]],
    rates: RateDraws,
    prior: ServingOverhead,
    host: Host,
) -> Array:
    known, latencies = as_on(host, rates, prior)
    found = [replay(run, load, known, latencies) for load in loads]
    return np.concatenate([_statistics(seen.ttft_s, seen.tpot_s, *own) for seen, own in zip(found, groups, strict=True)])


def _groups(load: Experiment) -> tuple[Array, NDArray[np.int64]]:
    """(weights [statistic, request] of groups in order of sending; metric [statistic] as its place in METRICS)."""
    weights, metric = [], []
    for place, values in enumerate((load.ttft_s, load.tpot_s)):
        there = np.flatnonzero(np.isfinite(values) & (values > 0.0))
        for part in np.array_split(there, int(np.clip(len(there) // PER_GROUP, 1, MOST_GROUPS))):
            if len(part) >= LEAST:
                row = np.zeros(len(values))
                row[part] = 1.0 / len(part)
                weights.append(row)
                metric.append(place)
    return np.array(weights).reshape(-1, len(load.ttft_s)), np.array(metric, dtype=np.int64)


def _statistics(ttft_s: Array, tpot_s: Array, weights: Array, metric: NDArray[np.int64]) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.nan_to_num(np.log(np.array([ttft_s, tpot_s])), nan=0.0, posinf=0.0, neginf=0.0)
    return np.asarray((weights * logs[metric]).sum(axis=1))


def _scatter(loads: Sequence[Experiment], groups: Sequence[tuple[Array, NDArray[np.int64]]]) -> Array:
    """Variance [statistic] of a group's mean by the scatter of its requests: of neighbours, whose trend is the load's own."""
    found = []
    for load, (weights, metric) in zip(loads, groups, strict=True):
        for row, place in zip(weights, metric.tolist(), strict=True):
            logs = np.log((load.ttft_s, load.tpot_s)[place][row > 0.0])
            low, high = np.quantile(logs, [0.25, 0.75])
            found.append(((high - low) / 1.349) ** 2 / len(logs))
    return np.asarray(found)
