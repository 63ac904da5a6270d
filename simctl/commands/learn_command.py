"""`simctl learn`: rates learnt from the requests of a served log, "calibrate to my production"."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from sim.errors import SimctlError, UsageError
from sim.files import writable
from simctl.options import DURATION, GPU, MODEL, Sectioned
from simctl.text.calibrate_text import rate_table, say
from simctl.text.layout import table

if TYPE_CHECKING:
    from calibrate.logs.learn import Learnt
    from calibrate.logs.requests import Log
    from calibrate.served.runs import ServedRun

CHECK_DRAWS = 20
FIGURES = (("TTFT", "ttft_s", 50), ("TTFT", "ttft_s", 99), ("TPOT", "tpot_s", 50), ("TPOT", "tpot_s", 99), ("E2EL", "e2el_s", 50))
INTERVAL = (0.05, 0.5, 0.95)
MOST_MISFIT = 0.15  # of a median of the log that was learnt from
SECTIONS = {
    "What it was served by": ("gpu", "model", "dtype", "tp", "engine", "max-num-seqs", "max-num-batched-tokens"),
    "How to read it": ("experiment", "prefix-block", "max-concurrency", "assume-prefix", "timeout"),
    "Sampling": ("draws", "chains", "seed", "from-datasheet", "allow-unconverged"),
}


@click.command("learn", cls=Sectioned, sections=SECTIONS)
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--gpu", type=GPU, required=True, help="GPU it ran on.")
@click.option("--model", type=MODEL, help="The model it served: catalogue name or config.json.  [required but with --experiment]")
@click.option("--experiment", help="Which experiment, where LOG is a served measurement of ours (.nc).")
@click.option("--dtype", default="bf16", show_default=True, help="Weight dtype.")
@click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica.")
@click.option("--engine", default="vllm", show_default=True, help="The engine whose scheduler replays it.")
@click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]")
@click.option("--prefix-block", default=512, show_default=True, type=click.IntRange(1), help="Tokens that one of prefix_ids stands for.")
@click.option("--max-concurrency", type=click.IntRange(1), metavar="N", help="Requests the benchmark kept in flight. [default: as it says]")
@click.option("--assume-prefix", type=click.IntRange(0), default=0, metavar="N", help="Tokens all prompts began with, if unsaid.")
@click.option("--timeout", "timeout_s", type=DURATION, help="How long clients waited, where the log does not say; failures are censored.")
@click.option("--from-datasheet", is_flag=True, help="Start from the datasheet, not from the GPU's packaged posterior.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the posterior here (InferenceData netCDF).")
@click.option("--draws", default=600, show_default=True, type=click.IntRange(100), help="Draws per chain.")
@click.option("--chains", default=4, show_default=True, type=click.IntRange(2), help="Chains.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sampler and of the simulations.")
@click.option("--allow-unconverged", is_flag=True, help="Write the posterior even when a gate fails, marked as unconverged.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(log: Path, as_json: bool, **options: Any) -> None:
    """Learn the rates behind a served log, request by request, through the simulator.

    LOG is a benchmark's result, known by its content (see `simctl validate`), or a CSV with the columns
    arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s and optionally gave_up_s, seconds on one clock, and session or
    prefix_ids as in `simctl validate`. A served measurement of ours (.nc) is a log with --experiment.

    Exits 1, and writes nothing, when a gate of the sampler fails or the rates learnt do not reproduce their own log.

    \b
    Examples:
      simctl learn LOG.json --gpu h100 --model Llama-3.1-8B
      simctl learn LOG.csv --gpu l40s --model Qwen3-14B --out mine.nc
    """
    writable(options["out"])
    run(Asked(path=log, **options), as_json)


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
    max_concurrency: int | None
    assume_prefix: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    timeout_s: float | None
    out: Path | None
    draws: int
    chains: int
    seed: int
    from_datasheet: bool
    allow_unconverged: bool


def run(asked: Asked, as_json: bool) -> None:
    """Learn, print and write. Raises UsageError for a log that cannot be learnt from, UnconvergedError when a gate fails."""
    from calibrate.logs.learn import learn_rates, served_priors
    from calibrate.logs.log_posterior import save
    from calibrate.measured_files import resolved
    from calibrate.sampling import Settings
    from calibrate.served.time_units import check_times

    asked = replace(asked, path=resolved(asked.path))
    log, served = _measured(asked) if asked.path.suffix == ".nc" else _logged(asked)
    check_times(served)
    priors, basis = served_priors(served, asked.from_datasheet, log)
    settings = Settings(draws=asked.draws, chains=asked.chains, seed=asked.seed)
    learnt = learn_rates(served, log, priors, settings, progress=lambda what: click.echo(what, err=True))
    report = {"log": asked.path.name, "start": basis, **_report(log, learnt, priors), "replayed": _replayed(served, log, learnt)}
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        _show(report)
    if not asked.allow_unconverged:
        learnt.diagnostics.require()
        if missed := misfits(report["replayed"]):
            raise SimctlError(
                f"the rates learnt do not reproduce their own log: {', '.join(missed)} (bound {MOST_MISFIT:.0%}); nothing is written"
            )
    if asked.out is not None:
        path = save(asked.out, served, log, learnt, priors, settings)
        click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def misfits(replayed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Medians of the log that its own replay misses by more than MOST_MISFIT, with their errors."""
    errors = {row["figure"]: row["simulated_s"] / row["measured_s"] - 1 for row in replayed if row["figure"].startswith("p50 ")}
    return [f"{figure} {error:+.0%}" for figure, error in errors.items() if not abs(error) <= MOST_MISFIT]


