"""`simctl calibrate --from LOG`: rates from the requests of a served log, "calibrate to my production"."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from sim.errors import UsageError
from simctl.calibrate_text import rate_table, say
from simctl.tables import table

CHECK_DRAWS = 20
FIGURES = (("TTFT", "ttft_s", 50), ("TTFT", "ttft_s", 99), ("TPOT", "tpot_s", 50), ("TPOT", "tpot_s", 99), ("E2EL", "e2el_s", 50))


@dataclass(frozen=True)
class Asked:
    """What the command line says: the log, the deployment it came from, how to sample, where to write."""

    path: Path
    gpu: str
    model: str | None
    experiment: str | None
    dtype: str
    tp: int
    engine: str
    prefix_block: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    timeout_s: float | None
    out: Path | None
    draws: int
    chains: int
    seed: int
    sampler: Any
    from_datasheet: bool
    allow_unconverged: bool


def run(asked: Asked, as_json: bool) -> None:
    """Learn, print and write. Raises UsageError for a log that cannot be learnt from, UnconvergedError when a gate fails."""
    from calibrate.logs.learn import learn_rates
    from calibrate.population.start import starting_priors
    from calibrate.sampling import Settings
    from calibrate.served.units import check_times
    from calibrate.sources import resolved

    asked = replace(asked, path=resolved(asked.path))
    log, served = _measured(asked) if asked.path.suffix == ".nc" else _logged(asked)
    check_times(served)
    priors, start = starting_priors(served.gpu, served.precision, datasheet=asked.from_datasheet)
    settings = Settings(draws=asked.draws, chains=asked.chains, seed=asked.seed, sampler=asked.sampler)
    learnt = learn_rates(served, log, priors, settings, progress=lambda what: click.echo(what, err=True))
    replayed = _replayed(served, log, learnt)
    report = {"start": start.said, **_report(asked, log, learnt, priors, replayed)}
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _show(report)
    if not asked.allow_unconverged:
        learnt.diagnostics.require()
    if asked.out is not None:
        path = _save(asked, log, learnt, priors, settings)
        click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def _logged(asked: Asked) -> tuple[Any, Any]:
    """(log, deployment) of another tool's file and the options given."""
    from calibrate.logs.read import read_any
    from calibrate.served.runs import ServedRun
    from sim.deployment import Limits
    from sim.memory import DEFAULT_UTILIZATION
    from sim.precision import Precision
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model
    from simctl.what_if import ENGINE_MEMORY

    if asked.model is None:
        raise UsageError(f"{asked.path.name}: a served log needs --model")
    gpu, model, precision = get_gpu(asked.gpu), get_model(asked.model), Precision(asked.dtype)
    log = read_any(asked.path, asked.timeout_s, asked.prefix_block)
    limits = Limits(
        engine=asked.engine,
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        gpu_memory_utilization=ENGINE_MEMORY.get(asked.engine, DEFAULT_UTILIZATION),
    )
    return log, ServedRun(asked.path.name, gpu, model, precision, limits, asked.tp, log.source, (log.experiment,))


def _measured(asked: Asked) -> tuple[Any, Any]:
    """(log, deployment) of one experiment of a served measurement of ours."""
    from calibrate.logs.requests import Log
    from calibrate.served.runs import read_served
    from sim.specs.gpus import get_gpu

    run = read_served(asked.path)
    if run.gpu.name != get_gpu(asked.gpu).name:
        raise UsageError(f"{asked.path.name}: measured on {run.gpu.name}, not on {get_gpu(asked.gpu).name}")
    found = [e for e in run.experiments if e.name == asked.experiment]
    if not found:
        raise UsageError(f"{asked.path.name}: --experiment needs one of {', '.join(e.name for e in run.experiments)}")
    count = len(found[0].ttft_s)
    return Log(found[0], np.ones(count, dtype=bool), np.full(count, np.nan), f"{run.engine}, {found[0].name}"), run


def _replayed(served: Any, log: Any, learnt: Any) -> list[dict[str, Any]]:
    """Figures of the log's answered requests, measured and simulated: at the medians, and their interval over draws."""
    from calibrate.served.replay import replay
    from sim.host import HostRates
    from sim.rates import RateDraws

    picks = np.linspace(0, len(learnt.request_s) - 1, CHECK_DRAWS).round().astype(int)
    runs = []
    for d in picks:
        rates = learnt.rates.at(int(d))
        host = HostRates(request_s=float(learnt.request_s[d]))
        runs.append(replay(served, log.experiment, RateDraws(rates, rates, {}, ""), host, draws=0))
    rows = []
    for name, column, q in FIGURES:
        measured = float(np.nanpercentile(getattr(log.experiment, column)[log.answered], q))
        values = [float(np.nanpercentile(getattr(seen, column)[log.answered], q)) for seen in runs]
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        rows.append({"figure": f"p{q} {name}", "measured_s": measured, "simulated_s": middle, "low_s": low, "high_s": high})
    return rows


