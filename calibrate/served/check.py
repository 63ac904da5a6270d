"""The question of a check: is a server as fast as it should be, by logs of it, and if not, why?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.logs.pasted import pasted_log
from calibrate.logs.read import is_log, read_log
from calibrate.logs.requests import ServedLog
from calibrate.served.alarms import SAY, cached_prompts, look_alikes, tokens_too_soon
from calibrate.served.causes import CLOCK, GPU, HOST, LEAST_TOTAL, PROMPTS, Causes, Factor, causes_of, slower_by
from calibrate.served.kept_host import kept
from calibrate.served.runs import Experiment, ServedRun, read_served
from calibrate.served.time_units import check_times
from sim.errors import SimctlError, UsageError
from sim.files import plain
from sim.rates.host import Host
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.shown import Figures, Shown
from sim.specs.models import get_model
from sim.study.deployment import Deployment
from sim.units import format_seconds

RATE_DRAWS = 200
MOST_LOADS, MOST_REQUESTS = 6, 1000  # that are simulated; of more loads those from the calmest to the busiest, of more requests the first
TWO_SERVERS = 1.5  # one log's tokens take so much longer than another's beside what explains both
LEAST_COST_S = 5e-5
EQUAL = LEAST_TOTAL
PRINTED = {"launch": "launches", "work": "does the engine's own work", "request": "takes a request in", "token": "sends a token"}
DO = {
    HOST: "a faster or less shared CPU core, CUDA graphs on (no --enforce-eager); keep this host with --out FILE for --host of any command",
    CLOCK: "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER: a power cap, heat, or a locked clock",
    GPU: "check the card, its partition (MIG) and --tensor-parallel-size",
    PROMPTS: "say what prompts share (--log-option assume-prefix=N, or prefix_ids) before anything is learnt from these logs",
}


@dataclass(frozen=True, repr=False)
class Check(Shown):
    """Logs of one server: files of any tool, measurements of ours, or pasted summaries. `deployment` is what served them; None where a
    measurement says it. `reading` are the arguments of read_log.
    """

    logs: Sequence[str | Path]
    deployment: Deployment | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> tuple[str, Figures]:
        """The logs, and what served them."""
        served = "" if self.deployment is None else f", {self.deployment.shown()[0]}"
        return f"{', '.join(Path(each).name[:40] for each in self.logs)}{served}", []

    def answer(self) -> CheckAnswer:
        """UsageError for a log that cannot be read, of another model, or of two servers."""
        run, whole = served_of(self.logs, self.deployment, self.reading)
        check_times(run)
        loads = _chosen(run.experiments)
        rates, overhead = load_rates(run.deployment, draws=RATE_DRAWS), packaged_overhead(engine=run.limits.engine)
        prior = overhead.elsewhere(None) if overhead is not None and rates.source.stepped else None
        alarms = tuple(dict.fromkeys(alarm for e in run.experiments for alarm in (*cached_prompts(run, e), *tokens_too_soon(run, e))))
        causes = causes_of(run, loads, rates, prior)
        _one_server(causes, whole)
        return CheckAnswer(
            run, causes, alarms, rates.summary, prior is not None, look_alikes(run, causes.learnt.host) if causes.cause == GPU else []
        )


@dataclass(frozen=True, repr=False)
class CheckAnswer(Shown):
    """What a check found: the run, its causes, alarms by the roofline, where the rates come from, whether an engine was stepped on
    its GPU, and cards that would take as long.
    """

    run: ServedRun
    causes: Causes
    alarms: tuple[str, ...]
    rates: str
    stepped: bool
    like: Sequence[str] = ()

    def shown(self) -> tuple[str, Figures]:
        """The verdict, and the factors."""
        return self.verdict, [(each.name, f"{each.value:.2f}") for each in self.causes.factors]

    @property
    def host(self) -> Host:
        """The host that was learnt, for `host_scale` of a RateSource and --host of commands. UsageError where no engine was stepped on its
        GPU: of such a server rates are to be learnt.
        """
        if not self.stepped:
            raise UsageError(f"{self.run.gpu.name}: no engine was stepped on this GPU: learn its rates instead (simctl learn --out)")
        return kept(self.causes.learnt)

    def require_learnable(self) -> None:
        """Raises SimctlError where the logs do not say what their prompts share: rates learnt from them would be of nothing."""
        if self.causes.cause == PROMPTS:
            raise SimctlError(f"{self.run.name}: {self._why(self.causes.factors[-1])}: {SAY}")

    @property
    def slower(self) -> float:
        """Mean E2EL measured over that of an ordinary server, as geometric mean of the loads; of tokens where a summary has no more."""
        return math.exp(slower_by(self.causes.loads))

    @property
    def verdict(self) -> str:
        """One line: how fast, why, what it costs, and what is as expected."""
        share = f"faster than {100 * (1 - self.causes.faster_share):.0f} % of such servers"
        how = _times(self.slower)
        if not self.causes.cause:
            return f"{how}: {share}; {self._if_anything()}"
        named = {each.name: each for each in self.causes.factors}
        about = {HOST: ("launch", "work", "request", "token"), CLOCK: ("clock",), GPU: ("step",), PROMPTS: ("prompts",)}[self.causes.cause]
        sign = -1.0 if self.slower < 1 - EQUAL else 1.0
        worst = max((named[name] for name in about), key=lambda each: sign * each.effect)
        parts = [self._why(worst), self._cost(worst)]
        if self.causes.cause == HOST:
            parts.append(_of_gpu(named["step"], named["clock"]))
        so = ", though" if abs(self.slower - 1) < EQUAL else ":"
        return f"{how}{so} {'; '.join(part for part in parts if part)} ({share})"

    def _if_anything(self) -> str:
        """The factor that could explain what is left, where nothing is sure."""
        most = max(self.causes.factors, key=lambda each: abs(each.effect))
        if abs(self.slower - 1) < EQUAL or abs(most.effect) < EQUAL / 2:
            return "nothing stands out"
        return f"nothing is sure; most likely {self._why(most)}"

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing is wrong."""
        like = f"; as {' or '.join(self.like)} would" if self.like else ""
        helps = self.causes.cause and (self.causes.cause != HOST or self.slower > 1 - EQUAL)
        return DO[self.causes.cause] + like if helps else ""

    def _why(self, f: Factor) -> str:
        digits, sure = 2 if f.name in ("clock", "step") else 1, not f.low <= 1.0 <= f.high
        span = f"[{f.low:.{digits}f}-{f.high:.{digits}f}]"
        if f.name == "prompts":
            return f"about {f.value:.0f} [{f.low:.0f}-{f.high:.0f}] tokens of each prompt were cached, which the logs do not say"
        if f.name == "clock":
            return f"what computing binds takes {f.value:.2f}x {span} as long{': is the clock throttled?' if f.value > 1 else ''}"
        if f.name == "step":
            return f"the GPU's iterations take {f.value:.2f}x {span} as long{': another GPU or TP than was said?' if sure else ''}"
        told = f"{f.value:.1f}x{f' {span}' if not math.isnan(f.low) else ''}"
        return f"its host {PRINTED[f.name]} {told} {'slower' if f.value > 1 else 'as long'}"

    def _cost(self, f: Factor) -> str:
        costs = [(f.tpot_s, "a token"), (f.ttft_s, "a first token")]
        kept = [(abs(s), what) for s, what in costs if math.isfinite(s) and s * f.effect > 0 and abs(s) >= LEAST_COST_S]
        said = [f"{format_seconds(float(f'{s:.2g}'))} {what}" for s, what in kept]
        verb = "costs" if f.effect > 0 else "saves"
        return f"{self.causes.busiest} that {verb} {' and '.join(said)}" if said else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; nan becomes null."""
        c = self.causes
        body = {
            "verdict": self.verdict,
            "cause": c.cause,
            "chances": c.chances,
            "slower": self.slower,
            "faster_share": c.faster_share,
            "factors": [each._asdict() for each in c.factors],
            "loads": [each._asdict() for each in c.loads],
            "alarms": list(self.alarms),
            "advice": self.advice,
            "notes": list(self.run.notes),
            "rates": self.rates,
        }
        found: dict[str, Any] = plain(body)
        return found


def _times(slower: float) -> str:
    if abs(slower - 1) < EQUAL:
        return "as fast as such a server should be"
    word, value = ("slower", slower) if slower > 1 else ("faster", 1 / slower)
    return f"{value:.2g}x {word} than such a server should be"


def _of_gpu(step: Factor, clock: Factor) -> str:
    if all(each.low <= 1.0 <= each.high or abs(each.effect) < EQUAL for each in (step, clock)):
        return "the GPU itself is as expected"
    return f"the GPU's iterations take {step.value:.2f}x as long"


def served_of(logs: Sequence[str | Path], deployment: Deployment | None, reading: Mapping[str, Any]) -> tuple[ServedRun, list[list[str]]]:
    """(all logs as one run, names of the loads of each). UsageError as `Check`."""
    if not logs:
        raise UsageError("no log to check")
    runs = [_run_of(each, deployment, reading) for each in logs]
    first = runs[0]
    for run in runs[1:]:
        for what in ("model", "gpu", "tp", "limits"):
            mine, other = getattr(first, what), getattr(run, what)
            if mine != other and not (what == "limits" and deployment is not None):
                said = f"{getattr(mine, 'name', mine)} and {getattr(other, 'name', other)}" if what != "limits" else "other limits"
                raise UsageError(f"{first.name} and {run.name}: two servers ({said}): check one at a time")
    several = len(runs) > 1
    loads, names = [], []
    for run in runs:
        own = [
            replace(e, name=f"{run.name}: {e.name}" if several and not e.name.startswith(run.name) else e.name, limits=None)
            for e in _usable(run)
        ]
        loads += own
        names.append([e.name for e in own])
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    name = first.name if not several else f"{first.name} and {len(runs) - 1} more"
    return replace(first, name=name, experiments=tuple(loads), notes=notes), names


def _usable(run: ServedRun) -> list[Experiment]:
    found = [e for e in run.experiments if e.kind not in ("ladder", "burst") and not e.replicate and e.limits is None]
    if not found:
        raise UsageError(f"{run.name}: no load that a check can use")
    return found


def _run_of(log: str | Path, deployment: Deployment | None, reading: Mapping[str, Any]) -> ServedRun:
    path = Path(log)
    given = {"clients": reading["clients"]} if reading.get("clients") else {}
    if isinstance(log, str) and (found := pasted_log(log, given)) is not None:
        return _of_log(found, deployment, "the pasted summary")
    if not is_log(path):
        return read_served(path, given=deployment)
    return _of_log(read_log(path, **reading), deployment, path.name)


def _of_log(log: ServedLog, deployment: Deployment | None, name: str) -> ServedRun:
    if deployment is None:
        raise UsageError(f"{name}: a log needs --model and --gpu, or --from-deployment")
    if log.model_id:
        _require_model(name, log.model_id, deployment)
    return log.served_by(deployment, Path(name).stem)


def _require_model(name: str, model_id: str, deployment: Deployment) -> None:
    """UsageError where the model that a log names has another shape than the deployment's; a name that nobody knows is let be."""
    try:
        named = get_model(model_id.rstrip("/").rpartition("/")[2])
    except UsageError:
        return
    if (named.hidden, named.layers, named.vocab) != (deployment.model.hidden, deployment.model.layers, deployment.model.vocab):
        raise UsageError(f"{name}: is of {model_id[:80]}, not of {deployment.model.name}")


