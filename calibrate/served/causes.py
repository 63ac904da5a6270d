"""Causes of a server's times beside those expected: its host first, then its GPU's clock, its GPU, or prompts that were cached.

Hypotheses are compared by the evidence of the loads (calibrate.served.host_fit): an ordinary GPU on an unknown host, and the same with one
thing wrong. What each factor costs is taken from simulations of the same requests with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.served.host_fit import ORDINARY, Learnt, Suspicion, as_on, learn_host, sharing
from calibrate.served.kept_host import token_interval
from calibrate.served.replay import Prediction, replay
from calibrate.served.runs import Experiment, ServedRun
from sim.cost.rates import RateDraws
from sim.rates.host import API_TIMES, Host
from sim.rates.load import on_another_machine
from sim.rates.serving import HostRates, ServingOverhead
from sim.results.intervals import Z_90

Array = NDArray[np.float64]
HOST, CLOCK, GPU, PROMPTS = "host", "clock", "GPU", "cached prompts"
HOST_SD = 0.6  # log sd of launches and work: who asks suspects the host
SUSPICIONS = (Suspicion(CLOCK, clock=0.35, clock_sd=0.2), Suspicion(GPU, step_sd=0.6, clock_sd=0.1), Suspicion(PROMPTS, shared=True))
ODDS = math.log(0.03)  # of each suspicion beside an ordinary server, before anything is seen
LEAST_EFFECT = 0.02  # log of a load's mean E2EL: less is no cause
LEAST_TOTAL = 0.05  # log of mean E2EL over the loads
LEAST_REQUEST = 0.1  # of the API server's times
DRAWS = 40  # of servers like it
API = ("request", "token")
TERMS = {"launch": HOST, "work": HOST, "request": HOST, "token": HOST, "step": GPU, "clock": CLOCK, "prompts": PROMPTS}


class Factor(NamedTuple):
    """A factor on what was predicted with its 90 % interval, and what it adds to the busiest load's mean TTFT and mean TPOT, and to the log
    of mean E2EL of the load that shows most of it. Of `prompts` the value is tokens that they share. No interval is known of `request`.
    """

    name: str
    value: float
    low: float
    high: float
    ttft_s: float
    tpot_s: float
    effect: float


class LoadTimes(NamedTuple):
    """Mean TTFT, TPOT and E2EL of a load in seconds: measured, of an ordinary server, and with what was learnt."""

    name: str
    requests: int
    sent: str
    measured_s: tuple[float, float, float]
    ordinary_s: tuple[float, float, float]
    learnt_s: tuple[float, float, float]


@dataclass(frozen=True)
class Causes:
    """What explains the loads of a server: its cause (empty: as it should be), the chances of all hypotheses, factors and times."""

    cause: str
    chances: dict[str, float]
    learnt: Learnt
    factors: tuple[Factor, ...]
    loads: tuple[LoadTimes, ...]
    busiest: str
    faster_share: float  # of servers like it, those that are faster


def causes_of(run: ServedRun, loads: Sequence[Experiment], in_process: RateDraws, prior: ServingOverhead | None) -> Causes:
    """The causes by requests of these loads; `prior` as in learn_host."""
    may_share = run.limits.enable_prefix_caching and not any(load.content or load.kind == "sessions" for load in loads)
    suspected = (ORDINARY, *(each for each in SUSPICIONS if may_share or not each.shared))
    found = {each.name: learn_host(run, loads, in_process, prior, replace(each, host_sd=HOST_SD)) for each in suspected}
    weights = {name: each.evidence + (ODDS if name else 0.0) for name, each in found.items()}
    most = max(weights, key=lambda name: weights[name])
    total = sum(math.exp(each - weights[most]) for each in weights.values())
    chances = {name: math.exp(each - weights[most]) / total for name, each in weights.items()}
    learnt, rates = found[most], in_process.at_median_host()
    ordinary = [replay(run, load, *as_on(_ordinary(prior), rates, prior)) for load in loads]
    best = _simulated(run, loads, rates, prior, learnt.host, learnt.shared_tokens[1])
    busy = max(range(len(loads)), key=lambda i: float(np.sum(loads[i].output_tokens)) / _lasted(loads[i]))
    factors = [
        _factor(name, run, loads, rates, prior, learnt, best, busy) for name in TERMS if name != "prompts" or learnt.shared_tokens[1]
    ]
    times = tuple(
        LoadTimes(load.name, len(load.ttft_s), sent(load), _means(load, load), _means(load, plain), _means(load, seen))
        for load, plain, seen in zip(loads, ordinary, best, strict=True)
    )
    faster = slower_by(times) < -LEAST_TOTAL
    cause = most or (HOST if any(_is_cause(each) and (each.effect > 0 or faster) for each in factors) else "")
    share = _faster_share(run, loads, in_process, prior)
    return Causes(cause, chances, learnt, tuple(factors), times, sent(loads[busy]), share)


def slower_by(loads: Sequence[LoadTimes]) -> float:
    """Log of mean E2EL, measured over that of an ordinary server, mean over the loads; of TPOT where a summary has no more."""
    places = [2 if math.isfinite(each.measured_s[2]) else 1 for each in loads]
    return float(np.mean([math.log(each.measured_s[place] / each.ordinary_s[place]) for each, place in zip(loads, places, strict=True)]))


def _is_cause(f: Factor) -> bool:
    """Whether a factor of the host, on an ordinary GPU, makes a difference that is no chance."""
    if f.name in API:
        return abs(f.effect) > LEAST_REQUEST and not f.low <= 1.0 <= f.high
    return TERMS[f.name] == HOST and abs(f.effect) > LEAST_EFFECT and not f.low <= 1.0 <= f.high


def sent(load: Experiment) -> str:
    """How the requests of a load were sent, in words."""
    if load.kind == "closed" and load.clients:
        return f"with {load.clients} clients"
    if len(load.arrival_s) < 2 or np.ptp(load.arrival_s) < 1e-3:
        return f"at {len(load.arrival_s)} at once"
    rate = (len(load.arrival_s) - 1) / float(np.ptp(load.arrival_s))
    return f"at {rate:.2g}/s"


def _ordinary(prior: ServingOverhead | None) -> Host:
    """The median of such hosts."""
    served = prior or HostRates()
    return Host(api_s={name: max(float(getattr(served, name)), 1e-3 if name == "request_s" else 0.0) for name in API_TIMES})


def _lasted(load: Experiment) -> float:
    return max(float(np.nanmax(load.arrival_s + load.e2el_s) - load.arrival_s[0]), 1e-3)


def _simulated(
    run: ServedRun, loads: Sequence[Experiment], rates: RateDraws, prior: ServingOverhead | None, host: Host, tokens: float
) -> list[Prediction]:
    known = as_on(host, rates, prior)
    return [replay(run, sharing(load, round(tokens)), *known) for load in loads]


def _means(load: Experiment, seen: Experiment | Prediction) -> tuple[float, float, float]:
    found = []
    for name in ("ttft_s", "tpot_s", "e2el_s"):
        if isinstance(seen, Experiment) and load.stated is not None:
            found.append(load.stated.get(name, math.nan))
        else:
            values = np.asarray(getattr(seen, name))[np.isfinite(getattr(load, name))]
            found.append(float(np.nanmean(values)) if np.isfinite(values).any() else math.nan)
    return found[0], found[1], found[2]


def _factor(
    name: str,
    run: ServedRun,
    loads: Sequence[Experiment],
    rates: RateDraws,
    prior: ServingOverhead | None,
    learnt: Learnt,
    best: list[Prediction],
    busy: int,
) -> Factor:
    """A factor and what it costs: the loads as learnt over those without it."""
    host, plain, tokens = learnt.host, _ordinary(prior), learnt.shared_tokens[1]
    value = low = high = math.nan
    if name == "prompts":
        low, value, high, tokens = learnt.shared_tokens[0], learnt.shared_tokens[1], learnt.shared_tokens[2], 0.0
    elif name in API:
        ordinary_s = max(plain.api_s[f"{name}_s"], 1e-9)
        value = host.api_s[f"{name}_s"] / ordinary_s
        if name == "token":
            low, high = (each / ordinary_s for each in token_interval(host.api_s["token_s"]))
        host = replace(host, api_s={**host.api_s, f"{name}_s": plain.api_s[f"{name}_s"]})
    else:
        value = getattr(host, name)
        half = math.exp(Z_90 * (getattr(host, f"{name}_sd") or 0.0))
        low, high = value / half, value * half
        host = replace(host, **{name: 1.0})  # type: ignore[arg-type]
    without = _simulated(run, loads, rates, prior, host, tokens)
    pairs = [(_means(load, seen), _means(load, other)) for load, seen, other in zip(loads, best, without, strict=True)]
    effect = max((math.log(with_it[2] / other[2]) for with_it, other in pairs), key=abs)
    with_it, other = pairs[busy]
    return Factor(name, value, low, high, with_it[0] - other[0], with_it[1] - other[1], effect)


def _faster_share(run: ServedRun, loads: Sequence[Experiment], in_process: RateDraws, prior: ServingOverhead | None) -> float:
    """Of servers like this one, on hosts never seen and cards of other owners, the share whose mean E2EL over the loads is shorter."""
    rates, latencies = on_another_machine(in_process), HostRates()
    if prior is not None:
        rates, latencies = prior.applied(rates), prior.host(rates)
    logs = np.zeros(DRAWS)
    for load in loads:
        measured, seen = _means(load, load), replay(run, load, rates, latencies, draws=DRAWS)
        place = 2 if math.isfinite(measured[2]) else 1
        logs += np.log(np.nanmean(seen.times[("ttft_s", "tpot_s", "e2el_s")[place]], axis=1) / measured[place])
    return float((logs < 0).mean())
