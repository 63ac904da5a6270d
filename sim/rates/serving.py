"""Serving overhead: host work that a served engine hides, and what its API server adds.

Engine grids are stepped in process with a synchronisation after every iteration. A served engine with asynchronous scheduling hides
host work behind the GPU. The packaged overhead says by how much: the median of served runs on many hosts, each fitted by itself (`simctl
validate --save-overhead`). It is a property of the engine and its host, so it is transferred to other GPUs whose rates were learnt in
process, and their source says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from sim.cost.provenance import GIVEN, Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.engine.overlap import NO_WORK, HostWork
from sim.errors import SimctlError, UsageError
from sim.files import package_path
from sim.quantiles import median
from sim.rates.fingerprint import kept_fingerprint as formula_fingerprint
from sim.rates.host import Host
from sim.rates.posterior import with_model_error

PACKAGED = "data/posteriors/serving_overhead.json"
SCHEMA, HOSTS_SCHEMA = "simctl-serving-overhead/1", "simctl-serving-overheads/1"
MIN_C0_S = 1e-5
PARTLY_EXPOSED = ("c_seq_s", "c_prefill_s")  # host work of which serving shows a share
LAUNCHING = ("launch_layer_s",)
COMPUTING = ("linear_flops_per_s", "expert_flops_per_s", "attention_flops_per_s")  # by the GPU's clock
DECLARED = Provenance(Origin.PRIOR, "declared prior")
# A prompt of text takes so much longer to its first token than token ids do: HTTP, tokenising, a client that is not ours. Median of a 14B
# served on an H200 (2.7 ms) and of a 7B in fp8 (4 ms), `vllm bench serve` beside our client, at 1,000 tokens or less; and per token, of
# cached prompts of up to 30,000 on an H200, half of it on either way.
TEXT_S, TEXT_TOKEN_S = 3.3e-3, 0.25e-6
# All measured hosts are one provider's virtual machines. How far another's lie from them (log sd), in launches and in interpreted work: a
# declared prior, for half and twice are seen in public (an ordinary bare-metal driver launches a small kernel in 4 to 5 us, the measured
# hosts in 9.5).
PROVIDERS_SD = 0.35
# Log sd of interpreted work between 16 measured hosts (JSON round trips), and how it goes with their launches (correlation of the logs).
WORK_SD, WITH_LAUNCHES = 0.3, 0.5
LOADS_SD = 0.01  # log sd of a server's step times at other loads about those of the load that they were learnt from
UNITS = {
    "request_s": "s per request: receive, parse, template, hand to the engine",
    "serial_s": "s of the API server's own time per request: requests that come together share it",
    "prompt_token_s": "s of the API server's own time per prompt token: parse, check, pack, hash; and again before the first token",
    "response_s": "s per token sent, as latency: detokenise, stream",
    "token_s": "s of the API server's own time per token sent: those of an iteration go out one after another",
}


@dataclass(frozen=True, slots=True)
class HostRates:
    """Host latencies in seconds. All delay a request before its engine sees it, or its tokens on their way out; `serial_s` and
    `prompt_token_s` also occupy the API server, one process that turns to all its requests by turns. It sends the tokens of an iteration in
    the engine's order, those of new requests last, so a first token waits for the tokens of all that decode beside it, and all wait for
    those of earlier iterations. Before any first token it reads the prompts of all new ones once more, to detokenize; the engine goes on
    meanwhile, and what it samples comes with the first token. That requests wait for tokens, and tokens for requests, is left out.
    """

    request_s: float = 4e-3
    prompt_token_s: float = 5e-7
    response_s: float = 1e-3
    serial_s: float = 1e-3
    source: Provenance = DECLARED
    token_s: float = 0.0  # nothing is declared of a host that nobody has seen sending
    work: HostWork = NO_WORK  # of the engine itself, per iteration: what the rates leave out because it can hide behind the GPU
    given: bool = False  # whether the host is the user's own: given, or learnt with the rates
    text: bool = False  # whether `request_s` and `prompt_token_s` are of prompts that come as text, not as token ids

    def __post_init__(self) -> None:
        for name in UNITS:
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"host {name} must be a finite time >= 0, got {value:g} s")

    def sent(self, text: bool) -> HostRates:
        """The same server when prompts come as text, or as token ids."""
        if text == self.text:
            return self
        sign = 1 if text else -1
        request_s, token_s = max(self.request_s + sign * TEXT_S, 0.0), max(self.prompt_token_s + sign * TEXT_TOKEN_S, 0.0)
        return replace(self, request_s=request_s, prompt_token_s=token_s, text=text)

    def slower(self, factor: float) -> HostRates:
        """The same server on a host that takes `factor` times as long for all of it."""
        times = {name: factor * getattr(self, name) for name in UNITS}
        return replace(self, work=self.work.scaled(factor), **times)

    def server_s(self, prompt_tokens: Any) -> Any:
        """Seconds of the API server's own time for a prompt of so many tokens (a number or an array)."""
        return self.serial_s + prompt_tokens * self.prompt_token_s

    def after_s(self, place: Any, fresh: Any = 0) -> Any:
        """Seconds from the end of an iteration to the client having the token that the API server sends at this place (0: at once; a number
        or an array), first ones behind `fresh` prompt tokens of all that are new in the iteration.
        """
        return self.response_s + place * self.token_s + fresh * self.prompt_token_s


