"""Rates learnt from a served log: posterior, replay of the log, and whether the one reproduces the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from calibrate.artifacts import write_posterior
from calibrate.logs.learn import HOST, METRICS, Learnt, learn_rates, served_priors
from calibrate.logs.requests import ServedLog
from calibrate.sampling import Settings
from calibrate.served.replay import replay
from calibrate.served.runs import ServedRun
from calibrate.served.time_units import check_times
from calibrate.steps.iterations import KINDS
from calibrate.steps.random_rates import value
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS, RateDraws
from sim.errors import SimctlError
from sim.rates.kinds import kinds_of
from sim.rates.load import load_rates
from sim.rates.posterior import STEP_TIME
from sim.rates.priors import Prior
from sim.rates.serving import HostRates, host_of_log
from sim.shown import Figures, Shown

CHECK_DRAWS = 20
FIGURES = (("TTFT", "ttft_s", 50), ("TTFT", "ttft_s", 99), ("TPOT", "tpot_s", 50), ("TPOT", "tpot_s", 99), ("E2EL", "e2el_s", 50))
INTERVAL = (0.05, 0.5, 0.95)
MOST_MISFIT = 0.15  # of a median of the log that was learnt from


@dataclass(frozen=True, repr=False)
class LogRates(Shown):
    """Rates learnt from one log of one deployment; `report` is plain data: prior, posterior and replay, seconds."""

    log: ServedLog
    served: ServedRun
    learnt: Learnt
    priors: Any
    settings: Settings
    report: dict[str, Any]

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        replayed = [(row["figure"], f"{row['simulated_s'] / row['measured_s'] - 1:+.1%}") for row in self.report["replayed"]]
        return f"{self.served.name}, {len(self.log.answered):,} requests; replayed", replayed

    def require(self) -> None:
        """Raises UnconvergedError when a gate of the sampler fails, SimctlError when the rates do not reproduce the log."""
        self.learnt.diagnostics.require()
        if missed := misfits(self.report["replayed"]):
            raise SimctlError(
                f"the rates learnt do not reproduce their own log: {', '.join(missed)} (bound {MOST_MISFIT:.0%}); nothing is written"
            )

    def save(self, path: Path) -> Path:
        """Write the posterior file."""
        return save(path, self.served, self.log, self.learnt, self.priors, self.settings)


def rates_from_log(
    log: ServedLog, served: ServedRun, settings: Settings, from_datasheet: bool, progress: Callable[[str], None]
) -> LogRates:
    """Learn, and replay the log with what was learnt. Raises UsageError for a log that cannot be learnt from."""
    check_times(served)
    priors, basis = served_priors(served, from_datasheet, log)
    learnt = learn_rates(served, log, priors, settings, progress=progress)
    report = {"start": basis, **_report(log, learnt, priors), "replayed": _replayed(served, log, learnt)}
    return LogRates(log, served, learnt, priors, settings, report)


def misfits(replayed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Medians of the log that its own replay misses by more than MOST_MISFIT, with their errors."""
    errors = {row["figure"]: row["simulated_s"] / row["measured_s"] - 1 for row in replayed if row["figure"].startswith("p50 ")}
    return [f"{figure} {error:+.0%}" for figure, error in errors.items() if not abs(error) <= MOST_MISFIT]


def _replayed(served: ServedRun, log: ServedLog, learnt: Learnt) -> list[dict[str, Any]]:
    """Figures of the log's answered requests, measured, and simulated with their interval over draws."""
    runs = []
    for d in np.linspace(0, len(learnt.request_s) - 1, CHECK_DRAWS).round().astype(int).tolist():
        rates = learnt.rates.at(d)
        host = host_of_log(float(learnt.request_s[d]), log.experiment.text)
        runs.append([replay(served, load, RateDraws(rates, rates), host) for load in log.loads])
    rows = []
    for name, column, q in FIGURES:
        guesses = [np.concatenate([seen.guess(column) for seen in each])[log.answered] for each in runs]
        values = [float(np.nanpercentile(each, q)) for each in guesses]
        low, median, high = np.quantile(values, INTERVAL)
        measured = float(np.nanpercentile(getattr(log.experiment, column)[log.answered], q))
        rows.append({"figure": f"p{q} {name}", "measured_s": measured, "simulated_s": median, "low_s": low, "high_s": high})
    return rows


