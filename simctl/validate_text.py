"""What `simctl validate` prints of one run: how it was predicted, every score, and what no prediction could score better."""

from __future__ import annotations

from typing import Any

import click

from simctl.iterations_text import lines as iteration_lines
from simctl.wrap import fill, wrapped

LABEL = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "p99_ttft_s": "p99 TTFT"}
NO_BETTER = (
    "floor: what a prediction of the middle of all sendings would miss where the same requests were sent again; ~ what, by simulation, a "
    "perfect model misses that does not know how much of the iteration in flight is left when a request comes (phase) nor, where the low "
    "load shows it, by how much prefill scatters. Where clients wait for their answers it is chance, too, who is in time for an iteration: "
    "only sending again shows by how much."
)
BOUND_BELOW_FLOOR = "* MISS, floor above: the same requests, sent again, lie so far apart that who knew their middle would miss, too."


def render(report: dict[str, Any]) -> None:
    """Print a report, no line wider than a terminal."""
    run, path = report["run"], report["path"]
    click.echo(click.style(fill(f"{run.name}: {run.model.name} on {run.gpu.name}, {run.engine}"), bold=True))
    lines = [
        f"Rates: {path.rates.summary}.",
        (f"Learnt from {len(path.learnt_on)} experiments ({', '.join(path.learnt_on)})" if path.learnt_on else "Carried over as it is")
        + f": c0 {1e3 * path.rates.point.c0_s:.2f} ms "
        f"as served, {100 * path.shown:.0f} % of the per-sequence and {100 * path.shown_prefill:.0f} % of the per-prefill host cost show, "
        f"launching takes {path.launch.factor:.2f} times what it does in process, "
        + _boost(path.host.boost)
        + f"API server {1e3 * (path.host.request_s + path.host.serial_s):.1f} ms a request, {1e3 * path.host.serial_s:.1f} ms of it its "
        f"own time, shared by requests that come together, and {1e6 * path.host.token_s:.0f} us a token sent. "
        f"Noise of single requests (log sd): "
        + ", ".join(f"{LABEL[m]} {100 * v:.1f} %" for m, v in path.noise.items())
        + (f", {', '.join(f'{100 * v:.1f}' for v in path.beyond.values())} of it beyond iterations' scatter" if path.scatter else "")
        + (f"; what a run's requests have in common {100 * path.run_noise:.1f} %" if path.run_noise else "")
        + ".",
    ]
    lines.append(_blocks(run))
    lines += [f"Note of the measurement: {note}." for note in run.notes]
    for line in lines:
        click.echo(fill(line))
    for line in (*_scores(report), *_floors(report), *(iteration_lines(report["iterations"]) if report["iterations"] else ())):
        click.echo(line)
    said = [(e.name, *_cached(e, predicted)) for e, predicted in report["pairs"] if e.cached_tokens is not None]
    if said:
        each = ", ".join(f"{same} of {of} ({name})" for name, same, of in said)
        click.echo(fill(f"cached tokens equal, of the requests where the engine said: {each}"))
    click.echo()


def _boost(boost: Any) -> str:
    if not boost.share:
        return ""
    return f"the first {boost.budget_s:.2f} s of products on a rested GPU are computed {100 * boost.share:.1f} % faster, "


def _scores(report: dict[str, Any]) -> list[str]:
    """The table of scores, and the coverage of all together."""
    least = _least(report)
    lines = ["", f"{'experiment':<21}{'metric':<8}{'n':>5}{'median':>7}{'floor':>7}{'p90':>7}{'bias':>8}{'in 90%':>7}  bound"]
    for s in report["scores"]:
        inside = f"{100 * s.coverage:.0f}%" if s.coverage == s.coverage else "-"
        floor, sure = least(s.experiment, s.metric)
        shown = "" if floor is None else f"{'' if sure else '~'}{_percent(floor)}"
        lines.append(
            f"{s.experiment[:20]:<21}{LABEL[s.metric]:<8}{s.requests:>5}{_percent(s.median_abs):>7}{shown:>7}"
            f"{_percent(s.p90_abs):>7}{100 * s.bias:>+7.1f}%{inside:>7}  {100 * s.bound:.0f}%{'' if s.within else ' MISS'}"
            f"{'*' if above_floor(report, s) else ''}"
        )
    if any(above_floor(report, s) for s in report["scores"]):
        lines += wrapped(BOUND_BELOW_FLOOR)
    return [*lines, f"in their 90 %, all experiments: {_shares(coverage([report]))}"]


def above_floor(report: dict[str, Any], score: Any) -> bool:
    """Whether a score misses its bound where what the same requests, sent again, differ by lets nobody expect to hold it."""
    floor, sure = _least(report)(score.experiment, score.metric)
    return not score.within and sure and floor is not None and floor > score.bound


def coverage(reports: list[dict[str, Any]]) -> dict[str, float]:
    """The share of all requests of these runs inside their 90 % interval, by metric."""
    every = [s for report in reports for s in report["scores"] if s.coverage == s.coverage]
    by_metric = {metric: [s for s in every if s.metric == metric] for metric in LABEL}
    return {m: sum(s.coverage * s.requests for s in own) / sum(s.requests for s in own) for m, own in by_metric.items() if own}


