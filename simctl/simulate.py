"""`simctl simulate`: a workload through a simulated engine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from sim.engine.config import POLICIES
from sim.errors import UsageError
from sim.memory import DEFAULT_UTILIZATION
from sim.router import ROUTERS
from simctl import __version__
from simctl.options import Attention, BatchCap, Fraction, Pair, TokenCount, deployment_options, writable
from simctl.sections import Sectioned
from simctl.study import study_of
from simctl.workload_options import workload_options, workload_origin
from simctl.wrap import fill

MOST_BLOCKS = 2**24  # 268 million tokens in blocks of 16: beyond any node, and a block costs the simulator some 100 bytes
SATURATED = 0.05  # share of the requests waiting at the last arrival from which a backlog is worth a word
_GOAL = re.compile(r"\w+:[0-9.]+")


class GoodputCommand(Sectioned):
    """Takes `--goodput ttft:200 tpot:50` as vLLM's benchmark does: all the pairs that follow belong to the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        after = False
        for arg in args:
            if after and _GOAL.fullmatch(arg) and joined[-1] != "--goodput":
                joined[-1] += f" {arg}"
                continue
            after = arg == "--goodput" or (after and joined[-1] == "--goodput")
            joined.append(arg)
        return super().parse_args(ctx, joined)


SECTIONS = {
    "Workload from a trace": ("trace", "trace-format", "limit", "rate-scale", "spread-arrivals", "trace-start", "trace-duration"),
    "Workload drawn": (
        "num-prompts", "resample", "request-rate", "burstiness", "max-concurrency", "random-input-len", "random-output-len",
        "random-length-cv", "random-prefix-len", "turns", "think-time",
    ),
    "Model and GPU": ("model", "gpu", "dtype", "kv-dtype", "tp", "posterior"),
    "Engine": (
        "engine", "engine-option", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "block-size", "max-model-len",
        "num-gpu-blocks", "enable-prefix-caching", "enable-chunked-prefill", "long-prefill-token-threshold", "scheduling-policy",
        "attention", "host-kv", "draft-model",
    ),
    "Server": ("served-path", "host-overhead", "host-rate"),
    "Fleet": ("replicas", "router", "max-queue", "token-bucket", "admit-ttft"),
    "Answer": ("goodput", "goal", "draws", "seed", "iterations", "out", "plot", "chrome-trace", "json"),
}  # fmt: skip


