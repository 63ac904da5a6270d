"""`simctl simulate`: replay a workload through a simulated engine."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.workload.formats import FORMATS
from simctl import __version__
from simctl.options import Fraction, TokenCount, deployment_options

SATURATED = 1.05  # requests sent per request served from which a backlog is worth a word
_GOAL = re.compile(r"\w+:[0-9.]+")


class GoodputCommand(click.Command):
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


@click.command("simulate", cls=GoodputCommand)
@click.option("--trace", type=click.Path(exists=True, dir_okay=True, path_type=Path), required=True, help="The trace file.")
@click.option(
    "--trace-format",
    type=click.Choice(list(FORMATS)),
    metavar="FORMAT",
    default="jsonl",
    show_default=True,
    help=f"How the trace is written: {', '.join(FORMATS)}.",
)
@deployment_options
@click.option("--max-num-seqs", type=click.IntRange(1), help="Most requests running at a time. [default: vLLM's for the GPU]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Token budget of one iteration. [default: vLLM's for the GPU]")
@click.option("--gpu-memory-utilization", type=Fraction(closed=True), default=0.9, show_default=True, help="Share of memory to use.")
@click.option("--block-size", type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens in a KV block.")
@click.option("--max-model-len", type=TokenCount(), help="Longest prompt + output. [default: the model's]")
@click.option("--num-gpu-blocks", type=click.IntRange(2), help="KV blocks, instead of those predicted from memory.")
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=True, show_default=True, help="Reuse KV of equal prefixes.")
@click.option("--max-concurrency", type=click.IntRange(1), help="Most requests that clients have in flight.")
@click.option(
    "--goodput", multiple=True, metavar="NAME:MS...", help="Service levels that a good request meets: ttft:200 tpot:50 e2el:5000."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N requests of the trace.")
@click.option("--rate-scale", type=float, default=1.0, show_default=True, help="Let the trace arrive this many times as fast.")
@click.option("--draws", type=click.IntRange(0, 1000), default=0, show_default=True, help="Repeat at this many draws of the rates.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything drawn: same seed, same bytes.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Write run.nc and summary.json into DIR, whole or not at all.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout instead of the table.")
def command(**options: Any) -> None:
    """Replay a request trace through a simulated engine replica.

    Continuous batching with chunked prefill under one token budget, paged KV blocks, prefix caching, preemption by
    recompute: vLLM's decisions, iteration by iteration, each priced by the bill. Figures are named as in `vllm bench
    serve`: TPOT is (E2EL - TTFT) / (output tokens - 1); ITL is per gap, pooled over requests.

    \b
    Examples:
      simctl simulate --trace t.csv --trace-format azure --gpu H100
      simctl simulate --trace my.jsonl --gpu A10 --goodput ttft:500 --out run1
    """
    from sim.outdir import replaced_directory
    from sim.results import RUN_FILE, SUMMARY_FILE, summary_json, write_run
    from sim.serve import provenance, run_study

    out: Path | None = options["out"]
    staged = replaced_directory(out, (RUN_FILE, SUMMARY_FILE)) if out is not None else nullcontext(None)
    with staged as directory:
        study = _study(options)
        with _progress() as report:
            result = run_study(study, draws=options["draws"], on_progress=report)
        origin = {
            "simctl_version": __version__,
            "seed": options["seed"],
            **_trace_origin(options),
            **provenance(study, result.config),
        }
        summary = {
            **result.summary,
            "run_noise_90": result.noise,
            "rates_90": result.rate_intervals,
            "bill_share": result.bill,
            "provenance": origin,
        }
        if directory is not None:
            write_run(directory, result.record, summary, origin)
    if options["as_json"]:
        click.echo(summary_json(summary))
        return
    _print(study, result)
    if out is not None:
        click.echo(f"wrote {out / RUN_FILE} and {out / SUMMARY_FILE}", err=True)


def _study(options: dict[str, Any]) -> Any:
    from sim.deployment import Limits
    from sim.metrics import parse_goodput
    from sim.precision import Precision
    from sim.rate_source import rates_for
    from sim.serve import Study
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model
    from sim.workload.formats import load_trace

    model, gpu = get_model(options["model"]), get_gpu(options["gpu"])
    precision = Precision(options["dtype"], options["kv_dtype"])
    goodput = parse_goodput(options["goodput"])
    trace = load_trace(options["trace"], options["trace_format"]).rate_scaled(options["rate_scale"])
    if options["limit"] is not None:
        trace = trace.head(options["limit"])
    names = Limits.__dataclass_fields__
    return Study(
        trace=trace,
        model=model,
        gpu=gpu,
        precision=precision,
        rates=rates_for(gpu, precision, draws=max(20, options["draws"]), seed=options["seed"]),
        tp=options["tp"],
        limits=Limits(**{name: options[name] for name in names}),
        max_concurrency=options["max_concurrency"],
        goodput=goodput,
    )


def _trace_origin(options: dict[str, Any]) -> dict[str, Any]:
    """The trace by name and content; its place on this machine is nobody's business."""
    path: Path = options["trace"]
    if not path.is_file():
        raise UsageError(f"{path}: not a file")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "trace": path.name,
        "trace_sha256": digest,
        "trace_format": options["trace_format"],
        "rate_scale": options["rate_scale"],
        "limit": options["limit"] or 0,
    }


def _print(study: Any, result: Any) -> None:
    from sim.report_table import benchmark_table

    config = result.config
    click.echo(
        f"{study.model.name} on {study.tp} x {study.gpu.name}, {study.precision.weights}: {config.num_gpu_blocks} KV blocks of "
        f"{config.block_size}, max_num_seqs {config.max_num_seqs}, max_num_batched_tokens {config.max_num_batched_tokens}"
    )
    click.echo(f"rates: {study.rates.summary}")
    for note in study.trace.notes:
        click.echo(f"trace: {note}")
    click.echo(benchmark_table(result.summary, result.noise, result.rate_intervals or None, config.num_gpu_blocks - 1))
    shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.bill.items() if share >= 5e-4)
    click.echo(f"bill over busy time: {shares}")
    sent = study.trace.offered_rate_per_s
    if sent and sent > SATURATED * result.summary["request_throughput"]:
        click.echo(
            f"saturated: {sent:.2f} req/s were sent and {result.summary['request_throughput']:.2f} served, so the queue grows and "
            "latencies say how long the trace is"
        )
    if not result.rate_intervals:
        click.echo("rates held at their medians; --draws 20 adds what is not known about them")


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