def _logged(asked: Asked) -> tuple[Log, ServedRun]:
    """(log, deployment) of another tool's file and the options given."""
    from calibrate.logs.read import read_log
    from sim.study.deployment import Deployment

    if asked.model is None:
        raise UsageError(f"{asked.path.name}: a log needs --model")
    limits = {"max_num_seqs": asked.max_num_seqs, "max_num_batched_tokens": asked.max_num_batched_tokens}
    deployment = Deployment.of(asked.model, asked.gpu, dtype=asked.dtype, tp=asked.tp, engine=asked.engine, **limits)
    log = read_log(asked.path, asked.timeout_s, asked.prefix_block, asked.max_concurrency, asked.assume_prefix)
    return log, log.served_by(deployment, asked.path.name)


def _measured(asked: Asked) -> tuple[Log, ServedRun]:
    """(log, deployment) of one experiment of a served measurement of ours."""
    from calibrate.logs.requests import Log
    from calibrate.served.runs import read_served
    from sim.specs.gpus import get_gpu
    from sim.study.deployment import Deployment

    limits = {"max_num_seqs": asked.max_num_seqs, "max_num_batched_tokens": asked.max_num_batched_tokens}
    of = {"dtype": asked.dtype, "tp": asked.tp, "engine": asked.engine, **limits}
    run = read_served(asked.path, told=Deployment.of(asked.model, asked.gpu, **of) if asked.model else None)
    if run.gpu.name != get_gpu(asked.gpu).name:
        raise UsageError(f"{asked.path.name}: measured on {run.gpu.name}, not on {get_gpu(asked.gpu).name}")
    found = next((e for e in run.experiments if e.name == asked.experiment), None)
    if found is None:
        raise UsageError(f"{asked.path.name}: --experiment needs one of {', '.join(e.name for e in run.experiments)}")
    count = len(found.ttft_s)
    return Log(found, np.ones(count, dtype=bool), np.full(count, np.nan), f"{run.engine}, {found.name}"), run


def _replayed(served: ServedRun, log: Log, learnt: Learnt) -> list[dict[str, Any]]:
    """Figures of the log's answered requests, measured, and simulated with their interval over draws."""
    from calibrate.served.replay import replay
    from sim.cost.rates import RateDraws
    from sim.rates.serving import HostRates

    runs = []
    for d in np.linspace(0, len(learnt.request_s) - 1, CHECK_DRAWS).round().astype(int).tolist():
        rates = learnt.rates.at(d)
        runs.append(
            replay(
                served, log.experiment, RateDraws(rates, rates), HostRates(request_s=float(learnt.request_s[d]), text=log.experiment.text)
            )
        )
    rows = []
    for name, column, q in FIGURES:
        values = [float(np.nanpercentile(seen.guess(column)[log.answered], q)) for seen in runs]
        low, median, high = np.quantile(values, INTERVAL)
        measured = float(np.nanpercentile(getattr(log.experiment, column)[log.answered], q))
        rows.append({"figure": f"p{q} {name}", "measured_s": measured, "simulated_s": median, "low_s": low, "high_s": high})
    return rows


def _report(log: Log, learnt: Learnt, priors: Any) -> dict[str, Any]:
    from calibrate.logs.learn import HOST, METRICS
    from calibrate.steps.random_rates import value
    from sim.cost.rates import UNITS

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


def _show(r: dict[str, Any]) -> None:
    gave_up = f", {r['given_up']} given up (censored)" if r["given_up"] else ""
    say(f"{r['log']}: {r['source']}, {r['requests']} requests, {r['answered']} answered{gave_up}")
    say(f"  before them: {r['start']}", "    ")
    for note in r["notes"]:
        say(f"  note: {note}", "    ")
    lines = rate_table([(x["name"], x["unit"], x["prior"], x["posterior"]) for x in r["rates"]])
    click.echo("\n".join(("", *lines, "")))
    say(f"misfit of group means: {', '.join(f'{k} {v:.1%}' for k, v in r['misfit'].items())}")
    say(f"R-hat <= {r['rhat_max']:.4f}, effective sample size >= {r['ess_min']:.0f}, {r['divergences']} divergences")
    rows = [
        (x["figure"], *(f"{1e3 * x[k]:.1f}" for k in ("measured_s", "simulated_s", "low_s", "high_s")),
         f"{x['simulated_s'] / x['measured_s'] - 1:+.1%}")
        for x in r["replayed"]
    ]  # fmt: skip
    click.echo("\n" + table(("replayed (ms)", "measured", "simulated", "5%", "95%", "error"), rows))
