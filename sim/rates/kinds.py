"""Means and widths of kinds of serving, by what deployments of each were off.

    m = sum b / (k + n),    s**2 = (DOF S**2 + sum b**2 - m sum b) / (DOF + n) (1 + 1 / (k + n)),    log factor = m + s t(DOF + n)

b [deployment] are log errors, measured over predicted. Of a kind of which n deployments were measured the variance is a scaled inverse
chi-square around what kinds have in common, S, their geometric mean: that some are off by much more is in the chi-square, and would count
twice in a mean square. So the next one's error is a Student t, with heavier tails where fewer were measured.
Predictions are not off in the mean, k = infinity, but of a kind that leans: whose mean, shrunk by k = ZERO deployments, predicts each of
its deployments better by the others than none does.

What servers of no kind are off, by host, machine and formula, is in the errors of kinds, too, and in every answer already: a kind widens by
what is left of s**2 without it, the square of the geometric mean over ordinary models.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.provenance import Provenance
from sim.errors import SimctlError
from sim.files import package_path
from sim.rates.fingerprint import kept_fingerprint as formula_fingerprint
from sim.specs.lookup import key
from sim.specs.mixers import Attention

if TYPE_CHECKING:
    from sim.study.deployment import Deployment

Array = NDArray[np.float64]

DOF = 3.0  # weight of what kinds have in common, in deployments: declared
# Weight of a mean of zero, in deployments; standard errors by which the mean gain in log score must exceed zero, over so many deployments
ZERO, CLEAR, LEAST = 1.0, 2.0, 3
ORDINARY = "ordinary"  # servers of no kind
FOREIGN = ("engine",)  # its errors are by another engine's serving overhead, in whose place answers have its own: no mean
PACKAGED, SCHEMA = "data/posteriors/kinds.json", "simctl-kinds/3"
LEARNT = ("eager",)  # what its servers were off is in the rates: sim.rates.load.EAGER_LAUNCH_SD


class Error(NamedTuple):
    """Log error of a deployment, measured over predicted: root mean square and mean over its servers' loads."""

    rms: float
    mean: float = 0.0


class Seen(NamedTuple):
    """Log errors of a deployment's step times, by its median E2EL, and of its median TTFT."""

    kind: str
    model: str
    e2el: Error
    ttft: Error