def _report(log: ServedLog, learnt: Learnt, priors: Any) -> dict[str, Any]:
    z = np.array([-1.6449, 0.0, 1.6449])
    learnt_about = [(name, UNITS[name], priors[name], getattr(learnt.rates, name)) for name in learnt.free]
    learnt_about.append(("host request_s", "s per request", HOST, learnt.request_s))
    return {
        "source": log.source,
        "requests": len(log.answered),
        "answered": int(log.answered.sum()),
        "given_up": int(np.isfinite(log.waited_s).sum()),
        "notes": list(log.notes),
        "rates": [
            {"name": name, "unit": unit, "prior": np.asarray(value(prior, z)).tolist(), "posterior": np.quantile(draws, INTERVAL).tolist()}
            for name, unit, prior, draws in learnt_about
        ],
        "misfit": dict(zip(METRICS, np.median(learnt.misfit, axis=0).tolist(), strict=True)),
        **asdict(learnt.diagnostics),
    }


T5_SD = (5 / 3) ** 0.5  # of Student's t of five degrees of freedom, as which a model error is drawn


def save(out: Path, run: ServedRun, log: ServedLog, learnt: Learnt, priors: Mapping[str, Prior], settings: Settings) -> Path:
    """Write it. The log shows no kinds of iterations: the misfit of its decode times stands for all, and what the formula is known to miss
    of this GPU's iterations and of what of the deployment was not measured there: one load does not show how that differs between loads.
    """
    shape, e, mark = (learnt.idata.posterior.sizes["chain"], learnt.idata.posterior.sizes["draw"]), log.experiment, hashlib.sha256()
    for column in (e.arrival_s, e.prompt_tokens, e.output_tokens, e.ttft_s, e.e2el_s, log.waited_s):
        mark.update(np.ascontiguousarray(column).tobytes())
    count, gpu, dtype = int(log.answered.sum()), run.gpu.name, run.precision.weights
    engine = run.engine if run.engine.startswith(run.limits.engine) else run.limits.engine
    own = Provenance(Origin.SERVED, f"learnt from {count} requests of a served log", gpu, (dtype,), (run.tp,), (engine,), (run.model.name,))
    own = replace(own, kinds=tuple(kinds_of(run.deployment)))
    variables: dict[str, Any] = {n: (("chain", "draw"), np.asarray(getattr(learnt.rates, n), dtype=float).reshape(shape)) for n in UNITS}
    known = load_rates(run.deployment).error
    missed = np.hypot(learnt.misfit[:, 1:], 0.0 if known is None else np.std(np.log(known))) / T5_SD
    variables["sigma"] = (("chain", "draw", "kind"), np.repeat(missed, len(KINDS), axis=1).reshape(*shape, len(KINDS)))
    variables["request_s"] = (("chain", "draw"), learnt.request_s.reshape(shape))
    return write_posterior(
        out,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=gpu,
        source=replace(own, evidence=f"rates of {gpu} as served, from {count} requests ({log.source})"),
        sources={name: own if name in learnt.free else priors[name].provenance for name in UNITS},
        data_fingerprint=mark.hexdigest(),
        diagnostics=learnt.diagnostics,
        settings=settings,
        groups={"sample_stats": learnt.idata.sample_stats[["diverging"]].astype(np.int8)},
        engine=log.source,
        weight_dtype=dtype,
        host_request_s=HostRates(float(np.median(learnt.request_s)), text=e.text).sent(text=True).request_s,
    )
