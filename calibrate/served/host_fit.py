"""A server's host and GPU learnt from requests of its loads: log factors with a normal prior, by simulations of the same requests.

    statistics = line(z) + noise,   log (launch, work, step, clock, request) = prior mean + root z,   z ~ Normal(0, 1)

Statistics are mean log TTFT and TPOT of groups of requests; of a summary, its stated means. Their dependence on z is taken from
simulations (calibrate.logs.learn has the method). Launches and work share what a host is slower by, so one slow host comes before two
causes. The noise has a part that all statistics of one metric share (MISSED_SD, and what kinds of serving are off by): what the simulator
misses of a load is not learnt as the host's. Gaps between tokens show launches by themselves (calibrate.served.launches), and the API
server's time per token (calibrate.served.send_times). Its other times stay those given: engines whose own work took 1.6 times the packaged
servers' were seen behind API servers as quick as theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from calibrate.logs.learn import Line, fitted_line, update
from calibrate.served.launches import launch_factor
from calibrate.served.overhead import launching_s
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scores import BOUNDS
from calibrate.served.send_times import token_time_s
from sim.cost.rates import RateDraws, Rates, at_host
from sim.errors import UsageError
from sim.rates.host import API_TIMES, Host
from sim.rates.kinds import kinds_of
from sim.rates.load import OWNERS_SD
from sim.rates.posterior import with_model_error
from sim.rates.serving import COMPUTING, PROVIDERS_SD, WITH_LAUNCHES, HostRates, ServingOverhead, scaled
from sim.study.deployment import plan_engine
from sim.workload.content import SystemPrompt

Array = NDArray[np.float64]
METRICS = ("ttft_s", "tpot_s")
PARAMETERS = ("launch", "work", "step", "clock", "request")
ROUNDS, SIMULATIONS, WIDEN = 3, 24, 1.2
PER_GROUP, MOST_GROUPS, LEAST = 20, 12, 5  # requests of a group, groups of each metric, fewest requests of a group
MOST = 16.0  # times that of the measured hosts, or a MOST-th: as far as a host is looked for
REQUEST_SD = 0.8  # log sd of the time per request between servers
CLOCK_SD = 0.02
# Log sd, by metric, of what simulations of a load miss where host and GPU are known; and how much of what kinds of serving are off by
# one load does not share with another
MISSED_SD, KIND_SHARE = (BOUNDS["ttft_s"], BOUNDS["tpot_s"]), 2.0
FIRST_MISFIT = 0.1
UNKNOWN_SD = 3.0  # of a log that nothing is known of
LONGEST_SHARED = 0.95  # quantile of the prompts


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What may be wrong with a server: log sds of launches and work, of step times and of computing in place of ordinary ones, the mean log
    of computing (a clock is throttled, never faster), and whether prompts begin with tokens that the log does not say were cached.
    """

    name: str = ""
    step_sd: float = 0.0
    clock: float = 0.0
    clock_sd: float = 0.0
    shared: bool = False
    host_sd: float = 0.0


ORDINARY = Suspicion()


class Learnt(NamedTuple):
    """The host, what its prior was, tokens that prompts share with their 90 % interval, and the log evidence of the loads."""

    host: Host
    prior: Host
    shared_tokens: tuple[float, float, float] = (0.0, 0.0, 0.0)
    evidence: float = 0.0
    scores: tuple[float, ...] = ()  # of the parameters, in prior sds


class Loads(NamedTuple):
    """Loads of one server, the weights and metrics of their groups, and what is known before: prior mean, root, suspicion."""

    run: ServedRun
    loads: Sequence[Experiment]
    groups: Sequence[tuple[Array, NDArray[np.int64]]]
    rates: RateDraws
    overhead: ServingOverhead | None
    suspicion: Suspicion
    centre: Host
    mean: Array
    root: Array

    def host(self, z: Array) -> Host:
        """The host at scores z."""
        logs = np.clip(self.mean + self.root @ z[: len(self.mean)], -math.log(MOST), math.log(MOST))
        launch, work, step, clock, request = np.exp(logs).tolist()
        api_s = {**self.centre.api_s, "request_s": min(self.centre.api_s["request_s"] * request, 9.0)}
        return replace(self.centre, launch=launch, work=work, step=step, clock=clock, api_s=api_s)

    def shared_tokens(self, z: Array) -> int:
        """Tokens that prompts begin with alike at scores z."""
        if not self.suspicion.shared:
            return 0
        longest = np.quantile(np.concatenate([each.prompt_tokens for each in self.loads]), LONGEST_SHARED)
        return round(float(ndtr(z[-1]) * longest))

    def simulated(self, z: Array) -> Array:
        """Statistics of the same requests at scores z."""
        known, latencies = as_on(self.host(z), self.rates, self.overhead)
        tokens = self.shared_tokens(z)
        found = [replay(self.run, sharing(load, tokens), known, latencies) for load in self.loads]
        every = zip(self.loads, found, self.groups, strict=True)
        return np.concatenate([_statistics(load, seen.ttft_s, seen.tpot_s, *own) for load, seen, own in every])