NO_HOST = HostRates(0.0, 0.0, 0.0, 0.0, replace(GIVEN, evidence="none: the engine without a server"))


@dataclass(frozen=True, slots=True)
class ServingOverhead:
    """Time of a served engine below and above its rates learnt in process; noise of single requests and of whole runs (log sd)."""

    gpu: str
    engine: str
    hidden_c0_s: float  # of the fixed cost
    hidden_c0_sd_s: float  # of it, on another host than it was fitted on
    exposed_share: float  # of the host work in PARTLY_EXPOSED
    launch: float  # time of the host to launch what no CUDA graph holds, over the grids'
    launch_sd: float  # of its logarithm, on another host than it was fitted on
    request_s: float
    prompt_token_s: float
    response_s: float
    serial_s: float
    token_s: float
    noise: Mapping[str, float]
    run_noise: float
    learnt_on: str
    formula: str
    schema: str = SCHEMA
    work: float = 1.0  # the engine's own work that hides, over the packaged hosts'
    work_sd: float = WORK_SD  # of its logarithm
    step: float = 1.0  # step times over those predicted
    step_sd: float = -1.0  # of its logarithm, in place of what the formula is known to miss; negative: nothing was learnt
    link_bytes_per_s: float = 0.0  # of the host link; 0: the GPU's
    clock: float = 1.0  # time of what computing binds, over that predicted
    clock_sd: float = 0.0  # of its logarithm

    @property
    def run(self) -> str:
        """Name of the run it was fitted to."""
        return self.learnt_on.partition(":")[0]

    def host(self, rates: RateDraws) -> HostRates:
        """The API server's latencies, and the engine's own host work that serving hides of rates learnt in process."""
        source = Provenance(Origin.SERVED, f"served {self.engine} on {self.gpu}", self.gpu, engines=(self.engine,))
        latencies = {name: getattr(self, name) for name in UNITS}
        hidden = replace(self, step=1.0).applied(rates)
        return HostRates(**latencies, source=source, work=hidden_work(rates.point, hidden.point).scaled(self.work))

    def elsewhere(self, host: Host | None) -> ServingOverhead:
        """The overhead on a host that is known, or of which nothing is: a host never seen, of any provider."""
        if host is None:
            return replace(self, launch_sd=math.hypot(self.launch_sd, PROVIDERS_SD), work_sd=math.hypot(self.work_sd, PROVIDERS_SD))
        times = {name: getattr(self, name) * host.work for name in UNITS} | dict(host.api_s)
        return replace(
            self,
            launch=self.launch * host.launch,
            launch_sd=self.launch_sd if host.launch_sd is None else host.launch_sd,
            work=self.work * host.work,
            work_sd=self.work_sd if host.work_sd is None else host.work_sd,
            step=host.step,
            step_sd=-1.0 if host.step_sd is None else host.step_sd,
            link_bytes_per_s=host.link_bytes_per_s or self.link_bytes_per_s,
            clock=host.clock,
            clock_sd=host.clock_sd or 0.0,
            **times,
        )

    def applied(self, rates: RateDraws) -> RateDraws:
        """Rates learnt in process, as served. The factor between hosts stepped in process is left out: this overhead holds how far hosts
        lie apart when served.
        """
        several = np.ndim(rates.draws.beta) > 0  # rates of floats are one draw, and what hosts differ by is its median
        rates = rates.at_median_host() if several else rates
        launches, hides, works = np.random.default_rng(12).standard_normal((3, rates.count)) if several else (0.0, 0.0, 0.0)
        why = f"as served by {self.engine} on {self.gpu}"
        served = with_c0(
            rates,
            float(rates.point.c0_s) - self.hidden_c0_s,
            rates.draws.c0_s - np.maximum(self.hidden_c0_s + self.hidden_c0_sd_s * hides, 0.0),
            rates.adjusted(("c0_s",), why)["c0_s"],
        )
        served = scaled(served, PARTLY_EXPOSED, self.exposed_share, self.exposed_share, why)
        served = scaled(served, LAUNCHING, self.launch, self.launch * np.exp(self.launch_sd * launches), why)
        if several:  # of work that hides, or that a synchronous engine shows
            works = WITH_LAUNCHES * launches + math.sqrt(1.0 - WITH_LAUNCHES**2) * works
            served = replace(served, host_work=np.exp(self.work_sd * works))
        if self.link_bytes_per_s:
            link = self.link_bytes_per_s / float(served.point.link_bytes_per_s)
            served = scaled(served, ("link_bytes_per_s",), link, link, why)
        if self.step_sd >= 0.0 and several:
            steps = np.random.default_rng(13).standard_normal(rates.count)
            served = at_steps(served, self.step, np.exp(math.hypot(self.step_sd, LOADS_SD) * steps))
        if self.clock != 1.0 or self.clock_sd:
            clocks = np.random.default_rng(14).standard_normal(rates.count) if several else 0.0
            served = scaled(served, COMPUTING, 1 / self.clock, np.exp(self.clock_sd * clocks) / self.clock, why)
        return replace(served, source=rates.source.after(f"serving overhead of {self.engine} measured on {self.gpu}"))