def together(reports: list[dict[str, Any]]) -> str:
    """The coverage of several runs, one by one and counted together: a run's requests have errors in common, so runs differ."""
    lines = [f"in their 90 %: {_shares(coverage([r]))}: {r['run'].name} on {r['run'].gpu.name}" for r in reports]
    return "\n".join([*lines, f"in their 90 %: {_shares(coverage(reports))}: all {len(reports)} runs"])


def _shares(covered: dict[str, float]) -> str:
    return ", ".join(f"{100 * v:.0f} % ({LABEL[m]})" for m, v in covered.items())


def _least(report: dict[str, Any]) -> Any:
    """What an experiment's error of a metric could least be, and whether that was measured: by its repeats, else, of an open loop, by
    simulation. None where nobody knows.
    """
    from calibrate.served.repeats import load_of

    measured = {r.experiment: r.floor for r in report["repeats"]}
    alone = {experiment.name for experiment, _ in report["pairs"] if experiment.kind == "open"}
    simulated = {f.experiment: {"ttft_s": f.phase} | f.scattered for f in report["floors"] if f.experiment in alone}

    def least(experiment: str, metric: str) -> tuple[float | None, bool]:
        for name in (experiment, load_of(experiment)):
            if name in measured:
                return measured[name][metric], True
            if metric in simulated.get(name, {}):
                return simulated[name][metric], False
        return None, False

    return least


def _floors(report: dict[str, Any]) -> list[str]:
    """What no prediction could do better, by experiment: a perfect model by simulation, and how far the same requests sent again differ."""
    repeated = {r.experiment: r for r in report["repeats"]}
    if not report["floors"] and not repeated:
        return []
    head = f"{'':<21}{'phase':>6}{'phase and scatter':>20}  {'sent again, they differ by':>29}"
    lines = ["", *wrapped(NO_BETTER), head]
    lines.append(f"{'experiment':<21}{'TTFT':>6}{'TTFT':>8}{'TPOT':>6}{'E2EL':>6}{'times':>7}{'TTFT':>6}{'TPOT':>6}{'E2EL':>6}{'p99':>6}")
    simulated = {f.experiment: f for f in report["floors"]}
    for name in dict.fromkeys((*repeated, *simulated)):
        floor, repeat = simulated.get(name), repeated.get(name)
        scattered = floor.scattered if floor else {}
        cells = [f"{_percent(floor.phase) if floor else '-':>6}", *(f"{_percent(scattered.get(m)):>{w}}" for m, w in _widths(8, 3))]
        cells.append(f"{repeat.sent if repeat else '-':>7}")
        cells += [f"{_percent(repeat.apart.get(m) if repeat else None):>{w}}" for m, w in _widths(6, 4)]
        lines.append(f"{name[:20]:<21}{''.join(cells)}")
    return [*lines, ""]


def _widths(first: int, count: int) -> list[tuple[str, int]]:
    return [(metric, first if i == 0 else 6) for i, metric in enumerate(LABEL) if i < count]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _cached(experiment: Any, predicted: Any) -> tuple[int, int]:
    """(requests predicted to the token, requests) of those where the engine said how much it had cached."""
    said = experiment.cached_tokens == experiment.cached_tokens
    return int((predicted.cached_tokens[said] == experiment.cached_tokens[said]).sum()), int(said.sum())


def _blocks(run: Any) -> str:
    from sim.deployment import kv_block_interval, plan_engine

    config, _ = plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)
    span = kv_block_interval(run.model, run.gpu, run.precision, run.tp, run.limits)
    told = f"predicted from memory, 90 % interval {span[0]} - {span[1]}" if span else "as given"
    return f"KV blocks: {config.num_gpu_blocks}, {told}."


def as_dict(report: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    from sim.deployment import kv_block_interval, plan_engine

    run, path = report["run"], report["path"]
    return {
        "num_gpu_blocks": plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)[0].num_gpu_blocks,
        "num_gpu_blocks_90": kv_block_interval(run.model, run.gpu, run.precision, run.tp, run.limits),
        "run": run.name,
        "gpu": run.gpu.name,
        "model": run.model.name,
        "engine": run.engine,
        "rates": path.rates.summary,
        "learnt_on": list(path.learnt_on),
        "iterations": report["iterations"],
        "c0_s": path.rates.point.c0_s,
        "host_request_s": path.host.request_s,
        "host_serial_s": path.host.serial_s,
        "host_serial_log_sd": path.serial_sd,
        "host_token_s": path.host.token_s,
        "shown": path.shown,
        "shown_prefill": path.shown_prefill,
        "launch_factor": path.launch.factor,
        "launch_log_sd": path.launch.sd,
        "launch_waits_s": report["launches"],
        "boost": asdict(path.host.boost),
        "noise_log_sd": path.noise,
        "noise_beyond_scatter_log_sd": path.beyond,
        "run_noise_log_sd": path.run_noise,
        "floors": [asdict(f) for f in report["floors"]],
        "notes": list(run.notes),
        "cached_tokens": [
            {"experiment": e.name, "equal": same, "of": of}
            for e, predicted in report["pairs"]
            if e.cached_tokens is not None
            for same, of in [_cached(e, predicted)]
        ],
        "repeats": [asdict(r) | {"floor": r.floor} for r in report["repeats"]],
        "scores": [
            asdict(s)
            | {"within": s.within, "floor_above": above_floor(report, s), "coverage": None if s.coverage != s.coverage else s.coverage}
            for s in report["scores"]
        ],
    }
