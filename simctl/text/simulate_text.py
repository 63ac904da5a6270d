"""What `simctl simulate` prints: what was run, the benchmark's table, and what it says beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim import Deployment, Run
    from sim.engine.config import EngineConfig
    from sim.study.simulate import Goal
    from sim.workload.trace import Trace

SATURATED = 0.05  # share of the requests waiting at the last arrival from which a backlog is worth a word


def _goal_line(goal: Goal) -> str:
    from sim.units import format_number

    met = f"{'met' if goal.value <= goal.limit else 'missed'} ({format_number(goal.value)})"
    return fill(f"goal {goal.metric} <= {format_number(goal.limit)}: {met}; chance {goal.chance} over rates and run noise", later="  ")


def render(run: Run) -> None:
    """Print a run's table, what it was run on, and its goal."""
    from sim.rates.load import scope_notes
    from sim.results.tables import benchmark_table
    from simctl.text.fleet_text import fleet_lines

    def say(text: str) -> None:
        click.echo(fill(text, later="  "))

    study, config = run.study, run.config
    for pool in run.pools:
        d, more = pool.spec.deployment, pool.spec.most
        several = f"{d.replicas} replicas of " if more == d.replicas else f"{d.replicas} to {more} replicas of "
        name = f"pool {pool.spec.name} ({pool.spec.role}): " if study.fleet else ""
        say(
            f"{name}{d.model.name} on {several if more > 1 else ''}{d.placed}, {d.precision.weights}, "
            f"{pool.config.num_gpu_blocks} KV blocks of {pool.config.block_size}, max_num_seqs {pool.config.max_num_seqs}, "
            f"max_num_batched_tokens {pool.config.max_num_batched_tokens}, gpu_memory_utilization {d.limits.memory_share:g}"
        )
    told: set[str] = set()
    for pool in run.pools:
        notes = [
            *_engine_notes(pool.spec.deployment, pool.config, study.workload.trace),
            f"rates: {pool.rates.summary}",
            f"host overhead: {pool.host.source.text()}",
            *(f"rates: {note}" for note in scope_notes(pool.spec.deployment, pool.rates)),
        ]
        for note in notes:
            if note not in told:
                say(note)
        told.update(notes)
    for note in study.workload.trace.notes:
        say(f"trace: {note}")
    click.echo(benchmark_table(run.summary, run.noise, run.rate_intervals or None, config.num_gpu_blocks - 1))
    if run.record.tenants:
        _print_tenants(run)
    for line in fleet_lines(run.fleet_tables, run.summary["gpu_hours"]):
        click.echo(line)
    if run.cost_shares:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in run.cost_shares.items() if share >= 5e-4)
        say(f"step time by term: {shares}")
    behind = run.summary["waiting_at_last_arrival"]
    if study.workload.trace.offered_rate_per_s and behind > SATURATED * run.summary["num_prompts"]:
        say(f"saturated: {behind} requests still waited when the last one arrived; latencies say how long the workload is")
    if not run.rate_intervals:
        say("rates held at their medians; --draws 20 adds what is not known about them")
    if run.reached:
        click.echo(_goal_line(run.reached))


def _print_tenants(run: Run) -> None:
    from sim.results.metrics import tenant_figures

    click.echo(f"{'tenant':<20}{'requests':>10}{'completed':>11}{'mean TTFT':>13}{'P99 TTFT':>13}  (ms)")
    for name, figures in tenant_figures(run.record).items():
        row = f"{name or '(none)':<20.19}{figures['num_prompts']:>10}{figures['completed']:>11}"
        click.echo(f"{row}{figures['mean_ttft_ms']:>13.1f}{figures['p99_ttft_ms']:>13.1f}")


def _engine_notes(d: Deployment, config: EngineConfig, trace: Trace) -> list[str]:
    """What the limits do not say of the engine and its attention."""
    from sim.study.deployment import kv_block_interval
    from sim.units import format_bytes

    notes = []
    if config.scheduler != "vllm":
        notes.append(f"engine: scheduling decisions of {config.scheduler}; step times from the rates below, whichever engine gave them")
    if d.tp > 1 and d.links.way(d.tp) == "host" and (span := kv_block_interval(d)):
        notes.append(
            f"KV pool: {span[0] * config.block_size} to {span[1] * config.block_size} tokens (90 %): cards without peer access keep memory "
            "of which nothing was measured"
        )
    if d.state_bytes:
        notes.append(f"recurrent state: {format_bytes(d.state_bytes)} a running request on each GPU, {config.max_num_seqs} slots")
    places = (("host_blocks", "in host RAM"), ("disk_blocks", "on disk"))
    if tiers := [f"{config.options[name]} {where}" for name, where in places if config.options.get(name)]:
        notes.append(f"KV blocks kept beyond HBM: {', '.join(tiers)}")
    attention = d.limits.attention
    if attention.kind != "dense" or attention.placement != "hbm":
        notes.append(f"attention: {attention.label}")
    if attention.selects:
        from sim.closed_form.fidelity import risk_sentence

        notes.append(risk_sentence(attention.k, int((trace.prompt_tokens + trace.output_tokens).max()), d.model.name))
    if d.limits.draft:
        notes.append(f"drafts: {config.options['draft_tokens']} tokens of {d.limits.draft.name}")
    return notes