def learn_host(
    run: ServedRun, loads: Sequence[Experiment], in_process: RateDraws, prior: ServingOverhead | None, suspicion: Suspicion = ORDINARY
) -> Learnt:
    """The host of `run` by requests of these loads; `prior` is the overhead of a host never seen, None where no engine was stepped on its
    GPU. UsageError for too few requests.
    """
    rates = in_process.at_median_host()
    centre, mean, covariance = _prior(run, loads, rates, prior, suspicion)
    groups = [_groups(load) for load in loads]
    metric = np.concatenate([own[1] for own in groups])
    if not len(metric):
        raise UsageError(f"{run.name}: fewer than {LEAST} requests to learn a host from")
    own = zip(loads, groups, strict=True)
    observed = np.concatenate([_statistics(load, load.ttft_s, load.tpot_s, *each) for load, each in own])
    known = Loads(run, loads, groups, rates, prior, suspicion, centre, mean, np.asarray(np.linalg.cholesky(covariance)))
    size, rng = len(mean) + suspicion.shared, np.random.default_rng(0)
    at, root, misfit = np.zeros(size), np.eye(size), np.full(2, FIRST_MISFIT)
    load = np.concatenate([np.full(len(own[1]), i) for i, own in enumerate(groups)])
    noise = np.diag(_scatter(loads, groups)) + _missed(rates, load, metric)
    for lap in range(ROUNDS):
        z = at + (WIDEN if lap else 1.0) * rng.standard_normal((SIMULATIONS, size)) @ root.T
        line = fitted_line(z, np.array([known.simulated(row) for row in z]))
        line = replace(line, missed=line.missed + noise)
        at, root, misfit = update(line, observed, metric, misfit)
    left = known.root @ root[: len(mean), : len(mean)] if not suspicion.shared else known.root @ root[: len(mean)]
    sds = dict(zip(PARAMETERS, np.sqrt((left**2).sum(axis=1)).tolist(), strict=True))
    before = dict(zip(PARAMETERS, np.sqrt(np.diag(covariance)).tolist(), strict=True))
    learnt_from = sum(len(load.ttft_s) for load in loads)
    found = _with_sds(replace(known.host(at), source=f"learnt from {learnt_from} requests of {run.name}"), sds)
    tokens = _shared_interval(known, at, root) if suspicion.shared else (0.0, 0.0, 0.0)
    evidence = _evidence(line, observed, misfit[metric], at, root)
    usual = replace(centre, api_s={**centre.api_s, "token_s": (prior or HostRates()).token_s})
    return Learnt(found, _with_sds(known._replace(centre=usual).host(np.zeros(size)), before), tokens, evidence, tuple(at.tolist()))


def _with_sds(host: Host, sds: dict[str, float]) -> Host:
    return replace(host, launch_sd=sds["launch"], work_sd=sds["work"], step_sd=sds["step"], clock_sd=sds["clock"])


def _shared_interval(known: Loads, at: Array, root: Array) -> tuple[float, float, float]:
    half = 1.6449 * float(np.linalg.norm(root[-1]))
    low, middle, high = (float(known.shared_tokens(at + np.eye(len(at))[-1] * each)) for each in (-half, 0.0, half))
    return low, middle, high


def sharing(load: Experiment, tokens: int) -> Experiment:
    """The load with prompts that begin with the same tokens, where nothing is known of what they share."""
    if not tokens or load.content:
        return load
    return replace(load, content=tuple(SystemPrompt("assumed", min(tokens, int(n))) for n in load.prompt_tokens))


def _evidence(line: Line, observed: Array, misfit: Array, at: Array, root: Array) -> float:
    """Log probability of the statistics, by Laplace about `at`: constant terms left out."""
    noise = line.missed + np.diag(misfit**2)
    left = observed - line.mean(at)
    fit = left @ np.linalg.solve(noise, left) + np.linalg.slogdet(noise)[1]
    return float(-0.5 * (fit + at @ at) + np.log(np.abs(np.diag(root))).sum())