@cache
def packaged_seen() -> tuple[Seen, ...]:
    """The deployments that `studies.kinds_seen` found. Raises SimctlError when the file is absent or damaged."""
    try:
        body = json.loads(package_path("scenarios", PACKAGED).read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']!r}")
        if body["formula"] != formula_fingerprint():
            raise ValueError("found with another version of the formula")
        return parse_seen(body["seen"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{PACKAGED}: no errors of kinds ({error}); `python -m studies.kinds_seen OUT.json` writes it") from None


def parse_seen(rows: Sequence[Mapping[str, Any]]) -> tuple[Seen, ...]:
    """The deployments of a file's rows; ValueError, KeyError or TypeError where they are none."""
    errors = ([Error(*map(float, row[name])) for name in ("e2el", "ttft")] for row in rows)
    return tuple(Seen(str(row["kind"]), str(row["model"]), *each) for row, each in zip(rows, errors, strict=True))


def without(deployment: Deployment, seen: Sequence[Seen]) -> tuple[Seen, ...]:
    """Those of `seen` that are no deployment of the same kinds and model, on whatever GPU and host."""
    kinds = kinds_of(deployment)
    return tuple(each for each in seen if each.kind not in kinds or key(each.model) != key(deployment.model.name))


class Width(NamedTuple):
    """Student t of a log factor: its scale, degrees of freedom, the deployments behind it, and its mean."""

    sd: float
    dof: float
    seen: int
    mean: float = 0.0


def width(errors: Sequence[Error], common_sd: float) -> Width:
    """The next deployment's log error, by those of its kind and by what kinds have in common."""
    return _learnt(errors, common_sd, ZERO if leans(errors, common_sd) else math.inf)


def leans(errors: Sequence[Error], common_sd: float) -> bool:
    """Whether a mean predicts a kind's deployments, each by the others, beyond chance."""
    if len(errors) < LEAST:
        return False
    found = gains(errors, common_sd)
    return bool(np.mean(found) > CLEAR * np.std(found, ddof=1) / math.sqrt(len(found)))


def gains(errors: Sequence[Error], common_sd: float) -> list[float]:
    """Log score of each deployment's mean error, by the others with their mean, over that by the others without."""
    found = []
    for i, error in enumerate(errors):
        others = [*errors[:i], *errors[i + 1 :]]
        with_mean, without_mean = (_log_score(error.mean, _learnt(others, common_sd, zero)) for zero in (ZERO, math.inf))
        found.append(with_mean - without_mean)
    return found


def _learnt(errors: Sequence[Error], common_sd: float, zero: float) -> Width:
    dof, total = DOF + len(errors), sum(b.mean for b in errors)
    mean, spread = total / (zero + len(errors)), DOF * common_sd**2 + sum(b.rms**2 for b in errors)
    sd = math.sqrt((spread - mean * total) / dof * (1.0 + 1.0 / (zero + len(errors))))
    return Width(sd, dof, len(errors), mean)


def _log_score(value: float, found: Width) -> float:
    """Of a Student t, less what is the same for all of its degrees of freedom."""
    return -math.log(found.sd) - (found.dof + 1) / 2 * math.log1p(((value - found.mean) / found.sd) ** 2 / found.dof)


def by_metric(kind: str, seen: Sequence[Seen]) -> Iterator[tuple[list[Error], float]]:
    """(errors of a kind's deployments, what kinds have in common) of step times, then of first tokens: the others, one voice each."""
    for what in ("e2el", "ttft"):
        errors = defaultdict[str, list[Error]](list)
        for each in seen:
            errors[each.kind].append(getattr(each, what))
        yield errors[kind], _typical([_rms([b.rms for b in of]) for other, of in errors.items() if other not in (kind, ORDINARY)])


def widths(kind: str, seen: Sequence[Seen]) -> tuple[Width, Width]:
    """Of a kind, beyond ordinary servers: of step times, and of what prompts take beyond them."""
    found = (_learnt(*each, math.inf) if kind in FOREIGN else width(*each) for each in by_metric(kind, seen))
    steps, first = (each._replace(sd=_beyond(each.sd, usual)) for each, usual in zip(found, ordinary(seen), strict=True))
    more = first.mean - steps.mean if first.mean else 0.0  # first tokens that do not lean move with the steps
    return steps, first._replace(sd=_beyond(first.sd, steps.sd), mean=more)


def ordinary(seen: Sequence[Seen]) -> tuple[float, float]:
    """Log error of a typical ordinary model: of step times, and of first tokens."""
    usual = [each for each in seen if each.kind == ORDINARY]
    return _typical([each.e2el.rms for each in usual]), _typical([each.ttft.rms for each in usual])


def _beyond(sd: float, known: float) -> float:
    return math.sqrt(max(sd**2 - known**2, 0.0))


def t_factors(found: Width, draws: int, seed: Sequence[int]) -> Array:
    """One log-t factor per draw [draw] about the mean, stratified: its median is 1."""
    rng = np.random.default_rng(list(seed))
    tail = np.random.default_rng(0).standard_t(found.dof, 20_000)
    strata = (rng.permutation(draws) + 0.5) / draws
    return np.asarray(np.exp(found.sd * np.quantile(np.concatenate([tail, -tail]), strata)))


def _typical(values: Sequence[float]) -> float:
    """The geometric mean; none is taken for less than a ten-thousandth."""
    return math.exp(sum(math.log(max(b, 1e-4)) for b in values) / len(values)) if values else 0.0


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
