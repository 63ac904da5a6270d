"""Text of `simctl simulate`: the deployment, the benchmark's table, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from sim.closed_form.fidelity import risk_sentence
from sim.engine.config import EngineConfig
from sim.engine.versions import NEWEST
from sim.rates.assumed import assumed, with_older
from sim.rates.load import OUTSIDE, scope_notes
from sim.results.metrics import tenant_figures
from sim.results.power import power_words
from sim.results.slowest import burst_of
from sim.results.tables import benchmark_table
from sim.specs.context import OF_YARN
from sim.specs.precision import checkpoint_notes
from sim.study.deployment import default_batch_limits, kv_block_interval, refused_seqs
from sim.study.epochs import LONGEST_S, too_long
from sim.study.simulate import Goal
from sim.study.studied import PlannedPool, Study
from sim.units import format_bytes, format_number
from sim.workload.trace import Trace
from simctl.text.fleet_text import fleet_lines
from simctl.text.heading import dtype_words, grounds, model_title
from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim import Deployment, Run

WORDS = {"full": "whole contexts", "window": "windows", "chunk": "chunks", "state": "states"}
MANY = 2_000  # requests from which it shows which way a run was simulated
SLOW_TOKENS = 500_000  # output tokens of a run and its draws, from which machine code would be felt
SATURATED = 0.05  # share of the requests waiting at the last arrival from which a backlog is worth a word


def _goal_line(goal: Goal) -> str:
    over = "over rates, for a load that lasts" if goal.lasting else "over rates and run noise"
    met = f"{'met' if goal.value <= goal.limit else 'missed'} ({format_number(goal.value)})"
    return fill(f"goal {goal.metric} <= {format_number(goal.limit)}: {met}; chance {goal.chance} {over}", later="  ")


def _notes(pool: PlannedPool, study: Study, explain: bool) -> Iterator[str]:
    """What serves, and what its rates rest on."""
    deployment, rates = pool.spec.deployment, pool.rates
    yield _served(pool, bool(study.fleet), explain)
    yield from _engine_notes(deployment, pool.config, study.workload.trace)
    yield from assumed(deployment, rates)
    scope = scope_notes(deployment, rates)
    if explain:
        yield f"rates: {rates.summary}"
        yield f"host overhead: {pool.host.source.text()}"
    else:
        yield f"{grounds(deployment, rates)}{_version_taken(pool)}."
        scope = [note for note in scope if rates.source.measured or not note.startswith(OUTSIDE)]
        always = len(checkpoint_notes(deployment.model, deployment.precision))  # what was read, and what was not
        more = len(scope) - always - 1
        scope = scope[: always + 1] + ([f"{more} more notes on them by --explain"] if more > 0 else [])
    yield from (f"rates: {note}" for note in scope)


def _version_taken(pool: PlannedPool) -> str:
    """The version of vLLM that is answered where none was said, and what an older one would be."""
    d = pool.spec.deployment
    if (d.limits.engine, d.limits.engine_version) != ("vllm", NEWEST):
        return ""
    older = "" if d.limits.options.get("async_scheduling") is False else f". {with_older(d, pool.rates, pool.host.work)}"
    return f"; {NEWEST} is answered (--engine-version){older}"


def render(run: Run, explain: bool = False) -> None:
    """Print a run's table and its answer or, to `explain` it, all figures and what they rest on."""
    study, config = run.study, run.config
    for note in dict.fromkeys(note for pool in run.pools for note in _notes(pool, study, explain)):
        _say(note)
    if (explain or len(study.workload.trace) >= MANY) and (why := run.event_by_event):
        _say(f"simulated event by event, for {why}: slower, the same figures")
    if too_long(study.workload.trace) and not len(run.record.iterations["start_s"]):
        _say(f"arrivals over more than {LONGEST_S / 86_400.0:.0f} days: no iteration log, and so no ITL, queue, KV and step time")
    for note in study.workload.trace.notes:
        _say(f"trace: {note}")
    if (host := run.host_matters) is not None and not study.host.given:
        _say(_on_hosts(run, *host))
    click.echo(benchmark_table(run.summary, run.noise, run.rate_intervals or None, config.num_gpu_blocks - 1, explain))
    if run.record.tenants:
        _print_tenants(run)
    for line in fleet_lines(run.fleet_tables, run.summary["gpu_hours"]):
        click.echo(line)
    if explain and run.cost_shares:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in run.cost_shares.items() if share >= 5e-4)
        _say(f"step time by term: {shares}")
    if explain and (power := run.power):
        _say(f"{power_words(power)}")
    if explain and (cost := run.token_cost):
        _say(cost.text())
    if not run.rate_intervals:
        _say("rates held at their medians; --draws 20 adds what is not known about them")
    if run.reached:
        click.echo(_goal_line(run.reached))
    if burst := _burst(run):
        _say(burst)
    click.echo(fill(f"=> {_answer(run)}", later="   "))