def _prior(
    run: ServedRun, loads: Sequence[Experiment], rates: RateDraws, prior: ServingOverhead | None, suspicion: Suspicion
) -> tuple[Host, Array, Array]:
    """(times of the API server, prior mean and covariance of the log factors), launches as gaps show them."""
    missed = 0.0 if rates.error is None else float(np.std(np.log(rates.error)))
    computing = np.asarray(rates.draws.linear_flops_per_s) * (1.0 if rates.error is None else rates.error)
    step_sd, clock_sd = math.hypot(missed, OWNERS_SD), math.hypot(CLOCK_SD, float(np.std(np.log(computing))))
    if prior is None:
        step_sd = float(np.std(np.log(np.asarray(rates.draws.beta))))
    launch_sd, work_sd = (prior.launch_sd, prior.work_sd) if prior else (PROVIDERS_SD * 1.2,) * 2
    launch_sd, work_sd = max(launch_sd, suspicion.host_sd), max(work_sd, suspicion.host_sd)
    sds = np.array([launch_sd, work_sd, max(step_sd, suspicion.step_sd), max(clock_sd, suspicion.clock_sd), REQUEST_SD])
    covariance = np.diag(sds**2)
    covariance[0, 1] = covariance[1, 0] = WITH_LAUNCHES * launch_sd * work_sd  # one host does both
    mean = np.array([0.0, 0.0, 0.0, suspicion.clock, 0.0])
    served = prior or HostRates()
    api_s = {name: float(getattr(served, name)) for name in API_TIMES}
    api_s["request_s"] = max(api_s["request_s"], 1e-3)  # its logarithm varies
    api_s["token_s"] = token_time_s(loads, api_s["token_s"])
    if prior is not None and not kinds_of(run.deployment) and plan_engine(run.deployment)[0].overlaps:
        launch, sd = launch_factor(loads, launching_s(run, rates.point), prior.host(rates).work, (prior.launch, UNKNOWN_SD))
        gain = covariance[:, 0] / (covariance[0, 0] + sd**2)
        mean = mean + gain * math.log(launch / prior.launch)
        covariance = covariance - np.outer(gain, covariance[0])
    return Host(api_s=api_s), mean, covariance


def _missed(rates: RateDraws, load: NDArray[np.int64], metric: NDArray[np.int64]) -> Array:
    """Covariance [statistic, statistic] of what simulations miss of a load's statistics of one metric, all alike."""
    known = 0.0 if rates.error is None else float(np.std(np.log(rates.error)))
    same = (load[:, None] == load) & (metric[:, None] == metric)
    return np.asarray(same * np.hypot(np.array(MISSED_SD), KIND_SHARE * known)[metric] ** 2)


def as_on(host: Host, in_process: RateDraws, prior: ServingOverhead | None) -> tuple[RateDraws, HostRates]:
    """One draw: the medians of the rates on this host, and its latencies."""
    point = replace(in_process, draws=in_process.point, error=None)
    known = replace(host, launch_sd=0.0, work_sd=0.0, step_sd=None, clock_sd=None)
    if prior is None:
        served, latencies = replace(point, point=at_host(point.point, host.launch)), HostRates(**dict(host.api_s))  # type: ignore[arg-type]
        served = scaled(served, COMPUTING, 1 / host.clock, 1 / host.clock, "on this host")
    else:
        overhead = prior.elsewhere(known)
        served, latencies = overhead.applied(point), overhead.host(point)
    slower = with_model_error({name: np.asarray(getattr(served.point, name)) for name in served.point.names()}, np.asarray(host.step))
    rates = Rates(**{name: float(value) for name, value in slower.items()})
    return RateDraws(rates, rates, served.sources, served.source), latencies


def _groups(load: Experiment) -> tuple[Array, NDArray[np.int64]]:
    """(weights [statistic, request] of groups in order of sending; metric [statistic], 0 TTFT and 1 TPOT)."""
    weights, metric = [], []
    if load.stated is not None:  # means alone
        there = np.array([place for place, name in enumerate(METRICS) if name in load.stated], dtype=np.int64)
        return np.full((len(there), len(load.ttft_s)), 1.0 / len(load.ttft_s)), there
    for place, values in enumerate((load.ttft_s, load.tpot_s)):
        there = np.flatnonzero(np.isfinite(values) & (values > 0.0))
        for part in np.array_split(there, int(np.clip(len(there) // PER_GROUP, 1, MOST_GROUPS))):
            if len(part) >= LEAST:
                row = np.zeros(len(values))
                row[part] = 1.0 / len(part)
                weights.append(row)
                metric.append(place)
    return np.array(weights).reshape(-1, len(load.ttft_s)), np.array(metric, dtype=np.int64)


def _statistics(load: Experiment, ttft_s: Array, tpot_s: Array, weights: Array, metric: NDArray[np.int64]) -> Array:
    """Mean log times of groups [statistic]; of a load whose means are all that is known, the logs of mean times."""
    times = np.array([ttft_s, tpot_s])
    if load.stated is not None:
        return np.asarray(np.log(np.nanmean(times, axis=1))[metric])
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.nan_to_num(np.log(times), nan=0.0, posinf=0.0, neginf=0.0)
    return np.asarray((weights * logs[metric]).sum(axis=1))


def _scatter(loads: Sequence[Experiment], groups: Sequence[tuple[Array, NDArray[np.int64]]]) -> Array:
    """Variance [statistic] of a group's mean by the scatter of its requests: of neighbours, whose trend is the load's own."""
    found = []
    for load, (weights, metric) in zip(loads, groups, strict=True):
        for row, place in zip(weights, metric.tolist(), strict=True):
            if load.stated is not None:
                found.append(0.0)
                continue
            logs = np.log((load.ttft_s, load.tpot_s)[place][row > 0.0])
            low, high = np.quantile(logs, [0.25, 0.75])
            found.append(((high - low) / 1.349) ** 2 / len(logs))
    return np.asarray(found)