def _report(asked: Asked, log: Any, learnt: Any, priors: Any, replayed: list[dict[str, Any]]) -> dict[str, Any]:
    from dataclasses import asdict

    from calibrate.logs.learn import HOST, METRICS
    from calibrate.steps.rates import value
    from sim.rates import UNITS

    z = np.array([-1.6449, 0.0, 1.6449])
    rates = [
        {
            "name": name,
            "unit": UNITS[name],
            "prior": np.asarray(value(priors[name], z)).tolist(),
            "posterior": np.quantile(getattr(learnt.rates, name), [0.05, 0.5, 0.95]).tolist(),
        }
        for name in learnt.free
    ]
    host = np.quantile(learnt.request_s, [0.05, 0.5, 0.95]).tolist()
    rates.append({"name": "host request_s", "unit": "s per request", "prior": np.asarray(value(HOST, z)).tolist(), "posterior": host})
    return {
        "log": asked.path.name,
        "source": log.source,
        "requests": len(log.answered),
        "answered": int(log.answered.sum()),
        "given_up": int(np.isfinite(log.waited_s).sum()),
        "notes": list(log.notes),
        "rates": rates,
        "misfit": dict(zip(METRICS, np.median(learnt.misfit, axis=0).tolist(), strict=True)),
        "line_misses": dict(learnt.missed),
        "replayed": replayed,
        **asdict(learnt.diagnostics),
    }


def _show(r: dict[str, Any]) -> None:
    gave_up = f", {r['given_up']} given up (censored)" if r["given_up"] else ""
    say(f"{r['log']}: {r['source']}, {r['requests']} requests, {r['answered']} answered{gave_up}")
    say(f"  before them: {r['start']}", "    ")
    for note in r["notes"]:
        say(f"  note: {note}", "    ")
    click.echo()
    for line in rate_table([(x["name"], x["unit"], x["prior"], x["posterior"]) for x in r["rates"]]):
        click.echo(line)
    click.echo()
    misfit, line = (", ".join(f"{k} {v:.1%}" for k, v in r[which].items()) for which in ("misfit", "line_misses"))
    say(f"misfit of group means: {misfit}; what the line through simulations misses: {line}")
    say(f"R-hat <= {r['rhat_max']:.4f}, effective sample size >= {r['ess_min']:.0f}, {r['divergences']} divergences")
    click.echo()
    rows = [
        (x["figure"], *(f"{1e3 * x[k]:.1f}" for k in ("measured_s", "simulated_s", "low_s", "high_s")),
         f"{x['simulated_s'] / x['measured_s'] - 1:+.1%}")
        for x in r["replayed"]
    ]  # fmt: skip
    click.echo(table(("replayed (ms)", "measured", "simulated", "5%", "95%", "error"), rows))


def _save(asked: Asked, log: Any, learnt: Any, priors: Any, settings: Any) -> Path:
    import hashlib

    import xarray as xr

    from calibrate.artifacts import write_posterior
    from calibrate.sampling import chosen
    from calibrate.steps.cells import KINDS
    from sim.posterior import STEP_TIME
    from sim.rates import UNITS

    if asked.out is None:
        raise UsageError("no file to write")
    sizes = learnt.idata.posterior.sizes
    shape = (sizes["chain"], sizes["draw"])
    e = log.experiment
    mark = hashlib.sha256()
    for column in (e.arrival_s, e.prompt_tokens, e.output_tokens, e.ttft_s, e.e2el_s, log.waited_s):
        mark.update(np.ascontiguousarray(column).tobytes())
    count = int(log.answered.sum())
    why = f"learnt from {count} requests of a served log"
    variables: dict[str, Any] = {n: (("chain", "draw"), np.asarray(getattr(learnt.rates, n), dtype=float).reshape(shape)) for n in UNITS}
    # the log shows no kinds of iterations: the misfit of its decode times stands for all
    sigma = np.repeat(learnt.misfit[:, 1:], len(KINDS), axis=1).reshape(*shape, len(KINDS))
    variables["sigma"] = (("chain", "draw", "kind"), sigma)
    variables["request_s"] = (("chain", "draw"), learnt.request_s.reshape(shape))
    return write_posterior(
        asked.out,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=_gpu_name(asked.gpu),
        summary=f"rates of {_gpu_name(asked.gpu)} as served, from {count} requests ({log.source})",
        basis={name: why if name in learnt.free else priors[name].basis for name in UNITS},
        data_fingerprint=mark.hexdigest(),
        diagnostics=learnt.diagnostics,
        settings=settings,
        sampler=chosen(settings.sampler),
        groups={"sample_stats": learnt.idata.sample_stats[["diverging"]].astype(np.int8)},
        engine=log.source,
        weight_dtype=asked.dtype,
        host_request_s=float(np.median(learnt.request_s)),
    )


def _gpu_name(name: str) -> str:
    from sim.specs.gpus import get_gpu

    return get_gpu(name).name
