"""Widths of kinds of serving, by what deployments of each were off.

    s**2 = (DOF S**2 + sum b**2) / (DOF + n),    log factor = s t(DOF + n)

b [deployment] are log errors, predicted over measured. Of a kind of which n deployments were measured the variance is a scaled inverse
chi-square around what kinds have in common, S; so the next one's error is a Student t, with heavier tails where fewer were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.specs.mixers import Attention
from sim.study.deployment import Deployment

Array = NDArray[np.float64]

DOF = 3.0  # weight of what kinds have in common, in deployments: declared
# Of a first token's time at a low load launching is about half (8B, H100): errors of first tokens are twice as large in launches. Hosts
# alone spread it so far (log sd), which the serving overhead has.
OF_LAUNCHES, HOSTS_TTFT_SD = 2.0, 0.11


class Seen(NamedTuple):
    """Log errors of the median E2EL and TTFT by deployment, root mean squares of 2/s and 16 clients."""

    e2el: tuple[float, ...]
    ttft: tuple[float, ...]


# vLLM 0.23 on H100s, one server each (docs/log/2026-11-25-kinds-never-measured.md), by `simctl validate --run FILE --transferred`. Without
# graphs it is the host's launching that is off (sim.rates.load): of that kind there is only what kinds have in common.
SEEN = {
    "drafts": Seen((0.04, 0.02, 0.105, 0.06), (0.02, 0.105, 0.19, 0.18)),
    "adapters": Seen((0.054, 0.03, 0.08, 0.075), (0.248, 0.094, 0.127, 0.065)),
    "eager": Seen((), ()),
    "parallel": Seen((0.159, 0.082, 0.107), (0.341, 0.324, 0.133)),
    "architecture": Seen((0.085, 0.088, 0.167), (0.122, 0.169, 0.441)),
    "precision": Seen((0.003, 0.027, 0.023, 0.031), (0.071, 0.153, 0.015, 0.06)),
}


class Width(NamedTuple):
    """Student t of a log factor: its scale, degrees of freedom, and the deployments behind it."""

    sd: float
    dof: float
    seen: int


def width(errors: Sequence[float], common_sd: float) -> Width:
    """The next deployment's log error, by those of its kind and by what kinds have in common."""
    dof = DOF + len(errors)
    return Width(math.sqrt((DOF * common_sd**2 + sum(b * b for b in errors)) / dof), dof, len(errors))


def widths(kind: str) -> tuple[Width, Width]:
    """Of a kind: of step times, and of launches beyond them. What kinds have in common is that of the others."""
    others = [seen for name, seen in SEEN.items() if name != kind]
    steps = width(SEEN[kind].e2el, _rms([b for seen in others for b in seen.e2el]))
    first = width(SEEN[kind].ttft, _rms([b for seen in others for b in seen.ttft]))
    beyond = math.sqrt(max(first.sd**2 - steps.sd**2 - HOSTS_TTFT_SD**2, 0.0))
    return steps, first._replace(sd=OF_LAUNCHES * beyond)


def t_factors(found: Width, draws: int, seed: Sequence[int]) -> Array:
    """One log-t factor per draw [draw], stratified: its median is 1."""
    rng = np.random.default_rng(list(seed))
    tail = np.random.default_rng(0).standard_t(found.dof, 20_000)
    strata = (rng.permutation(draws) + 0.5) / draws
    return np.asarray(np.exp(found.sd * np.quantile(np.concatenate([tail, -tail]), strata)))


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(b * b for b in values) / len(values))


def kinds_of(d: Deployment) -> list[str]:
    """Kinds of which a deployment is, of those few were measured of."""
    mixers = [group.mixer for group in d.model.groups]
    held = {
        "drafts": bool(d.limits.options.get("draft_tokens")),
        "adapters": d.limits.lora is not None,
        "eager": d.limits.enforce_eager,
        "parallel": d.parallel.parts > 1 or d.parallel.expert,
        "architecture": any(not isinstance(mixer, Attention) or mixer.sinks for mixer in mixers),
        "precision": d.precision.weights not in ("bf16", "fp16", "fp8") or d.precision.kv not in ("bf16", "fp16"),
    }
    return [kind for kind, on in held.items() if on]
