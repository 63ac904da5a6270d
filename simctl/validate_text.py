"""What `simctl validate` prints of one run: how it was predicted, every score, and what no prediction could score better."""

from __future__ import annotations

from typing import Any

import click

LABEL = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "p99_ttft_s": "p99 TTFT"}


def render(report: dict[str, Any]) -> None:
    import textwrap

    run, path = report["run"], report["path"]
    click.echo(click.style(f"{run.name}: {run.model.name} on {run.gpu.name}, {run.engine}", bold=True))
    lines = [
        f"Rates: {path.rates.summary}.",
        (f"Learnt from {len(path.learnt_on)} experiments ({', '.join(path.learnt_on)})" if path.learnt_on else "Carried over as it is")
        + f": c0 {1e3 * path.rates.point.c0_s:.2f} ms "
        f"as served, {100 * path.shown:.0f} % of the per-sequence and {100 * path.shown_prefill:.0f} % of the per-prefill host cost show, "
        f"launching takes {path.launch.factor:.2f} times what it does in process, "
        f"API server {1e3 * (path.host.request_s + path.host.serial_s):.1f} ms a request, {1e3 * path.host.serial_s:.1f} ms of it its own "
        f"time, shared by requests that come together, and {1e6 * path.host.token_s:.0f} us a token sent. "
        f"Noise of single requests (log sd): "
        + ", ".join(f"{LABEL[m]} {100 * v:.1f} %" for m, v in path.noise.items())
        + (f"; what a run's requests have in common {100 * path.run_noise:.1f} %" if path.run_noise else "")
        + ".",
    ]
    lines.append(_blocks(run))
    lines += [f"Note of the measurement: {note}." for note in run.notes]
    for line in lines:
        click.echo("\n".join(textwrap.wrap(line, 80)))
    click.echo(f"\n{'experiment':<18}{'metric':<10}{'n':>5}{'median':>9}{'p90':>9}{'bias':>9}{'in 90 %':>9}{'bound':>10}")
    for s in report["scores"]:
        inside = f"{100 * s.coverage:.0f} %" if s.coverage == s.coverage else "-"
        verdict = f"{100 * s.bound:.0f} %" + ("" if s.within else " MISS")
        click.echo(
            f"{s.experiment[:17]:<18}{LABEL[s.metric]:<10}{s.requests:>5}{100 * s.median_abs:>8.1f}%{100 * s.p90_abs:>8.1f}%"
            f"{100 * s.bias:>+8.1f}%{inside:>9}{verdict:>10}".rstrip()
        )
    pooled = {metric: [s for s in report["scores"] if s.metric == metric and s.coverage == s.coverage] for metric in LABEL}
    together = {m: sum(s.coverage * s.requests for s in own) / sum(s.requests for s in own) for m, own in pooled.items() if own}
    click.echo("all experiments: " + ", ".join(f"{100 * v:.0f} % ({LABEL[m]})" for m, v in together.items()) + " of requests in their 90 %")
    for floor in report["floors"]:
        text = f"TTFT error of a perfect model with unknown iteration phase {100 * floor.phase:.1f} %"
        if floor.scattered:
            text += "; and with prefill that scatters as at low load " + _by_metric(floor.scattered)
        click.echo(f"{floor.experiment}: {text} (median)")
    for repeat in report["repeats"]:
        apart = _by_metric(repeat.apart)
        missed = ", ".join(f"{100 * value:.1f}" for value in repeat.floor.values())
        click.echo(f"{repeat.experiment}: sent again, the same requests differ by {apart}; a prediction of their middle misses {missed} %")
    for experiment, predicted in report["pairs"]:
        if experiment.cached_tokens is not None:
            said = experiment.cached_tokens == experiment.cached_tokens
            same = int((predicted.cached_tokens[said] == experiment.cached_tokens[said]).sum())
            click.echo(f"{experiment.name}: cached tokens equal in {same} of {int(said.sum())} requests where the engine said")
    click.echo()


def _by_metric(errors: dict[str, float]) -> str:
    return ", ".join(f"{100 * value:.1f} % ({LABEL[metric]})" for metric, value in errors.items())


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
        "noise_log_sd": path.noise,
        "run_noise_log_sd": path.run_noise,
        "floors": [asdict(f) for f in report["floors"]],
        "repeats": [asdict(r) | {"floor": r.floor} for r in report["repeats"]],
        "scores": [
            asdict(s) | {"within": s.within, "coverage": None if s.coverage != s.coverage else s.coverage} for s in report["scores"]
        ],
    }
