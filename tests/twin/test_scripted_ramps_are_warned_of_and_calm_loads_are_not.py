"""Ten scripted ramps are warned of before the SLO breaks, and calm loads rarely are.

The servers are simulated: two, each 1.0 to 1.4 times slower than its twin thinks, at rates that the twin does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sim import load_rates
from sim.cost.rates import RateDraws
from sim.rates.serving import as_served
from sim.slo import parse_slo
from sim.study.deployment import Deployment
from sim.twin.curve import LatencyCurve, latency_curve
from sim.twin.prometheus import read_snapshot
from sim.twin.twin import Twin
from tests.twin.scripted_servers import ScriptedServer, arrivals, broken_at

DEPLOYMENT = Deployment.of("Llama-3.1-8B", "H100")
RATES, HOST = as_served(load_rates(DEPLOYMENT))
TTFT_S, TPOT_S = 1.0, 0.05
CONDITIONS = parse_slo([f"ttft:p95<{TTFT_S}s tpot:p95<{TPOT_S}s"], {})
SERVERS, PROMPT, OUTPUT, CV, EVERY_S, LASTS_S = 2, 1500, 200, 0.5, 15.0, 2400.0
_known: dict[tuple[int, int], LatencyCurve] = {}


def curve_for(prompt: float, output: float, cached_share: float = 0.0) -> LatencyCurve:
    key = (round(prompt, -2), round(output, -1))
    if key not in _known:
        _known[key] = latency_curve(DEPLOYMENT, RATES, HOST, *key, CV)
    return _known[key]


def servers_under(load: Callable[[float, np.random.Generator], Callable], rng: np.random.Generator) -> list[ScriptedServer]:
    slowness = rng.uniform(1.0, 1.4, SERVERS)
    full = SERVERS * curve_for(PROMPT, OUTPUT).capacity_per_s / slowness.max()
    at = arrivals(load(full, rng), 1.35 * full, LASTS_S, rng)
    sigma = math.sqrt(math.log1p(CV**2))
    prompt, output = (np.maximum(np.round(mean * rng.lognormal(-(sigma**2) / 2, sigma, len(at))), 1) for mean in (PROMPT, OUTPUT))
    draw = RATES.draws.at(int(rng.integers(len(np.atleast_1d(RATES.draws.c0_s)))))
    truth = RateDraws(draw, draw)
    return [
        ScriptedServer.of(DEPLOYMENT, truth, HOST, (at[i::SERVERS], prompt[i::SERVERS], output[i::SERVERS]), slowness[i])
        for i in range(SERVERS)
    ]


def ramp(full: float, rng: np.random.Generator) -> Callable:
    """From a fifth to a half of the capacity to more than all of it."""
    low, high, begin = rng.uniform(0.2, 0.5) * full, rng.uniform(1.05, 1.3) * full, rng.uniform(0, 600)
    return lambda t: low + (high - low) * np.clip((t - begin) / (LASTS_S - begin), 0, 1)


def calm(full: float, rng: np.random.Generator) -> Callable:
    """Steady, swinging like hours of a day, or growing by a third."""
    low, kind = rng.uniform(0.25, 0.6) * full, rng.integers(3)
    swing, high = rng.uniform(0.07, 0.14) * full, min(1.3 * low, 0.65 * full)
    return [lambda t: low + 0 * t, lambda t: low + swing * np.sin(2 * np.pi * t / 1800), lambda t: low + (high - low) * t / LASTS_S][kind]


def warned_at(servers: list[ScriptedServer], until_s: float) -> float:
    """When the twin first says that the SLO will break; inf for never."""
    twin = Twin([f"http://server{i}" for i in range(SERVERS)], curve_for, CONDITIONS, 1200.0)
    for at_s in np.arange(0.0, min(LASTS_S, until_s), EVERY_S).tolist():
        if twin.observe(at_s, [read_snapshot(server.metrics(at_s), at_s) for server in servers]).warned:
            return at_s
    return math.inf


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(100, 110), marks=pytest.mark.slow)], ids=["ten", "ten others"])
def test_nine_of_ten_ramps_are_warned_of_a_minute_before_they_break(seeds: range) -> None:
    leads = []
    for seed in seeds:
        servers = servers_under(ramp, np.random.default_rng([seed, 1]))
        breaks_s = broken_at(servers, TTFT_S, TPOT_S)
        assert breaks_s < math.inf
        leads.append(breaks_s - warned_at(servers, breaks_s))
    print("warned so long before, s:", sorted(leads))
    assert sum(lead >= 60.0 for lead in leads) >= 0.9 * len(seeds)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(100, 110), marks=pytest.mark.slow)], ids=["2", "10"])
def test_at_most_one_of_ten_calm_loads_is_warned_of(seeds: range) -> None:
    warned = []
    for seed in seeds:
        servers = servers_under(calm, np.random.default_rng([seed, 2]))
        assert broken_at(servers, TTFT_S, TPOT_S) == math.inf
        warned.append(warned_at(servers, math.inf))
    print("warned at, s:", warned)
    assert sum(at_s < math.inf for at_s in warned) <= 0.1 * len(seeds)