def _one_server(causes: Causes, whole: Sequence[Sequence[str]]) -> None:
    """UsageError where tokens of one log take much longer, and of another much shorter, than what explains both together."""
    left = {load.name: load.measured_s[1] / load.learnt_s[1] for load in causes.loads}
    means = [float(np.nanmean([left[name] for name in names if name in left] or [math.nan])) for names in whole]
    known = [each for each in means if math.isfinite(each)]
    if len(known) > 1 and max(known) > TWO_SERVERS * min(known):
        slow, fast = (whole[means.index(pick)][0].partition(":")[0] for pick in (max(known), min(known)))
        raise UsageError(
            f"two servers? Tokens of {slow} take {max(known) / min(known):.1f} times as long as those of {fast}, load considered: "
            "check one server at a time"
        )


def _chosen(loads: Sequence[Experiment]) -> list[Experiment]:
    """Up to MOST_LOADS loads from the calmest to the busiest, of each the first MOST_REQUESTS requests."""
    ordered = sorted(loads, key=lambda e: float(np.sum(e.output_tokens)) / max(float(np.nanmax(e.arrival_s + e.e2el_s)), 1e-3))
    places = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_LOADS)).round().astype(int))
    return [
        e if len(e.ttft_s) <= MOST_REQUESTS else replace(e.part(slice(0, MOST_REQUESTS), ""), name=e.name)
        for e in (ordered[i] for i in places)
    ]