NUMBERS = tuple(field.name for field in fields(ServingOverhead) if field.type in ("float", float))


def at_steps(rates: RateDraws, step: float, factor: Any) -> RateDraws:
    """Rates whose step times are `step` times those predicted, its draws `factor` [draw] about it, in place of what the formula misses."""
    own = factor if rates.error is None else factor / rates.error
    point, draws = (
        with_model_error({name: getattr(each, name) for name in each.names()}, times)
        for each, times in ((rates.point, np.asarray(step)), (rates.draws, np.asarray(step * own)))
    )
    return replace(rates, point=Rates(**point), draws=Rates(**draws), error=factor)


def with_c0(rates: RateDraws, point: float, draws: Any, source: Provenance) -> RateDraws:
    """Rates of another fixed cost per iteration."""
    return replace(
        rates,
        point=replace(rates.point, c0_s=max(MIN_C0_S, point)),
        draws=replace(rates.draws, c0_s=np.maximum(MIN_C0_S, draws)),
        sources={**rates.sources, "c0_s": source},
    )


def scaled(rates: RateDraws, names: tuple[str, ...], factor: float, draws: Any, why: str) -> RateDraws:
    """Rates of which these names are multiplied by `factor`, their draws by `draws`."""
    return replace(
        rates,
        point=replace(rates.point, **{name: float(getattr(rates.point, name)) * factor for name in names}),
        draws=replace(rates.draws, **{name: getattr(rates.draws, name) * draws for name in names}),
        sources=rates.adjusted(names, why),
    )


def as_served(
    rates: RateDraws, overhead: ServingOverhead | None = None, speed: Host | None = None, engine: str = "vllm"
) -> tuple[RateDraws, HostRates]:
    """(rates, host latencies) of a served engine that is sent text: an overhead (None: the packaged one, of a host never seen unless its
    `speed` is known) applied to rates learnt in process; priors stay as they are. UsageError for what the rates hold already.
    """
    if rates.host_request_s is not None:
        if overhead is not None:
            raise UsageError("the rates were learnt with a serving overhead of their own: a second would count it twice")
        if speed is not None:
            raise UsageError("the rates were learnt on a host of their own: its speed is in them")
        learnt = Provenance(Origin.SERVED, "learnt with the rates, from a served log")
        return rates, replace(host_of_log(rates.host_request_s, text=True), source=learnt)
    packaged = overhead is None
    if packaged and (known := packaged_overhead(engine=engine)) is not None:
        overhead = known.elsewhere(speed)
    if overhead is None or not rates.source.stepped:
        if speed is not None:
            raise UsageError("no engine was stepped on this GPU: of its host only a prior is known, which no speed scales")
        return rates, HostRates()
    host = replace(overhead.host(rates), given=speed is not None or not packaged)
    return overhead.applied(rates), host.sent(text=True)