@click.command("simulate", cls=GoodputCommand, sections=SECTIONS)
@workload_options
@deployment_options
@click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path.")
@click.option("--engine-option", multiple=True, metavar="NAME=VALUE", help="A setting of that engine; may be repeated.")
@click.option(
    "--scheduling-policy",
    "policy",
    type=click.Choice(POLICIES),
    default="fcfs",
    show_default=True,
    help="Order of waiting requests; priority: by the trace's priority, lower first.",
)
@click.option(
    "--attention", type=Attention(), default="dense", show_default=True, help="dense, sink-window, pages:K or blocks:K, as in what-if."
)
@click.option("--host-kv", type=float, metavar="GB", help="Keep KV in this much host RAM and fetch over the link what a decode reads.")
@click.option("--draft-model", help="Catalogue model that proposes the drafts of --engine-option draft_tokens=K.")
@click.option("--max-num-seqs", type=BatchCap(), help="Most requests running; knee:0.65 caps at that efficiency. [default: vLLM's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Token budget of an iteration. [default: vLLM's]")
@click.option(
    "--gpu-memory-utilization", type=Fraction(closed=True), default=DEFAULT_UTILIZATION, show_default=True, help="Share of memory to use."
)
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens in a KV block.")
@click.option("--max-model-len", type=TokenCount(), help="Longest prompt + output. [default: the model's]")
@click.option("--num-gpu-blocks", type=click.IntRange(2, MOST_BLOCKS), help="KV blocks, instead of those predicted from memory.")
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=None,
    help="Reuse KV of equal prefixes. [default: on; off with recurrent state]",
)
@click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=True, help="Cut prompts at the token budget. [default: on]")
@click.option("--long-prefill-token-threshold", type=click.IntRange(0), default=0, show_default=True, help="Prefill share cap; 0: none.")
@click.option(
    "--served-path/--in-process",
    default=True,
    show_default=True,
    help="Rates as a served engine shows them, or as the engine stepped in process does.",
)
@click.option("--host-overhead/--no-host-overhead", default=True, show_default=True, help="Charge the API server's time, too.")
@click.option(
    "--host-rate",
    multiple=True,
    metavar="NAME=SECONDS",
    help="Set request_s, serial_s, prompt_token_s, response_s, token_s, or of an iteration iteration_s, sequence_s, prefill_s.",
)
@click.option("--replicas", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engines behind a router.")
@click.option("--router", type=click.Choice(ROUTERS), default="round-robin", show_default=True, help="How requests find a replica.")
@click.option("--max-queue", type=click.IntRange(1), help="Turn requests away while this many have no first token.")
@click.option("--token-bucket", type=Pair(), metavar="RATE:BURST", help="Turn away what exceeds these tokens per second and burst.")
@click.option("--admit-ttft", type=float, metavar="MS", help="Turn away requests whose predicted TTFT exceeds this.")
@click.option("--goodput", multiple=True, metavar="NAME:MS...", help="What a good request meets: ttft:200 tpot:50 e2el:5000.")
@click.option("--goal", metavar="METRIC<=X", help="Also print the chance that this figure meets the bound: p99_ttft_ms<=2000.")
@click.option("--iterations/--no-iterations", default=True, show_default=True, help="Keep the iteration log (ITL, queue, KV, bill).")
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@click.option("--draws", type=click.IntRange(0, 1000), help="Repeat at this many draws of the rates. [default: 20 if fast, else 0]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all that is drawn: same seed, same bytes.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write run.nc and summary.json, whole or not at all.")
@click.option("--chrome-trace", type=click.Path(), metavar="FILE", help="Write iterations and requests as a Chrome trace (Perfetto).")
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw queue, KV use, TTFT and bill over time (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of the table.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Serve a workload on simulated engine replicas.

    Continuous batching with chunked prefill under one token budget, paged KV blocks, prefix caching, preemption by
    recompute: vLLM's decisions, iteration by iteration, each priced by the bill. Figures are named as in `vllm bench
    serve`: TPOT is (E2EL - TTFT) / (output tokens - 1); ITL is per gap, pooled over requests.

    \b
    Examples:
      simctl simulate --trace trace.csv --trace-format azure --gpu H100
      simctl simulate --gpu A10 --model Qwen2.5-7B --num-prompts 500 \\
          --request-rate 2 --goodput ttft:500 tpot:50 --out out/run1
    """
    from sim.outdir import replaced_directory
    from sim.results import RUN_FILE, SUMMARY_FILE, summary_json, write_run
    from sim.serve import REPEATS, provenance, run_study

    out: Path | None = options["out"]
    chrome, plot = writable(options["chrome_trace"]), writable(options["plot"])
    staged = replaced_directory(out, (RUN_FILE, SUMMARY_FILE)) if out is not None else nullcontext(None)
    with staged as directory:
        study = study_of(ctx, options)
        keep = options["iterations"] or chrome is not None or plot is not None
        with _progress() as report:
            result = run_study(study, draws=options["draws"], keep_iterations=keep, on_progress=report)
        origin = {"simctl_version": __version__, "seed": options["seed"], **workload_origin(options), **provenance(study, result.config)}
        summary = {
            **result.summary,
            "run_noise_90": result.noise,
            "run_noise_basis": f"{REPEATS} repeats with other seeds" if result.repeats else "blocks of this run",
            "rates_90": result.rate_intervals,
            "bill_share": result.bill,
            "provenance": origin,
        }
        if options["goal"]:
            summary["goal"] = _goal(result, options["goal"])
        if directory is not None:
            write_run(directory, result.record, summary, origin, result.draws, result.repeats)
        if chrome is not None:
            from sim.chrometrace import write_chrome_trace

            write_chrome_trace(chrome, result.record)
        if plot is not None:
            from simctl.run_plots import plot_run

            plot_run(result.record, result.config.num_gpu_blocks - 1, f"{study.model.name} on {study.gpu.name}", plot)
    if options["as_json"]:
        click.echo(summary_json(summary))
        return
    _print(study, result)
    if options["goal"]:
        click.echo(_goal_line(summary["goal"]))
    for path in ([out / RUN_FILE, out / SUMMARY_FILE] if out is not None else []) + [each for each in (chrome, plot) if each]:
        click.echo(f"wrote {path}", err=True)


def _goal(result: Any, text: str) -> dict[str, Any]:
    from sim.intervals import chance_within
    from simctl.goal import read_goal

    name, limit = read_goal(text)
    if name not in result.summary:
        raise UsageError(f"--goal: no figure {name!r}; there are {', '.join(sorted(result.summary))}")
    value = float(result.summary[name])
    chance = chance_within(limit, value, result.draws.get(name, ()), result.repeats.get(name, ()), result.noise.get(name))
    return {"metric": name, "limit": limit, "value": value, "met": value <= limit, "chance": chance}


def _goal_line(goal: dict[str, Any]) -> str:
    chance = "no draws, no repeats: no chance" if goal["chance"] is None else f"chance {goal['chance']:.2f} over rates and run noise"
    return f"goal {goal['metric']} <= {goal['limit']:g}: {'met' if goal['met'] else 'missed'} ({goal['value']:.4g}); {chance}"


def _print(study: Any, result: Any) -> None:
    from sim.rate_source import tensor_parallel_notes
    from sim.report_table import benchmark_table

    def say(text: str) -> None:
        click.echo(fill(text, later="  "))

    config, each = result.config, f"{study.replicas} replicas of " if study.replicas > 1 else ""
    say(
        f"{study.model.name} on {each}{study.tp} x {study.gpu.name}, {study.precision.weights}, {config.num_gpu_blocks} KV blocks of "
        f"{config.block_size}, max_num_seqs {config.max_num_seqs}, max_num_batched_tokens {config.max_num_batched_tokens}"
    )
    for note in _engine_notes(study, config):
        say(note)
    attention = study.limits.attention
    if attention.kind != "dense" or attention.placement != "hbm":
        say(f"attention: {attention.label}")
        if attention.selects:
            from sim.fidelity import risk_sentence

            longest = int((study.trace.prompt_tokens + study.trace.output_tokens).max())
            say(risk_sentence(attention.k, longest, study.model.name))
    if study.limits.draft:
        say(f"drafts: {config.options['draft_tokens']} tokens of {study.limits.draft.name}")
    say(f"rates: {study.rates.summary}")
    say(f"host overhead: {study.host.basis}")
    for note in tensor_parallel_notes(study.tp, study.rates.basis):
        say(f"rates: {note}")
    for note in study.trace.notes:
        say(f"trace: {note}")
    click.echo(benchmark_table(result.summary, result.noise, result.rate_intervals or None, config.num_gpu_blocks - 1))
    if result.bill:
        shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.bill.items() if share >= 5e-4)
        say(f"bill over busy time: {shares}")
    behind = result.summary["waiting_at_last_arrival"]
    if study.trace.offered_rate_per_s and behind > SATURATED * result.summary["num_prompts"]:
        say(f"saturated: {behind} requests still waited when the last one arrived; latencies say how long the workload is")
    if not result.rate_intervals:
        say("rates held at their medians; --draws 20 adds what is not known about them")


def _engine_notes(study: Any, config: Any) -> list[str]:
    """What the limits above do not say of the engine."""
    from sim.bill import DENSE
    from sim.memory import sequence_bytes
    from sim.units import format_bytes

    notes = []
    if config.scheduler != "vllm":
        notes.append(f"engine: the decisions of {config.scheduler}; what they cost is told by the rates below, whichever engine gave them")
    state = sequence_bytes(study.model, 0, study.precision, DENSE, study.tp)[0]
    if state:
        notes.append(f"recurrent state: {format_bytes(state)} a running request on each GPU, {config.max_num_seqs} slots")
    tiers = [
        f"{config.options[name]} on {where}"
        for name, where in (("host_blocks", "host RAM"), ("disk_blocks", "disk"))
        if config.options.get(name)
    ]
    if tiers:
        notes.append(f"KV blocks kept beyond HBM: {', '.join(tiers).replace('on host', 'in host')}")
    return notes


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr when somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
