"""Is the cause of a slow server found? Servers simulated with one known fault, checked by two of their loads.

    python -m studies.checked_servers [SERVERS]

Every server has rates of its own (a draw of the posterior), a host of its own and noise of single requests; each of its loads is off by
what the simulator misses of one (MISSED_SD: between loads of 28 packaged servers of plain models, less what was learnt of each, the
medians over their simulations differ by 7.5 % in TTFT and 2.3 % in TPOT each). Every fifth has no fault.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calibrate.served.causes import CLOCK, HOST, PROMPTS, causes_of
from calibrate.served.host_fit import MISSED_SD, as_on, sharing
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from sim.rates.host import API_TIMES, Host
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.study.deployment import Deployment, Limits

SERVERS = 40
WHERE = (("Llama-3.1-8B", "H100"), ("Qwen2.5-7B", "H200"), ("Qwen3-14B", "H100"))
LOADS = ((2.0, 50), (12.0, 200))  # requests/s, requests
FAULTS = ("", "host", "launch", "clock", "prompts")
CAUSE = {"": "", "host": HOST, "launch": HOST, "clock": CLOCK, "prompts": PROMPTS}
OF_FAULT = {"": "launch", "host": "launch", "launch": "launch", "clock": "clock", "prompts": "prompts"}
HOSTS_SD, REQUEST_SD, DRAWS = 0.05, 0.3, 200


class Checked(NamedTuple):
    """A server's fault and factor (tokens, of cached prompts), the cause that was found, the factor's 90 % interval, and CPU seconds."""

    where: str
    fault: str
    factor: float
    cause: str
    low: float
    high: float
    cpu_s: float

    @property
    def right(self) -> bool:
        """Whether the cause is the fault's."""
        return self.cause == CAUSE[self.fault]

    @property
    def inside(self) -> bool:
        """Whether the factor lies in its interval."""
        return self.low <= self.factor <= self.high


def checked(servers: Iterable[int]) -> Iterator[Checked]:
    """The servers of these numbers, checked one after the other."""
    yield from map(_checked, servers)


def _checked(i: int) -> Checked:
    rng, fault = np.random.default_rng([50, i]), FAULTS[i % len(FAULTS)]
    model, gpu = WHERE[i // len(FAULTS) % len(WHERE)]
    d = Deployment.of(model, gpu)
    run = ServedRun(f"server {i}", d.gpu, d.model, d.precision, Limits(enable_prefix_caching=True), 1, "vllm", ())
    rates, overhead = load_rates(d, draws=DRAWS), packaged_overhead()
    if overhead is None:
        raise SystemExit("no packaged serving overhead")
    prior, own = overhead.elsewhere(None), rates.at_median_host()
    own = replace(own, point=own.draws.at(int(rng.integers(DRAWS))))
    factor = float(np.exp(rng.uniform(*np.log((1.25, 1.7) if fault == "clock" else (1.5, 2.2)))))
    launch, work, request = np.exp((HOSTS_SD, HOSTS_SD, REQUEST_SD) * rng.standard_normal(3)).tolist()
    launch, work = launch * (factor if fault in ("host", "launch") else 1.0), work * (factor if fault == "host" else 1.0)
    api_s = {name: float(getattr(prior, name)) * (request if name == "request_s" else 1.0) for name in API_TIMES}
    host = Host(launch, work, clock=factor if fault == "clock" else 1.0, api_s=api_s)
    tokens = int(rng.integers(200, 600)) if fault == "prompts" else 0
    loads = [_load(run, *load, rng) for load in LOADS]
    seen = [replay(run, sharing(load, tokens), *as_on(host, own, prior)) for load in loads]
    noise = overhead.noise
    answered = []
    for load, times in zip(loads, seen, strict=True):
        n, (missed_first, missed_rest) = len(load.ttft_s), MISSED_SD * rng.standard_normal(2)
        first = times.ttft_s * np.exp(missed_first + noise["ttft_s"] * rng.standard_normal(n))
        rest = (times.e2el_s - times.ttft_s) * np.exp(missed_rest + noise["tpot_s"] * rng.standard_normal(n))
        answered.append(replace(load, ttft_s=first, e2el_s=first + rest))
    began = time.process_time()
    found = causes_of(run, answered, rates, prior)
    took = time.process_time() - began
    true = {"launch": launch, "clock": factor, "prompts": float(tokens)}[OF_FAULT[fault]]
    one = next((each for each in found.factors if each.name == OF_FAULT[fault]), None)
    return Checked(f"{model} on {gpu}", fault, true, found.cause, one.low if one else 0.0, one.high if one else 0.0, took)


def _load(run: ServedRun, rate: float, count: int, rng: np.random.Generator) -> Experiment:
    sent = np.cumsum(rng.exponential(1 / rate, count))
    prompt, output = np.exp(rng.normal(np.log(700), 0.6, count)).astype(int) + 32, rng.integers(16, 200, count)
    ones = np.ones(count)
    return Experiment(f"open {rate:g}/s", "open", sent - sent[0], prompt, output, ones, 2 * ones, rate_per_s=rate)


def row(each: Checked) -> str:
    """A server's line."""
    marks = f"{'' if each.right else 'WRONG'} {'' if each.inside else 'outside'}".strip()
    found = f"found: {each.cause or 'none':15} [{each.low:.2f}-{each.high:.2f}] {marks}"
    return f"{each.where:22} {each.fault or 'none':8} {each.factor:7.2f}  {found}".rstrip()


def main() -> None:
    """Print a line a server, and how many are right."""
    count, found = int(sys.argv[1]) if len(sys.argv) > 1 else SERVERS, []
    for each in checked(range(count)):
        found.append(each)
        print(row(each), flush=True)
    right, inside = sum(each.right for each in found), sum(each.inside for each in found)
    print(f"right cause: {right} of {count}; factor in its 90 % interval: {inside} of {count}")
    print(f"most CPU seconds of a check: {max(each.cpu_s for each in found):.0f}", file=sys.stderr)


if __name__ == "__main__":
    main()