def uncompiled(run: Run) -> str:
    """What would make such a run fast, where no machine code served it; empty where some did, or the run is short."""
    from sim.cluster import compiled

    runs = 1 + len(next(iter(run.draws.values()), ()))
    if runs * int(run.study.workload.trace.output_tokens.sum()) < SLOW_TOKENS or run.event_by_event:
        return ""
    if not compiled.available():
        return f"simulated without machine code, which is several times as fast: llvmlite is not there, or {compiled.OFF} is set"
    compiled.warm.cache_clear()  # it may have been made meanwhile
    if compiled.warm():
        return ""
    return "simulated without machine code: python -m sim.cluster.compile_fleet makes it once, and such runs are several times as fast"


def _burst(run: Run) -> str:
    """Which seconds the p99 of TTFT is from, where they are few."""
    found = burst_of(run.record)
    if found is None:
        return ""
    when = f"from {found.from_s:.3g} to {found.to_s:.3g} s" if found.from_s > 0 else f"in the first {found.to_s:.3g} s"
    if found.to_s == 0:
        when = "at once at the start"
    return (
        f"P99 TTFT is of the {found.requests} requests that came {when}; of the others it is {format_number(found.others_p99_ms)} ms, "
        "which is what a standing load sees"
    )


def _on_hosts(run: Run, figure: str, narrower: float) -> str:
    """The range over hosts, and what narrows it."""
    shown = (("mean_ttft_ms", "mean TTFT"), ("mean_tpot_ms", "mean TPOT"))
    ranges = [f"{name} {format_number(low)} to {format_number(high)} ms" for key, name in shown for low, high in [run.rate_intervals[key]]]
    what = "end-to-end times" if figure == "mean_e2el_ms" else "first tokens"
    return (
        f"host: not given, and {what} depend on it: {', '.join(ranges)}, from a fast host to a slow one. 20 s of your server "
        f"(simctl learn --host-out FILE, then --host FILE) make that about {narrower:.1f} times narrower, simctl measure --suite host less"
    )


def _served(pool: PlannedPool, named: bool, explain: bool) -> str:
    """The deployment: model, GPU and KV capacity."""
    d, most, config = pool.spec.deployment, pool.spec.most, pool.config
    several = f"{d.replicas} replicas of " if most == d.replicas else f"{d.replicas} to {most} replicas of "
    name = f"pool {pool.spec.name} ({pool.spec.role}): " if named else ""
    model, dtype = d.model.name if named else model_title(d.model.name), dtype_words(d.model, d.precision)
    text = f"{name}{model} on {several if most > 1 else ''}{d.placed}, {dtype}, "
    if not explain:
        return f"{text}KV for {_kv_tokens(d, config):,} tokens, max_num_seqs {config.max_num_seqs}"
    return (
        f"{text}{_pool(d, config)}, max_num_seqs {config.max_num_seqs}, "
        f"max_num_batched_tokens {config.max_num_batched_tokens}, gpu_memory_utilization {d.limits.memory_share:g}"
    )


def _kv_tokens(d: Deployment, config: EngineConfig) -> int:
    """Tokens that the KV pools hold: as the engine's start says them, where it cuts a pool into blocks of its own."""
    if d.limits.num_gpu_blocks is not None or not d.pages or len(d.layout.groups) == 1:
        return config.kv_capacity_tokens
    return d.parallel.dp * d.logged_tokens(config.max_model_len)


def _pool(d: Deployment, config: EngineConfig) -> str:
    """Blocks of the KV pool: in groups of layers, the engine's own and those that requests of this workload's length make of them."""
    if d.limits.num_gpu_blocks is not None or not d.pages or len(d.layout.groups) == 1:
        return f"{config.num_gpu_blocks} KV blocks of {config.block_size}"
    pool, groups = d.pool(), d.layout.groups
    kinds = Counter(WORDS[group.kind] for group in groups)
    several = " and ".join(f"{count} of {kind}" for kind, count in kinds.items())
    return (
        f"{pool.blocks} KV blocks for {len(groups)} groups of layers ({several}), here as {config.num_gpu_blocks} blocks of "
        f"{config.block_size} tokens"
    )


