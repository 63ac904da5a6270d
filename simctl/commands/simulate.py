"""`simctl simulate`: a workload through a simulated engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cluster.router import ROUTERS
from sim.engine.config import POLICIES
from sim.engine.versions import NEWEST
from sim.errors import UsageError
from sim.files import writable
from simctl import __version__
from simctl.options import (
    ATTENTION,
    GOAL,
    LENGTH,
    MODEL,
    PAIR,
    ROUTER,
    SHARE,
    Sectioned,
    deployment_of,
    deployment_options,
    limit_options,
    rate_options,
    workload_of,
    workload_options,
)
from simctl.text.layout import fill
from simctl.text.progress import progress

if TYPE_CHECKING:
    from sim import Deployment, HostRates, RateDraws, Run
    from sim.engine.config import EngineConfig
    from sim.specs.lora import Lora
    from sim.study.fleet_spec import Fleet
    from sim.study.run import Study
    from sim.study.simulate import Goal
    from sim.workload.trace import Trace
    from sim.workload.workload import Workload

MOST_BLOCKS = 2**24  # 268 million tokens in blocks of 16: beyond any node, and a block costs the simulator some 100 bytes
SATURATED = 0.05  # share of the requests waiting at the last arrival from which a backlog is worth a word
ARGUMENTS = "simctl.simulate.arguments"  # in the context: the command line
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
        ctx.meta[ARGUMENTS] = tuple(joined)
        return super().parse_args(ctx, joined)


LORA = {"rank": "max_lora_rank", "adapters": "max_loras", "share": "lora_share"}
SECTIONS = {
    "Workload from a trace": ("trace", "trace-format", "limit", "rate-scale", "spread-arrivals", "prefix-block", "time-unit",
        "chars-per-token", "assume-prefix", "trace-start", "trace-duration"),
    "Workload drawn": (
        "num-prompts", "agent-sessions", "resample", "request-rate", "burstiness", "rate-curve", "max-concurrency",
        "random-input-len", "random-output-len", "random-length-cv", "random-range-ratio", "random-prefix-len", "turns", "think-time",
        "agent-opening-len", "agent-edited-share",
    ),
    "Model and GPU": (
        "model", "gpu", "dtype", "kv-dtype", "tp", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel", "topology",
        "posterior",
    ),
    "Engine": (
        "engine", "engine-option", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "block-size", "max-model-len",
        "num-gpu-blocks", "enable-prefix-caching", "enable-chunked-prefill", "long-prefill-token-threshold", "scheduling-policy",
        "prefill-schedule-interval", "engine-version", "attention", "host-kv", "kv-offloading-size", "draft-model", "enforce-eager",
        "enable-lora", "max-lora-rank", "max-loras", "lora-share",
    ),
    "Server": ("served", "host-overhead", "host-rate"),
    "Fleet": ("fleet", "replicas", "router", "router-option", "skip-too-long", "max-queue", "token-bucket", "admit-ttft"),
    "Answer": ("goodput", "goal", "draws", "seed", "iterations", "out", "plot", "chrome-trace", "json"),
}  # fmt: skip


@click.command("simulate", cls=GoodputCommand, sections=SECTIONS)
@workload_options
@deployment_options
@limit_options
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
    "--attention", type=ATTENTION, default="dense", show_default=True, help="dense, sink-window, pages:K or blocks:K, as in what-if."
)
@click.option("--host-kv", type=float, metavar="GB", help="Keep KV in this much host RAM and fetch over the link what a decode reads.")
@click.option(
    "--kv-offloading-size", type=float, metavar="GIB", help="Keep evicted prefix blocks in this much host RAM of a replica, over its GPUs."
)
@click.option("--draft-model", type=MODEL, help="Catalogue model that proposes the drafts of --engine-option draft_tokens=K.")
@click.option("--enable-lora", is_flag=True, help="Serve LoRA adapters.")
@click.option("--max-lora-rank", type=click.IntRange(1, 512), metavar="N", help="Largest rank of an adapter. [default: 16]")
@click.option("--max-loras", type=click.IntRange(1, 4096), metavar="N", help="Adapters on the GPU. [default: 1]")
@click.option("--lora-share", type=SHARE, help="Share of the requests that use one. [default: 1]")
@click.option("--enforce-eager", is_flag=True, help="Capture no CUDA graphs.")
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens in a KV block.")
@click.option("--max-model-len", type=LENGTH, help="Longest prompt + output, or auto: the longest that fits. [default: the model's]")
@click.option("--num-gpu-blocks", type=click.IntRange(2, MOST_BLOCKS), help="KV blocks, instead of those predicted from memory.")
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=None,
    help="Reuse KV of equal prefixes. [default: on; off with recurrent state]",
)
@click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=True, help="Cut prompts at the token budget. [default: on]")
@click.option("--long-prefill-token-threshold", type=click.IntRange(0), default=0, show_default=True, help="Prefill share cap; 0: none.")
@click.option("--prefill-schedule-interval", type=click.IntRange(1), default=1, show_default=True, help="Prefill once in N iterations.")
@click.option("--engine-version", default=NEWEST, show_default=True, help="Of vllm: its decisions and defaults.")
@click.option(
    "--served/--in-process",
    default=True,
    show_default=True,
    help="Rates with the serving overhead of an engine that overlaps host work, or as stepped in process.",
)
@click.option("--host-overhead/--no-host-overhead", default=True, show_default=True, help="Add the API server's time, too.")
@click.option(
    "--host-rate",
    multiple=True,
    metavar="NAME=SECONDS",
    help="Set request_s, serial_s, prompt_token_s, response_s, token_s, or of an iteration iteration_s, sequence_s, prefill_s.",
)
@click.option(
    "--fleet",
    "fleet_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Pools of replicas, their network and what happens to them; for --gpu, --model, engine, --replicas and --router.",
)
@click.option("--replicas", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engines behind a router.")
@click.option(
    "--router",
    type=ROUTER,
    metavar="NAME",
    default="round-robin",
    show_default=True,
    help=f"How requests find a replica: {', '.join(ROUTERS)}, or a class's dotted path.",
)
@click.option("--router-option", multiple=True, metavar="NAME=VALUE", help="A setting of that router; may be repeated.")
@click.option("--skip-too-long", is_flag=True, help="Count requests beyond --max-model-len as errors; else the first is refused.")
@click.option("--max-queue", type=click.IntRange(1), help="Turn requests away while this many have no first token.")
@click.option("--token-bucket", type=PAIR, metavar="RATE:BURST", help="Turn away what exceeds these tokens per second and burst.")
@click.option("--admit-ttft", type=float, metavar="MS", help="Turn away requests whose predicted TTFT exceeds this.")
@click.option("--goodput", multiple=True, metavar="NAME:MS...", help="What a good request meets: ttft:200 tpot:50 e2el:5000.")
@click.option("--goal", type=GOAL, metavar="METRIC<=X", help="Also print the chance that this figure meets the bound: p99_ttft_ms<=2000.")
@click.option("--iterations/--no-iterations", default=True, show_default=True, help="Keep the iteration log (ITL, queue, KV, step time).")
@rate_options
@click.option("--draws", type=click.IntRange(0, 1000), help="Repeat at this many draws of the rates. [default: 20 if fast, else 0]")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write run.nc and summary.json here, both or none; links are followed."
)
@click.option("--chrome-trace", type=click.Path(), metavar="FILE", help="Write iterations and requests as a Chrome trace (Perfetto).")
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw queue, KV use, TTFT and step time over time (PNG, SVG or PDF).")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of the table.")
def command(**options: Any) -> None:
    """Serve a workload on simulated engine replicas.

    Continuous batching with chunked prefill under one token budget, paged KV blocks, prefix caching, preemption by
    recompute: vLLM's decisions, iteration by iteration, each with its own step time. Figures are named as in `vllm bench
    serve`: TPOT is (E2EL - TTFT) / (output tokens - 1); ITL is per gap, pooled over requests.

    \b
    Examples:
      simctl simulate --trace trace.csv --trace-format azure --gpu H100
      simctl simulate --gpu A10 --model Qwen2.5-7B --num-prompts 500 \\
          --request-rate 2 --goodput ttft:500 tpot:50 --out out/run1
    """
    from sim.files import replaced_directory
    from sim.results.run_files import RUN_FILE, SUMMARY_FILE, summary_json, write_run
    from sim.study.simulate import run_study

    out: Path | None = options["out"]
    chrome, plot = writable(options["chrome_trace"]), writable(options["plot"])
    staged = replaced_directory(out, (RUN_FILE, SUMMARY_FILE)) if out is not None else nullcontext(None)
    with staged as directory:
        study = study_of(options, starts=True)
        keep = options["iterations"] or chrome is not None or plot is not None
        with progress("simulating") as report:
            run = run_study(study, draws=options["draws"], keep_iterations=keep, on_progress=report)
            summary, goal = _summary(run, options, report)
        if directory is not None:
            write_run(directory, run.to_xarray(**_origin(options), options=_given()), summary)
        if chrome is not None:
            from sim.results.chrome_trace import write_chrome_trace

            write_chrome_trace(chrome, run.record)
        if plot is not None:
            from simctl.plots.figures import plot_run

            d = study.deployment
            plot_run(run.record, run.config.num_gpu_blocks - 1, f"{d.model.name} on {d.gpu.name}", plot)
    if options["as_json"]:
        click.echo(summary_json(summary))
        return
    _print(run)
    if goal:
        click.echo(_goal_line(goal))
    for path in ([out / RUN_FILE, out / SUMMARY_FILE] if out is not None else []) + [each for each in (chrome, plot) if each]:
        click.echo(f"wrote {path}", err=True)


# --fleet says it, too
next(option for option in command.params if option.name == "gpu").required = False


def json_answer(options: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    import json

    from sim.results.run_files import summary_json
    from sim.study.simulate import run_study

    with progress("simulating") as report:
        run = run_study(study_of(options), draws=options["draws"], keep_iterations=options["iterations"], on_progress=report)
        summary, _ = _summary(run, options, report)
    plain: dict[str, Any] = json.loads(summary_json(summary))
    return plain


def study_of(
    options: Mapping[str, Any], workload: Workload | None = None, known: dict[Any, Any] | None = None, starts: bool = False
) -> Study:
    """What the options ask to be simulated. Raises UsageError when they contradict each other.

    One engine `starts` as asked or not at all; of several that are compared, each takes the longest length that fits where none is given.
    Of many studies that differ in their deployments alone, `workload` is the one that there is already, and `known` keeps rates.
    """
    from dataclasses import replace

    from sim import NO_HOST, HostRates, load_rates
    from sim.rates.serving import as_served
    from sim.results.chance import STAGES
    from sim.results.metrics import parse_goodput
    from sim.study.deployment import cap_at_knee
    from sim.study.run import Study
    from sim.study.simulate import fleet_study

    if options["max_model_len"] is None and options["fleet_file"] is None and not starts:
        options = {**options, "max_model_len": "auto"}
    goodput = parse_goodput(options["goodput"])
    draws = max(STAGES[-1], options["draws"] or 0)

    def rates_of(deployment: Deployment) -> tuple[RateDraws, HostRates]:
        d, memo = deployment, {} if known is None else known
        engine = (d.limits.engine, d.limits.engine_version, d.limits.enforce_eager, d.limits.lora)
        key = (d.model.name, d.gpu.name, d.precision, d.tp, d.parallel, d.topology, *engine)
        if key not in memo:
            memo[key] = loaded(deployment)
        return memo[key]

    def loaded(deployment: Deployment) -> tuple[RateDraws, HostRates]:
        rates, host = load_rates(deployment, posterior=options["posterior"], draws=draws, seed=options["seed"]), HostRates()
        if options["served"]:
            rates, host = as_served(rates)
        host = host if options["host_overhead"] else replace(NO_HOST, work=host.work)
        return rates, _with_host_rates(host, options["host_rate"])

    if options["fleet_file"] is not None:
        fleet = _fleet(options)
        longest = max(pool.deployment.longest for pool in fleet.pools)
        return fleet_study(fleet, workload_of(options, longest), rates_of, goodput)
    if options["gpu"] is None:
        raise UsageError("on what? give --gpu NAME, or --fleet FILE")
    deployment = _deployment(options)
    workload = workload or workload_of(options, deployment.longest)
    rates, host = rates_of(deployment)
    if isinstance(options["max_num_seqs"], float):
        cap = cap_at_knee(workload.trace, deployment, rates.point, options["max_num_seqs"])
        deployment = replace(deployment, limits=replace(deployment.limits, max_num_seqs=cap))
    return Study(deployment, workload, rates, host, goodput)


def _deployment(options: Mapping[str, Any]) -> Deployment:
    """The deployment of the options, a batch cap at the knee left out: that needs the workload."""
    from sim import AdmissionLimits

    seqs, admit_ttft = options["max_num_seqs"], options["admit_ttft"]
    return deployment_of(
        options,
        **_attention(options),
        **_drafting(options),
        lora=_lora(options),
        max_num_seqs=None if isinstance(seqs, float) else seqs,
        replicas=options["replicas"],
        router=options["router"],
        router_options=_settings("--router-option", options["router_option"]),
        admission=AdmissionLimits(
            options["max_queue"], options["token_bucket"], None if admit_ttft is None else admit_ttft / 1e3, options["skip_too_long"]
        ),
    )


def _lora(options: Mapping[str, Any]) -> Lora | None:
    """The adapters of the options. UsageError for what needs --enable-lora."""
    from sim.specs.lora import Lora

    given = {name: options[option] for name, option in LORA.items() if options[option] is not None}
    if given and not options["enable_lora"]:
        raise UsageError(f"--{LORA[next(iter(given))].replace('_', '-')} needs --enable-lora")
    return Lora(**given) if options["enable_lora"] else None


# What a pool of a fleet file sets for itself
POOL_OPTIONS = [*SECTIONS["Model and GPU"], *SECTIONS["Engine"], "router"]


def _fleet(options: Mapping[str, Any]) -> Fleet:
    """The fleet of --fleet; what limits admission is the command's. UsageError for an option that belongs into the file."""
    from simctl.fleet_file import load_fleet
    from simctl.scenario import options_by_name

    unasked = command.make_context(command.name, []).params
    for name, option in options_by_name(command).items():
        if name in (*POOL_OPTIONS, "replicas", "router-option") and options[option.name] != unasked[option.name]:
            raise UsageError(f"--{name}: with --fleet, a pool of {options['fleet_file'].name} says that")
    ours = {name: options[name] for name in ("max_queue", "token_bucket", "admit_ttft", "skip_too_long")}
    return load_fleet(options["fleet_file"], command, lambda options: _pool_deployment({**options, **ours}), POOL_OPTIONS)


def _pool_deployment(options: Mapping[str, Any]) -> Deployment:
    if options["gpu"] is None:
        raise UsageError("needs gpu")
    if isinstance(options["max_num_seqs"], float):
        raise UsageError("max-num-seqs: knee:... is for a deployment alone")
    if options["posterior"] is not None:
        raise UsageError("posterior: a fleet takes the packaged rates")
    return _deployment({**options, "max_model_len": options["max_model_len"] or "auto"})


def _with_host_rates(host: HostRates, pairs: tuple[str, ...]) -> HostRates:
    """The host's rates with those that the user sets."""
    from dataclasses import fields, replace

    from sim.rates.serving import UNITS

    of_work = [field.name for field in fields(host.work)]
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in UNITS and name not in of_work:
            raise UsageError(f"--host-rate: no rate {name!r}; there are {', '.join([*UNITS, *of_work])}")
        try:
            seconds = float(value)
        except ValueError:
            raise UsageError(f"--host-rate needs NAME=SECONDS, got {pair!r}") from None
        source = host.source.after(f"{name} as given")
        if name in UNITS:
            host = replace(host, source=source, **{name: seconds})
        else:
            host = replace(host, source=source, work=replace(host.work, **{name: seconds}))
    return host


def _attention(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a decode reads and where KV lives, as fields of Limits."""
    from sim.specs.attention_policy import blocks, dense, pages, sink_window

    (kind, k), host = options["attention"], options["host_kv"]
    if host is not None and not 0.0 < host < 1e6:
        raise UsageError(f"--host-kv must be gigabytes above 0, got {host:g}")
    place: Any = "hbm" if host is None else "host"
    made = {"dense": dense, "sink-window": sink_window}.get(kind)
    policy = made(place) if made else {"pages": pages, "blocks": blocks}[kind](k, place)
    return {"attention": policy, "host_kv_bytes": 1e9 * (host or 0.0)}


def _drafting(options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own options, and the draft model that belongs to them, as fields of Limits."""
    from sim import get_model

    settings = _settings("--engine-option", options["engine_option"])
    if options["draft_model"] is None:
        return {"options": settings}
    if options["engine"] != "vllm" or not settings.get("draft_tokens"):
        raise UsageError("--draft-model needs --engine vllm and --engine-option draft_tokens=K")
    return {"options": {"drafter": "draft_model", **settings}, "draft": get_model(options["draft_model"])}


def _settings(option: str, pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE settings, values as YAML scalars (true, 512, 0.1)."""
    from sim.yaml_text import read_yaml

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            parsed = read_yaml(value, option)
        except UsageError:
            parsed = None
        if not (name and equals) or not isinstance(parsed, bool | int | float | str):
            raise UsageError(f"{option} needs NAME=VALUE with a number, true/false or a word, got {pair!r}")
        settings[name.replace("-", "_")] = parsed
    return settings


def _origin(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"simctl_version": __version__, "seed": options["seed"]}


def _given() -> str:
    """The options of the command line as they were given, as JSON: what simulates the same again. Null where a file is named: a run does
    not say where files lie.
    """
    import json

    from simctl.scenario import options_by_name

    arguments = click.get_current_context().meta.get(ARGUMENTS, ())
    given, _, _ = command.make_parser(click.Context(command)).parse_args(list(arguments))
    names = {option.name: name for name, option in options_by_name(command).items()}

    def kept(value: Any) -> Any:
        named = [part for part in (value, value.rpartition(":")[0]) if part] if isinstance(value, str) else []
        return None if any(Path(part).exists() for part in named) else value

    return json.dumps({names[key]: kept(value) for key, value in given.items() if key in names}, sort_keys=True)


def _summary(run: Run, options: Mapping[str, Any], on_progress: Callable[[int, int], None] | None) -> tuple[dict[str, Any], Goal | None]:
    goal = run.goal(*options["goal"], on_progress) if options["goal"] else None
    return run.to_dict(**_origin(options)) | ({"goal": goal.to_dict()} if goal else {}), goal


def _goal_line(goal: Goal) -> str:
    from sim.units import format_number

    met = f"{'met' if goal.value <= goal.limit else 'missed'} ({format_number(goal.value)})"
    return fill(f"goal {goal.metric} <= {format_number(goal.limit)}: {met}; chance {goal.chance} over rates and run noise", later="  ")


def _print(run: Run) -> None:
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
            f"{name}{d.model.name} on {several if more > 1 else ''}{d.gpus} x {d.gpu.name}{_spread(d)}, {d.precision.weights}, "
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


def _print_tenants(run: Run) -> None:
    from sim.results.metrics import tenant_figures

    click.echo(f"{'tenant':<20}{'requests':>10}{'completed':>11}{'mean TTFT':>13}{'P99 TTFT':>13}  (ms)")
    for name, figures in tenant_figures(run.record).items():
        row = f"{name or '(none)':<20.19}{figures['num_prompts']:>10}{figures['completed']:>11}"
        click.echo(f"{row}{figures['mean_ttft_ms']:>13.1f}{figures['p99_ttft_ms']:>13.1f}")


def _spread(d: Deployment) -> str:
    """How a replica's GPUs are used, where it is not by tensor parallelism alone."""
    p = d.parallel
    sizes = [f"{name} {size}" for name, size in (("TP", d.tp), ("PP", p.pp), ("DP", p.dp)) if size > 1]
    return f" ({' x '.join(sizes)}{', experts whole' if p.expert else ''})" if p.parts > 1 or p.expert else ""


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
