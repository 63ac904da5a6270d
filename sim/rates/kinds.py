"""Widths of kinds of serving, by what deployments of each were off.

    s**2 = (DOF S**2 + sum b**2) / (DOF + n),    log factor = s t(DOF + n)

b [deployment] are log errors, predicted over measured. Of a kind of which n deployments were measured the variance is a scaled inverse
chi-square around what kinds have in common, S; so the next one's error is a Student t, with heavier tails where fewer were measured.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import SimctlError
from sim.files import package_path
from sim.rates.provenance import Provenance
from sim.specs.lookup import key
from sim.specs.mixers import Attention
from sim.study.deployment import Deployment

Array = NDArray[np.float64]

DOF = 3.0  # weight of what kinds have in common, in deployments: declared
PACKAGED, SCHEMA = "data/posteriors/kinds.json", "simctl-kinds/1"
LEARNT = ("eager",)  # what its servers were off is in the rates: sim.rates.load.EAGER_LAUNCH_SD


class Seen(NamedTuple):
    """Log errors of a deployment's step times, by its median E2EL, and of its median TTFT: root mean squares over its servers' loads."""

    kind: str
    model: str
    e2el: float
    ttft: float


@cache
def packaged_seen() -> tuple[Seen, ...]:
    """The deployments that `studies.kinds_seen` found. Raises SimctlError when the file is absent or damaged."""
    try:
        body = json.loads(package_path("scenarios", PACKAGED).read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']!r}")
        return tuple(Seen(str(s["kind"]), str(s["model"]), float(s["e2el"]), float(s["ttft"])) for s in body["seen"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{PACKAGED}: no errors of kinds ({error}); `python -m studies.kinds_seen OUT.json` writes it") from None


def without(deployment: Deployment, seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """Those of `seen` that are no deployment of the same kinds and model, on whatever GPU and host."""
    kinds = kinds_of(deployment)
    return tuple(each for each in seen if each.kind not in kinds or key(each.model) != key(deployment.model.name))


class Width(NamedTuple):
    """Student t of a log factor: its scale, degrees of freedom, and the deployments behind it."""

    sd: float
    dof: float
    seen: int


def width(errors: Sequence[float], common_sd: float) -> Width:
    """The next deployment's log error, by those of its kind and by what kinds have in common."""
    dof = DOF + len(errors)
    return Width(math.sqrt((DOF * common_sd**2 + sum(b * b for b in errors)) / dof), dof, len(errors))


def widths(kind: str, seen: Sequence[Seen]) -> tuple[Width, Width]:
    """Of a kind: of step times, and of what prompts take beyond them. What kinds have in common is that of the others, one voice each."""
    e2el, ttft = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for each in seen:
        e2el[each.kind].append(each.e2el)
        ttft[each.kind].append(each.ttft)
    steps, first = (width(by[kind], _rms([_rms(errors) for other, errors in by.items() if other != kind])) for by in (e2el, ttft))
    return steps, first._replace(sd=math.sqrt(max(first.sd**2 - steps.sd**2, 0.0)))


def t_factors(found: Width, draws: int, seed: Sequence[int]) -> Array:
    """One log-t factor per draw [draw], stratified: its median is 1."""
    rng = np.random.default_rng(list(seed))
    tail = np.random.default_rng(0).standard_t(found.dof, 20_000)
    strata = (rng.permutation(draws) + 0.5) / draws
    return np.asarray(np.exp(found.sd * np.quantile(np.concatenate([tail, -tail]), strata)))


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(b * b for b in values) / len(values)) if values else 0.0


def kinds_of(d: Deployment) -> list[str]:
    """Kinds of which a deployment is, of those few were measured of."""
    mixers = [group.mixer for group in d.model.groups]
    held = {
        "engine": d.limits.engine != "vllm",
        "drafts": bool(d.limits.options.get("draft_tokens")),
        "adapters": d.limits.lora is not None,
        "eager": d.limits.enforce_eager,
        "parallel": d.parallel.parts > 1 or d.parallel.expert,
        "architecture": any(not isinstance(mixer, Attention) or mixer.sinks for mixer in mixers),
        "tp": d.tp > 1,
        "precision": d.precision.weights not in ("bf16", "fp16", "fp8") or d.precision.kv not in ("bf16", "fp16"),
    }
    return [kind for kind, on in held.items() if on]


def not_measured(d: Deployment, source: Provenance) -> list[str]:
    """Those of `kinds_of` a deployment that rates of this source were not learnt from: a degree of TP that was measured is none."""
    had = {*LEARNT, *source.kinds, *(["tp"] if d.tp in source.tps else [])}
    had |= {"engine"} if any(name.split()[0] == d.limits.engine for name in source.engines) else set()
    return [kind for kind in kinds_of(d) if kind not in had]