def _answer(run: Run) -> str:
    """Whether it keeps up, how much more it could take, and what binds."""
    summary, workload = run.summary, run.study.workload
    offered, behind = workload.trace.offered_rate_per_s, summary["waiting_at_last_arrival"]
    rate = f"{summary['request_throughput']:.3g} requests/s"
    if workload.max_concurrency or not offered:
        text = f"{workload.max_concurrency} clients get {rate}" if workload.max_concurrency else f"It serves {rate}"
    elif behind > SATURATED * summary["num_prompts"]:
        text = (
            f"Saturated at {rate} of {offered:.3g}: {behind} requests still waited when the last one arrived; latencies say how long the "
            "workload is"
        )
    elif run.outgrown:
        text = f"It keeps up with {offered:.3g} requests/s for {summary['num_prompts']} requests; for good, the queue grows without end"
    else:
        text = f"It keeps up with {offered:.3g} requests/s"
        text += f", at most {summary['max_waiting']} of which wait" if summary.get("max_waiting") else ""
        if (most := run.served_at_once_per_s) is not None and most > offered:
            text += f"; sent all at once, they would be served at {most:.3g}/s ({most / offered:.1f}x)"
    full = [f"{summary['preemptions']:,} preemptions for want of KV memory"] if summary.get("preemptions") else []
    if summary.get("max_running", 0) >= run.config.max_num_seqs:
        full.append(f"max_num_seqs {run.config.max_num_seqs} is reached")
    term = next(iter(run.cost_shares), None)
    full += [f"{term}: {100 * run.cost_shares[term]:.0f} % of the step time"] if term else []
    return f"{'. '.join([text, *(part[0].upper() + part[1:] for part in full)])}. More: --explain."


def _say(text: str) -> None:
    click.echo(fill(text, later="  "))


def _print_tenants(run: Run) -> None:
    click.echo(f"{'tenant':<20}{'requests':>10}{'completed':>11}{'mean TTFT':>13}{'P99 TTFT':>13}  (ms)")
    for name, figures in tenant_figures(run.record).items():
        row = f"{name or '(none)':<20.19}{figures['num_prompts']:>10}{figures['completed']:>11}"
        click.echo(f"{row}{figures['mean_ttft_ms']:>13.1f}{figures['p99_ttft_ms']:>13.1f}")


def _of_yarn(d: Deployment) -> str:
    """The flag without which vLLM refuses more of a YaRN file than the positions that it states."""
    stated = d.model.started is not None and d.model.started[1] == OF_YARN
    return f" --hf-overrides '{{\"max_position_embeddings\": {d.model.max_context}}}'" if stated else ""


def _engine_notes(d: Deployment, config: EngineConfig, trace: Trace) -> list[str]:
    """Notes on the engine and its attention beyond the limits."""
    notes = []
    if d.limits.engine == "vllm" and d.limits.max_model_len == "auto" and config.max_model_len < d.model.max_context:
        notes.append(
            f"max_model_len {config.max_model_len}: the KV pool holds no longer request; at the model's {d.model.max_context} vLLM would "
            f"not start, so start it with --max-model-len {config.max_model_len}, or auto"
        )
    if d.limits.max_model_len == "auto" and (started := d.started) is not None and started < config.max_model_len:
        asked = f"--max-model-len {config.max_model_len}{_of_yarn(d)}"
        notes.append(f"max_model_len {config.max_model_len}: vLLM {d.limits.engine_version} starts at {started} unless asked: {asked}")
    if config.scheduler != "vllm":
        notes.append(f"engine: scheduling decisions of {config.scheduler}")
    if d.tp > 1 and d.links.way(d.tp) == "host" and (span := kv_block_interval(d)):
        notes.append(
            f"KV pool: {span[0] * config.block_size} to {span[1] * config.block_size} tokens (90 %): cards without peer access keep memory "
            "of which nothing was measured"
        )
    if d.state_bytes:
        notes.append(f"recurrent state: {format_bytes(d.state_bytes)} a running request on each GPU, {config.max_num_seqs} slots")
    default = default_batch_limits(d.gpu, d.limits.engine)[0]
    if d.limits.max_num_seqs is None and (blocks := refused_seqs(d, default)) is not None:
        notes.append(
            f"vLLM {d.limits.engine_version} would not start with its default max_num_seqs {default}: there are {blocks} blocks for "
            f"states. Start it with --max-num-seqs {config.max_num_seqs}: no more have room at once"
        )
    if blocks := config.options.get("host_blocks"):
        notes.append(f"KV blocks kept in host RAM: {blocks}")
    attention = d.limits.attention
    if attention.kind != "dense" or attention.placement != "hbm":
        notes.append(f"attention: {attention.label}")
    if attention.selects:
        notes.append(risk_sentence(attention.k, int((trace.prompt_tokens + trace.output_tokens).max()), d.model.name))
    if d.limits.draft:
        notes.append(f"drafts: {config.options['draft_tokens']} tokens of {d.limits.draft.name}")
    return notes