def host_of_log(request_s: float, text: bool) -> HostRates:
    """Latencies of a host of which a log shows the time per request in all: what of it requests share, and the times per prompt token and
    token sent, are those of the packaged servers.
    """
    known = packaged_overhead() or HostRates()
    shared_s, prompt_token_s = min(known.serial_s, request_s), known.prompt_token_s + (TEXT_TOKEN_S if text else 0.0)
    return HostRates(request_s - shared_s, prompt_token_s, serial_s=shared_s, token_s=known.token_s, text=text)


def hidden_work(in_process: Rates, served: Rates) -> HostWork:
    """Host work that serving hides, of the fixed, per-sequence and per-prefill costs."""
    return HostWork(*(max(float(getattr(in_process, name) - getattr(served, name)), 0.0) for name in ("c0_s", *PARTLY_EXPOSED)))


@cache
def packaged_overhead(without: tuple[str, str] | None = None, engine: str = "vllm") -> ServingOverhead | None:
    """The packaged serving overhead of this engine's servers, of all where none of its were seen, or None; `without` the run of this GPU
    and name, where a prediction must not have seen it.

    Raises SimctlError when it is damaged or was fitted with another version of the formula.
    """
    source = package_path("scenarios", PACKAGED)
    if not source.is_file():
        return None
    hosts = parse_overheads(source.read_text(encoding="utf-8"), PACKAGED)
    others = [host for host in hosts if (host.gpu, host.run) != without]
    own = [host for host in others if host.engine.partition(" ")[0] == engine]
    return pooled(own or others) if others else None


def pooled(hosts: Sequence[ServingOverhead]) -> ServingOverhead:
    """Median of hosts, number by number. The standard deviation of another host around it is that of these, or as declared if wider."""
    if len(hosts) == 1:
        return hosts[0]
    typical: dict[str, Any] = {name: median(np.array([float(getattr(host, name)) for host in hosts])) for name in NUMBERS}
    apart = {
        "hidden_c0_sd_s": float(np.std([host.hidden_c0_s for host in hosts])),
        "launch_sd": float(np.std(np.log([host.launch for host in hosts]))),
    }
    return replace(
        hosts[0],
        **{name: max(value, apart.get(name, value)) for name, value in typical.items()},
        noise={metric: median(np.array([float(host.noise[metric]) for host in hosts])) for metric in hosts[0].noise},
        gpu=" and ".join(sorted({host.gpu for host in hosts})),
        engine=" and ".join(sorted({host.engine for host in hosts})),
        learnt_on="; ".join(host.learnt_on for host in hosts),
    )


def write_overheads(hosts: Sequence[ServingOverhead]) -> str:
    """The JSON of one host's overhead, or of several."""
    several = [asdict(host) for host in hosts]
    return json.dumps(several[0] if len(several) == 1 else {"schema": HOSTS_SCHEMA, "hosts": several}, indent=1) + "\n"


def parse_overhead(text: str | bytes, name: str) -> ServingOverhead:
    """The serving overhead of a file: of its host, or the median of its hosts. Raises SimctlError naming the file."""
    return pooled(parse_overheads(text, name))


def parse_overheads(text: str | bytes, name: str) -> list[ServingOverhead]:
    """Check and build the serving overheads from the JSON of their file. Raises SimctlError naming the file."""
    try:
        body = json.loads(text)
        if isinstance(body, dict) and body.get("schema") == HOSTS_SCHEMA:
            if not body["hosts"]:
                raise ValueError("no hosts")
            return [_checked(host, name) for host in body["hosts"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # not JSON, or not even text, is a ValueError
        raise SimctlError(f"{name}: not a serving overhead ({error})") from None
    return [_checked(body, name)]


def _checked(body: Any, name: str) -> ServingOverhead:
    try:
        overhead = ServingOverhead(
            **{field.name: body[field.name] for field in fields(ServingOverhead) if field.name in body or field.default is MISSING}
        )
        noise = dict(overhead.noise)
    except (ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{name}: not a serving overhead ({error})") from None
    numbers = [getattr(overhead, name) for name in NUMBERS]
    finite = all(isinstance(number, float | int) and math.isfinite(number) for number in (*numbers, *noise.values()))
    if (
        overhead.schema != SCHEMA
        or noise.keys() != {"ttft_s", "tpot_s", "e2el_s"}
        or not finite
        or not 0 <= overhead.exposed_share <= 1
        or overhead.launch <= 0
    ):
        raise SimctlError(f"{name}: not a serving overhead (schema {overhead.schema!r})")
    if overhead.formula != formula_fingerprint():
        raise SimctlError(f"{name}: fitted with another version of the formula: fit it again with `simctl validate --save-overhead`")
    return overhead
