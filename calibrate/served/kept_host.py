"""The host that is kept of what was learnt: factors that are sure.

A low load shows a server's own host and what the simulator misses of that load alike. A factor whose 90 % interval holds an ordinary
server's stays ordinary, and as much wider as it was seen off: predictions of other loads move only by what no ordinary server shows
(`python -m studies.learned_hosts`).
"""

from __future__ import annotations

import math
from dataclasses import replace

from calibrate.served.host_fit import Learnt
from sim.rates.host import FACTORS, Host
from sim.results.intervals import Z_90

# Log sd of the time per token at other loads about that of a server's low load: rms over 144 loads of 60 servers
TOKEN_SD = 0.24


def kept(learnt: Learnt) -> Host:
    """The host for other commands."""
    host = learnt.host
    found: dict[str, float] = {}
    for name in FACTORS:
        log, sd = math.log(getattr(host, name)), float(getattr(host, f"{name}_sd") or 0.0)
        if abs(log) <= Z_90 * sd:
            found |= {name: 1.0, f"{name}_sd": math.hypot(sd, log)}
    api_s, before = dict(host.api_s), learnt.prior.api_s
    low, high = token_interval(api_s["token_s"])
    if low <= before["token_s"] <= high:
        api_s["token_s"] = before["token_s"]
    return replace(host, api_s=api_s, **found)  # type: ignore[arg-type]


def token_interval(token_s: float) -> tuple[float, float]:
    """What holds a server's time per token nine times in ten where a low load shows this one."""
    half = math.exp(Z_90 * TOKEN_SD)
    return token_s / half, token_s * half
