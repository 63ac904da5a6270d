"""The served path: what a served engine hides of rates learnt in process, and what its API server adds.

Engine grids are stepped in process with a synchronisation after every iteration. A served engine with asynchronous scheduling hides
host work behind the GPU. A packaged path says by how much, learnt from one served run (`simctl validate --save-path`); it is a property
of the engine and its host, so it is carried to other GPUs whose rates were learnt the same way, and the basis says where it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.overlap import HostWork
from sim.errors import SimctlError, UsageError
from sim.formula import formula_fingerprint
from sim.host import HostRates
from sim.rates import RateDraws, Rates

PACKAGED = "data/posteriors/served_path.json"
SCHEMA = "simctl-served-path/6"
MIN_C0_S = 1e-5
LAUNCHING = ("eager_layer_s", "eager_expert_layer_s")
IN_PROCESS = "posterior for"  # how the summary of rates learnt from in-process grids begins
OWN_GRIDS = "measured cells"  # in the summary of those learnt from grids of their own GPU


@dataclass(frozen=True, slots=True)
class ServedPath:
    """Seconds of the fixed cost that serving hides, the shares of per-sequence and per-prefill host cost that show, what
    launching takes over the grids' rate, what a rested GPU computes faster, host latencies, and how far single requests and whole runs lie
    off a replay (log sd).
    """

    gpu: str
    engine: str
    hidden_c0_s: float
    hidden_c0_sd_s: float  # of it, on another host than it was learnt on
    shown: float
    shown_prefill: float
    launch: float  # how much longer the host takes to launch what no captured graph holds
    launch_sd: float  # of its logarithm, on another host than it was learnt on
    late_launch_s: float  # what that is later in the mean than in the middle
    boost: Boost  # what a rested GPU computes faster than one of the grids
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

    def host(self, rates: RateDraws) -> HostRates:
        """The API server's latencies, and the engine's own host work that serving hides of rates learnt in process. A GPU's own grids are
        of one that had no rest; what power lets a GPU do that nobody measured is not known, so it has no boost.
        """
        return HostRates(
            self.request_s,
            self.prompt_token_s,
            self.response_s,
            self.serial_s,
            f"served {self.engine} on {self.gpu}",
            token_s=self.token_s,
            work=replace(hidden_work(rates.point, self.applied(rates).point), late_launch_s=self.late_launch_s),
            boost=self.boost if OWN_GRIDS in rates.summary else NO_BOOST,
        )

    def applied(self, rates: RateDraws) -> RateDraws:
        """Rates learnt in process, as served."""
        point = replace(
            rates.point,
            c0_s=max(MIN_C0_S, float(rates.point.c0_s) - self.hidden_c0_s),
            c_seq_s=rates.point.c_seq_s * self.shown,
            c_prefill_s=rates.point.c_prefill_s * self.shown_prefill,
            **{name: getattr(rates.point, name) * self.launch for name in LAUNCHING},
        )
        # rates of floats are one draw, and what hosts differ by is its middle
        spread, hides = np.random.default_rng(12).standard_normal((2, rates.count)) if np.ndim(rates.draws.beta) else (0.0, 0.0)
        factors = self.launch * np.exp(self.launch_sd * spread)
        hidden = np.maximum(self.hidden_c0_s + self.hidden_c0_sd_s * hides, 0.0)
        draws = replace(
            rates.draws,
            c0_s=np.maximum(MIN_C0_S, rates.draws.c0_s - hidden),
            c_seq_s=rates.draws.c_seq_s * self.shown,
            c_prefill_s=rates.draws.c_prefill_s * self.shown_prefill,
            **{name: getattr(rates.draws, name) * factors for name in LAUNCHING},
        )
        why = f"as served by {self.engine} on {self.gpu}"
        basis = rates.basis | {name: f"{rates.basis[name]}; {why}" for name in ("c0_s", "c_seq_s", "c_prefill_s", *LAUNCHING)}
        return replace(
            rates, point=point, draws=draws, basis=basis, summary=f"{rates.summary}; served path of {self.engine} measured on {self.gpu}"
        )


def as_served(rates: RateDraws) -> tuple[RateDraws, HostRates]:
    """(rates, host latencies) of a served engine: the packaged path applied to rates learnt in process; priors stay as they are."""
    if rates.host_request_s is not None:
        return rates, HostRates(request_s=rates.host_request_s, basis="learnt with the rates, from a served log")
    path = packaged_path()
    if path is None or not rates.summary.startswith(IN_PROCESS):
        return rates, HostRates()
    return path.applied(rates), path.host(rates)


def hidden_work(in_process: Rates, served: Rates) -> HostWork:
    """What the fixed, per-sequence and per-prefill costs lose by being served."""
    return HostWork(*(max(float(getattr(in_process, name) - getattr(served, name)), 0.0) for name in ("c0_s", "c_seq_s", "c_prefill_s")))


@cache
def packaged_path() -> ServedPath | None:
    """The packaged served path, or None. Raises SimctlError when it is damaged or was learnt with another version of the formula."""
    source = files("scenarios").joinpath(PACKAGED)
    if not source.is_file():
        return None
    return parse_path(source.read_text(encoding="utf-8"), PACKAGED)


def parse_path(text: str | bytes, name: str) -> ServedPath:
    """Check and build a path from the JSON of its file. Raises SimctlError naming the file."""
    try:
        body: dict[str, Any] = json.loads(text)
        told = {field.name: body[field.name] for field in fields(ServedPath)}
        path = ServedPath(**told | {"boost": Boost(*(told["boost"][field.name] for field in fields(Boost)))})
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:  # not JSON, or not even text, is a ValueError
        raise SimctlError(f"{name}: not a served path ({error})") from None
    if not isinstance(path.noise, dict):
        raise SimctlError(f"{name}: not a served path (noise)")
    times = (
        path.hidden_c0_s,
        path.hidden_c0_sd_s,
        path.request_s,
        path.prompt_token_s,
        path.response_s,
        path.serial_s,
        path.token_s,
        path.launch,
        path.launch_sd,
        path.late_launch_s,
        path.run_noise,
        *path.noise.values(),
    )
    shares = (path.shown, path.shown_prefill)
    numbers = all(isinstance(t, float | int) and np.isfinite(t) for t in (*times, *shares))
    if path.schema != SCHEMA or not numbers or not all(0 <= share <= 1 for share in shares) or path.launch <= 0:
        raise SimctlError(f"{name}: not a served path (schema {path.schema!r})")
    if path.formula != formula_fingerprint():
        raise SimctlError(f"{name}: learnt with another version of the formula: learn it again with `simctl validate --save-path`")
    return path
